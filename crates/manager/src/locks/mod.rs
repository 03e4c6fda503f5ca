//! The locks of one file system that programs hold and wait for, on all mounts (docs/locks.md).
//!
//! A plain state machine: calls come with the time, answers are gathered in [`Answers`]. It holds nothing
//! across a restart: sessions claim what they hold, and until all have claimed or are gone nothing is given
//! or told, only given up.
//!
//! Invariants, looked at in debug builds after each change (`check.rs`): locks of different owners go together, as far as
//! they were given here: claims are believed. A session's locks stay until it gives them up or
//! [`Locks::drop_session`] says that it is fenced or ended cleanly. Whoever waits, waits for a lock that is
//! held, or for at most [`FAIR_FOR`] because somebody else waited before; who asks to wait for locks that are held
//! is not left waiting in a circle.

mod check;
mod rest;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use base::{InodeNo, SessionId};
use wire::{
    lock::{Lock, LockAnswer, LockKind, LockMode, LockReport, REARM},
    lock_set::LockSet,
};

use crate::ticket::Ticket;

/// Who asks later is kept waiting behind somebody for no longer than this: those who hold something that
/// the first one waits for may be behind it.
const FAIR_FOR: Duration = Duration::from_secs(1);
/// Ranges that one session may hold; who wants more is told [`LockAnswer::Full`], and so is who gives up the middle of one, which
/// makes two of it.
const HELD_MAX: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };
/// Ranges up to which a session's claims are taken: it held [`HELD_MAX`], one more of a range cut in the middle, and what its
/// [`WAITS_MAX`] were given. Who claims more lies, and is ended as one that does not claim.
const CLAIMED_MAX: usize = 2 * HELD_MAX;
/// Waits that it may have at a time.
const WAITS_MAX: usize = HELD_MAX / 8;

/// Whom to tell what.
pub type Answers = Vec<(Ticket, LockAnswer)>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ask {
    /// Now or not at all.
    Try,
    /// As soon as it can be had.
    Wait,
    /// What stands in the way?
    Test,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    session: SessionId,
    seq: u64,
    lock: Lock,
    ask: Ask,
    since: Duration,
    /// Whom to tell; none between two questions.
    ticket: Option<Ticket>,
    /// When that is told `Waits`, or when its place is given up.
    expires: Duration,
}

#[derive(Debug, Default, Clone)]
struct Entry {
    held: LockSet<SessionId>,
    /// Some of it was claimed: by what sessions say, it may clash.
    claimed: bool,
    waiting: VecDeque<Waiter>,
    /// Highest number of a change, of sessions that hold or wait for something here.
    seqs: BTreeMap<SessionId, u64>,
}

#[derive(Debug, Default, Clone)]
struct Member {
    boot: String,
    /// It has told what it holds.
    claimed: bool,
    ending: bool,
    /// Ranges that it holds.
    held: usize,
    /// Highest number of a change of inodes where nothing of it is left.
    floor: u64,
}

/// See the module.
#[derive(Debug, Default, Clone)]
pub struct Locks {
    /// Number under which claims are made.
    life: u64,
    members: BTreeMap<SessionId, Member>,
    inodes: BTreeMap<InodeNo, Entry>,
    /// Inodes that somebody waits for.
    busy: BTreeSet<InodeNo>,
    /// Sessions that hold what others want, since the last [`Locks::tick`].
    wanted: BTreeSet<SessionId>,
    /// Since when somebody waits for claims.
    stalled: Option<Duration>,
}

impl Locks {
    /// Nothing is held, but by those who will claim under the number `life`.
    pub fn new(life: u64) -> Locks {
        Locks { life, ..Locks::default() }
    }

    /// A session begins, or was there before the manager's start and may hold anything.
    /// `boot` is the life of its machine: process ids mean something to sessions of the same one.
    pub fn begin(&mut self, session: SessionId, boot: &str, claimed: bool) {
        let boot = boot.to_owned();
        self.members.insert(session, Member { boot, claimed, ..Member::default() });
    }

    /// The number under which a session is to claim what it holds, if it has not.
    pub fn to_claim(&self, session: SessionId) -> Option<u64> {
        self.members.get(&session).filter(|m| !m.claimed && !m.ending).map(|_| self.life)
    }

    fn ready(&self) -> bool {
        self.members.values().all(|member| member.claimed)
    }

    /// A session says what it holds.
    pub fn claim(
        &mut self,
        session: SessionId,
        life: u64,
        locks: &[(InodeNo, Lock)],
        last: bool,
        now: Duration,
    ) -> Answers {
        let mut answers = Vec::new();
        if life != self.life || self.to_claim(session).is_none() {
            return answers; // late
        }
        for (ino, lock) in locks.iter().filter(|(_, lock)| lock.is_valid()) {
            if self.members.get(&session).is_none_or(|member| member.held >= CLAIMED_MAX) {
                return answers;
            }
            self.inodes.entry(*ino).or_default().claimed = true;
            self.give(*ino, session, *lock, now);
        }
        if last {
            self.members.entry(session).or_default().claimed = true;
            self.settle_all(now, &mut answers);
        }
        self.check_all(now);
        answers
    }

    /// A session sets a lock, or gives it up; with `wait` it is answered when it has it.
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub fn set(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        seq: u64,
        lock: Lock,
        wait: bool,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
    ) -> Answers {
        let mut answers = Vec::new();
        let waiting = self.inodes.get_mut(&ino).map(|entry| &mut entry.waiting);
        let known = waiting.into_iter().flatten().find(|w| w.session == session && w.seq == seq);
        if let Some(waiter) = known {
            if let Some(old) = waiter.ticket.replace(ticket) {
                answers.push((old, LockAnswer::Superseded));
            }
            waiter.expires = expires;
        } else if !self.is_new(session, ino, seq) {
            answers.push((ticket, LockAnswer::Superseded));
        } else if lock.mode != LockMode::None && self.is_full(session)
            || self.splits_too_many(session, ino, &lock)
        {
            answers.push((ticket, LockAnswer::Full));
        } else if lock.mode == LockMode::None && self.to_claim(session).is_none() {
            // Giving up never has to wait.
            answers.push((ticket, LockAnswer::Done));
            self.give(ino, session, lock, now);
        } else {
            let ask = if wait { Ask::Wait } else { Ask::Try };
            self.enqueue(ino, Waiter { session, seq, lock, ask, since: now, ticket: Some(ticket), expires });
        }
        self.settle(ino, now, &mut answers);
        if self.is_waiting(ino, session, seq) && self.ready() && self.closes_circle(session, ino, &lock) {
            self.remove_waiter(ino, session, seq);
            self.settle(ino, now, &mut answers);
            answers.push((ticket, LockAnswer::Deadlock));
        }
        if self.ready() && self.is_waiting(ino, session, seq) {
            self.check_no_circle(session, lock.owner);
        }
        self.check(ino, now);
        answers
    }

    /// A session gives up waiting.
    pub fn cancel(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        seq: u64,
        wait: u64,
        now: Duration,
    ) -> Answers {
        let mut answers = Vec::new();
        // A copy of the wait that comes after this one is late.
        self.is_new(session, ino, seq);
        if let Some(waiter) = self.remove_waiter(ino, session, wait) {
            answers.extend(waiter.ticket.map(|ticket| (ticket, LockAnswer::Cancelled)));
        }
        self.settle(ino, now, &mut answers);
        self.check(ino, now);
        answers
    }

    /// What stands in the way of a lock.
    pub fn test(
        &mut self,
        session: SessionId,
        ino: InodeNo,
        lock: Lock,
        ticket: Ticket,
        expires: Duration,
        now: Duration,
    ) -> Answers {
        let mut answers = Vec::new();
        let ask = Ask::Test;
        self.enqueue(ino, Waiter { session, seq: 0, lock, ask, since: now, ticket: Some(ticket), expires });
        self.settle(ino, now, &mut answers);
        self.check(ino, now);
        answers
    }

    /// A session ends uncleanly: what it holds stays until it is fenced.
    pub fn end(&mut self, session: SessionId) {
        if let Some(member) = self.members.get_mut(&session) {
            member.ending = true;
            for ino in self.busy.clone() {
                self.change(ino, |entry| entry.waiting.retain(|waiter| waiter.session != session));
            }
        }
        self.check_indexes();
    }

    /// Sessions that are to be fenced.
    pub fn ending(&self) -> Vec<SessionId> {
        self.members.iter().filter(|(_, member)| member.ending).map(|(&session, _)| session).collect()
    }

    /// A session is gone: it ended cleanly, or is fenced. What it held is free.
    pub fn drop_session(&mut self, session: SessionId, now: Duration) -> Answers {
        let mut answers = Vec::new();
        self.members.remove(&session);
        for ino in self.inodes.keys().copied().collect::<Vec<_>>() {
            self.change(ino, |entry| {
                entry.held.retain(|held| held.holder != session);
                entry.waiting.retain(|waiter| waiter.session != session);
                entry.seqs.remove(&session);
            });
        }
        self.settle_all(now, &mut answers);
        self.check_all(now);
        answers
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Answers {
        let mut answers = Vec::new();
        self.wanted.clear();
        for ino in self.busy.clone() {
            self.change(ino, |entry| {
                entry.waiting.retain_mut(|waiter| {
                    let due = now >= waiter.expires;
                    if let Some(ticket) = waiter.ticket.take_if(|_| due) {
                        answers.push((ticket, LockAnswer::Waits));
                        waiter.expires = now + REARM;
                        return waiter.ask == Ask::Wait;
                    }
                    !due
                });
            });
            self.settle(ino, now, &mut answers);
        }
        if self.busy.is_empty() || self.ready() {
            self.stalled = None;
        } else {
            self.stalled.get_or_insert(now);
        }
        self.check_all(now);
        answers
    }

    /// Whether somebody is kept from a lock by this session.
    pub fn is_wanted(&self, session: SessionId) -> bool {
        self.wanted.contains(&session)
    }

    /// Sessions that have not claimed, though others have waited for it since before `since`.
    pub fn overdue(&self, since: Duration) -> Vec<SessionId> {
        let late = self.stalled.is_some_and(|stalled| stalled <= since);
        let silent = self.members.iter().filter(|(_, member)| late && !member.claimed && !member.ending);
        silent.map(|(&session, _)| session).collect()
    }

    /// Locks of inodes above `after`, of at least one inode and then at most `limit`, and whether there are
    /// more. Paths are empty.
    pub fn list(&self, after: InodeNo, limit: usize, now: Duration) -> (Vec<LockReport>, bool) {
        let mut reports = Vec::new();
        for (&ino, entry) in self.inodes.range((Excluded(after), Unbounded)) {
            if reports.len() >= limit {
                return (reports, true);
            }
            let report = |session, lock, since, waits| {
                let age_ms = now.saturating_sub(since).as_millis() as u64;
                LockReport { ino, path: Vec::new(), session, lock, waits, age_ms }
            };
            let mut held: Vec<LockReport> =
                entry.held.all().iter().map(|h| report(h.holder, h.lock, h.since, false)).collect();
            held.sort_by_key(|r| (r.lock.kind, r.lock.start, r.session, r.lock.owner));
            reports.append(&mut held);
            let waiting = entry.waiting.iter().filter(|waiter| waiter.ask == Ask::Wait);
            reports.extend(waiting.map(|w| report(w.session, w.lock, w.since, true)));
        }
        (reports, false)
    }

    /// Notes the number of a change; whether it is above all before it.
    fn is_new(&mut self, session: SessionId, ino: InodeNo, seq: u64) -> bool {
        let Some(member) = self.members.get(&session) else { return false };
        let entry = self.inodes.entry(ino).or_default();
        let last = entry.seqs.entry(session).or_insert(member.floor);
        let new = seq > *last;
        *last = seq.max(*last);
        new
    }

    fn is_full(&self, session: SessionId) -> bool {
        let waiting = self.busy.iter().filter_map(|ino| self.inodes.get(ino)).flat_map(|e| &e.waiting);
        self.members.get(&session).is_none_or(|member| member.held >= HELD_MAX)
            || waiting.filter(|waiter| waiter.session == session).count() >= WAITS_MAX
    }

    /// Whether a session that holds as much as it may would hold more by giving up the middle of a range.
    fn splits_too_many(&self, session: SessionId, ino: InodeNo, lock: &Lock) -> bool {
        let full = self.members.get(&session).is_some_and(|member| member.held >= HELD_MAX);
        let splits = |entry: &Entry| {
            let mut own = entry.held.of(session, lock);
            own.any(|held| held.lock.start < lock.start && lock.end < held.lock.end)
        };
        lock.mode == LockMode::None && full && self.inodes.get(&ino).is_some_and(splits)
    }

    fn enqueue(&mut self, ino: InodeNo, waiter: Waiter) {
        self.inodes.entry(ino).or_default().waiting.push_back(waiter);
        self.busy.insert(ino);
    }

    fn is_waiting(&self, ino: InodeNo, session: SessionId, seq: u64) -> bool {
        let entry = self.inodes.get(&ino);
        entry.is_some_and(|entry| entry.waiting.iter().any(|w| w.session == session && w.seq == seq))
    }

    fn remove_waiter(&mut self, ino: InodeNo, session: SessionId, seq: u64) -> Option<Waiter> {
        let mut removed = None;
        self.change(ino, |entry| {
            let at = entry.waiting.iter().position(|w| w.session == session && w.seq == seq);
            removed = at.and_then(|at| entry.waiting.remove(at));
        });
        removed
    }

    /// Changes an inode's entry, if there is one.
    fn change(&mut self, ino: InodeNo, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.inodes.get_mut(&ino) {
            change(entry);
            self.tidy(ino);
        }
    }

    /// Forgets what is not needed: an empty entry leaves the numbers of its sessions in their floors.
    fn tidy(&mut self, ino: InodeNo) {
        let Some(entry) = self.inodes.get(&ino) else { return };
        if entry.waiting.is_empty() {
            self.busy.remove(&ino);
            if entry.held.is_empty() {
                for (session, seq) in &entry.seqs {
                    if let Some(member) = self.members.get_mut(session) {
                        member.floor = member.floor.max(*seq);
                    }
                }
                self.inodes.remove(&ino);
            }
        }
    }

    /// Gives an owner a lock that it can have.
    fn give(&mut self, ino: InodeNo, session: SessionId, lock: Lock, now: Duration) {
        let (Some(entry), Some(member)) = (self.inodes.get_mut(&ino), self.members.get_mut(&session)) else {
            return;
        };
        hold(entry, member, session, lock, now);
        self.tidy(ino);
    }

    fn settle_all(&mut self, now: Duration, answers: &mut Answers) {
        for ino in self.busy.clone() {
            self.settle(ino, now, answers);
        }
    }

    /// Answers those who wait at an inode and can be answered, the first ones first.
    fn settle(&mut self, ino: InodeNo, now: Duration, answers: &mut Answers) {
        if !self.ready() {
            if self.busy.contains(&ino) {
                let silent = self.members.iter().filter(|(_, member)| !member.claimed);
                self.wanted.extend(silent.map(|(&session, _)| session));
            }
            return self.tidy(ino);
        }
        let Some(entry) = self.inodes.get_mut(&ino) else { return };
        let mut at = 0;
        while let Some(waiter) = entry.waiting.get(at).copied() {
            let Waiter { session, lock, .. } = waiter;
            // F_GETLK names the first one of the range.
            let first =
                entry.held.against(session, &lock).min_by_key(|held| (held.lock.start, held.lock.end));
            let against = first.map(|held| {
                let boot = |session| self.members.get(session).map(|member| &member.boot);
                let pid = if boot(&held.holder) == boot(&session) { held.lock.pid } else { 0 };
                Lock { pid, ..held.lock }
            });
            let Some(member) = self.members.get_mut(&session) else {
                entry.waiting.remove(at);
                continue;
            };
            // As on Linux: another mode on an open file is got by giving up the one it has first.
            let other_mode = entry.held.of(session, &lock).any(|held| held.lock.mode != lock.mode);
            if lock.kind == LockKind::Flock && waiter.ask != Ask::Test && other_mode {
                hold(entry, member, session, Lock { mode: LockMode::None, ..lock }, now);
                at = 0;
                continue;
            }
            let others = entry.held.against(session, &lock).map(|held| held.holder);
            self.wanted.extend(others.filter(|other| *other != session));
            let answer = match (waiter.ask, against) {
                (Ask::Test, against) => Some(LockAnswer::Held(against)),
                (Ask::Try, Some(_)) => Some(LockAnswer::Busy),
                (Ask::Wait, Some(_)) => None,
                (_, None) => Some(LockAnswer::Done),
            };
            let own = |other: &Waiter| other.session == session && other.lock.owner == lock.owner;
            // Who has something of the range may be the one that the others wait for.
            let has = entry.held.of(session, &lock).any(|held| held.lock.overlaps(&lock));
            let behind = waiter.ask == Ask::Wait
                && !has
                && now < waiter.since + FAIR_FOR
                && entry.waiting.iter().take(at).any(|first| !own(first) && !first.lock.goes_with(&lock));
            let (Some(answer), Some(ticket), false) = (answer, waiter.ticket, behind) else {
                at += 1;
                continue;
            };
            answers.push((ticket, answer));
            entry.waiting.remove(at);
            if answer == LockAnswer::Done && hold(entry, member, session, lock, now) {
                at = 0;
            }
        }
        self.tidy(ino);
    }

    /// Whether an owner that waits for `lock` is waited for by one that holds what stands in its way, or by
    /// one that this one waits for, and so on. Only fcntl locks, as on one machine.
    fn closes_circle(&self, session: SessionId, ino: InodeNo, lock: &Lock) -> bool {
        if lock.kind != LockKind::Fcntl {
            return false;
        }
        let mut waits: HashMap<(SessionId, u64), Vec<(InodeNo, Lock)>> = HashMap::new();
        for ino in &self.busy {
            let waiting = self.inodes.get(ino).into_iter().flat_map(|entry| &entry.waiting);
            for waiter in waiting.filter(|w| w.ask == Ask::Wait && w.lock.kind == LockKind::Fcntl) {
                waits.entry((waiter.session, waiter.lock.owner)).or_default().push((*ino, waiter.lock));
            }
        }
        let own = (session, lock.owner);
        let (mut seen, mut ahead) = (HashSet::new(), vec![(own, ino, *lock)]);
        while let Some(((session, _), ino, lock)) = ahead.pop() {
            let Some(entry) = self.inodes.get(&ino) else { continue };
            for held in entry.held.against(session, &lock) {
                let owner = (held.holder, held.lock.owner);
                if owner == own {
                    return true;
                }
                if seen.insert(owner) {
                    let of_owner = waits.get(&owner).into_iter().flatten();
                    ahead.extend(of_owner.map(|&(ino, lock)| (owner, ino, lock)));
                }
            }
        }
        false
    }
}

/// Gives an owner a lock; whether others may have more now.
fn hold(entry: &mut Entry, member: &mut Member, session: SessionId, lock: Lock, now: Duration) -> bool {
    let before = entry.held.all().len();
    let freed = entry.held.set(session, lock, now);
    // Only its own locks change.
    member.held = member.held + entry.held.all().len() - before;
    freed
}
