//! Stories of arrays: pdisks and nodes that go, data that moves, with load on the mount all the time, every
//! byte compared and every stripe proved. Short here; `ROPEWALK_SOAK=1` goes through all of it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
mod load;
#[path = "arrays/story.rs"]
mod story;

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::{Cluster, Random, copy_tree, heard, refused, ropewalk, seed};
use load::{Load, same, survived};
use story::{PATIENCE, becomes, command, proved, removed, set, small, soak, state, whole};

#[test]
fn drained_added_replaced_removed_under_load() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let load = Load::start(&cluster.mnt(), 2, seed(), false);
    load.goes_on();

    command(&cluster, &["pdisk", "drain", "n1p1"]);
    whole(&cluster);
    becomes(&cluster, "n1p1", "replace");
    load.goes_on();
    command(&cluster, &["pdisk", "add", "n2"]);
    whole(&cluster);
    becomes(&cluster, "n2p3", "ok");
    command(&cluster, &["pdisk", "replace", "n3p2"]);
    whole(&cluster);
    becomes(&cluster, "n3p2", "replace");
    command(&cluster, &["pdisk", "remove", "n3p2"]);
    assert_eq!(state(&cluster, "n3p2"), "gone");
    command(&cluster, &["pdisk", "keep", "n1p1"]);
    whole(&cluster);
    becomes(&cluster, "n1p1", "ok");
    load.goes_on();

    let dir = cluster.dir();
    let said = refused(&["pdisk", "remove", "--dir", dir.to_str().unwrap(), "n1p1"]);
    assert!(said.contains("still holds"), "{said}");
    let said = refused(&["pdisk", "drain", "--dir", dir.to_str().unwrap(), "n9p9"]);
    assert!(said.contains("there is no pdisk n9p9"), "{said}");
    let events = cluster.json(&["events"]);
    let texts: Vec<&str> = events.as_array().unwrap().iter().map(|e| e["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|t| t.contains("is drained")), "{texts:?}");

    let models = load.end();
    same(&models);
    assert!(proved(&cluster) > 0);
    cluster.down();
    cluster.start();
    same(&models);
}

/// Pairs of pdisks, and whole nodes, one after the other, with rebuild in between.
#[test]
fn pairs_of_pdisks_and_nodes_are_lost_and_rebuilt_under_load() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let mut random = Random(seed());
    let names: Vec<String> = (1..=4).flat_map(|n| (1..=2).map(move |p| format!("n{n}p{p}"))).collect();
    let mut pairs: Vec<(usize, usize)> = (0..8).flat_map(|a| (0..a).map(move |b| (b, a))).collect();
    let mut nodes = vec![1, 2, 3, 4];
    if !soak() {
        let keep = random.below(28) as usize;
        pairs = vec![pairs[keep]];
        nodes = vec![1 + random.below(4)];
    }
    let load = Load::start(&cluster.mnt(), 2, random.next(), false);
    load.goes_on();
    for (a, b) in pairs {
        println!("{} and {} are lost", names[a], names[b]);
        command(&cluster, &["pdisk", "fail", &names[a]]);
        command(&cluster, &["pdisk", "fail", &names[b]]);
        load.goes_on();
        whole(&cluster);
        proved(&cluster);
        command(&cluster, &["pdisk", "keep", &names[a]]);
        command(&cluster, &["pdisk", "keep", &names[b]]);
        cluster.wait_all_ok(PATIENCE);
        whole(&cluster);
    }
    for node in nodes {
        let name = format!("n{node}");
        println!("{name} is lost");
        cluster.kill(|process| process == name);
        load.goes_on();
        // Missing, then rebuilt on the other six.
        let end = Instant::now() + PATIENCE;
        while cluster.json(&["pool", "status"])[0]["pdisks_counting"] != 6 {
            assert!(Instant::now() < end, "{name} is not missed");
            std::thread::sleep(Duration::from_millis(100));
        }
        whole(&cluster);
        load.goes_on();
        proved(&cluster);
        cluster.start_server(&name);
        cluster.wait_all_ok(PATIENCE);
        whole(&cluster);
    }
    let models = load.end();
    same(&models);
    proved(&cluster);
    println!("health: {}", cluster.json(&["health"]));
}

/// Everything loses power at once under load from three threads: nothing fsynced is lost, nothing is mixed.
/// The pdisks' disks keep in memory what was not flushed; the manager's store is on the real disk.
#[test]
fn power_cuts_lose_nothing_that_was_fsynced() {
    let rounds = if soak() { 100 } else { 3 };
    let mut random = Random(seed());
    let cluster = Cluster::prepare(&["--pdisk-size", "192m", "--block-size", "256k"]);
    cluster.start();
    cluster.down();
    cluster.set_env("ROPEWALK_PDISK_FAULT", "volatile leak=0.1");
    cluster.start();
    let mut changes = 0;
    for round in 0..rounds {
        let below = cluster.mnt().join(format!("round{round}"));
        let load = Load::start(&below, 3, random.next(), true);
        load.goes_on();
        std::thread::sleep(Duration::from_millis(500 + random.below(1500)));
        changes += load.changes();
        cluster.kill(|_| true);
        let models = load.end();
        cluster.start();
        if let Err(reason) = survived(&models) {
            panic!("round {round}: {reason}\n{}", cluster.logs());
        }
        cluster.wait_all_ok(PATIENCE);
        // What the last round left was removed, and that may have been cut off.
        removed(&cluster);
        proved(&cluster);
        fs::remove_dir_all(&below).unwrap();
    }
    assert!(changes > 10, "the load did nothing");
    println!("{rounds} power cuts, {changes} changes");
}

/// The same with flushes that do nothing must lose something: the test above can fail.
#[test]
fn power_cuts_without_flushes_lose_data() {
    let cluster = Cluster::prepare(&["--pdisk-size", "192m", "--block-size", "256k"]);
    cluster.start();
    cluster.down();
    cluster.set_env("ROPEWALK_PDISK_FAULT", "volatile; noflush");
    cluster.start();
    let load = Load::start(&cluster.mnt(), 3, seed(), true);
    // Enough that some was fsynced, whatever was drawn.
    (0..10).for_each(|_| load.goes_on());
    std::thread::sleep(Duration::from_millis(1500));
    cluster.kill(|_| true);
    let models = load.end();
    // Reads of what is lost wait for it to come back; that takes longer than anybody wants to watch.
    set_deadline(&cluster);
    cluster.start();
    let lost = survived(&models).expect_err("flushes do nothing, and yet nothing fsynced is lost");
    println!("as it should be: {lost}");
}

fn set_deadline(cluster: &Cluster) {
    cluster.start_server("manager");
    let end = Instant::now() + PATIENCE;
    let dir = cluster.dir();
    while !common::ropewalk(&["config", "set", "--dir", dir.to_str().unwrap(), "operationDeadline=2s"])
        .status
        .success()
    {
        assert!(Instant::now() < end, "the manager does not serve");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn pdisk_dir(cluster: &Cluster, node: u32, pdisk: u32) -> PathBuf {
    cluster.dir().join(format!("nodes/n{node}/pdisk{pdisk}"))
}

/// Flips one bit in many places of what a pdisk holds.
fn flip_bits(data: &Path, random: &mut Random, times: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(data).unwrap();
    let len = file.metadata().unwrap().len().min(48 << 20);
    for _ in 0..times {
        let (mut byte, at) = ([0], random.below(len));
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << random.below(8);
        file.write_all_at(&byte, at).unwrap();
    }
    file.sync_all().unwrap();
}

/// Flipped bits, a pdisk's file cut off, a pdisk's directory from an old copy: found, never returned, made
/// good.
#[test]
fn damage_is_found_never_returned_and_made_good() {
    let cluster = small(&["--nodes", "4", "--pdisks", "2"]);
    let mut random = Random(seed());
    let load = Load::start(&cluster.mnt(), 2, random.next(), false);
    load.goes_on();
    std::thread::sleep(Duration::from_secs(2));
    let mut models = load.end();
    same(&models);

    // Bits, on two pdisks at once: no more than M strips of a stripe.
    cluster.down();
    flip_bits(&pdisk_dir(&cluster, 1, 1).join("data"), &mut random, 400);
    flip_bits(&pdisk_dir(&cluster, 2, 1).join("data"), &mut random, 400);
    cluster.start();
    same(&models);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let found = heard(|| ropewalk(&["pool", "verify", "--dir", dir, "--repair", "--json"]));
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    println!("flipped bits: {} found, {} made anew", found["found"], found["repaired"]);
    let end = Instant::now() + PATIENCE;
    while !common::ropewalk(&["pool", "verify", "--dir", dir, "--repair"]).status.success() {
        assert!(Instant::now() < end, "not made good: {}", cluster.logs());
        std::thread::sleep(Duration::from_millis(300));
    }
    proved(&cluster);

    // Cut off.
    cluster.down();
    let data = fs::OpenOptions::new().write(true).open(pdisk_dir(&cluster, 3, 1).join("data")).unwrap();
    data.set_len(1 << 20).unwrap();
    cluster.start();
    same(&models);
    whole_but_for_scrub(&cluster);
    same(&models);

    // An old copy.
    cluster.kill(|name| name == "n4");
    let copy = tempfile::tempdir().unwrap();
    copy_tree(&pdisk_dir(&cluster, 4, 1), &copy.path().join("old"));
    cluster.start_server("n4");
    cluster.wait_all_but(PATIENCE, &["n3p1"]);
    let load = Load::start(&cluster.mnt().join("more"), 2, random.next(), false);
    (0..4).for_each(|_| load.goes_on());
    // The manager knows what the copy lacks.
    cluster.wait_reported_but(PATIENCE, &["n3p1"]);
    models.extend(load.end());
    cluster.kill(|name| name == "n4");
    fs::remove_dir_all(pdisk_dir(&cluster, 4, 1)).unwrap();
    copy_tree(&copy.path().join("old"), &pdisk_dir(&cluster, 4, 1));
    cluster.start_server("n4");
    same(&models);
    let behind = |e: &serde_json::Value| e["text"].as_str().unwrap().contains("behind its record");
    let end = Instant::now() + PATIENCE;
    while !cluster.json(&["events"]).as_array().unwrap().iter().any(behind) {
        assert!(Instant::now() < end, "the old copy is not noticed: {:#}", cluster.json(&["events"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.wait_all_but(PATIENCE, &["n3p1"]);
    whole_but_for_scrub(&cluster);
    same(&models);
}

/// Nothing is left to move, and what scrub finds is made anew.
fn whole_but_for_scrub(cluster: &Cluster) {
    let dir = cluster.dir();
    let end = Instant::now() + PATIENCE;
    loop {
        whole(cluster);
        let verified = common::ropewalk(&["pool", "verify", "--dir", dir.to_str().unwrap(), "--repair"]);
        if verified.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&verified.stdout).into_owned();
        assert!(Instant::now() < end, "not made good: {said}\n{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// More pdisks gone than the code can bear, in some groups: which files that concerns is said, and all others
/// are readable.
#[test]
fn what_is_lost_is_named_and_the_rest_is_read() {
    let cluster =
        Cluster::up(&["--nodes", "4", "--pdisks", "4", "--pdisk-size", "128m", "--block-size", "256k"]);
    let mut random = Random(seed());
    let files: Vec<(PathBuf, Vec<u8>)> = (0..150)
        .map(|i| {
            let dir = cluster.mnt().join(format!("d{}", i % 5)).join("e");
            fs::create_dir_all(&dir).unwrap();
            let mut bytes = vec![0; 200_000 + random.below(400_000) as usize];
            random.fill(&mut bytes);
            let path = dir.join(format!("f{i}"));
            fs::write(&path, &bytes).unwrap();
            (path, bytes)
        })
        .collect();
    cluster.down();
    for node in 1..=3 {
        fs::remove_dir_all(pdisk_dir(&cluster, node, 1)).unwrap();
    }
    cluster.start();
    let dir = cluster.dir();
    let lost = heard(|| ropewalk(&["pool", "lost", "--dir", dir.to_str().unwrap(), "--json"]));
    let lost: serde_json::Value = serde_json::from_slice(&lost.stdout).unwrap();
    let first_lost: Vec<u64> =
        lost.as_array().unwrap().iter().map(|f| f["first_lost_byte"].as_u64().unwrap()).collect();
    let lost: Vec<PathBuf> =
        (lost.as_array().unwrap().iter()).map(|f| cluster.mnt().join(f["path"].as_str().unwrap())).collect();
    println!("{} of {} files are lost", lost.len(), files.len());
    assert!(!lost.is_empty() && lost.len() < files.len() / 2, "{lost:?}");
    for (path, bytes) in &files {
        if !lost.contains(path) {
            assert!(fs::read(path).unwrap() == *bytes, "{} differs", path.display());
        }
    }
    // What is lost is an error, never other bytes, and nothing is named that can be read as a whole. Reads of it wait for it to come back,
    // by default longer than anybody wants to watch.
    set(&cluster, &["operationDeadline=2s"]);
    cluster.down();
    cluster.start();
    let mut lost_at: Vec<(&PathBuf, u64)> = lost.iter().zip(&first_lost).map(|(p, at)| (p, *at)).collect();
    // The ends of files first: their blocks are short, and some of those without K strips can be decoded.
    lost_at.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    for (path, _) in lost_at.iter().take(4) {
        let error = fs::read(path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}: {error}", path.display());
    }
    let health = heard(|| ropewalk(&["health", "--dir", dir.to_str().unwrap()]));
    assert!(!health.status.success());
    assert!(String::from_utf8_lossy(&health.stdout).contains("pool lost"), "{health:?}");
}
