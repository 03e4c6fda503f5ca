//! Which blocks the manager's record says are stored: what `pool verify` compares the pdisks with, and what decides where strips
//! alone cannot tell a block that was deleted from one that is lost.

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
    /// There is no such inode, and never will be: its number was given and never is again. Whatever is stored of it may
    /// go, this answer however old.
    Nobody,
    /// The record cannot tell: such a number was never given, or what it says contradicts itself. The store is older than the
    /// strip, or damaged; nothing may go for that.
    Unknown,
}
