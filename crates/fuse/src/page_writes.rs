//! What the kernel writes of its pages: how much, and how much of it failed at the end of a mount.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// WRITEs of the kernel's pages, in bytes.
#[derive(Default)]
pub struct PageWrites {
    written: AtomicU64,
    under_way: AtomicU64,
    /// How many did not write all that they should.
    failures: AtomicU64,
    /// Since the mount was told to end, bytes.
    failed: AtomicU64,
    ending: AtomicBool,
    refused: AtomicBool,
    /// The kernel's side was ended before all was written.
    cut_off: AtomicBool,
}

impl PageWrites {
    /// One is with us.
    pub fn begun(&self, bytes: u64) {
        self.under_way.fetch_add(bytes, SeqCst);
    }

    /// That one is done.
    pub fn done(&self, bytes: u64, all_written: bool) {
        self.under_way.fetch_sub(bytes, SeqCst);
        if all_written {
            self.written.fetch_add(bytes, SeqCst);
            return;
        }
        self.failures.fetch_add(1, SeqCst);
        if self.ending.load(SeqCst) {
            self.failed.fetch_add(bytes, SeqCst);
        }
    }

    /// How many did not write all that they should, since the mount began.
    pub fn failures(&self) -> u64 {
        self.failures.load(SeqCst)
    }

    /// The mount was told to end: what fails from now on is lost.
    pub fn end_begins(&self) {
        self.ending.store(true, SeqCst);
    }

    /// The kernel's side was ended before all was written. True the first time.
    pub fn cut_off(&self) -> bool {
        !self.cut_off.swap(true, SeqCst)
    }

    /// From now on requests for pages are refused.
    pub fn refuse(&self) {
        self.refused.store(true, SeqCst);
    }

    /// Bytes that could not be written since the end began.
    pub fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    /// Whether requests for pages are refused now.
    pub fn are_refused(&self) -> bool {
        self.refused.load(SeqCst)
    }

    /// One was.
    pub fn refused(&self, bytes: u64) {
        self.failures.fetch_add(1, SeqCst);
        self.failed.fetch_add(bytes, SeqCst);
    }

    /// Written so far.
    pub fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    /// What was to be written when the mount was told to end, and is not known to be: so many bytes at least.
    pub fn lost(&self) -> Option<u64> {
        let bytes = self.failed.load(SeqCst) + self.under_way.load(SeqCst);
        let is_lost = self.ending.load(SeqCst) && (bytes > 0 || self.cut_off.load(SeqCst));
        is_lost.then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_is_what_failed_since_the_end_and_what_never_came_back() {
        let pages = PageWrites::default();
        pages.begun(4096);
        pages.done(4096, false);
        assert_eq!(pages.lost(), None, "the program was told");
        pages.end_begins();
        for all_written in [true, false] {
            pages.begun(8192);
            pages.done(8192, all_written);
        }
        pages.refused(1);
        assert_eq!((pages.written(), pages.lost(), pages.failures()), (8192, Some(8193), 3));
    }
}
