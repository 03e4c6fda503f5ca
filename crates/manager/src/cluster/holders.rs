//! Who holds which tokens, for those who answer questions and make changes beside the cluster's task.
//!
//! Changed by the driver before the answers that follow from a change go out: who is answered can rely on
//! it. A session's release is seen here only after what it committed is in the store's snapshots.

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock},
};

use base::{FsId, InodeNo, SessionId};
use wire::token::TokenMode;

use super::Step;

/// See the module.
#[derive(Debug, Default)]
pub struct Holders(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    holders: HashMap<(FsId, InodeNo), Vec<(SessionId, TokenMode)>>,
    unclear: HashSet<FsId>,
}

impl Holders {
    /// At the start: nothing is known, and of these file systems that is not all.
    pub fn new(unclear: Vec<FsId>) -> Holders {
        let unclear = unclear.into_iter().collect();
        Holders(RwLock::new(Table { unclear, ..Table::default() }))
    }

    /// Takes over what a step changed.
    pub fn take(&self, step: &mut Step) {
        if step.holders.is_empty() && step.unclear.is_empty() {
            return;
        }
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (fs, ino, holders) in step.holders.drain(..) {
            if holders.is_empty() {
                table.holders.remove(&(fs, ino));
            } else {
                let modes = holders.into_iter().map(|(session, token)| (session, token.mode));
                table.holders.insert((fs, ino), modes.collect());
            }
        }
        for (fs, unclear) in step.unclear.drain(..) {
            if unclear {
                table.unclear.insert(fs)
            } else {
                table.unclear.remove(&fs)
            };
        }
    }

    /// Whether any token is held one by one: several sessions share a file system.
    pub fn is_shared(&self) -> bool {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !table.holders.is_empty() || !table.unclear.is_empty()
    }

    /// Whether it is not known in full who holds what.
    pub fn unclear(&self, fs: FsId) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).unclear.contains(&fs)
    }

    /// Whether another session than `session` may be changing the inode.
    pub fn written_by_other(&self, fs: FsId, ino: InodeNo, session: SessionId) -> bool {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let holders = table.holders.get(&(fs, ino)).map(Vec::as_slice).unwrap_or_default();
        table.unclear.contains(&fs)
            || holders.iter().any(|&(holder, mode)| holder != session && is_writing(mode))
    }

    /// The sessions that have the inode open, or hold more of it.
    pub fn openers(&self, fs: FsId, ino: InodeNo) -> Vec<SessionId> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let holders = table.holders.get(&(fs, ino)).map(Vec::as_slice).unwrap_or_default();
        holders.iter().map(|(session, _)| *session).collect()
    }
}

fn is_writing(mode: TokenMode) -> bool {
    matches!(mode, TokenMode::Write | TokenMode::Part)
}
