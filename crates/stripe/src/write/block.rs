//! A block to write, as the client has it, and its way to the writer.

use std::{sync::Arc, time::Instant};

use base::{PoolId, StripeId, Version};
use bytes::Bytes;
use wire::strip::Range;

use super::{
    plan::{self, Change},
    writer::Writer,
};
use crate::{StripFaults, StripeError, StripeIo, compute::compute, meta::BlockMeta, pieces::Pieces};

/// A block to write.
#[derive(Clone, Debug)]
pub struct WriteStripe {
    /// Which block.
    pub stripe: StripeId,
    /// The pool of its file.
    pub pool: PoolId,
    /// The new version, above all that were written before.
    pub version: Version,
    /// Stored bytes of the block after it, a multiple of 4 KiB. Less than `previous.len` cuts the block
    /// there; otherwise the block is at least as long as before.
    pub len: u32,
    /// What changes: block offsets, 4 KiB aligned. Of a new block everything in `pieces` is new.
    pub dirty: Vec<Range>,
    /// Bytes at block offsets: sorted, each a multiple of 4 KiB within one strip. They hold the content
    /// of [`parity_ranges`](crate::parity_ranges) of what changes (a cut tail included); between them are
    /// zeros.
    pub pieces: Vec<(u32, Bytes)>,
    /// What is known of the block; `None` if it was not allocated.
    pub previous: Option<BlockMeta>,
    /// All that counts of the block is in `dirty`: of what was there before nothing is wanted.
    pub replaces: bool,
}

impl StripeIo {
    /// Writes a block, and waits for room: near the end of a pdisk its reserve is all there is for new versions, and comes
    /// back as versions are adopted. Writes that each hold a part of it would wait for one another: who finds none
    /// gives back what it holds, and goes on when it is alone, with a version of its own (`next`): a request to discard the
    /// one before that got no answer may still be carried out.
    pub async fn write_when_room(
        &self,
        write: WriteStripe,
        next: &(dyn Fn() -> Version + Send + Sync),
    ) -> Result<BlockMeta, StripeError> {
        let first = self.write(write.clone()).await;
        let Err(StripeError::NoSpace { .. }) = first else { return first };
        let shared = &self.shared;
        let until = Instant::now() + shared.config.deadline;
        self.clear_abandoned(write.stripe, until).await?;
        let Ok(_alone) = tokio::time::timeout_at(until.into(), shared.last_room.lock()).await else {
            return first;
        };
        let until = Instant::now() + shared.config.attempt;
        loop {
            shared.adoption.adopt_soon();
            tokio::time::sleep(shared.config.retry_pause).await;
            match self.write(WriteStripe { version: next(), ..write.clone() }).await {
                Err(StripeError::NoSpace { .. }) if Instant::now() < until => {
                    self.clear_abandoned(write.stripe, until).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Writes a block. Returns what is known of it now; on an error its last complete version stands.
    pub async fn write(&self, write: WriteStripe) -> Result<BlockMeta, StripeError> {
        let shared = &self.shared;
        let stripe = write.stripe;
        let started = Instant::now();
        let view = shared.view();
        let pool = shared.pool(&view, write.pool)?;
        let geometry = pool.geometry;
        let until = started + shared.config.deadline;
        self.clear_abandoned(stripe, until).await?;
        if !shared.adoption.wait_room(stripe, until).await {
            return Err(StripeError::Deadline { stripe, faults: StripFaults::default() });
        }

        let pieces = Pieces::checked(stripe, geometry, write.pieces)?;
        if write.len > geometry.block_len() || !write.len.is_multiple_of(base::units::UNIT as u32) {
            let range = Range { offset: 0, len: write.len };
            return Err(StripeError::BadRequest { stripe, reason: "bad block length", range });
        }
        let bytes = pieces.list().iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let mut len = write.len;
        let previous = match write.previous {
            None => None,
            Some(claimed) if claimed.is_complete(geometry.k()) => Some(claimed),
            Some(claimed) => {
                let learnt = self.learn(stripe, write.pool).await?;
                // The block is allocated, and nobody has anything of it: it is lost. What is not written now would be zeros.
                if learnt.is_nothing() && !write.replaces {
                    return Err(StripeError::Unavailable { stripe, faults: StripFaults::default() });
                }
                if len >= claimed.len {
                    len = len.max(learnt.len);
                }
                Some(learnt)
            }
        };
        let (by, at) = (Arc::clone(shared), Arc::clone(&pool));
        let work = move || {
            let change = Change {
                version: write.version,
                len,
                dirty: &write.dirty,
                pieces: &pieces,
                previous: previous.as_ref(),
            };
            let plan = plan::plan(geometry, &at.codec, &by.buffers, &change);
            (plan, pieces, previous)
        };
        let (plan, pieces, previous) = compute(bytes, work).await;
        let mut writer = Writer::new(self, stripe, pool, plan, pieces, previous);
        let outcome = writer.run().await;
        if matches!(outcome, Err(StripeError::NoSpace { .. })) {
            writer.drain().await;
        }
        match outcome {
            Ok(stored) => {
                let meta = writer.plan.after.clone();
                shared.adoption.completed(stripe, writer.written(stored));
                Ok(meta)
            }
            Err(error) => {
                shared.adoption.settled(stripe, &writer.unanswered);
                Err(error)
            }
        }
    }
}
