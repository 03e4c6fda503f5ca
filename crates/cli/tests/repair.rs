//! Story: bytes of strips rot on the disks of two pdisks, once while nothing runs and once under running
//! servers. Every byte read through the mount is right, and what was damaged and read is made anew and counted.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use common::{Cluster, Random, copy_tree, ok, ropewalk, same_tree, write_tree};

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

/// Strips that `pdisk verify` finds damaged: all, and those that hold data (0..4 of a 4+2p stripe).
fn damaged(cluster: &Cluster) -> (usize, usize) {
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
    (strips.len(), strips.iter().filter(|(_, index)| *index < 4).count())
}

/// The sum over all servers of damaged strips with this outcome.
fn counted(cluster: &Cluster, outcome: &str) -> u64 {
    let status = cluster.json(&["status"]);
    let processes = status["processes"].as_array().unwrap();
    let families = processes.iter().map(|p| &p["status"]["statistics"]["families"]["nsd_damaged_strips"]);
    let series = families.filter_map(|f| f["series"].as_array()).flatten();
    series
        .filter(|s| s["labels"]["outcome"] == outcome)
        .map(|s| s["value"]["counter"].as_u64().unwrap())
        .sum()
}

/// Waits until all that was found is repaired: at least the strips that hold data. Returns how many.
fn repaired(cluster: &Cluster, data: u64) -> u64 {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (found, repaired) = (counted(cluster, "found"), counted(cluster, "repaired"));
        if found == repaired && repaired >= data {
            assert_eq!(counted(cluster, "failed"), 0);
            return repaired;
        }
        let what = format!("{found} found, {repaired} repaired, {data} hold data");
        assert!(Instant::now() < end, "{what}\n{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(200));
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
    let (all, data) = damaged(&cluster);
    assert!(data > 20, "only {data} of {all} damaged strips hold data: the test rots the wrong places");
    cluster.start();
    same_tree(local.path(), &tree);
    let made_good = repaired(&cluster, data as u64) as usize;
    cluster.down();
    // Parity is read only to decode; what of it was not waits for a scrub, which may have come by now.
    let (left, with_data) = damaged(&cluster);
    assert!(left <= all - made_good && with_data == 0, "{made_good} of {all} repaired, {left} are left");
    println!("{bytes} bytes compared; {all} strips damaged, {data} of them with data; {made_good} repaired");

    // Under running servers; the client has nothing in memory.
    cluster.start();
    let (dir, mnt) = (cluster.dir(), cluster.mnt());
    ok(&["umount", mnt.to_str().unwrap()]);
    rot(&cluster, &mut random);
    ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt.to_str().unwrap()]);
    same_tree(local.path(), &tree);
    repaired(&cluster, 20);
    fs::write(tree.join("after"), "written beside repairs").unwrap();
    cluster.down();
    assert_eq!(damaged(&cluster).1, 0, "every strip with data is whole");
}
