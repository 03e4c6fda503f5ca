//! How a store fails.

use std::path::PathBuf;

use thiserror::Error;

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
    /// The journal goes on where the table has not come to: it is copied anew.
    #[error("go on with the store: {reason}")]
    Behind {
        /// What is missing.
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
