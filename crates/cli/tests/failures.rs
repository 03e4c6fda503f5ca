//! Stories of arrays in which more than one thing goes wrong: failures during a rebuild, a server that comes
//! and goes, a pdisk that is slow, a full array, three pdisks at once. Every byte is compared and every stripe
//! proved. Short here; `ROPEWALK_SOAK=1` takes the long forms.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
#[allow(dead_code)]
mod load;
#[path = "arrays/story.rs"]
mod story;

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use common::{Cluster, Random, ok, ropewalk, seed, until};
use load::{Load, same, survived};
use story::{PATIENCE, command, proved, set, small, soak, state, whole};

/// Files of random bytes, fsynced, until one cannot be written or there are enough.
fn files(
    cluster: &Cluster,
    random: &mut Random,
    name: &str,
    count: usize,
    len: usize,
) -> Vec<(PathBuf, Vec<u8>)> {
    let mut written = Vec::new();
    for i in 0..count {
        let mut bytes = vec![0; len];
        random.fill(&mut bytes);
        let path = cluster.mnt().join(format!("{name}{i}"));
        let outcome = fs::write(&path, &bytes).and_then(|()| fs::File::open(&path)?.sync_all());
        match outcome {
            Ok(()) => written.push((path, bytes)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{}: {error}", path.display());
                let _ = fs::remove_file(&path); // a part of it
                break;
            }
        }
    }
    written
}

fn unchanged(files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        assert!(fs::read(path).unwrap() == *bytes, "{} differs", path.display());
    }
}

fn moving(cluster: &Cluster) -> (u64, u64) {
    let rebuild = &cluster.json(&["rebuild", "status"])[0];
    (rebuild["left"].as_u64().unwrap(), rebuild["done"].as_u64().unwrap())
}

/// Gives a pdisk up. Whether it is: the first time may have been heard, and its answer not.
fn given_up(cluster: &Cluster, pdisk: &str) -> bool {
    let dir = cluster.dir();
    ropewalk(&["pdisk", "fail", "--dir", dir.to_str().unwrap(), pdisk]).status.success()
        || state(cluster, pdisk) != "ok"
}

/// The pdisks that fail one after the other.
const FAIL: [&str; 3] = ["n1p1", "n2p2", "n3p1"];

/// A second one fails while the first is rebuilt, and a third as soon as the code bears it. Whether there was something left to rebuild
/// each time.
fn all_fail(cluster: &Cluster) -> bool {
    until("the first is given up", || given_up(cluster, FAIL[0]));
    let end = Instant::now() + PATIENCE;
    while moving(cluster).1 == 0 {
        assert!(Instant::now() < end, "nothing is rebuilt");
        std::thread::sleep(Duration::from_millis(50));
    }
    let at_second = moving(cluster);
    until("the second is given up", || given_up(cluster, FAIL[1]));
    while !given_up(cluster, FAIL[2]) {
        assert!(Instant::now() < end, "the groups that lack two strips are not made good");
        std::thread::sleep(Duration::from_millis(100));
    }
    let at_third = moving(cluster);
    println!("the second fails with {at_second:?}, the third with {at_third:?} (left, done)");
    at_second.0 > 0 && at_third.0 > 0
}

/// A second pdisk fails while the first is rebuilt, and a third as soon as the code bears it. How long that takes is the machine's matter,
/// and a rebuild goes on meanwhile: where it was over before the third failed, all of it is done once more.
#[test]
fn two_more_fail_while_one_is_rebuilt() {
    const TRIES: u64 = 4;
    let cluster = small(&["--nodes", "5", "--pdisks", "2"]);
    let mut random = Random(seed());
    // So much, and so slowly, that all three fail before the first is rebuilt.
    let kept = files(&cluster, &mut random, "file", 48, 5 << 20);
    let failed_meanwhile = (0..TRIES).any(|attempt| {
        set(&cluster, &["rebuild_rate=1"]);
        // In force at every server before anything fails.
        cluster.down();
        cluster.start();
        let load = Load::start(&cluster.mnt().join(format!("load{attempt}")), 2, random.next(), false);
        load.goes_on();
        let meanwhile = all_fail(&cluster);
        load.goes_on();
        set(&cluster, &["rebuild_rate=0"]);
        whole(&cluster);
        same(&load.end());
        unchanged(&kept);
        proved(&cluster);
        if !meanwhile {
            FAIL.iter().for_each(|name| command(&cluster, &["pdisk", "keep", name]));
            cluster.wait_all_ok(PATIENCE);
            whole(&cluster);
        }
        meanwhile
    });
    assert!(failed_meanwhile, "all was rebuilt before the next one failed, {TRIES} times");
}

/// A server dies and is back, again and again.
#[test]
fn a_server_that_comes_and_goes() {
    let (rounds, seconds) = if soak() { (18, 10) } else { (3, 2) };
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let load = Load::start(&cluster.mnt(), 2, seed(), false);
    for _ in 0..rounds {
        load.goes_on();
        cluster.kill(|name| name == "n2");
        std::thread::sleep(Duration::from_secs(seconds));
        cluster.start_server("n2");
        std::thread::sleep(Duration::from_secs(seconds));
    }
    load.goes_on();
    // It is back: nobody may have noticed yet that it was gone.
    cluster.wait_reported(PATIENCE);
    cluster.wait_all_ok(PATIENCE);
    whole(&cluster);
    same(&load.end());
    proved(&cluster);
}

/// A pdisk answers reads only after many seconds: reads go round it by parity.
#[test]
fn a_pdisk_that_answers_late() {
    // Less than what gives an answer up, 10 s; much more than what a read waits before it goes round, 2 s at most: what a busy machine adds
    // to that is not taken for waiting.
    const SLOW: Duration = Duration::from_secs(8);
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let mut random = Random(seed());
    let kept = files(&cluster, &mut random, "file", 4, 8 << 20);
    cluster.down();
    cluster.set_env("ROPEWALK_PDISK_FAULT", "delay 8s on=read file=data path=nodes/n1/pdisk1");
    cluster.start();
    let (mut reads, mut waited) = (0, 0);
    for (path, bytes) in &kept {
        let file = fs::File::open(path).unwrap();
        for at in (0..bytes.len()).step_by(1 << 20) {
            let mut found = vec![0; 256 << 10];
            let begun = Instant::now();
            file.read_exact_at(&mut found, at as u64).unwrap();
            assert!(found[..] == bytes[at..at + found.len()], "{} at {at} differs", path.display());
            reads += 1;
            waited += u32::from(begun.elapsed() >= SLOW);
        }
    }
    // Half of all stripes have a data strip there.
    println!("{waited} of {reads} reads waited for it");
    assert!(waited * 8 < reads, "{waited} of {reads} reads waited for it");
}

/// A pdisk fails when nothing is free: what cannot be made anew waits for room, and nothing else does.
#[test]
fn a_full_array_while_a_pdisk_fails() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2", "--pdisk-size", "96m"]);
    let mut random = Random(seed());
    let mut kept = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        // What was written since pdisks reported last counts twice: later there is a little more room.
        let more = files(&cluster, &mut random, name, 1000, 4 << 20);
        if more.is_empty() {
            break;
        }
        kept.extend(more);
        cluster.wait_reported(PATIENCE);
    }
    println!("{} files fill it", kept.len());
    assert!(kept.len() > 20);
    command(&cluster, &["pdisk", "fail", "n1p1"]);
    until("something is to move", || moving(&cluster).0 > 0);
    // Time in which it would be made anew if there were room.
    std::thread::sleep(Duration::from_secs(5));
    assert!(moving(&cluster).0 > 0, "there was room");
    unchanged(&kept);
    // A write into what little is left succeeds, or is told that there is no room.
    files(&cluster, &mut random, "more", 1, 4 << 20);
    for (path, _) in kept.drain(..kept.len() / 2) {
        fs::remove_file(path).unwrap();
    }
    whole(&cluster);
    unchanged(&kept);
    proved(&cluster);
}

/// A mount dies in the middle of stripes and nobody mounts again: they are resolved all the same, so that their
/// groups can move.
#[test]
fn what_a_dead_mount_left_holds_up_no_rebuild() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let load = Load::start(&cluster.mnt(), 2, seed(), true);
    load.goes_on();
    load.goes_on();
    cluster.kill(|name| name.starts_with("mount"));
    let models = load.end();
    command(&cluster, &["pdisk", "fail", "n1p1"]);
    whole(&cluster);
    let end = Instant::now() + PATIENCE;
    let dir = cluster.dir();
    while !ropewalk(&["pool", "verify", "--dir", dir.to_str().unwrap()]).status.success() {
        assert!(Instant::now() < end, "stripes are left: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(500));
    }
    until("the dead mount is gone", || cluster.json(&["clients", "list"]).as_array().unwrap().is_empty());
    cluster.start();
    survived(&models).unwrap();
}

/// A mount dies in the middle of stripes, and the next one comes while too many pdisks are away to resolve them: it
/// does so when they are back, and needs no mounting again.
#[test]
fn what_cannot_be_resolved_yet_is_resolved_when_it_can() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    set(&cluster, &["missingRebuildDelay=10min"]);
    let load = Load::start(&cluster.mnt(), 2, seed(), true);
    load.goes_on();
    load.goes_on();
    cluster.kill(|name| name.starts_with("mount") || name == "n1" || name == "n2");
    let models = load.end();
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    set(&cluster, &["operationDeadline=20s"]); // the mount waits so long for those that are away
    ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt.to_str().unwrap()]);
    let told =
        |log: fs::DirEntry| fs::read_to_string(log.path()).unwrap().contains("cannot be resolved until");
    until("something cannot be resolved", || {
        fs::read_dir(dir.join("log")).unwrap().any(|log| told(log.unwrap()))
    });
    cluster.start_server("n1");
    cluster.start_server("n2");
    cluster.wait_all_ok(PATIENCE);
    let end = Instant::now() + PATIENCE;
    while let Err(lost) = survived(&models) {
        assert!(Instant::now() < end, "{lost}: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(500));
    }
    while !ropewalk(&["pool", "verify", "--dir", dir.to_str().unwrap()]).status.success() {
        assert!(Instant::now() < end, "stripes are left: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// `8+3p` on 16 pdisks: any three at once.
#[test]
fn three_of_sixteen() {
    let rounds = if soak() { 50 } else { 2 };
    let options = ["--nodes", "8", "--pdisks", "2", "--code", "8+3p", "--pdisk-size", "96m"];
    let cluster = small(&options);
    let mut random = Random(seed());
    let load = Load::start(&cluster.mnt(), 2, random.next(), false);
    for round in 0..rounds {
        load.goes_on();
        let mut names: Vec<String> = (0..16).map(|i| format!("n{}p{}", i / 2 + 1, i % 2 + 1)).collect();
        let lost: Vec<String> =
            (0..3).map(|_| names.swap_remove(random.below(names.len() as u64) as usize)).collect();
        println!("round {round}: {lost:?}");
        lost.iter().for_each(|name| command(&cluster, &["pdisk", "fail", name]));
        load.goes_on();
        whole(&cluster);
        lost.iter().for_each(|name| command(&cluster, &["pdisk", "keep", name]));
        cluster.wait_all_ok(PATIENCE);
        whole(&cluster);
    }
    same(&load.end());
    proved(&cluster);
}
