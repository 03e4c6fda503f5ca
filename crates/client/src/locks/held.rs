//! The locks of programs that this session holds, as they are claimed when the manager begins anew, and what of them
//! goes with which close.
//!
//! Invariant: a handle stands in [`OfInode::through`] for an owner only while that owner holds something. What is given up with a
//! handle is never what its owner has set since: not if a close by it has given all up before, nor while what is given up is under
//! way, which whoever sets anew waits for.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use base::InodeNo;
use tokio::sync::Notify;
use wire::{
    lock::{END, Lock, LockKind, LockMode},
    lock_set::LockSet,
};

use crate::files::handle::Handle;

/// See the file's head.
#[derive(Default)]
pub(crate) struct Locks {
    /// Number of the last change.
    seq: u64,
    /// Counts claims: an answer to what was asked before one may be of a manager that is gone.
    pub claims: u64,
    /// Locks given up with their handles so far.
    pub closed: u64,
    /// Number of the last turn: [`OfInode::freeing`].
    turn: u64,
    /// Something has been given up.
    freed: Arc<Notify>,
    pub inodes: HashMap<InodeNo, OfInode>,
}

/// Whose locks, of those on one inode.
pub(crate) type Whose = (LockKind, u64);

/// Everything that an owner has of a file.
pub(crate) fn all_of((kind, owner): Whose) -> Lock {
    Lock { kind, mode: LockMode::None, owner, pid: 0, start: 0, end: END }
}

/// What is held on one inode.
#[derive(Default)]
pub(crate) struct OfInode {
    pub held: LockSet<()>,
    /// Who has set a lock through which handle.
    through: BTreeSet<(Handle, LockKind, u64)>,
    /// Whose locks are being given up, each from its turn on until the manager has done so, however long that takes.
    freeing: BTreeMap<u64, Whose>,
    /// Locks being given up with their handles.
    pub closing: u32,
    /// Handles that have locks and of which a descriptor was closed since: perhaps the last one, which is told later.
    pub flushed: BTreeSet<Handle>,
}

impl OfInode {
    /// The manager has set a lock, or given up what it covers.
    pub fn set(&mut self, handle: Handle, lock: Lock) {
        self.held.set((), lock, Duration::ZERO);
        let whose = (lock.kind, lock.owner);
        if lock.mode == LockMode::None {
            if self.held.of((), &all_of(whose)).next().is_none() {
                self.left(whose);
            }
            return;
        }
        if lock.kind == LockKind::Flock {
            // Its owner is one open file: another handle that had the number is closed, and replaced here.
            self.left(whose);
        }
        self.through.insert((handle, lock.kind, lock.owner));
        self.flushed.remove(&handle);
    }

    /// An owner holds nothing, or gives all up: no handle of it has anything to give up with its close.
    pub fn left(&mut self, whose: Whose) {
        self.through.retain(|by| (by.1, by.2) != whose);
        let through = &self.through;
        self.flushed.retain(|handle| through.iter().any(|by| by.0 == *handle));
    }

    /// A descriptor of a handle is closed, not necessarily the last one.
    pub fn note_flush(&mut self, handle: Handle) {
        if self.through.iter().any(|by| by.0 == handle) {
            self.flushed.insert(handle);
        }
    }

    /// A handle is closed: whose locks go with it. An owner who has set others through another handle since keeps all: a process
    /// gave up with its own close what it had before, and of an open file the number was given to the next one.
    pub fn closed(&mut self, handle: Handle) -> Vec<Whose> {
        self.flushed.remove(&handle);
        let gone: Vec<_> = self.through.extract_if(.., |by| by.0 == handle).collect();
        let kept = |whose: &Whose| self.through.iter().any(|by| (by.1, by.2) == *whose);
        gone.into_iter().map(|by| (by.1, by.2)).filter(|whose| !kept(whose)).collect()
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.through.is_empty() && self.closing == 0 && self.freeing.is_empty()
    }
}

impl Locks {
    pub fn number(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn change(&mut self, ino: InodeNo, change: impl FnOnce(&mut OfInode)) {
        let of = self.inodes.entry(ino).or_default();
        change(of);
        if of.is_empty() {
            self.inodes.remove(&ino);
        }
    }

    /// Locks of an owner are about to be given up; ends with [`Locks::end_freeing`] of what is returned.
    pub fn begin_freeing(&mut self, ino: InodeNo, whose: Whose) -> u64 {
        let turn = self.turn();
        self.change(ino, |of| {
            of.freeing.insert(turn, whose);
        });
        turn
    }

    /// They are, or nobody tries any more.
    pub fn end_freeing(&mut self, ino: InodeNo, turn: u64) {
        self.change(ino, |of| {
            of.freeing.remove(&turn);
        });
        self.freed.notify_waiters();
    }

    /// The next turn. What began to be given up before it comes first.
    pub fn turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Whom to wait for before a lock is set in this turn, if anything of its owner is still being given up that came first.
    pub fn freed_before(&self, ino: InodeNo, whose: Whose, turn: u64) -> Option<Arc<Notify>> {
        let mut before = self.inodes.get(&ino)?.freeing.range(..turn);
        before.any(|(_, of)| *of == whose).then(|| self.freed.clone())
    }

    /// Locks of an inode being given up with their handles, and how many of all inodes were.
    pub fn closing(&self, ino: InodeNo) -> (u32, u64) {
        (self.inodes.get(&ino).map_or(0, |of| of.closing), self.closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Whose = (LockKind::Fcntl, 7);
    const INO: InodeNo = InodeNo(5);

    fn lock(whose: Whose, mode: LockMode, start: u64) -> Lock {
        Lock { mode, start, end: start + 9, ..all_of(whose) }
    }

    #[test]
    fn what_was_unlocked_does_not_go_with_its_handle() {
        let mut of = OfInode::default();
        let (first, second) = (Handle(1), Handle(2));
        of.set(first, lock(PROCESS, LockMode::Exclusive, 0));
        of.set(first, lock(PROCESS, LockMode::Exclusive, 20));
        of.set(first, lock(PROCESS, LockMode::None, 0));
        of.note_flush(first);
        assert!(of.flushed.contains(&first), "something is left");
        of.set(first, lock(PROCESS, LockMode::None, 20));
        assert!(of.flushed.is_empty() && of.is_empty());
        of.set(second, lock(PROCESS, LockMode::Exclusive, 0));
        assert_eq!((of.closed(first), of.closed(second)), (vec![], vec![PROCESS]));
    }

    #[test]
    fn what_an_owner_holds_through_another_handle_stays() {
        let (first, second) = (Handle(1), Handle(2));
        for whose in [PROCESS, (LockKind::Flock, 9)] {
            // The first handle's close comes late, when its owner's number is another open file's.
            let mut of = OfInode::default();
            of.set(first, lock(whose, LockMode::Exclusive, 0));
            of.note_flush(first);
            of.set(second, lock(whose, LockMode::Exclusive, 0));
            assert_eq!((of.closed(first), of.flushed.is_empty()), (vec![], true), "{whose:?}");
            assert_eq!(of.closed(second), [whose]);
        }
    }

    #[test]
    fn who_sets_waits_for_what_was_being_given_up_before() {
        let mut locks = Locks::default();
        let early = locks.turn();
        let freeing = [locks.begin_freeing(INO, PROCESS), locks.begin_freeing(INO, (LockKind::Flock, 7))];
        let late = locks.turn();
        let other = locks.begin_freeing(INO, PROCESS);
        let waits = |locks: &Locks, turn| locks.freed_before(INO, PROCESS, turn).is_some();
        assert_eq!((waits(&locks, early), waits(&locks, late)), (false, true));
        locks.end_freeing(INO, freeing[0]);
        assert!(!waits(&locks, late), "neither another owner's nor what began afterwards");
        locks.end_freeing(INO, freeing[1]);
        locks.end_freeing(INO, other);
        assert!(locks.inodes.is_empty());
    }
}
