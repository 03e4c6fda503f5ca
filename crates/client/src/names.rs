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
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use base::InodeNo;

use crate::core::Core;

/// Names kept in all directories together, some 20 bytes each.
const NAMES_MAX: usize = 1 << 20;

/// All names that a directory ever had.
pub(crate) struct NewNames {
    claims: u64,
    hashes: HashSet<u64>,
    total: Arc<AtomicUsize>,
}

impl Drop for NewNames {
    fn drop(&mut self) {
        self.total.fetch_sub(self.hashes.len(), Relaxed);
    }
}

/// What was so before a directory was made.
pub(crate) struct Before {
    claims: u64,
    elsewhere: u64,
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl Core {
    /// To be taken before the manager makes a directory.
    pub fn before_directory(&self) -> Before {
        Before { claims: self.claims.load(SeqCst), elsewhere: self.names_elsewhere.load(SeqCst) }
    }

    /// A directory was made. Its names are all known, unless somebody was faster in it.
    pub fn begin_names(self: &Arc<Core>, dir: InodeNo, before: &Before) {
        let inode = self.inode(dir);
        let mut state = inode.lock();
        let undisturbed = before.elsewhere == self.names_elsewhere.load(SeqCst);
        if undisturbed && self.whole().is_some() && before.claims == self.claims.load(SeqCst) {
            let (claims, total) = (before.claims, self.names_known.clone());
            state.names = Some(NewNames { claims, hashes: HashSet::new(), total });
        }
    }

    /// A name will be made: to be told before the manager is.
    pub fn note_name(&self, dir: InodeNo, name: &[u8]) {
        let inode = self.inode_known(dir);
        let mut state = inode.as_ref().map(|inode| inode.lock());
        let Some(names) = state.as_mut().and_then(|state| state.names.as_mut()) else {
            self.names_elsewhere.fetch_add(1, SeqCst);
            return;
        };
        if names.hashes.insert(hash(name))
            && self.names_known.fetch_add(1, Relaxed) >= NAMES_MAX
            && let Some(state) = &mut state
        {
            state.names = None;
        }
    }

    /// Whether a name is certainly not there.
    pub fn surely_absent(&self, dir: InodeNo, name: &[u8]) -> bool {
        let Some(inode) = self.inode_known(dir) else { return false };
        let state = inode.lock();
        let Some(names) = &state.names else { return false };
        let ours = self.whole().is_some() && names.claims == self.claims.load(SeqCst);
        ours && self.calls.lease_valid() && !names.hashes.contains(&hash(name))
    }
}
