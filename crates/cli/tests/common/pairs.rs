//! A load of pairs: what one client writes durably another one reads at once. Nothing of it may fail.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use crate::common::{Random, rest, until};

/// Names that pairs of writer and reader use in turn.
const PAIRS: u64 = 20;

/// What one client writes durably the other reads at once.
pub struct Pairs {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Pairs {
    pub fn start(written: &Path, read: &Path, seed: u64) -> Pairs {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (Arc::clone(&stop), Arc::clone(&done));
        let (written, read) = (written.join("pairs"), read.join("pairs"));
        fs::create_dir(&written).unwrap();
        let thread = std::thread::spawn(move || {
            let mut random = Random(seed);
            for n in 0.. {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let (name, begun) = (format!("f{}", n % PAIRS), Instant::now());
                let mut bytes = vec![0; 1 + random.below(2 << 20) as usize];
                random.fill(&mut bytes);
                let mut file = File::create(written.join(&name)).unwrap();
                file.write_all(&bytes).and_then(|()| file.sync_all()).unwrap();
                assert!(fs::read(read.join(&name)).unwrap() == bytes, "{name} differs at the other client");
                count.fetch_add(1, Ordering::Relaxed);
                rest(begun);
            }
        });
        Pairs { stop, done, thread }
    }

    /// Waits until some more went well.
    pub fn go_on(&self) {
        let want = self.done.load(Ordering::Relaxed) + 2;
        until("pairs of writer and reader go on", || {
            self.done.load(Ordering::Relaxed) >= want || self.thread.is_finished()
        });
        assert!(!self.thread.is_finished(), "a pair of writer and reader failed");
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
