//! Stripe reader: ranges of a block from its data strips, or from any K strips that agree.
//!
//! CRCs are verified unit by unit where each answer arrives, by the transport. What does not match is an erasure:
//! decoded from the others, reported to its server, never returned. Nothing is copied besides decoding.

use std::time::{Duration, Instant};

use base::{OpClass, PdiskId, PoolId, StripIndex, StripSet, StripeId, units::UNIT};
use bytes::Bytes;
use wire::{
    map::PdiskState,
    nsd::NsdRefusal,
    strip::{Range, ReadVersion, StripRefusal},
};

use super::{
    attempt::{Attempt, Decoded, ReadAttempt},
    plan::{Phase, ReadPlan},
};
use crate::{
    Fault, StripFault, StripFaults, StripeError, StripeIo, meta::BlockMeta, pieces::Pieces,
    target::StripeTarget,
};

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct BlockRead {
    /// Bytes at block offsets, sorted; zeros are left out. Beyond what was asked nothing is returned.
    pub pieces: Vec<(u32, Bytes)>,
    /// What was learnt of the block on the way.
    pub meta: BlockMeta,
}

/// Which versions a read is of.
pub(crate) enum Source {
    /// The current ones: adopted, or complete in this process's own table. From `ok` pdisks only.
    Own,
    /// Exactly these, wherever they are.
    Exact(StripeTarget),
}

/// What to read of a stripe's strips.
pub(crate) struct ReadSpec {
    /// For each strip, ranges of it.
    pub wanted: Vec<Vec<Range>>,
    /// Which versions.
    pub source: Source,
    /// Strips that are not asked.
    pub avoid: StripSet,
    /// Kind of work.
    pub class: OpClass,
}

/// Attempts after which strips that disagree count as lost.
const PATIENT_ATTEMPTS: u32 = 4;

impl StripeIo {
    /// Reads ranges of a block. A block that holds nothing anywhere is an error: the caller asks only for
    /// blocks that are allocated.
    pub async fn read(
        &self,
        stripe: StripeId,
        pool: PoolId,
        ranges: &[Range],
        class: OpClass,
    ) -> Result<BlockRead, StripeError> {
        let view = self.shared.view();
        let geometry = self.shared.pool(&view, pool)?.geometry;
        if let Some(range) = ranges.iter().find(|r| {
            !r.offset.is_multiple_of(UNIT as u32)
                || !r.len.is_multiple_of(UNIT as u32)
                || r.len > geometry.block_len()
                || r.end() > geometry.block_len()
        }) {
            return Err(StripeError::BadRequest { stripe, reason: "bad range", range: *range });
        }
        let mut wanted = geometry.split(ranges);
        wanted.resize(geometry.width(), Vec::new());
        let spec = ReadSpec { wanted, source: Source::Own, avoid: StripSet::default(), class };
        let (plan, decoded) = self.read_strips(stripe, pool, &spec).await?;
        let wanted = spec.wanted;
        let mut pieces = Vec::new();
        let mut take = |i: usize, list: &[(u32, Bytes)]| {
            for (offset, bytes) in list {
                pieces.push((offset + geometry.start(i), bytes.clone()));
            }
        };
        if geometry.replicated() {
            if let Some(copy) = plan.copy() {
                take(0, plan.pieces(copy).list());
            }
        } else {
            for (i, wanted) in wanted.iter().enumerate().take(geometry.k()) {
                match decoded.iter().find(|(d, _)| *d == i) {
                    Some((_, list)) => take(i, list),
                    None if wanted.is_empty() => {}
                    None => take(i, &clipped(&plan.pieces(i), wanted)),
                }
            }
        }
        Ok(BlockRead { pieces, meta: plan.learnt() })
    }

    /// Reads ranges of strips, by decoding where needed. Returns the plan with what arrived, and what was
    /// decoded.
    pub(crate) async fn read_strips(
        &self,
        stripe: StripeId,
        pool: PoolId,
        spec: &ReadSpec,
    ) -> Result<(ReadPlan, Decoded), StripeError> {
        let shared = &self.shared;
        let until = Instant::now() + shared.config.deadline;
        let mut number = 0;
        loop {
            let view = shared.view();
            let pool = shared.pool(&view, pool)?;
            let complete = shared.adoption.complete_of(stripe);
            let (versions, known) = match &spec.source {
                Source::Own => {
                    let own = |i| complete.as_ref().and_then(|c| c.version_of(i));
                    let version = |i| own(i).map_or(ReadVersion::Adopted, ReadVersion::Exactly);
                    (pool.geometry.all().map(version).collect(), complete.as_ref().map(|c| c.meta.clone()))
                }
                Source::Exact(target) => (target.versions(pool.geometry), Some(target.meta())),
            };
            let strict = number >= PATIENT_ATTEMPTS;
            let mut plan = ReadPlan::new(pool.geometry, spec.wanted.clone(), versions, known, strict);
            let members = view.members(pool.id, pool.group_of(stripe));
            for (i, pdisk) in members.iter().enumerate() {
                let state = view.state(*pdisk);
                let exact = matches!(spec.source, Source::Exact(_));
                if spec.avoid.contains(StripIndex(i as u8)) {
                    plan.erase(i, Fault::Avoided);
                } else if !(state == PdiskState::Ok || exact && state == PdiskState::Returning) {
                    plan.erase(i, Fault::NotOk(state));
                }
            }
            let own = matches!(spec.source, Source::Own);
            let class = spec.class;
            let mut attempt =
                ReadAttempt { shared, view: &view, pool: &pool, stripe, own, class, until, plan };
            match attempt.run().await {
                Attempt::Done(plan, decoded) => return Ok((plan, decoded)),
                Attempt::Again(epoch, disagree) => {
                    crate::statistics::READ_RETRIES.inc();
                    number += 1;
                    if Instant::now() >= until {
                        let faults = faults_of(members, disagree);
                        return Err(StripeError::Deadline { stripe, faults });
                    }
                    if epoch > view.epoch() {
                        shared.wait_epoch(epoch, until.min(Instant::now() + shared.config.attempt)).await;
                    } else {
                        tokio::time::sleep(shared.config.retry_pause.min(Duration::from_millis(20) * number))
                            .await;
                    }
                }
                Attempt::TooFew(plan) => {
                    let faults: Vec<_> = plan
                        .strips
                        .iter()
                        .enumerate()
                        .filter_map(|(i, s)| match &s.phase {
                            Phase::Erased(fault) => Some((StripIndex(i as u8), fault.clone())),
                            Phase::Absent => {
                                let absent = Fault::Refused(NsdRefusal::Strip(StripRefusal::Absent));
                                Some((StripIndex(i as u8), absent))
                            }
                            _ => None,
                        })
                        .collect();
                    // What may pass by itself is worth another attempt: servers that restart, leases.
                    let passing = faults.iter().any(|(_, f)| {
                        matches!(
                            f,
                            Fault::NoServer
                                | Fault::Unreachable(_)
                                | Fault::Timeout
                                | Fault::OtherVersion { .. }
                                | Fault::Refused(
                                    NsdRefusal::NoLease | NsdRefusal::NoMap | NsdRefusal::NoSuchPdisk
                                )
                        )
                    });
                    let faults = faults_of(members, faults);
                    if !passing || Instant::now() >= until {
                        return Err(StripeError::Unavailable { stripe, faults });
                    }
                    number += 1;
                    tokio::time::sleep(shared.config.retry_pause).await;
                }
            }
        }
    }
}

fn faults_of(members: &[PdiskId], list: Vec<(StripIndex, Fault)>) -> StripFaults {
    let fault = |(index, fault): (StripIndex, Fault)| StripFault {
        index,
        pdisk: members.get(usize::from(index.0)).copied(),
        fault,
    };
    StripFaults(list.into_iter().map(fault).collect())
}

/// The parts of `pieces` within `ranges`.
fn clipped(pieces: &Pieces, ranges: &[Range]) -> Vec<(u32, Bytes)> {
    Pieces::default().overlay(pieces, ranges).into_list()
}
