//! Calls to the manager: identities that make every change happen exactly once, and answers as types.
//!
//! A change takes one of the session's slots and keeps it until it is answered: without an answer it is sent again
//! by its number, until the manager says what became of it or the session has ended. The next change on the slot
//! has the next number, so a late copy of the old one is refused by the manager. Whoever must not wait for so long
//! lets the change go on without him ([`crate::changes`]).

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use base::{FsId, InodeNo};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use wire::{
    lock::LockRequest,
    mgr::{Change, MgrError, MgrReply, MgrRequest, OpId, SLOTS},
};

use crate::{
    ahead::Log,
    caller,
    error::{CallError, Errno},
    parts::Manager,
};

/// Most changes in one message.
pub(crate) const MANY_MAX: usize = 64;
/// Pause before a change without an answer is sent again.
const AGAIN: Duration = Duration::from_millis(100);

/// The manager as the rest of the client calls it.
pub(crate) struct Calls {
    /// The file system that is mounted.
    fs: FsId,
    manager: Arc<dyn Manager>,
    slots: Arc<Slots>,
    /// What is told of what was made here does not wait for changes that wait for others, who may wait for it.
    telling: Arc<Slots>,
    /// Something is under way by [`Calls::tell_older`].
    telling_older: watch::Sender<bool>,
    patience: Duration,
    dead: AtomicBool,
    died: Notify,
    /// We end the session ourselves: that it is gone then is as it should be.
    leaving: AtomicBool,
    pub given_up: GivenUp,
    /// What was made here ahead of the manager. What is said of the same inodes follows it.
    pub ahead: Arc<Log>,
}

/// Changes without an answer that nobody waits for any more.
#[derive(Default)]
pub(crate) struct GivenUp {
    count: AtomicUsize,
    ended: Notify,
}

impl GivenUp {
    /// Somebody gives up to wait for one.
    pub fn began(&self) {
        self.count.fetch_add(1, SeqCst);
    }

    /// It is answered.
    pub fn ended(&self) {
        let before = self.count.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "none ends that did not begin");
        self.ended.notify_waiters();
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// Returns when there is none.
    pub async fn none(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.is_none() {
                return;
            }
            ended.await;
        }
    }
}

struct Slots {
    permits: Arc<Semaphore>,
    free: Mutex<Vec<OpId>>,
}

impl Slots {
    fn of(numbers: Range<u16>) -> Arc<Slots> {
        let free: Vec<OpId> = numbers.rev().map(|slot| OpId { slot, seq: 1 }).collect();
        Arc::new(Slots { permits: Arc::new(Semaphore::new(free.len())), free: Mutex::new(free) })
    }
}

/// A slot in use; free for the next change when dropped.
struct Slot {
    slots: Arc<Slots>,
    op: OpId,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let next = OpId { slot: self.op.slot, seq: self.op.seq + 1 };
        self.slots.free.lock().push(next);
    }
}

impl Calls {
    /// `ahead`: something is made ahead of the manager, and told with slots of its own.
    pub fn new(fs: FsId, manager: Arc<dyn Manager>, patience: Duration, ahead: bool) -> Calls {
        let first_telling = if ahead { SLOTS - MANY_MAX as u16 } else { SLOTS };
        let (slots, telling) = (Slots::of(0..first_telling), Slots::of(first_telling..SLOTS));
        let (dead, leaving) = Default::default();
        let given_up = GivenUp::default();
        Calls {
            fs,
            manager,
            slots,
            telling,
            telling_older: watch::Sender::new(false),
            patience,
            dead,
            died: Notify::new(),
            leaving,
            given_up,
            ahead: Arc::default(),
        }
    }

    /// Whether the session was ended under us: nothing can be changed or trusted any more.
    pub fn dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// Returns when the session has ended, by whomever.
    async fn died(&self) {
        let died = self.died.notified();
        tokio::pin!(died);
        died.as_mut().enable();
        if !self.dead() {
            died.await;
        }
    }

    /// What a wait comes to; `EIO` if the session ends first: nothing of it can succeed any more, however long its
    /// deadlines are.
    pub async fn alive<T>(&self, wait: impl Future<Output = T>) -> Result<T, Errno> {
        tokio::select! {
            biased;
            // Either may be dropped; what is there already counts.
            done = wait => Ok(done),
            () = self.died() => Err(Errno::EIO),
        }
    }

    /// False if it had ended before.
    fn end(&self) -> bool {
        let first = !self.dead.swap(true, SeqCst);
        self.lose_ahead();
        self.died.notify_waiters();
        first
    }

    /// The session was ended by us.
    pub fn set_closed(&self) {
        self.end();
    }

    /// The session is about to be ended by us. What waits at the manager will hear of it.
    pub fn set_leaving(&self) {
        self.leaving.store(true, SeqCst);
    }

    /// The session is fenced. While we end it ourselves it may only be what we asked for: another question hears of that before
    /// the answer to us is here, which alone says how it ended.
    pub fn set_dead(&self) {
        if !self.leaving.load(SeqCst) && self.end() {
            tracing::error!("the session was ended by the manager: this mount is dead");
        }
    }

    /// Whether the session's lease holds: what is cached may be used.
    pub fn lease_valid(&self) -> bool {
        !self.lease_left().is_zero()
    }

    /// How long it holds, if it is not renewed.
    pub fn lease_left(&self) -> Duration {
        self.manager.lease_left()
    }

    /// A question.
    pub async fn ask(&self, request: MgrRequest) -> Result<MgrReply, Errno> {
        self.ask_within(request, self.patience).await
    }

    /// A question with another deadline.
    pub async fn ask_within(&self, request: MgrRequest, patience: Duration) -> Result<MgrReply, Errno> {
        if self.dead() {
            return Err(Errno::EIO);
        }
        // By the first it hears that others want to see what it has made; who claims has waited for that (`Core::share`), and locks
        // are on what was told; the others are about no inode.
        use MgrRequest::{Claim, Lock, Reserve, StatFs, WaitRecalls};
        let at_once = matches!(
            request,
            WaitRecalls | Claim { .. } | Lock(LockRequest::Claim { .. }) | Reserve { .. } | StatFs { .. }
        );
        match of_one_inode(&request) {
            _ if at_once => {}
            Some(ino) => self.within_patience(self.ahead.all_of_told(ino)).await?,
            None => self.told().await?,
        }
        match self.alive(self.manager.call(request, Instant::now() + patience)).await? {
            Ok(MgrReply::Error(error)) => Err(self.errno(error)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                tracing::error!(%error, "call the manager");
                Err(Errno::EIO)
            }
        }
    }

    /// One change, applied exactly once or refused. Takes until the manager says which: `EIO` says that it was never
    /// sent, or that the session has ended.
    pub async fn mutate(&self, change: Change) -> Result<MgrReply, Errno> {
        self.mutate_and_hold(change, false).await
    }

    /// The same; with `hold` the token of a file that is made comes with the answer, if it is to be had at once.
    pub async fn mutate_and_hold(&self, change: Change, hold: bool) -> Result<MgrReply, Errno> {
        self.told().await?;
        let slot = self.slot(&self.slots).await?;
        let (op, by) = (slot.op, caller::of(&change));
        self.ask_until_answered(MgrRequest::Mutate { op, change, hold, by }, false).await
    }

    /// An answer says what became of a change, unless the manager's store failed under it. One that waited in vain for other sessions
    /// was not looked at: who `insists` sends it again under the same number, for a manager before may have done it.
    async fn ask_until_answered(&self, request: MgrRequest, insists: bool) -> Result<MgrReply, Errno> {
        let open = |error: &MgrError| match error {
            MgrError::Store(_) => true,
            MgrError::Errno(number) => insists && *number == libc::ETIMEDOUT,
            _ => false,
        };
        let undecided = |reply: &MgrReply| match reply {
            MgrReply::Error(error) => open(error),
            MgrReply::Many(outcomes) => outcomes
                .iter()
                .any(|outcome| matches!(outcome, Ok(MgrReply::Error(error)) | Err(error) if open(error))),
            _ => false,
        };
        let mut sent = false;
        loop {
            if self.dead() {
                return Err(Errno::EIO);
            }
            let mut answer = self.call(request.clone()).await?;
            if let (Err(CallError::TooOld(_)), MgrRequest::Tell { changes }) = (&answer, &request) {
                answer = self.tell_older(&request, changes).await?;
            }
            match answer {
                Ok(reply) if undecided(&reply) => {
                    tracing::warn!(?reply, "the manager did not decide on a change; it is sent again");
                }
                Ok(MgrReply::Error(error)) => return Err(self.errno(error)),
                Ok(reply) => return Ok(reply),
                Err(CallError::TooOld(_)) if !sent => return Err(Errno::EOPNOTSUPP),
                // A newer manager, which is no more, may have carried it out.
                Err(CallError::TooOld(_)) => return Err(Errno::EIO),
                Err(error) => tracing::warn!(%error, "a change was not answered; it is sent again"),
            }
            sent = true;
            self.alive(tokio::time::sleep(AGAIN)).await?;
        }
    }

    async fn call(&self, request: MgrRequest) -> Result<Result<MgrReply, CallError>, Errno> {
        self.alive(self.manager.call(request, Instant::now() + self.patience)).await
    }

    /// Who is asked is too old for `tell`. An older manager that leads is told in the form that it knows, under the same numbers: what a
    /// newer one has done it does not do again. If it has just begun the changes wait there until all sessions have said what they hold,
    /// this one too.
    async fn tell_older(
        &self,
        tell: &MgrRequest,
        changes: &[(OpId, Change)],
    ) -> Result<Result<MgrReply, CallError>, Errno> {
        // That may be one that follows. This is answered by who leads, of whatever version, who is asked from then on.
        if let Err(nobody_leads) = self.call(MgrRequest::StatFs { fs: self.fs }).await? {
            return Ok(Err(nobody_leads));
        }
        match self.call(tell.clone()).await? {
            Err(CallError::TooOld(_)) => {}
            answer => return Ok(answer),
        }
        self.telling_older.send_replace(true);
        let answer = self.call(MgrRequest::MutateMany { changes: changes.to_vec() }).await;
        self.telling_older.send_replace(false);
        answer
    }

    /// Several changes, at most [`MANY_MAX`], each with its own outcome; see [`Calls::mutate`].
    pub async fn mutate_many(&self, changes: Vec<Change>) -> Result<Vec<Result<MgrReply, Errno>>, Errno> {
        self.told().await?;
        let slots = self.some_slots(&self.slots, changes.len()).await?;
        self.send_many(&slots, |changes| MgrRequest::MutateMany { changes }, changes, false).await
    }

    /// Returns when the manager knows all that was made here so far. `EIO` after the deadline, or if it is lost.
    pub async fn told(&self) -> Result<(), Errno> {
        self.within_patience(self.ahead.all_told()).await
    }

    /// Returns when this session may say what it holds: what was made here is told, or waits for that at an older manager.
    pub async fn told_or_waits(&self) -> Result<(), Errno> {
        let mut older = self.telling_older.subscribe();
        let waits = async { _ = older.wait_for(|older| *older).await };
        tokio::select! {
            biased;
            // Either may be dropped.
            told = self.told() => told,
            () = waits => Ok(()),
        }
    }

    /// Returns when the log has room for one more, or will not get any in time: what finds none is done at the manager.
    pub async fn room_ahead(&self) {
        if !self.ahead.has_room() {
            let _ = self.within_patience(self.ahead.room()).await;
        }
    }

    /// Returns when the manager knows what made one inode.
    pub async fn inode_told(&self, ino: InodeNo) -> Result<(), Errno> {
        self.within_patience(self.ahead.inode_told(ino)).await
    }

    async fn within_patience(&self, told: impl Future<Output = Result<(), Errno>>) -> Result<(), Errno> {
        if !self.ahead.is_used() {
            return Ok(());
        }
        self.alive(tokio::time::timeout(self.patience, told)).await?.unwrap_or_else(|_| {
            tracing::error!("gave up waiting until the manager knows what was made here");
            Err(Errno::EIO)
        })
    }

    /// Tells what is next in the log, done `beside` others or not. What the manager does not take is lost. Its answers, if it has taken
    /// all.
    pub async fn tell_ahead(&self, changes: Vec<Change>, beside: bool) -> Option<Vec<MgrReply>> {
        let count = changes.len();
        match self.tell_once(changes, beside).await {
            Ok(replies) => {
                self.ahead.advance(count);
                return Some(replies);
            }
            // Nothing of it was sent.
            Err(Errno(libc::ETIMEDOUT)) => tokio::time::sleep(AGAIN).await,
            Err(error) => {
                tracing::error!(%error, "the manager did not take what was made here");
                self.lose_ahead();
            }
        }
        None
    }

    async fn tell_once(&self, changes: Vec<Change>, beside: bool) -> Result<Vec<MgrReply>, Errno> {
        let slots = self.some_slots(&self.telling, changes.len()).await?;
        let request = |changes| match beside {
            true => MgrRequest::Tell { changes },
            false => MgrRequest::MutateMany { changes },
        };
        self.send_many(&slots, request, changes, true).await?.into_iter().collect()
    }

    fn lose_ahead(&self) {
        let count = self.ahead.close();
        if count > 0 {
            tracing::error!(
                count,
                "files and directories that were made here are lost: the manager was not told of them"
            );
        }
    }

    async fn some_slots(&self, of: &Arc<Slots>, count: usize) -> Result<Vec<Slot>, Errno> {
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            match self.slot(of).await {
                Ok(slot) => slots.push(slot),
                Err(error) if self.dead() => return Err(error),
                // Nothing was sent: the session lives, and it is told later.
                Err(_) => return Err(Errno(libc::ETIMEDOUT)),
            }
        }
        Ok(slots)
    }

    async fn send_many(
        &self,
        slots: &[Slot],
        request: impl FnOnce(Vec<(OpId, Change)>) -> MgrRequest,
        changes: Vec<Change>,
        insists: bool,
    ) -> Result<Vec<Result<MgrReply, Errno>>, Errno> {
        let count = changes.len();
        let changes = slots.iter().map(|s| s.op).zip(changes).collect();
        match self.ask_until_answered(request(changes), insists).await? {
            MgrReply::Many(outcomes) if outcomes.len() == count => Ok(outcomes
                .into_iter()
                .map(|outcome| match outcome {
                    Ok(MgrReply::Error(error)) | Err(error) => Err(self.errno(error)),
                    Ok(reply) => Ok(reply),
                })
                .collect()),
            other => Err(unexpected("MutateMany", &other)),
        }
    }

    async fn slot(&self, of: &Arc<Slots>) -> Result<Slot, Errno> {
        let permit = of.permits.clone().acquire_owned();
        let Ok(Ok(permit)) = self.alive(tokio::time::timeout(self.patience, permit)).await? else {
            tracing::error!("gave up waiting for a free slot of the session");
            return Err(Errno::EIO);
        };
        let op = of.free.lock().pop();
        let op = op.expect("as many slots as permits");
        Ok(Slot { slots: of.clone(), op, _permit: permit })
    }

    fn errno(&self, error: MgrError) -> Errno {
        match error {
            MgrError::Errno(number) => Errno(number),
            MgrError::NoSession => {
                self.set_dead();
                Errno::EIO
            }
            other => {
                tracing::error!(error = %other, "the manager refused");
                Errno::EIO
            }
        }
    }
}

/// The inode that a question is about, if its answer says something of that one alone.
fn of_one_inode(question: &MgrRequest) -> Option<InodeNo> {
    use MgrRequest::{Extents, GetAttr, GetXattr, ListXattr, ReadInline, ReadLink};
    match *question {
        GetAttr { ino }
        | ReadInline { ino }
        | ReadLink { ino }
        | Extents { ino, .. }
        | GetXattr { ino, .. }
        | ListXattr { ino } => Some(ino),
        _ => None,
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.ahead.close();
    }
}

/// An answer that does not fit the question.
pub(crate) fn unexpected(what: &'static str, reply: &MgrReply) -> Errno {
    tracing::error!(?reply, "unexpected answer to {what}");
    Errno::EIO
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
