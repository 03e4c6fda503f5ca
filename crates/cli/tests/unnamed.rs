//! Story: files made without a name (O_TMPFILE) on real mounts: what a link makes of them, and what is left of those that get none.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File},
    io::Write,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

use common::{over_etcd, until};
use mounts::Mounts;
use rustix::fs::{AtFlags, CWD, linkat};

/// One fits into the inode.
const SIZES: [usize; 2] = [3_000, 3_000_000];

fn try_unnamed(dir: &Path, more: i32) -> std::io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_TMPFILE | more).open(dir)
}

fn unnamed(dir: &Path) -> File {
    try_unnamed(dir, 0).unwrap()
}

/// One that holds something, all durable.
fn written(dir: &Path, size: usize) -> File {
    let mut file = unnamed(dir);
    file.write_all(&vec![b'7'; size]).unwrap();
    file.sync_all().unwrap();
    file
}

/// As everybody may.
fn link(file: &File, to: &Path) -> Result<(), i32> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(|error| error.raw_os_error())
}

/// As only root may.
fn link_by_descriptor(file: &File, to: &Path) -> Result<(), i32> {
    linkat(file, "", CWD, to, AtFlags::EMPTY_PATH).map_err(|error| error.raw_os_error())
}

fn links(file: &File) -> u64 {
    file.metadata().unwrap().nlink()
}

/// What cannot be named, on any file system: what is made so, what has lost its last name, what would take another's place.
fn refusals(dir: &Path) {
    let (new, taken) = (dir.join("new"), dir.join("taken"));
    let exclusive = try_unnamed(dir, libc::O_EXCL).unwrap();
    assert_eq!(link(&exclusive, &new), Err(libc::ENOENT));
    let file = unnamed(dir);
    fs::write(&taken, "").unwrap();
    assert_eq!(link(&file, &taken), Err(libc::EEXIST));
    assert_eq!((links(&file), link(&file, &new)), (0, Ok(())));
    fs::remove_file(&new).unwrap();
    let made = File::create(dir.join("made")).unwrap();
    fs::remove_file(dir.join("made")).unwrap();
    for (file, what) in [(file, "made without a name"), (made, "made with one")] {
        assert_eq!((links(&file), link(&file, &new)), (0, Err(libc::ENOENT)), "{what}");
    }
    fs::remove_file(&taken).unwrap();
}

#[test]
fn a_file_without_a_name_is_found_everywhere_once_it_has_one() {
    let mut mounts = Mounts::in_memory(1);
    let early = [written(&mounts.all[0], SIZES[0]), written(&mounts.all[0], SIZES[1])];
    for beside in [false, true] {
        if beside {
            mounts.add();
        }
        let dir = mounts.at(0, if beside { "beside" } else { "alone" });
        fs::create_dir(&dir).unwrap();
        for size in SIZES {
            let before = fs::metadata(&dir).unwrap().mtime_nsec();
            let mut file = written(&dir, size);
            assert_eq!((links(&file), fs::read_dir(&dir).unwrap().count()), (0, 0));
            assert_eq!(fs::metadata(&dir).unwrap().mtime_nsec(), before, "no name was made");
            assert_eq!(link(&file, &dir.join("f")), Ok(()));
            assert_eq!(link_by_descriptor(&file, &dir.join("g")), Ok(()));
            assert_eq!((links(&file), fs::metadata(dir.join("f")).unwrap().nlink()), (2, 2));
            // And what is written later.
            file.write_all(b"8").unwrap();
            drop(file);
            for at in 0..mounts.all.len() {
                for name in ["f", "g"] {
                    let path = mounts.at(at, dir.file_name().unwrap().to_str().unwrap()).join(name);
                    assert!(fs::read(&path).unwrap() == [&vec![b'7'; size][..], b"8"].concat(), "{path:?}");
                }
            }
            // By whom ever they go.
            let last = mounts.at(mounts.all.len() - 1, dir.file_name().unwrap().to_str().unwrap());
            ["f", "g"].iter().for_each(|name| fs::remove_file(last.join(name)).unwrap());
        }
        refusals(&dir);
    }
    // Made while the mount was alone.
    for (file, size) in early.iter().zip(SIZES) {
        assert_eq!((links(file), link(file, &mounts.at(0, &size.to_string()))), (0, Ok(())));
        assert!(fs::read(mounts.at(1, &size.to_string())).unwrap() == vec![b'7'; size]);
    }
    // Its last name goes elsewhere, which the kernel has not heard of.
    let open = File::open(mounts.at(1, "3000")).unwrap();
    fs::remove_file(mounts.at(0, "3000")).unwrap();
    assert_eq!((link(&open, &mounts.at(1, "again")), links(&open)), (Err(libc::ENOENT), 0));
    // As on the machine's own file system, where that has such files.
    let local = mounts.more.path().join("local");
    fs::create_dir(&local).unwrap();
    if try_unnamed(&local, 0).is_ok() {
        refusals(&local);
    }
}

/// What is left by a close, by a restart of the manager and a close, by the end of a mount that is killed.
#[test]
fn without_a_name_nothing_is_left() {
    let mut mounts = Mounts::in_memory(2);
    let root = mounts.all[0].clone();
    let inodes = || rustix::fs::statvfs(&root).map(|fs| fs.f_files - fs.f_ffree).unwrap();
    let free = || rustix::fs::statvfs(&root).map(|fs| fs.f_bfree * fs.f_frsize).unwrap();
    fs::write(mounts.at(0, "stays"), "x").unwrap();
    let (inodes_before, free_before) = (inodes(), free());
    const LARGE: u64 = 40 << 20;
    let file = written(&mounts.all[1], LARGE as usize);
    until("its space is taken", || free() + LARGE / 4 * 3 < free_before);
    assert_eq!(inodes(), inodes_before + 1);
    drop(file);
    until("its inode is free", || inodes() == inodes_before);
    until("its space is free", || free() + LARGE / 4 > free_before);

    let [named, closed] = [SIZES, SIZES].map(|sizes| sizes.map(|size| written(&mounts.all[1], size)));
    if !over_etcd() {
        mounts.cluster.kill(|name| name == "manager");
        mounts.cluster.start_server("manager");
    }
    for (file, size) in named.iter().zip(SIZES) {
        assert_eq!((links(file), link(file, &mounts.at(1, &size.to_string()))), (0, Ok(())));
    }
    drop((named, closed));
    until("those without a name are gone", || inodes() == inodes_before + 2);

    let [lost, named, late] = [SIZES; 3].map(|sizes| sizes.map(|size| written(&mounts.all[1], size)));
    for (what, files) in [("named", &named), ("late", &late)] {
        for (file, size) in files.iter().zip(SIZES) {
            link(file, &mounts.at(1, &format!("{what}{size}"))).unwrap();
        }
    }
    for mut file in &late {
        file.write_all(b"8").unwrap();
        file.sync_all().unwrap();
    }
    mounts.cluster.kill(|name| name.starts_with("mount-") && name.ends_with("-m1"));
    drop((lost, named, late));
    common::ropewalk(&["umount", "--force", mounts.all[1].to_str().unwrap()]);
    // It sees that the one before is dead.
    mounts.add();
    for (what, more) in [("named", ""), ("late", "8")] {
        for size in SIZES {
            let expected = [&vec![b'7'; size][..], more.as_bytes()].concat();
            assert!(
                fs::read(mounts.at(0, &format!("{what}{size}"))).unwrap() == expected,
                "{what}, {size} bytes"
            );
        }
    }
    until("those without a name are gone with their mount", || inodes() == inodes_before + 6);
}
