//! Writes that end in an error after a part.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{RW, World, small};
use base::InodeNo;
use client::{Client, Errno, Handle, Privileges, Tunables};
use wire::mgr::FileKind;

const KIB: u64 = 1 << 10;

async fn made(client: &Client, name: &[u8]) -> Handle {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    client.open(made.unwrap().0.ino, RW).await.unwrap()
}

#[tokio::test]
async fn a_copy_that_finds_no_room_for_a_part_puts_nothing_else_in_its_place() {
    let mut world = World::new(1, 1);
    let never = Duration::from_secs(3600);
    // So small a page pool is written in steps of 64 KiB.
    let tunables =
        Tunables { pagepool: 1 << 20, reserve_bytes: 0, writeback_age: never, commit_age: never, ..small() };
    let client = world.mount(tunables);
    let (from, to) = (made(&client, b"from").await, made(&client, b"to").await);
    // Pages of 64, 128 and 4 KiB; of the second one there is room for the half, and for the third.
    let content: Vec<u8> = (0..49u8).flat_map(|page| [page + 1; 4096]).collect();
    world.manager.room.store(2 * (196 + 64 + 64 + 4) * KIB, SeqCst);
    for part in content.chunks(64 << 10) {
        let at = part.as_ptr() as usize - content.as_ptr() as usize;
        assert_eq!(client.write(from, at as u64, part).await, Ok(part.len()));
    }
    let pieces = client.read(from, 0, content.len()).await.unwrap();
    let lens: Vec<_> = pieces.pieces().iter().map(|piece| piece.len() >> 10).collect();
    assert_eq!(lens, [64, 128, 4]);
    let copied = client.copy_range(from, 0, to, 0, 196 * KIB, Privileges::Kept).await;
    assert_eq!(copied, Ok(128 * KIB));
    assert!(client.read(to, 0, content.len()).await.unwrap().to_vec() == content[..128 << 10]);
    let rest = client.copy_range(from, 128 * KIB, to, 128 * KIB, 68 * KIB, Privileges::Kept).await;
    assert_eq!(rest, Err(Errno::ENOSPC));
}

#[tokio::test]
async fn a_write_beyond_all_files_is_refused() {
    let client = World::new(1, 1).mount(small());
    let file = made(&client, b"f").await;
    for offset in [i64::MAX as u64, u64::MAX - 4095, u64::MAX] {
        assert_eq!(client.write(file, offset, &[1; 4096]).await, Err(Errno::EFBIG), "{offset}");
        assert_eq!(client.read(file, offset, 4096).await.map(|data| data.len()), Ok(0), "{offset}");
    }
}
