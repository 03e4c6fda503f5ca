//! Stories: several pools and file systems in one cluster. Directories directed to pools with other codes and
//! block sizes; a pool without redundancy that is drained, and that holds up nobody while its pdisk is gone;
//! both removed again. What `pool verify` says when the manager and the pdisks do not agree.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
#[allow(dead_code)]
mod load;

mod common;
#[path = "common/proof.rs"]
mod proof;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::{Cluster, Random, ok, refused, seed, until};
use load::{Load, same};
use proof::proved;

const PATIENCE: Duration = Duration::from_secs(120);

fn pool_of(path: &Path) -> String {
    let mut name = [0; 64];
    let len = rustix::fs::getxattr(path, "ropewalk.pool", &mut name).unwrap();
    String::from_utf8(name[..len].to_vec()).unwrap()
}

/// Raw bytes on all pdisks.
fn used(cluster: &Cluster) -> u64 {
    let list = cluster.json(&["pdisk", "list"]);
    list.as_array().unwrap().iter().map(|p| p["used_bytes"].as_u64().unwrap()).sum()
}

fn verified(cluster: &Cluster) -> serde_json::Value {
    let dir = cluster.dir();
    proved(|| common::ropewalk(&["pool", "verify", "--json", "--dir", dir.to_str().unwrap()]))
}

/// Writes a file and waits until the pdisks' reports show it; raw bytes per byte.
fn raw_per_byte(cluster: &Cluster, path: &Path, random: &mut Random) -> f64 {
    let mut bytes = vec![0; 24 << 20];
    random.fill(&mut bytes);
    let before = used(cluster);
    fs::write(path, &bytes).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
    let mut last = 0;
    let end = Instant::now() + PATIENCE;
    loop {
        cluster.wait_reported(PATIENCE);
        let now = used(cluster);
        if now == last && now > before {
            return (now - before) as f64 / bytes.len() as f64;
        }
        assert!(Instant::now() < end, "pdisks do not come to rest");
        last = now;
    }
}

#[test]
fn directories_go_to_pools_and_one_without_redundancy_holds_up_nobody() {
    let cluster =
        Cluster::up(&["--nodes", "5", "--pdisks", "2", "--pdisk-size", "192m", "--block-size", "256k"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let dir = dir.to_str().unwrap();
    let mut random = Random(seed());
    ok(&["config", "set", "--dir", dir, "missingRebuildDelay=1h", "rebuild_aggressiveness=100"]);

    // What cannot be is said, and changes nothing.
    let pool = |args: &[&'static str]| -> Vec<&str> { [&["pool", "create", "--dir", dir], args].concat() };
    for (args, reason) in [
        (&["x", "--code", "16+2p", "--block-size", "1m"][..], "does not fit"),
        (&["x", "--code", "5+5p", "--block-size", "1m"], "unknown redundancy code"),
        (&["x", "--code", "1way", "--block-size", "300k"], "block size"),
        (&["x", "--code", "1way", "--block-size", "1m", "--pdisk", "n9p9"], "there is no pdisk n9p9"),
        (&["pool1", "--code", "1way", "--block-size", "1m"], "already"),
        (&["a/b", "--code", "1way", "--block-size", "1m"], "is no name"),
    ] {
        let said = refused(&pool(args));
        assert!(said.contains(reason), "{said}");
    }
    assert!(refused(&["fs", "create", "--dir", dir, "fs2", "--pool", "none"]).contains("pool1"));
    assert_eq!(cluster.json(&["pool", "list"]).as_array().unwrap().len(), 1);

    let (work, data) = (mnt.join("work"), mnt.join("data"));
    fs::create_dir_all(work.join("below")).unwrap();
    fs::create_dir(&data).unwrap();
    ok(&pool(&["work", "--code", "1way", "--block-size", "512k", "--pdisk", "n1p1", "--pdisk", "n2p1"]));
    ok(&["fs", "set-pool", work.to_str().unwrap(), "work"]);
    ok(&pool(&["data", "--code", "8+2p", "--block-size", "1m"]));
    ok(&["fs", "set-pool", data.to_str().unwrap(), "data"]);
    fs::create_dir(work.join("sub")).unwrap();
    for (path, pool) in [
        ("work/f", "work"),
        ("work/sub/f", "work"),
        ("data/f", "data"),
        ("work/below/f", "pool1"),
        ("f", "pool1"),
    ] {
        fs::write(mnt.join(path), "x").unwrap();
        assert_eq!(pool_of(&mnt.join(path)), pool, "{path}");
    }
    assert!(
        refused(&["fs", "set-pool", mnt.join("f").to_str().unwrap(), "work"]).contains("not a directory")
    );
    assert!(refused(&["fs", "set-pool", data.to_str().unwrap(), "none"]).contains("there is no pool"));
    for (path, code) in [("work/sub/raw", 1.0), ("data/raw", 1.25), ("raw", 1.5)] {
        let raw = raw_per_byte(&cluster, &mnt.join(path), &mut random);
        println!("{path}: {raw:.3} raw bytes a byte");
        assert!((code..code * 1.08).contains(&raw), "{path}: {raw}");
    }
    ok(&["fs", "create", "--dir", dir, "fs2", "--pool", "data"]);
    let other = tempfile::tempdir().unwrap();
    ok(&["mount", "--dir", dir, "fs2", other.path().to_str().unwrap()]);
    assert_eq!(pool_of(other.path()), "data");

    // The pool without redundancy moves off one pdisk and back, under load everywhere.
    let mut start = |at: &Path| Load::start(at, 1, random.next(), false);
    let loads =
        [start(&mnt.join("work/l")), start(&mnt.join("data/l")), start(&mnt.join("l")), start(other.path())];
    loads.iter().for_each(Load::goes_on);
    // (8+2p stays, since nine pdisks are too few for it.)
    for wish in ["drain", "keep"] {
        ok(&["pdisk", wish, "--dir", dir, "n1p1"]);
        let end = Instant::now() + PATIENCE;
        while cluster.json(&["pool", "status"]).as_array().unwrap().iter().any(|p| p["moving"] != 0) {
            assert!(Instant::now() < end, "{:#}\n{}", cluster.json(&["rebuild", "status"]), cluster.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
        loads.iter().for_each(Load::goes_on);
    }
    let [in_work, in_data, in_pool1, in_fs2] = loads;
    let kept = in_work.end();
    same(&kept);

    // What was in the pool without redundancy waits for its pdisk; the others go on.
    cluster.kill(|name| name == "n2");
    cluster.wait_all_but(PATIENCE, &["n2p1", "n2p2"]);
    [&in_data, &in_pool1, &in_fs2].into_iter().for_each(Load::goes_on);
    // Nobody who watches the others being rebuilt waits for it.
    ok(&["config", "set", "--dir", dir, "missingRebuildDelay=0s"]);
    let end = Instant::now() + PATIENCE;
    while cluster.json(&["rebuild", "status"])[1]["waiting"] == 0 {
        assert!(Instant::now() < end, "{:#}", cluster.json(&["rebuild", "status"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    let watched = ok(&["rebuild", "status", "--dir", dir, "--watch"]);
    println!("{watched}");
    assert!(watched.contains("cannot be made before n2p1 is back"), "{watched}");
    ok(&["config", "set", "--dir", dir, "missingRebuildDelay=1h"]);
    cluster.start_server("n2");
    cluster.wait_all_ok(PATIENCE);
    same(&kept);
    [in_data, in_pool1, in_fs2].into_iter().for_each(|load| same(&load.end()));
    ok(&["umount", other.path().to_str().unwrap()]);
    until("all is where it belongs again", || {
        cluster.json(&["pool", "status"]).as_array().unwrap().iter().all(|p| p["moving"] == 0)
    });
    cluster.down();
    cluster.start();
    cluster.wait_all_ok(PATIENCE);
    same(&kept);
    let verified = verified(&cluster);
    assert!(
        verified["stripes"].as_u64().unwrap() > 0 && verified["pools"].as_array().unwrap().len() == 3,
        "{verified:#}"
    );
}

#[test]
fn what_is_removed_gives_its_room_back() {
    let cluster =
        Cluster::up(&["--nodes", "4", "--pdisks", "2", "--pdisk-size", "96m", "--block-size", "256k"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let dir = dir.to_str().unwrap();
    let mut bytes = vec![0; 6 << 20];
    Random(seed()).fill(&mut bytes);
    cluster.wait_reported(PATIENCE);
    let before = used(&cluster);
    let work = mnt.join("work");
    fs::create_dir(&work).unwrap();
    ok(&["pool", "create", "--dir", dir, "work", "--code", "2way", "--block-size", "512k"]);
    ok(&["fs", "create", "--dir", dir, "fs2", "--pool", "work"]);
    ok(&["fs", "set-pool", work.to_str().unwrap(), "work"]);
    fs::write(work.join("file"), &bytes).unwrap();
    let other = tempfile::tempdir().unwrap();
    ok(&["mount", "--dir", dir, "fs2", other.path().to_str().unwrap()]);
    for i in 0..300 {
        fs::write(other.path().join(format!("small{i}")), &bytes[..i * 30]).unwrap();
    }
    fs::create_dir(other.path().join("d")).unwrap();
    fs::hard_link(other.path().join("small1"), other.path().join("d/link")).unwrap();
    fs::write(other.path().join("d/large"), &bytes).unwrap();

    // What is in use stays, and is named.
    let delete = |what, name| [what, "delete", "--dir", dir, name, "--yes"];
    assert!(refused(&delete("fs", "fs2")).contains("is mounted at"));
    assert!(refused(&delete("fs", "fs3")).contains("there are fs1, fs2"));
    assert!(refused(&delete("pool", "none")).contains("there are pool1, work"));
    assert!(refused(&delete("pool", "work")).contains("fs2 begins in pool work"));
    ok(&["umount", other.path().to_str().unwrap()]);
    let said = refused(&["fs", "delete", "--dir", dir, "fs2"]);
    assert!(said.contains("--yes") && said.contains("303 files and directories"), "{said}");

    // What its mount said at its end may not be heard: its lease ends it then.
    let filesystems = || cluster.json(&["fs", "list"]).as_array().unwrap().len();
    until("fs2 is deleted", || common::ropewalk(&delete("fs", "fs2")).status.success() || filesystems() == 1);
    // What is under way goes on after a crash of the manager.
    cluster.kill(|name| name == "manager");
    cluster.start_server("manager");
    until("the manager serves", || common::ropewalk(&["fs", "list", "--dir", dir]).status.success());
    assert_eq!(filesystems(), 1);
    assert!(refused(&["mount", "--dir", dir, "fs2", other.path().to_str().unwrap()]).contains("fs2"));
    cluster.wait_all_ok(PATIENCE);
    until("fs2's files leave the pool", || {
        let said = refused(&delete("pool", "work"));
        assert!(said.contains("pool work"), "{said}");
        said.contains("2 files and directories are in pool work, the first of them /work in fs1")
    });
    assert_eq!(pool_of(&work.join("file")), "work");
    fs::remove_dir_all(&work).unwrap();
    until("the pool is empty, and deleted", || {
        common::ropewalk(&delete("pool", "work")).status.success()
            || cluster.json(&["pool", "list"]).as_array().unwrap().len() == 1
    });
    assert_eq!(cluster.json(&["pool", "list"]).as_array().unwrap().len(), 1);
    until("the room comes back", || used(&cluster) <= before + (1 << 20));
    fs::write(mnt.join("file"), &bytes).unwrap();
    fs::File::open(mnt.join("file")).unwrap().sync_all().unwrap();
    let verified = verified(&cluster);
    assert!(verified["recorded"] == 24 && verified["unowned"] == 0, "{verified:#}");
    cluster.down();
    cluster.start();
    assert!(fs::read(mnt.join("file")).unwrap() == bytes);
}

/// A manager whose store is from an old dump: blocks of files made since belong to nobody, and those of files
/// removed since are missed.
#[test]
fn what_manager_and_pdisks_disagree_about_is_named() {
    let cluster =
        Cluster::up(&["--nodes", "4", "--pdisks", "2", "--pdisk-size", "96m", "--block-size", "256k"]);
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    let name = dir.to_str().unwrap();
    let bytes = vec![7; 1 << 20];
    for file in ["kept", "removed"] {
        fs::write(mnt.join(file), &bytes).unwrap();
    }
    cluster.down();
    let dump = cluster.dir().join("old.dump");
    ok(&["manager", "dump", "--dir", name, dump.to_str().unwrap()]);
    cluster.start();
    cluster.wait_all_ok(PATIENCE);
    let verified = verified(&cluster);
    assert!(verified["recorded"] == 8 && verified["absent"] == 0 && verified["unowned"] == 0, "{verified:#}");
    cluster.wait_reported(PATIENCE);
    let before = used(&cluster);
    fs::remove_file(mnt.join("removed")).unwrap();
    // What is to be deleted is not known at once: the pdisks tell when it has begun.
    until("strips are deleted", || {
        used(&cluster) + bytes.len() as u64 <= before && cluster.json(&["status"])["deletes_pending"] == 0
    });
    fs::write(mnt.join("made"), &bytes).unwrap();
    cluster.down();
    fs::rename(dir.join("manager"), dir.join("manager.new")).unwrap();
    ok(&["manager", "restore", "--dir", name, dump.to_str().unwrap()]);
    cluster.start();
    cluster.wait_all_ok(PATIENCE);
    let mut verified = serde_json::Value::Null;
    until("every group is compared", || {
        let output = common::ropewalk(&["pool", "verify", "--dir", name, "--json"]);
        assert!(!output.status.success());
        verified = serde_json::from_slice(&output.stdout).unwrap_or_default();
        verified["unproved"].as_object().is_some_and(serde_json::Map::is_empty)
    });
    assert_eq!((&verified["absent"], &verified["unowned"]), (&4.into(), &4.into()), "{verified:#}");
    assert_eq!(verified["found"], 0, "{verified:#}");
    assert!(fs::read(mnt.join("kept")).unwrap() == bytes);
}

/// Without redundancy nobody but a pdisk itself knows of a version that is complete and not adopted. Its writer forgets that when
/// the pdisk goes; what was synced is there all the same when it is back.
#[test]
fn what_waits_for_adoption_on_the_only_pdisk_survives_its_absence() {
    let cluster =
        Cluster::up(&["--nodes", "4", "--pdisks", "2", "--pdisk-size", "128m", "--block-size", "256k"]);
    let (dir, work) = (cluster.dir(), cluster.mnt().join("work"));
    let pool = ["work", "--code", "1way", "--block-size", "256k", "--pdisk", "n1p1", "--pdisk", "n2p1"];
    ok(&[&["pool", "create", "--dir", dir.to_str().unwrap()], &pool[..]].concat());
    fs::create_dir(&work).unwrap();
    ok(&["fs", "set-pool", work.to_str().unwrap(), "work"]);
    let path = work.join("f");
    let mut bytes = vec![0; 8 << 20];
    for round in 0..2 {
        // The second time over versions that are adopted.
        Random(seed() + round).fill(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        cluster.kill(|name| name == "n2");
        let gone = |p: &serde_json::Value| p["name"] == "n2p1" && p["state"] == "missing";
        until("n2p1 is missing", || cluster.json(&["pdisk", "list"]).as_array().unwrap().iter().any(gone));
        cluster.start_server("n2");
        cluster.wait_all_ok(PATIENCE);
        cluster.down();
        cluster.start();
        assert!(fs::read(&path).unwrap() == bytes, "round {round}");
    }
}
