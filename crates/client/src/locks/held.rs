//! The locks of programs that this session holds, as they are claimed when the manager begins anew.

use std::collections::{BTreeSet, HashMap};

use base::InodeNo;
use wire::{lock::LockKind, lock_set::LockSet};

use crate::files::handle::Handle;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Locks {
    /// Number of the last change.
    seq: u64,
    /// Counts claims: an answer to what was asked before one may be of a manager that is gone.
    pub claims: u64,
    /// Locks given up with their handles so far.
    pub closed: u64,
    pub inodes: HashMap<InodeNo, OfInode>,
}

/// What is held on one inode.
#[derive(Default)]
pub(crate) struct OfInode {
    pub held: LockSet<()>,
    /// Who has set a lock through which handle.
    pub through: BTreeSet<(Handle, LockKind, u64)>,
    /// Locks being given up with their handles.
    pub closing: u32,
    /// Handles that have locks and of which a descriptor was closed since: perhaps the last one, which is told later.
    pub flushed: BTreeSet<Handle>,
}

impl Locks {
    pub fn number(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn change(&mut self, ino: InodeNo, change: impl FnOnce(&mut OfInode)) {
        let of = self.inodes.entry(ino).or_default();
        change(of);
        if of.held.is_empty() && of.through.is_empty() && of.closing == 0 {
            self.inodes.remove(&ino);
        }
    }

    /// Locks of an inode being given up with their handles, and how many of all inodes were.
    pub fn closing(&self, ino: InodeNo) -> (u32, u64) {
        (self.inodes.get(&ino).map_or(0, |of| of.closing), self.closed)
    }
}
