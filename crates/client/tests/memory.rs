//! What is kept of files beside their data is counted and given up: entries of blocks, zeros, extents, open files.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, Privileges, SetAttrs, Tunables};
use support::{BLOCK, RW, World, small};
use wire::mgr::FileKind;

const BLOCK64: u64 = BLOCK as u64;
const TIB: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

async fn opened(client: &Client, ino: InodeNo) -> Handle {
    client.open(ino, RW).await.unwrap()
}

async fn reads_zeros(client: &Client, handle: Handle, at: u64) {
    assert_eq!(client.read(handle, at, 4096).await.unwrap().to_vec(), [0; 4096]);
}

#[tokio::test]
async fn a_sparse_file_of_16_tib_takes_no_more_than_the_pool() {
    const BLOCKS: u64 = 20_000;
    let mut world = World::new(2, 1);
    world.blocks.zeros.store(true, SeqCst);
    world.manager.extents_most.store(4096, SeqCst);
    let step = 16 * TIB / BLOCK64 / BLOCKS;
    let ino = world.manager.make(b"sparse", 16 * TIB, (0..BLOCKS).map(|block| block * step));
    let client = world.mount(small());
    let handle = opened(&client, ino).await;
    for block in 0..BLOCKS {
        // What is stored is zeros; what lies between is a hole.
        reads_zeros(&client, handle, block * step * BLOCK64).await;
        reads_zeros(&client, handle, (block * step + 1) * BLOCK64).await;
    }
    let usage = client.pool_use();
    assert!(usage.entries > 1000 && usage.entries << 10 <= 4 * MIB, "{usage:?}");
    assert!(usage.used_most <= 4 * MIB + 64 * 1024, "{usage:?}");
    // Written all over, too.
    for block in 0..BLOCKS / 20 {
        client.write(handle, block * 20 * step * BLOCK64 + BLOCK64, &[1; 100]).await.unwrap();
    }
    let usage = client.pool_use();
    assert!(usage.used_most <= 4 * MIB + MIB, "{usage:?}");
}

#[tokio::test]
async fn of_a_long_record_only_what_is_used_is_learned_and_kept() {
    const EXTENTS: u64 = 1_000_000;
    /// Extents of one answer.
    const WINDOW: u64 = 4096;
    let mut world = World::new(2, 1);
    world.blocks.zeros.store(true, SeqCst);
    world.manager.extents_most.store(WINDOW, SeqCst);
    let size = 2 * EXTENTS * BLOCK64;
    let ino = world.manager.make(b"long", size, (0..EXTENTS).map(|extent| extent * 2));
    let client = world.mount(small());
    let handle = opened(&client, ino).await;
    let before = world.manager.calls.load(SeqCst);
    let calls = || world.manager.calls.load(SeqCst) - before;
    // One page in the middle, and what comes next there.
    let middle = EXTENTS / 2 * 2;
    reads_zeros(&client, handle, middle * BLOCK64).await;
    assert_eq!(client.seek_hole(handle, middle * BLOCK64).await.unwrap(), (middle + 1) * BLOCK64);
    assert_eq!(client.seek_data(handle, (middle + 1) * BLOCK64).await.unwrap(), (middle + 2) * BLOCK64);
    assert!(calls() <= 2, "{}", calls());
    assert!(client.pool_use().used <= MIB, "{:?}", client.pool_use());
    // All of it, from behind: once for each window, and no more than the pool.
    for extent in (0..EXTENTS).rev().step_by(100) {
        reads_zeros(&client, handle, extent * 2 * BLOCK64).await;
    }
    assert!(calls() <= 2 * EXTENTS / WINDOW + 20, "{}", calls());
    // Written, read, cut and punched where nothing is known any more, also beyond its end; in holes, since nothing else
    // is really stored here.
    let at = |block: u64| block * BLOCK64 + 100;
    for block in [11, 1_000_001, 2 * EXTENTS - 1, 2 * EXTENTS + 77] {
        assert_eq!(client.write(handle, at(block), &[7; 50]).await, Ok(50));
        let mut expected = vec![0; 4096];
        expected[100..150].fill(7);
        assert_eq!(
            client.read(handle, block * BLOCK64, 4096).await.unwrap().to_vec()[..150],
            expected[..150]
        );
    }
    client.fsync_handle(handle, false).await.unwrap();
    let hole = client.fallocate(handle, Fallocate::PunchHole, at(21), 100_000 * BLOCK64, Privileges::Kept);
    hole.await.unwrap();
    assert_eq!(client.seek_data(handle, 22 * BLOCK64).await.unwrap(), 100_022 * BLOCK64);
    for size in [at(700_001), size] {
        client.setattr(ino, SetAttrs { size: Some(size), ..SetAttrs::default() }).await.unwrap();
    }
    assert_eq!(client.seek_data(handle, 700_002 * BLOCK64).await, Err(Errno(libc::ENXIO)));
    let usage = client.pool_use();
    assert!(usage.used_most <= 4 * MIB + 64 * 1024, "{usage:?}");
}

#[tokio::test]
async fn open_files_are_bounded() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { handles_max: 100, ..small() });
    let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    let mut handles = Vec::new();
    let refused = loop {
        match client.open(ino, RW).await {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, handles.len()), (Errno::ENFILE, 100));
    client.release(handles[0]);
    handles[0] = opened(&client, ino).await;
}

#[tokio::test]
async fn files_with_something_to_tell_are_bounded() {
    let mut world = World::new(2, 1);
    let never = Duration::from_secs(3600);
    let tunables = Tunables { files_to_cache_max: 1024, writeback_age: never, commit_age: never, ..small() };
    let client = world.mount(Tunables { pagepool: 64 * MIB, ..tunables });
    for file in 0..3000 {
        let name = format!("f{file}").into_bytes();
        let made = client.create(InodeNo::ROOT, &name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
        let ino = made.unwrap().0.ino;
        if file % 2 == 0 {
            let set = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
            client.setattr(ino, set).await.unwrap();
        } else {
            let handle = opened(&client, ino).await;
            client.write(handle, 0, b"some").await.unwrap();
        }
    }
    // Nothing is due by age: they were told because they were many.
    assert!(world.manager.mutations.load(SeqCst) >= 3000 + 1900, "{}", world.manager.mutations.load(SeqCst));
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() << 12
}

#[tokio::test]
#[ignore = "takes some gigabytes; what an open file takes, as the system counts it"]
async fn a_million_open_files_take_what_is_said() {
    let files: u64 = std::env::var("ROPEWALK_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let mut world = World::new(2, 1);
    world.blocks.zeros.store(true, SeqCst);
    world.manager.extents_most.store(4096, SeqCst);
    let inos: Vec<InodeNo> =
        (0..files).map(|file| world.manager.make(&file.to_be_bytes(), 8 * BLOCK64, 0..8)).collect();
    let client = world.mount(Tunables { handles_max: files as u32, ..small() });
    let before = resident();
    let mut handles = Vec::new();
    for ino in inos {
        let handle = opened(&client, ino).await;
        // Two of its blocks are read: their entries go when there is no room for them.
        reads_zeros(&client, handle, 0).await;
        reads_zeros(&client, handle, 3 * BLOCK64).await;
        handles.push(handle);
    }
    let each = (resident() - before) / files;
    println!(
        "{files} open files: {} MiB, {each} bytes each; {:?}",
        (resident() - before) >> 20,
        client.pool_use()
    );
    assert!(each <= 4096, "{each}");
}
