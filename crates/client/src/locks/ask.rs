//! Locks of programs: asked for at the manager, remembered here so that they can be claimed when it begins
//! anew (docs/locks.md).
//!
//! Invariant: what is remembered is what the manager has given this session, but for changes that are not
//! answered. A change whose answer is lost, or may have been overtaken by a claim, is asked for again under
//! a new number: to set what is set, or to give up what is not there, changes nothing. So that giving up never takes what its
//! owner has set afterwards, whoever sets waits until all is done that was being given up of its owner then.
//! On failure (no manager) a change goes on in the background after its caller has his `EIO`, and what it
//! got then is given back.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use base::{
    InodeNo,
    stats::{self, Histogram},
};
use tokio::sync::Notify;
use wire::{
    lock::{CLAIM_MAX, Lock, LockAnswer, LockKind, LockMode, LockRequest},
    lock_set::Held,
    mgr::{MgrReply, MgrRequest},
};

use super::held::{OfInode, Whose, all_of};
use crate::{calls::unexpected, core::Core, error::Errno, files::handle::Handle};

/// One wait for a lock; then it is asked for again.
const LOCK_POLL: Duration = Duration::from_secs(20);
/// How often a refused lock is asked for again because locks were given up meanwhile with their handles.
const CLOSE_TRIES: u32 = 3;
/// How often it is looked, 2 ms apart, whether a close was the last one of an open file.
const FLUSHED_TRIES: u32 = 10;
/// Pause before a claim that failed is asked for again.
const RETRY: Duration = Duration::from_millis(300);

/// The manager has not answered, or has said in time that it could not: it may have been done.
fn unanswered(error: Errno) -> bool {
    matches!(error, Errno(libc::EIO | libc::ETIMEDOUT))
}

/// How requests for locks end.
const OUTCOMES: [&str; 5] = ["set", "busy", "interrupted", "deadlock", "failed"];

/// What they took, by kind and outcome.
static WAITS: LazyLock<[[Histogram; OUTCOMES.len()]; 2]> = LazyLock::new(|| {
    [LockKind::Fcntl, LockKind::Flock].map(|kind| {
        let of =
            |outcome| stats::histogram("lock_wait_seconds", &[("kind", kind.name()), ("outcome", outcome)]);
        OUTCOMES.map(of)
    })
});

/// Locks of an owner that are being given up, until this is dropped.
struct Freeing {
    core: Arc<Core>,
    ino: InodeNo,
    turn: u64,
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.core.locks.lock().end_freeing(self.ino, self.turn);
    }
}

impl Core {
    fn freeing(self: &Arc<Core>, ino: InodeNo, whose: Whose) -> Freeing {
        let turn = self.locks.lock().begin_freeing(ino, whose);
        Freeing { core: self.clone(), ino, turn }
    }

    /// See [`crate::Client::lock`].
    pub async fn lock(
        self: &Arc<Core>,
        ino: InodeNo,
        handle: Handle,
        lock: Lock,
        interrupted: Option<Arc<Notify>>,
    ) -> Result<(), Errno> {
        let waits = interrupted.is_some();
        let whose = (lock.kind, lock.owner);
        // From here on: whoever sets afterwards waits for it.
        let freeing = (lock.mode == LockMode::None).then(|| self.freeing(ino, whose));
        let turn = freeing.is_none().then(|| self.locks.lock().turn());
        let (core, begun) = (self.clone(), Instant::now());
        // A task of its own: a caller that goes away does not leave a lock that nobody knows of.
        let mut task = self.runtime.spawn(async move {
            let _freeing = freeing;
            if let Some(turn) = turn {
                core.wait_freed(ino, whose, turn).await;
            }
            let done = core.set_lock(ino, handle, lock, interrupted).await;
            if lock.mode != LockMode::None {
                let outcome = match &done {
                    Ok(()) => 0,
                    Err(Errno(libc::EAGAIN)) => 1,
                    Err(Errno(libc::EINTR)) => 2,
                    Err(Errno(libc::EDEADLK)) => 3,
                    Err(_) => 4,
                };
                WAITS[lock.kind as usize][outcome].record(begun.elapsed());
            }
            done
        });
        if waits {
            return task.await.unwrap_or(Err(Errno::EIO));
        }
        match tokio::time::timeout(self.patience(), &mut task).await {
            Ok(done) => done.unwrap_or(Err(Errno::EIO)),
            Err(_) => {
                tracing::error!(inode = %ino, "gave up waiting for the manager to set a lock");
                if lock.mode != LockMode::None {
                    let freeing = self.freeing(ino, whose);
                    self.runtime.spawn(async move {
                        if matches!(task.await, Ok(Ok(()))) {
                            freeing.core.unlock(ino, handle, lock).await;
                        }
                    });
                }
                Err(Errno::EIO)
            }
        }
    }

    /// Gives up what a lock covers, however long the manager takes.
    async fn unlock(self: &Arc<Core>, ino: InodeNo, handle: Handle, lock: Lock) {
        // If this fails it ends with the session.
        let _ = self.set_lock(ino, handle, Lock { mode: LockMode::None, ..lock }, None).await;
    }

    /// Sets a lock, however long the manager takes.
    async fn set_lock(
        self: &Arc<Core>,
        ino: InodeNo,
        handle: Handle,
        lock: Lock,
        interrupted: Option<Arc<Notify>>,
    ) -> Result<(), Errno> {
        let (mut wait, mut was_interrupted, mut tries) = (interrupted, false, CLOSE_TRIES);
        loop {
            let (seq, claims, closed) = {
                let mut locks = self.locks.lock();
                if lock.kind == LockKind::Flock {
                    // The manager gives up the old mode first; a claim in between must not bring it back.
                    let other = |held: &Held<()>| {
                        let Lock { kind, owner, mode, .. } = held.lock;
                        (kind, owner) == (lock.kind, lock.owner) && mode != lock.mode
                    };
                    locks.change(ino, |of| of.held.retain(|held| !other(held)));
                }
                let closed = locks.closing(ino);
                (locks.number(), locks.claims, closed)
            };
            let answer = match &wait {
                Some(interrupted) => self.wait_lock(ino, seq, lock, interrupted, &mut was_interrupted).await,
                None => {
                    self.ask_lock(LockRequest::Set { ino, seq, lock, wait: false }, self.patience()).await
                }
            };
            match answer {
                Ok(LockAnswer::Done) => {
                    let mut locks = self.locks.lock();
                    if locks.claims != claims {
                        continue;
                    }
                    locks.change(ino, |of| of.set(handle, lock));
                    return Ok(());
                }
                Ok(LockAnswer::Busy) if was_interrupted => return Err(Errno(libc::EINTR)),
                // What goes with a handle goes after its close has returned: that is waited for.
                Ok(LockAnswer::Busy) if tries > 0 && self.has_closed(ino, closed).await => tries -= 1,
                Ok(LockAnswer::Busy) => return Err(Errno(libc::EAGAIN)),
                Ok(LockAnswer::Deadlock) => return Err(Errno(libc::EDEADLK)),
                Ok(LockAnswer::Full) => return Err(Errno(libc::ENOLCK)),
                Ok(LockAnswer::Cancelled) => return Err(Errno(libc::EINTR)),
                Ok(LockAnswer::Superseded | LockAnswer::Waits) => {}
                Ok(LockAnswer::Held(_)) => return Err(Errno::EIO),
                Err(error) if unanswered(error) && !self.calls.dead() => tokio::time::sleep(RETRY).await,
                Err(error) => return Err(error),
            }
            // Which came first, lock or interrupt, is found out without waiting.
            wait = wait.filter(|_| !was_interrupted);
        }
    }

    /// Waits until all is done that was being given up of an owner's locks before this turn. Without a manager that takes as long as the
    /// request that would follow.
    async fn wait_freed(&self, ino: InodeNo, whose: Whose, turn: u64) {
        loop {
            let Some(freed) = self.locks.lock().freed_before(ino, whose, turn) else { return };
            let freed = freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            // It may have ended before this was to be told of it.
            if self.locks.lock().freed_before(ino, whose, turn).is_none() {
                return;
            }
            freed.await;
        }
    }

    /// Waits for a lock; an interrupt ends the wait at the manager, whose answer says which came first.
    async fn wait_lock(
        self: &Arc<Core>,
        ino: InodeNo,
        seq: u64,
        lock: Lock,
        interrupted: &Notify,
        was_interrupted: &mut bool,
    ) -> Result<LockAnswer, Errno> {
        loop {
            let ask = self.ask_lock(LockRequest::Set { ino, seq, lock, wait: true }, LOCK_POLL);
            tokio::pin!(ask);
            let answer = loop {
                tokio::select! {
                    biased;
                    // The question is polled until it is answered; the notification stays for the next turn.
                    answer = &mut ask => break answer,
                    () = interrupted.notified(), if !*was_interrupted => {
                        *was_interrupted = true;
                        let core = self.clone();
                        self.runtime.spawn(async move { core.cancel_lock(ino, seq).await });
                    }
                }
            };
            match answer {
                Ok(LockAnswer::Waits) => {}
                Err(error) if unanswered(error) && !self.calls.dead() => tokio::time::sleep(RETRY).await,
                answer => return answer,
            }
        }
    }

    async fn cancel_lock(self: &Arc<Core>, ino: InodeNo, wait: u64) {
        while !self.calls.dead() {
            let seq = self.locks.lock().number();
            if self.ask_lock(LockRequest::Cancel { ino, seq, wait }, self.patience()).await.is_ok() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn ask_lock(&self, request: LockRequest, patience: Duration) -> Result<LockAnswer, Errno> {
        match self.calls.ask_within(MgrRequest::Lock(request), patience).await? {
            MgrReply::Lock(answer) => Ok(answer),
            other => Err(unexpected("Lock", &other)),
        }
    }

    /// Whether a handle's locks on the inode were given up since `before`, or are, which is waited for. Of a handle that
    /// was flushed the last close may be on its way: it was sent before its close returned, but is not waited for there.
    async fn has_closed(&self, ino: InodeNo, before: (u32, u64)) -> bool {
        for tries in 0..50 {
            {
                let mut locks = self.locks.lock();
                let flushed = locks.inodes.get(&ino).is_some_and(|of| !of.flushed.is_empty());
                if locks.closing(ino).0 == 0 && !flushed {
                    return tries > 0 || before.0 > 0 || locks.closing(ino) != before;
                }
                if tries == FLUSHED_TRIES {
                    // It stays open: it has other descriptors.
                    locks.change(ino, |of| of.flushed.clear());
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        true
    }

    /// A descriptor of a handle is closed, not necessarily the last one.
    pub fn note_flush(&self, ino: InodeNo, handle: Handle) {
        if let Some(of) = self.locks.lock().inodes.get_mut(&ino) {
            of.note_flush(handle);
        }
    }

    /// See [`crate::Client::test_lock`].
    pub async fn test_lock(&self, ino: InodeNo, lock: Lock) -> Result<Option<Lock>, Errno> {
        let until = tokio::time::Instant::now() + self.patience();
        let mut tries = CLOSE_TRIES;
        while tokio::time::Instant::now() < until {
            let closed = self.locks.lock().closing(ino);
            match self.ask_lock(LockRequest::Test { ino, lock }, self.patience()).await? {
                LockAnswer::Held(Some(_)) if tries > 0 && self.has_closed(ino, closed).await => tries -= 1,
                LockAnswer::Held(held) => return Ok(held),
                // Not all that is held is known yet.
                LockAnswer::Waits => {}
                _ => return Err(Errno::EIO),
            }
        }
        Err(Errno::EIO)
    }

    /// See [`crate::Client::drop_locks`].
    pub async fn drop_locks_of_owner(self: &Arc<Core>, ino: InodeNo, owner: u64) {
        let whose = (LockKind::Fcntl, owner);
        let all = all_of(whose);
        {
            let mut locks = self.locks.lock();
            let Some(of) = locks.inodes.get(&ino) else { return };
            let holds = of.held.of((), &all).next().is_some();
            locks.change(ino, |of| of.left(whose));
            if !holds {
                return;
            }
        }
        // Goes on in the background if it takes long.
        let _ = self.lock(ino, Handle(0), all, None).await;
    }

    /// The last descriptor of an open file is closed: what was locked through it, and is still, is given up.
    pub fn drop_locks_of_handle(self: &Arc<Core>, ino: InodeNo, handle: Handle) {
        let mut locks = self.locks.lock();
        if !locks.inodes.contains_key(&ino) {
            return;
        }
        let mut left = Vec::new();
        locks.change(ino, |of| {
            left = of.closed(handle);
            of.closing += left.len() as u32;
        });
        for whose in left {
            let freeing = Freeing { core: self.clone(), ino, turn: locks.begin_freeing(ino, whose) };
            self.runtime.spawn(async move {
                let core = &freeing.core;
                core.unlock(ino, handle, all_of(whose)).await;
                let mut locks = core.locks.lock();
                locks.closed += 1;
                locks.change(ino, |of| of.closing -= 1);
            });
        }
    }

    /// The manager has begun anew: tells it what is held here.
    pub async fn claim_locks(self: &Arc<Core>, life: u64) {
        let mut held: Vec<(InodeNo, Lock)> = {
            let mut locks = self.locks.lock();
            locks.claims += 1;
            let of = |(ino, of): (&InodeNo, &OfInode)| {
                of.held.all().iter().map(|held| (*ino, held.lock)).collect::<Vec<_>>()
            };
            locks.inodes.iter().flat_map(of).collect()
        };
        tracing::info!(locks = held.len(), "locks are claimed");
        loop {
            let rest = held.split_off(held.len().min(CLAIM_MAX));
            let last = rest.is_empty();
            let claim = LockRequest::Claim { life, locks: std::mem::replace(&mut held, rest), last };
            if let Err(error) = self.ask_lock(claim, self.patience()).await {
                // Asked for again.
                tracing::warn!(%error, "locks held could not be told");
                return tokio::time::sleep(RETRY).await;
            }
            if last {
                return;
            }
        }
    }
}
