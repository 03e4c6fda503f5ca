//! A session that has ended: nothing of it can succeed any more, so nobody waits in it.
use std::{
    sync::atomic::Ordering::SeqCst,
    time::{Duration, Instant},
};

use crate::support::{BLOCK, RW, World, small, until};
use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, Privileges, SetAttrs, Tunables};
use wire::mgr::FileKind;

/// What calls would wait for otherwise.
const DEADLINE: Duration = Duration::from_secs(600);
/// What they may take, on a machine that has other things to do.
const AT_ONCE: Duration = Duration::from_secs(60);

fn patient() -> Tunables {
    Tunables { deadline: DEADLINE, ..small() }
}

async fn made(client: &Client, name: &[u8]) -> (InodeNo, Handle) {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    let ino = made.unwrap().0.ino;
    (ino, client.open(ino, RW).await.unwrap())
}

/// The manager says that it does not know the session; a call hears it.
async fn end(world: &World, client: &Client) {
    world.manager.fence_below(u64::MAX);
    assert_eq!(client.statfs().await.map(drop), Err(Errno::EIO));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_end_with_their_session() {
    let mut world = World::new(2, 1);
    let client = world.mount(patient());
    let (ino, handle) = made(&client, b"f").await;
    let (other, other_handle) = made(&client, b"g").await;
    client.write(handle, 0, &vec![1; 2 * BLOCK as usize]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    // Pdisks that do not answer any more, and a manager that answers too late.
    world.blocks.stuck.store(true, SeqCst);
    let _late = world.manager.links_on_their_way.write().await;
    let written = world.blocks.writes.load(SeqCst);
    client.write(handle, 0, &vec![2; 2 * BLOCK as usize]).await.unwrap();
    client.write(other_handle, 0, &vec![2; 2 * BLOCK as usize]).await.unwrap();
    // Whoever cuts or punches waits for what is in flight.
    until("all is in flight", || world.blocks.writes.load(SeqCst) >= written + 4).await;
    macro_rules! calls {
        ($($what:literal: $call:expr;)*) => {{
            let mut calls = Vec::new();
            $({
                let client = client.clone();
                let task = tokio::spawn(async move { let client = &client; $call(client).await });
                calls.push(($what, task));
            })*
            calls
        }};
    }
    async fn empty<T>(call: impl Future<Output = Result<T, Errno>>) -> Result<(), Errno> {
        call.await.map(drop)
    }
    let cut = SetAttrs { size: Some(1), ..SetAttrs::default() };
    let calls = calls! {
        "fsync": async |c: &Client| empty(c.fsync(ino, false)).await;
        "truncate": async |c: &Client| empty(c.setattr(ino, cut)).await;
        "punch": async |c: &Client| empty(c.fallocate(other_handle, Fallocate::PunchHole, 0, 4096, Privileges::Kept)).await;
        "link": async |c: &Client| empty(c.link(other, InodeNo::ROOT, b"h")).await;
        "much to write": async |c: &Client| {
            // More than may be dirty.
            for block in 0..64 {
                c.write(handle, block * u64::from(BLOCK), &vec![3; BLOCK as usize]).await?;
            }
            Ok(())
        };
    };
    until("they wait", || !client.waits().is_empty()).await;
    assert!(calls.iter().all(|(_, task)| !task.is_finished()));
    let ended = Instant::now();
    end(&world, &client).await;
    for (what, task) in calls {
        let answer = tokio::time::timeout_at((ended + AT_ONCE).into(), task).await;
        assert_eq!(answer.unwrap_or_else(|_| panic!("{what} waits on")).unwrap(), Err(Errno::EIO), "{what}");
    }
    let over = tokio::time::timeout(AT_ONCE, client.shutdown(Instant::now() + DEADLINE)).await;
    assert_eq!(over.expect("the end of the mount waits on"), Err(Errno::EIO), "what was written is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_says_that_what_was_written_is_lost_with_its_session() {
    let mut world = World::new(2, 1);
    let client = world.mount(patient());
    let (ino, stored) = made(&client, b"f").await;
    client.write(stored, 0, &[1; 3000]).await.unwrap();
    client.fsync(ino, false).await.unwrap();
    let (_, lost) = made(&client, b"g").await;
    world.blocks.stuck.store(true, SeqCst);
    client.write(lost, 0, &vec![2; BLOCK as usize]).await.unwrap();
    assert_eq!(client.flush(lost).await, Ok(()));
    end(&world, &client).await;
    assert_eq!((client.flush(stored).await, client.flush(lost).await), (Ok(()), Err(Errno::EIO)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmount_under_way_ends_with_its_session() {
    let mut world = World::new(2, 1);
    let client = world.mount(patient());
    let (_, handle) = made(&client, b"f").await;
    world.blocks.stuck.store(true, SeqCst);
    client.write(handle, 0, &vec![2; 2 * BLOCK as usize]).await.unwrap();
    let leaving = client.clone();
    let end_of_mount = tokio::spawn(async move { leaving.shutdown(Instant::now() + DEADLINE).await });
    until("it writes", || !client.waits().is_empty()).await;
    end(&world, &client).await;
    let over = tokio::time::timeout(AT_ONCE, end_of_mount).await.expect("it waits on");
    assert_eq!(over.unwrap(), Err(Errno::EIO));
}

/// Its own bound is longer than that of what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmount_goes_on_while_no_manager_answers() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut world = World::new(2, 1);
    let client = world.mount(Tunables { deadline: PATIENCE, ..small() });
    let (ino, handle) = made(&client, b"f").await;
    world.manager.lose.store(u64::MAX, SeqCst);
    client.write(handle, 0, &vec![2; 2 * BLOCK as usize]).await.unwrap();
    client.release(handle);
    let leaving = client.clone();
    let end_of_mount = tokio::spawn(async move { leaving.shutdown(Instant::now() + 10 * DEADLINE).await });
    tokio::time::sleep(PATIENCE + Duration::from_secs(2)).await;
    assert!(!end_of_mount.is_finished(), "it has given up");
    world.manager.lose.store(0, SeqCst);
    let over = tokio::time::timeout(DEADLINE, end_of_mount).await.expect("it waits on");
    assert_eq!(over.unwrap(), Ok(()));
    assert_eq!(world.manager.record(ino).unwrap().0, 2 * u64::from(BLOCK), "the manager has all of it");
}
