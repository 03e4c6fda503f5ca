//! Story: bytes of strips rot on the disks of two pdisks, once while nothing runs and once under running
//! servers. Every byte read through the mount is right, and what was damaged and read is made anew and counted.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use common::{Cluster, Random, copy_tree, ok, ropewalk, same_tree, until, write_tree};

/// Two pdisks on different nodes: 4+2p bears the loss of any two strips of a stripe.
const ROTTEN: [&str; 2] = ["nodes/n1/pdisk1", "nodes/n3/pdisk2"];
/// Strips of a block of 1 MiB are 256 KiB.
const EVERY: u64 = 64 << 10;

/// Changes one bit in every 64 KiB of the data files.
fn rot(cluster: &Cluster, random: &mut Random) {
    for place in ROTTEN {
        let path = cluster.dir().join(place).join("data");
        let data = OpenOptions::new().read(true).write(true).open(path).unwrap();
        for start in (0..128 << 20).step_by(EVERY as usize) {
            let offset = start + random.below(EVERY);
            let mut byte = [0];
            data.read_exact_at(&mut byte, offset).unwrap();
            data.write_all_at(&[byte[0] ^ 1 << random.below(8)], offset).unwrap();
        }
        data.sync_all().unwrap();
    }
}

/// A strip, and its index: 0..4 of a 4+2p stripe hold data.
type Strips = BTreeSet<(String, u64)>;

/// Strips that `pdisk verify` finds damaged.
fn damaged(cluster: &Cluster) -> Strips {
    let mut strips = BTreeSet::new();
    for place in ROTTEN {
        let dir = cluster.dir().join(place);
        let output = ropewalk(&["pdisk", "verify", dir.to_str().unwrap(), "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["not_listed"], 0);
        for finding in report["findings"].as_array().unwrap() {
            let index = finding["strip"]["index"].as_u64().expect("damage of a strip only");
            strips.insert((finding["strip"]["stripe"].to_string(), index));
        }
    }
    strips
}

fn with_data(strips: &Strips) -> usize {
    strips.iter().filter(|(_, index)| *index < 4).count()
}

/// Waits until all that was found is repaired; how many, so many at least. A strip counts again if it is found again while it is made anew; it may be whole by then.
fn repaired(cluster: &Cluster, least: u64) -> u64 {
    let mut repaired = 0;
    until("what was found is repaired", || {
        // Of one look: they go on meanwhile.
        let status = cluster.json(&["status"]);
        let counted = |outcome: &str| -> u64 {
            let processes = status["processes"].as_array().unwrap();
            let families =
                processes.iter().map(|p| &p["status"]["statistics"]["families"]["nsd_damaged_strips"]);
            let series = families.filter_map(|f| f["series"].as_array()).flatten();
            let these = series.filter(|s| s["labels"]["outcome"] == outcome);
            these.map(|s| s["value"]["counter"].as_u64().unwrap()).sum()
        };
        assert_eq!(counted("failed"), 0, "{}", cluster.logs());
        repaired = counted("repaired");
        counted("found") == repaired + counted("sound") && repaired >= least
    });
    repaired
}

/// Reads all of the mount of a cluster that runs, and ends it, until every strip with data is whole: one that answers late on a busy machine
/// is not waited for, so nobody may have come upon its damage. What is left, and how many were counted as repaired.
fn read_until_whole(cluster: &Cluster, local: &Path) -> (Strips, u64) {
    let (end, mut made_good) = (Instant::now() + Duration::from_secs(300), 0);
    loop {
        same_tree(local, &cluster.mnt().join("tree"));
        made_good += repaired(cluster, u64::from(made_good == 0));
        cluster.down();
        let left = damaged(cluster);
        if with_data(&left) == 0 {
            return (left, made_good);
        }
        assert!(Instant::now() < end, "{made_good} repaired, {left:?} are left");
        cluster.start();
    }
}

#[test]
fn rotten_bytes_are_never_read_and_are_made_good() {
    let mut random = Random(common::seed());
    let cluster = Cluster::up(&["--pdisk-size", "256m", "--block-size", "1m"]);
    let local = tempfile::tempdir().unwrap();
    let bytes = write_tree(local.path(), 60, &mut random);
    let tree = cluster.mnt().join("tree");
    copy_tree(local.path(), &tree);

    // While nothing runs.
    cluster.down();
    rot(&cluster, &mut random);
    let all = damaged(&cluster);
    let data = with_data(&all);
    assert!(data > 20, "only {data} of {all:?} hold data: the test rots the wrong places");
    cluster.start();
    let (left, made_good) = read_until_whole(&cluster, local.path());
    // Parity is read only to decode; what of it was not waits for a scrub, which may have come by now.
    assert!(left.is_subset(&all), "{left:?} of {all:?}");
    let all = all.len();
    println!("{bytes} bytes compared; {all} strips damaged, {data} of them with data; {made_good} repaired");

    // Under running servers; the client has nothing in memory.
    cluster.start();
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    ok(&["umount", mnt.to_str().unwrap()]);
    rot(&cluster, &mut random);
    ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt.to_str().unwrap()]);
    same_tree(local.path(), &tree);
    for copy in [local.path(), &tree] {
        fs::write(copy.join("after"), "written beside repairs").unwrap();
    }
    read_until_whole(&cluster, local.path());
}
