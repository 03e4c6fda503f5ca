//! Changes at the manager whose answers do not come: nothing is believed of what they may have changed, and nothing
//! that was acknowledged is lost by them.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, Privileges, SetAttrs, Tunables};
use tokio::task::JoinSet;
use wire::mgr::FileKind;

const BLOCK64: u64 = BLOCK as u64;
/// More than any test lasts.
const FOR_LONG: u64 = 1_000_001;

/// What waits for an answer that does not come fails after this. Everything else takes milliseconds, and must not pass it on a
/// machine that does forty other things: so it is long, and what waits for it waits at the same time.
const DEADLINE: Duration = Duration::from_secs(12);

/// Nothing happens by age.
fn ageless() -> Tunables {
    let never = Duration::from_secs(3600);
    Tunables { writeback_age: never, commit_age: never, deadline: DEADLINE, ..small() }
}

/// All cases at once; fails with the first that does.
async fn at_once<F: Future<Output = ()> + Send + 'static>(cases: impl IntoIterator<Item = F>) {
    let mut running: JoinSet<()> = cases.into_iter().collect();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

async fn stored(client: &Client, blocks: u64) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, b"f", FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    let handle = client.open(ino, RW).await.unwrap();
    for block in 0..blocks {
        client.write(handle, block * BLOCK64, &vec![1; BLOCK as usize]).await.unwrap();
    }
    client.fsync(ino, false).await.unwrap();
    (ino, handle)
}

async fn truncate(client: &Client, ino: InodeNo, size: u64) -> Result<u64, Errno> {
    let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
    client.setattr(ino, set).await.map(|attr| attr.size)
}

/// What another mount finds of the file after a crash of this one.
async fn found(world: &mut World, ino: InodeNo) -> Vec<u8> {
    let client = world.mount(ageless());
    let handle = client.open(ino, RW).await.unwrap();
    client.read(handle, 0, 64 * BLOCK as usize).await.unwrap().to_vec()
}

/// A program that goes on after an error of truncate, and fsyncs what it writes then.
async fn goes_on(client: &Client, ino: InodeNo, handle: Handle) {
    client.write(handle, 3 * BLOCK64, &vec![2; BLOCK as usize]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
}

#[tokio::test]
async fn what_is_fsynced_after_a_truncate_without_an_answer_is_there() {
    at_once([0, 1].map(|applied| async move {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = stored(&client, 4).await;
        world.manager.lose.store(FOR_LONG - applied, SeqCst);
        assert_eq!(truncate(&client, ino, BLOCK64).await, Err(Errno::EIO));
        // Nothing is acknowledged, and nothing is read, that the answer may make untrue.
        let (written, synced, read) = tokio::join!(
            client.write(handle, 3 * BLOCK64, &[2; 4096]),
            client.fsync(ino, false),
            client.read(handle, 2 * BLOCK64, 4096)
        );
        assert_eq!(written, Err(Errno::EIO));
        assert_eq!(synced, Err(Errno::EIO));
        assert_eq!(read.map(|_| ()), Err(Errno::EIO));
        assert!(client.try_read_cached(handle, 2 * BLOCK64, 4096).is_none());
        world.manager.lose.store(0, SeqCst);
        goes_on(&client, ino, handle).await;
        assert_eq!(client.getattr(ino).await.unwrap().size, 4 * BLOCK64);
        let got = found(&mut world, ino).await;
        let expected =
            [vec![1; BLOCK as usize], vec![0; 2 * BLOCK as usize], vec![2; BLOCK as usize]].concat();
        assert!(got == expected, "{} bytes, applied {applied}", got.len());
    }))
    .await;
}

#[tokio::test]
async fn what_is_fsynced_after_a_punch_without_an_answer_is_there() {
    at_once([1, 2, 3, FOR_LONG, FOR_LONG - 1].map(|lost| async move {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = stored(&client, 4).await;
        world.manager.lose.store(lost, SeqCst);
        let punched =
            client.fallocate(handle, Fallocate::PunchHole, BLOCK64, 3 * BLOCK64, Privileges::Kept).await;
        if lost > 3 {
            assert_eq!(punched, Err(Errno::EIO));
            assert_eq!(client.fsync(ino, false).await, Err(Errno::EIO));
        }
        world.manager.lose.store(0, SeqCst);
        goes_on(&client, ino, handle).await;
        let got = found(&mut world, ino).await;
        let expected =
            [vec![1; BLOCK as usize], vec![0; 2 * BLOCK as usize], vec![2; BLOCK as usize]].concat();
        assert!(got == expected, "{} bytes, lost {lost}", got.len());
    }))
    .await;
}

#[tokio::test]
async fn a_truncate_whose_caller_goes_away_is_carried_to_its_end() {
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { deadline: Duration::from_secs(60), ..ageless() });
    let (ino, handle) = stored(&client, 4).await;
    world.manager.lose.store(FOR_LONG, SeqCst);
    let asked = || world.manager.lose.load(SeqCst) < FOR_LONG;
    tokio::select! {
        cut = truncate(&client, ino, BLOCK64) => panic!("answered: {cut:?}"),
        () = until("the manager is asked", asked) => {}
    }
    world.manager.lose.store(0, SeqCst);
    goes_on(&client, ino, handle).await;
    let got = found(&mut world, ino).await;
    assert!(got[BLOCK as usize..3 * BLOCK as usize].iter().all(|&byte| byte == 0));
    assert!(got[3 * BLOCK as usize..] == vec![2; BLOCK as usize], "{} bytes", got.len());
}

#[tokio::test]
async fn an_older_commit_that_was_not_answered_does_not_overtake_a_newer_one() {
    at_once([FOR_LONG, FOR_LONG - 1].map(|lost| async move {
        let mut world = World::new(2, 1);
        let client = world.mount(ageless());
        let (ino, handle) = stored(&client, 1).await;
        client.write(handle, BLOCK64, &[3; 4096]).await.unwrap();
        world.manager.lose.store(lost, SeqCst);
        assert_eq!(client.fsync(ino, false).await, Err(Errno::EIO));
        client.write(handle, BLOCK64 + 4096, &[4; 4096]).await.unwrap();
        assert_eq!(client.fsync(ino, false).await, Err(Errno::EIO), "the manager does not answer");
        world.manager.lose.store(0, SeqCst);
        client.fsync(ino, false).await.unwrap();
        assert_eq!(found(&mut world, ino).await[BLOCK as usize..], [[3; 4096], [4; 4096]].concat());
    }))
    .await;
}

#[tokio::test]
async fn what_follows_an_unanswered_unlink_comes_after_it() {
    let mut world = World::new(2, 1);
    let client = world.mount(ageless());
    let (old, handle) = stored(&client, 2).await;
    // It is not applied until the next try, which comes when the program has gone on.
    world.manager.lose.store(FOR_LONG - 1, SeqCst);
    assert_eq!(client.unlink(InodeNo::ROOT, b"f", false).await, Err(Errno::EIO));
    let make = || client.create(InodeNo::ROOT, b"f", FileKind::File, 0o600, 0, 0, 0, b"", false);
    assert_eq!(make().await.map(drop), Err(Errno::EIO), "it waits for the unlink");
    world.manager.lose.store(0, SeqCst);
    let (made, new) = make().await.unwrap();
    assert!(new && made.ino != old);
    assert_eq!(client.lookup(InodeNo::ROOT, b"f").await.unwrap().ino, made.ino);
    // The file that lost its name is given up with its last handle, as if the answer had come at once.
    client.release(handle);
    until("the old file is gone", || world.manager.record(old).is_none()).await;
}
