//! How much storage a file takes, as its attributes say: a program that believes it to be none takes the file for one hole (`tar -S`).
use std::sync::atomic::Ordering::SeqCst;

use base::InodeNo;
use wire::mgr::FileKind;

use crate::support::{RW, World, small, until};

/// From the write on and while it is stored and told to the manager, never less than there is.
#[tokio::test]
async fn a_block_on_its_way_counts() {
    let mut world = World::new(2, 1);
    let client = world.mount(small());
    for len in [100_u64, 20_000, 100_000] {
        let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
        let ino = made.unwrap().0.ino;
        let handle = client.open(ino, RW).await.unwrap();
        world.blocks.stuck.store(true, SeqCst);
        client.write(handle, 0, &vec![7; len as usize]).await.unwrap();
        let of_fsync = client.clone();
        let fsync = tokio::spawn(async move { of_fsync.fsync(ino, false).await });
        if len > 10_000 {
            until("the block is being written", || world.blocks.is_writing()).await;
        }
        assert_eq!(client.getattr(ino).await.unwrap().stored, len, "on its way");
        world.blocks.stuck.store(false, SeqCst);
        while !fsync.is_finished() {
            assert_eq!(client.getattr(ino).await.unwrap().stored, len);
            tokio::task::yield_now().await;
        }
        fsync.await.unwrap().unwrap();
        assert_eq!(client.getattr(ino).await.unwrap().stored, len);
        client.release(handle);
        client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    }
}
