//! fallocate that does not come to its end: what others of the mount have written meanwhile stays, and what was granted for it
//! is not kept from others.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, Privileges, SetAttrs, Tunables};
use wire::mgr::FileKind;

const MIB: u64 = 1 << 20;

/// Nothing happens by age.
fn calm() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, ..small() }
}

async fn made(client: &Client, name: &[u8]) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    (ino, client.open(ino, RW).await.unwrap())
}

async fn allocate(client: &Client, handle: Handle, end: u64) -> Result<(), Errno> {
    let mode = Fallocate::Allocate { keep_size: false };
    client.fallocate(handle, mode, 0, end, Privileges::Kept).await
}

#[tokio::test]
async fn what_is_written_while_room_is_allocated_outlives_its_failure() {
    for written in [false, true] {
        let mut world = World::new(2, 1);
        // Just what 3 MiB take.
        world.manager.room.store(3 * MIB * 3 / 2, SeqCst);
        let client = world.mount(calm());
        let (ino, handle) = made(&client, b"f").await;
        let (_, greedy) = made(&client, b"greedy").await;
        world.blocks.stuck.store(true, SeqCst);
        let allocator = client.clone();
        let allocation = tokio::spawn(async move { allocate(&allocator, handle, 3 * MIB).await });
        let throttled = || client.waits().iter().any(|wait| wait.what == "dirty pages to be written");
        until("its first part is dirty", throttled).await;
        assert_eq!(client.getattr(ino).await.unwrap().size, MIB);
        if written {
            assert_eq!(client.write(handle, MIB / 2, &[7; 5000]).await, Ok(5000));
        }
        // Somebody takes room that it was promised.
        assert_eq!(client.write(greedy, 0, &vec![1; BLOCK as usize]).await, Ok(BLOCK as usize));
        world.blocks.stuck.store(false, SeqCst);
        assert_eq!(allocation.await.unwrap(), Err(Errno::ENOSPC));
        if !written {
            assert_eq!(client.getattr(ino).await.unwrap().size, 0, "it is as it was");
            continue;
        }
        client.fsync(ino, false).await.unwrap();
        for client in [client, world.mount(calm())] {
            let handle = client.open(ino, RW).await.unwrap();
            assert_eq!(client.read(handle, MIB / 2, 5000).await.unwrap().to_vec(), [7; 5000]);
        }
    }
}

#[tokio::test]
async fn room_that_was_granted_for_an_allocation_goes_back_when_it_ends() {
    let mut world = World::new(2, 1);
    let (room, piece) = (100 * MIB, small().reserve_bytes);
    world.manager.room.store(room, SeqCst);
    world.manager.grants_part.store(true, SeqCst);
    let client = world.mount(calm());
    let (ino, handle) = made(&client, b"f").await;
    // All is granted that there is, and is not enough.
    assert_eq!(allocate(&client, handle, 200 * MIB).await, Err(Errno::ENOSPC));
    assert_eq!(client.getattr(ino).await.unwrap().size, 0);
    until("it is given back", || (1..=piece).contains(&world.manager.held.load(SeqCst))).await;
    // The same of what is there already, for which room is set aside in vain.
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (_, handle) = made(&client, b"f").await;
    for _ in 0..2 {
        assert_eq!(allocate(&client, handle, 8 * MIB).await, Ok(()));
    }
    until("it is given back", || (1..=piece).contains(&world.manager.held.load(SeqCst))).await;
}

#[tokio::test]
async fn no_length_is_too_large_to_be_counted() {
    // With two strips a stripe it takes 2^64 bytes of the pdisks, which is 0 if one does not look.
    let mut world = World::new(1, 1);
    world.manager.grants_part.store(true, SeqCst);
    let client = world.mount(calm());
    let (ino, handle) = made(&client, b"f").await;
    assert_eq!(allocate(&client, handle, i64::MAX as u64).await, Err(Errno::ENOSPC));
    assert_eq!((client.getattr(ino).await.unwrap().size, world.blocks.writes.load(SeqCst)), (0, 0));
}

#[tokio::test]
async fn room_of_what_is_dropped_before_it_is_written_is_used_again() {
    let mut world = World::new(2, 1);
    world.manager.room.store(2 * u64::from(BLOCK), SeqCst);
    let client = world.mount(calm());
    let (ino, handle) = made(&client, b"f").await;
    for punched in [false, true] {
        for _ in 0..10 {
            let len = BLOCK as usize / 2;
            assert_eq!(client.write(handle, 0, &vec![1; len]).await, Ok(len), "punched: {punched}");
            if punched {
                client
                    .fallocate(handle, Fallocate::PunchHole, 4096, len as u64, Privileges::Kept)
                    .await
                    .unwrap();
            } else {
                let set = SetAttrs { size: Some(5000), ..SetAttrs::default() };
                client.setattr(ino, set).await.unwrap();
            }
        }
    }
    assert_eq!(world.blocks.writes.load(SeqCst), 0);
}

#[tokio::test]
async fn room_of_what_is_written_beside_a_version_is_set_aside_until_that_is_stored() {
    const PART: usize = 64 << 10;
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, handle) = made(&client, b"f").await;
    let set = SetAttrs { size: Some(u64::from(BLOCK)), ..SetAttrs::default() };
    client.setattr(ino, set).await.unwrap();
    client.write(handle, 0, &[1; PART]).await.unwrap();
    world.blocks.stuck.store(true, SeqCst);
    let sync = tokio::spawn({
        let client = client.clone();
        async move { client.fsync(ino, false).await }
    });
    until("the first part is being written", || world.blocks.writes.load(SeqCst) > 0).await;
    client.write(handle, PART as u64, &[2; PART]).await.unwrap();
    world.blocks.stuck.store(false, SeqCst);
    sync.await.unwrap().unwrap();
    assert_eq!((world.blocks.writes.load(SeqCst), client.pool_use().dirty), (1, PART as u64));
    // More than is left of the first piece: the question says what is held.
    client.write(handle, u64::from(BLOCK), &vec![3; MIB as usize]).await.unwrap();
    assert_eq!(world.manager.held.load(SeqCst), MIB - PART as u64 * 3 / 2, "of one part");
}
