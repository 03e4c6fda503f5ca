//! The long read of which a copy is made: it ends early when nobody wants the copy any more, and it is seen how far it has come.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::super::{Read, StoreError, Visit};

/// Reads no more once the flag is set.
pub struct UntilEnd<'a> {
    pub(super) read: &'a dyn Read,
    pub(super) ends: &'a AtomicBool,
    /// Records read.
    pub(super) seen: &'a AtomicU64,
}

impl UntilEnd<'_> {
    /// Whether it is.
    pub fn ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

impl Read for UntilEnd<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.read.get(key)
    }
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        self.read.scan(start, end, &mut |key, value| match self.ended() {
            true => ControlFlow::Break(()),
            false => {
                self.seen.fetch_add(1, Ordering::Relaxed);
                visit(key, value)
            }
        })
    }
}
