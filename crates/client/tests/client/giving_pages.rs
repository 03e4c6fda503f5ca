//! Blocks are given up whose pages the kernel has locked for a READ that waits for blocks of another mount, which waits for ours: what is
//! clean may be read elsewhere before the pages are gone, however many read it here.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    RW,
    link::{NoServers, Recalls, SmallManager, mount_small},
    until,
};
use base::{BlockIndex, Grant, InodeNo, OpClass, PoolId, StripSet, Version};
use bytes::Bytes;
use client::{BoxFuture, Client, Errno, Handle, KernelCache, OpenFlags};
use stripe::{Fault, NsdCall, NsdTransport};
use tokio::{sync::Semaphore, task::JoinHandle};
use wire::{
    crc::unit_crcs,
    mgr::{Attr, Extent, MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
    strip::{StripRead, VersionInfo},
    token::{Blocks, Need, Recall, Span, Token, TokenMode, Use},
};

const INO: InodeNo = InodeNo(7);
const BLOCK: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A part of the file: of both blocks what may be done with them.
fn part(uses: [Use; 2], serial: u64) -> Token {
    let block = |first| Span { first, end: first + 1 };
    let blocks = Blocks::of(block(0), uses[0]).with(block(1), uses[1]);
    Token { blocks, ..Token::new(INO, TokenMode::Part, Grant(serial)) }
}

/// A manager with a file of two blocks, and a kernel that has pages of it.
#[derive(Default)]
struct World {
    recalls: Recalls,
    /// What it was told is left.
    left: Mutex<Vec<Token>>,
    /// Something is stored in both blocks.
    stored: bool,
    /// The second block is another mount's, until this is left of the first here; whether it is asked for.
    taken: AtomicBool,
    wanted: AtomicBool,
    /// A READ has pages locked.
    locked: AtomicBool,
    dropping: AtomicBool,
}

impl World {
    /// A mount whose kernel has the first block open for reading.
    async fn mount(self: &Arc<World>, servers: Arc<dyn NsdTransport>) -> (Client, Handle) {
        let client = mount_small(self, servers).await;
        client.set_kernel(Arc::new(Kernel(self.clone())));
        let handle = client.open(INO, OpenFlags { write: false, ..RW }).await.unwrap();
        (client, handle)
    }

    fn left(&self) -> Vec<Token> {
        self.left.lock().unwrap().clone()
    }
}

impl SmallManager for World {
    fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        let file = || {
            let (pool, block_size, nlink, size) = (PoolId(1), BLOCK as u32, 1, 2 * BLOCK);
            let stored = if self.stored { size } else { 0 };
            Box::new(Attr { ino: INO, size, stored, pool, block_size, nlink, ..Attr::default() })
        };
        match request {
            MgrRequest::GetAttr { .. } => MgrReply::Attr(file()),
            MgrRequest::Acquire { need: Need::Blocks(_, Use::Read), .. } => {
                self.wanted.store(true, SeqCst);
                until("the second block is left to us", || !self.taken.load(SeqCst)).await;
                // It has not heard yet what is not written any more.
                let token = part([Use::Write, Use::Read], 4);
                MgrReply::Token { token, resolve: false, attr: Some(file()), empty: false }
            }
            MgrRequest::Acquire { .. } => {
                let token = part([Use::Write, Use::None], 2);
                MgrReply::Token { token, resolve: false, attr: Some(file()), empty: false }
            }
            MgrRequest::Extents { .. } => {
                let both = Extent { first: BlockIndex(0), count: 2 };
                let extents = self.stored.then_some(both).into_iter().collect();
                MgrReply::Extents { extents, more: false }
            }
            MgrRequest::Release { tokens } => {
                self.left.lock().unwrap().extend(tokens);
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
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

/// A server that answers one read for each leave, in the order in which they came.
struct Servers {
    reads: AtomicU64,
    leave: Semaphore,
}

struct Ways(Arc<Servers>);

impl NsdTransport for Ways {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let NsdRequest::Read { read, .. } = call.request else { panic!("{:?}", call.request) };
        let servers = self.0.clone();
        Box::pin(async move {
            if call.class != OpClass::Read {
                return std::future::pending().await;
            }
            servers.reads.fetch_add(1, SeqCst);
            servers.leave.acquire().await.unwrap().forget();
            let bytes = Bytes::from(vec![0; read.ranges.iter().map(|range| range.len as usize).sum()]);
            let (version, touched) = (Version { grant: Grant(1), seq: 1 }, StripSet::first(1));
            let info = VersionInfo { version, touched, len: BLOCK as u32, ..VersionInfo::default() };
            let crcs = unit_crcs(&bytes).collect();
            Ok((NsdReply::Read(StripRead { info, ranges: read.ranges, crcs }), bytes))
        })
    }
}

fn spawn_read(client: &Client, handle: Handle, offset: u64, len: u64) -> JoinHandle<Result<Vec<u8>, Errno>> {
    let client = client.clone();
    tokio::spawn(async move { client.read(handle, offset, len as usize).await.map(|data| data.to_vec()) })
}

#[tokio::test]
async fn blocks_whose_pages_are_waited_for_may_be_read_elsewhere_meanwhile() {
    let world = Arc::new(World::default());
    let _unlocks = Unlocks(world.clone());
    let (client, handle) = world.mount(Arc::new(NoServers)).await;
    for flag in [&world.taken, &world.locked] {
        flag.store(true, SeqCst);
    }
    world.recalls.push(Recall::Token(part([Use::None; 2], 2)));
    until("its pages are dropped", || world.dropping.load(SeqCst)).await;
    // It has pages of both blocks locked.
    let read = spawn_read(&client, handle, BLOCK - PAGE, 2 * PAGE);
    until("the block may be read elsewhere", || !world.left().is_empty()).await;
    assert_eq!(world.left(), [part([Use::Read, Use::None], 2)]);
    // So the other mount goes on, and leaves its block to us.
    world.taken.store(false, SeqCst);
    assert_eq!(read.await.unwrap(), Ok(vec![0; 2 * PAGE as usize]));
    // What came with that is no right to write the block again; somebody may be waiting for that too.
    until("that is said once more", || world.left().len() > 1).await;
    assert_eq!(world.left()[1..], [part([Use::Read, Use::Read], 4)]);
    world.locked.store(false, SeqCst);
    until("all of it goes", || world.left().len() > 2).await;
    assert_eq!(world.left()[2..], [part([Use::None; 2], 4)]);
}

/// Each reader of the block comes before the one before has gone, so that somebody uses it all the time.
#[tokio::test]
async fn blocks_that_are_read_here_all_the_time_may_be_read_elsewhere_too() {
    let world = Arc::new(World { stored: true, ..World::default() });
    let _unlocks = Unlocks(world.clone());
    let servers = Arc::new(Servers { reads: AtomicU64::new(0), leave: Semaphore::new(0) });
    let (client, handle) = world.mount(Arc::new(Ways(servers.clone()))).await;
    for flag in [&world.taken, &world.locked] {
        flag.store(true, SeqCst);
    }
    world.recalls.push(Recall::Token(part([Use::None; 2], 2)));
    until("its pages are dropped", || world.dropping.load(SeqCst)).await;
    // In no order that could be gone on with: nothing is read ahead.
    let reads = |n: u64| spawn_read(&client, handle, 7 * n * n % 199 * PAGE, PAGE);
    let mut reader = reads(0);
    until("a reader is in", || servers.reads.load(SeqCst) == 1).await;
    let both = spawn_read(&client, handle, BLOCK - PAGE, 2 * PAGE);
    until("the second block is asked for", || world.wanted.load(SeqCst)).await;
    for n in 1..9 {
        let next = reads(n);
        until("the next is in", || servers.reads.load(SeqCst) == n + 1).await;
        servers.leave.add_permits(1);
        assert_eq!(std::mem::replace(&mut reader, next).await.unwrap(), Ok(vec![0; PAGE as usize]));
    }
    until("the block may be read elsewhere", || !world.left().is_empty()).await;
    assert_eq!(world.left(), [part([Use::Read, Use::None], 2)]);
    assert!(!reader.is_finished(), "nobody was in");
    servers.leave.add_permits(9);
    world.taken.store(false, SeqCst);
    assert_eq!(reader.await.unwrap(), Ok(vec![0; PAGE as usize]));
    assert_eq!(both.await.unwrap(), Ok(vec![0; 2 * PAGE as usize]));
    world.locked.store(false, SeqCst);
    let gone = part([Use::None; 2], 4);
    until("all of it goes", || world.left().last() == Some(&gone)).await;
}
