//! The manager is killed (SIGKILL) and started again, over and over, under load from two mounts, one of them over
//! io_uring where the kernel has it: no acknowledged operation is lost, none is done twice, open files, files without a
//! name and locks go on. How long the mounts stood still is printed. `ROPEWALK_SOAK=1` kills it 50 times.
//! And the manager's disk becomes full under load.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use common::{Random, seed};
use mounts::Mounts;
use rustix::fs::{FlockOperation, fcntl_lock, flock};

/// How long a mount may stand still before the test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Names that a worker leaves before it removes the oldest.
const KEPT: u64 = 8;
const BLOCK: u64 = 1 << 20;

fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What each worker does again and again; `i` counts. Every call must succeed: one that was done twice would find its
/// name there, or gone.
trait Work {
    fn step(&mut self, i: u64);
}

/// Files made, filled, renamed, linked, removed; directories made and removed.
struct Names<'a>(&'a Path);

impl Work for Names<'_> {
    fn step(&mut self, i: u64) {
        let at = |kind: &str, i: u64| self.0.join(format!("{kind}{i}"));
        File::create_new(at("new", i)).unwrap().write_all(i.to_string().as_bytes()).unwrap();
        fs::rename(at("new", i), at("file", i)).unwrap();
        fs::hard_link(at("file", i), at("link", i)).unwrap();
        fs::create_dir(at("dir", i)).unwrap();
        if let Some(old) = i.checked_sub(KEPT) {
            fs::remove_file(at("file", old)).unwrap();
            fs::remove_file(at("link", old)).unwrap();
            fs::remove_dir(at("dir", old)).unwrap();
        }
    }
}

/// Lines at the end of a file of its own, and of one that both mounts append to.
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

/// A number in a file, read and written under a lock, so that both mounts count together.
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

/// Every other block of a file that both mounts have open all the time.
struct Blocks(File, u64);

impl Work for Blocks {
    fn step(&mut self, i: u64) {
        let bytes = [i.to_le_bytes(); 512].concat();
        self.0.write_all_at(&bytes, (2 * (i % 3) + self.1) * BLOCK).unwrap();
        self.0.sync_data().unwrap();
    }
}

/// All workers of both mounts, and what they have done.
struct Load {
    stop: AtomicBool,
    done: [[AtomicU64; 5]; 2],
}

impl Load {
    fn work(&self, mounts: &Mounts, mount: usize, worker: usize) {
        let at = |name: &str| mounts.at(mount, name);
        let (own, names) = (at(&format!("own{mount}")), at(&format!("names{mount}")));
        let both = at("both");
        let mut work: Box<dyn Work> = match worker {
            0 => Box::new(Names(&names)),
            1 => Box::new(Appends(&own, &both, mount)),
            2 => Box::new(Counter(rw(&at("flocked")), false)),
            3 => Box::new(Counter(rw(&at("locked")), true)),
            _ => Box::new(Blocks(OpenOptions::new().write(true).open(at("blocks")).unwrap(), mount as u64)),
        };
        for i in 0.. {
            if self.stop.load(SeqCst) {
                break;
            }
            work.step(i);
            self.done[mount][worker].store(i + 1, SeqCst);
        }
    }

    fn done(&self) -> [[u64; 5]; 2] {
        self.done.each_ref().map(|mount| mount.each_ref().map(|worker| worker.load(SeqCst)))
    }

    /// Waits until every worker has ended something that it began after now; how long that took.
    fn went_on(&self) -> Duration {
        let (began, before) = (Instant::now(), self.done());
        while self.done().iter().zip(&before).any(|(now, before)| (0..5).any(|w| now[w] < before[w] + 2)) {
            assert!(began.elapsed() < PATIENCE, "not all go on: {before:?} then, {:?} now", self.done());
            thread::sleep(Duration::from_millis(5));
        }
        began.elapsed()
    }
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_manager_is_killed() {
    let mut mounts = Mounts::new(1);
    let path = mounts.more.path().join("other");
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, "auto");
    mounts.all.push(path);
    for name in ["names0", "names1"] {
        fs::create_dir(mounts.at(0, name)).unwrap();
    }
    for name in ["flocked", "locked"] {
        fs::write(mounts.at(0, name), [0; 8]).unwrap();
    }
    rw(&mounts.at(0, "blocks")).set_len(6 * BLOCK).unwrap();
    let load = Load { stop: AtomicBool::new(false), done: Default::default() };
    // Held through all of it: a file open, a file without a name, a lock, and somebody who waits for that lock.
    let (held, wanted) = (rw(&mounts.at(0, "held")), rw(&mounts.at(1, "held")));
    held.write_all_at(b"before", 0).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    fs::write(mounts.at(0, "nameless"), vec![b'n'; 400_000]).unwrap();
    let nameless = File::open(mounts.at(0, "nameless")).unwrap();
    fs::remove_file(mounts.at(1, "nameless")).unwrap();
    let waiter = rw(&mounts.at(1, "held"));
    let (given_up, got) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut random, mut still) = (Random(seed()), Vec::new());
    let kills = if std::env::var("ROPEWALK_SOAK").is_ok_and(|soak| soak == "1") { 50 } else { 4 };
    thread::scope(|scope| {
        for (mount, worker) in (0..2).flat_map(|mount| (0..5).map(move |worker| (mount, worker))) {
            let (load, mounts) = (&load, &mounts);
            scope.spawn(move || load.work(mounts, mount, worker));
        }
        scope.spawn(|| {
            flock(&waiter, FlockOperation::LockExclusive).unwrap();
            assert!(given_up.load(SeqCst), "two have the lock");
            got.store(true, SeqCst);
        });
        load.went_on();
        for _ in 0..kills {
            thread::sleep(Duration::from_millis(random.below(700)));
            let killed = Instant::now();
            mounts.cluster.kill(|name| name == "manager");
            thread::sleep(Duration::from_millis(random.below(300)));
            let started = killed.elapsed();
            mounts.cluster.start_server("manager");
            still.push((started, load.went_on()));
            assert!(flock(&wanted, FlockOperation::NonBlockingLockExclusive).is_err(), "a lock was lost");
            let mut bytes = [0; 6];
            nameless.read_exact_at(&mut bytes, 399_994).unwrap();
            assert_eq!(&bytes, b"nnnnnn");
        }
        load.stop.store(true, SeqCst);
        given_up.store(true, SeqCst);
        flock(&held, FlockOperation::Unlock).unwrap();
    });
    assert!(got.load(SeqCst));
    held.write_all_at(b"after!", 0).unwrap();
    assert_eq!(fs::read_to_string(mounts.at(1, "held")).unwrap(), "after!");
    let done = load.done();
    let longest = still.iter().map(|(_, all)| *all).max().unwrap();
    println!(
        "{kills} kills, {done:?} rounds of work; all ten workers went on at most {longest:?} after the manager's start"
    );
    still
        .iter()
        .for_each(|(down, all)| println!("  killed, started after {down:?}; all went on {all:?} later"));
    check(&mounts, &done);
}

/// Both mounts show everything that was acknowledged, and nothing else.
fn check(mounts: &Mounts, done: &[[u64; 5]; 2]) {
    for (mount, [names, appends, .., blocks]) in done.iter().copied().enumerate() {
        let other = 1 - mount;
        let directory = mounts.at(other, &format!("names{mount}"));
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
        for name in [format!("own{mount}"), "both".into()] {
            let text = fs::read_to_string(mounts.at(other, &name)).unwrap();
            let of_mount = text.lines().filter(|line| line.starts_with(&format!("{mount} ")));
            assert_eq!(of_mount.collect::<Vec<_>>(), lines, "{name}");
        }
        let file = File::open(mounts.at(other, "blocks")).unwrap();
        for i in blocks.saturating_sub(3)..blocks {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, (2 * (i % 3) + mount as u64) * BLOCK).unwrap();
            assert!(bytes.chunks(8).all(|n| n == i.to_le_bytes()), "block of round {i} of mount {mount}");
        }
    }
    for (name, worker) in [("flocked", 2), ("locked", 3)] {
        let mut number = [0; 8];
        File::open(mounts.at(0, name)).unwrap().read_exact(&mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), done[0][worker] + done[1][worker], "{name}");
    }
    let both = fs::read_to_string(mounts.at(0, "both")).unwrap();
    assert_eq!(both.lines().count() as u64, done[0][1] + done[1][1]);
}

/// A file system of its own for a directory, taken away when dropped.
struct Small<'a>(&'a Path);

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The manager's disk becomes full while names are made: it stops and says why, also when it is started again as long as there
/// is no room. With room it goes on, and so does who waited: every name is made, once.
#[test]
fn a_full_disk_stops_the_manager_and_nothing_is_lost() {
    let mounts = Mounts::in_memory(1);
    let cluster = &mounts.cluster;
    let (manager, aside) = (cluster.dir().join("manager"), cluster.dir().join("aside"));
    fs::create_dir(mounts.at(0, "names")).unwrap();
    cluster.kill(|name| name == "manager");
    fs::rename(&manager, &aside).unwrap();
    fs::create_dir(&manager).unwrap();
    rustix::mount::mount("tmpfs", &manager, "tmpfs", rustix::mount::MountFlags::empty(), c"size=64m")
        .unwrap();
    let _small = Small(&manager);
    for entry in fs::read_dir(&aside).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), manager.join(entry.unwrap().file_name()));
        // The table with holes where it holds nothing, so that it needs room soon; the journal as it is made.
        let sparse = if from.extension().is_some_and(|kind| kind == "redb") { "always" } else { "never" };
        let copied = Command::new("cp").arg(format!("--sparse={sparse}")).arg(from).arg(to).status().unwrap();
        assert!(copied.success());
    }
    let log = || fs::read_to_string(cluster.dir().join("log/manager.log")).unwrap_or_default();
    let ends = |times: usize| {
        let end = Instant::now() + PATIENCE;
        while log().matches("the manager stops: ").count() + log().matches("open store ").count() < times
            || cluster.processes().iter().any(|(name, _)| name == "manager")
        {
            assert!(Instant::now() < end, "it does not end\n{}", log());
            thread::sleep(Duration::from_millis(20));
        }
        assert!(log().matches("No space left").count() >= times, "{}", log());
    };
    let (stop, made, filler) = (AtomicBool::new(false), AtomicU64::new(0), manager.join("filler"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let name = format!("names/{:0200}", made.load(SeqCst));
                File::create_new(mounts.at(0, &name)).unwrap();
                made.fetch_add(1, SeqCst);
            }
        });
        let goes_on = |to: u64| {
            let end = Instant::now() + PATIENCE;
            while made.load(SeqCst) < to {
                assert!(Instant::now() < end, "it does not go on\n{}", log());
                thread::sleep(Duration::from_millis(20));
            }
        };
        cluster.start_server("manager");
        goes_on(20);
        let full =
            File::create(&filler).and_then(|mut file| std::io::copy(&mut std::io::repeat(7), &mut file));
        assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        ends(1);
        let before = made.load(SeqCst);
        cluster.start_server("manager");
        ends(2);
        assert_eq!(made.load(SeqCst), before);
        fs::remove_file(&filler).unwrap();
        cluster.start_server("manager");
        goes_on(before + 100);
        stop.store(true, SeqCst);
        println!("{before} names before the disk was full, {} in all", made.load(SeqCst));
    });
    assert_eq!(fs::read_dir(mounts.at(0, "names")).unwrap().count() as u64, made.load(SeqCst));
}
