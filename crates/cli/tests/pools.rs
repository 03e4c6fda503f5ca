//! Story: several pools and file systems in one cluster. Directories directed to pools with other codes and
//! block sizes; a pool without redundancy that is drained, and that holds up nobody while its pdisk is gone.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/load.rs"]
#[allow(dead_code)]
mod load;

mod common;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::{Cluster, Random, ok, refused, seed};
use load::{Load, same};

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
        std::thread::sleep(Duration::from_millis(1500));
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
    cluster.start_server("n2");
    cluster.wait_all_ok(PATIENCE);
    same(&kept);
    [in_data, in_pool1, in_fs2].into_iter().for_each(|load| same(&load.end()));
    ok(&["umount", other.path().to_str().unwrap()]);
    cluster.down();
    cluster.start();
    same(&kept);
    let verified = cluster.json(&["pool", "verify"]);
    assert!(
        verified["stripes"].as_u64().unwrap() > 0 && verified["pools"].as_array().unwrap().len() == 3,
        "{verified:#}"
    );
}
