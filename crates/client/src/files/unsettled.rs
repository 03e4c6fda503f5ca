//! What is still to be done for inodes in the background: to write and tell, and to give up.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use base::InodeNo;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::{token::TOKENS_MAX, token::Token};

use super::inode::Inode;

/// Inodes with something to write out or commit.
#[derive(Default)]
pub(crate) struct Unsettled {
    inodes: Mutex<BTreeMap<InodeNo, Arc<Inode>>>,
    /// It was looked which of them are left.
    pub looked: Notify,
    /// Wakes the background work, and outlives the client: then it tells of its end.
    pub wake: Arc<Notify>,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Unsettled {
    pub fn note(&self, inode: &Arc<Inode>) {
        let mut inodes = self.inodes.lock();
        let is_first = inodes.is_empty();
        if let btree_map::Entry::Vacant(entry) = inodes.entry(inode.ino) {
            entry.insert(inode.clone());
        }
        drop(inodes);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.inodes.lock().is_empty()
    }

    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.inodes.lock().values().cloned().collect()
    }

    /// Whether there is room for this one among `max`, or it is there already.
    pub fn has_room(&self, ino: InodeNo, max: usize) -> bool {
        let inodes = self.inodes.lock();
        inodes.len() < max || inodes.contains_key(&ino)
    }

    /// Keeps those of which `look` says so; it is told how many there are.
    pub fn look(&self, mut look: impl FnMut(usize, &Arc<Inode>) -> bool) {
        let mut inodes = self.inodes.lock();
        let count = inodes.len();
        inodes.retain(|_, inode| look(count, inode));
        drop(inodes);
        self.looked.notify_waiters();
    }
}

/// Inodes without a name and without a handle that the manager may reclaim, and their tokens, given up.
#[derive(Default)]
pub(crate) struct Orphans {
    inodes: Mutex<Vec<InodeNo>>,
    tokens: Mutex<Vec<Token>>,
}

impl Orphans {
    pub fn add(&self, inodes: impl IntoIterator<Item = InodeNo>) {
        self.inodes.lock().extend(inodes);
    }

    pub fn add_token(&self, token: Token) {
        self.tokens.lock().push(token);
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.inodes.lock().is_empty() && self.tokens.lock().is_empty()
    }

    /// Takes out inodes, at most `max`.
    pub fn take(&self, max: usize) -> Vec<InodeNo> {
        take_last(&mut self.inodes.lock(), max)
    }

    /// Takes out the tokens of one message.
    pub fn take_tokens(&self) -> Vec<Token> {
        take_last(&mut self.tokens.lock(), TOKENS_MAX)
    }
}

fn take_last<T>(list: &mut Vec<T>, max: usize) -> Vec<T> {
    let keep = list.len().saturating_sub(max);
    list.split_off(keep)
}
