//! READs for the kernel's pages that have failed after a long wait.
//!
//! The kernel reads ahead for a program that waits for one of the pages. When that fails it asks once more for this page alone, and the
//! program would wait as long again: its wait began with the first. So who comes for the same bytes soon after has the same
//! answer at once. A program that tries again by itself has it too, for as long; what is read or changed meanwhile of the file ends that.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant},
};

use base::InodeNo;
use parking_lot::Mutex;

use crate::{
    calls::Errno,
    request::{Header, Operation},
};

/// A READ that took less costs nobody much when it is made again.
const LONG: Duration = Duration::from_secs(1);
/// The kernel asks again as soon as the program runs.
const KEPT: Duration = Duration::from_secs(2);
/// Failures that are kept, the last ones: as many as the kernel may have under way of its own accord, and more.
const KEPT_MAX: usize = 1024;

/// What a READ that fills pages of the kernel's is to bring.
#[derive(Clone, Copy)]
pub struct Asked {
    ino: InodeNo,
    from: u64,
    end: u64,
}

impl Asked {
    /// Of a request, if it is such a READ.
    pub fn of(header: &Header, operation: &Operation) -> Option<Asked> {
        let Operation::Read { fills: true, offset, size, .. } = *operation else { return None };
        Some(Asked { ino: header.ino, from: offset, end: offset.saturating_add(size.into()) })
    }

    fn is_part_of(&self, other: &Asked) -> bool {
        self.ino == other.ino && other.from <= self.from && self.end <= other.end
    }
}

/// See the file's head.
#[derive(Default)]
pub struct Unread {
    /// With the time of the failure, in its order.
    failed: Mutex<VecDeque<(Asked, Instant)>>,
    /// How many: nobody looks where there are none.
    count: AtomicUsize,
}

impl Unread {
    /// Whether all of this was asked for by a READ that has just failed.
    pub fn has(&self, asked: Asked, now: Instant) -> bool {
        if self.count.load(SeqCst) == 0 {
            return false;
        }
        let mut failed = self.failed.lock();
        self.forget(&mut failed, |_, at| now >= at + KEPT);
        failed.iter().any(|(of, _)| asked.is_part_of(of))
    }

    /// A READ that came at `begun` is about to be answered.
    pub fn answered(&self, asked: Asked, error: Option<Errno>, begun: Instant) {
        match error {
            None => self.moved(asked.ino),
            Some(Errno::EIO) => self.failed_at(asked, begun, Instant::now()),
            _ => {}
        }
    }

    /// Something of the file was read, or changed.
    pub fn moved(&self, ino: InodeNo) {
        if self.count.load(SeqCst) > 0 {
            self.forget(&mut self.failed.lock(), |of, _| of.ino == ino);
        }
    }

    fn failed_at(&self, asked: Asked, begun: Instant, now: Instant) {
        if now < begun + LONG {
            return;
        }
        let mut failed = self.failed.lock();
        if failed.len() >= KEPT_MAX {
            failed.pop_front();
        }
        failed.push_back((asked, now));
        self.count.store(failed.len(), SeqCst);
    }

    fn forget(&self, failed: &mut VecDeque<(Asked, Instant)>, is_over: impl Fn(&Asked, Instant) -> bool) {
        failed.retain(|(of, at)| !is_over(of, *at));
        self.count.store(failed.len(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ino: u64, from: u64, end: u64) -> Asked {
        Asked { ino: InodeNo(ino), from, end }
    }

    #[test]
    fn who_asks_again_for_what_failed_after_a_long_wait_is_told_at_once_and_for_a_moment() {
        let (unread, begun) = (Unread::default(), Instant::now());
        unread.failed_at(asked(7, 0, 4096), begun, begun + LONG / 2);
        assert!(!unread.has(asked(7, 0, 4096), begun + LONG / 2), "that cost nobody much");
        let failed = begun + Duration::from_secs(60);
        unread.failed_at(asked(7, 8192, 65536), begun, failed);
        assert!(unread.has(asked(7, 12288, 16384), failed));
        assert!(unread.has(asked(7, 8192, 65536), failed + KEPT / 2));
        assert!(!unread.has(asked(7, 4096, 12288), failed), "nobody asked for the first of it");
        assert!(!unread.has(asked(7, 61440, 69632), failed), "nor for the last");
        assert!(!unread.has(asked(8, 12288, 16384), failed), "nor for another file");
        unread.answered(asked(8, 0, 4096), None, failed);
        assert!(unread.has(asked(7, 12288, 16384), failed));
        unread.answered(asked(7, 0, 4096), None, failed);
        assert!(!unread.has(asked(7, 12288, 16384), failed), "something of it could be read");
        unread.failed_at(asked(7, 8192, 65536), begun, failed);
        assert!(!unread.has(asked(7, 12288, 16384), failed + KEPT), "it may be had by now");
    }

    #[test]
    fn only_so_many_are_kept() {
        let (unread, begun) = (Unread::default(), Instant::now());
        (0..=KEPT_MAX as u64).for_each(|ino| unread.failed_at(asked(ino, 0, 4096), begun, begun + LONG));
        assert!(!unread.has(asked(0, 0, 4096), begun + LONG));
        assert!(unread.has(asked(1, 0, 4096), begun + LONG));
    }
}
