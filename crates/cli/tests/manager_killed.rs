//! The manager is killed (SIGKILL) and started again, over and over, under load from two mounts, one of them over
//! io_uring where the kernel has it: no acknowledged operation is lost, none is done twice, open files, files without a
//! name and locks go on. How long the mounts stood still is printed. `ROPEWALK_SOAK=1` kills it 50 times.
//! And the manager's disk becomes full under load.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;
#[path = "common/work.rs"]
mod work;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use common::{Random, seed};
use mounts::Mounts;
use rustix::fs::{FlockOperation, flock};
use work::{Load, PATIENCE, check, rw};

#[test]
fn nothing_is_lost_or_done_twice_when_the_manager_is_killed() {
    let mut mounts = Mounts::new(1);
    let path = mounts.more.path().join("other");
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, "auto");
    mounts.all.push(path);
    let load = Load::prepare(&mounts.all);
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
        load.begin(scope, &mounts.all);
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
    check(&mounts.all, &done);
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
        // One that was made before the end may be counted after it, and ahead of the manager a mount makes as many as it keeps untold.
        let durable = std::env::var("ROPEWALK_NAMES").is_ok_and(|names| names == "durable");
        let (now, most) = (made.load(SeqCst), before + 1 + if durable { 0 } else { 4096 });
        assert!(now <= most, "{now} names, {before} before");
        fs::remove_file(&filler).unwrap();
        cluster.start_server("manager");
        goes_on(now + 100);
        stop.store(true, SeqCst);
        println!("{before} names before the disk was full, {} in all", made.load(SeqCst));
    });
    assert_eq!(fs::read_dir(mounts.at(0, "names")).unwrap().count() as u64, made.load(SeqCst));
}
