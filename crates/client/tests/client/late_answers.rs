//! Answers that arrive when who asked has gone on: the file was cut, punched, written or removed meanwhile, by himself or by
//! somebody else on the mount. Nothing old may appear, and nothing that was acknowledged may go.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Fallocate, Handle, Privileges, SetAttrs, Tunables};
use wire::mgr::{Change, FileKind, MgrRequest};

/// Nothing happens by age.
fn idle() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, ..small() }
}

async fn made(client: &Client) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    (ino, client.open(ino, RW).await.unwrap())
}

async fn resize(client: &Client, ino: InodeNo, size: usize) {
    let set = SetAttrs { size: Some(size as u64), ..SetAttrs::default() };
    client.setattr(ino, set).await.unwrap();
}

async fn content(client: &Client) -> Vec<u8> {
    let ino = client.lookup(InodeNo::ROOT, b"f").await.unwrap().ino;
    let handle = client.open(ino, RW).await.unwrap();
    client.read(handle, 0, 64 * BLOCK as usize).await.unwrap().to_vec()
}

/// A task that was to take an answer in has its turn.
async fn taken_in() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    CutAndWritten,
    CutAndGrown,
    Punched,
    Overwritten,
    MadeAnew,
}

/// Changes the file; returns what it holds then.
async fn change(client: &Client, ino: InodeNo, handle: Handle, len: usize, how: Meanwhile) -> Vec<u8> {
    match how {
        Meanwhile::CutAndWritten => {
            resize(client, ino, 0).await;
            client.write(handle, 0, &vec![2; len]).await.unwrap();
            vec![2; len]
        }
        Meanwhile::CutAndGrown => {
            resize(client, ino, 0).await;
            resize(client, ino, len).await;
            vec![0; len]
        }
        Meanwhile::Punched => {
            client.fallocate(handle, Fallocate::PunchHole, 0, len as u64, Privileges::Kept).await.unwrap();
            vec![0; len]
        }
        Meanwhile::Overwritten => {
            client.write(handle, 0, &vec![2; len / 2]).await.unwrap();
            [vec![2; len / 2], vec![1; len / 2]].concat()
        }
        Meanwhile::MadeAnew => {
            client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
            let (_, new) = made(client).await;
            client.write(new, 0, &vec![3; len]).await.unwrap();
            vec![3; len]
        }
    }
}

#[tokio::test]
async fn bytes_that_arrive_late_are_nobodys() {
    use Meanwhile::{CutAndGrown, CutAndWritten, MadeAnew, Overwritten, Punched};
    let cases = [CutAndWritten, CutAndGrown, Punched, MadeAnew, Overwritten];
    // On the pdisks, and in the inode, where nothing can be written over without a look at it.
    for (len, how) in
        cases.iter().map(|how| (2 * BLOCK as usize, *how)).chain(cases[..4].iter().map(|how| (3000, *how)))
    {
        let mut world = World::new(2, 1);
        let client = world.mount(idle());
        let (ino, handle) = made(&client).await;
        client.write(handle, 0, &vec![1; len]).await.unwrap();
        client.fsync(ino, false).await.unwrap();
        let client = world.mount(idle());
        let handle = client.open(ino, RW).await.unwrap();
        *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::ReadInline { .. });
        let before = world.blocks.kept_back.load(SeqCst);
        let (bytes, inline) =
            (world.blocks.on_their_way.write().await, world.manager.on_their_way.write().await);
        let reader = tokio::spawn({
            let client = client.clone();
            async move { client.read(handle, 0, len).await.map(drop) }
        });
        let kept = || world.blocks.kept_back.load(SeqCst) + world.manager.kept_back.load(SeqCst);
        until("what was there is on its way", || kept() > before).await;
        // Who asked does not wait for it.
        reader.abort();
        assert!(reader.await.is_err(), "it has arrived");
        let expected = change(&client, ino, handle, len, how).await;
        drop((bytes, inline));
        taken_in().await;
        assert!(content(&client).await == expected, "{how:?}, {len} bytes");
        client.sync_all().await.unwrap();
        assert!(content(&world.mount(idle())).await == expected, "{how:?}, {len} bytes, after a crash");
    }
}

#[tokio::test]
async fn stores_that_are_answered_late_take_nothing_with_them() {
    let commit: fn(&MgrRequest) -> bool =
        |request| matches!(request, MgrRequest::Mutate { change: Change::CommitWrite { .. }, .. });
    for late_commit in [false, true] {
        let mut world = World::new(2, 1);
        let client = world.mount(idle());
        let (ino, handle) = made(&client).await;
        client.write(handle, 0, &vec![1; 3 * BLOCK as usize]).await.unwrap();
        *world.manager.which.lock().unwrap() = if late_commit { commit } else { |_| false };
        let stored = world.blocks.on_their_way.write().await;
        let told = world.manager.on_their_way.write().await;
        let stored = if late_commit {
            drop(stored);
            None
        } else {
            Some(stored)
        };
        let before = (world.blocks.kept_back.load(SeqCst), world.manager.kept_back.load(SeqCst));
        let sync = tokio::spawn({
            let client = client.clone();
            async move { client.fsync(ino, false).await }
        });
        until("it is stored, or told", || match late_commit {
            true => world.manager.kept_back.load(SeqCst) > before.1,
            false => world.blocks.kept_back.load(SeqCst) >= before.0 + 3,
        })
        .await;
        sync.abort();
        assert!(sync.await.is_err(), "it is acknowledged");
        // Who wrote goes on: over it, and behind it.
        client.write(handle, 0, &vec![2; BLOCK as usize]).await.unwrap();
        client.write(handle, 3 * u64::from(BLOCK), &[4; 4096]).await.unwrap();
        drop((stored, told));
        taken_in().await;
        client.fsync(ino, false).await.unwrap();
        resize(&client, ino, 2 * BLOCK as usize).await;
        let expected = [vec![2; BLOCK as usize], vec![1; BLOCK as usize]].concat();
        assert!(content(&client).await == expected);
        assert!(content(&world.mount(idle())).await == expected, "after a crash");
    }
}

#[tokio::test]
async fn names_and_attributes_that_arrive_late_are_not_believed() {
    let mut world = World::new(2, 1);
    let client = world.mount(idle());
    let (old, handle) = made(&client).await;
    client.write(handle, 0, &[1; 4096]).await.unwrap();
    client.fsync(old, false).await.unwrap();
    let client = world.mount(idle());
    *world.manager.which.lock().unwrap() =
        |request| matches!(request, MgrRequest::Lookup { .. } | MgrRequest::GetAttr { .. });
    let late = world.manager.on_their_way.write().await;
    let asks = [0, 1].map(|which| {
        let client = client.clone();
        tokio::spawn(async move {
            match which {
                0 => drop(client.lookup(InodeNo::ROOT, b"f").await),
                _ => drop(client.getattr(old).await),
            }
        })
    });
    until("both are asked", || world.manager.kept_back.load(SeqCst) >= 2).await;
    client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    *world.manager.which.lock().unwrap() = |_| false;
    let (new, handle) = made(&client).await;
    client.write(handle, 0, &[2; 8192]).await.unwrap();
    drop(late);
    for ask in asks {
        ask.await.unwrap();
    }
    let found = client.lookup(InodeNo::ROOT, b"f").await.unwrap();
    assert_eq!((found.ino, found.size), (new, 8192));
    assert_eq!(content(&client).await, [2; 8192]);
}

/// What comes with the answer to a change of names may be of before what was written, set and told meanwhile.
#[tokio::test]
async fn attributes_that_come_with_a_late_answer_are_not_believed() {
    let mut world = World::new(2, 1);
    let client = world.mount(idle());
    let (ino, handle) = made(&client).await;
    *world.manager.which.lock().unwrap() =
        |request| matches!(request, MgrRequest::Mutate { change: Change::Link { .. }, .. });
    let late = world.manager.on_their_way.write().await;
    let link = tokio::spawn({
        let client = client.clone();
        async move { client.link(ino, InodeNo::ROOT, b"g").await }
    });
    until("it is linked", || world.manager.kept_back.load(SeqCst) > 0).await;
    client.write(handle, 0, &[1; 3000]).await.unwrap();
    let set = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    let set = client.setattr(ino, set).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    drop(late);
    link.await.unwrap().unwrap();
    let said = client.getattr(ino).await.unwrap();
    assert_eq!((said.size, said.mode, said.nlink), (3000, 0o600, 2));
    assert_eq!((said.mtime, said.ctime), (set.mtime, set.ctime));
    assert_eq!(said.mtime, world.manager.attr_of(ino).mtime);
}

/// Files that nobody uses are forgotten; what the manager said of them before they were written is not believed then.
#[tokio::test]
async fn attributes_from_before_a_write_are_not_believed_when_the_file_is_forgotten() {
    let asks: [fn(&MgrRequest) -> bool; 3] = [
        |request| matches!(request, MgrRequest::ReadDir { .. }),
        |request| matches!(request, MgrRequest::Lookup { .. }),
        |request| matches!(request, MgrRequest::Mutate { change: Change::Create { .. }, .. }),
    ];
    for (case, ask) in asks.into_iter().enumerate() {
        let mut world = World::new(2, 1);
        let client = world.mount(idle());
        let (ino, _) = made(&client).await;
        let client = world.mount(Tunables { files_to_cache_max: 1, ..idle() });
        let handle = client.open(ino, RW).await.unwrap();
        client.write(handle, 0, &[1; 3000]).await.unwrap();
        *world.manager.which.lock().unwrap() = ask;
        let late = world.manager.on_their_way.write().await;
        let asks = tokio::spawn({
            let client = client.clone();
            async move {
                let dir = InodeNo::ROOT;
                match case {
                    0 => {
                        let listing = client.readdir(dir, 0, 100, true).await.unwrap();
                        listing.entries.into_iter().find_map(|entry| entry.attr)
                    }
                    1 => client.lookup(dir, b"f").await.ok(),
                    _ => Some(
                        client.create(dir, b"f", FileKind::File, 0o644, 0, 0, 0, b"", true).await.unwrap().0,
                    ),
                }
            }
        });
        until("it is asked", || world.manager.kept_back.load(SeqCst) > 0).await;
        *world.manager.which.lock().unwrap() = |_| false;
        client.fsync(ino, false).await.unwrap();
        client.release(handle);
        // What looks for work in the background lets go of it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for at in 0..50 {
            let name = format!("{at}");
            let other =
                client.create(InodeNo::ROOT, name.as_bytes(), FileKind::File, 0o644, 0, 0, 0, b"", false);
            other.await.unwrap();
        }
        drop(late);
        let said = asks.await.unwrap();
        assert!(said.is_none_or(|attr| attr.size == 3000), "case {case}: an old answer");
        assert_eq!(client.getattr(ino).await.unwrap().size, 3000, "case {case}");
        assert_eq!(content(&client).await, [1; 3000], "case {case}");
    }
}

#[tokio::test]
async fn a_file_that_is_removed_before_its_maker_hears_of_it_was_made() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { files_to_cache_max: 1, ..idle() });
    *world.manager.which.lock().unwrap() =
        |request| matches!(request, MgrRequest::Mutate { change: Change::Create { .. }, .. });
    let late = world.manager.on_their_way.write().await;
    let maker = tokio::spawn({
        let client = client.clone();
        async move { client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await }
    });
    until("it is made", || world.manager.kept_back.load(SeqCst) > 0).await;
    *world.manager.which.lock().unwrap() = |_| false;
    client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
    until("it is gone", || world.manager.inodes() == 0).await;
    // What was changed since is forgotten: the answer may be old.
    for at in 0..50 {
        let name = format!("{at}");
        let other = client.create(InodeNo::ROOT, name.as_bytes(), FileKind::File, 0o644, 0, 0, 0, b"", false);
        other.await.unwrap();
    }
    drop(late);
    assert_eq!(maker.await.unwrap().map(|(attr, new)| (attr.nlink, new)), Ok((1, true)));
}

#[tokio::test]
async fn a_cut_that_is_fsynced_beside_a_hole_is_there_after_a_crash() {
    let mut world = World::new(2, 1);
    let client = world.mount(idle());
    let (ino, handle) = made(&client).await;
    client.write(handle, 0, &[1; 3000]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    // Its content is in the inode and not in memory: a cut loads none of it.
    let client = world.mount(idle());
    let handle = client.open(ino, RW).await.unwrap();
    resize(&client, ino, 2000).await;
    *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::ReadInline { .. });
    let content_on_its_way = world.manager.on_their_way.write().await;
    let before = world.manager.kept_back.load(SeqCst);
    let hole = tokio::spawn({
        let client = client.clone();
        async move { client.fallocate(handle, Fallocate::PunchHole, 100, 100, Privileges::Kept).await }
    });
    until("what is around the hole is asked for", || world.manager.kept_back.load(SeqCst) > before).await;
    let sync = tokio::spawn({
        let client = client.clone();
        async move { client.fsync(ino, false).await }
    });
    // Time for who would not wait for the hole.
    taken_in().await;
    drop(content_on_its_way);
    sync.await.unwrap().unwrap();
    assert_eq!(world.manager.record(ino).map(|(size, ..)| size), Some(2000));
    hole.await.unwrap().unwrap();
    let expected = [vec![1; 100], vec![0; 100], vec![1; 1800]].concat();
    assert!(content(&client).await == expected);
}

#[tokio::test]
async fn attributes_that_are_fsynced_beside_a_write_and_a_hole_are_told() {
    let mut world = World::new(2, 1);
    let client = world.mount(idle());
    let (ino, handle) = made(&client).await;
    client.write(handle, 0, &[1; 3000]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    let mode_set = async |mode| {
        let set = SetAttrs { mode: Some(mode), ..SetAttrs::default() };
        client.setattr(ino, set).await.unwrap();
    };
    let syncing = || {
        let client = client.clone();
        tokio::spawn(async move { client.fsync(ino, false).await })
    };
    let turns =
        |count| client.waits().iter().filter(|wait| wait.what == "an inode's commit").count() == count;
    *world.manager.which.lock().unwrap() =
        |request| matches!(request, MgrRequest::Mutate { change: Change::CommitWrite { .. }, .. });
    let told = world.manager.on_their_way.write().await;
    let before = world.manager.kept_back.load(SeqCst);
    mode_set(0o600).await;
    let first = syncing();
    until("the first mode is told", || world.manager.kept_back.load(SeqCst) > before).await;
    mode_set(0o640).await;
    let second = syncing();
    until("the second one has its turn next", || turns(1)).await;
    // By then there is content to be told, and while it is being punched it cannot be.
    client.write(handle, 0, &[2; 3000]).await.unwrap();
    let hole = tokio::spawn({
        let client = client.clone();
        async move { client.fallocate(handle, Fallocate::PunchHole, 0, 3000, Privileges::Kept).await }
    });
    until("the hole follows", || turns(2)).await;
    *world.manager.which.lock().unwrap() = |_| false;
    drop(told);
    assert_eq!(second.await.unwrap(), Ok(()));
    assert_eq!(world.manager.attr_of(ino).mode, 0o640);
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(hole.await.unwrap(), Ok(()));
    assert!(content(&client).await == [0; 3000]);
}
