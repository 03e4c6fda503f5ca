//! What can go wrong in the manager as a whole. What a single request is refused for is
//! `wire::mgr::MgrError`.

use std::path::PathBuf;

use thiserror::Error;
use wire::version::Span;

use crate::{
    keys::ReadError,
    store::{BadRecord, StoreError},
};

/// Why the manager cannot be made, opened or go on.
#[derive(Debug, Error)]
pub enum ManagerError {
    /// The directory holds something already.
    #[error("{path} is not empty: a manager needs a directory of its own; name another one, or empty it")]
    DirectoryUsed {
        /// The directory.
        path: PathBuf,
    },
    /// There is no manager's store in the directory.
    #[error("{path} holds no manager's store: make the cluster first")]
    NotFormatted {
        /// The directory.
        path: PathBuf,
    },
    /// The cluster is at a level that this build does not know.
    #[error(
        "{path} is of a cluster at level {found}, and this ropewalk knows levels {levels}: {}",
        if *found > levels.greatest.into() {
            "it is too old; what a newer version has finalized stays so: start that one"
        } else {
            "it is too new; start the version before, and give `ropewalk cluster finalize` with it"
        }
    )]
    OtherVersion {
        /// The store.
        path: PathBuf,
        /// Its level.
        found: u32,
        /// Ours.
        levels: Span,
    },
    /// The description of the cluster contradicts itself.
    #[error("cluster description: {field}: {reason}")]
    BadSpec {
        /// Which part.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// A file or directory could not be made or read.
    #[error("{action} {path}")]
    Io {
        /// What was done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The dump to restore from is damaged or of another version.
    #[error("dump: {reason} at byte {offset}")]
    BadDump {
        /// Where.
        offset: u64,
        /// What.
        reason: String,
    },
    /// A dump was asked for of what is damaged.
    #[error(
        "{what} is damaged; nothing was written (`ropewalk manager check` says what else is; --damaged leaves such records out)"
    )]
    Damaged {
        /// The first.
        what: String,
    },
    /// Nothing is to be given up.
    #[error("{path} lacks nothing: start it")]
    NothingLost {
        /// The store.
        path: PathBuf,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record in the store is damaged.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// The manager has stopped (after a store failure, or because it was told to).
    #[error("the manager has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
}

impl ManagerError {
    /// The table is too far behind the journal, and is copied anew.
    pub fn is_behind(&self) -> bool {
        matches!(self, ManagerError::Store(StoreError::Behind { .. }))
    }

    /// Another process has the store open.
    pub fn is_in_use(&self) -> bool {
        matches!(self, ManagerError::Store(StoreError::InUse { .. }))
    }
}

impl From<ReadError> for ManagerError {
    fn from(error: ReadError) -> ManagerError {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::Record(error) => error.into(),
        }
    }
}
