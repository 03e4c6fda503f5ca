//! What every operation works with: a file system, a transaction, and who changes something.

use base::{FsId, Grant, InodeNo, SessionId, Version};
use wire::credentials::Who;

use super::DirHash;
use crate::{keys, store::Txn};

/// Most links of an inode.
pub const NLINK_MAX: u32 = i32::MAX as u32;

/// What a change needs to know beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct FsContext {
    /// The file system.
    pub fs: FsId,
    /// Hash of directory entries.
    pub hash: DirHash,
    /// The store's last room is kept for removing: ENOSPC for new names.
    pub full: bool,
}

/// Who changes something.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// The session.
    pub session: SessionId,
    /// On whose behalf.
    pub who: &'a Who,
    /// The grant it began with.
    pub grant: Grant,
    /// Who has inodes open that lose a name by the change.
    pub openers: &'a [(InodeNo, SessionId)],
}

impl Actor<'_> {
    /// Lifts a `highest` that came with a change above all grants before the session's.
    pub(super) fn highest(self, highest: Version) -> Version {
        highest.max(keys::floor_version(self.grant))
    }
}

/// One file system, in one transaction, changed by one actor.
pub(super) struct Editor<'t, 'b> {
    pub txn: &'t mut Txn<'b>,
    pub fs: FsContext,
    pub actor: Actor<'t>,
}
