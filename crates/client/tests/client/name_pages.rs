//! Many names of a directory are asked for one after the other: it is listed a page at a time beside, and what the mount does
//! to its names meanwhile counts.
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{World, small, until};
use base::InodeNo;
use client::{Client, Errno, SetAttrs};
use wire::mgr::{FileKind, MgrRequest};

const FILES: u64 = 100;

fn name(at: u64) -> Vec<u8> {
    format!("file {at:03}").into_bytes()
}

async fn make(client: &Client, name: &[u8]) -> InodeNo {
    let made = client.create(InodeNo::ROOT, name, FileKind::File, 0o644, 0, 0, 0, b"", false).await;
    made.unwrap().0.ino
}

/// A client that knows nothing yet of some files.
async fn anew(world: &mut World) -> (Client, Vec<InodeNo>) {
    let client = world.mount(small());
    let mut inos = Vec::new();
    for at in 0..FILES {
        inos.push(make(&client, &name(at)).await);
    }
    client.sync_all().await.unwrap();
    let client = world.mount(small());
    client.getattr(InodeNo::ROOT).await.unwrap();
    (client, inos)
}

#[tokio::test]
async fn who_looks_at_all_asks_for_few() {
    let mut world = World::new(2, 1);
    let (client, inos) = anew(&mut world).await;
    for most in [FILES / 4, 0] {
        let before = world.manager.calls.load(SeqCst);
        for at in 0..FILES {
            assert_eq!(client.lookup(InodeNo::ROOT, &name(at)).await.unwrap().ino, inos[at as usize]);
        }
        assert_eq!(client.lookup(InodeNo::ROOT, b"none").await, Err(Errno::ENOENT));
        let asked = world.manager.calls.load(SeqCst) - before;
        assert!(asked <= most, "{asked} questions where {most} are enough");
    }
    client.link(inos[1], InodeNo::ROOT, b"linked").await.unwrap();
    client.unlink(InodeNo::ROOT, &name(2), false).await.unwrap();
    let made = make(&client, b"new").await;
    for (name, leads) in [
        (name(1), Ok(inos[1])),
        (name(2), Err(Errno::ENOENT)),
        (b"linked".to_vec(), Ok(inos[1])),
        (b"new".to_vec(), Ok(made)),
    ] {
        assert_eq!(client.lookup(InodeNo::ROOT, &name).await.map(|attr| attr.ino), leads);
    }
}

#[tokio::test]
async fn a_page_that_arrives_late_is_not_believed() {
    let mut world = World::new(2, 1);
    let (client, inos) = anew(&mut world).await;
    *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::ReadDir { .. });
    let page = world.manager.on_their_way.write().await;
    let looks = tokio::spawn({
        let client = client.clone();
        async move {
            for at in 0..FILES / 2 {
                client.lookup(InodeNo::ROOT, &name(at)).await.unwrap();
            }
        }
    });
    until("a page is on its way", || world.manager.kept_back.load(SeqCst) > 0).await;
    let (removed, replaced) = (name(FILES - 1), name(FILES - 2));
    client.link(inos[0], InodeNo::ROOT, b"linked").await.unwrap();
    client.unlink(InodeNo::ROOT, &removed, false).await.unwrap();
    client.unlink(InodeNo::ROOT, &replaced, false).await.unwrap();
    let new = make(&client, &replaced).await;
    drop(page);
    looks.await.unwrap();
    for round in 0..2 {
        for (name, leads) in [
            (removed.clone(), Err(Errno::ENOENT)),
            (replaced.clone(), Ok(new)),
            (b"linked".to_vec(), Ok(inos[0])),
        ] {
            let found = client.lookup(InodeNo::ROOT, &name).await.map(|attr| attr.ino);
            assert_eq!(found, leads, "{}, round {round}", String::from_utf8_lossy(&name));
        }
        for at in 0..FILES - 2 {
            assert_eq!(client.lookup(InodeNo::ROOT, &name(at)).await.unwrap().ino, inos[at as usize]);
        }
    }
}

#[tokio::test]
async fn a_listing_is_asked_for_once_until_a_name_changes() {
    let mut world = World::new(2, 1);
    let (client, inos) = anew(&mut world).await;
    *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::ReadDir { .. });
    let asked = || world.manager.kept_back.load(SeqCst);
    let list = async |cookie, limit| client.readdir(InodeNo::ROOT, cookie, limit, true).await.unwrap();
    let whole = list(0, 4096).await;
    assert!((whole.entries.len(), whole.end, asked()) == (100, true, 1), "{} questions", asked());
    let (some, rest) = (list(0, 10).await, list(whole.entries[9].cookie, 4096).await);
    assert!(!some.end && some.entries == whole.entries[..10]);
    assert!(rest.end && rest.entries == whole.entries[10..] && rest.parent == whole.parent);
    let nothing = list(whole.entries[99].cookie, 4096).await;
    assert!((nothing.entries.len(), nothing.end, asked()) == (0, true, 1), "{} questions", asked());

    let set = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    client.setattr(inos[5], set).await.unwrap();
    let changed = list(0, 4096).await;
    let mode =
        changed.entries.iter().find(|entry| entry.ino == inos[5]).and_then(|entry| entry.attr.as_ref());
    assert!(mode.unwrap().mode & 0o777 == 0o600 && asked() == 1, "attributes are those of now");

    client.unlink(InodeNo::ROOT, &name(2), false).await.unwrap();
    let fewer = list(0, 4096).await;
    assert!(fewer.entries.len() == 99 && asked() == 2 && fewer.entries.iter().all(|e| e.name != name(2)));
    make(&client, b"new").await;
    assert_eq!((list(0, 4096).await.entries.len(), asked()), (100, 3));
    client.rename(InodeNo::ROOT, b"new", InodeNo::ROOT, b"newer", false, false).await.unwrap();
    assert!(list(0, 4096).await.entries.iter().any(|entry| entry.name == b"newer") && asked() == 4);
}

/// One that was on its way while a name was changed shows what was before or after; who asks next sees what is.
#[tokio::test]
async fn a_listing_that_arrives_late_is_not_kept() {
    let mut world = World::new(2, 1);
    let (client, _) = anew(&mut world).await;
    *world.manager.which.lock().unwrap() = |request| matches!(request, MgrRequest::ReadDir { .. });
    let page = world.manager.on_their_way.write().await;
    let listing = tokio::spawn({
        let client = client.clone();
        async move { client.readdir(InodeNo::ROOT, 0, 4096, true).await.unwrap() }
    });
    until("a listing is on its way", || world.manager.kept_back.load(SeqCst) > 0).await;
    client.unlink(InodeNo::ROOT, &name(2), false).await.unwrap();
    drop(page);
    listing.await.unwrap();
    let now = client.readdir(InodeNo::ROOT, 0, 4096, true).await.unwrap();
    assert!(now.entries.len() == 99 && now.entries.iter().all(|entry| entry.name != name(2)));
}
