//! What was done ahead of the manager and is not told, oldest first, as a plain state machine.
//!
//! Invariants: it is told from its front, so what the manager has is a beginning of it. Inode numbers in it rise, each is taken once, and
//! more are asked for only when none is left and all before is told. What is closed is lost, and said to be so for ever.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use base::InodeNo;
use wire::mgr::Change;

use crate::error::Errno;

/// Changes that may wait; who makes more waits for room.
const UNTOLD_MAX: usize = 4096;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Untold {
    /// Each with the inode that was made last up to it.
    queue: VecDeque<(InodeNo, Change)>,
    /// Of each inode that a change in the queue concerns, how many are told with the last such one.
    last: BTreeMap<InodeNo, u64>,
    /// The same of one that may concern any.
    all: u64,
    /// How many were told.
    told: u64,
    numbers: Range<u64>,
    lost: bool,
    /// Nothing is told any more.
    closed: bool,
}

/// The inodes that a change concerns: any other one is after it as it was before. None: it is not known which.
fn concerned(change: &Change) -> Option<impl Iterator<Item = InodeNo>> {
    let of = match *change {
        Change::CreateAs { ino, parent, .. } => [Some(ino), Some(parent), None, None],
        Change::Unlink { parent, expect, .. } => [Some(parent), Some(expect?), None, None],
        Change::Rename { parent, new_parent, expect, .. } => {
            let (moved, lost) = expect?;
            [parent, new_parent, moved, lost].map(Some)
        }
        Change::SetAttr { ino, .. } => [Some(ino), None, None, None],
        _ => return None,
    };
    Some(of.into_iter().flatten())
}

impl Untold {
    fn push(&mut self, made: InodeNo, change: Change) {
        let end = self.end() + 1;
        match concerned(&change) {
            Some(of) => self.last.extend(of.map(|ino| (ino, end))),
            None => self.all = end,
        }
        self.queue.push_back((made, change));
    }

    /// Whether nothing more can be appended now.
    pub fn is_full(&self) -> bool {
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
        self.push(ino, change);
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
        self.push(last, change);
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

    /// How many are to be told until there is room for one more.
    pub fn room_at(&self) -> u64 {
        (self.end() + 1).saturating_sub(UNTOLD_MAX as u64)
    }

    /// How many are to be told until an inode is.
    pub fn made_at(&self, ino: InodeNo) -> u64 {
        let at = self.queue.binary_search_by_key(&ino, |(made, _)| *made);
        // What is not among them is told.
        at.map_or(0, |at| self.told + at as u64 + 1)
    }

    /// How many are to be told until nothing that is left concerns an inode.
    pub fn concerned_at(&self, ino: InodeNo) -> u64 {
        self.last.get(&ino).copied().unwrap_or(0).max(self.all)
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
        self.told += count as u64;
        for (_, change) in self.queue.drain(..count) {
            for ino in concerned(&change).into_iter().flatten() {
                if self.last.get(&ino).is_some_and(|end| *end <= self.told) {
                    self.last.remove(&ino);
                }
            }
        }
    }

    /// What is here will not be told, and nothing is appended any more. Returns how much is lost by it.
    pub fn close(&mut self) -> usize {
        let count = self.queue.len();
        self.lost |= count > 0;
        self.closed = true;
        self.queue.clear();
        self.last.clear();
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

#[cfg(test)]
mod tests {
    use base::Version;
    use wire::mgr::{FileKind, Timestamp};

    use super::*;

    const NOW: Timestamp = Timestamp { secs: 0, nanos: 0 };

    fn make(ino: InodeNo, parent: u64) -> Change {
        let (kind, name) = (FileKind::File, b"a".to_vec());
        let parent = InodeNo(parent);
        Change::CreateAs {
            ino,
            parent,
            name,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
            now: NOW,
        }
    }

    fn unlink(parent: u64, ino: u64) -> Change {
        let (parent, expect, name) = (InodeNo(parent), Some(InodeNo(ino)), b"a".to_vec());
        let (directory, open, highest) = (false, false, Version::default());
        Change::Unlink { parent, name, directory, open, highest, expect, now: NOW }
    }

    #[test]
    fn it_knows_until_when_something_concerns_an_inode() {
        let mut log = Untold::default();
        log.add_numbers(InodeNo(10), 4);
        assert_eq!(log.make(|ino| Some(make(ino, 1))), Some(InodeNo(10)));
        assert_eq!(log.make(|ino| Some(make(ino, 2))), Some(InodeNo(11)));
        assert!(log.change(|| Some(unlink(1, 7))));
        let moved = Change::Rename {
            parent: InodeNo(3),
            name: b"a".to_vec(),
            new_parent: InodeNo(4),
            new_name: b"b".to_vec(),
            no_replace: false,
            exchange: false,
            open: false,
            highest: Version::default(),
            expect: Some((InodeNo(8), InodeNo(9))),
            now: NOW,
        };
        assert!(log.change(|| Some(moved)));
        let at = |log: &Untold| [1, 2, 3, 4, 7, 8, 9, 10, 11, 12].map(|ino| log.concerned_at(InodeNo(ino)));
        assert_eq!(at(&log), [3, 2, 4, 4, 3, 4, 4, 1, 2, 0]);
        log.advance(2);
        assert_eq!(at(&log), [3, 0, 4, 4, 3, 4, 4, 0, 0, 0]);
        let set = |ino| Change::SetAttr {
            ino: InodeNo(ino),
            mode: Some(0),
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            ctime: NOW,
            highest: Version::default(),
        };
        assert!(log.change(|| Some(set(12))));
        assert_eq!((log.concerned_at(InodeNo(12)), log.concerned_at(InodeNo(11))), (5, 0));
        // What may concern any is waited for by all.
        assert!(log.change(|| Some(Change::Numbers { count: 1 })));
        assert_eq!(log.concerned_at(InodeNo(11)), 6);
        log.advance(4);
        assert!(log.last.is_empty());
        assert_eq!(log.is_told(log.concerned_at(InodeNo(1))), Ok(true));
    }
}
