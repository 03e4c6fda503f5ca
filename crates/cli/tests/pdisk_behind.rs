//! Pdisks that come back without what they acknowledged, in live servers that are back within their lease: it is told,
//! and nobody reads old bytes.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs,
    io::{Seek, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use common::{Cluster, Random, THREE, copy_tree, until};
use pdisk::tools::{DumpItem, dump};

const PATIENCE: Duration = Duration::from_secs(120);
/// Three blocks and a bit, so that every pdisk holds data strips.
const LEN: usize = 900_000;
/// Where the ring begins in the log file.
const RING: u64 = 4096;

fn bytes_of(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    Random(n).fill(&mut bytes);
    bytes
}

/// Writes the whole file in place, durably.
fn store(path: &Path, n: u64) {
    let mut file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    file.rewind().unwrap();
    file.write_all(&bytes_of(n)).unwrap();
    file.sync_all().unwrap();
}

struct Group {
    position: u64,
    bytes: u64,
    records: u32,
}

/// The groups of the log of a pdisk that nobody has open.
fn groups(dir: &Path) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut see = |item: DumpItem| match item {
        DumpItem::Group { position, bytes, .. } => groups.push(Group { position, bytes, records: 0 }),
        DumpItem::Record { .. } => groups.last_mut().unwrap().records += 1,
        _ => {}
    };
    dump(dir, None, &mut see).unwrap();
    groups
}

fn log_of(dir: &Path) -> fs::File {
    let path = pdisk::Pdisk::log_path(dir).unwrap();
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Three servers with a pdisk each. `n1` dies, `spoil` does something to its pdisk, it is back at once.
fn back_within_the_lease(spoil: impl Fn(&Path), must_be_told: bool) {
    let options = [&THREE[..], &["--pdisk-size", "64m", "--block-size", "256k"]].concat();
    let cluster = Cluster::prepare(&options);
    // However long a busy machine takes for it, it is back in time.
    cluster.set_up(&["leaseDuration=60s"]);
    cluster.start();
    let path = cluster.mnt().join("f");
    let old: PathBuf = cluster.dir().join("old");
    let pdisk = cluster.dir().join("nodes/n1/pdisk1");
    store(&path, 1);
    // What an administrator might put back.
    copy_tree(&pdisk, &old);
    store(&path, 2);
    // Its renewals tell the manager how far it is.
    cluster.wait_reported(PATIENCE);
    cluster.kill(|name| name == "n1");
    spoil(&pdisk);
    cluster.start_server("n1");
    let manager = || fs::read_to_string(cluster.dir().join("log/manager.log")).unwrap();
    // It is back: nobody else reports its pdisk.
    cluster.wait_reported(PATIENCE);
    cluster.wait_all_ok(PATIENCE);
    let told = || manager().contains("came back behind its record");
    if must_be_told {
        until("it is told", told); // a line of the log may be written late
    }
    assert_eq!(told(), must_be_told, "{}", cluster.logs());
    // Nothing is cached, and what was on n1 is read from there.
    cluster.down();
    cluster.start();
    cluster.wait_reported(PATIENCE);
    cluster.wait_all_ok(PATIENCE);
    cluster.kill(|name| name == "n2");
    assert!(fs::read(&path).unwrap() == bytes_of(2), "old bytes, or none\n{}", cluster.logs());
}

/// As much of the log is lost as the next open writes anew: the length tells nothing.
#[test]
fn a_log_that_lost_its_end_is_told_and_caught_up() {
    let lose = |dir: &Path| {
        let groups = groups(dir);
        let last = groups.iter().rposition(|g| g.records > 0).unwrap();
        let (from, end) = (groups[last].position, groups.last().map(|g| g.position + g.bytes).unwrap());
        log_of(dir).write_all_at(&vec![0; (end - from) as usize], RING + from).unwrap();
    };
    back_within_the_lease(lose, true);
}

/// One bit of the last group that holds records. The one behind it proves that it was whole: nothing is lost.
#[test]
fn a_bit_of_the_last_records_is_damage_and_loses_nothing() {
    let flip = |dir: &Path| {
        let groups = groups(dir);
        let last = groups.iter().rfind(|g| g.records > 0).unwrap();
        let (log, at) = (log_of(dir), RING + last.position + 110);
        let mut byte = [0];
        log.read_exact_at(&mut byte, at).unwrap();
        log.write_all_at(&[byte[0] ^ 4], at).unwrap();
    };
    back_within_the_lease(flip, false);
}

/// An old copy of the whole pdisk is put in its place.
#[test]
fn an_old_copy_of_a_pdisk_is_told_and_caught_up() {
    let put_back = |dir: &Path| {
        let old = dir.ancestors().nth(3).unwrap().join("old");
        fs::remove_dir_all(dir).unwrap();
        fs::rename(old, dir).unwrap();
    };
    back_within_the_lease(put_back, true);
}
