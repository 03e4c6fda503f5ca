//! Names in directories made here: while nobody else is there, a name that was never made in such a directory
//! is absent, and nobody need be asked. Copying a tree looks for every name before it makes it.
//!
//! Invariant: the set of a directory holds (hashes of) at least the names it has. It counts only under the claim of
//! all tokens it began under. Two names of one hash cost a question, nothing else.

use std::{
    collections::{HashMap, HashSet},
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
use wire::mgr::{FileKind, MgrReply};

use crate::{core::Core, error::Errno};

/// Names kept in all directories together, some 20 bytes each.
const NAMES_MAX: usize = 1 << 20;

/// Answers kept for the changes that follow them.
const HINTS_MAX: usize = 4096;

/// What a name led to when it was asked for: inode 0, nothing.
#[derive(Clone, Copy)]
pub(crate) struct Hint {
    pub ino: InodeNo,
    pub is_file: bool,
}

impl Hint {
    /// The name leads nowhere.
    pub const NOTHING: Hint = Hint { ino: InodeNo(0), is_file: false };

    /// None if the question was not answered.
    pub fn of(reply: &Result<MgrReply, Errno>) -> Option<Hint> {
        match reply {
            Ok(
                MgrReply::Attr(attr)
                | MgrReply::Held(attr)
                | MgrReply::Created { attr, .. }
                | MgrReply::CreatedHeld { attr, .. },
            ) => Some(Hint { ino: attr.ino, is_file: attr.kind == FileKind::File }),
            Err(Errno::ENOENT) => Some(Hint::NOTHING),
            _ => None,
        }
    }
}

/// Hints by directory and name. Each may be outdated, and is good for one change.
pub(crate) type Hints = HashMap<(InodeNo, Vec<u8>), Hint>;

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
    /// While others are there the kernel asks for a name before it changes it.
    pub fn note_hint(&self, dir: InodeNo, name: &[u8], reply: &Result<MgrReply, Errno>) {
        let Some(hint) = Hint::of(reply).filter(|_| self.whole().is_none()) else { return };
        let mut hints = self.hints.lock().unwrap_or_else(|e| e.into_inner());
        if hints.len() >= HINTS_MAX {
            hints.clear();
        }
        hints.insert((dir, name.to_vec()), hint);
    }

    /// What was noted of a name.
    pub fn take_hint(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        self.hints.lock().unwrap_or_else(|e| e.into_inner()).remove(&(dir, name.to_vec()))
    }

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

    /// Whether a name is certainly not there. "." and ".." always are: by them the kernel finds its way from a handle.
    pub fn surely_absent(&self, dir: InodeNo, name: &[u8]) -> bool {
        if name == b"." || name == b".." {
            return false;
        }
        let Some(inode) = self.inode_known(dir) else { return false };
        let state = inode.lock();
        let Some(names) = &state.names else { return false };
        let ours = self.whole().is_some() && names.claims == self.claims.load(SeqCst);
        ours && self.calls.lease_valid() && !names.hashes.contains(&hash(name))
    }
}
