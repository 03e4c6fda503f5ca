//! Story: a machine whose token says that its root is nobody here, and one all of whose programs are one user. What root, the owner of a
//! file, one of its group and others may do there, with real mounts and real users, and what a file's modes keep from them also
//! where kernel and page pool have its bytes.
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use common::{Cluster, ok, refused, until};

const NOBODY: u32 = 65534;
const BLOCK: usize = 256 << 10;

/// A user with his group and supplementary groups.
struct User(u32, u32, &'static str);

const ROOT: User = User(0, 0, "");
const ALICE: User = User(1000, 1000, "");
/// Of the group that owns what is the team's, by a supplementary group alone.
const BOB: User = User(2000, 2000, "4,24");
const CAROL: User = User(3000, 3000, "4");

impl User {
    fn run(&self, dir: &Path, script: &str) -> Output {
        let User(uid, gid, groups) = self;
        let groups = match *groups {
            "" => "--clear-groups".to_owned(),
            groups => format!("--groups={groups}"),
        };
        let ids = [format!("--reuid={uid}"), format!("--regid={gid}"), groups];
        let script = format!("umask 022; {script}");
        Command::new("setpriv").args(ids).args(["sh", "-c", &script]).current_dir(dir).output().unwrap()
    }

    #[track_caller]
    fn does(&self, dir: &Path, script: &str) -> String {
        let output = self.run(dir, script);
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{} does not: {script}: {said}{error}", self.0);
        said.into_owned()
    }

    #[track_caller]
    fn may_not(&self, dir: &Path, scripts: &[&str]) {
        for script in scripts {
            let output = self.run(dir, script);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{} does: {script}", self.0);
            let why = ["Permission denied", "Operation not permitted"];
            assert!(why.iter().any(|why| error.contains(why)), "{} {script}: {error}", self.0);
        }
    }
}

/// The other machine: a directory beside that of the cluster, and a mount point.
struct Machine {
    dir: String,
    mnt: PathBuf,
}

impl Machine {
    fn new(cluster: &Cluster, name: &str, options: &[&str]) -> Machine {
        let beside = |end: &str| cluster.dir().with_file_name(format!("{name}{end}"));
        let (dir, mnt) = (beside(""), beside("-mnt"));
        fs::create_dir(&mnt).unwrap();
        let (path, dir) = (cluster.dir(), dir.to_str().unwrap().to_owned());
        let token =
            [&["node", "token", "--dir", path.to_str().unwrap(), "--role", "client"], options].concat();
        ok(&["join", ok(&token).trim(), "--dir", &dir, "--name", name]);
        ok(&["mount", "--dir", &dir, "fs1", mnt.to_str().unwrap()]);
        Machine { dir, mnt }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(common::ropewalk(&["umount", "--force", self.mnt.to_str().unwrap()]));
    }
}

fn start() -> Cluster {
    let cluster = Cluster::three(&["--block-size", "256k", "--pdisk-size", "192m"]);
    // The way to the mounts is everybody's.
    fs::set_permissions(cluster.dir().parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let mnt = cluster.mnt();
    let dir = |name: &str, (uid, gid, bits): (u32, u32, u32)| {
        fs::create_dir(mnt.join(name)).unwrap();
        own(&mnt.join(name), (uid, gid, bits));
    };
    dir("pub", (0, 0, 0o1777));
    dir("alice", (1000, 1000, 0o700));
    dir("team", (1000, 24, 0o775));
    dir("closed", (0, 0, 0o700));
    let big = vec![7; 3 * BLOCK];
    for (name, owner, content) in [
        ("private", (0, 0, 0o600), &b"small"[..]),
        ("private-big", (0, 0, 0o600), &big),
        ("seen", (0, 0, 0o644), b"seen"),
        ("seen-big", (0, 0, 0o644), &big),
        ("closed/open", (0, 0, 0o666), b"open"),
        ("alice/own", (1000, 1000, 0o600), b"own"),
        ("alice/open", (1000, 1000, 0o666), b"open"),
        ("alice/own-big", (1000, 1000, 0o600), &big),
        ("pub/alices", (1000, 1000, 0o644), b"alices"),
        ("team/f", (1000, 24, 0o664), b"team"),
        ("team/run", (0, 24, 0o4775), b"run"),
    ] {
        fs::write(mnt.join(name), content).unwrap();
        own(&mnt.join(name), owner);
    }
    cluster
}

fn own(path: &Path, (uid, gid, bits): (u32, u32, u32)) {
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
}

fn owner(path: &Path) -> (u32, u32, u32) {
    let meta = fs::metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

#[test]
fn where_root_is_nobody_the_others_are_who_they_are() {
    let cluster = start();
    let (path, whole) = (cluster.dir(), cluster.mnt());
    let dir = path.to_str().unwrap();
    for (options, why) in [
        (&["--role", "server", "--squash", "root"][..], "--role client"),
        (&["--role", "client", "--anon", "5:5"], "--squash"),
        (&["--role", "client", "--squash", "root", "--anon", "0:5"], "root's"),
        (&["--role", "client", "--squash", "all", "--anon", "nobody"], "65534:65534"),
    ] {
        let error = refused(&[&["node", "token", "--dir", dir], options].concat());
        assert!(error.contains(why), "{options:?}: {error}");
    }
    let machine = Machine::new(&cluster, "desk", &["--squash", "root"]);
    let member = &cluster.json(&["node", "members"])[0];
    assert_eq!((&member["squash"], &member["anon_uid"]), (&"root".into(), &NOBODY.into()));
    let shown = ok(&["node", "members", "--dir", dir]);
    assert!(shown.contains("all; root as 65534:65534"), "{shown}");

    // What others have open behind closed doors is not told.
    for (command, allowed) in [("status", true), ("health", true), ("locks", false), ("tokens", false)] {
        let asked = || common::ropewalk(&[command, "--dir", &machine.dir]);
        if allowed {
            until(command, || asked().status.success()); // health: as soon as all is well
        } else {
            refused(&[command, "--dir", &machine.dir]);
        }
    }
    let mnt = &machine.mnt;
    // Those whose files they are: also what they have in memory is theirs alone.
    ALICE.does(mnt, "cat alice/own alice/own-big alice/open > /dev/null; ls alice; echo more >> alice/own");
    ALICE.does(
        mnt,
        "cd alice && mkdir work && head -c 700000 /dev/zero > work/f && cp work/f work/g && mv work/g h && ln h i && \
         chmod 640 h && touch h && truncate -s 5 h && setfattr -n user.a -v b h && ln -s h l && rm i l && sync h",
    );
    assert_eq!(owner(&whole.join("alice/h")), (1000, 1000, 0o640));
    assert_eq!(fs::metadata(whole.join("alice/h")).unwrap().len(), 5);
    BOB.does(
        mnt,
        "echo bob >> team/f && cat team/f && echo new > team/new && rm team/new && mkdir team/bobs",
    );
    assert_eq!(owner(&whole.join("team/bobs")), (2000, 2000, 0o755));
    BOB.may_not(mnt, &["chmod 600 team/f", "cat alice/own", "rm pub/alices", "chgrp 24 pub/alices"]);
    ALICE.does(mnt, "chmod 660 team/f && chmod 664 team/f");
    BOB.may_not(mnt, &["echo mine > team/run"]);
    CAROL.may_not(mnt, &["echo x >> team/f", "touch team/new", "ls alice", "rm -r team/bobs"]);
    assert_eq!(CAROL.does(mnt, "cat team/f"), "team\nbob\n".replacen("team\n", "team", 1));

    // Root is nobody.
    assert_eq!(ROOT.does(mnt, "cat seen && wc -c < seen-big"), format!("seen{}\n", 3 * BLOCK));
    ROOT.may_not(
        mnt,
        &[
            "cat private",
            "cat private-big",
            "cat alice/own",
            "cat alice/own-big",
            // It is open to all, behind a closed door.
            "cat alice/open",
            "ls alice",
            "ls closed",
            "cat closed/open",
            "echo x > private",
            "echo x >> private-big",
            "echo x >> seen",
            "echo x >> team/f",
            "truncate -s 0 seen",
            "rm private",
            "mv private mine",
            "mv private pub/mine",
            "touch seen",
            "touch new",
            "mkdir new",
            "chmod 666 private",
            "chmod 644 seen",
            "chown 65534 private",
            "chgrp 24 seen",
            "setfattr -n user.a -v b seen",
            "setfattr -n trusted.a -v b seen",
            "getfattr --absolute-names -n user.a -e text private > /dev/null; cat private",
            "rm pub/alices",
            "mknod pub/null c 1 3",
        ],
    );
    ROOT.does(
        mnt,
        "cd pub && echo mine > f && cat f && chmod 600 f && cat f && mkdir d && mv f d/ && ln d/f d/g",
    );
    assert_eq!(owner(&mnt.join("pub/d/f")), (NOBODY, NOBODY, 0o600));
    ROOT.may_not(mnt, &["chown 0 pub/d/f", "chown 1000 pub/d/f", "chgrp 24 pub/d/f"]);
    ROOT.does(mnt, "cd pub && head -c 700000 /dev/zero > big && cat big | wc -c && sync big && rm -r d");
    assert_eq!(owner(&whole.join("pub/big")), (NOBODY, NOBODY, 0o644));
    // Alice's file is root's to read as long as she lets all read it.
    assert_eq!(ROOT.does(mnt, "cat pub/alices"), "alices");
    ALICE.does(mnt, "chmod 600 pub/alices");
    ROOT.may_not(mnt, &["cat pub/alices", "dd if=pub/alices of=/dev/null iflag=direct"]);
    // The whole file system's root has the last word, and those who have a file open lose it.
    let reader = File::open(mnt.join("seen-big")).unwrap();
    let pub_big = OpenOptions::new().write(true).open(mnt.join("pub/big")).unwrap();
    own(&whole.join("seen-big"), (0, 0, 0o600));
    own(&whole.join("pub/big"), (0, 0, 0o600));
    ROOT.may_not(mnt, &["cat seen-big"]);
    let mut piece = vec![0; BLOCK];
    until("an open file is out of reach", || {
        // What was known of it is its owner's now.
        fs::write(whole.join("seen-big"), vec![8; 3 * BLOCK]).unwrap();
        reader.read_exact_at(&mut piece, 0).is_err()
    });
    until("writing it is, too", || {
        (&pub_big).write_all(b"theirs").and_then(|()| pub_big.sync_all()).is_err()
    });
    drop((reader, pub_big));
    assert_eq!(fs::read(whole.join("private")).unwrap(), b"small");
    assert_eq!(fs::read(whole.join("seen-big")).unwrap(), vec![8; 3 * BLOCK]);
    assert_eq!(owner(&whole.join("private")), (0, 0, 0o600));
    // Where nobody is squashed root is root.
    ROOT.does(&whole, "cat private alice/own && touch new && rm new && chown 1000 private");
    ok(&["umount", mnt.to_str().unwrap()]);
}

#[test]
fn where_all_are_one_user_nobody_is_anybody_else() {
    let cluster = start();
    let whole = cluster.mnt();
    let machine = Machine::new(&cluster, "lent", &["--squash", "all", "--anon", "70:80"]);
    let mnt = &machine.mnt;
    fs::create_dir(whole.join("its")).unwrap();
    own(&whole.join("its"), (70, 5, 0o755));
    fs::write(whole.join("groups"), "groups").unwrap();
    own(&whole.join("groups"), (1000, 80, 0o640));
    for user in [&ROOT, &ALICE, &BOB] {
        user.may_not(
            mnt,
            &[
                "cat private",
                "cat alice/own-big",
                "env -C alice true",
                "echo x >> team/f",
                "echo x >> groups",
                "chmod 666 pub/alices",
                "touch new",
                "cat closed/open",
            ],
        );
        assert_eq!(user.does(mnt, "cat seen groups pub/alices team/f"), "seengroupsalicesteam");
        // What one has made is everybody's of that machine.
        user.does(
            mnt,
            "cd its && echo one >> common && chmod 600 common && cat common && mkdir d && mv common d/ && mv d/common . && \
             rmdir d && head -c 700000 /dev/zero > big && sync big && [ -r common ] && ! [ -x common ] && rm big && \
             printf '#!/bin/sh\\necho ran\\n' > run && chmod 700 run && ./run && rm run",
        );
    }
    assert_eq!(owner(&whole.join("its/common")), (70, 80, 0o600));
    assert_eq!(fs::read(whole.join("its/common")).unwrap(), b"one\none\none\n");
    ok(&["umount", mnt.to_str().unwrap()]);
}
