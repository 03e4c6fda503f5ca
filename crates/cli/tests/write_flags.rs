//! What one write is asked for need not be what its file was opened with: fcntl(2) sets O_APPEND later, pwritev2(2) makes a single write durable.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    io::{IoSlice, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    thread,
};

use base::AlignedBuf;
use common::processes::signal;
use mounts::Mounts;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::{ReadWriteFlags, pwritev2},
    process::Signal,
};

const RECORD: usize = 64;
const RECORDS: usize = 300;

fn to_write(path: &Path, flags: i32) -> File {
    OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path).unwrap()
}

fn sets_append(file: &File, append: bool) {
    let mut flags = fcntl_getfl(file).unwrap();
    flags.set(OFlags::APPEND, append);
    fcntl_setfl(file, flags).unwrap();
}

fn record(mount: usize, number: usize) -> String {
    format!("{mount} {number:<w$}\n", w = RECORD - 3)
}

/// Two mounts append to one file that each opened for writing only: no record is lost, each has a place of its own. And who takes O_APPEND away writes
/// where it says.
#[test]
fn a_file_becomes_one_that_is_appended_to_and_back() {
    let mounts = Mounts::in_memory(2);
    thread::scope(|scope| {
        for mount in 0..2 {
            let mut file = to_write(&mounts.at(mount, "log"), 0);
            sets_append(&file, true);
            scope.spawn(move || {
                (0..RECORDS).for_each(|n| file.write_all(record(mount, n).as_bytes()).unwrap());
            });
        }
    });
    for reader in 0..2 {
        let text = fs::read_to_string(mounts.at(reader, "log")).unwrap();
        assert_eq!(text.len(), 2 * RECORDS * RECORD);
        for mount in 0..2 {
            let found = text.split_inclusive('\n').filter(|line| line.starts_with(&format!("{mount} ")));
            assert!(
                found.eq((0..RECORDS).map(|n| record(mount, n))),
                "of mount {mount}, as {reader} sees it"
            );
        }
    }
    let file = to_write(&mounts.at(0, "log"), libc::O_APPEND);
    sets_append(&file, false);
    file.write_all_at(b"here", 10).unwrap();
    let text = fs::read(mounts.at(1, "log")).unwrap();
    assert_eq!((text.len(), &text[10..14]), (2 * RECORDS * RECORD, &b"here"[..]));
}

/// A mount is killed (kill -9) as soon as a write with RWF_DSYNC has returned: it is there, of a mount that is alone and has the file open with O_DIRECT
/// as of one of two.
#[test]
fn a_single_write_is_durable_when_it_returns() {
    let mut mounts = Mounts::in_memory(1);
    for (mount, flags) in [(0, libc::O_DIRECT), (1, 0)] {
        let path = mounts.at(mount, "f");
        let before = vec![b'a'; 1 << 16];
        fs::write(&path, &before).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let file = to_write(&path, flags);
        let mut bytes = AlignedBuf::zeroed(4096);
        bytes.fill(b'b' + mount as u8);
        let written = pwritev2(&file, &[IoSlice::new(&bytes)], 8192, ReadWriteFlags::DSYNC).unwrap();
        signal(mounts.process(mount), Signal::KILL);
        assert_eq!(written, 4096);
        drop(file);
        let _ = rustix::mount::unmount(&mounts.all[mount], rustix::mount::UnmountFlags::DETACH);
        if mount == 0 {
            // One that lives on and reads; one that is killed next.
            let dead = mounts.all[0].clone();
            mounts.mount(&dead);
            mounts.add();
        }
        let found = fs::read(mounts.at(0, "f")).unwrap();
        let expected = [&before[..8192], &bytes, &before[12288..]].concat();
        assert!(found == expected, "what mount {mount} was told is durable is not there");
    }
}
