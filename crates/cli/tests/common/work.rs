//! What programs do again and again on several mounts at once while something happens to a cluster, and the proof that all of it was
//! done, once: names, appends, counters under locks, blocks.
#![allow(dead_code)] // each test file uses a part
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread::{self, Scope},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    mount::{UnmountFlags, unmount},
};

/// How long a mount may stand still before the test gives up.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Names that a worker leaves before it removes the oldest.
const KEPT: u64 = 8;
const BLOCK: u64 = 1 << 20;

pub fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What each worker does again and again; `i` counts. Every call must succeed: one that was done twice would find its
/// name there, or gone.
trait Work {
    fn step(&mut self, i: u64);
}

/// The same call again as long as it is refused for want of room: what was refused was not done.
pub fn with_room<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull && Instant::now() < end => {
                thread::sleep(Duration::from_millis(50));
            }
            done => return done.unwrap(),
        }
    }
}

/// Files made, filled, renamed, linked, removed; directories made and removed.
struct Names<'a>(&'a Path);

impl Work for Names<'_> {
    fn step(&mut self, i: u64) {
        let at = |kind: &str, i: u64| self.0.join(format!("{kind}{i}"));
        with_room(|| File::create_new(at("new", i))).write_all(i.to_string().as_bytes()).unwrap();
        with_room(|| fs::rename(at("new", i), at("file", i)));
        with_room(|| fs::hard_link(at("file", i), at("link", i)));
        with_room(|| fs::create_dir(at("dir", i)));
        if let Some(old) = i.checked_sub(KEPT) {
            fs::remove_file(at("file", old)).unwrap();
            fs::remove_file(at("link", old)).unwrap();
            fs::remove_dir(at("dir", old)).unwrap();
        }
    }
}

/// Lines at the end of a file of its own, and of one that all mounts append to.
struct Appends<'a>(&'a Path, &'a Path, usize);

impl Work for Appends<'_> {
    fn step(&mut self, i: u64) {
        for path in [self.0, self.1] {
            let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
            file.write_all(format!("{} {i}\n", self.2).as_bytes()).unwrap();
            file.sync_all().unwrap();
        }
    }
}

/// A number in a file, read and written under a lock, so that all mounts count together.
struct Counter(File, bool);

impl Work for Counter {
    fn step(&mut self, _: u64) {
        let lock = |operation| match self.1 {
            true => fcntl_lock(&self.0, operation).unwrap(),
            false => flock(&self.0, operation).unwrap(),
        };
        lock(FlockOperation::LockExclusive);
        let mut number = [0; 8];
        self.0.read_exact_at(&mut number, 0).unwrap();
        self.0.write_all_at(&(u64::from_le_bytes(number) + 1).to_le_bytes(), 0).unwrap();
        lock(FlockOperation::Unlock);
    }
}

/// Blocks of a file that all mounts have open all the time: its own among those of the others.
struct Blocks(File, u64, u64);

impl Work for Blocks {
    fn step(&mut self, i: u64) {
        let bytes = [i.to_le_bytes(); 512].concat();
        self.0.write_all_at(&bytes, ((i % 3) * self.2 + self.1) * BLOCK).unwrap();
        self.0.sync_data().unwrap();
    }
}

/// Kinds of work on each mount.
const KINDS: usize = 5;

/// What was done on each mount.
pub type Done = Vec<[u64; KINDS]>;

/// All workers of all mounts, and what they have done.
pub struct Load {
    pub stop: AtomicBool,
    /// How long each worker rests after a step.
    pub pace: Duration,
    done: Vec<[AtomicU64; KINDS]>,
}

impl Load {
    /// Makes what they work on; `mounts` are those of one file system.
    pub fn prepare(mounts: &[PathBuf]) -> Load {
        let count = mounts.len();
        (0..count).for_each(|mount| fs::create_dir(mounts[0].join(format!("names{mount}"))).unwrap());
        for name in ["flocked", "locked"] {
            fs::write(mounts[0].join(name), [0; 8]).unwrap();
        }
        rw(&mounts[0].join("blocks")).set_len(3 * count as u64 * BLOCK).unwrap();
        let stop = AtomicBool::new(false);
        Load { stop, pace: Duration::ZERO, done: (0..count).map(|_| Default::default()).collect() }
    }

    /// A thread for each.
    pub fn begin<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, mounts: &'scope [PathBuf]) {
        for (mount, worker) in (0..self.done.len()).flat_map(|m| (0..KINDS).map(move |w| (m, w))) {
            scope.spawn(move || self.work(mounts, mount, worker));
        }
    }

    fn work(&self, mounts: &[PathBuf], mount: usize, worker: usize) {
        let at = |name: &str| mounts[mount].join(name);
        let (own, names) = (at(&format!("own{mount}")), at(&format!("names{mount}")));
        let all = at("all");
        let blocks = || OpenOptions::new().write(true).open(at("blocks")).unwrap();
        let mut work: Box<dyn Work> = match worker {
            0 => Box::new(Names(&names)),
            1 => Box::new(Appends(&own, &all, mount)),
            2 => Box::new(Counter(rw(&at("flocked")), false)),
            3 => Box::new(Counter(rw(&at("locked")), true)),
            _ => Box::new(Blocks(blocks(), mount as u64, self.done.len() as u64)),
        };
        for i in 0.. {
            if self.stop.load(SeqCst) {
                break;
            }
            work.step(i);
            self.done[mount][worker].store(i + 1, SeqCst);
            thread::sleep(self.pace);
        }
    }

    pub fn done(&self) -> Done {
        self.done.iter().map(|mount| mount.each_ref().map(|worker| worker.load(SeqCst))).collect()
    }

    /// Waits until every worker has ended something that it began after now; how long that took.
    pub fn went_on(&self) -> Duration {
        let (began, before) = (Instant::now(), self.done());
        while self.done().iter().zip(&before).any(|(now, before)| (0..KINDS).any(|w| now[w] < before[w] + 2))
        {
            assert!(began.elapsed() < PATIENCE, "not all go on: {before:?} then, {:?} now", self.done());
            thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }
}

/// Ends the load of a test on these mounts, also of one that fails. Then the kernel gives up whatever waits on them, and they go:
/// a worker in flock waits as long as the cluster hangs, and would be waited for.
pub struct Ends<'a>(pub &'a Load, pub &'a [PathBuf]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, SeqCst);
        if thread::panicking() {
            for mount in self.1 {
                let _ = unmount(mount, UnmountFlags::FORCE | UnmountFlags::DETACH); // one that is gone has no waiters
            }
        }
    }
}

/// All mounts show everything that was acknowledged, and nothing else.
pub fn check(mounts: &[PathBuf], done: &Done) {
    let count = done.len();
    for (mount, [names, appends, .., blocks]) in done.iter().copied().enumerate() {
        let other = (mount + 1) % count;
        let directory = mounts[other].join(format!("names{mount}"));
        let found: BTreeSet<String> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let kept = names.saturating_sub(KEPT)..names;
        let expected = |kind| kept.clone().map(move |i| format!("{kind}{i}"));
        assert_eq!(found, ["file", "link", "dir"].into_iter().flat_map(expected).collect());
        for i in kept.clone() {
            let file = directory.join(format!("file{i}"));
            assert_eq!(fs::read_to_string(&file).unwrap(), i.to_string());
            assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        }
        let lines: Vec<String> = (0..appends).map(|i| format!("{mount} {i}")).collect();
        for name in [format!("own{mount}"), "all".into()] {
            let text = fs::read_to_string(mounts[other].join(&name)).unwrap();
            let of_mount = text.lines().filter(|line| line.starts_with(&format!("{mount} ")));
            assert_eq!(of_mount.collect::<Vec<_>>(), lines, "{name}");
        }
        let file = File::open(mounts[other].join("blocks")).unwrap();
        for i in blocks.saturating_sub(3)..blocks {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, ((i % 3) * count as u64 + mount as u64) * BLOCK).unwrap();
            assert!(bytes.chunks(8).all(|n| n == i.to_le_bytes()), "block of round {i} of mount {mount}");
        }
    }
    for (name, worker) in [("flocked", 2), ("locked", 3)] {
        let mut number = [0; 8];
        File::open(mounts[0].join(name)).unwrap().read_exact(&mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), done.iter().map(|of| of[worker]).sum::<u64>(), "{name}");
    }
    let all = fs::read_to_string(mounts[0].join("all")).unwrap();
    assert_eq!(all.lines().count() as u64, done.iter().map(|of| of[1]).sum::<u64>());
}
