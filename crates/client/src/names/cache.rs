//! What is known of names in all directories together.

use std::sync::{Arc, atomic::AtomicUsize};

use super::{hint::Hints, recent::Recent};

/// See the file's head.
#[derive(Default)]
pub(crate) struct NameCaches {
    /// Names in directories of which all are known.
    pub all: Arc<AtomicUsize>,
    /// Names kept under tokens.
    pub kept: Arc<AtomicUsize>,
    /// What names led to when the kernel asked last.
    pub hints: Hints,
    /// Directories that were listed just now.
    pub recent: Recent,
}
