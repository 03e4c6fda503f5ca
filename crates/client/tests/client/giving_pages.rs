//! Blocks are given up whose pages the kernel has locked for a READ that waits for blocks of another mount, which waits for ours: what is
//! clean may be read elsewhere before the pages are gone.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::{
    recalled::{NoServers, map},
    support::{RW, mount_config, session_open, until},
};
use base::{Epoch, Grant, InodeNo, PoolId, SessionId};
use client::{BoxFuture, Client, KernelCache, OpenFlags};
use stripe::{LinkError, ManagerLink};
use wire::{
    mgr::{Attr, MgrReply, MgrRequest},
    token::{Blocks, Need, Recall, Span, Token, TokenMode, Use},
};

const INO: InodeNo = InodeNo(7);
const BLOCK: u64 = 1 << 20;
const LEASE: Duration = Duration::from_secs(3600);

/// A part of the file: of both blocks what may be done with them.
fn part(uses: [Use; 2], serial: u64) -> Token {
    let block = |first| Span { first, end: first + 1 };
    let blocks = Blocks::of(block(0), uses[0]).with(block(1), uses[1]);
    Token { blocks, ..Token::new(INO, TokenMode::Part, Grant(serial)) }
}

/// A manager with a file of two blocks, and a kernel that has pages of it.
#[derive(Default)]
struct World {
    recalls: Mutex<Vec<Recall>>,
    /// What it was told is left.
    left: Mutex<Vec<Token>>,
    /// The second block is another mount's, until this is left of the first here.
    taken: AtomicBool,
    /// A READ has pages locked.
    locked: AtomicBool,
    dropping: AtomicBool,
}

impl World {
    fn left(&self) -> Vec<Token> {
        self.left.lock().unwrap().clone()
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        let lease_us = LEASE.as_micros() as u64;
        let file = || {
            let (pool, block_size, nlink, size) = (PoolId(1), BLOCK as u32, 1, 2 * BLOCK);
            Box::new(Attr { ino: INO, size, pool, block_size, nlink, ..Attr::default() })
        };
        match request {
            MgrRequest::OpenSession { .. } => session_open(map(), LEASE, "60s"),
            MgrRequest::Renew { .. } => MgrReply::Renewed { lease_us, epoch: Epoch(0) },
            MgrRequest::GetAttr { .. } => MgrReply::Attr(file()),
            MgrRequest::Acquire { need: Need::Blocks(_, Use::Read), .. } => {
                until("the second block is left to us", || !self.taken.load(SeqCst)).await;
                // It has not heard yet what is not written any more.
                let token = part([Use::Write, Use::Read], 4);
                MgrReply::Token { token, resolve: false, attr: Some(file()), empty: false }
            }
            MgrRequest::Acquire { .. } => {
                let token = part([Use::Write, Use::None], 2);
                MgrReply::Token { token, resolve: false, attr: Some(file()), empty: false }
            }
            MgrRequest::Extents { .. } => MgrReply::Extents { extents: Vec::new(), more: false },
            MgrRequest::WaitRecalls => {
                while self.recalls.lock().unwrap().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                MgrReply::Recalls(std::mem::take(&mut *self.recalls.lock().unwrap()))
            }
            MgrRequest::WaitMap { .. } => std::future::pending().await,
            MgrRequest::Release { tokens } => {
                self.left.lock().unwrap().extend(tokens);
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
    }
}

struct Link(Arc<World>);

impl ManagerLink for Link {
    fn call(
        &self,
        _: SessionId,
        _: Epoch,
        request: MgrRequest,
        _: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let world = self.0.clone();
        Box::pin(async move { Ok(world.answer(request).await) })
    }
}

struct Kernel(Arc<World>);

impl KernelCache for Kernel {
    fn drop_pages(&self, _: InodeNo, _: u64, _: u64) {
        self.0.dropping.store(true, SeqCst);
        while self.0.locked.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn drop_attr(&self, _: InodeNo) -> bool {
        true
    }
    fn set_shared(&self, _: bool) {}
    fn drop_all(&self) {}
}

/// Unlocks the pages, also where the test fails: what drops them would not end.
struct Unlocks(Arc<World>);

impl Drop for Unlocks {
    fn drop(&mut self) {
        self.0.locked.store(false, SeqCst);
    }
}

#[tokio::test]
async fn blocks_whose_pages_are_waited_for_may_be_read_elsewhere_meanwhile() {
    let world = Arc::new(World::default());
    let _unlocks = Unlocks(world.clone());
    let link = Arc::new(Link(world.clone()));
    let client = Client::mount_over(link, Arc::new(NoServers), mount_config()).await.unwrap();
    client.set_kernel(Arc::new(Kernel(world.clone())));
    let handle = client.open(INO, OpenFlags { write: false, ..RW }).await.unwrap();
    for flag in [&world.taken, &world.locked] {
        flag.store(true, SeqCst);
    }
    world.recalls.lock().unwrap().push(Recall::Token(part([Use::None; 2], 2)));
    until("its pages are dropped", || world.dropping.load(SeqCst)).await;
    // It has pages of both blocks locked.
    let reader = client.clone();
    let read = tokio::spawn(async move { reader.read(handle, BLOCK - 4096, 8192).await });
    until("the block may be read elsewhere", || !world.left().is_empty()).await;
    assert_eq!(world.left(), [part([Use::Read, Use::None], 2)]);
    // So the other mount goes on, and leaves its block to us.
    world.taken.store(false, SeqCst);
    assert_eq!(read.await.unwrap().map(|data| data.to_vec()), Ok(vec![0; 8192]));
    // What came with that is no right to write the block again; somebody may be waiting for that too.
    until("that is said once more", || world.left().len() > 1).await;
    assert_eq!(world.left()[1..], [part([Use::Read, Use::Read], 4)]);
    world.locked.store(false, SeqCst);
    until("all of it goes", || world.left().len() > 2).await;
    assert_eq!(world.left()[2..], [part([Use::None; 2], 4)]);
}
