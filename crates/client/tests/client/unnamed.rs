//! Files made without a name: with their first one they are whole, without one nothing of them is left.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Handle, Tunables};
use wire::mgr::{Change, FileKind, MgrRequest};

const ROOT: InodeNo = InodeNo::ROOT;
/// One fits into the inode.
const SIZES: [usize; 2] = [3_000, 3 * BLOCK as usize + 77];

/// Nothing happens by age. What waits for an answer that does not come fails after some seconds; all else must not take so long.
fn ageless() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, deadline: Duration::from_secs(5), ..small() }
}

async fn unnamed(client: &Client) -> (InodeNo, Handle) {
    let (attr, handle) = client.create_unnamed(ROOT, 0o600, 1, 2, true, RW).await.unwrap();
    assert_eq!((attr.kind, attr.nlink, attr.mode, attr.uid, attr.gid), (FileKind::File, 0, 0o600, 1, 2));
    (attr.ino, handle)
}

/// What is found under a name, also after a crash.
async fn found(client: &Client, name: &[u8]) -> Option<Vec<u8>> {
    let ino = client.lookup(ROOT, name).await.ok()?.ino;
    let handle = client.open(ino, RW).await.unwrap();
    let read = client.read(handle, 0, 64 * BLOCK as usize).await.unwrap().to_vec();
    client.release(handle);
    Some(read)
}

/// Waits until it has left nothing.
async fn gone(world: &World, ino: InodeNo) {
    until("nothing is left of it", || world.manager.record(ino).is_none()).await;
    world.blocks.reap(true);
    assert!(!world.blocks.exists_any(ino), "nor on the pdisks");
}

#[tokio::test]
async fn closed_without_a_name_it_leaves_nothing() {
    for (size, synced) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = unnamed(&client).await;
        client.write(handle, 0, &vec![7; size]).await.unwrap();
        if synced {
            client.fsync_handle(handle, false).await.unwrap();
        }
        assert_eq!(client.read(handle, 0, 2 * size).await.unwrap().to_vec(), vec![7; size]);
        let attr = client.getattr(ino).await.unwrap();
        assert_eq!((attr.size, attr.nlink), (size as u64, 0));
        client.release(handle);
        gone(&world, ino).await;
        client.sync_all().await.unwrap();
        assert_eq!(world.manager.inodes(), 0);
    }
}

/// As it was synced it is found after a crash, if it has a name; else nothing is.
#[tokio::test]
async fn after_a_crash_it_is_whole_or_not_there() {
    for size in SIZES {
        for (synced, named, closed) in
            [(true, true, false), (true, true, true), (false, true, false), (true, false, false)]
        {
            let mut world = World::new(2, 1);
            let client = world.mount(ageless());
            let (ino, handle) = unnamed(&client).await;
            client.write(handle, 0, &vec![7; size]).await.unwrap();
            if synced {
                client.fsync_handle(handle, false).await.unwrap();
            }
            if named {
                let attr = client.link(ino, ROOT, b"f").await.unwrap();
                assert_eq!((attr.nlink, attr.size), (1, size as u64));
            }
            if closed {
                client.release(handle);
            }
            if !synced {
                client.fsync(ino, false).await.unwrap();
            }
            drop(client);
            let after = found(&world.mount(ageless()), b"f").await;
            assert!(after == named.then(|| vec![7; size]), "{size} bytes, {synced} {named} {closed}");
            assert_eq!(world.manager.inodes(), usize::from(named));
        }
    }
}

/// What was written before it had a name is not given up when it is closed with one.
#[tokio::test]
async fn with_its_first_name_it_is_a_file_as_any() {
    for size in SIZES {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = unnamed(&client).await;
        client.write(handle, 0, &vec![7; size]).await.unwrap();
        client.create(ROOT, b"taken", FileKind::File, 0o644, 0, 0, 0, b"", false).await.unwrap();
        assert_eq!(client.link(ino, ROOT, b"taken").await.map(|_| ()), Err(Errno(libc::EEXIST)));
        client.link(ino, ROOT, b"f").await.unwrap();
        assert_eq!(client.link(ino, ROOT, b"g").await.unwrap().nlink, 2);
        client.release(handle);
        client.sync_all().await.unwrap();
        let next = world.mount(ageless());
        assert!(found(&next, b"g").await == Some(vec![7; size]));
        // Its last name goes while it is open: nobody makes another.
        let handle = next.open(ino, RW).await.unwrap();
        next.unlink(ROOT, b"g", false).await.unwrap();
        next.unlink(ROOT, b"f", false).await.unwrap();
        assert_eq!(next.link(ino, ROOT, b"h").await.map(|_| ()), Err(Errno::ENOENT));
        next.release(handle);
        gone(&world, ino).await;
    }
}

#[tokio::test]
async fn nobody_names_what_is_not_to_be_named_or_has_lost_its_name() {
    let mut world = World::new(2, 1);
    let client = world.mount(ageless());
    let (attr, handle) = client.create_unnamed(ROOT, 0o600, 1, 2, false, RW).await.unwrap();
    assert_eq!(client.link(attr.ino, ROOT, b"f").await.map(|_| ()), Err(Errno::ENOENT));
    client.release(handle);
    gone(&world, attr.ino).await;
    let (ino, handle) = unnamed(&client).await;
    client.link(ino, ROOT, b"f").await.unwrap();
    client.unlink(ROOT, b"f", false).await.unwrap();
    assert_eq!(client.getattr(ino).await.unwrap().nlink, 0);
    assert_eq!(client.link(ino, ROOT, b"f").await.map(|_| ()), Err(Errno::ENOENT));
    client.release(handle);
    gone(&world, ino).await;
}

/// Answers that are lost before and after what they answer was carried out.
#[tokio::test]
async fn each_is_done_once_though_answers_are_lost() {
    for lost in [1, 2, 3] {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        world.manager.lose.store(lost, SeqCst);
        let (ino, handle) = unnamed(&client).await;
        assert_eq!(world.manager.inodes(), 1, "lost {lost}");
        client.write(handle, 0, b"text").await.unwrap();
        world.manager.lose.store(lost, SeqCst);
        assert_eq!(client.link(ino, ROOT, b"f").await.unwrap().nlink, 1, "lost {lost}");
        client.release(handle);
        client.sync_all().await.unwrap();
        assert_eq!(found(&world.mount(ageless()), b"f").await.as_deref(), Some(&b"text"[..]));
    }
}

/// Whoever made it has given up waiting: it is nobody's.
#[tokio::test]
async fn one_that_nobody_waits_for_any_more_is_given_up() {
    let mut world = World::new(2, 1);
    let client = world.mount(ageless());
    *world.manager.which.lock().unwrap() =
        |asked| matches!(asked, MgrRequest::Mutate { change: Change::CreateUnnamed { .. }, .. });
    let answer = world.manager.on_their_way.write().await;
    let made = client.create_unnamed(ROOT, 0o600, 1, 2, true, RW).await;
    assert_eq!(made.map(|_| ()), Err(Errno::EIO));
    assert_eq!(world.manager.inodes(), 1);
    drop(answer);
    until("it is given up", || world.manager.inodes() == 0).await;
}

/// It is closed while nobody knows whether it has its name: that is settled first, and what was written is not lost.
#[tokio::test]
async fn what_is_closed_while_it_gets_its_name_keeps_its_content() {
    for size in SIZES {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = unnamed(&client).await;
        client.write(handle, 0, &vec![7; size]).await.unwrap();
        *world.manager.which.lock().unwrap() =
            |asked| matches!(asked, MgrRequest::Mutate { change: Change::LinkUnnamed { .. }, .. });
        let answer = world.manager.on_their_way.write().await;
        assert_eq!(client.link(ino, ROOT, b"f").await.map(|_| ()), Err(Errno::EIO));
        client.release(handle);
        drop(answer);
        assert!(found(&client, b"f").await == Some(vec![7; size]), "{size} bytes");
        client.sync_all().await.unwrap();
        assert!(
            found(&world.mount(ageless()), b"f").await == Some(vec![7; size]),
            "{size} bytes, after a crash"
        );
    }
}

/// It is not sent what it does not know; all else goes on.
#[tokio::test]
async fn a_manager_that_is_too_old_is_not_asked() {
    let mut world = World::new(2, 1);
    let client = world.mount(ageless());
    world.manager.speaks.store(wire::version::PROTOCOL_UNNAMED - 1, SeqCst);
    let made = client.create_unnamed(ROOT, 0o600, 1, 2, true, RW).await;
    assert_eq!(made.map(|_| ()), Err(Errno::EOPNOTSUPP));
    client.create(ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await.unwrap();
    world.manager.speaks.store(wire::version::PROTOCOL_UNNAMED, SeqCst);
    let (ino, handle) = unnamed(&client).await;
    client.release(handle);
    gone(&world, ino).await;
}
