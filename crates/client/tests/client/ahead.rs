//! Names made ahead of the manager (docs/names-ahead.md), over parts in memory. The manager there refuses, by a panic, an inode
//! number that is used twice or out of order, a name that is made twice, and a file without its directory; the test's pdisks have
//! nothing of what it does not know.
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Instant,
};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, OpenFlags, SetAttrs, Tunables};
use wire::mgr::{Attr, Change, FileKind, MgrRequest};

fn ahead() -> Tunables {
    Tunables { names_ahead: true, ..small() }
}

async fn make(client: &Client, parent: InodeNo, name: &str, kind: FileKind) -> Result<Attr, Errno> {
    client.create(parent, name.as_bytes(), kind, 0o755, 1, 2, 0, b"", false).await.map(|(attr, _)| attr)
}

/// A directory of the client's own, which the manager knows.
async fn directory(world: &World, client: &Client) -> InodeNo {
    let dir = make(client, InodeNo::ROOT, "d", FileKind::Directory).await.unwrap().ino;
    client.fsync(dir, false).await.unwrap();
    world.manager.forget_told();
    dir
}

/// Files and directories, each in the directory made last; their names in order.
async fn tree(client: &Client, top: InodeNo, from: u64, count: u64) -> Vec<Vec<u8>> {
    let (mut parent, mut names) = (top, Vec::new());
    for i in from..from + count {
        let name = format!("n{i}");
        let kind = if i % 7 == 0 { FileKind::Directory } else { FileKind::File };
        let attr = make(client, parent, &name, kind).await.unwrap();
        if kind == FileKind::Directory {
            parent = attr.ino;
        }
        names.push(name.into_bytes());
    }
    names
}

/// The messages that tell names.
fn tells(request: &MgrRequest) -> bool {
    let MgrRequest::MutateMany { changes } = request else { return false };
    changes.iter().any(|(_, change)| matches!(change, Change::CreateAs { .. }))
}

/// How many messages there may have been since then that tell what nobody waits for: one in 50 ms, however little it is.
fn by_age(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64 / 50
}

#[tokio::test]
async fn names_are_told_in_order_and_in_batches() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    let (before, begun) = (world.manager.calls.load(SeqCst), Instant::now());
    let made = tree(&client, top, 0, 640).await;
    // All that is asked sees what was made.
    let listed = client.readdir(top, 0, 4096, false).await.unwrap();
    assert!(listed.entries.iter().any(|entry| entry.name == b"n0"));
    assert_eq!(world.manager.told(), made);
    let messages = world.manager.calls.load(SeqCst) - before;
    assert!(messages < 40 + by_age(begun), "{messages} messages for 640 names");
}

#[tokio::test]
async fn a_directory_that_was_there_before_is_listed_once() {
    let mut world = World::new(2, 1);
    for i in 0..2500 {
        world.manager.make(format!("old{i}").as_bytes(), 0, [].into_iter());
    }
    let client = world.mount(ahead());
    let (before, begun) = (world.manager.calls.load(SeqCst), Instant::now());
    let names: Vec<Vec<u8>> = (0..640).map(|i| format!("n{i}").into_bytes()).collect();
    for (i, name) in names.iter().enumerate() {
        make(&client, InodeNo::ROOT, std::str::from_utf8(name).unwrap(), FileKind::File).await.unwrap();
        if i == 1 {
            assert!(world.manager.told().is_empty(), "two pages of three are known");
        }
    }
    // What was there is there, and goes ahead of the manager when it is known.
    let again = make(&client, InodeNo::ROOT, "old7", FileKind::File).await;
    assert_eq!(again.map(drop), Err(Errno(libc::EEXIST)));
    for i in 0..640 {
        let name = format!("old{i}");
        assert_eq!(client.lookup(InodeNo::ROOT, name.as_bytes()).await.unwrap().nlink, 1);
        unlink(&client, InodeNo::ROOT, &name, false).await.unwrap();
        assert_eq!(client.lookup(InodeNo::ROOT, name.as_bytes()).await.map(drop), Err(Errno::ENOENT));
    }
    // What is made and removed at the manager is known as well.
    let linked = client.lookup(InodeNo::ROOT, b"n5").await.unwrap().ino;
    client.link(linked, InodeNo::ROOT, b"link").await.unwrap();
    unlink(&client, InodeNo::ROOT, "n5", false).await.unwrap();
    make(&client, InodeNo::ROOT, "n5", FileKind::File).await.unwrap();
    unlink(&client, InodeNo::ROOT, "link", false).await.unwrap();
    client.fsync(InodeNo::ROOT, false).await.unwrap();
    let told = world.manager.told();
    assert_eq!(told[..638], names[2..]);
    assert_eq!((told.len(), &told[1278..]), (1280, &[b"n5".to_vec(), b"-link".to_vec()][..]));
    let messages = world.manager.calls.load(SeqCst) - before;
    assert!(messages < 640 + 100 + by_age(begun), "{messages} messages: one for each file that is looked at");
}

#[tokio::test]
async fn attributes_of_directories_follow_in_order() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    // No answer comes, and none is waited for.
    *world.manager.which.lock().unwrap() = tells;
    let held = world.manager.on_their_way.write().await;
    let dir = make(&client, top, "sub", FileKind::Directory).await.unwrap().ino;
    for (at, mode) in [0o700, 0o711].into_iter().enumerate() {
        make(&client, dir, &format!("f{at}"), FileKind::File).await.unwrap();
        let set = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        assert_eq!(client.setattr(dir, set).await.unwrap().mode, mode);
        assert_eq!(client.getattr(dir).await.unwrap().mode, mode);
    }
    drop(held);
    client.fsync(dir, false).await.unwrap();
    assert_eq!(world.manager.attr_of(dir).mode, 0o711);
    assert_eq!(world.manager.told(), [&b"sub"[..], b"f0", b"f1"]);
}

#[tokio::test]
async fn each_is_told_once_however_often_answers_are_lost() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    world.manager.lossy.store(3, SeqCst);
    let made = tree(&client, top, 0, 900).await;
    client.fsync(top, false).await.unwrap();
    world.manager.lossy.store(0, SeqCst);
    assert_eq!(world.manager.told(), made);
}

#[tokio::test]
async fn fsync_and_blocks_wait_for_the_name() {
    let mut world = World::new(2, 1);
    let client = Arc::new(world.mount(ahead()));
    let top = directory(&world, &client).await;
    *world.manager.which.lock().unwrap() = tells;
    let held = world.manager.on_their_way.write().await;
    let ino = make(&client, top, "f", FileKind::File).await.unwrap().ino;
    let handle = client.open(ino, RW).await.unwrap();
    client.write(handle, 0, &vec![1; 2 * BLOCK as usize]).await.unwrap();
    let syncs = [ino, top].map(|ino| {
        let client = client.clone();
        tokio::spawn(async move { client.fsync(ino, false).await })
    });
    until("the names are on their way", || world.manager.kept_back.load(SeqCst) > 0).await;
    // Background work that would write blocks has run many times over.
    tokio::time::sleep(10 * small().writeback_age).await;
    assert!(syncs.iter().all(|sync| !sync.is_finished()), "fsync is answered before the names are told");
    assert_eq!(world.blocks.writes.load(SeqCst), 0, "blocks of an inode that the manager does not know");
    drop(held);
    for sync in syncs {
        sync.await.unwrap().unwrap();
    }
    assert_eq!(world.manager.record(ino).unwrap().0, 2 * u64::from(BLOCK));
}

#[tokio::test]
async fn what_is_lost_with_the_session_is_said() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    *world.manager.which.lock().unwrap() = tells;
    let held = world.manager.on_their_way.write().await;
    let first = make(&client, top, "first", FileKind::File).await.unwrap().ino;
    until("the first is on its way", || world.manager.kept_back.load(SeqCst) > 0).await;
    let second = make(&client, top, "second", FileKind::File).await.unwrap().ino;
    let handle = client.open(second, RW).await.unwrap();
    world.manager.fence_below(u64::MAX);
    drop(held);
    for ino in [second, first, top] {
        assert_eq!(client.fsync(ino, false).await, Err(Errno::EIO));
    }
    assert_eq!(client.fsync_handle(handle, true).await, Err(Errno::EIO));
    assert_eq!(client.flush(handle).await, Err(Errno::EIO));
    assert_eq!(client.sync_all().await, Err(Errno::EIO));
    assert_eq!(make(&client, top, "third", FileKind::File).await.map(drop), Err(Errno::EIO));
    assert_eq!(world.manager.told(), [b"first"]);
}

#[tokio::test]
async fn a_client_that_dies_leaves_a_beginning_of_what_it_made() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    let mut made = tree(&client, top, 0, 300).await;
    client.fsync(top, false).await.unwrap();
    *world.manager.which.lock().unwrap() = tells;
    let manager = world.manager.clone();
    let held = manager.on_their_way.write().await;
    made.extend(tree(&client, top, 1000, 300).await);
    until("some are on their way", || world.manager.kept_back.load(SeqCst) > 0).await;
    drop(client);
    let next = world.mount(ahead());
    drop(held);
    let told = world.manager.told();
    assert!(told.len() > 300 && told.len() < made.len(), "{}", told.len());
    assert_eq!(told, made[..told.len()]);
    // The next one uses none of its numbers.
    let top = make(&next, InodeNo::ROOT, "e", FileKind::Directory).await.unwrap().ino;
    let file = make(&next, top, "f", FileKind::File).await.unwrap();
    next.fsync(file.ino, false).await.unwrap();
    assert_eq!(world.manager.told().last().unwrap(), b"f");
}

async fn unlink(client: &Client, parent: InodeNo, name: &str, directory: bool) -> Result<(), Errno> {
    client.unlink(parent, name.as_bytes(), directory).await
}

#[tokio::test]
async fn removals_follow_in_order_and_names_can_be_made_again() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    *world.manager.which.lock().unwrap() = tells;
    // No answer comes, and none is waited for.
    let held = world.manager.on_their_way.write().await;
    let sub = make(&client, top, "sub", FileKind::Directory).await.unwrap().ino;
    for _ in 0..3 {
        make(&client, sub, "f", FileKind::File).await.unwrap();
        unlink(&client, sub, "f", false).await.unwrap();
        assert_eq!(client.lookup(sub, b"f").await.map(drop), Err(Errno::ENOENT));
    }
    let links = client.getattr(top).await.unwrap().nlink;
    unlink(&client, top, "sub", true).await.unwrap();
    assert_eq!(client.getattr(top).await.unwrap().nlink, links - 1);
    make(&client, top, "sub", FileKind::File).await.unwrap();
    drop(held);
    client.fsync(top, false).await.unwrap();
    let told: [&[u8]; 9] = [b"sub", b"f", b"-f", b"f", b"-f", b"f", b"-f", b"-sub", b"sub"];
    assert_eq!(world.manager.told(), told);
    // The directory, and what was made last.
    until("what was removed is reclaimed", || world.manager.inodes() == 2).await;
}

#[tokio::test]
async fn only_what_is_certain_is_removed_ahead() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    let sub = make(&client, top, "sub", FileKind::Directory).await.unwrap().ino;
    let file = make(&client, sub, "f", FileKind::File).await.unwrap().ino;
    assert_eq!(unlink(&client, top, "sub", true).await, Err(Errno(libc::ENOTEMPTY)));
    client.link(file, top, b"other").await.unwrap();
    unlink(&client, sub, "f", false).await.unwrap();
    assert_eq!(client.getattr(file).await.unwrap().nlink, 1);
    unlink(&client, top, "other", false).await.unwrap();
    assert_eq!(unlink(&client, sub, "f", false).await, Err(Errno::ENOENT));
    let told: [&[u8]; 3] = [b"sub", b"f", b"-other"];
    assert_eq!(world.manager.told(), told, "what was not the last name went to the manager");
}

/// Of a large tree few inodes are kept; where its names lead is known all the same.
#[tokio::test]
async fn what_is_kept_no_more_is_removed_ahead() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { files_to_cache_max: 8, ..ahead() });
    let top = directory(&world, &client).await;
    let file = make(&client, top, "x", FileKind::File).await.unwrap().ino;
    client.link(file, top, b"y").await.unwrap();
    make(&client, top, "sub", FileKind::Directory).await.unwrap();
    for i in 0..100 {
        make(&client, top, &format!("n{i}"), FileKind::File).await.unwrap();
    }
    client.fsync(top, false).await.unwrap();
    world.manager.forget_told();
    *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::MutateMany { .. });
    // No answer comes, and none is waited for.
    let held = world.manager.on_their_way.write().await;
    let mut told = Vec::new();
    for name in (0..100).map(|i| format!("n{i}")).chain(["x".to_owned()]) {
        unlink(&client, top, &name, false).await.unwrap();
        assert_eq!(client.lookup(top, name.as_bytes()).await.map(drop), Err(Errno::ENOENT));
        told.push(format!("-{name}").into_bytes());
    }
    drop(held);
    let left = client.lookup(top, b"y").await.unwrap();
    assert_eq!((left.ino, left.nlink), (file, 1));
    // The manager may refuse that, and is asked: what it refuses of what was acknowledged is lost with all that follows.
    let _ = unlink(&client, top, "sub", false).await;
    client.fsync(top, false).await.unwrap();
    assert_eq!(world.manager.told(), told);
    until("what was removed is reclaimed", || world.manager.inodes() <= 3).await;
}

#[tokio::test]
async fn what_is_open_stays_until_it_is_closed() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    let ino = make(&client, top, "f", FileKind::File).await.unwrap().ino;
    let handle = client.open(ino, RW).await.unwrap();
    unlink(&client, top, "f", false).await.unwrap();
    client.write(handle, 0, &vec![7; 2 * BLOCK as usize]).await.unwrap();
    client.fsync_handle(handle, false).await.unwrap();
    assert_eq!(world.manager.record(ino).unwrap().0, 2 * u64::from(BLOCK));
    assert_eq!(client.getattr(ino).await.unwrap().nlink, 0);
    client.release(handle);
    until("it is reclaimed", || world.manager.record(ino).is_none()).await;
}

#[tokio::test]
async fn removals_are_told_once_however_often_answers_are_lost() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    world.manager.lossy.store(3, SeqCst);
    let mut told: Vec<Vec<u8>> = Vec::new();
    for i in 0..600 {
        make(&client, top, &format!("n{i}"), FileKind::File).await.unwrap();
        told.push(format!("n{i}").into_bytes());
        if i % 3 > 0 {
            unlink(&client, top, &format!("n{}", i - 1), false).await.unwrap();
            told.push(format!("-n{}", i - 1).into_bytes());
        }
    }
    client.fsync(top, false).await.unwrap();
    world.manager.lossy.store(0, SeqCst);
    assert_eq!(world.manager.told(), told);
    assert_eq!(client.readdir(top, 0, 4096, false).await.unwrap().entries.len(), 200);
}

async fn rename(client: &Client, from: (InodeNo, &str), to: (InodeNo, &str)) -> Result<(), Errno> {
    client.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), false, false).await
}

#[tokio::test]
async fn renames_follow_in_order() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    *world.manager.which.lock().unwrap() = tells;
    // No answer comes, and none is waited for.
    let held = world.manager.on_their_way.write().await;
    let sub = make(&client, top, "sub", FileKind::Directory).await.unwrap().ino;
    make(&client, top, "a", FileKind::File).await.unwrap();
    let old = make(&client, sub, "b", FileKind::File).await.unwrap().ino;
    rename(&client, (top, "a"), (sub, "b")).await.unwrap();
    assert_eq!(client.lookup(top, b"a").await.map(drop), Err(Errno::ENOENT));
    rename(&client, (top, "sub"), (top, "moved")).await.unwrap();
    rename(&client, (sub, "b"), (top, "a")).await.unwrap();
    make(&client, sub, "b", FileKind::File).await.unwrap();
    unlink(&client, top, "a", false).await.unwrap();
    assert_eq!(client.lookup(top, b"a").await.map(drop), Err(Errno::ENOENT));
    drop(held);
    client.fsync(top, false).await.unwrap();
    let told: [&[u8]; 8] = [b"sub", b"a", b"b", b"a>b", b"sub>moved", b"b>a", b"b", b"-a"];
    assert_eq!(world.manager.told(), told);
    until("what was replaced is reclaimed", || world.manager.record(old).is_none()).await;
    assert_eq!(client.lookup(top, b"moved").await.unwrap().ino, sub);
    // Whether a directory would come below itself is looked at where all are known.
    let deep = make(&client, sub, "deep", FileKind::Directory).await.unwrap().ino;
    rename(&client, (sub, "deep"), (top, "deep")).await.unwrap();
    assert_eq!(client.lookup(top, b"deep").await.unwrap().ino, deep);
    assert_eq!(world.manager.told().last().unwrap(), b"deep");
}

#[tokio::test]
async fn a_synchronous_write_is_durable_with_the_name_that_the_file_has_by_then() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    let ino = make(&client, top, "a", FileKind::File).await.unwrap().ino;
    let handle = client.open(ino, OpenFlags { dsync: true, ..RW }).await.unwrap();
    client.write(handle, 0, &vec![1; BLOCK as usize]).await.unwrap();
    world.manager.forget_told();
    rename(&client, (top, "a"), (top, "b")).await.unwrap();
    // In place: nothing that follows from it is told.
    client.write(handle, 0, &vec![2; BLOCK as usize]).await.unwrap();
    assert_eq!(world.manager.told(), [b"a>b"]);
}

#[tokio::test]
async fn a_rename_over_a_file_comes_after_the_content() {
    let mut world = World::new(2, 1);
    let client = world.mount(ahead());
    let top = directory(&world, &client).await;
    for len in [10, 3 * BLOCK as usize] {
        let old = make(&client, top, "f", FileKind::File).await.unwrap().ino;
        let new = make(&client, top, "f.new", FileKind::File).await.unwrap().ino;
        let handle = client.open(new, RW).await.unwrap();
        client.write(handle, 0, &vec![9; len]).await.unwrap();
        let open = client.open(old, RW).await.unwrap();
        rename(&client, (top, "f.new"), (top, "f")).await.unwrap();
        assert_eq!(world.manager.record(new).unwrap().0, len as u64, "the manager has all of it");
        client.fsync(top, false).await.unwrap();
        assert_eq!(world.manager.told().last().unwrap(), b"f.new>f");
        // What was replaced stays while it is open.
        assert_eq!(client.getattr(old).await.unwrap().nlink, 0);
        assert!(world.manager.record(old).is_some());
        client.release(open);
        client.release(handle);
        until("it is reclaimed", || world.manager.record(old).is_none()).await;
        unlink(&client, top, "f", false).await.unwrap();
    }
}

/// Also where each name is at the manager when its call returns.
#[tokio::test]
async fn with_durable_names_it_does_as_well() {
    let mut world = World::new(2, 1);
    let client = world.mount(small());
    let top = directory(&world, &client).await;
    make(&client, top, "f", FileKind::File).await.unwrap();
    let new = make(&client, top, "f.new", FileKind::File).await.unwrap().ino;
    let handle = client.open(new, RW).await.unwrap();
    client.write(handle, 0, &vec![9; 3 * BLOCK as usize]).await.unwrap();
    rename(&client, (top, "f.new"), (top, "f")).await.unwrap();
    assert_eq!(world.manager.record(new).unwrap().0, 3 * u64::from(BLOCK), "the manager has all of it");
    client.release(handle);
}

/// A directory from before, of which the client has only removed: it was granted no numbers.
#[tokio::test]
async fn who_only_removes_is_waited_for_as_well() {
    let mut world = World::new(2, 1);
    for name in ["a", "b", "c", "d"] {
        world.manager.make(name.as_bytes(), 0, [].into_iter());
    }
    let client = world.mount(ahead());
    for name in ["a", "b", "c", "d"] {
        client.lookup(InodeNo::ROOT, name.as_bytes()).await.unwrap();
    }
    unlink(&client, InodeNo::ROOT, "a", false).await.unwrap();
    let listed = client.readdir(InodeNo::ROOT, 0, 4096, false).await.unwrap();
    assert!(listed.entries.iter().all(|entry| entry.name != b"a"), "{:?}", listed.entries);
    unlink(&client, InodeNo::ROOT, "b", false).await.unwrap();
    client.fsync(InodeNo::ROOT, false).await.unwrap();
    assert_eq!(world.manager.told(), [b"-a", b"-b"]);
    rename(&client, (InodeNo::ROOT, "c"), (InodeNo::ROOT, "e")).await.unwrap();
    client.sync_all().await.unwrap();
    assert_eq!(world.manager.told().last().unwrap(), b"c>e");
    // What is lost is said.
    unlink(&client, InodeNo::ROOT, "d", false).await.unwrap();
    world.manager.fence_below(u64::MAX);
    assert_eq!(client.fsync(InodeNo::ROOT, false).await, Err(Errno::EIO));
}

/// An answer that tells of fewer names than there are may come last.
#[tokio::test]
async fn a_file_with_another_name_is_not_removed_for_the_last() {
    let mut world = World::new(2, 1);
    let client = Arc::new(world.mount(ahead()));
    let top = directory(&world, &client).await;
    let ino = make(&client, top, "x", FileKind::File).await.unwrap().ino;
    client.link(ino, top, b"y").await.unwrap();
    let handle = client.open(ino, RW).await.unwrap();
    client.write(handle, 0, &[7; 100]).await.unwrap();
    client.release(handle);
    let removes =
        |request: &MgrRequest| matches!(request, MgrRequest::Mutate { change: Change::Unlink { .. }, .. });
    *world.manager.which.lock().unwrap() = removes;
    let before = world.manager.kept_back.load(SeqCst);
    let held = world.manager.on_their_way.write().await;
    let unlinking = client.clone();
    let unlinking = tokio::spawn(async move { unlink(&unlinking, top, "x", false).await });
    until("the answer is on its way", || world.manager.kept_back.load(SeqCst) > before).await;
    client.link(ino, top, b"z").await.unwrap();
    drop(held);
    unlinking.await.unwrap().unwrap();
    assert_eq!(client.getattr(ino).await.unwrap().nlink, 2);
    unlink(&client, top, "y", false).await.unwrap();
    client.fsync(top, false).await.unwrap();
    let left = client.lookup(top, b"z").await.unwrap();
    assert_eq!((left.ino, left.nlink, left.size), (ino, 1, 100));
    client.fsync(ino, false).await.unwrap();
    assert_eq!(world.manager.record(ino).unwrap().0, 100);
    // Now it is.
    unlink(&client, top, "z", false).await.unwrap();
    client.fsync(top, false).await.unwrap();
    assert_eq!(world.manager.told().last().unwrap(), b"-z");
}
