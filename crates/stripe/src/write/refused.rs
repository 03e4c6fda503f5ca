//! What a writer does about a strip that was not stored: sends it again, discards what stands in its way, sends it
//! whole, or gives up the write.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{Epoch, PdiskId, Version};
use wire::{nsd::NsdRefusal, strip::StripRefusal};

use super::{
    whole::whole_strip,
    writer::{Event, Phase, Standing, Writer},
};
use crate::{ClusterView, Fault, StripFault, StripFaults, StripeError, meta::BlockMeta};

impl Writer<'_> {
    /// The strip at place `i` was not stored by its pdisk.
    pub fn refused(
        &mut self,
        view: &ClusterView,
        i: usize,
        (pdisk, standing): (PdiskId, Standing),
        fault: Fault,
    ) -> Result<(), StripeError> {
        let stripe = self.stripe;
        let index = self.index(i);
        let pause = self.io.shared.config.retry_pause;
        let Some(strip) = &mut self.strips[i] else { return Ok(()) };
        strip.retries += 1;
        crate::statistics::WRITE_RETRIES.inc();
        let retries = strip.retries;
        let sent = match strip.phase {
            Phase::Sent { epoch, .. } => epoch,
            _ => Epoch(0),
        };
        let refusal = match &fault {
            // Any newer map may do. The server may name one that is for servers only.
            Fault::Refused(NsdRefusal::StaleEpoch { .. }) => {
                self.again(i, Duration::ZERO, Epoch(sent.0 + 1), fault);
                return Ok(());
            }
            Fault::Refused(NsdRefusal::Fenced) => return Err(StripeError::Fenced { stripe }),
            Fault::Refused(NsdRefusal::Strip(refusal)) => refusal.clone(),
            _ => {
                self.again(i, pause * retries.min(20), Epoch(0), fault);
                return Ok(());
            }
        };
        let conflict = |present| StripeError::Conflict { stripe, index, present, version: self.version };
        match refusal {
            StripRefusal::NotNewer { present } if present == self.version => {
                self.set(i, Phase::Stored(pdisk, standing), None);
            }
            StripRefusal::NotNewer { present } => return Err(conflict(present)),
            StripRefusal::Sealed { below } => return Err(StripeError::Sealed { stripe, below }),
            StripRefusal::PreparedExists { prepared } => {
                let current = self.previous.as_ref().and_then(|p| match p.data.get(usize::from(index.0)) {
                    Some(known) if !self.pool.geometry.replicated() => *known,
                    _ => p.parity,
                });
                if let Some(strip) = &mut self.strips[i] {
                    if current == Some(prepared) {
                        strip.adopt = Some(prepared); // complete, as the writer knows
                    } else {
                        strip.discard = Some(prepared); // left over from a write that failed
                    }
                }
                self.again(i, if retries > 3 { pause } else { Duration::ZERO }, Epoch(0), fault);
            }
            StripRefusal::WrongBase { present } => {
                let base = self.strips[i].as_ref().and_then(|s| s.write.base);
                if let Some(present) = present
                    && base.is_some_and(|b| b != Version::ZERO && present > b)
                {
                    return Err(conflict(present));
                }
                self.make_whole(i, fault);
            }
            StripRefusal::Lost | StripRefusal::Absent => self.make_whole(i, fault),
            // The manager sees that it is full, and takes the move back.
            StripRefusal::NoSpace if i >= self.pool.geometry.width() => {
                self.again(i, pause * retries.min(20), Epoch(0), fault);
            }
            StripRefusal::NoSpace => return Err(StripeError::NoSpace { stripe, pdisk }),
            StripRefusal::Failed => {
                self.io.shared.reporter.silent(pdisk);
                self.again(i, pause * retries.min(20), Epoch(0), fault);
            }
            StripRefusal::BadCrc { .. } if retries < 4 => self.again(i, pause, Epoch(0), fault),
            StripRefusal::BadCrc { .. } | StripRefusal::Malformed => {
                let faults = self.faults(view);
                let mut faults = faults.0;
                faults.push(StripFault { index, pdisk: Some(pdisk), fault });
                return Err(StripeError::Unavailable { stripe, faults: StripFaults(faults) });
            }
        }
        Ok(())
    }

    /// The strip's base is not there (a pdisk that is still catching up, a damaged strip): reads what is
    /// missing of the block and sends the strip whole.
    fn make_whole(&mut self, i: usize, fault: Fault) {
        let previous = self.previous.clone().unwrap_or_else(|| BlockMeta::empty(self.pool.geometry.k()));
        let Some(strip) = &mut self.strips[i] else { return };
        if strip.whole {
            let retries = strip.retries;
            let pause = self.io.shared.config.retry_pause;
            self.again(i, pause * retries.min(20), Epoch(0), fault);
            return;
        }
        strip.whole = true;
        strip.phase = Phase::Sent { since: Instant::now(), epoch: Epoch(0) };
        strip.fault = Some(fault);
        let (io, pool, stripe) = (self.io.clone(), Arc::clone(&self.pool), self.stripe);
        let (dirty, pieces, info) = (self.plan.dirty.clone(), self.pieces.clone(), strip.write.info.clone());
        let index = usize::from(self.index(i).0);
        // It reads and computes.
        self.tasks.ask(usize::MAX, async move {
            let whole = whole_strip(io, pool, stripe, index, info, dirty, pieces, previous);
            Event::Whole(i, whole.await)
        });
    }
}
