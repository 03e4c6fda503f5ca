//! Names in directories made here: while nobody else is there, a name that was never made in such a directory, or was removed
//! again, is absent, and nobody need be asked. Copying a tree looks for every name before it makes it.
//!
//! Invariants: a directory's table holds (hashes of) at least the names it has. Where an inode stands with a hash, exactly one name has
//! that hash, and leads there. It counts only under the claim of all tokens it began under. Two names of one hash cost a
//! question, nothing else; nobody can choose them so, since each table hashes by a key of its own.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use base::InodeNo;

use crate::sharing::state::Claim;

/// Names kept in all directories together, some 40 bytes each.
const NAMES_MAX: usize = 1 << 20;

/// It is not known which names have this hash.
const UNSURE: InodeNo = InodeNo(0);

/// All names that a directory has.
pub(crate) struct NewNames {
    claim: Claim,
    hasher: RandomState,
    inodes: HashMap<u64, InodeNo>,
    total: Arc<AtomicUsize>,
}

impl Drop for NewNames {
    fn drop(&mut self) {
        self.total.fetch_sub(self.inodes.len(), Relaxed);
    }
}

impl NewNames {
    /// Of a directory made under `claim`; `total` counts the names of all.
    pub fn new(claim: Claim, total: Arc<AtomicUsize>) -> NewNames {
        NewNames { claim, hasher: RandomState::new(), inodes: HashMap::new(), total }
    }

    /// The claim that it counts under.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// A name will be made, moved or removed at the manager, or may be. False if that are too many: nothing is known of the
    /// directory any more.
    pub fn doubt(&mut self, name: &[u8]) -> bool {
        self.inodes.insert(self.hash(name), UNSURE).is_some() || self.count()
    }

    /// A name is made that was certainly absent. False: it may be there, or there are too many.
    pub fn make(&mut self, name: &[u8], ino: InodeNo) -> bool {
        let hash = self.hash(name);
        let Entry::Vacant(entry) = self.inodes.entry(hash) else { return false };
        entry.insert(ino);
        self.count()
    }

    /// A name that leads to this inode is removed.
    pub fn remove(&mut self, name: &[u8], ino: InodeNo) {
        let hash = self.hash(name);
        if self.inodes.get(&hash) == Some(&ino) {
            self.inodes.remove(&hash);
            self.total.fetch_sub(1, Relaxed);
        }
    }

    /// Where a name leads that was made here, if that is certain.
    pub fn leads(&self, name: &[u8]) -> Option<InodeNo> {
        self.inodes.get(&self.hash(name)).copied().filter(|ino| *ino != UNSURE)
    }

    /// Whether a name is perhaps there.
    pub fn may_hold(&self, name: &[u8]) -> bool {
        self.inodes.contains_key(&self.hash(name))
    }

    /// Whether there is certainly no name.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// One more; false if that are too many.
    fn count(&self) -> bool {
        self.total.fetch_add(1, Relaxed) < NAMES_MAX
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }
}
