//! The store: an ordered map from bytes to bytes with snapshots and atomic, durable commits.
//!
//! The trait is small on purpose, so that another store (a replicated one) fits behind it: read
//! snapshots, and one call that commits a set of changes. One writer prepares changes in a [`Txn`]
//! above a snapshot; nobody else commits meanwhile. When `commit` returns, the changes survive a power
//! cut; when it fails, the manager stops, because what is on disk is not known any more.

mod blocks;
mod dump;
#[cfg(test)]
mod flips;
mod journal;
mod journaled;
mod look;
mod mark;
#[cfg(test)]
pub(crate) mod memory;
mod recent;
mod record;
mod redb;
mod txn;
mod unflushed;
#[cfg(test)]
pub(crate) mod volatile;

use std::{collections::BTreeMap, ops::ControlFlow, path::PathBuf, sync::Arc};

use thiserror::Error;

pub use self::{
    dump::{Damaged, dump, restore},
    journaled::{JournaledStore, journal_path, mark_path},
    look::{Look, beside, copy, salvage},
    record::{BadRecord, KeyText, Record, is_whole, open_bytes, open_record, seal_bytes, seal_record},
    redb::RedbStore,
    txn::Txn,
};

/// Keys to their new values; none is a deletion.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a scan calls for each key and value; it may stop the scan.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Reading: a snapshot, or a transaction above one.
pub trait Read {
    /// The value at `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
    /// Calls `visit` for every key in `start..end`, rising, until it breaks.
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError>;
}

/// A consistent view of what was committed when it was taken.
pub type Snapshot = Arc<dyn Read + Send + Sync>;

/// A store.
pub trait Store: Send + Sync + 'static {
    /// The state of the last commit.
    fn snapshot(&self) -> Result<Snapshot, StoreError>;
    /// Applies all changes or none, durably.
    fn commit(&self, changes: &Changes) -> Result<(), StoreError>;
    /// Where it is and how safe that is, for people.
    fn describe(&self) -> String;
    /// Whether commits and long reads want threads of their own, since they wait for a device. Without,
    /// everything runs in one thread, the same way each time.
    fn waits(&self) -> bool {
        true
    }
    /// Blocks found damaged since it was opened.
    fn damage(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Reads up to `count` blocks from `first` on from the device and compares them with their CRCs; the block to go on
    /// with, none at the end. What is damaged is among [`damage`](Self::damage) then.
    fn scrub(&self, _first: u64, _count: u64) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
}

/// The store failed.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("{path} is in use by another manager process")]
    InUse {
        /// The store.
        path: PathBuf,
    },
    /// Opening failed.
    #[error("open store {path}: {reason}")]
    Open {
        /// The store.
        path: PathBuf,
        /// What the engine says.
        reason: String,
    },
    /// What a read needs is damaged: EIO to whoever wants it. Others go on.
    #[error("the manager's table is damaged: {reason}")]
    Damaged {
        /// What the engine says.
        reason: String,
    },
    /// Reading, writing or committing failed.
    #[error("{action} store: {reason}")]
    Engine {
        /// What was done.
        action: &'static str,
        /// What the engine says.
        reason: String,
    },
}

/// The first key that does not start with `prefix` and lies behind all that do.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // No such key exists for an empty or all-ones prefix; keys of this store start with a letter.
    vec![u8::MAX; 16]
}
