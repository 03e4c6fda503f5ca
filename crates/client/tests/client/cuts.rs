//! Reads that are under way while the same mount cuts off, or punches, what they read: they see bytes, zeros or the end of the
//! file, and no error.
use std::sync::{Arc, atomic::Ordering::SeqCst};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Fallocate, Handle, Privileges, SetAttrs};
use wire::mgr::FileKind;

const BLOCK64: u64 = BLOCK as u64;

/// A file of two blocks that are on the pdisks and not in memory, and a read of the second one that does not come to its end.
async fn reading(world: &mut World) -> (Arc<Client>, InodeNo, Handle, tokio::task::JoinHandle<Vec<u8>>) {
    let client = world.mount(small());
    let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    let handle = client.open(ino, RW).await.unwrap();
    client.write(handle, 0, &vec![1; 2 * BLOCK as usize]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    drop(client);
    let client = Arc::new(world.mount(small()));
    let handle = client.open(ino, RW).await.unwrap();
    world.blocks.stuck_reads.store(true, SeqCst);
    let (reader, before) = (client.clone(), world.blocks.reads.load(SeqCst));
    let read = tokio::spawn(async move {
        reader.read(handle, BLOCK64, BLOCK as usize).await.expect("no error").to_vec()
    });
    until("the read is under way", || world.blocks.reads.load(SeqCst) > before).await;
    (client, ino, handle, read)
}

#[tokio::test]
async fn a_read_of_what_is_being_cut_off_ends_at_the_new_end() {
    let mut world = World::new(2, 1);
    let (client, ino, _, read) = reading(&mut world).await;
    let set = SetAttrs { size: Some(BLOCK64), ..SetAttrs::default() };
    assert_eq!(client.setattr(ino, set).await.unwrap().size, BLOCK64);
    world.blocks.reap(true);
    world.blocks.stuck_reads.store(false, SeqCst);
    assert!(read.await.unwrap().is_empty());
}

#[tokio::test]
async fn a_read_of_what_is_being_punched_sees_zeros() {
    let mut world = World::new(2, 1);
    let (client, _, handle, read) = reading(&mut world).await;
    client.fallocate(handle, Fallocate::PunchHole, BLOCK64, BLOCK64, Privileges::Kept).await.unwrap();
    world.blocks.reap(true);
    world.blocks.stuck_reads.store(false, SeqCst);
    assert!(read.await.unwrap() == vec![0; BLOCK as usize]);
}

#[tokio::test]
async fn a_read_waits_for_the_answer_to_a_cut() {
    let mut world = World::new(2, 1);
    let (client, ino, _, read) = reading(&mut world).await;
    // It is carried out, and the answer is lost some times.
    world.manager.lose.store(3, SeqCst);
    let cutter = client.clone();
    let cut = tokio::spawn(async move {
        let set = SetAttrs { size: Some(BLOCK64), ..SetAttrs::default() };
        cutter.setattr(ino, set).await.unwrap().size
    });
    until("the cut is under way", || world.manager.lose.load(SeqCst) < 3).await;
    world.blocks.reap(true);
    world.blocks.stuck_reads.store(false, SeqCst);
    assert!(read.await.unwrap().is_empty());
    assert_eq!(cut.await.unwrap(), BLOCK64);
}
