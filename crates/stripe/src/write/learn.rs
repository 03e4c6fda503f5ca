//! What is known of a block, asked of the servers: a writer that does not know its versions must, before it writes.

use std::time::Instant;

use base::{OpClass, PoolId, StripIndex, StripeId};
use wire::map::PdiskState;

use crate::{Fault, StripFault, StripFaults, StripeError, StripeIo, meta::BlockMeta};

impl StripeIo {
    /// Asks the servers what a block's strips are.
    pub async fn learn(&self, stripe: StripeId, pool: PoolId) -> Result<BlockMeta, StripeError> {
        let shared = &self.shared;
        let until = Instant::now() + shared.config.deadline;
        loop {
            let complete = shared.adoption.complete_of(stripe);
            if let Some(complete) = &complete {
                return Ok(complete.meta.clone());
            }
            let view = shared.view();
            let pool = shared.pool(&view, pool)?;
            let k = pool.geometry.k();
            let attempt = until.min(Instant::now() + shared.config.attempt);
            let answers = shared
                .states(&view, stripe, &pool, OpClass::Write, |s| s == PdiskState::Ok, None, attempt)
                .await;
            let states: Vec<_> =
                answers.iter().map(|a| a.as_ref().and_then(|r| r.as_ref().ok()).cloned()).collect();
            let meta = BlockMeta::from_states(pool.geometry, &states, |_| None);
            // With parity out of reach its version stays unknown: nothing is stored beside it either.
            if meta.data.iter().all(Option::is_some) {
                return Ok(meta);
            }
            let members = view.members(pool.id, pool.group_of(stripe));
            let fault = |(i, answer): (usize, &Option<Result<_, Fault>>)| {
                let pdisk = members.get(i).copied();
                let fault = match answer {
                    Some(Err(fault)) => fault.clone(),
                    None => Fault::NotOk(pdisk.map_or(PdiskState::Missing, |p| view.state(p))),
                    Some(Ok(_)) => return None,
                };
                Some(StripFault { index: StripIndex(i as u8), pdisk, fault })
            };
            let faults = StripFaults(answers.iter().enumerate().filter_map(fault).collect());
            if Instant::now() >= until || faults.0.len() + k <= pool.geometry.width() {
                return Err(StripeError::Unavailable { stripe, faults });
            }
            tokio::time::sleep(shared.config.retry_pause).await;
        }
    }
}
