//! What the manager's record says of blocks. Questions that come while one is on its way go together in the next.

use std::time::Instant;

use base::StripeId;
use parking_lot::Mutex;
use stripe::{LinkError, Membership};
use thiserror::Error;
use tokio::sync::oneshot;
use wire::{
    mgr::{MgrReply, MgrRequest},
    owned::{OWNERS_MAX, Owner},
};

/// The manager did not say; later it may.
#[derive(Clone, Debug, Error)]
#[error("the manager does not say whether the block exists: {0}")]
pub struct NoRecord(String);

/// Asks the manager. Its waiting questions are bounded by who asks: one for each strip that is worked on.
pub struct Records {
    membership: Membership,
    waiting: Mutex<Vec<(StripeId, oneshot::Sender<Owner>)>>,
    /// Held by who asks for all that wait.
    turn: tokio::sync::Mutex<()>,
}

impl Records {
    /// Asks in the name of this session.
    pub fn new(membership: Membership) -> Records {
        Records { membership, waiting: Mutex::default(), turn: tokio::sync::Mutex::new(()) }
    }

    /// What is said of one block at some moment after this call.
    pub async fn of(&self, stripe: StripeId, deadline: Instant) -> Result<Owner, NoRecord> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().push((stripe, answer));
        let _turn = self.turn.lock().await;
        if let Ok(owner) = answered.try_recv() {
            return Ok(owner);
        }
        // Mine is the first that waits, or was lost with who asked for it.
        let asked: Vec<_> = {
            let mut waiting = self.waiting.lock();
            let most = waiting.len().min(OWNERS_MAX);
            waiting.drain(..most).filter(|(_, answer)| !answer.is_closed()).collect()
        };
        let owners = self.of_all(asked.iter().map(|(stripe, _)| *stripe).collect(), deadline).await?;
        for ((_, answer), owner) in asked.into_iter().zip(owners) {
            let _ = answer.send(owner); // who asked may have gone
        }
        answered.try_recv().map_err(|_| NoRecord("it was asked for others".into()))
    }

    /// What is said of at most [`OWNERS_MAX`] blocks, in order.
    pub async fn of_all(&self, blocks: Vec<StripeId>, deadline: Instant) -> Result<Vec<Owner>, NoRecord> {
        let asked = blocks.len();
        let failed = |error: LinkError| NoRecord(error.to_string());
        match self.membership.call(MgrRequest::Owners { blocks }, deadline).await.map_err(failed)? {
            MgrReply::Owners(owners) if owners.len() == asked => Ok(owners),
            _ => Err(NoRecord("unexpected answer".into())),
        }
    }
}
