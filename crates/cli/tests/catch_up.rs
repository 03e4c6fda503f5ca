//! Stories of pdisks that come back after files were removed, cut and replaced without them: each is `ok` again soon, what
//! is there reads as it was written, and nothing of what is gone takes up space.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

#[path = "arrays/story.rs"]
#[allow(dead_code)]
mod story;

mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use common::{Cluster, Random, seed};
use story::{PATIENCE, proved, set};

/// Bytes of a file: a block, nearly.
const LEN: usize = 250_000;

/// A cluster with short leases that rebuilds nothing, and what its files should hold.
struct Outage {
    cluster: Cluster,
    random: Random,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Outage {
    fn new(options: &[&str]) -> Outage {
        let mut all = vec!["--block-size", "256k", "--pdisk-size", "192m"];
        all.extend(options);
        let cluster = Cluster::up(&all);
        set(&cluster, &["leaseRenewInterval=500ms", "leaseDuration=3s", "missingRebuildDelay=10min"]);
        std::thread::sleep(Duration::from_millis(2500)); // processes read it every two seconds
        Outage { cluster, random: Random(seed()), files: BTreeMap::new() }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.cluster.mnt().join(format!("file{number}"))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Makes a file and has it stored.
    fn write(&mut self, number: usize) {
        let (path, bytes) = (self.path(number), self.bytes(LEN));
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        self.files.insert(path, bytes);
    }

    /// One of the changes that an outage is missed by.
    fn change(&mut self, number: usize) {
        let path = self.path(number);
        match number % 8 {
            0 => {} // stays
            1 => {
                let bytes = self.bytes(70_000);
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(&bytes, 50_000).unwrap();
                file.sync_all().unwrap();
                self.files.get_mut(&path).unwrap()[50_000..120_000].copy_from_slice(&bytes);
            }
            2 => {
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(0).unwrap();
                file.sync_all().unwrap();
                self.files.insert(path, Vec::new());
            }
            // Cut, and something written into the same block.
            3 => {
                let bytes = self.bytes(20_000);
                let mut file = fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
                file.write_all(&bytes).unwrap();
                file.sync_all().unwrap();
                self.files.insert(path, bytes);
            }
            4 => {
                self.write(number + 10_000);
                let other = self.path(number + 10_000);
                fs::rename(&other, &path).unwrap();
                let bytes = self.files.remove(&other).unwrap();
                self.files.insert(path, bytes);
            }
            _ => {
                fs::remove_file(&path).unwrap();
                self.files.remove(&path);
            }
        }
    }

    /// Waits until these pdisks do not count.
    fn missed(&self, pdisks: &[&str]) {
        let end = Instant::now() + PATIENCE;
        while pdisks.iter().any(|pdisk| story::state(&self.cluster, pdisk) == "ok") {
            assert!(Instant::now() < end, "{pdisks:?} are still ok: {}", self.cluster.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until nothing is left to be removed where it can be.
    fn removed(&self) {
        let end = Instant::now() + PATIENCE;
        while self.cluster.json(&["status"])["deletes_pending"] != 0 {
            assert!(Instant::now() < end, "deletes are left: {}", self.cluster.json(&["status"]));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// All is as it should be, on every pdisk.
    fn well(&self) {
        self.cluster.wait_all_ok(Duration::from_secs(60));
        self.read();
        proved(&self.cluster);
    }

    fn read(&self) {
        for (path, bytes) in &self.files {
            assert!(fs::read(path).unwrap() == *bytes, "{} differs", path.display());
        }
    }
}

/// Files are removed while one server of the default shape is away: of some of them both parity strips are on its pdisks.
#[test]
fn files_are_removed_while_a_server_is_away() {
    let mut outage = Outage::new(&["--nodes", "4", "--pdisks", "2"]);
    (0..120).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == "n2");
    outage.missed(&["n2p1", "n2p2"]);
    for number in 0..100 {
        fs::remove_file(outage.path(number)).unwrap();
        outage.files.remove(&outage.path(number));
    }
    outage.removed();
    outage.cluster.start_server("n2");
    outage.well();
}

/// Everything that an outage can be missed by, in a pool of fewer pdisks than its stripes could be spread over twice.
fn changes_are_missed(options: &[&str], server: &str, pdisks: &[&str]) {
    let mut outage = Outage::new(options);
    (0..64).for_each(|number| outage.write(number));
    outage.cluster.kill(|name| name == server);
    outage.missed(pdisks);
    (0..64).for_each(|number| outage.change(number));
    outage.removed();
    outage.read();
    outage.cluster.start_server(server);
    outage.well();
}

#[test]
fn changes_are_missed_by_a_server_of_four() {
    changes_are_missed(&["--nodes", "4", "--pdisks", "2"], "n2", &["n2p1", "n2p2"]);
}

#[test]
fn changes_are_missed_by_two_copies_of_three() {
    changes_are_missed(&["--nodes", "2", "--pdisks", "2", "--code", "3way"], "n2", &["n2p1", "n2p2"]);
}
