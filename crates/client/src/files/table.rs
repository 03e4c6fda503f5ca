//! The table of inodes in memory.
//!
//! An inode's entry is made when it is first named in an answer or used; here its tokens will be asked
//! for. Idle entries beyond `maxFilesToCache` are dropped, their clean pages with them.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use base::InodeNo;
use parking_lot::Mutex;
use wire::token::TokenMode;

use super::inode::Inode;
use crate::sharing::state::Sharing;

/// The entries.
#[derive(Default)]
pub(crate) struct Table(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    inodes: HashMap<InodeNo, Arc<Inode>>,
    /// So many must be there before idle ones are looked for again.
    sweep_at: usize,
}

impl Table {
    /// All entries.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.0.lock().inodes.values().cloned().collect()
    }

    /// The entry of an inode, if there is one.
    pub fn get(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.0.lock().inodes.get(&ino).cloned()
    }

    /// Drops the entry of an inode.
    pub fn remove(&self, ino: InodeNo) {
        self.0.lock().inodes.remove(&ino);
    }

    /// The entry of an inode, made if it is not there. Of `max` some that are idle go; those that hold tokens of their
    /// own (none does while the session is whole) are returned: they go when these are given back.
    pub fn entry(
        &self,
        ino: InodeNo,
        max: usize,
        sharing: &Sharing,
        make: impl FnOnce() -> Arc<Inode>,
    ) -> (Arc<Inode>, Vec<Arc<Inode>>) {
        let mut entries = self.0.lock();
        if let Some(inode) = entries.inodes.get(&ino) {
            inode.used.store(true, Relaxed);
            return (inode.clone(), Vec::new());
        }
        let mut holding = Vec::new();
        if entries.inodes.len() >= max.max(entries.sweep_at) {
            holding = entries.sweep(max / 8 + 1, sharing);
        }
        let inode = make();
        entries.inodes.insert(ino, inode.clone());
        (inode, holding)
    }
}

impl Entries {
    /// Drops up to `count` idle entries that were not used since the last sweep. Where all are in use the
    /// next sweep comes later, so that a full table does not cost a scan for each new entry. Entries with
    /// tokens of their own stay until these are given back: they are returned.
    fn sweep(&mut self, count: usize, sharing: &Sharing) -> Vec<Arc<Inode>> {
        let idle = |inode: &Arc<Inode>| {
            let state = inode.lock();
            Arc::strong_count(inode) == 1
                && !state.opens.any()
                && !state.flushes.are_held()
                && !state.unsettled()
        };
        let victims: Vec<Arc<Inode>> = self
            .inodes
            .values()
            .filter(|inode| !inode.used.swap(false, Relaxed) && idle(inode))
            .take(count)
            .cloned()
            .collect();
        let whole = sharing.whole_grant().is_some();
        let held = |inode: &Arc<Inode>| !whole && inode.lock().token.mode() > TokenMode::None;
        let (kept, gone): (Vec<_>, Vec<_>) = victims.into_iter().partition(held);
        for inode in &gone {
            self.inodes.remove(&inode.ino);
            let mut state = inode.lock();
            sharing.note_dropped(state.told);
            state.drop_blocks(0, u64::MAX);
        }
        self.sweep_at = if gone.len() < count { self.inodes.len() + count } else { 0 };
        kept
    }
}
