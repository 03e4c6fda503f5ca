//! Names made ahead of the manager on a real mount (docs/names-ahead.md): what is there after kills of the mount, of the
//! manager and of servers, and after power cuts, in the middle of batches, judged by who knows what was made and removed in which order; and what a second mount sees that
//! comes meanwhile. `ROPEWALK_SOAK=1`: a hundred times each.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::{Result, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use common::{Random, ok, seed, until};
use mounts::Mounts;

/// Names of each directory, itself included.
const GROUP: u64 = 20;
/// Files that were there before: number `i` is removed after number `i` was made.
const OLD: u64 = 200;

/// Whether number `i` is removed again, after what is [`GROUP`] behind it was made: files and an empty directory.
fn is_removed(i: u64) -> bool {
    matches!(i % GROUP, 3 | 7 | 12)
}

/// Whether number `i` is there when `made` were made. None: it is being removed.
fn is_there(i: u64, made: u64) -> Option<bool> {
    match made {
        made if i >= made => Some(false),
        made if is_removed(i) && i + GROUP + 1 == made => None,
        made => Some(!(is_removed(i) && i + GROUP < made)),
    }
}

/// What is made as number `i`: a directory, then what is in it, some of it deeper.
fn place(top: &Path, i: u64) -> PathBuf {
    let group = top.join(format!("g{}", i / GROUP));
    match i % GROUP {
        0 => group,
        10 => group.join("deep"),
        at @ 11..15 => group.join("deep").join(format!("f{at}")),
        at => group.join(format!("f{at}")),
    }
}

fn old(top: &Path, i: u64) -> PathBuf {
    top.join(format!("old{i}"))
}

fn content(i: u64) -> Vec<u8> {
    vec![i as u8; 1 + (i as usize * 7919) % 9000]
}

/// Whether number `i` is written beside its place and moved there: into its directory, or over what is there.
fn is_moved(i: u64) -> bool {
    matches!(i % GROUP, 9 | 14 | 16)
}

/// Where that is written.
fn beside(top: &Path, i: u64) -> PathBuf {
    top.join(format!("g{}", i / GROUP)).join(format!("new{i}"))
}

/// Makes number `i`; with `sync` it is durable afterwards.
fn make(top: &Path, i: u64, sync: bool) -> Result<()> {
    let path = place(top, i);
    match i % GROUP {
        _ if is_moved(i) => {
            if i % GROUP == 16 {
                fs::write(&path, [i as u8; 10])?;
            }
            fs::write(beside(top, i), content(i))?;
            fs::rename(beside(top, i), &path)?;
            if sync {
                File::open(&path)?.sync_all()?;
            }
        }
        0 | 7 | 10 => fs::create_dir(&path)?,
        5 => symlink("elsewhere", &path)?,
        _ => {
            let mut file = File::create_new(&path)?;
            file.write_all(&content(i))?;
            if sync {
                file.sync_all()?;
            }
        }
    }
    if sync { File::open(path.parent().unwrap())?.sync_all() } else { Ok(()) }
}

/// Removes what is to go after number `i` was made.
fn tidy(top: &Path, i: u64) -> Result<()> {
    if i < OLD {
        fs::remove_file(old(top, i))?;
    }
    match i.checked_sub(GROUP).filter(|i| is_removed(*i)) {
        Some(i) if i % GROUP == 7 => fs::remove_dir(place(top, i)),
        Some(i) => fs::remove_file(place(top, i)),
        None => Ok(()),
    }
}

/// What was made, as its maker knows it: so many, and so many of them durable.
#[derive(Default)]
struct Made {
    done: AtomicU64,
    synced: AtomicU64,
    /// Files that were synced themselves.
    whole: Mutex<Vec<u64>>,
    stop: AtomicBool,
}

impl Made {
    /// Makes one after the other until told to stop, or until it fails.
    fn work(&self, top: &Path, random: &mut Random) -> Result<()> {
        while !self.stop.load(SeqCst) {
            let i = self.done.load(SeqCst);
            let sync = random.below(100) == 0;
            make(top, i, sync)?;
            self.done.store(i + 1, SeqCst);
            if sync {
                self.synced.store(i + 1, SeqCst);
                let file = !matches!(i % GROUP, 0 | 5 | 7 | 10);
                self.whole.lock().unwrap().extend(file.then_some(i));
            }
            tidy(top, i)?;
        }
        Ok(())
    }

    /// What is there is a beginning of what was made, with all that is durable; returns how much.
    fn check(&self, top: &Path) -> u64 {
        let (done, synced) = (self.done.load(SeqCst), self.synced.load(SeqCst));
        let there = |i: u64| fs::symlink_metadata(place(top, i)).is_ok();
        let found = (0..=done).filter(|&i| there(i)).max().map_or(0, |last| last + 1);
        assert!(found >= synced, "{synced} were durable, and only {found} are there");
        let mut named = 0;
        for i in 0..done + GROUP {
            let is_there_now = there(i);
            named += u64::from(is_there_now);
            assert!(is_there(i, found).is_none_or(|is| is == is_there_now), "{i} of {found}: {is_there_now}");
        }
        // One was under way, not yet in its place, or there with what was to be replaced.
        for i in (0..=done).filter(|&i| is_moved(i) && fs::symlink_metadata(beside(top, i)).is_ok()) {
            assert_eq!(i + u64::from(there(i)), found, "not moved, and something after it is there");
            named += 1;
        }
        for i in 0..OLD {
            let is_there = fs::symlink_metadata(old(top, i)).is_ok();
            named += u64::from(is_there);
            let right = if i + 1 == found { true } else { is_there == (i >= found) };
            assert!(right, "old{i}, when {found} were made: {is_there}");
        }
        assert_eq!(count(top), named, "names that nobody made");
        for i in (0..found).filter(|&i| there(i)) {
            match i % GROUP {
                0 | 7 | 10 => assert!(place(top, i).is_dir()),
                5 => assert_eq!(fs::read_link(place(top, i)).unwrap(), Path::new("elsewhere")),
                // Content follows names: it may be missing, or end early.
                _ => {
                    let read = fs::read(place(top, i)).unwrap();
                    assert!(read.iter().all(|&byte| byte == i as u8 || byte == 0), "content of another file");
                }
            }
        }
        // What replaced a file was whole, though nobody asked for that.
        for i in (0..found.saturating_sub(1)).filter(|&i| i % GROUP == 16) {
            assert!(fs::read(place(top, i)).unwrap() == content(i), "{i} replaced a file, and is not whole");
        }
        for &i in self.whole.lock().unwrap().iter().filter(|&&i| there(i)) {
            assert!(fs::read(place(top, i)).unwrap() == content(i), "{i} was synced, and has other content");
        }
        found
    }
}

fn count(dir: &Path) -> u64 {
    let inside = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => count(&entry.path()),
        false => 0,
    };
    fs::read_dir(dir).unwrap().map(|entry| 1 + inside(entry.unwrap())).sum()
}

/// A cluster whose only mount makes names ahead.
fn alone() -> Mounts {
    let mounts = Mounts::in_memory(1);
    ok(&["umount", mounts.all[0].to_str().unwrap()]);
    mount(&mounts);
    mounts
}

fn mount(mounts: &Mounts) {
    let dir = mounts.cluster.dir();
    ok(&[
        "mount",
        "--dir",
        dir.to_str().unwrap(),
        "--names",
        "ahead",
        "fs1",
        mounts.all[0].to_str().unwrap(),
    ]);
}

fn rounds() -> u64 {
    if std::env::var_os("ROPEWALK_SOAK").is_some() { 100 } else { 4 }
}

/// A directory to work in, durable with what is in it.
fn top(mounts: &Mounts, name: &str) -> PathBuf {
    let top = mounts.at(0, name);
    fs::create_dir(&top).unwrap();
    (0..OLD).for_each(|i| drop(File::create_new(old(&top, i)).unwrap()));
    File::open(&top).unwrap().sync_all().unwrap();
    top
}

#[test]
fn a_killed_mount_leaves_a_beginning_with_all_that_was_synced() {
    let mounts = alone();
    let mut random = Random(seed());
    let mut lost = 0;
    // But for the first round these were there before the mount was.
    let tops: Vec<PathBuf> = (0..rounds()).map(|round| top(&mounts, &format!("round{round}"))).collect();
    for (round, top) in tops.into_iter().enumerate() {
        let (made, most) = (Made::default(), 100 + random.below(1500));
        let mut its = Random(random.next());
        thread::scope(|scope| {
            let maker = scope.spawn(|| made.work(&top, &mut its));
            until("names are made", || made.done.load(SeqCst) >= most || maker.is_finished());
            mounts.cluster.kill(|process| process.starts_with("mount"));
            assert!(maker.join().unwrap().is_err(), "the mount is gone");
        });
        // What the kernel has of it goes.
        let _ = rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH);
        mount(&mounts);
        let found = made.check(&top);
        lost += made.done.load(SeqCst).saturating_sub(found);
        println!("round {round}: {found} of {} are there", made.done.load(SeqCst));
    }
    println!("{lost} names were lost, none of them durable");
}

/// Kills one process after the other while names are made, and then the mount.
fn killed_in_the_middle(victim: impl Fn(u64) -> String) {
    let mounts = alone();
    let top = top(&mounts, "d");
    let (made, seed) = (Made::default(), seed());
    thread::scope(|scope| {
        let maker = scope.spawn(|| made.work(&top, &mut Random(seed)));
        for round in 1..=rounds() {
            until("names are made", || made.done.load(SeqCst) >= 500 * round || maker.is_finished());
            let victim = victim(round);
            mounts.cluster.kill(|name| name == victim);
            mounts.cluster.start_server(&victim);
        }
        made.stop.store(true, SeqCst);
        maker.join().unwrap().unwrap();
    });
    File::open(&top).unwrap().sync_all().unwrap();
    made.synced.store(made.done.load(SeqCst), SeqCst);
    mounts.cluster.kill(|process| process.starts_with("mount"));
    let _ = rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH);
    mount(&mounts);
    assert_eq!(made.check(&top), made.done.load(SeqCst));
}

#[test]
fn the_manager_is_killed_in_the_middle_and_nothing_is_lost_or_made_twice() {
    killed_in_the_middle(|_| "manager".to_owned());
}

#[test]
fn servers_are_killed_in_the_middle_and_nothing_is_lost() {
    killed_in_the_middle(|round| format!("n{}", round % 3 + 1));
}

/// Power goes everywhere at once. The pdisks' disks keep in memory what was not flushed, and lose it but for a tenth; what the manager has
/// written stays, since it is only killed (its store's power cuts: `manager/src/store`).
#[test]
fn a_power_cut_leaves_a_beginning_with_all_that_was_synced() {
    let cluster = Mounts::memory();
    cluster.start();
    cluster.down();
    cluster.set_env("ROPEWALK_PDISK_FAULT", "volatile leak=0.1");
    let mounts = Mounts::over(cluster, 1);
    let mut random = Random(seed());
    for round in 0..rounds() {
        ok(&["umount", mounts.all[0].to_str().unwrap()]);
        mount(&mounts);
        let top = top(&mounts, &format!("round{round}"));
        let (made, most) = (Made::default(), 100 + random.below(1500));
        let mut its = Random(random.next());
        thread::scope(|scope| {
            let maker = scope.spawn(|| made.work(&top, &mut its));
            until("names are made", || made.done.load(SeqCst) >= most || maker.is_finished());
            mounts.cluster.kill(|_| true);
            assert!(maker.join().unwrap().is_err(), "the mount is gone");
        });
        let _ = rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH);
        mounts.cluster.start();
        let found = made.check(&top);
        println!("round {round}: {found} of {} are there", made.done.load(SeqCst));
    }
}

#[test]
fn a_second_mount_sees_all_that_was_made_before() {
    let mut mounts = alone();
    let top = top(&mounts, "d");
    let (made, seed) = (Made::default(), seed());
    thread::scope(|scope| {
        let maker = scope.spawn(|| made.work(&top, &mut Random(seed)));
        until("names are made", || made.done.load(SeqCst) >= 300 || maker.is_finished());
        mounts.add();
        let other = mounts.at(1, "d");
        for _ in 0..50 {
            // Each is there as soon as its maker knows it.
            let done = made.done.load(SeqCst);
            let last = if is_removed(done - 1) { done - 2 } else { done - 1 };
            assert!(fs::symlink_metadata(place(&other, last)).is_ok(), "{last} is not there");
        }
        made.stop.store(true, SeqCst);
        maker.join().unwrap().unwrap();
    });
    made.synced.store(made.done.load(SeqCst), SeqCst);
    for mount in 0..2 {
        assert_eq!(made.check(&mounts.at(mount, "d")), made.done.load(SeqCst));
    }
    // Names of a mount that was alone, and goes, are all durable.
    ok(&["umount", mounts.all[0].to_str().unwrap()]);
    assert_eq!(made.check(&mounts.at(1, "d")), made.done.load(SeqCst));
}

/// Written, not synced, and moved over a file, while another mount works in the directory: nothing is kept of its names then.
#[test]
fn what_replaces_a_file_beside_another_mount_is_whole_after_a_kill() {
    const FILES: usize = 8;
    let mounts = Mounts::in_memory(2);
    let [dir, other] = [0, 1].map(|mount| mounts.at(mount, "d"));
    fs::create_dir(&dir).unwrap();
    for n in 0..FILES {
        let mut file = File::create_new(dir.join(n.to_string())).unwrap();
        file.write_all(b"old").and_then(|()| file.sync_all()).unwrap();
    }
    let new = vec![2; 300_000];
    for n in 0..FILES {
        let beside = dir.join(format!("new{n}"));
        fs::write(&beside, &new).unwrap();
        File::create_new(other.join(format!("other{n}"))).unwrap();
        // The token of the directory is asked for every few questions.
        (0..n % 4).for_each(|_| assert!(fs::symlink_metadata(dir.join("absent")).is_err()));
        fs::rename(&beside, dir.join(n.to_string())).unwrap();
    }
    let pid = mounts.process(0).as_raw_nonzero().get();
    let (name, _) = mounts.cluster.processes().into_iter().find(|(_, its)| *its == pid).unwrap();
    mounts.cluster.kill(|process| process == name);
    let _ = rustix::mount::unmount(&mounts.all[0], rustix::mount::UnmountFlags::DETACH);
    for n in 0..FILES {
        assert!(fs::read(other.join(n.to_string())).unwrap() == new, "{n} is not whole");
    }
}
