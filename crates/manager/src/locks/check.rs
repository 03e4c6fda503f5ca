//! What the module says of its state, looked at in debug builds after each change. Only what its own code sees to is asked:
//! claims come from outside and are believed, so what stands on them may clash.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{InodeNo, SessionId};
use wire::lock::LockKind;

use super::{Ask, Entry, FAIR_FOR, Locks};

/// Of more than this many locks, waiters or inodes only the changed inode's place in the indexes is looked at: a check
/// costs no more than the change itself.
const CHECKED_MAX: usize = 64;

impl Locks {
    /// Looks at an inode whose waiters were answered at `now`, and at the indexes.
    pub(super) fn check(&self, ino: InodeNo, now: Duration) {
        if cfg!(debug_assertions) {
            self.check_inode(ino, now);
            self.check_indexes();
        }
    }

    /// The same of every inode.
    pub(super) fn check_all(&self, now: Duration) {
        if cfg!(debug_assertions) && self.inodes.len() <= CHECKED_MAX {
            self.inodes.keys().for_each(|&ino| self.check_inode(ino, now));
            self.check_indexes();
        }
    }

    fn check_inode(&self, ino: InodeNo, now: Duration) {
        let Some(entry) = self.inodes.get(&ino) else {
            return assert!(!self.busy.contains(&ino), "{ino}: nobody waits there");
        };
        assert_eq!(self.busy.contains(&ino), !entry.waiting.is_empty(), "{ino}: somebody waits there");
        assert!(!entry.held.is_empty() || !entry.waiting.is_empty(), "{ino}: kept for nothing");
        let gone = entry.seqs.keys().filter(|session| !self.members.contains_key(session));
        assert_eq!(gone.count(), 0, "{ino}: numbers of sessions that are gone");
        if entry.held.all().len().max(entry.waiting.len()) <= CHECKED_MAX {
            check_held(ino, entry);
            if self.ready() {
                check_waiting(ino, entry, now);
            }
        }
    }

    /// The indexes say what the inodes say.
    pub(super) fn check_indexes(&self) {
        let ranges: usize = self.inodes.values().take(CHECKED_MAX).map(|e| e.held.all().len()).sum();
        if !cfg!(debug_assertions) || self.inodes.len() > CHECKED_MAX || ranges > CHECKED_MAX * CHECKED_MAX {
            return;
        }
        let busy: BTreeSet<InodeNo> =
            self.inodes.iter().filter(|(_, entry)| !entry.waiting.is_empty()).map(|(&ino, _)| ino).collect();
        assert_eq!(self.busy, busy, "inodes that somebody waits for");
        let mut held: BTreeMap<SessionId, usize> = self.members.keys().map(|&session| (session, 0)).collect();
        for lock in self.inodes.values().flat_map(|entry| entry.held.all()) {
            *held.entry(lock.holder).or_default() += 1;
        }
        let counted: BTreeMap<SessionId, usize> = self.members.iter().map(|(&s, m)| (s, m.held)).collect();
        assert_eq!(counted, held, "ranges that each session holds");
    }

    /// Who was just told to wait waits in no circle: whoever it waits for, and they wait for, is not itself.
    pub(super) fn check_no_circle(&self, session: SessionId, owner: u64) {
        let waiting = || {
            let entries = self.busy.iter().filter_map(|ino| self.inodes.get(ino));
            entries.flat_map(|entry| entry.waiting.iter().map(move |waiter| (entry, waiter)))
        };
        if !cfg!(debug_assertions) || waiting().take(CHECKED_MAX + 1).count() > CHECKED_MAX {
            return;
        }
        let mut for_whom = BTreeSet::new();
        for (entry, waiter) in waiting().filter(|(_, w)| w.ask == Ask::Wait && w.lock.kind == LockKind::Fcntl)
        {
            let holders = entry.held.against(waiter.session, &waiter.lock);
            for_whom.extend(holders.map(|h| ((waiter.session, waiter.lock.owner), (h.holder, h.lock.owner))));
        }
        let mut reached = BTreeSet::from([(session, owner)]);
        loop {
            let further: BTreeSet<_> =
                for_whom.iter().filter(|(who, _)| reached.contains(who)).map(|(_, whom)| *whom).collect();
            assert!(!further.contains(&(session, owner)), "owner {owner} of {session} waits for itself");
            let before = reached.len();
            reached.extend(further);
            if reached.len() == before {
                return;
            }
        }
    }
}

/// Locks of different owners go together, as far as they were given here.
fn check_held(ino: InodeNo, entry: &Entry) {
    if entry.claimed {
        return;
    }
    for held in entry.held.all() {
        let clash = entry.held.against(held.holder, &held.lock).next();
        assert!(clash.is_none(), "{ino}: {held:?} was given beside {clash:?}");
    }
}

/// Who waits and would hear of it waits for what is held, or shortly behind another.
fn check_waiting(ino: InodeNo, entry: &Entry, now: Duration) {
    for (at, waiter) in entry.waiting.iter().enumerate().filter(|(_, w)| w.ticket.is_some()) {
        let kept = entry.held.against(waiter.session, &waiter.lock).next().is_some();
        let own = (waiter.session, waiter.lock.owner);
        let mut before = entry.waiting.iter().take(at).filter(|w| (w.session, w.lock.owner) != own);
        let behind = now < waiter.since + FAIR_FOR && before.any(|w| !w.lock.goes_with(&waiter.lock));
        assert!(waiter.ask == Ask::Wait && (kept || behind), "{ino}: {waiter:?} waits for nothing");
    }
}
