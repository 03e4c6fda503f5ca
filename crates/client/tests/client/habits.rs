//! What the client promises besides the right bytes: when it asks the manager, what it sends to the
//! pdisks, how errors come out, and that its bounds hold.
use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, OpenFlags, Privileges, SetAttrs, Tunables};
use wire::mgr::{FileKind, Timestamp};

/// Nothing happens by age.
fn calm() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, ..small() }
}

async fn new_file(client: &Client, name: &[u8], flags: OpenFlags) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    (ino, client.open(ino, flags).await.unwrap())
}

#[tokio::test]
async fn full_blocks_go_out_at_once_as_whole_strips() {
    let mut world = World::new(4, 1);
    let client = world.mount(calm());
    let (_, handle) = new_file(&client, b"a", RW).await;
    for i in 0..u64::from(BLOCK) / 8192 {
        client.write(handle, i * 8192, &[7; 8192]).await.unwrap();
    }
    until("the block is written", || world.blocks.writes.load(SeqCst) == 1).await;
    // Small at first, then as long as a strip.
    let pieces = world.blocks.last_pieces.lock().unwrap().clone();
    assert!(pieces.len() < 10 && pieces[pieces.len() - 3..] == [BLOCK as usize / 4; 3], "{pieces:?}");
    assert_eq!(world.blocks.reads.load(SeqCst), 0);
}

#[tokio::test]
async fn small_files_live_in_the_inode_and_move_out_when_they_grow() {
    let mut world = World::new(4, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    client.write(handle, 0, b"hello").await.unwrap();
    client.fsync(ino, false).await.unwrap();
    assert_eq!(world.manager.record(ino), Some((5, true, vec![])));
    assert_eq!(world.blocks.writes.load(SeqCst), 0);
    client.write(handle, u64::from(BLOCK) * 2, b"far").await.unwrap();
    client.fsync(ino, false).await.unwrap();
    assert_eq!(world.manager.record(ino), Some((u64::from(BLOCK) * 2 + 3, false, vec![0, 2])));
    let client = world.mount(calm());
    let handle = client.open(ino, RW).await.unwrap();
    assert_eq!(client.read(handle, 0, 6).await.unwrap().to_vec(), b"hello\0");
}

#[tokio::test]
async fn fdatasync_asks_the_manager_only_where_the_data_needs_it() {
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    client.write(handle, 0, &[1; 100_000]).await.unwrap();
    client.fsync(ino, true).await.unwrap();
    let calls = world.manager.calls.load(SeqCst);
    client.write(handle, 5000, &[2; 5000]).await.unwrap();
    client.fsync(ino, true).await.unwrap();
    assert_eq!(world.manager.calls.load(SeqCst), calls, "nothing but times has changed");
    client.fsync(ino, false).await.unwrap();
    assert_eq!(world.manager.calls.load(SeqCst), calls + 1);
}

#[tokio::test]
async fn a_dsync_write_is_there_after_a_crash_with_all_before_it() {
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    let sync = client.open(ino, OpenFlags { dsync: true, ..RW }).await.unwrap();
    client.write(handle, 0, &vec![1; 2 * BLOCK as usize + 77]).await.unwrap();
    client.write(sync, 3 * u64::from(BLOCK) + 5, &[2; 1000]).await.unwrap();
    let client = world.mount(calm());
    let handle = client.open(ino, RW).await.unwrap();
    let end = 3 * u64::from(BLOCK) + 5;
    assert_eq!(client.getattr(ino).await.unwrap().size, end + 1000);
    assert_eq!(client.read(handle, end, 1000).await.unwrap().to_vec(), [2; 1000]);
}

#[tokio::test]
async fn an_error_of_writing_behind_reaches_every_handle_once_and_the_data_is_kept() {
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, a) = new_file(&client, b"a", RW).await;
    let b = client.open(ino, RW).await.unwrap();
    world.blocks.failing.store(true, SeqCst);
    client.write(a, 0, &vec![3; BLOCK as usize]).await.unwrap();
    assert_eq!(client.fsync_handle(a, false).await, Err(Errno::EIO));
    assert_eq!(client.flush(b).await, Err(Errno::EIO));
    assert_eq!(client.flush(b).await, Ok(()));
    world.blocks.failing.store(false, SeqCst);
    assert_eq!(client.fsync_handle(a, false).await, Ok(()));
    let client = world.mount(calm());
    let handle = client.open(ino, RW).await.unwrap();
    let got = client.read(handle, 0, BLOCK as usize).await.unwrap().to_vec();
    assert!(got.len() == BLOCK as usize && got.iter().all(|&x| x == 3));
}

#[tokio::test]
async fn a_block_that_takes_long_holds_up_no_other() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { writebehind_threshold: 0, ..calm() });
    let (ino, handle) = new_file(&client, b"a", RW).await;
    world.blocks.stuck_block.store(0, SeqCst);
    // Far more than may be dirty: the writer goes on only because the other blocks are stored.
    for block in 0..40 {
        let bytes = [block as u8; BLOCK as usize];
        let write = client.write(handle, block * u64::from(BLOCK), &bytes);
        tokio::time::timeout(Duration::from_secs(60), write).await.expect("the writer stalls").unwrap();
    }
    until("all others are stored", || client.pool_use().dirty <= u64::from(BLOCK)).await;
    world.blocks.stuck_block.store(u64::MAX, SeqCst);
    client.fsync(ino, false).await.unwrap();
    assert_eq!(client.pool_use().dirty, 0);
}

#[tokio::test]
async fn no_more_files_are_written_back_at_once_than_allowed() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { cleaners_max: 1, ..small() });
    world.blocks.stuck.store(true, SeqCst);
    for name in [b"a", b"b", b"c"] {
        let (_, handle) = new_file(&client, name, RW).await;
        client.write(handle, 0, &[1; 100_000]).await.unwrap();
    }
    until("one is written", || world.blocks.writes.load(SeqCst) > 0).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(world.blocks.writes.load(SeqCst), 1);
    world.blocks.stuck.store(false, SeqCst);
    until("all are written", || client.pool_use().dirty == 0).await;
}

#[tokio::test]
async fn a_full_file_system_refuses_the_write_and_stays_readable_and_deletable() {
    let mut world = World::new(2, 1);
    world.manager.room.store(3 << 20, SeqCst);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    let mut end = 0;
    let error = loop {
        match client.write(handle, end, &[5; 100_000]).await {
            Ok(n) => end += n as u64,
            Err(error) => break error,
        }
        assert!(end < 10 << 20, "room is never asked for");
    };
    assert_eq!(error, Errno::ENOSPC);
    assert!(end > 1 << 20);
    client.fsync(ino, false).await.unwrap();
    // Writing over what is there needs no room.
    client.write(handle, 0, &[6; 100_000]).await.unwrap();
    assert_eq!(client.read(handle, end - 10, 20).await.unwrap().to_vec(), [5; 10]);
    client.unlink(InodeNo::ROOT, b"a", false).await.unwrap();
    client.release(handle);
    until("its inode is reclaimed", || world.manager.record(ino).is_none()).await;
    world.blocks.reap(true);
    assert!(!world.blocks.exists_any(ino), "strips of a deleted file are left");
}

#[tokio::test]
async fn what_is_allocated_can_be_written_when_the_file_system_is_full() {
    let mut world = World::new(2, 1);
    world.manager.room.store(6 << 20, SeqCst);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"reserved", RW).await;
    let old = 5 * u64::from(BLOCK) / 2;
    client.write(handle, 100_000, &[1; 5000]).await.unwrap();
    client.write(handle, old - 100, &[2; 100]).await.unwrap();
    let allocate = |keep_size| Fallocate::Allocate { keep_size };
    // Too much is refused as a whole; beyond the end nothing can be promised.
    assert_eq!(
        client.fallocate(handle, allocate(false), 0, 7 << 20, Privileges::Kept).await,
        Err(Errno::ENOSPC)
    );
    assert_eq!(
        client.fallocate(handle, allocate(true), 0, old + 1, Privileges::Kept).await,
        Err(Errno(libc::EOPNOTSUPP))
    );
    assert_eq!(client.getattr(ino).await.unwrap().size, old);
    client.fallocate(handle, allocate(true), 0, old, Privileges::Kept).await.unwrap();
    let size = 2 << 20;
    client
        .fallocate(handle, allocate(false), old - 50_000, size - old + 50_000, Privileges::Kept)
        .await
        .unwrap();
    // Durable already, and not a byte of the content is another.
    assert_eq!(world.manager.record(ino), Some((size, false, (0..8).collect())));
    let mut content = vec![0; size as usize];
    content[100_000..105_000].fill(1);
    content[old as usize - 100..old as usize].fill(2);
    assert!(client.read(handle, 0, size as usize + 1).await.unwrap().to_vec() == content);
    // Somebody takes the rest.
    let (_, other) = new_file(&client, b"greedy", RW).await;
    let mut end = 0;
    while client.write(other, end, &[5; 100_000]).await.is_ok() {
        end += 100_000;
        assert!(end < 10 << 20, "room is never asked for");
    }
    client.shutdown(Instant::now() + Duration::from_secs(60)).await.unwrap();
    let client = world.mount(calm());
    let handle = client.open(ino, RW).await.unwrap();
    for offset in (0..size).step_by(100_000).collect::<Vec<_>>().into_iter().rev() {
        let part = (size - offset).min(100_000) as usize;
        assert_eq!(client.write(handle, offset, &vec![9; part]).await, Ok(part));
        client.fsync(ino, true).await.unwrap();
    }
    assert_eq!(client.write(handle, size + 100_000, &[9; 1 << 19]).await, Err(Errno::ENOSPC));
    assert!(client.read(handle, 0, size as usize).await.unwrap().to_vec() == vec![9; size as usize]);
}

#[tokio::test]
async fn writers_wait_when_too_much_is_dirty_and_give_up_at_the_deadline() {
    let mut world = World::new(2, 1);
    let tunables = Tunables { deadline: Duration::from_secs(2), ..calm() };
    let limit = tunables.pagepool * u64::from(tunables.dirty_pct) / 100;
    let client = world.mount(tunables);
    let (_, handle) = new_file(&client, b"a", RW).await;
    world.blocks.stuck.store(true, SeqCst);
    let mut end = 0;
    let error = loop {
        match client.write(handle, end, &[5; 65536]).await {
            Ok(n) => end += n as u64,
            Err(error) => break error,
        }
        assert!(end < 64 << 20, "never stopped");
    };
    assert_eq!(error, Errno::EIO);
    let dirty = client.pool_use().dirty;
    assert!(dirty <= limit + 65536 && client.pool_use().used <= client.pool_use().bytes_max);
    // What is in memory is still served.
    assert_eq!(client.read(handle, 0, 4096).await.unwrap().to_vec(), [5; 4096]);
    world.blocks.stuck.store(false, SeqCst);
}

#[tokio::test]
async fn the_pool_is_bounded_while_far_more_is_read() {
    let mut world = World::new(4, 1);
    let tunables = small();
    let client = world.mount(tunables);
    let (ino, handle) = new_file(&client, b"big", RW).await;
    let size = 5 * tunables.pagepool;
    for offset in (0..size).step_by(1 << 20) {
        client.write(handle, offset, &vec![(offset >> 20) as u8 + 1; 1 << 20]).await.unwrap();
        let held = client.pool_use();
        assert!(held.used <= held.bytes_max + 64 * u64::from(BLOCK), "{held:?}");
    }
    client.fsync(ino, false).await.unwrap();
    for offset in (0..size).step_by(128 << 10) {
        let got = client.read(handle, offset, 128 << 10).await.unwrap().to_vec();
        assert!(got.len() == 128 << 10 && got.iter().all(|&b| b == (offset >> 20) as u8 + 1));
        assert!(client.pool_use().used <= tunables.pagepool);
    }
}

#[tokio::test]
async fn a_random_reader_reads_only_what_it_asks_for() {
    let mut world = World::new(4, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    client.write(handle, 0, &vec![9; 4 * BLOCK as usize]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    client.shutdown(Instant::now() + Duration::from_secs(60)).await.unwrap();
    let client = world.mount(calm());
    let handle = client.open(ino, RW).await.unwrap();
    for offset in [700_000u64, 4096, 300_000, 90_000] {
        assert!(client.try_read_cached(handle, offset, 4096).is_none());
        client.read(handle, offset, 4096).await.unwrap();
        assert!(client.try_read_cached(handle, offset, 4096).is_some());
    }
    assert!(client.pool_use().used <= 4 * 8192, "{:?}", client.pool_use());
}

#[tokio::test]
async fn explicit_times_win_over_those_of_earlier_writes() {
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    client.write(handle, 0, &[1; 50_000]).await.unwrap();
    let mtime = Timestamp { secs: 1_000_000, nanos: 123_456_789 };
    let set = SetAttrs { mtime: Some(mtime), mode: Some(0o600), ..SetAttrs::default() };
    let attr = client.setattr(ino, set).await.unwrap();
    assert_eq!((attr.mtime, attr.size, attr.mode), (mtime, 50_000, 0o600));
    client.fsync(ino, false).await.unwrap();
    let client = world.mount(calm());
    let attr = client.getattr(ino).await.unwrap();
    assert_eq!((attr.mtime, attr.size, attr.mode), (mtime, 50_000, 0o600));
}

/// An answer given before a commit and received after the commit's own says how long the file was then.
/// Taken for the truth it cut off what had been written meanwhile: git found its index too short.
#[tokio::test]
async fn an_answer_older_than_a_commit_does_not_put_the_old_size_back() {
    for len in [5, 3 * BLOCK as usize] {
        let mut world = World::new(2, 1);
        let client = world.mount(calm());
        let (ino, handle) = new_file(&client, b"index.lock", RW).await;
        client.write(handle, 0, &vec![7; len]).await.unwrap();
        let late = world.manager.links_on_their_way.write().await;
        let answered = world.manager.mutations.load(SeqCst) + 1;
        let linker = client.clone();
        let link = tokio::spawn(async move { linker.link(ino, InodeNo::ROOT, b"index").await });
        until("the link is made", || world.manager.mutations.load(SeqCst) == answered).await;
        client.fsync(ino, false).await.unwrap();
        assert_eq!(world.manager.record(ino).unwrap().0, len as u64);
        drop(late);
        let attr = link.await.unwrap().unwrap();
        assert_eq!((attr.nlink, attr.size), (2, len as u64));
        assert_eq!(client.getattr(ino).await.unwrap().size, len as u64);
        assert!(client.read(handle, 0, len + 1).await.unwrap().to_vec() == vec![7; len]);
        client.fsync(ino, false).await.unwrap();
        assert_eq!(world.manager.record(ino).unwrap().0, len as u64);
    }
}

#[tokio::test]
async fn appends_of_several_handles_do_not_overlap() {
    let mut world = World::new(2, 1);
    let client = world.mount(small());
    let (ino, _) = new_file(&client, b"log", RW).await;
    let append = OpenFlags { append: true, ..RW };
    let mut writers = Vec::new();
    for id in 1..=4u8 {
        let (client, handle) = (client.clone(), client.open(ino, append).await.unwrap());
        writers.push(tokio::spawn(async move {
            for _ in 0..100 {
                client.write(handle, 0, &[id; 997]).await.unwrap();
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let handle = client.open(ino, RW).await.unwrap();
    let all = client.read(handle, 0, 1 << 20).await.unwrap().to_vec();
    assert_eq!(all.len(), 4 * 100 * 997);
    assert!(all.chunks(997).all(|record| record.iter().all(|b| b == &record[0])));
}

#[tokio::test]
async fn a_dead_session_stops_everything() {
    let mut world = World::new(2, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
    let other = world.mount(calm());
    assert_eq!(client.fsync(ino, false).await, Err(Errno::EIO));
    assert_eq!(client.write(handle, 0, b"x").await, Err(Errno::EIO));
    assert_eq!(other.getattr(ino).await.unwrap().size, 0);
}

#[tokio::test]
async fn attributes_of_a_file_go_with_its_content_in_one_change() {
    let mut world = World::new(4, 1);
    let client = world.mount(calm());
    let (ino, handle) = new_file(&client, b"a", RW).await;
    let told = world.manager.mutations.load(SeqCst);
    client.write(handle, 0, b"hello").await.unwrap();
    let then = Timestamp { secs: 77, nanos: 5 };
    let times = SetAttrs { atime: Some(then), mtime: Some(then), ..SetAttrs::default() };
    client.setattr(ino, times).await.unwrap();
    client.setattr(ino, SetAttrs { mode: Some(0o4755), ..SetAttrs::default() }).await.unwrap();
    // Whoever gives a program away gives no rights with it.
    let attr = client.setattr(ino, SetAttrs { uid: Some(9), ..SetAttrs::default() }).await.unwrap();
    assert_eq!((attr.mode, attr.uid, attr.mtime, attr.atime), (0o755, 9, then, then));
    assert_eq!(world.manager.mutations.load(SeqCst), told, "nothing is told before it must be");
    client.fsync(ino, false).await.unwrap();
    assert_eq!(world.manager.mutations.load(SeqCst), told + 1);
    let client = world.mount(calm());
    let attr = client.getattr(ino).await.unwrap();
    assert_eq!((attr.mode, attr.mtime, attr.atime, attr.size), (0o755, then, then, 5));
}

#[tokio::test]
async fn a_new_directory_and_a_new_file_answer_what_is_not_there() {
    let mut world = World::new(4, 1);
    let client = world.mount(calm());
    let made = client.create(InodeNo::ROOT, b"d", FileKind::Directory, 0o755, 0, 0, 0, b"", false).await;
    let dir = made.unwrap().0.ino;
    let asked = world.manager.calls.load(SeqCst);
    assert_eq!(client.lookup(dir, b"a").await, Err(Errno::ENOENT));
    assert_eq!(world.manager.calls.load(SeqCst), asked);
    let made = client.create(dir, b"a", FileKind::File, 0o644, 0, 0, 0, b"", false).await.unwrap();
    let asked = world.manager.calls.load(SeqCst);
    assert_eq!(client.getxattr(made.0.ino, b"security.capability").await, Err(Errno(libc::ENODATA)));
    assert_eq!(client.listxattr(made.0.ino).await, Ok(vec![]));
    assert_eq!(world.manager.calls.load(SeqCst), asked);
    assert_eq!(client.lookup(dir, b"a").await.unwrap().ino, made.0.ino, "what was made is known");
    assert_eq!(world.manager.calls.load(SeqCst), asked);
}

/// Room for the waits of a call is made with each call, and copied to where it waits. Handed on by value from one step to the next
/// it would lie there once for each.
#[tokio::test]
async fn a_read_or_a_write_brings_along_little() {
    let mut world = World::new(1, 1);
    let client = world.mount(calm());
    let (_, handle) = new_file(&client, b"a", RW).await;
    let read = size_of_val(&client.read(handle, 0, 4096));
    let write = size_of_val(&client.write(handle, 0, &[7; 4096]));
    assert!(read <= 4096 && write <= 4096, "{read} {write}");
}
