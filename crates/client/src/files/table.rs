//! The table of inodes in memory.
//!
//! An inode's entry is made when it is first named in an answer or used; here its tokens will be asked
//! for. Idle entries beyond `maxFilesToCache` are dropped, their clean pages with them; those that hold tokens of their own as soon as these
//! are given back.

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
    /// So many of these are about to go, when their tokens are given back.
    going: usize,
    /// So many others must be there before idle ones are looked for again.
    sweep_at: usize,
    /// So many were in use when nothing was under way last.
    in_use: usize,
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
    /// own (none does while the session is whole) are returned: they go when these are given back ([`Table::given_back`]).
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
        if entries.staying() >= max.max(entries.sweep_at) {
            holding = entries.sweep(max, sharing);
        }
        let inode = make();
        entries.inodes.insert(ino, inode.clone());
        (inode, holding)
    }

    /// Nothing is under way any more: of what is beyond `max` goes also what was used last. As of [`Table::entry`] those are returned
    /// that hold tokens.
    pub fn settle_down(&self, max: usize, sharing: &Sharing) -> Vec<Arc<Inode>> {
        let mut entries = self.0.lock();
        let mut holding = Vec::new();
        if entries.staying() <= max.max(entries.in_use) {
            entries.in_use = entries.in_use.min(entries.staying());
            return holding;
        }
        // The first takes what was not used since the last.
        for _ in 0..2 {
            if entries.staying() > max {
                holding.extend(entries.sweep(max, sharing));
            }
        }
        entries.in_use = entries.staying();
        holding
    }

    /// What an entry returned by [`Table::entry`] held is given back: it goes, unless somebody uses it again.
    pub fn given_back(&self, inode: Arc<Inode>, sharing: &Sharing) {
        let mut entries = self.0.lock();
        entries.going = entries.going.saturating_sub(1);
        let known = entries.inodes.get(&inode.ino).is_some_and(|known| Arc::ptr_eq(known, &inode));
        // The table's and this one.
        if known && is_idle(&inode, 2) && inode.lock().token.mode() == TokenMode::None {
            entries.drop_entry(&inode, sharing);
        }
    }
}

impl Entries {
    /// Drops idle entries that were not used since the last sweep: what is beyond `max`, and an eighth more. Where so many are not idle the
    /// next sweep comes later, so that a full table does not cost a scan for each new entry. Entries with
    /// tokens of their own stay until these are given back: they are returned.
    fn sweep(&mut self, max: usize, sharing: &Sharing) -> Vec<Arc<Inode>> {
        let (staying, some) = (self.staying(), max / 8 + 1);
        let count = staying.saturating_sub(max) + some;
        let victims: Vec<Arc<Inode>> = self
            .inodes
            .values()
            .filter(|inode| !inode.used.swap(false, Relaxed) && is_idle(inode, 1))
            .take(count)
            .cloned()
            .collect();
        let left = staying.saturating_sub(victims.len());
        self.sweep_at = if victims.len() < count { left + some } else { 0 };
        let whole = sharing.whole_grant().is_some();
        let held = |inode: &Arc<Inode>| !whole && inode.lock().token.mode() > TokenMode::None;
        let (kept, gone): (Vec<_>, Vec<_>) = victims.into_iter().partition(held);
        gone.iter().for_each(|inode| self.drop_entry(inode, sharing));
        self.going += kept.len();
        kept
    }

    fn staying(&self) -> usize {
        self.inodes.len().saturating_sub(self.going)
    }

    fn drop_entry(&mut self, inode: &Inode, sharing: &Sharing) {
        self.inodes.remove(&inode.ino);
        let mut state = inode.lock();
        sharing.note_dropped(state.told);
        state.drop_blocks(0, u64::MAX);
    }
}

/// Whether nobody uses an entry to which there are so many references, nor is it being given back.
fn is_idle(inode: &Arc<Inode>, references: usize) -> bool {
    let state = inode.lock();
    Arc::strong_count(inode) == references
        && !state.opens.any()
        && !state.flushes.are_held()
        && !state.unsettled()
        && !state.token.is_giving()
}
