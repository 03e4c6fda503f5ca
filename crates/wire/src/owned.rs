//! Which blocks the manager's record says are stored: what `pool verify` compares the pdisks with.

use base::{InodeNo, PoolId};
use serde::{Deserialize, Serialize};

use crate::mgr::Extent;

/// Most blocks of one [`crate::mgr::MgrRequest::Owners`].
pub const OWNERS_MAX: usize = 4096;

/// A run of blocks that an inode's record names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OwnedRun {
    /// The inode.
    pub ino: InodeNo,
    /// Where its blocks are.
    pub pool: PoolId,
    /// Which blocks.
    pub run: Extent,
}

/// Whose a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Owner {
    /// Its inode's record names it.
    Recorded,
    /// Its inode is there and does not name it: it is on its way, or a crash left it. It goes with the inode.
    Unrecorded,
    /// There is no such inode.
    Nobody,
}
