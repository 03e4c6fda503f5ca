//! What was done ahead of the manager and is not told, oldest first, as a plain state machine.
//!
//! Invariants: it is told from its front, so what the manager has is a beginning of it. Inode numbers in it rise, each is taken once, and
//! more are asked for only when none is left and all before is told. What is closed is lost, and said to be so for ever.

use std::{collections::VecDeque, ops::Range};

use base::InodeNo;
use wire::mgr::Change;

use crate::error::Errno;

/// Changes that may wait; who makes more does so at the manager, after these.
const UNTOLD_MAX: usize = 4096;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Untold {
    /// Each with the inode that was made last up to it.
    queue: VecDeque<(InodeNo, Change)>,
    /// How many were told.
    told: u64,
    numbers: Range<u64>,
    lost: bool,
    /// Nothing is told any more.
    closed: bool,
}

impl Untold {
    fn is_full(&self) -> bool {
        self.closed || self.queue.len() >= UNTOLD_MAX
    }

    /// Appends what `make` says with its inode number. None: there is no number, no room, or `make` says nothing.
    pub fn make(&mut self, make: impl FnOnce(InodeNo) -> Option<Change>) -> Option<InodeNo> {
        if self.is_full() || self.wants_numbers() {
            return None;
        }
        let ino = InodeNo(self.numbers.start);
        let change = make(ino)?;
        self.numbers.start += 1;
        self.queue.push_back((ino, change));
        Some(ino)
    }

    /// Appends what `make` says of what is there; false: no room, or it says nothing.
    pub fn change(&mut self, make: impl FnOnce() -> Option<Change>) -> bool {
        if self.is_full() {
            return false;
        }
        let Some(change) = make() else { return false };
        // What is looked for by number is found behind what made it.
        let last = self.queue.back().map_or(InodeNo(0), |(ino, _)| *ino);
        self.queue.push_back((last, change));
        true
    }

    /// Whether more numbers are to be asked for.
    pub fn wants_numbers(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Numbers were granted.
    pub fn add_numbers(&mut self, first: InodeNo, count: u32) {
        self.numbers = first.0..first.0 + u64::from(count);
    }

    /// How many are not told.
    pub fn count(&self) -> usize {
        self.queue.len()
    }

    /// How many were told.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// How many there were.
    pub fn end(&self) -> u64 {
        self.told + self.queue.len() as u64
    }

    /// How many are to be told until an inode is.
    pub fn made_at(&self, ino: InodeNo) -> u64 {
        let at = self.queue.binary_search_by_key(&ino, |(made, _)| *made);
        // What is not among them is told.
        at.map_or(0, |at| self.told + at as u64 + 1)
    }

    /// Whether so many are told. `EIO`: something is lost.
    pub fn is_told(&self, end: u64) -> Result<bool, Errno> {
        if self.lost { Err(Errno::EIO) } else { Ok(self.told >= end) }
    }

    /// What is to be told next, at most `max`. It stays.
    pub fn front(&self, max: usize) -> Vec<Change> {
        self.queue.iter().take(max).map(|(_, change)| change.clone()).collect()
    }

    /// The first `count` are told; less if it was closed meanwhile.
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.queue.len());
        self.queue.drain(..count);
        self.told += count as u64;
    }

    /// What is here will not be told, and nothing is appended any more. Returns how much is lost by it.
    pub fn close(&mut self) -> usize {
        let count = self.queue.len();
        self.lost |= count > 0;
        self.closed = true;
        self.queue.clear();
        count
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether something was closed away.
    pub fn is_lost(&self) -> bool {
        self.lost
    }
}
