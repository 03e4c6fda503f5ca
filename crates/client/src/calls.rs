//! Calls to the manager: identities that make every change happen exactly once, and answers as types.
//!
//! A change takes one of the session's slots and keeps it until it is answered or given up; the next
//! change on the slot has the next number, so a late copy of the old one is refused by the manager.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::mgr::{Change, MgrError, MgrReply, MgrRequest, OpId, SLOTS};

use crate::{error::Errno, parts::Manager};

/// Most changes in one message.
pub(crate) const MANY_MAX: usize = 64;

/// The manager as the rest of the client calls it.
pub(crate) struct Calls {
    manager: Arc<dyn Manager>,
    slots: Arc<Slots>,
    patience: Duration,
    dead: AtomicBool,
    /// We end the session ourselves: that it is gone then is as it should be.
    leaving: AtomicBool,
}

struct Slots {
    permits: Arc<Semaphore>,
    free: Mutex<Vec<OpId>>,
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
        self.slots.free.lock().unwrap_or_else(|e| e.into_inner()).push(next);
    }
}

impl Calls {
    pub fn new(manager: Arc<dyn Manager>, patience: Duration) -> Calls {
        let free = (0..SLOTS).rev().map(|slot| OpId { slot, seq: 1 }).collect();
        let permits = Arc::new(Semaphore::new(SLOTS.into()));
        let slots = Arc::new(Slots { permits, free: Mutex::new(free) });
        Calls { manager, slots, patience, dead: AtomicBool::new(false), leaving: AtomicBool::new(false) }
    }

    /// Whether the session was ended under us: nothing can be changed or trusted any more.
    pub fn dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// The session was ended by us.
    pub fn set_closed(&self) {
        self.dead.store(true, SeqCst);
    }

    /// The session is about to be ended by us. What waits at the manager will hear of it.
    pub fn set_leaving(&self) {
        self.leaving.store(true, SeqCst);
    }

    /// The session is fenced.
    pub fn set_dead(&self) {
        if !self.dead.swap(true, SeqCst) && !self.leaving.load(SeqCst) {
            tracing::error!("the session was ended by the manager: this mount is dead");
        }
    }

    /// Whether the session's lease holds: what is cached may be used.
    pub fn lease_valid(&self) -> bool {
        self.manager.lease_valid()
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
        match self.manager.call(request, Instant::now() + patience).await {
            Ok(MgrReply::Error(error)) => Err(self.errno(error)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                tracing::error!(%error, "call the manager");
                Err(Errno::EIO)
            }
        }
    }

    /// One change, applied exactly once or not at all. After `EIO` it is not known which.
    pub async fn mutate(&self, change: Change) -> Result<MgrReply, Errno> {
        self.mutate_and_hold(change, false).await
    }

    /// The same; with `hold` the token of a file that is made comes with the answer, if it is to be had at once.
    pub async fn mutate_and_hold(&self, change: Change, hold: bool) -> Result<MgrReply, Errno> {
        let slot = self.slot().await?;
        let op = slot.op;
        self.ask(MgrRequest::Mutate { op, change, hold }).await
    }

    /// Several changes, at most [`MANY_MAX`], each with its own outcome.
    pub async fn mutate_many(&self, changes: Vec<Change>) -> Result<Vec<Result<MgrReply, Errno>>, Errno> {
        let count = changes.len();
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            slots.push(self.slot().await?);
        }
        let changes = slots.iter().map(|s| s.op).zip(changes).collect();
        match self.ask(MgrRequest::MutateMany { changes }).await? {
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

    async fn slot(&self) -> Result<Slot, Errno> {
        let permit = self.slots.permits.clone().acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(self.patience, permit).await else {
            tracing::error!("gave up waiting for a free slot of the session");
            return Err(Errno::EIO);
        };
        let op = self.slots.free.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let op = op.expect("as many slots as permits");
        Ok(Slot { slots: self.slots.clone(), op, _permit: permit })
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

/// An answer that does not fit the question.
pub(crate) fn unexpected(what: &'static str, reply: &MgrReply) -> Errno {
    tracing::error!(?reply, "unexpected answer to {what}");
    Errno::EIO
}
