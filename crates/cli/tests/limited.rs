//! Story: a machine that has joined with a token for one file system, and only to read. What it sees, what it may not do, and what
//! it reads while the one that writes is killed: it resolves nothing, and waits for nobody but the manager.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use common::{Cluster, Random, ok, refused, same_tree, seed, until, write_tree};

const BLOCK: usize = 256 << 10;

/// The other machine: a directory beside that of the cluster, and a mount point.
struct Reader {
    dir: PathBuf,
    mnt: PathBuf,
}

impl Reader {
    fn new(cluster: &Cluster, options: &[&str]) -> Reader {
        let beside = |name: &str| cluster.dir().with_file_name(name);
        let (dir, mnt) = (beside("reader"), beside("reader-mnt"));
        fs::create_dir(&mnt).unwrap();
        let path = cluster.dir();
        let token =
            [&["node", "token", "--dir", path.to_str().unwrap(), "--role", "client"], options].concat();
        let token = ok(&token);
        ok(&["join", token.trim(), "--dir", dir.to_str().unwrap(), "--name", "reader"]);
        Reader { dir, mnt }
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--dir", self.dir.to_str().unwrap()]].concat()
    }

    fn mount(&self) {
        ok(&self.words(&["mount", "fs1", self.mnt.to_str().unwrap()]));
    }

    fn umount(&self) {
        ok(&["umount", self.mnt.to_str().unwrap()]);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(common::ropewalk(&["umount", "--force", self.mnt.to_str().unwrap()]));
    }
}

fn is_read_only<T>(outcome: io::Result<T>) {
    assert_eq!(outcome.err().and_then(|error| error.raw_os_error()), Some(libc::EROFS));
}

/// Whether each block of a file is wholly of one round of the writer's.
fn check(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    bytes
        .chunks(BLOCK)
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a block of {} is torn", path.display());
            block[0]
        })
        .collect()
}

#[test]
fn who_may_read_one_file_system_reads_that_and_changes_nothing() {
    let cluster = Cluster::three(&["--block-size", "256k", "--pdisk-size", "192m"]);
    let dir = cluster.dir();
    let dir = dir.to_str().unwrap();
    let pool = cluster.json(&["pool", "list"])[0]["name"].as_str().unwrap().to_owned();
    ok(&["fs", "create", "--dir", dir, "fs2", "--pool", &pool]);
    let tree = cluster.mnt().join("tree");
    fs::create_dir(&tree).unwrap();
    write_tree(&tree, 60, &mut Random(seed()));
    fs::write(tree.join("later"), "sooner").unwrap();

    for (options, why) in [
        (&["--role", "server", "--read-only"][..], "--role client"),
        (&["--fs", "fs1"], "--role client"),
        (&["--role", "client", "--fs", "fs3"], "no file system fs3"),
        (&["--role", "client", "--subtree", "/tree"], "--fs"),
        (&["--role", "client", "--fs", "fs1", "--subtree", "/nowhere"], "No such file"),
        (&["--role", "client", "--fs", "fs1", "--subtree", "/tree/later"], "Not a directory"),
    ] {
        let error = refused(&[&["node", "token", "--dir", dir], options].concat());
        assert!(error.contains(why), "{options:?}: {error}");
    }
    let reader = Reader::new(&cluster, &["--fs", "fs1", "--read-only"]);
    let members = cluster.json(&["node", "members"]);
    assert_eq!((&members[0]["filesystems"][0], &members[0]["read_only"]), (&"fs1".into(), &true.into()));

    let error = refused(&reader.words(&["mount", "fs2", reader.mnt.to_str().unwrap()]));
    assert!(error.contains("other file systems"), "{error}");
    let list = ok(&reader.words(&["fs", "list"]));
    assert!(list.contains("fs1") && !list.contains("fs2"), "{list}");
    for command in ["status", "tokens", "locks"] {
        ok(&reader.words(&[command]));
    }
    until("it is well", || common::ropewalk(&reader.words(&["health"])).status.success());
    reader.mount();
    let seen = reader.mnt.join("tree");
    same_tree(&tree, &seen);
    is_read_only(fs::write(reader.mnt.join("new"), "new"));
    is_read_only(OpenOptions::new().append(true).open(first_file(&seen)));
    is_read_only(fs::remove_file(first_file(&seen)));
    is_read_only(fs::create_dir(reader.mnt.join("made")));
    is_read_only(fs::rename(&seen, reader.mnt.join("moved")));
    is_read_only(fs::set_permissions(first_file(&seen), fs::Permissions::from_mode(0o600)));
    // It sees what others do, at once, and stands in nobody's way.
    fs::write(tree.join("later"), "later").unwrap();
    assert_eq!(fs::read(seen.join("later")).unwrap(), b"later");
    fs::write(tree.join("later"), "again").unwrap();
    assert_eq!(fs::read(seen.join("later")).unwrap(), b"again");
    same_tree(&tree, &seen);
    reader.umount();
}

fn first_file(tree: &Path) -> PathBuf {
    let mut all: Vec<PathBuf> = fs::read_dir(tree).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| first_file(&all[0]))
}

#[test]
fn who_only_reads_goes_on_when_the_writer_is_killed() {
    let cluster = Cluster::three(&["--block-size", "256k", "--pdisk-size", "192m"]);
    let reader = Reader::new(&cluster, &["--read-only"]);
    let (written, seen) = (cluster.mnt().join("f"), reader.mnt.join("f"));
    let rounds = |from: u8| {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&written).unwrap();
        for round in from..from + 8 {
            (0..16).for_each(|block| file.write_all_at(&[round; BLOCK], block * BLOCK as u64).unwrap());
            file.sync_all().unwrap();
        }
        // Under way when it is killed.
        (0..16).for_each(|block| file.write_all_at(&[from + 8; BLOCK], block * BLOCK as u64).unwrap());
        file
    };
    let killed = |file: File| {
        cluster.kill(|name| name.starts_with("mount"));
        drop(file);
        drop(std::process::Command::new("umount").arg("-l").arg(cluster.mnt()).output());
    };
    // Beside a mount that reads.
    reader.mount();
    killed(rounds(1));
    assert!(check(&seen).iter().all(|round| (8..=9).contains(round)));
    // Alone, and all that there is to resolve is for others.
    cluster.start();
    let file = rounds(21);
    reader.umount();
    killed(file);
    reader.mount();
    assert!(check(&seen).iter().all(|round| (28..=29).contains(round)));
    // Nothing was ended for it, and a new writer comes and goes.
    cluster.start();
    until("the file is written again", || {
        let mut file = File::create(&written).unwrap();
        file.write_all(b"new").and_then(|()| file.sync_all()).is_ok()
    });
    assert_eq!(fs::read(&seen).unwrap(), b"new");
    cluster.wait_all_ok(Duration::from_secs(60));
    reader.umount();
}

#[test]
fn who_is_bound_to_a_subtree_works_there_and_reaches_nothing_else() {
    let cluster =
        Cluster::prepare(&[&common::THREE[..], &["--block-size", "256k", "--pdisk-size", "192m"]].concat());
    // Who is bound to a subtree waits until somebody else resolves what the dead have left: six leases, and a read waits a minute.
    cluster.set_up(&["leaseDuration=5s"]);
    cluster.start();
    let (its, others) = (cluster.mnt().join("projects/a"), cluster.mnt().join("projects/b"));
    fs::create_dir_all(&its).unwrap();
    fs::create_dir_all(&others).unwrap();
    write_tree(&its.join("tree"), 60, &mut Random(seed()));
    let block = vec![7; 3 * BLOCK];
    fs::write(others.join("secret"), &block).unwrap();
    // Files with two names: one inside and one outside.
    fs::write(others.join("both"), &block).unwrap();
    fs::hard_link(others.join("both"), its.join("both")).unwrap();
    fs::write(its.join("also"), &block).unwrap();
    fs::hard_link(its.join("also"), others.join("also")).unwrap();

    let reader = Reader::new(&cluster, &["--fs", "fs1", "--subtree", "/projects/a"]);
    let members = cluster.json(&["node", "members"]);
    assert_eq!(members[0]["subtree"], "/projects/a");
    reader.mount();
    let mnt = &reader.mnt;
    same_tree(&its, mnt);
    // It works there: new files and directories, large ones, moved, linked, cut, removed.
    fs::create_dir(mnt.join("work")).unwrap();
    for name in ["one", "two", "three"] {
        let file = File::create(mnt.join("work").join(name)).unwrap();
        file.write_all_at(&block, BLOCK as u64 / 2).unwrap();
        file.sync_all().unwrap();
    }
    fs::rename(mnt.join("work/one"), mnt.join("one")).unwrap();
    fs::rename(mnt.join("work/two"), mnt.join("work/three")).unwrap();
    fs::hard_link(mnt.join("one"), mnt.join("work/again")).unwrap();
    fs::remove_file(mnt.join("one")).unwrap();
    OpenOptions::new().write(true).open(mnt.join("work/three")).unwrap().set_len(5).unwrap();
    fs::write(mnt.join("also"), "changed").unwrap();
    assert_eq!(fs::read(others.join("also")).unwrap(), b"changed");
    fs::write(mnt.join("both"), &block[1..]).unwrap();
    same_tree(&its, mnt);
    // Its root is a root.
    assert_eq!(names(&mnt.join("..")), names(mnt.parent().unwrap()));
    until("it is well", || common::ropewalk(&reader.words(&["health"])).status.success());
    for (command, allowed) in [("status", true), ("locks", false), ("tokens", false)] {
        let output = common::heard(|| common::ropewalk(&reader.words(&[command])));
        assert_eq!(output.status.success(), allowed, "{command}: {output:?}");
    }
    // What is moved in is there, what is moved out is out of reach: at once by name, soon by an open file.
    fs::rename(others.join("secret"), its.join("secret")).unwrap();
    let mut open = OpenOptions::new().read(true).write(true).open(mnt.join("secret")).unwrap();
    open.write_all(b"mine").unwrap();
    open.sync_all().unwrap();
    fs::rename(its.join("secret"), others.join("secret")).unwrap();
    assert_eq!(fs::read(mnt.join("secret")).unwrap_err().kind(), io::ErrorKind::NotFound);
    until("the open file is out of reach", || {
        open.write_all(b"theirs").and_then(|()| open.sync_all()).is_err()
    });
    drop(open);
    assert_eq!(&fs::read(others.join("secret")).unwrap()[..4], b"mine");

    // Killed while it writes: others resolve, and it comes back to what it had made durable.
    let file = File::create(mnt.join("work/f")).unwrap();
    (0..8).for_each(|at| file.write_all_at(&[1; BLOCK], at * BLOCK as u64).unwrap());
    file.sync_all().unwrap();
    (0..8).for_each(|at| file.write_all_at(&[2; BLOCK], at * BLOCK as u64).unwrap());
    kill_mount(&reader);
    drop(file);
    drop(std::process::Command::new("umount").arg("-l").arg(mnt).output());
    // Nobody else is there either.
    cluster.kill(|name| name.starts_with("mount"));
    drop(std::process::Command::new("umount").arg("-l").arg(cluster.mnt()).output());
    reader.mount();
    assert!(check(&mnt.join("work/f")).iter().all(|round| (1..=2).contains(round)));
    fs::write(mnt.join("work/f"), "new").unwrap();
    cluster.start();
    same_tree(&its, mnt);
    reader.umount();
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    all.sort();
    all
}

/// SIGKILL to the process of its mount.
fn kill_mount(reader: &Reader) {
    let run = fs::read_dir(reader.dir.join("run")).unwrap().map(|entry| entry.unwrap().path());
    let pid = run.filter(|path| path.extension().is_some_and(|end| end == "pid")).map(|path| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    });
    for pid in pid {
        common::processes::signal(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::KILL,
        );
    }
}
