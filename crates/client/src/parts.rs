//! What the client stands on: the manager, and blocks of files stored as stripes. As traits, so that the
//! same client runs over the network, over an in-process manager, and under a simulation.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use base::{FsId, Grant, InodeNo, OpClass, PoolId, StripeId, Version};
use stripe::{BlockMeta, BlockRead, WriteStripe};
use wire::{
    mgr::{MgrReply, MgrRequest},
    strip::Range,
};

use crate::error::{BlockError, CallError};

/// A boxed future, as the traits here return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The manager, reached somehow. A call is repeated under the hood (reconnects, manager restarts) until
/// it is answered or the deadline passes; every request may be repeated without further effect.
pub trait Manager: Send + Sync {
    /// One request, one answer.
    fn call(&self, request: MgrRequest, deadline: Instant) -> BoxFuture<'_, Result<MgrReply, CallError>>;

    /// How long the session's lease holds: without it others may have been given what is cached here.
    fn lease_left(&self) -> Duration {
        Duration::MAX
    }
}

/// The code and block size of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Data strips of a stripe (1 in replicated pools).
    pub data_strips: u8,
    /// All strips of a stripe.
    pub width: u8,
    /// Bytes of a block of new files.
    pub block_size: u32,
}

/// Blocks of files.
pub trait Blocks: Send + Sync {
    /// How stripes of this pool look; `None` if the map has no such pool.
    fn geometry(&self, pool: PoolId) -> Option<Geometry>;

    /// Returns when the map has this pool.
    fn await_pool(&self, pool: PoolId) -> BoxFuture<'_, ()> {
        let _ = pool;
        Box::pin(async {})
    }

    /// What of the block must be in `pieces` when `dirty` is written, so that parity can be computed.
    fn parity_ranges(&self, pool: PoolId, block_size: u32, dirty: &[Range]) -> Vec<Range>;

    /// Stores a new version; answered when it is complete. One version of a block at a time. What is tried again is a version
    /// of its own, `next`.
    fn write<'a>(
        &'a self,
        write: WriteStripe,
        next: &'a (dyn Fn() -> Version + Send + Sync),
    ) -> BoxFuture<'a, Result<BlockMeta, BlockError>>;

    /// Reads ranges of the newest complete version. With no range at all: only its meta.
    fn read(
        &self,
        stripe: StripeId,
        pool: PoolId,
        block_size: u32,
        ranges: Vec<Range>,
        class: OpClass,
    ) -> BoxFuture<'_, Result<BlockRead, BlockError>>;

    /// How many bytes of a block that is not allocated the pdisks may hold all the same: deletes come
    /// late, and an unclean end leaves blocks that nobody was told of. 0: nothing is there.
    fn leftover(&self, stripe: StripeId, pool: PoolId) -> BoxFuture<'_, Result<u32, BlockError>>;

    /// Makes all complete versions the adopted ones.
    fn adopt_all(&self, deadline: Instant) -> BoxFuture<'_, Result<(), BlockError>>;

    /// Leaves nothing of an inode half done: its complete versions are the adopted ones, and what failed
    /// writes left is removed. Before its write token is given up.
    fn settle_inode(&self, fs: FsId, inode: InodeNo) -> BoxFuture<'_, Result<(), BlockError>> {
        let _ = (fs, inode);
        Box::pin(async { Ok(()) })
    }

    /// An inode is removed: what is kept of failed writes of it may go. This session writes nothing of it, nor will it.
    fn forget_inode(&self, fs: FsId, inode: InodeNo) {
        let _ = (fs, inode);
    }

    /// Whether a failed write may have left something of itself on the pdisks. It may become the block's content until another
    /// version is stored: whoever resolves what this session leaves, should it end now, may go forward with it.
    fn is_abandoned(&self, stripe: StripeId) -> bool {
        let _ = stripe;
        false
    }

    /// Brings every block of an inode, left by a session that ended uncleanly, to its old or new version.
    fn resolve_inode(&self, fs: FsId, inode: InodeNo, grant: Grant) -> BoxFuture<'_, Result<(), BlockError>> {
        let _ = (fs, inode, grant);
        Box::pin(async { Ok(()) })
    }

    /// Inodes of which something is half done on some pdisk.
    fn unresolved_inodes(&self, fs: FsId) -> BoxFuture<'_, Result<Vec<InodeNo>, BlockError>> {
        let _ = fs;
        Box::pin(async { Ok(Vec::new()) })
    }
}
