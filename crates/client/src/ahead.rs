//! What this session has made and removed, and the manager has not been told of yet: one log, in the order in which it was done. Pure state
//! and waits; who may append is decided in [`crate::names::ahead`], which tells it too.
//!
//! Invariants: the log is told from its front, one message at a time, so what the manager has is a beginning of it. Inode
//! numbers in it rise, each is taken once, and more are asked for only when none is left and all before is told. What follows from what
//! was made (content, other changes, questions) is sent only when that is told ([`crate::calls`]).
//!
//! Whoever appends looks under the log's lock whether it may. Whoever changes the same at the manager notes that first, and waits for the
//! log then: so either that is seen here, or it comes after what is appended.
//!
//! On failure (the session has ended, or the manager refused what it had promised to take) all that was not told is lost: from then
//! on every wait says `EIO`.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use base::InodeNo;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::mgr::Change;

use crate::error::Errno;

/// Changes that may wait; who makes more does so at the manager, after these.
const LOG_MAX: usize = 4096;
/// What nobody waits for gathers for so long.
const AGE: Duration = Duration::from_millis(50);

/// See the file's head.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
    /// Something was told, or all is lost.
    told: Notify,
    /// There is something to tell, or it is more urgent.
    wake: Notify,
    /// Numbers were granted once: without, nothing can be in the log, and nobody has to look.
    used: AtomicBool,
    /// Who asks for inode numbers.
    pub asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Not told, oldest first, each with the inode that was made last up to it.
    queue: VecDeque<(InodeNo, Change)>,
    /// How many were told.
    told: u64,
    /// Since when the oldest waits.
    since: Option<Instant>,
    /// Up to here somebody waits for it.
    wanted: u64,
    numbers: Range<u64>,
    lost: bool,
    /// Nothing is told any more.
    closed: bool,
}

impl State {
    fn end(&self) -> u64 {
        self.told + self.queue.len() as u64
    }
}

impl Log {
    /// Appends what `make` says with its inode number, under the lock. None: there is no number, no room, or `make` says nothing.
    pub fn append(&self, make: impl FnOnce(InodeNo) -> Option<Change>) -> Option<InodeNo> {
        let mut state = self.state.lock();
        if state.closed || state.queue.len() >= LOG_MAX || state.numbers.is_empty() {
            return None;
        }
        let ino = InodeNo(state.numbers.start);
        let change = make(ino)?;
        state.numbers.start += 1;
        state.queue.push_back((ino, change));
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        self.wake.notify_one();
        Some(ino)
    }

    /// Appends what `make` says of what is there, under the lock; false: no room, or it says nothing.
    pub fn append_change(&self, make: impl FnOnce() -> Option<Change>) -> bool {
        let mut state = self.state.lock();
        if state.closed || state.queue.len() >= LOG_MAX {
            return false;
        }
        let Some(change) = make() else { return false };
        // What is looked for by number is found behind what made it.
        let last = state.queue.back().map_or(InodeNo(0), |(ino, _)| *ino);
        state.queue.push_back((last, change));
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Whether more numbers are to be asked for.
    pub fn wants_numbers(&self) -> bool {
        self.state.lock().numbers.is_empty()
    }

    /// Numbers were granted.
    pub fn add_numbers(&self, first: InodeNo, count: u32) {
        self.used.store(true, SeqCst);
        self.state.lock().numbers = first.0..first.0 + u64::from(count);
    }

    /// Whether anything was ever made here.
    pub fn is_used(&self) -> bool {
        self.used.load(SeqCst)
    }

    /// Whether something was made that the manager will never hear of.
    pub fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Returns when all that is in the log now is told. `EIO`: it is lost.
    pub async fn all_told(&self) -> Result<(), Errno> {
        let end = self.state.lock().end();
        self.told_to(end).await
    }

    /// The same of what made an inode.
    pub async fn inode_told(&self, ino: InodeNo) -> Result<(), Errno> {
        let at = {
            let state = self.state.lock();
            // What is not among them is told.
            let at = state.queue.binary_search_by_key(&ino, |(made, _)| *made);
            at.map_or(0, |at| state.told + at as u64 + 1)
        };
        self.told_to(at).await
    }

    async fn told_to(&self, end: u64) -> Result<(), Errno> {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.lost {
                    return Err(Errno::EIO);
                }
                if state.told >= end {
                    return Ok(());
                }
                state.wanted = state.wanted.max(end);
            }
            self.wake.notify_one();
            told.await;
        }
    }

    /// What is to be told next, at most `max`, as soon as somebody waits for it, it is so many, or it is old enough. It stays in
    /// the log. None: the log is closed.
    pub async fn due(&self, max: usize) -> Option<Vec<Change>> {
        loop {
            let rest = {
                let state = self.state.lock();
                if state.closed {
                    return None;
                }
                let age = state.since.map(|since| since.elapsed());
                match age {
                    Some(age) if age >= AGE || state.wanted > state.told || state.queue.len() >= max => {
                        let first = state.queue.iter().take(max);
                        return Some(first.map(|(_, change)| change.clone()).collect());
                    }
                    Some(age) => Some(AGE - age),
                    None => None,
                }
            };
            match rest {
                // Either end of the wait leads to the next look.
                Some(rest) => _ = tokio::time::timeout(rest, self.wake.notified()).await,
                None => self.wake.notified().await,
            }
        }
    }

    /// The first `count` are told.
    pub fn advance(&self, count: usize) {
        let mut state = self.state.lock();
        let count = count.min(state.queue.len()); // less if it was closed meanwhile
        state.queue.drain(..count);
        state.told += count as u64;
        state.since = (!state.queue.is_empty()).then(Instant::now);
        drop(state);
        self.told.notify_waiters();
    }

    /// What is in the log will not be told, and nothing is appended any more. Returns how much is lost by it.
    pub fn close(&self) -> usize {
        let mut state = self.state.lock();
        let count = state.queue.len();
        state.lost |= count > 0;
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.told.notify_waiters();
        self.wake.notify_one();
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(log: &Log) -> Option<InodeNo> {
        log.append(|_| Some(Change::Numbers { count: 1 }))
    }

    #[tokio::test]
    async fn it_is_told_from_its_front_and_waits_end_with_what_they_wait_for() {
        let log = Log::default();
        assert_eq!(made(&log), None, "no number was granted");
        log.add_numbers(InodeNo(10), 3);
        assert!([10, 11, 12].iter().all(|&ino| made(&log) == Some(InodeNo(ino))));
        assert_eq!(made(&log), None, "each is taken once");
        let (all, second) = (log.all_told(), log.inode_told(InodeNo(11)));
        tokio::pin!(all, second);
        let soon = Duration::from_millis(1);
        assert!(tokio::time::timeout(soon, &mut all).await.is_err());
        assert!(tokio::time::timeout(soon, &mut second).await.is_err());
        assert_eq!(log.due(2).await.map(|due| due.len()), Some(2));
        log.advance(2);
        assert_eq!(second.await, Ok(()));
        assert_eq!(log.inode_told(InodeNo(10)).await, Ok(()));
        assert!(tokio::time::timeout(soon, &mut all).await.is_err(), "the third is not told");
        log.advance(1);
        assert_eq!(all.await, Ok(()));
    }

    #[tokio::test]
    async fn what_is_lost_is_never_silent() {
        let (log, empty) = (Log::default(), Log::default());
        assert_eq!((empty.close(), empty.is_lost(), empty.all_told().await), (0, false, Ok(())));
        log.add_numbers(InodeNo(10), 2);
        made(&log).unwrap();
        assert_eq!(log.close(), 1);
        assert_eq!(log.all_told().await, Err(Errno::EIO));
        assert_eq!(log.inode_told(InodeNo(10)).await, Err(Errno::EIO));
        assert_eq!((made(&log), log.due(1).await), (None, None));
    }
}
