//! In-memory parts under the client: pdisks that check every rule a writer must keep, and a manager with
//! one directory. Both outlive a client, so that a crash is a client that is dropped.
#![allow(clippy::unwrap_used, dead_code)] // test support: several test programs use parts of it

pub mod blocks;
pub mod link;
pub mod manager;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{FsId, Grant, PoolId, SessionId};
use client::{Client, ClientConfig, OpenFlags, SessionInfo, Tunables};
use wire::{
    map::{ClusterMap, FsEntry},
    mgr::{MgrReply, ProcessIdent},
};

pub use self::{blocks::FakeBlocks, manager::FakeManager};

pub const BLOCK: u32 = 256 << 10;

/// A handle that reads and writes, and nothing else.
pub const RW: OpenFlags = OpenFlags {
    read: true,
    write: true,
    append: false,
    direct: false,
    sync: false,
    dsync: false,
    truncate: false,
    drop_privileges: false,
    caller_appends: false,
};

/// A mount of `fs1`, whose manager is whoever answers.
pub fn mount_config() -> ClientConfig {
    ClientConfig {
        managers: stripe::Managers::at(&[]),
        fs: "fs1".into(),
        mount: "/mnt".into(),
        process: ProcessIdent::default(),
        admin_addr: String::new(),
        tunables: Tunables::default(),
    }
}

/// The first session, one of several; its operations have so long.
pub fn session_open(map: ClusterMap, lease: Duration, deadline: &str) -> MgrReply {
    MgrReply::SessionOpen {
        session: SessionId(1),
        grant: Grant(1),
        whole: false,
        fs: FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) },
        resolve: false,
        lease_us: lease.as_micros() as u64,
        map: Box::new(map),
        config: vec![("pagepool".into(), "64m".into()), ("operationDeadline".into(), deadline.into())],
    }
}

/// Waits until `ready`; fails after a minute.
pub async fn until(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A cluster without a network.
pub struct World {
    pub blocks: Arc<FakeBlocks>,
    pub manager: Arc<FakeManager>,
    sessions: u64,
}

impl World {
    pub fn new(data_strips: u8, seed: u64) -> World {
        World::of_blocks(data_strips, BLOCK, seed)
    }

    /// With blocks of so many bytes, for who needs many of them.
    pub fn of_blocks(data_strips: u8, block_size: u32, seed: u64) -> World {
        let blocks = Arc::new(FakeBlocks::new(data_strips, block_size, seed));
        let manager = Arc::new(FakeManager::new(blocks.clone(), block_size));
        World { blocks, manager, sessions: 0 }
    }

    /// A new session; whatever an old one still does has no effect any more.
    pub fn mount(&mut self, tunables: Tunables) -> Client {
        self.sessions += 1;
        let grant = Grant(self.sessions);
        self.blocks.fence_below(grant);
        self.manager.fence_below(self.sessions);
        let session = SessionInfo {
            session: SessionId(self.sessions),
            grant,
            fs: FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) },
            read_only: false,
            squash: Default::default(),
            root: base::InodeNo::ROOT,
        };
        let manager = Arc::new(manager::Session { number: self.sessions, manager: self.manager.clone() });
        Client::with_parts(manager, self.blocks.clone(), session, tunables)
    }
}

/// A small client, so that everything happens in a short test.
pub fn small() -> Tunables {
    Tunables {
        pagepool: 4 << 20,
        writeback_age: Duration::from_millis(30),
        commit_age: Duration::from_millis(20),
        deadline: Duration::from_secs(60),
        reserve_bytes: 1 << 20,
        writebehind_threshold: 0,
        ..Tunables::default()
    }
}

/// A repeatable source of choices.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}
