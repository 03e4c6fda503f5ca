//! What is durable when a call returns: it is there after a crash, whatever others do meanwhile.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Fallocate, Handle, OpenFlags, Privileges, SetAttrs, Tunables};
use wire::mgr::{Change, FileKind, MgrRequest};

const DSYNC: OpenFlags = OpenFlags { dsync: true, ..RW };
const SYNC: OpenFlags = OpenFlags { sync: true, ..RW };

/// Nothing happens by age.
fn calm() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, ..small() }
}

/// A file with this content, durable, and opened so.
async fn made(client: &Client, name: &[u8], content: &[u8], flags: OpenFlags) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    let handle = client.open(ino, RW).await.unwrap();
    assert_eq!(client.write(handle, 0, content).await, Ok(content.len()));
    client.fsync_handle(handle, false).await.unwrap();
    client.release(handle);
    (ino, client.open(ino, flags).await.unwrap())
}

/// Many write new blocks of a file all the time, each durable before the next. Whenever the manager has been told there are some that were
/// stored meanwhile; those are not what an fsync is asked for.
#[tokio::test]
async fn an_fsync_does_not_wait_for_blocks_that_are_stored_after_it_began() {
    const BLOCK: u64 = 8 << 10;
    const WRITERS: u64 = 64;
    for grows in [false, true] {
        let mut world = World::of_blocks(2, BLOCK as u32, 1);
        let client = world.mount(calm());
        let (ino, handle) = made(&client, b"f", &[1; 2 * BLOCK as usize], DSYNC).await;
        if !grows {
            let set = SetAttrs { size: Some(1 << 40), ..SetAttrs::default() };
            client.setattr(ino, set).await.unwrap();
            client.fsync(ino, false).await.unwrap();
        }
        // A block takes a little, and so does a commit.
        world.blocks.slow.store(8, SeqCst);
        *world.manager.which.lock().unwrap() =
            |request| matches!(request, MgrRequest::Mutate { change: Change::CommitWrite { .. }, .. });
        let manager = world.manager.clone();
        let slow = tokio::spawn(async move {
            loop {
                let _late = manager.on_their_way.write().await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, stop) = (client.clone(), stop.clone());
                tokio::spawn(async move {
                    for block in (2 + writer..).step_by(WRITERS as usize) {
                        if stop.load(SeqCst) {
                            return;
                        }
                        assert_eq!(client.write(handle, block * BLOCK, &[2; 4096]).await, Ok(4096));
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            let told = || world.manager.kept_back.load(SeqCst);
            let before = told();
            until("the others are at work", || told() > before + 2).await;
            let before = told();
            assert_eq!(client.fsync(ino, false).await, Ok(()), "grows: {grows}");
            let commits = told() - before;
            // Its own comes after those of the others, who take turns.
            assert!(commits <= 4 * WRITERS, "{commits} commits, grows: {grows}");
        }
        stop.store(true, SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
        slow.abort();
    }
}

#[tokio::test]
async fn fallocate_by_a_handle_that_is_synchronous_is_durable() {
    let (allocate, zero) =
        (Fallocate::Allocate { keep_size: false }, Fallocate::ZeroRange { keep_size: false });
    let (keep, hole) = (Fallocate::ZeroRange { keep_size: true }, Fallocate::PunchHole);
    let stored = 2 * BLOCK as usize + 77;
    // Bytes that there are, and what becomes of which.
    let cases = [
        (stored, hole, 100..200),
        (stored, hole, 100..BLOCK as usize + 100),
        (stored, keep, 100..200),
        (stored, zero, stored - 100..stored + BLOCK as usize),
        (stored, zero, stored + 100..stored + 200),
        (stored, allocate, stored - 100..stored + 5000),
        (10, allocate, 0..1000),
        (10, hole, 2..5),
        (10, zero, 5..20),
    ];
    for (flags, (len, mode, range)) in [DSYNC, SYNC].into_iter().flat_map(|f| cases.clone().map(|c| (f, c))) {
        let mut world = World::new(2, 1);
        let client = world.mount(calm());
        let mut bytes = vec![7; len];
        let (ino, handle) = made(&client, b"f", &bytes, flags).await;
        let (offset, count) = (range.start as u64, range.len() as u64);
        client.fallocate(handle, mode, offset, count, Privileges::Kept).await.unwrap();
        let mtime = client.getattr(ino).await.unwrap().mtime;
        drop(client);
        if mode == allocate || mode == zero {
            bytes.resize(len.max(range.end), 0);
        }
        if mode != allocate {
            bytes[range.clone()].fill(0);
        }
        let client = world.mount(calm());
        let what = format!("{mode:?} of {range:?}, {len} bytes");
        let attr = client.getattr(ino).await.unwrap();
        assert_eq!(attr.size, bytes.len() as u64, "{what}");
        if flags.sync {
            assert_eq!(attr.mtime, mtime, "{what}");
        }
        let handle = client.open(ino, RW).await.unwrap();
        let read = client.read(handle, 0, 2 * bytes.len()).await.unwrap().to_vec();
        let differs = read.iter().zip(&bytes).position(|(a, b)| a != b);
        assert_eq!((read.len(), differs), (bytes.len(), None), "{what}");
    }
}

#[tokio::test]
async fn a_copy_into_a_handle_that_is_synchronous_is_durable() {
    for len in [10, 2 * BLOCK as usize + 77] {
        let mut world = World::new(2, 1);
        let client = world.mount(calm());
        let (_, from) = made(&client, b"from", &vec![7; len], RW).await;
        let (ino, to) = made(&client, b"to", &[1; 5], DSYNC).await;
        let copied = client.copy_range(from, 0, to, 3, len as u64, Privileges::Kept).await;
        assert_eq!(copied, Ok(len as u64));
        drop(client);
        let client = world.mount(calm());
        let handle = client.open(ino, RW).await.unwrap();
        let read = client.read(handle, 0, 2 * len + 3).await.unwrap().to_vec();
        assert!(read == [vec![1; 3], vec![7; len]].concat(), "{len} bytes");
    }
}

/// A write that failed left something of itself on the pdisks. Its bytes are cut off, and zeros of a file that grows again take their
/// place: these are durable with fsync, also if whoever resolves what a crash left goes forward with the failed write.
#[tokio::test]
async fn zeros_in_place_of_a_failed_write_are_there_after_a_crash() {
    const HALF: usize = BLOCK as usize / 2;
    let cut = |size: usize| SetAttrs { size: Some(size as u64), ..SetAttrs::default() };
    for punched in [false, true] {
        let mut world = World::new(2, 1);
        let client = world.mount(calm());
        let (ino, handle) = made(&client, b"f", &[1; HALF], RW).await;
        assert_eq!(client.write(handle, HALF as u64, &[2; HALF / 2]).await, Ok(HALF / 2));
        world.blocks.failing.store(true, SeqCst);
        assert!(client.fsync(ino, false).await.is_err());
        if punched {
            let hole = Fallocate::PunchHole;
            client
                .fallocate(handle, hole, HALF as u64, HALF as u64 / 2 - 4096, Privileges::Kept)
                .await
                .unwrap();
        }
        client.setattr(ino, cut(if punched { HALF + HALF / 4 } else { HALF })).await.unwrap();
        world.blocks.failing.store(false, SeqCst);
        client.setattr(ino, cut(HALF + HALF / 2)).await.unwrap();
        // Of the error it was told already.
        assert_eq!(client.fsync(ino, false).await, Ok(()), "punched: {punched}");
        drop(client);
        world.blocks.go_forward();
        let client = world.mount(calm());
        let handle = client.open(ino, RW).await.unwrap();
        let read = client.read(handle, 0, BLOCK as usize).await.unwrap().to_vec();
        assert!(
            read == [vec![1; HALF], vec![0; HALF / 2]].concat(),
            "{} bytes, punched: {punched}",
            read.len()
        );
    }
}
