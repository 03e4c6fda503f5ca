//! Story: room is allocated for a file, others then fill the file system. Writing into the allocated range
//! cannot fail for lack of room: not at once, not after a clean restart, not after everything was killed.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
};

use common::{Cluster, Random};
use rustix::fs::{FallocateFlags, fallocate};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

/// Writes until there is no room for anything more.
fn fill(cluster: &Cluster, name: &str) -> u64 {
    let mut file = File::create(cluster.mnt().join(name)).unwrap();
    let (mut written, mut piece) = (0, vec![0x5A; MIB as usize]);
    while piece.len() >= 4096 {
        match file.write_all(&piece).and_then(|()| file.sync_data()) {
            Ok(()) => written += piece.len() as u64,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                piece.truncate(piece.len() / 2);
            }
        }
        assert!(written < 4096 * MIB, "never full");
    }
    written
}

/// Writes all of the range, in pieces of many sizes and in disorder; returns the content.
fn write_all_of_it(file: &File, random: &mut Random) -> Vec<u8> {
    let mut content = vec![0; SIZE as usize];
    random.fill(&mut content);
    let mut places: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < SIZE {
        let len = [4096, 100_000, MIB, 3 * MIB][random.below(4) as usize].min(SIZE - at);
        places.push((at, len));
        at += len;
    }
    for i in (1..places.len()).rev() {
        places.swap(i, random.below(i as u64 + 1) as usize);
    }
    for (i, (at, len)) in places.into_iter().enumerate() {
        let piece = &content[at as usize..(at + len) as usize];
        file.write_all_at(piece, at).unwrap_or_else(|e| panic!("write {len} bytes at {at}: {e}"));
        if i % 8 == 0 {
            file.sync_data().unwrap_or_else(|e| panic!("fdatasync after {len} bytes at {at}: {e}"));
        }
    }
    file.sync_all().expect("fsync");
    content
}

fn holds(file: &File, content: &[u8]) {
    let mut found = vec![0; content.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == content, "bytes differ");
}

fn the_promise_holds(nodes: &str, pdisks: &str, code: &str) {
    let mut random = Random(common::seed());
    let cluster = Cluster::up(&[
        "--nodes",
        nodes,
        "--pdisks",
        pdisks,
        "--code",
        code,
        "--block-size",
        "1m",
        "--pdisk-size",
        "64m",
    ]);
    let path = cluster.mnt().join("reserved");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let file = open();
    let too_much = fallocate(&file, FallocateFlags::empty(), 0, 4096 * MIB);
    assert_eq!(too_much, Err(rustix::io::Errno::NOSPC));
    assert_eq!(file.metadata().unwrap().len(), 0, "nothing is changed");
    fallocate(&file, FallocateFlags::empty(), 0, SIZE).expect("allocate");
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    holds(&file, &vec![0; SIZE as usize]);
    drop(file);
    // It is stored: it need not be remembered by the mount.
    cluster.kill(|_| true);
    cluster.start();
    let filled = fill(&cluster, "greedy");
    for restart in ["none", "clean", "kill"] {
        match restart {
            "clean" => {
                cluster.down();
                cluster.start();
            }
            "kill" => {
                cluster.kill(|_| true);
                cluster.start();
            }
            _ => {}
        }
        let content = write_all_of_it(&open(), &mut random);
        holds(&open(), &content);
    }
    println!(
        "{code}: {SIZE} bytes allocated, {filled} written beside them, all of the range written three times"
    );
    cluster.down();
}

#[test]
fn four_and_two() {
    the_promise_holds("4", "2", "4+2p");
}

#[test]
fn three_copies() {
    the_promise_holds("3", "1", "3way");
}
