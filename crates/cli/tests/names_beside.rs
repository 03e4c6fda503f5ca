//! Names made ahead of the manager by two real mounts beside each other, each in a directory of its own (docs/names-ahead.md): that they
//! are, what each sees of the other's at once, and what is there after kills of a mount and of the manager in the middle of batches.
//! `ROPEWALK_SOAK=1` kills a hundred times each.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Result, Write},
    net::TcpStream,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::Instant,
};

use common::{Random, free_ports, ok, seed, until};
use mounts::Mounts;

/// Names of each directory, itself included.
const GROUP: u64 = 20;

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

/// Whether a name is there; while another mount is being fenced that is not known.
fn is_there(path: &Path) -> bool {
    let mut found = None;
    until("it is known whether a name is there", || {
        found = match fs::symlink_metadata(path) {
            Ok(_) => Some(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(false),
            Err(_) => None,
        };
        found.is_some()
    });
    found.unwrap()
}

/// Makes number `i`; with `sync` it is durable afterwards.
fn make(top: &Path, i: u64, sync: bool) -> Result<()> {
    let path = place(top, i);
    match i % GROUP {
        0 | 10 => fs::create_dir(&path)?,
        5 => symlink("elsewhere", &path)?,
        at => {
            let mut file = File::create_new(&path)?;
            if at == 3 {
                file.write_all(&[i as u8; 700])?;
            }
            if sync {
                file.sync_all()?;
            }
        }
    }
    if sync { File::open(path.parent().unwrap())?.sync_all() } else { Ok(()) }
}

/// What one maker knows: so many were made, and so many of them are durable.
#[derive(Default)]
struct Made {
    done: AtomicU64,
    synced: AtomicU64,
    stop: AtomicBool,
}

impl Made {
    /// Makes one after the other until told to stop, or until it fails.
    fn work(&self, top: &Path, random: &mut Random) -> Result<()> {
        while !self.stop.load(SeqCst) {
            let i = self.done.load(SeqCst);
            let sync = random.below(200) == 0;
            make(top, i, sync)?;
            self.done.store(i + 1, SeqCst);
            if sync {
                self.synced.store(i + 1, SeqCst);
            }
        }
        Ok(())
    }

    /// All that was made up to now is certain.
    fn is_certain(&self) {
        self.synced.store(self.done.load(SeqCst), SeqCst);
    }

    /// What is there is a beginning of what was made, with all that is certain; returns how much.
    fn check(&self, top: &Path) -> u64 {
        let (done, synced) = (self.done.load(SeqCst), self.synced.load(SeqCst));
        let there: Vec<bool> = (0..=done).map(|i| is_there(&place(top, i))).collect();
        let found = there.iter().filter(|there| **there).count() as u64;
        assert!(
            there[..found as usize].iter().all(|there| *there),
            "a name is missing before one that is there"
        );
        assert!(found >= synced, "{synced} were certain, and only {found} are there");
        assert_eq!(count(top), found, "names that nobody made");
        for i in (0..found).filter(|i| i % GROUP == 3) {
            let read = fs::read(place(top, i)).unwrap();
            assert!(read.iter().all(|&byte| byte == i as u8 || byte == 0), "content of another file");
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

fn mount(mounts: &Mounts, at: usize) {
    mount_with(mounts, at, "ahead");
}

fn mount_with(mounts: &Mounts, at: usize, names: &str) {
    let (dir, path) = (mounts.cluster.dir(), mounts.all[at].to_str().unwrap());
    ok(&["mount", "--dir", dir.to_str().unwrap(), "--names", names, "fs1", path]);
}

fn again_with(mounts: &Mounts, names: &str) {
    for at in 0..2 {
        ok(&["umount", mounts.all[at].to_str().unwrap()]);
        mount_with(mounts, at, names);
    }
}

/// Two mounts that make names ahead, and a directory of each.
fn beside() -> Mounts {
    let mounts = Mounts::in_memory(2);
    again_with(&mounts, "ahead");
    (0..2).for_each(|at| fs::create_dir(mounts.at(at, &own(at))).unwrap());
    mounts
}

fn own(mount: usize) -> String {
    format!("own{mount}")
}

fn rounds() -> u64 {
    if std::env::var_os("ROPEWALK_SOAK").is_some() { 100 } else { 2 }
}

/// Kills a mount's process, and takes from the kernel what it has of it.
fn kill(mounts: &Mounts, at: usize) {
    let pid = mounts.process(at).as_raw_nonzero().get();
    let (name, _) = mounts.cluster.processes().into_iter().find(|(_, its)| *its == pid).unwrap();
    mounts.cluster.kill(|process| process == name);
    let _ = rustix::mount::unmount(&mounts.all[at], rustix::mount::UnmountFlags::DETACH);
}

/// And removes them. What goes on in the background is counted too: the least of a few rounds counts.
#[test]
fn each_makes_names_ahead_in_a_directory_of_its_own() {
    const COUNT: u64 = 400;
    let mounts = beside();
    let mut least = [[u64::MAX; 2]; 2];
    for round in 0..3 {
        for at in 0..2 {
            let top = mounts.at(at, &format!("{}/round{round}", own(at)));
            fs::create_dir(&top).unwrap();
            let make: &dyn Fn(PathBuf) = &|path| drop(File::create_new(path).unwrap());
            let remove: &dyn Fn(PathBuf) = &|path| fs::remove_file(path).unwrap();
            // What the last round makes stays.
            for (least, work) in least.iter_mut().zip([make, remove]).take(if round < 2 { 2 } else { 1 }) {
                // The two questions take their time as well.
                let (began, before) = (Instant::now(), mounts.messages(at));
                (0..COUNT).for_each(|i| work(top.join(i.to_string())));
                let sent = mounts.messages(at).checked_sub(before);
                // What nobody waits for is told every 50 ms, and leases are renewed.
                let aside = began.elapsed().as_millis() as u64 / 25;
                // Less than before: it has a new connection.
                least[at] = sent.map_or(least[at], |sent| sent.saturating_sub(aside).min(least[at]));
            }
        }
    }
    println!("{COUNT} names each: {:?} messages made, {:?} removed", least[0], least[1]);
    assert!(least.iter().flatten().all(|least| *least < COUNT / 8), "{COUNT} names each: {least:?} messages");
    // Each sees all that the other has made.
    for at in 0..2 {
        let round = mounts.at(1 - at, &format!("{}/round2", own(at)));
        assert_eq!(fs::read_dir(round).unwrap().count() as u64, COUNT);
    }
}

/// Requests of FUSE that a mount has answered so far, by operation.
fn requests(metrics: &str, op: &str) -> u64 {
    let (mut stream, mut text) = (TcpStream::connect(metrics).unwrap(), String::new());
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    let op = format!("op=\"{op}\"");
    let of = |line: &&str| line.starts_with("ropewalk_file_op_seconds_count{") && line.contains(&op);
    text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Beside others the kernel keeps no names, and asks for each on a path; for the attributes of each directory on it, and of the last one twice, it
/// would ask as well.
#[test]
fn directories_on_a_path_are_not_asked_for_one_by_one() {
    const COUNT: u64 = 400;
    let (mounts, port) = (beside(), free_ports());
    let (metrics, path) = (format!("127.0.0.1:{port}"), mounts.all[0].to_str().unwrap());
    ok(&["umount", path]);
    let dir = mounts.cluster.dir();
    ok(&["mount", "--dir", dir.to_str().unwrap(), "--metrics", &metrics, "--names", "ahead", "fs1", path]);
    let dir = mounts.at(0, &format!("{}/a/b/c", own(0)));
    fs::create_dir_all(&dir).unwrap();
    let make = |i: u64| drop(File::create_new(dir.join(i.to_string())).unwrap());
    (0..20).for_each(make);
    let counted = |count| until("what was made is counted", || requests(&metrics, "create") >= count);
    counted(20);
    let before = requests(&metrics, "getattr");
    (20..20 + COUNT).for_each(make);
    counted(20 + COUNT);
    let asked = requests(&metrics, "getattr") - before;
    println!("{COUNT} names made: {asked} questions for attributes");
    assert!(asked < 2 * COUNT, "{COUNT} names made: {asked} questions for attributes");
}

/// Two that take turns in one directory soon ask for it no more; without that each turn would cost a few messages more.
#[test]
fn two_that_work_in_one_directory_cost_each_other_little() {
    const COUNT: u64 = 600;
    let mounts = Mounts::in_memory(2);
    let mut costs = [u64::MAX; 2];
    for (cost, names) in costs.iter_mut().zip(["durable", "ahead"]) {
        again_with(&mounts, names);
        for round in 0..3 {
            let dir = format!("{names}{round}");
            fs::create_dir(mounts.at(0, &dir)).unwrap();
            let before = [0, 1].map(|at| mounts.messages(at));
            for i in 0..COUNT {
                drop(File::create_new(mounts.at((i % 2) as usize, &dir).join(i.to_string())).unwrap());
            }
            let sent = [0, 1].map(|at| mounts.messages(at).checked_sub(before[at]));
            // Less than before: it has a new connection.
            let sent = sent[0].zip(sent[1]).map_or(u64::MAX, |(one, other)| one + other);
            *cost = sent.min(*cost);
        }
    }
    println!("{COUNT} names in one directory: {costs:?} messages");
    assert!(costs[1] <= costs[0] + costs[0] / 10, "{COUNT} names in one directory: {costs:?} messages");
}

/// Each mount makes names in a directory of its own while something is done, which may ask whether one of them has ended before; what
/// they made.
fn while_both_make(mounts: &Mounts, acts: impl FnOnce(&[Made; 2], &dyn Fn(usize) -> bool)) -> [Made; 2] {
    let made = [(); 2].map(|()| Made::default());
    let seeds = [seed(), seed() + 1];
    thread::scope(|scope| {
        let makers = [0, 1].map(|at| {
            let (made, top) = (&made[at], mounts.at(at, &own(at)));
            scope.spawn(move || made.work(&top, &mut Random(seeds[at])))
        });
        acts(&made, &|at| makers[at].is_finished());
        made.iter().for_each(|made| made.stop.store(true, SeqCst));
        makers.into_iter().for_each(|maker| maker.join().unwrap().unwrap());
    });
    made
}

#[test]
fn each_sees_what_the_other_makes_as_soon_as_its_maker_knows_it() {
    let mounts = beside();
    let made = while_both_make(&mounts, |made, ended| {
        for round in 1..=20 {
            for (at, made) in made.iter().enumerate() {
                until("names are made", || made.done.load(SeqCst) >= 40 * round || ended(at));
                let (done, other) = (made.done.load(SeqCst), mounts.at(1 - at, &own(at)));
                let last = place(&other, done - 1);
                assert!(fs::symlink_metadata(&last).is_ok(), "{} is not there", last.display());
                let dir = last.parent().unwrap().to_owned();
                let listed = fs::read_dir(&dir).unwrap().any(|entry| entry.unwrap().path() == last);
                assert!(listed, "{} is not listed", last.display());
            }
        }
    });
    for (at, made) in made.iter().enumerate() {
        made.is_certain();
        (0..2).for_each(|from| _ = made.check(&mounts.at(from, &own(at))));
    }
}

/// `SCRIPT HERE THERE`: makes directories and files on one mount, and opens them by their handles on the other at once. Says what that
/// refuses.
const BY_HANDLE: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
here, there = sys.argv[1:]
at = os.open(there, os.O_RDONLY)
def handle(path):
    bytes, mount = ctypes.create_string_buffer(b"\x80".ljust(136, b"\0"), 136), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), bytes, ctypes.byref(mount), 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    return bytes
for i in range(20):
    # The manager makes it, and gives it for `Write`.
    top = f"{here}/{i}"
    dir = f"{top}/dir"
    file = f"{dir}/file"
    os.mkdir(top)
    os.mkdir(dir)
    with open(file, "x") as made:
        made.write("content")
    handles = [(path, handle(path)) for path in (file, dir)]
    for path, its in handles if i % 2 else reversed(handles):
        found = libc.open_by_handle_at(at, its, os.O_RDONLY)
        if found < 0:
            print(path, os.strerror(ctypes.get_errno()))
            continue
        holds = os.listdir(found) if path == dir else os.read(found, 100)
        if holds not in (["file"], b"content"):
            print(path, holds)
        os.close(found)
"#;

/// Who has only a file handle names no directory, and is not told that there is no such inode.
#[test]
fn what_one_has_just_made_the_other_opens_by_its_handle() {
    let mounts = beside();
    let paths = [mounts.at(0, &own(0)), mounts.all[1].clone()];
    let run = Command::new("python3").args(["-c", BY_HANDLE]).args(paths).output().unwrap();
    let (refused, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && refused.is_empty(), "{refused}{error}");
}

#[test]
fn a_killed_mount_leaves_a_beginning_and_the_other_goes_on() {
    let mounts = beside();
    let mut random = Random(seed());
    for round in 0..rounds() {
        let made = [(); 2].map(|()| Made::default());
        let tops = [0, 1].map(|at| mounts.at(at, &format!("{}/round{round}", own(at))));
        tops.iter().for_each(|top| fs::create_dir(top).unwrap());
        tops.iter().for_each(|top| File::open(top).unwrap().sync_all().unwrap());
        let (most, seeds) = (100 + random.below(1500), [random.next(), random.next()]);
        thread::scope(|scope| {
            let makers = [0, 1].map(|at| {
                let (made, top) = (&made[at], &tops[at]);
                scope.spawn(move || made.work(top, &mut Random(seeds[at])))
            });
            until("names are made", || made[0].done.load(SeqCst) >= most || makers[0].is_finished());
            // What the other has seen is certain.
            let seen = made[0].done.load(SeqCst);
            let other = mounts.at(1, &format!("{}/round{round}", own(0)));
            assert!(fs::symlink_metadata(place(&other, seen - 1)).is_ok());
            made[0].synced.fetch_max(seen, SeqCst);
            let more = made[0].done.load(SeqCst) + random.below(100);
            until("names are made", || made[0].done.load(SeqCst) >= more || makers[0].is_finished());
            kill(&mounts, 0);
            let found = made[0].check_after(&other, &made[1]);
            println!("round {round}: {found} of {} are there", made[0].done.load(SeqCst));
            made[1].stop.store(true, SeqCst);
            let [killed, living] = makers.map(|maker| maker.join().unwrap());
            assert!(killed.is_err(), "its mount is gone");
            living.unwrap();
        });
        made[1].is_certain();
        mount(&mounts, 0);
        for at in 0..2 {
            assert_eq!(
                made[1].check(&mounts.at(at, &format!("{}/round{round}", own(1)))),
                made[1].done.load(SeqCst)
            );
        }
    }
}

impl Made {
    /// See [`Made::check`], while another maker works.
    fn check_after(&self, top: &Path, other: &Made) -> u64 {
        let before = other.done.load(SeqCst);
        let found = self.check(top);
        // Nobody waits for the dead one but who wants what it held.
        until("the other goes on", || other.done.load(SeqCst) > before);
        found
    }
}

#[test]
fn the_manager_is_killed_and_nothing_is_lost_or_hidden() {
    let mounts = beside();
    let made = while_both_make(&mounts, |made, ended| {
        for round in 1..=rounds() + 1 {
            until("names are made", || {
                let enough = |made: &Made| made.done.load(SeqCst) >= 400 * round;
                made.iter().all(enough) || (0..2).any(ended)
            });
            mounts.cluster.kill(|name| name == "manager");
            mounts.cluster.start_server("manager");
            // It does not know who holds what: nobody is shown less than is there.
            for (at, made) in made.iter().enumerate() {
                let (done, other) = (made.done.load(SeqCst), mounts.at(1 - at, &own(at)));
                let last = place(&other, done - 1);
                assert!(fs::symlink_metadata(&last).is_ok(), "{} is not there", last.display());
            }
        }
    });
    for (at, made) in made.iter().enumerate() {
        made.is_certain();
        (0..2).for_each(|from| {
            assert_eq!(made.check(&mounts.at(from, &own(at))), made.done.load(SeqCst));
        });
    }
}

/// The version before has no message for what is made beside others, and lets what it is told wait for all claims.
#[test]
fn a_manager_of_the_version_before_takes_over_and_nothing_is_lost() {
    let mounts = beside();
    let made = while_both_make(&mounts, |made, ended| {
        let go_on = || {
            let before = [0, 1].map(|at| made[at].done.load(SeqCst));
            until("names are made", || {
                let more = |at: usize| made[at].done.load(SeqCst) >= before[at] + 400;
                (0..2).all(more) || (0..2).any(ended)
            });
        };
        for versions in ["9,2", "10,2"] {
            go_on();
            mounts.cluster.kill(|name| name == "manager");
            mounts.cluster.start_server_with("manager", &[("ROPEWALK_TEST_VERSIONS", versions)]);
        }
        go_on();
    });
    for (at, made) in made.iter().enumerate() {
        made.is_certain();
        (0..2).for_each(|from| {
            assert_eq!(made.check(&mounts.at(from, &own(at))), made.done.load(SeqCst));
        });
    }
}
