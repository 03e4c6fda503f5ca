//! What the manager wants back, or gives, while something else is under way.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    RW,
    link::{NoServers, Recalls, SmallManager, mount_small},
    until,
};
use base::{Grant, InodeNo, PoolId};
use client::{Client, Errno, Fallocate, OpenFlags, Privileges};
use tokio::sync::Semaphore;
use wire::{
    mgr::{Attr, Change, FileKind, MgrError, MgrReply, MgrRequest},
    token::{Blocks, Recall, Span, Token, TokenMode, Use},
};

const INO: InodeNo = InodeNo(7);
const OTHER: InodeNo = InodeNo(8);
const SERIAL: Grant = Grant(2);

/// A manager with one file, which has its content in the inode, and another one like it.
struct Manager {
    /// What is granted.
    token: Token,
    /// Nobody may ask for the file any more.
    out_of_reach: AtomicBool,
    /// Others have it open.
    in_use: AtomicBool,
    /// How often it was to be created: it was there, and is gone with the first answer.
    created: AtomicU32,
    /// How many more names it has.
    names: AtomicU32,
    /// The other one is recalled while its attributes are asked for next.
    recalls_other: AtomicBool,
    /// Leave to answer the first link that is made.
    first_link: Semaphore,
    /// That the content is asked for, and leave to answer that.
    asked: AtomicBool,
    content: Semaphore,
    recalls: Recalls,
    /// What it was told, in this order.
    told: Mutex<Vec<&'static str>>,
}

impl Manager {
    fn new(token: Token) -> Arc<Manager> {
        let (out_of_reach, in_use, created, asked) = Default::default();
        let (names, recalls_other, recalls, told) = Default::default();
        let [content, first_link] = [(); 2].map(|()| Semaphore::new(0));
        Arc::new(Manager {
            token,
            out_of_reach,
            in_use,
            created,
            names,
            recalls_other,
            first_link,
            asked,
            content,
            recalls,
            told,
        })
    }

    async fn mount(self: &Arc<Manager>) -> Client {
        mount_small(self, Arc::new(NoServers)).await
    }

    fn recall(&self, recall: Recall) {
        self.recalls.push(recall);
    }

    fn told(&self) -> Vec<&'static str> {
        self.told.lock().unwrap().clone()
    }

    /// Its attributes now.
    fn file(&self, ino: InodeNo) -> Box<Attr> {
        Box::new(Attr { ino, nlink: 1 + self.names.load(SeqCst), ..*file() })
    }

    fn change(&self, change: &Change) -> MgrReply {
        let told = |what| self.told.lock().unwrap().push(what);
        let removed = Box::new(Attr { nlink: 0, ..*file() });
        match change {
            Change::CommitWrite { .. } => {
                told("what is written");
                MgrReply::Attr(file())
            }
            Change::Create { .. } => match self.created.fetch_add(1, SeqCst) {
                0 => MgrReply::Created { attr: file(), new: false },
                _ => MgrReply::Created { attr: self.file(OTHER), new: true },
            },
            Change::Unlink { .. } if self.in_use.load(SeqCst) => MgrReply::UnlinkedInUse(removed),
            Change::Unlink { .. } => MgrReply::Unlinked { attr: Some(removed) },
            Change::Rename { .. } => {
                told("that a name is moved");
                MgrReply::Done
            }
            Change::Forget { .. } => {
                told("that it may go");
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
    }
}

fn file() -> Box<Attr> {
    let (pool, block_size, nlink) = (PoolId(1), 1 << 20, 1);
    Box::new(Attr {
        ino: INO,
        size: 3000,
        stored: 3000,
        pool,
        block_size,
        nlink,
        inline: true,
        ..Attr::default()
    })
}

impl SmallManager for Manager {
    fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        match request {
            MgrRequest::GetAttr { ino: INO } | MgrRequest::Acquire { ino: INO, .. }
                if self.created.load(SeqCst) > 0 =>
            {
                MgrReply::Error(MgrError::Errno(libc::ENOENT))
            }
            MgrRequest::GetAttr { .. } if self.out_of_reach.load(SeqCst) => {
                MgrReply::Error(MgrError::Errno(libc::EACCES))
            }
            MgrRequest::GetAttr { ino } => {
                if self.recalls_other.swap(false, SeqCst) {
                    self.recall(Recall::Token(Token::new(OTHER, TokenMode::Open, SERIAL)));
                    until("the other one is given up", || !self.told().is_empty()).await;
                }
                MgrReply::Attr(self.file(ino))
            }
            MgrRequest::Lookup { name, .. } if name == b"other" => MgrReply::Attr(self.file(OTHER)),
            MgrRequest::Lookup { .. } => MgrReply::Attr(file()),
            MgrRequest::Acquire { ino, .. } => {
                let token = Token { ino, ..self.token.clone() };
                MgrReply::Token { token, resolve: false, attr: Some(self.file(ino)), empty: false }
            }
            MgrRequest::ReadInline { .. } => {
                self.asked.store(true, SeqCst);
                self.content.acquire().await.unwrap().forget();
                MgrReply::Bytes(vec![1; file().size as usize])
            }
            MgrRequest::Reserve { bytes, .. } => MgrReply::Reserved { bytes },
            MgrRequest::Mutate { change: Change::Link { ino, .. }, .. } => {
                let links = self.names.fetch_add(1, SeqCst);
                let attr = self.file(ino);
                if links == 0 {
                    self.first_link.acquire().await.unwrap().forget();
                }
                MgrReply::Attr(attr)
            }
            MgrRequest::Mutate { change, .. } => self.change(&change),
            MgrRequest::MutateMany { changes } => {
                MgrReply::Many(changes.iter().map(|(_, change)| Ok(self.change(change))).collect())
            }
            MgrRequest::Release { .. } => {
                self.told.lock().unwrap().push("that the token is given up");
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
    }
}

#[tokio::test]
async fn a_hole_whose_waiter_has_gone_is_punched_before_the_file_is_given_up() {
    let manager = Manager::new(Token::new(INO, TokenMode::Write, SERIAL));
    let client = manager.mount().await;
    let handle = client.open(INO, RW).await.unwrap();
    tokio::select! {
        punched = client.fallocate(handle, Fallocate::PunchHole, 100, 100, Privileges::Kept) => {
            panic!("punched: {punched:?}")
        }
        () = until("what is around the hole is asked for", || manager.asked.load(SeqCst)) => {}
    }
    manager.recall(Recall::Token(Token::new(INO, TokenMode::Open, SERIAL)));
    // Time for who would give it up now. Another session may change the size from then on.
    for _ in 0..100 {
        if manager.told().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    manager.content.add_permits(1);
    let given_up = "that the token is given up";
    until(given_up, || manager.told().contains(&given_up)).await;
    assert_eq!(manager.told(), ["what is written", given_up]);
}

/// A mount that is bound to a subtree holds a part of a file, which is then moved out of that with the directory it is in; then the
/// others go.
#[tokio::test]
async fn a_file_out_of_reach_keeps_nobody_from_hearing_what_the_manager_wants() {
    let part = Blocks::of(Span { first: 0, end: 1 }, Use::Read);
    let manager = Manager::new(Token { blocks: part, ..Token::new(INO, TokenMode::Part, SERIAL) });
    let client = manager.mount().await;
    let handle = client.open(INO, OpenFlags { write: false, ..RW }).await.unwrap();
    manager.out_of_reach.store(true, SeqCst);
    until("it listens", || manager.recalls.asked() == 1).await;
    manager.recall(Recall::Whole(Grant(3)));
    until("it listens again", || manager.recalls.asked() == 2).await;
    assert_eq!(client.read(handle, 0, 100).await.map(drop), Err(Errno(libc::EACCES)));
}

#[tokio::test]
async fn what_is_dirty_of_a_removed_file_is_told_only_where_others_have_it_open() {
    for in_use in [false, true] {
        let manager = Manager::new(Token::new(INO, TokenMode::Write, SERIAL));
        manager.in_use.store(in_use, SeqCst);
        let client = manager.mount().await;
        let handle = client.open(INO, RW).await.unwrap();
        client.write(handle, 0, &[2; 4096]).await.unwrap();
        client.unlink(InodeNo::ROOT, b"f", false).await.unwrap();
        client.release(handle);
        let gone = "that it may go";
        until(gone, || manager.told().contains(&gone)).await;
        let told = manager.told();
        let written = told.iter().position(|told| *told == "what is written");
        assert_eq!(written.is_some(), in_use, "{told:?}");
        assert!(written.is_none_or(|at| at == 0), "{told:?}");
    }
}

/// Nothing is kept of the directory's names, since others work there.
#[tokio::test]
async fn a_rename_over_a_file_comes_after_the_content_beside_others_too() {
    for looks in [false, true] {
        let manager = Manager::new(Token::new(INO, TokenMode::Write, SERIAL));
        let client = manager.mount().await;
        let handle = client.open(INO, RW).await.unwrap();
        client.write(handle, 0, &[2; 4096]).await.unwrap();
        if looks {
            // As a kernel does.
            client.lookup(InodeNo::ROOT, b"f").await.unwrap();
            client.lookup(InodeNo::ROOT, b"other").await.unwrap();
        }
        let (from, to) = ((InodeNo::ROOT, b"f"), (InodeNo::ROOT, b"other"));
        client.rename(from.0, from.1, to.0, to.1, false, false).await.unwrap();
        assert_eq!(manager.told()[..2], ["what is written", "that a name is moved"]);
        client.release(handle);
    }
}

/// After two links at once the later answer may be the older one.
#[tokio::test]
async fn how_many_names_a_file_has_is_asked_for_also_while_another_file_is_given_up() {
    let manager = Manager::new(Token::new(INO, TokenMode::Write, SERIAL));
    let client = Arc::new(manager.mount().await);
    for ino in [INO, OTHER] {
        client.open(ino, RW).await.unwrap();
    }
    let first = client.clone();
    let first = tokio::spawn(async move { first.link(INO, InodeNo::ROOT, b"first").await.unwrap() });
    until("the first link is made", || manager.names.load(SeqCst) == 1).await;
    client.link(INO, InodeNo::ROOT, b"second").await.unwrap();
    manager.first_link.add_permits(1);
    first.await.unwrap();
    manager.recalls_other.store(true, SeqCst);
    assert_eq!(client.getattr(INO).await.unwrap().nlink, 3);
    assert!(!manager.told().is_empty(), "nothing was given up meanwhile");
}

#[tokio::test]
async fn a_file_that_others_remove_while_it_is_created_over_is_made_anew() {
    let manager = Manager::new(Token::new(INO, TokenMode::Write, SERIAL));
    let client = manager.mount().await;
    let (dir, kind) = (InodeNo::ROOT, FileKind::File);
    let made = client.create(dir, b"f", kind, 0o644, 0, 0, 0, b"", true).await;
    assert_eq!(made.map(|(attr, new)| (attr.ino, new)), Ok((OTHER, true)));
}
