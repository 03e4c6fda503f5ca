//! Directories on several mounts of a real cluster: what is kept of their names and attributes is never behind, and costs no
//! message that is not needed.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    collections::BTreeMap,
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, fchown, symlink},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use common::{Random, ok, processes::signal, seed, until};
use mounts::Mounts;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};

/// A name that is made or removed is one message to the manager, alone and beside another mount. What goes on in the background
/// is in it too: the least of a few rounds counts.
#[test]
fn a_name_costs_one_message() {
    let mut mounts = Mounts::in_memory(1);
    let (count, acts) = (100, ["create", "rename", "unlink"]);
    for beside in ["alone", "beside another mount"] {
        let mut least = [u64::MAX; 3];
        for round in 0..4 {
            let dir = mounts.at(0, &format!("{round} {beside}"));
            fs::create_dir(&dir).unwrap();
            for (act, least) in acts.iter().zip(&mut least) {
                let before = mounts.messages(0);
                for i in 0..count {
                    let (path, other) = (dir.join(i.to_string()), dir.join(format!("new {i}")));
                    match *act {
                        "create" => fs::write(path, [7; 4096]).unwrap(),
                        "rename" => fs::rename(path, other).unwrap(),
                        _ => fs::remove_file(other).unwrap(),
                    }
                }
                // Less than before: it has a new connection.
                *least = mounts.messages(0).checked_sub(before).map_or(*least, |sent| sent.min(*least));
            }
        }
        println!("{beside}: {acts:?} of {count}: {least:?} messages");
        // A rename asks once more what it has moved.
        for (act, (least, most)) in acts.iter().zip(least.iter().zip([2, 4, 2])) {
            assert!(*least < most * count, "{beside}: {count} times {act}: {least} messages");
        }
        mounts.add();
    }
}

/// Of files that one mount makes and another looks at each keeps few, and gives back the tokens of all others.
#[test]
fn files_that_nobody_uses_are_given_back() {
    const FILES: usize = 4000;
    const KEPT: usize = 100;
    let cluster = Mounts::memory();
    let mut mounts = Mounts::over(cluster, 1);
    let dir = mounts.cluster.dir();
    ok(&["config", "set", &format!("maxFilesToCache={KEPT}"), "--dir", dir.to_str().unwrap()]);
    ok(&["umount", mounts.all[0].to_str().unwrap()]);
    let first = mounts.all.remove(0);
    mounts.mount(&first);
    mounts.all.push(first);
    mounts.add();
    let (made, seen) = (mounts.at(0, "many"), mounts.at(1, "many"));
    fs::create_dir(&made).unwrap();
    (0..FILES).for_each(|i| fs::write(made.join(i.to_string()), [7; 10]).unwrap());
    (0..FILES).for_each(|i| assert_eq!(fs::read(seen.join(i.to_string())).unwrap(), [7; 10]));
    until("what is not used is given back", || {
        let clients = mounts.cluster.json(&["clients", "list"]);
        let tokens = clients.as_array().unwrap().iter().map(|client| client["tokens"].as_u64().unwrap());
        tokens.max().unwrap() < 4 * KEPT as u64
    });
}

/// Two mounts make, look at, list, move and remove names at the same time, each in directories of its own: after the first
/// round every directory's token is where it was, under the same grant. One that is recalled goes, or comes back under a later one.
#[test]
fn work_in_directories_of_ones_own_costs_no_recall() {
    let mounts = Mounts::in_memory(2);
    let dirs: Vec<String> = (0..2).flat_map(|mount| [format!("d{mount}"), format!("d{mount}/sub")]).collect();
    dirs.iter().enumerate().for_each(|(at, dir)| fs::create_dir(mounts.at(at / 2, dir)).unwrap());
    let inodes: Vec<u64> = std::iter::once(mounts.all[0].clone())
        .chain(dirs.iter().enumerate().map(|(at, dir)| mounts.at(at / 2, dir)))
        .map(|dir| fs::metadata(dir).unwrap().ino())
        .collect();
    let work = |mount: usize| {
        let at = |name: &str| mounts.at(mount, &format!("d{mount}/{name}"));
        for step in 0..4 {
            let (made, moved) = (at(&format!("made{step}")), at(&format!("sub/moved{step}")));
            File::create_new(&made).unwrap().write_all(b"small").unwrap();
            fs::create_dir(at("dir")).unwrap();
            fs::rename(&made, &moved).unwrap();
            fs::rename(at("dir"), at("sub/dir")).unwrap();
            assert_eq!(fs::metadata(&moved).unwrap().len(), 5);
            assert!(fs::metadata(&made).is_err());
            assert_eq!(fs::read_dir(at("sub")).unwrap().count(), 2);
            assert_eq!(fs::read_dir(at("")).unwrap().count(), 1);
            fs::remove_file(&moved).unwrap();
            fs::remove_dir(at("sub/dir")).unwrap();
        }
    };
    let round = || {
        thread::scope(|scope| (0..2).for_each(|mount| drop(scope.spawn(move || work(mount)))));
        inodes.iter().flat_map(|&inode| mounts.tokens_of(inode)).collect::<Vec<_>>()
    };
    let tokens = [(); 2].map(|()| round())[1].clone();
    let holders = |of: u64| tokens.iter().filter(|token| token["inode"] == of).count();
    assert_eq!(inodes.iter().map(|&inode| holders(inode)).collect::<Vec<_>>(), [2, 1, 1, 1, 1], "{tokens:?}");
    (0..4).for_each(|number| assert_eq!(round(), tokens, "a token moved in round {number}"));
    // The same work in one directory does cost recalls: the count can see them.
    File::create_new(mounts.at(0, "d1/guest")).unwrap();
    fs::remove_file(mounts.at(0, "d1/guest")).unwrap();
    assert_ne!(round(), tokens);
}

/// Names in three directories, made, moved, linked and removed on three mounts in turn, and looked for on all of them after
/// each step, so that what a mount keeps is used and must not be behind. Half way the manager is killed; in the end a mount.
#[test]
fn names_that_are_kept_are_never_behind() {
    let mounts = Mounts::new(3);
    let mut random = Random(seed());
    let dirs = ["p", "q", "p/r"];
    let mut modes = [0o755; 3];
    dirs.iter().for_each(|dir| fs::create_dir(mounts.at(0, dir)).unwrap());
    let path = |random: &mut Random| {
        format!("{}/{}", dirs[random.below(3) as usize], ["a", "b", "c", "d"][random.below(4) as usize])
    };
    let mut there: BTreeMap<String, u64> = BTreeMap::new();
    for step in 0..160 {
        let mount = random.below(3) as usize;
        let (one, two) = (path(&mut random), path(&mut random));
        let (from, to) = (mounts.at(mount, &one), mounts.at(mount, &two));
        let (had, free) = (there.get(&one).copied(), !there.contains_key(&two));
        let told = format!("step {step}, mount {mount}: {one} {two}");
        match random.below(6) {
            0..2 => {
                let made = OpenOptions::new().write(true).create_new(true).open(&from);
                assert_eq!(made.is_ok(), had.is_none(), "{told}");
                made.into_iter()
                    .for_each(|file| _ = there.insert(one.clone(), file.metadata().unwrap().ino()));
            }
            2 => {
                assert_eq!(fs::remove_file(&from).is_ok(), had.is_some(), "{told}");
                there.remove(&one);
            }
            3 => {
                assert_eq!(fs::rename(&from, &to).is_ok(), had.is_some(), "{told}");
                if let Some(inode) = had.filter(|inode| there.get(&two) != Some(inode)) {
                    there.remove(&one);
                    there.insert(two, inode);
                }
            }
            4 => {
                assert_eq!(fs::hard_link(&from, &to).is_ok(), had.is_some() && free, "{told}");
                had.filter(|_| free).into_iter().for_each(|inode| _ = there.insert(two.clone(), inode));
            }
            _ => {
                let (dir, mode) = (random.below(3) as usize, 0o700 + random.below(64) as u32);
                let set = fs::set_permissions(mounts.at(mount, dirs[dir]), PermissionsExt::from_mode(mode));
                set.unwrap();
                modes[dir] = mode;
            }
        }
        for other in 0..3 {
            for _ in 0..3 {
                let name = path(&mut random);
                let found = fs::symlink_metadata(mounts.at(other, &name)).ok().map(|found| found.ino());
                assert_eq!(found, there.get(&name).copied(), "{told}: {name} on {other}");
            }
            let dir = random.below(3) as usize;
            let mode = fs::metadata(mounts.at(other, dirs[dir])).unwrap().mode() & 0o777;
            assert_eq!(mode, modes[dir], "{told}: {} on {other}", dirs[dir]);
        }
        if step == 80 {
            mounts.cluster.kill(|name| name == "manager");
            mounts.cluster.start_server("manager");
        }
    }
    let listed = fs::read_dir(mounts.at(1, "q")).unwrap().count();
    assert_eq!(listed, there.keys().filter(|name| name.starts_with("q/")).count());
    // A dead mount keeps nobody from changing what it kept for longer than its lease.
    signal(mounts.process(2), Signal::KILL);
    fs::write(mounts.at(0, "q/after"), "x").unwrap();
    assert_eq!(fs::read_to_string(mounts.at(1, "q/after")).unwrap(), "x");
    fs::set_permissions(mounts.at(1, "p"), PermissionsExt::from_mode(0o711)).unwrap();
    assert_eq!(fs::metadata(mounts.at(0, "p")).unwrap().mode() & 0o777, 0o711);
    let _ = rustix::mount::unmount(&mounts.all[2], rustix::mount::UnmountFlags::DETACH);
}

/// A change at random of names in these directories, or of their attributes; whether it could be made is not asked.
fn change_somewhere(random: &mut Random, root: &Path, dirs: &[&str]) {
    let mut path = || {
        let (dir, name) = (random.below(dirs.len() as u64), random.below(4));
        root.join(dirs[dir as usize]).join(["a", "b", "c", "d"][name as usize])
    };
    let (one, two) = (path(), path());
    let _ = match random.below(9) {
        0 | 1 => OpenOptions::new().write(true).create_new(true).open(&one).map(drop),
        2 => fs::remove_file(&one),
        3 => fs::create_dir(&one),
        4 => fs::remove_dir(&one),
        5 => fs::rename(&one, &two),
        6 => fs::hard_link(&one, &two),
        7 => symlink("a", &one),
        _ => fs::set_permissions(&one, PermissionsExt::from_mode(0o700 + random.below(64) as u32)),
    };
}

/// Attributes of directories and what their names are, as one mount shows them.
fn shown(root: &Path, dirs: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for dir in dirs {
        for name in [".", "a", "b", "c", "d"] {
            let path = root.join(dir).join(name);
            let Ok(is) = fs::symlink_metadata(&path) else { continue };
            let times = (is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec());
            all.push(format!("{dir}/{name} {} {:o} {} {times:?}", is.ino(), is.mode(), is.nlink()));
        }
    }
    all
}

/// Who changes a directory reckons its new attributes itself and keeps all of its names: others, who ask, must see the same.
/// Alone, beside another mount, and with several changes at once.
#[test]
fn directories_look_the_same_to_who_changed_them() {
    let mut mounts = Mounts::in_memory(1);
    let (mut random, dirs) = (Random(seed()), ["p", "q", "p/r"]);
    dirs.iter().for_each(|dir| fs::create_dir(mounts.at(0, dir)).unwrap());
    for _ in 0..100 {
        change_somewhere(&mut random, &mounts.all[0], &dirs);
        shown(&mounts.all[0], &dirs);
    }
    let alone = shown(&mounts.all[0], &dirs);
    mounts.add();
    assert_eq!(shown(&mounts.all[1], &dirs), alone, "what was reckoned alone");
    let mut last = 0;
    for step in 0..200 {
        // Some changes by the same mount one after the other, so that it gets the tokens back.
        last = if random.below(4) == 0 { 1 - last } else { last };
        change_somewhere(&mut random, &mounts.all[last], &dirs);
        let here = shown(&mounts.all[last], &dirs);
        if random.below(3) == 0 {
            assert_eq!(shown(&mounts.all[1 - last], &dirs), here, "step {step}: {last} changed it");
        }
    }
    for round in 0..5 {
        let before = random.next();
        thread::scope(|scope| {
            for worker in 0..4 {
                let (root, mut random) = (&mounts.all[0], Random(before + worker));
                scope.spawn(move || {
                    for _ in 0..20 {
                        change_somewhere(&mut random, root, &dirs);
                        shown(root, &dirs[..1]);
                    }
                });
            }
        });
        assert_eq!(shown(&mounts.all[0], &dirs), shown(&mounts.all[1], &dirs), "round {round}");
    }
}

/// Files that are looked at one by one, by a mount that knows nothing yet: alone the directory is listed beside, with another
/// mount each costs a message once, however often the kernel asks; what is looked at again costs none. A label that is not there is
/// one that cannot be, so that `ls` asks once.
#[test]
fn what_is_looked_at_costs_few_messages() {
    const FILES: u64 = 600;
    // Leases are renewed so seldom that the messages of that are few, however long a busy machine takes to look; and nothing is given back
    // because it stood still for ten seconds.
    let cluster = Mounts::memory();
    cluster.set_up(&["leaseDuration=300s", "leaseRenewInterval=100s"]);
    let mut mounts = Mounts::over(cluster, 1);
    fs::create_dir(mounts.at(0, "looked")).unwrap();
    let file = |mounts: &Mounts, mount, i| mounts.at(mount, &format!("looked/{i}"));
    (0..FILES).for_each(|i| fs::write(file(&mounts, 0, i), i.to_string()).unwrap());
    let look = |mounts: &Mounts| {
        let before = mounts.messages(0);
        for i in 0..FILES {
            let path = file(mounts, 0, i);
            assert_eq!(fs::metadata(&path).unwrap().len(), i.to_string().len() as u64);
            let mut value = [0; 8];
            let label = rustix::fs::lgetxattr(&path, "security.capability", &mut value);
            assert_eq!(label, Err(rustix::io::Errno::NODATA));
        }
        // Less than before: it has a new connection.
        mounts.messages(0).checked_sub(before).unwrap_or(u64::MAX)
    };
    // What goes on in the background is in it too, and how much is asked before the listing is there depends on who gets a CPU.
    let anew = |mounts: &Mounts| {
        ok(&["umount", mounts.all[0].to_str().unwrap()]);
        mounts.mount(&mounts.all[0]);
        look(mounts)
    };
    let least = |of: &dyn Fn() -> u64| (0..3).map(|_| of()).min().unwrap();
    let (cold, warm) = (least(&|| anew(&mounts)), least(&|| look(&mounts)));
    println!("alone: {cold} messages, then {warm}, for {FILES} files");
    assert!(cold < FILES / 5 && warm < FILES / 10, "alone: {cold}, then {warm}");
    mounts.add();
    let (cold, warm) = (least(&|| anew(&mounts)), least(&|| look(&mounts)));
    println!("beside: {cold} messages, then {warm}");
    assert!(cold < FILES * 5 / 4 && warm < FILES / 10, "beside: {cold}, then {warm}");
    let selinux = fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs");
    let none = if selinux { rustix::io::Errno::NODATA } else { rustix::io::Errno::OPNOTSUPP };
    let label = |mounts: &Mounts| rustix::fs::lgetxattr(file(mounts, 0, 0), "security.selinux", &mut [0; 8]);
    assert_eq!(label(&mounts), Err(none));
    rustix::fs::setxattr(file(&mounts, 1, 0), "security.selinux", b"l", rustix::fs::XattrFlags::empty())
        .unwrap();
    assert_eq!(label(&mounts), Ok(1), "one that was set is kept");
    // What was looked at is seen anew when another mount changes it.
    for i in 0..FILES / 20 {
        fs::write(file(&mounts, 1, i), [b'x'; 9]).unwrap();
        rustix::fs::setxattr(file(&mounts, 1, i), "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(fs::metadata(file(&mounts, 0, i)).unwrap().len(), 9);
        let mut value = [0; 8];
        assert_eq!(rustix::fs::lgetxattr(file(&mounts, 0, i), "user.k", &mut value), Ok(1));
    }
}

/// Within a directory that another mount has moved, programs go on as before. Into another directory it can be moved at once, or, as the
/// kernel would have it, when it has been looked at.
#[test]
fn what_another_mount_has_moved_is_moved_on() {
    let mounts = Mounts::in_memory(2);
    let (here, there) = (|name: &str| mounts.at(0, name), |name: &str| mounts.at(1, name));
    for dir in ["a/moved/sub", "b", "c/other"] {
        fs::create_dir_all(here(dir)).unwrap();
    }
    fs::write(here("a/moved/f"), "content").unwrap();
    let held = File::open(here("a/moved")).unwrap();
    assert_eq!(fs::read_dir(here("a/moved")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(there("b")).unwrap().count(), 0);
    fs::rename(there("a/moved"), there("b/moved")).unwrap();

    rustix::fs::renameat(&held, "f", &held, "g").unwrap();
    rustix::fs::renameat(&held, "g", &held, "sub/g").unwrap();
    let mut within = Command::new("sh");
    within.args(["-c", "mv sub/g h && mv h ../../c/h"]).current_dir(here("b/moved"));
    assert!(within.status().unwrap().success());
    assert_eq!(fs::read_to_string(there("c/h")).unwrap(), "content");

    let moved = |from: PathBuf, to: PathBuf, known: &str| {
        if let Err(error) = fs::rename(&from, &to) {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
            fs::metadata(if from.ends_with(known) { &from } else { &to }).unwrap();
            fs::rename(from, to).unwrap();
        }
    };
    moved(there("b/moved"), there("a/moved"), "moved");
    moved(here("a/moved"), here("c/moved"), "moved");
    fs::remove_dir(here("c/moved/sub")).unwrap();
    moved(there("c/moved"), there("b/moved"), "moved");
    moved(here("c/other"), here("b/moved"), "b/moved");
    let names =
        |dir: &str| fs::read_dir(there(dir)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let all: [Vec<_>; 3] = ["a", "b", "c"].map(names);
    assert_eq!(all, [vec![], vec!["moved".into()], vec![std::ffi::OsString::from("h")]]);
    drop(held);
    mounts.cluster.down();
}

/// What has no name any more, by whom has it open.
fn change_removed(open: &File, what: &str) {
    let time = UNIX_EPOCH + Duration::from_secs(7);
    open.set_permissions(Permissions::from_mode(0o710)).expect(what);
    open.set_times(FileTimes::new().set_accessed(time).set_modified(time)).expect(what);
    fchown(open, Some(5), None).expect(what);
    let now = open.metadata().expect(what);
    let found = (now.mode() & 0o7777, now.uid(), now.mtime(), now.atime(), now.nlink());
    assert_eq!(found, (0o710, 5, 7, 7, 0), "{what}");
}

/// Files, directories and fifos alike, as on the machine's own file system, and whoever has taken their names away.
#[test]
fn what_is_open_is_changed_after_it_was_removed() {
    let mut mounts = Mounts::in_memory(1);
    let local = mounts.more.path().join("local");
    fs::create_dir(&local).unwrap();
    let alone = mounts.all[0].clone();
    let places = |all: &[PathBuf]| (all[0].clone(), all[all.len() - 1].clone());
    for (what, beside) in [("local", false), ("alone", false), ("beside", true)] {
        if beside {
            mounts.add();
        }
        let (here, there) = match what {
            "local" => (local.clone(), local.clone()),
            "alone" => (alone.clone(), alone.clone()),
            _ => places(&mounts.all),
        };
        for by in [&here, &there] {
            let [file, dir, fifo, replaced, other] = ["file", "dir", "fifo", "replaced", "other"]
                .map(|name| PathBuf::from(format!("{what} {name}")));
            fs::write(here.join(&file), "content").unwrap();
            [&dir, &replaced].iter().for_each(|dir| fs::create_dir(here.join(dir)).unwrap());
            mknodat(CWD, here.join(&fifo), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
            let fifo_open = File::options().read(true).write(true).open(here.join(&fifo)).unwrap();
            let open = [&file, &dir, &replaced].map(|name| File::open(here.join(name)).unwrap());
            fs::remove_file(by.join(&file)).unwrap();
            fs::remove_file(by.join(&fifo)).unwrap();
            fs::remove_dir(by.join(&dir)).unwrap();
            fs::create_dir(by.join(&other)).unwrap();
            fs::rename(by.join(&other), by.join(&replaced)).unwrap();
            for (open, name) in open.iter().chain([&fifo_open]).zip([&file, &dir, &replaced, &fifo]) {
                change_removed(open, &format!("{} by {}", name.display(), by.display()));
            }
            // The one in its place is another.
            assert_ne!(fs::metadata(here.join(&replaced)).unwrap().uid(), 5);
            fs::remove_dir(by.join(&replaced)).unwrap();
        }
    }
    mounts.cluster.down();
}
