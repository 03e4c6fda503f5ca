//! Names in directories made here: while nobody else is there, a name that was never made in such a directory
//! is absent, and nobody need be asked. Copying a tree looks for every name before it makes it.
//!
//! Invariant: the set of a directory holds (hashes of) at least the names it has. It counts only under the claim of
//! all tokens it began under. Two names of one hash cost a question, nothing else.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::sharing::state::Claim;

/// Names kept in all directories together, some 20 bytes each.
const NAMES_MAX: usize = 1 << 20;

/// All names that a directory ever had.
pub(crate) struct NewNames {
    claim: Claim,
    hashes: HashSet<u64>,
    total: Arc<AtomicUsize>,
}

impl Drop for NewNames {
    fn drop(&mut self) {
        self.total.fetch_sub(self.hashes.len(), Relaxed);
    }
}

impl NewNames {
    /// Of a directory made under `claim`; `total` counts the names of all.
    pub fn new(claim: Claim, total: Arc<AtomicUsize>) -> NewNames {
        NewNames { claim, hashes: HashSet::new(), total }
    }

    /// The claim that it counts under.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// A name will be made. False if that are too many: nothing is known of the directory any more.
    pub fn note(&mut self, name: &[u8]) -> bool {
        !self.hashes.insert(hash(name)) || self.total.fetch_add(1, Relaxed) < NAMES_MAX
    }

    /// Whether a name was perhaps made here.
    pub fn may_hold(&self, name: &[u8]) -> bool {
        self.hashes.contains(&hash(name))
    }
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}
