//! Files that lose their last name on one mount while another one has them open: whoever has them open reads all that was
//! written to them, by whom ever, until the last handle is closed.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    thread,
    time::{Duration, Instant},
};

use common::ok;
use mounts::Mounts;

/// One fits into the inode.
const SIZES: [usize; 2] = [3_000, 400_000];

fn writer(mounts: &Mounts, mount: usize, name: &str) -> File {
    OpenOptions::new().write(true).open(mounts.at(mount, name)).unwrap()
}

/// A file that is read on mount 1, where it stays open: all that is known of it so far is on the pdisks.
fn opened(mounts: &Mounts, name: &str, size: usize) -> File {
    fs::write(mounts.at(0, name), vec![b'o'; size]).unwrap();
    let file = File::open(mounts.at(1, name)).unwrap();
    expect(&file, size, b'o', name);
    file
}

fn expect(file: &File, size: usize, byte: u8, what: &str) {
    let mut bytes = vec![0; size + 10];
    let got = file.read_at(&mut bytes, 0).unwrap();
    assert_eq!((got, file.metadata().unwrap().len()), (size, size as u64), "{what}");
    let other = bytes[..size].iter().position(|found| *found != byte);
    assert_eq!(other.map(|at| (at, bytes[at])), None, "{what}: not all is {byte}");
}

/// Waits until mount 0, which has closed the file, keeps nothing of it: it has given it up.
fn given_up(mounts: &Mounts, ino: u64) {
    let path = mounts.all[0].canonicalize().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let tokens = mounts.tokens_of(ino);
        if tokens.iter().all(|token| token["mount"] != path.to_str().unwrap()) {
            return;
        }
        assert!(Instant::now() < end, "nobody gives it up: {tokens:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How it loses its name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Unlink,
    Rename,
}

impl By {
    fn carry_out(self, mounts: &Mounts, mount: usize, name: &str) {
        let other = mounts.at(mount, "other");
        match self {
            By::Unlink => fs::remove_file(mounts.at(mount, name)).unwrap(),
            By::Rename => {
                fs::write(&other, "other").unwrap();
                fs::rename(other, mounts.at(mount, name)).unwrap();
            }
        }
    }
}

/// Whoever removes it has written to it: what is not stored, and what is stored and perhaps not adopted.
#[test]
fn what_was_written_before_it_was_removed_is_read_elsewhere() {
    let mounts = Mounts::in_memory(2);
    for size in SIZES {
        for (by, synced, at_once) in [
            (By::Unlink, false, false),
            (By::Unlink, true, false),
            (By::Rename, false, false),
            (By::Rename, true, false),
            (By::Unlink, false, true),
            (By::Unlink, true, true),
        ] {
            let what = format!("{size} bytes, {by:?}, synced {synced}, read at once {at_once}");
            let open = opened(&mounts, "log", size);
            let ino = open.metadata().unwrap().ino();
            let file = writer(&mounts, 0, "log");
            file.write_all_at(&vec![b'7'; size], 0).unwrap();
            if synced {
                file.sync_all().unwrap();
            }
            by.carry_out(&mounts, 0, "log");
            drop(file);
            if !at_once {
                given_up(&mounts, ino);
            }
            expect(&open, size, b'7', &what);
            assert_eq!(open.metadata().unwrap().nlink(), 0, "{what}");
        }
    }
}

/// It is removed elsewhere than where it is written and closed.
#[test]
fn what_is_written_after_it_was_removed_elsewhere_is_read_there() {
    let mounts = Mounts::in_memory(3);
    for size in SIZES {
        for (by, synced, remover) in [(By::Unlink, false, 1), (By::Rename, true, 1), (By::Unlink, false, 2)] {
            let what = format!("{size} bytes, {by:?}, synced {synced}, by {remover}");
            let open = opened(&mounts, "log", size);
            let ino = open.metadata().unwrap().ino();
            let file = writer(&mounts, 0, "log");
            by.carry_out(&mounts, remover, "log");
            file.write_all_at(&vec![b'7'; size], 0).unwrap();
            if synced {
                file.sync_all().unwrap();
            }
            drop(file);
            given_up(&mounts, ino);
            expect(&open, size, b'7', &what);
        }
    }
}

/// Nothing is lost with the mount either, and in the end the inodes are reclaimed.
#[test]
fn the_mount_that_removed_it_may_go_and_the_last_handle_ends_it() {
    let mounts = Mounts::in_memory(2);
    let inodes = || rustix::fs::statvfs(mounts.at(1, "")).map(|fs| fs.f_files - fs.f_ffree).unwrap();
    fs::write(mounts.at(0, "stays"), "x").unwrap();
    let before = inodes();
    let open: Vec<File> = SIZES.iter().map(|size| opened(&mounts, &format!("log{size}"), *size)).collect();
    for size in SIZES {
        let file = writer(&mounts, 0, &format!("log{size}"));
        file.write_all_at(&vec![b'7'; size], 0).unwrap();
        fs::remove_file(mounts.at(0, &format!("log{size}"))).unwrap();
    }
    ok(&["umount", mounts.all[0].to_str().unwrap()]);
    for (file, size) in open.iter().zip(SIZES) {
        expect(file, size, b'7', "after the other mount has gone");
    }
    drop(open);
    let end = Instant::now() + Duration::from_secs(60);
    while inodes() != before {
        assert!(Instant::now() < end, "{} inodes, {before} before", inodes());
        thread::sleep(Duration::from_millis(50));
    }
}
