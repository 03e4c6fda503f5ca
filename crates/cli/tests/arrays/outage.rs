//! What the stories of outages have in common: a cluster that rebuilds nothing, files of known bytes, and changes of every kind that
//! a pdisk can miss. What was acknowledged is known, whatever failed meanwhile.

#![allow(dead_code)] // each test file uses a part

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

use crate::{
    common::{Cluster, Random, ok, ropewalk, seed},
    story::{PATIENCE, removed},
};

/// Bytes of a file: a block, nearly.
pub const LEN: usize = 250_000;

/// A cluster that rebuilds nothing, and what its files should hold.
pub struct Outage {
    pub cluster: Arc<Cluster>,
    pub random: Random,
    /// What was acknowledged.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Outage {
    pub fn new(options: &[&str]) -> Outage {
        Outage::with(options, &[])
    }

    /// With more tunables.
    pub fn with(options: &[&str], tunables: &[&str]) -> Outage {
        let mut all = vec!["--block-size", "256k"];
        if !options.contains(&"--pdisk-size") {
            all.extend(["--pdisk-size", "192m"]);
        }
        all.extend(options);
        let cluster = Cluster::prepare(&all);
        cluster.set_up(&[&["missingRebuildDelay=10min"], tunables].concat());
        cluster.start();
        Outage { cluster: Arc::new(cluster), random: Random(seed()), files: BTreeMap::new() }
    }

    pub fn path(&self, number: usize) -> PathBuf {
        self.cluster.mnt().join(format!("file{number}"))
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Makes a file and has it stored.
    pub fn write(&mut self, number: usize) {
        let (path, bytes) = (self.path(number), self.bytes(LEN));
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        self.files.insert(path, bytes);
    }

    /// The same, unless there is no room for it.
    pub fn write_if_there_is_room(&mut self, number: usize) -> bool {
        let (path, bytes) = (self.path(number), self.bytes(LEN));
        let stored = fs::write(&path, &bytes).and_then(|()| fs::File::open(&path)?.sync_all());
        match stored {
            Ok(()) => self.files.insert(path, bytes),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{}: {error}", path.display());
                fs::remove_file(&path).unwrap(); // a part of it
                return false;
            }
        };
        true
    }

    pub fn remove(&mut self, number: usize) {
        let path = self.path(number);
        fs::remove_file(&path).unwrap();
        self.files.remove(&path);
    }

    /// One of the changes that an outage is missed by.
    pub fn change(&mut self, number: usize) {
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
            _ => self.remove(number),
        }
    }

    /// Waits until nothing is left to be removed where it can be.
    pub fn removed(&self) {
        removed(&self.cluster);
    }

    /// All is as it should be, on every pdisk: soon each is `ok`, what was acknowledged is there and nothing else, and every
    /// stripe is proved.
    pub fn well(&self) {
        self.cluster.wait_all_ok(PATIENCE);
        self.removed();
        // A mount that has nothing in its page pool.
        self.umount();
        self.mount();
        self.read();
        self.proved(&[]);
    }

    /// Waits until every stripe is proved; with options of the command that proves them.
    pub fn proved(&self, options: &[&str]) {
        let (dir, end) = (self.cluster.dir(), Instant::now() + PATIENCE);
        loop {
            let all = &["pool", "verify", "--json", "--dir", dir.to_str().unwrap()];
            let verified = ropewalk(&[&all[..], options].concat());
            let said = String::from_utf8_lossy(&verified.stdout).into_owned();
            if options.is_empty() {
                // The command would take it away: it must not have come back at all.
                let found: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
                assert!(found["removed"].as_u64().unwrap_or(0) == 0, "of inodes that are gone: {said}");
            }
            if verified.status.success() {
                return;
            }
            assert!(Instant::now() < end, "not proved: {said}\n{}", self.cluster.logs());
            sleep(Duration::from_millis(200));
        }
    }

    /// Every name and every byte that was acknowledged, and no other name.
    pub fn read(&self) {
        let names = fs::read_dir(self.cluster.mnt()).unwrap().map(|entry| entry.unwrap().path());
        let names: BTreeSet<PathBuf> = names.collect();
        assert!(self.files.keys().eq(&names), "{names:?}, not {:?}", self.files.keys());
        for (path, bytes) in &self.files {
            let found = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(found == *bytes, "{} differs", path.display());
        }
    }

    pub fn umount(&self) {
        ok(&["umount", self.cluster.mnt().to_str().unwrap()]);
    }

    pub fn mount(&self) {
        let (dir, mnt) = (self.cluster.dir(), self.cluster.mnt());
        ok(&["mount", "--dir", dir.to_str().unwrap(), "fs1", mnt.to_str().unwrap()]);
    }

    /// Files are made and changed from now on, one after the other, until [`Changing::end`].
    pub fn keeps_changing(mut self) -> Changing {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            for number in 5000.. {
                self.write(number);
                self.change(number);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
            self
        });
        Changing { stop, thread }
    }
}

/// Changes that go on while something happens.
pub struct Changing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Outage>,
}

impl Changing {
    pub fn end(self) -> Outage {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a change failed")
    }
}
