//! What is durable when a call returns: it is there after a crash, whatever others do meanwhile.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{RW, World, small, until};
use base::InodeNo;
use client::{Client, Handle, OpenFlags, SetAttrs, Tunables};
use wire::mgr::{Change, FileKind, MgrRequest};

const DSYNC: OpenFlags = OpenFlags { dsync: true, ..RW };

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
