//! Calls whose callers go away, and work that takes longer than anybody waits: nothing is left that is open, dirty or kept at
//! the manager for nobody.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Handle, OpenFlags, Tunables};
use wire::mgr::{Change, FileKind, MgrRequest};

async fn made(client: &Client) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    (ino, client.open(ino, RW).await.unwrap())
}

#[tokio::test]
async fn an_open_whose_caller_goes_away_leaves_nothing_open() {
    const FOR_LONG: u64 = 1_000_001;
    let mut world = World::new(2, 1);
    let client = world.mount(small());
    let (ino, handle) = made(&client).await;
    client.write(handle, 0, &vec![1; 2 * BLOCK as usize]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    client.release(handle);
    world.manager.lose.store(FOR_LONG, SeqCst);
    let truncates = OpenFlags { truncate: true, ..RW };
    tokio::select! {
        opened = client.open(ino, truncates) => panic!("opened: {opened:?}"),
        () = until("the file is being cut", || world.manager.lose.load(SeqCst) < FOR_LONG) => {}
    }
    world.manager.lose.store(0, SeqCst);
    client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    until("its inode is reclaimed", || world.manager.record(ino).is_none()).await;
}

#[tokio::test]
async fn a_file_that_is_removed_while_its_blocks_take_long_is_given_up_all_the_same() {
    // What does not wait takes milliseconds, on a busy machine more.
    const DEADLINE: Duration = Duration::from_secs(2);
    for failing in [false, true] {
        let mut world = World::new(2, 1);
        let client = world.mount(Tunables { deadline: DEADLINE, ..small() });
        let (ino, handle) = made(&client).await;
        world.blocks.stuck.store(true, SeqCst);
        client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
        until("it is in flight", || world.blocks.writes.load(SeqCst) > 0).await;
        client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
        client.release(handle);
        // Longer than anything in the client is waited for.
        tokio::time::sleep(3 * DEADLINE).await;
        world.blocks.failing.store(failing, SeqCst);
        world.blocks.stuck.store(false, SeqCst);
        until("its inode is reclaimed", || world.manager.record(ino).is_none()).await;
        until("nothing of it is dirty", || client.pool_use().dirty == 0).await;
        assert_eq!(*world.blocks.forgotten.lock().unwrap(), [ino]);
    }
}

#[tokio::test]
async fn who_syncs_is_not_told_of_what_was_removed_meanwhile() {
    // Nothing happens by age.
    let never = Duration::from_secs(3600);
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { writeback_age: never, commit_age: never, ..small() });
    let syncing = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.sync_all().await })
    };
    // While it is written.
    let (ino, handle) = made(&client).await;
    world.blocks.stuck.store(true, SeqCst);
    client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
    let before = syncing(&client);
    let waits = |what: &str| client.waits().iter().any(|wait| wait.what == what);
    until("it waits", || waits("dirty blocks to be written")).await;
    client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    client.release(handle);
    assert_eq!(client.sync_all().await, Ok(()), "nothing of it is to be durable");
    world.blocks.stuck.store(false, SeqCst);
    assert_eq!(before.await.unwrap(), Ok(()));
    until("its inode is reclaimed", || world.manager.record(ino).is_none()).await;
    // While the manager is told of it.
    let (ino, handle) = made(&client).await;
    *world.manager.unheard.lock().unwrap() =
        |request| matches!(request, MgrRequest::Mutate { change: Change::CommitWrite { .. }, .. });
    client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
    let sync = syncing(&client);
    until("it tells", || waits("what is stored to be told to the manager")).await;
    client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    client.release(handle);
    until("its inode is reclaimed", || world.manager.record(ino).is_none()).await;
    *world.manager.unheard.lock().unwrap() = |_| false;
    assert_eq!(sync.await.unwrap(), Ok(()));
    // Another error is one.
    let (_, handle) = made(&client).await;
    world.blocks.failing.store(true, SeqCst);
    client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
    assert_eq!(client.sync_all().await, Err(Errno::EIO));
    world.blocks.failing.store(false, SeqCst);
    assert_eq!(client.sync_all().await, Ok(()));
}
