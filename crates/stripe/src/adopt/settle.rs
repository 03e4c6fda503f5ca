//! The end of what is half done: everything complete adopted, what failed writes left discarded.

use std::time::Instant;

use base::{FsId, InodeNo, OpClass, StripeId};
use wire::{
    nsd::{NsdReply, NsdRequest},
    strip::StripRefusal,
};

use super::flush::flush;
use crate::{Fault, StripFault, StripFaults, StripeError, StripeIo};

impl StripeIo {
    /// Adopts everything that is complete; returns when that is durable. Before a clean end of a session.
    pub async fn adopt_all(&self, deadline: Instant) -> Result<(), StripeError> {
        loop {
            flush(&self.shared).await;
            let stripes = self.shared.adoption.len();
            if stripes == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(StripeError::NotAdopted { stripes });
            }
            tokio::time::sleep(self.shared.config.retry_pause).await;
        }
    }

    /// Leaves nothing of an inode half done: what is complete is adopted, durably, and what failed writes
    /// left is discarded. Nothing of it is being written.
    pub async fn settle_inode(&self, fs: FsId, inode: InodeNo, deadline: Instant) -> Result<(), StripeError> {
        for stripe in self.shared.adoption.abandoned_in(fs, inode) {
            self.clear_abandoned(stripe, deadline).await?;
        }
        loop {
            let stripes = self.shared.adoption.complete_in(fs, inode);
            if stripes == 0 {
                return Ok(());
            }
            flush(&self.shared).await;
            let stripes = self.shared.adoption.complete_in(fs, inode);
            if stripes > 0 {
                if Instant::now() >= deadline {
                    return Err(StripeError::NotAdopted { stripes });
                }
                tokio::time::sleep(self.shared.config.retry_pause).await;
            }
        }
    }

    /// Forgets what failed writes left of an inode that is removed: its strips are deleted, whatever version they are of. This
    /// session writes nothing of it, nor will it.
    pub fn forget_inode(&self, fs: FsId, inode: InodeNo) {
        self.shared.adoption.forget_abandoned(fs, inode);
    }

    /// Whether a write of a stripe was begun, is not complete and not discarded: something of it may be on the pdisks.
    pub fn is_abandoned(&self, stripe: StripeId) -> bool {
        self.shared.adoption.is_abandoned(stripe)
    }

    /// Stripes that are complete and not known to be adopted.
    pub fn unadopted(&self) -> usize {
        self.shared.adoption.len()
    }

    /// Discards what failed writes left of a stripe, so that the next version stands beside a complete
    /// one. Waits until requests of the failed write can no longer arrive. A pdisk that goes missing meanwhile is not waited for.
    pub(crate) async fn clear_abandoned(&self, stripe: StripeId, until: Instant) -> Result<(), StripeError> {
        let shared = &self.shared;
        let Some(abandoned) = shared.adoption.abandoned_of(stripe) else { return Ok(()) };
        for (pdisk, dead_at) in &abandoned.under_way {
            // Both only wait.
            tokio::select! {
                () = tokio::time::sleep_until((*dead_at).min(until).into()) => {}
                () = shared.left(*pdisk) => {}
            }
        }
        loop {
            let view = shared.view();
            let pool = shared.pool(&view, abandoned.pool)?;
            let group = pool.group_of(stripe);
            let members = view.members(pool.id, group);
            let mut faults = Vec::new();
            for (version, touched) in &abandoned.versions {
                let places = touched.iter().flat_map(|index| {
                    let member = members.get(usize::from(index.0)).copied();
                    member.into_iter().chain(view.joins(pool.id, group, index)).map(move |p| (index, p))
                });
                for (index, pdisk) in places {
                    let items = vec![(stripe.strip(index), *version)];
                    let request = NsdRequest::Discard { pdisk, items };
                    let attempt = until.min(Instant::now() + shared.config.attempt);
                    let class = OpClass::Write;
                    // The other only waits; a request that is given up may still be carried out, which does no harm.
                    let reply = tokio::select! {
                        biased;
                        () = shared.left(pdisk) => continue,
                        reply = shared.call(&view, pdisk, request, Vec::new(), class, stripe.inode, attempt) => reply,
                    };
                    let fault = match reply {
                        Ok((NsdReply::Outcomes(outcomes), _)) => match outcomes.first() {
                            Some(Ok(()) | Err(StripRefusal::NotNewer { .. } | StripRefusal::Absent)) => {
                                continue;
                            }
                            Some(Err(refusal)) => Fault::Refused(refusal.clone().into()),
                            None => Fault::Protocol,
                        },
                        Ok(_) => Fault::Protocol,
                        Err(fault) if fault.is_fenced() => return Err(StripeError::Fenced { stripe }),
                        Err(fault) => fault,
                    };
                    faults.push(StripFault { index, pdisk: Some(pdisk), fault });
                }
            }
            if faults.is_empty() {
                shared.adoption.discarded(stripe);
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(StripeError::Deadline { stripe, faults: StripFaults(faults) });
            }
            tokio::time::sleep(shared.config.retry_pause).await;
        }
    }
}
