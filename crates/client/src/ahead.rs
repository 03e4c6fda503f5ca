//! What this session has made and removed, and the manager has not been told of yet: one log, in the order in which it was done ([`untold`]),
//! and the waits for it. Who may append is decided in [`crate::names::ahead`], which tells it too.
//!
//! Invariants: what follows from what was made (content, other changes, questions that it could have an effect on) is sent only when that
//! is told ([`crate::calls`]).
//!
//! Whoever appends looks under the log's lock whether it may. Whoever changes the same at the manager notes that first, and waits for the
//! log then: so either that is seen here, or it comes after what is appended.
//!
//! On failure (the session has ended, or the manager refused what it had promised to take) all that was not told is lost: from then
//! on every wait says `EIO`.

pub mod untold;

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use base::InodeNo;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::mgr::Change;

use self::untold::Untold;
use crate::error::Errno;

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
    /// Something was, or is about to be, appended: before, nobody has to look.
    used: AtomicBool,
    /// Who asks for inode numbers.
    pub asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    untold: Untold,
    /// Since when the oldest waits.
    since: Option<Instant>,
    /// Up to here somebody waits for it.
    wanted: u64,
    /// So many are told at once.
    enough: usize,
}

impl State {
    /// Something may be appended. With it: whether who tells it is to look. For each name that would be another change of thread.
    fn note<T>(&mut self, append: impl FnOnce(&mut Untold) -> Option<T>) -> Option<(T, bool)> {
        let done = append(&mut self.untold)?;
        let is_first = self.since.is_none();
        self.since.get_or_insert_with(Instant::now);
        Some((done, is_first || self.untold.count() >= self.enough))
    }
}

impl Log {
    /// Appends what `make` says with its inode number, under the lock. None: there is no number, no room, or `make` says nothing.
    pub fn append(&self, make: impl FnOnce(InodeNo) -> Option<Change>) -> Option<InodeNo> {
        self.appended(self.state.lock().note(|untold| untold.make(make)))
    }

    /// Appends what `make` says of what is there, under the lock; false: no room, or it says nothing.
    pub fn append_change(&self, make: impl FnOnce() -> Option<Change>) -> bool {
        let mut state = self.state.lock();
        // Before `make` looks whether it may: who forbids it looks here afterwards.
        self.used.store(true, SeqCst);
        let done = state.note(|untold| untold.change(make).then_some(()));
        drop(state);
        self.appended(done).is_some()
    }

    fn appended<T>(&self, noted: Option<(T, bool)>) -> Option<T> {
        let (what, wakes) = noted?;
        if wakes {
            self.wake.notify_one();
        }
        Some(what)
    }

    /// Whether more numbers are to be asked for.
    pub fn wants_numbers(&self) -> bool {
        self.state.lock().untold.wants_numbers()
    }

    /// Numbers were granted.
    pub fn add_numbers(&self, first: InodeNo, count: u32) {
        self.used.store(true, SeqCst);
        self.state.lock().untold.add_numbers(first, count);
    }

    /// Whether anything may ever have been appended.
    pub fn is_used(&self) -> bool {
        self.used.load(SeqCst)
    }

    /// Whether something was made that the manager will never hear of.
    pub fn is_lost(&self) -> bool {
        self.state.lock().untold.is_lost()
    }

    /// The same, or that it has not heard of yet.
    pub fn is_untold(&self) -> bool {
        let state = self.state.lock();
        state.untold.is_lost() || state.untold.count() > 0
    }

    /// Returns when all that is in the log now is told. `EIO`: it is lost.
    pub async fn all_told(&self) -> Result<(), Errno> {
        let end = self.state.lock().untold.end();
        self.told_to(end).await
    }

    /// Whether one more can be appended now.
    pub fn has_room(&self) -> bool {
        !self.state.lock().untold.is_full()
    }

    /// Returns when so much is told that there is room for one more. `EIO`: it is lost.
    pub async fn room(&self) -> Result<(), Errno> {
        let at = self.state.lock().untold.room_at();
        self.told_to(at).await
    }

    /// The same of what made an inode.
    pub async fn inode_told(&self, ino: InodeNo) -> Result<(), Errno> {
        let at = self.state.lock().untold.made_at(ino);
        self.told_to(at).await
    }

    /// The same of all that concerns an inode.
    pub async fn all_of_told(&self, ino: InodeNo) -> Result<(), Errno> {
        let at = self.state.lock().untold.concerned_at(ino);
        self.told_to(at).await
    }

    async fn told_to(&self, end: u64) -> Result<(), Errno> {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.untold.is_told(end)? {
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
                let mut state = self.state.lock();
                state.enough = max;
                if state.untold.is_closed() {
                    return None;
                }
                let age = state.since.map(|since| since.elapsed());
                match age {
                    Some(age)
                        if age >= AGE
                            || state.wanted > state.untold.told()
                            || state.untold.count() >= max =>
                    {
                        return Some(state.untold.front(max));
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
        state.untold.advance(count);
        state.since = (state.untold.count() > 0).then(Instant::now);
        drop(state);
        self.told.notify_waiters();
    }

    /// What is in the log will not be told, and nothing is appended any more. Returns how much is lost by it.
    pub fn close(&self) -> usize {
        let count = self.state.lock().untold.close();
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
    async fn who_makes_more_than_it_holds_waits_for_room() {
        let log = Log::default();
        log.add_numbers(InodeNo(1), 10_000);
        assert!(log.has_room() && log.room().await == Ok(()));
        let count = std::iter::from_fn(|| made(&log)).count();
        assert!(count < 10_000);
        assert!(!log.has_room());
        let room = log.room();
        tokio::pin!(room);
        assert!(tokio::time::timeout(Duration::from_millis(1), &mut room).await.is_err());
        log.advance(1);
        assert_eq!(room.await, Ok(()));
        assert!(made(&log).is_some() && made(&log).is_none());
        let (room, _) = tokio::join!(log.room(), async { log.close() });
        assert_eq!(room, Err(Errno::EIO));
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
