//! Names that several mounts replace and read all the time, one after the other; each has a history that must be linearizable.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use crate::{
    common::Random,
    linear::{Act, Done, is_linearizable},
    work::{Load, with_room},
};

/// Between two looks: few enough that their order can be searched for.
const PAUSE: Duration = Duration::from_millis(40);
/// Operations on one name in a row, at most: a long round goes on with a new name.
const SHARE: u64 = 150;

/// See the module.
pub struct Registers<'a> {
    mounts: &'a [PathBuf],
    /// The one that all are at.
    current: AtomicU64,
    /// Operations on it.
    used: AtomicU64,
    began: Instant,
    seed: u64,
}

/// What was done, on which register.
pub type History = Vec<(u64, Done)>;

/// What a name has that others replace all the time. One that was replaced between lookup and open is looked up again by the kernel,
/// once; after that the program hears of it, and looks again.
fn read(path: &Path) -> u64 {
    loop {
        match fs::read_to_string(path) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
            text => return text.unwrap().parse().unwrap(),
        }
    }
}

impl<'a> Registers<'a> {
    pub fn new(mounts: &'a [PathBuf], seed: u64) -> Registers<'a> {
        let (current, used) = (AtomicU64::new(0), AtomicU64::new(0));
        let registers = Registers { mounts, current, used, began: Instant::now(), seed };
        registers.make(0);
        registers
    }

    fn make(&self, number: u64) {
        with_room(|| fs::write(self.mounts[0].join(format!("register{number}")), "0"));
    }

    /// A thread for each mount, until the load ends.
    pub fn begin<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        load: &'scope Load,
    ) -> Vec<ScopedJoinHandle<'scope, History>> {
        (0..self.mounts.len()).map(|mount| scope.spawn(move || self.work(mount, load))).collect()
    }

    fn work(&self, mount: usize, load: &Load) -> History {
        let (mut random, mut history) = (Random(self.seed ^ mount as u64), Vec::new());
        let mounts = self.mounts.len();
        for i in 0.. {
            if load.stop.load(SeqCst) {
                break;
            }
            // The first mount alone makes them, so that each is there before anybody is at it.
            if mount == 0 && self.used.load(SeqCst) >= SHARE {
                let next = self.current.load(SeqCst) + 1;
                self.make(next);
                self.used.store(0, SeqCst);
                self.current.store(next, SeqCst);
            }
            let number = self.current.load(SeqCst);
            self.used.fetch_add(1, SeqCst);
            let path = self.mounts[mount].join(format!("register{number}"));
            let start = self.began.elapsed().as_nanos() as u64;
            let act = if random.below(3) == 0 {
                let value = (1 + mount + mounts * i) as u64;
                let new = self.mounts[mount].join(format!("new-register{mount}"));
                with_room(|| fs::write(&new, value.to_string()));
                with_room(|| fs::rename(&new, &path));
                Act::Write(value)
            } else {
                Act::Read(read(&path))
            };
            let end = self.began.elapsed().as_nanos() as u64;
            history.push((number, Done { act, start, end, maybe: false }));
            thread::sleep(PAUSE);
        }
        history
    }

    /// There is an order of each that explains all that was read.
    pub fn check(&self, histories: &[History]) {
        for number in 0..=self.current.load(SeqCst) {
            let of = histories.iter().flatten().filter(|(at, _)| *at == number);
            let history: Vec<Done> = of.map(|(_, done)| *done).collect();
            assert!(is_linearizable(&history), "register{number}: {history:?}");
        }
    }
}
