//! Resolution of one stripe: seals its strips, has it decided, carries that out, until nothing is prepared.

use std::time::{Duration, Instant};

use base::{Grant, OpClass, PdiskId, PoolId, StripIndex, StripeId, Version};
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
    strip::{StripRefusal, StripState},
};

use super::decisions::{Decision, Member, Moved, decide, decide_moved};
use crate::{Fault, StripFault, StripFaults, StripeError, StripeIo, target::StripeTarget};

/// What resolution came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResolveReport {
    /// Stripes that had something prepared.
    pub stripes: usize,
    /// Versions that now count.
    pub forward: usize,
    /// Versions that were dropped.
    pub back: usize,
    /// Strips made anew.
    pub installed: usize,
    /// Stripes that cannot be decided, or could not be worked on, and why.
    pub unavailable: Vec<(StripeId, String)>,
}

/// A stripe has at most one prepared version on each of at most 32 strips.
const ROUNDS_MAX: usize = 40;

/// Resolves one stripe; returns counts (and itself if it cannot be decided).
pub(crate) async fn resolve_stripe(
    io: &StripeIo,
    stripe: StripeId,
    pool: PoolId,
    grant: Grant,
) -> Result<ResolveReport, StripeError> {
    let mut report = ResolveReport::default();
    let mut until = Instant::now() + io.config().deadline;
    for _ in 0..ROUNDS_MAX {
        let (members, joining) = seal(io, stripe, pool, grant, until).await?;
        let geometry = io.shared.pool(&io.view(), pool)?.geometry;
        let before = report.clone();
        match decide(geometry, &members) {
            Decision::Clean => {
                for (index, to, state) in &joining {
                    let items = |version| vec![(stripe.strip(*index), version)];
                    let request = match decide_moved(geometry, &members, *index, state) {
                        Some(Moved::Adopt(version)) => {
                            NsdRequest::Adopt { pdisk: *to, items: items(version) }
                        }
                        Some(Moved::Discard(version)) => {
                            NsdRequest::Discard { pdisk: *to, items: items(version) }
                        }
                        None => continue,
                    };
                    change_one(io, stripe, *index, *to, request, until).await?;
                }
                return Ok(report);
            }
            Decision::Unavailable { version, reason } => {
                report.unavailable.push((stripe, format!("{version}: {reason}")));
                return Ok(report);
            }
            Decision::Back { discard, .. } => {
                change(io, stripe, pool, &discard, false, until).await?;
                report.back += 1;
            }
            Decision::Forward { adopt, discard, install, target, .. } => {
                change(io, stripe, pool, &adopt, true, until).await?;
                change(io, stripe, pool, &discard, false, until).await?;
                if let Some(target) = target {
                    for index in install {
                        install_strip(io, stripe, pool, index, &target, until).await?;
                        report.installed += 1;
                    }
                }
                report.forward += 1;
            }
        }
        if report != before {
            until = Instant::now() + io.config().deadline;
        }
    }
    report.unavailable.push((stripe, "what is prepared does not end".into()));
    Ok(report)
}

/// The members of a stripe's group, and what is where its strips are on their way to.
type Sealed = (Vec<Member>, Vec<(StripIndex, PdiskId, StripState)>);

/// Seals every strip of a stripe; answers come from all `ok` pdisks, or it fails.
async fn seal(
    io: &StripeIo,
    stripe: StripeId,
    pool: PoolId,
    grant: Grant,
    until: Instant,
) -> Result<Sealed, StripeError> {
    loop {
        let view = io.view();
        let pool = io.shared.pool(&view, pool)?;
        let group = pool.group_of(stripe);
        let members = view.members(pool.id, group).to_vec();
        let attempt = until.min(Instant::now() + io.config().attempt);
        let answers = io
            .shared
            .states(&view, stripe, &pool, OpClass::Rebuild, PdiskState::written, Some(grant), attempt)
            .await;
        let mut faults = Vec::new();
        let mut out = Vec::new();
        for (i, answer) in answers.into_iter().enumerate() {
            let pdisk = members.get(i).copied();
            let state = pdisk.map_or(PdiskState::Missing, |p| view.state(p));
            out.push(match (answer, state) {
                (Some(Ok(found)), PdiskState::Ok) => Member::Ok(found),
                (Some(Ok(found)), _) => Member::Returning(found),
                (Some(Err(fault)), PdiskState::Ok) => {
                    faults.push(StripFault { index: StripIndex(i as u8), pdisk, fault });
                    Member::Away(state)
                }
                _ => Member::Away(state),
            });
        }
        let mut joining = Vec::new();
        for m in view.moves(pool.id, group) {
            let strip = stripe.strip(m.strip);
            let request = NsdRequest::Seal { pdisk: m.to, strips: vec![strip], below: grant };
            match io.call(m.to, request, Vec::new(), OpClass::Rebuild, attempt).await {
                Ok((NsdReply::States { mut states, .. }, _)) => joining.push((
                    m.strip,
                    m.to,
                    states.pop().unwrap_or(StripState { strip, ..StripState::default() }),
                )),
                Ok(_) => {
                    faults.push(StripFault { index: m.strip, pdisk: Some(m.to), fault: Fault::Protocol })
                }
                Err(fault) => faults.push(StripFault { index: m.strip, pdisk: Some(m.to), fault }),
            }
        }
        if faults.iter().any(|f| f.fault.is_fenced()) {
            return Err(StripeError::Fenced { stripe });
        }
        if faults.is_empty() && io.view().moves(pool.id, group) == view.moves(pool.id, group) {
            return Ok((out, joining));
        }
        if Instant::now() >= until {
            return Err(StripeError::Deadline { stripe, faults: StripFaults(faults) });
        }
        let mut views = io.views();
        let _ = tokio::time::timeout(io.config().retry_pause.max(Duration::from_millis(10)), views.changed())
            .await;
    }
}

/// Adopts or discards, strip by strip; a strip whose pdisk no longer counts is left to catch-up.
async fn change(
    io: &StripeIo,
    stripe: StripeId,
    pool: PoolId,
    items: &[(StripIndex, Version)],
    adopt: bool,
    until: Instant,
) -> Result<(), StripeError> {
    for &(index, version) in items {
        loop {
            let view = io.view();
            let pool = io.shared.pool(&view, pool)?;
            let members = view.members(pool.id, pool.group_of(stripe));
            let Some(&pdisk) = members.get(usize::from(index.0)) else { break };
            if !view.state(pdisk).written() {
                break;
            }
            let list = vec![(stripe.strip(index), version)];
            let request = if adopt {
                NsdRequest::Adopt { pdisk, items: list }
            } else {
                NsdRequest::Discard { pdisk, items: list }
            };
            let attempt = until.min(Instant::now() + io.config().attempt);
            let fault = match io.call(pdisk, request, Vec::new(), OpClass::Rebuild, attempt).await {
                Ok((NsdReply::Outcomes(outcomes), _)) => match outcomes.into_iter().next() {
                    Some(Ok(()) | Err(StripRefusal::NotNewer { .. } | StripRefusal::Absent)) => break,
                    Some(Err(refusal)) => Fault::Refused(refusal.into()),
                    None => Fault::Protocol,
                },
                Ok(_) => Fault::Protocol,
                Err(fault) if fault.is_fenced() => return Err(StripeError::Fenced { stripe }),
                Err(fault) => fault,
            };
            if Instant::now() >= until {
                let faults = StripFaults(vec![StripFault { index, pdisk: Some(pdisk), fault }]);
                return Err(StripeError::Deadline { stripe, faults });
            }
            tokio::time::sleep(io.config().retry_pause).await;
        }
    }
    Ok(())
}

/// One change on the pdisk that a strip is on its way to, as long as it is.
async fn change_one(
    io: &StripeIo,
    stripe: StripeId,
    index: StripIndex,
    to: PdiskId,
    request: NsdRequest,
    until: Instant,
) -> Result<(), StripeError> {
    loop {
        let attempt = until.min(Instant::now() + io.config().attempt);
        let fault = match io.call(to, request.clone(), Vec::new(), OpClass::Rebuild, attempt).await {
            Ok((NsdReply::Outcomes(outcomes), _)) => match outcomes.into_iter().next() {
                Some(Ok(()) | Err(StripRefusal::NotNewer { .. } | StripRefusal::Absent)) => return Ok(()),
                Some(Err(refusal)) => Fault::Refused(refusal.into()),
                None => Fault::Protocol,
            },
            Ok(_) => Fault::Protocol,
            Err(fault) if fault.is_fenced() => return Err(StripeError::Fenced { stripe }),
            Err(fault) => fault,
        };
        if !io.view().state(to).written() {
            return Ok(()); // the move is taken back
        }
        if Instant::now() >= until {
            let faults = StripFaults(vec![StripFault { index, pdisk: Some(to), fault }]);
            return Err(StripeError::Deadline { stripe, faults });
        }
        tokio::time::sleep(io.config().retry_pause).await;
    }
}

async fn install_strip(
    io: &StripeIo,
    stripe: StripeId,
    pool: PoolId,
    index: StripIndex,
    target: &StripeTarget,
    until: Instant,
) -> Result<(), StripeError> {
    loop {
        let view = io.view();
        let pool_view = io.shared.pool(&view, pool)?;
        let group = pool_view.group_of(stripe);
        let Some(&pdisk) = view.members(pool, group).get(usize::from(index.0)) else { return Ok(()) };
        if !view.state(pdisk).written() {
            return Ok(());
        }
        let (strip, payload) =
            io.rebuild_strip(stripe, pool, group, index, target, true, OpClass::Rebuild).await?;
        let request = NsdRequest::Install { pdisk, strip };
        let attempt = until.min(Instant::now() + io.config().attempt);
        let fault = match io.call(pdisk, request, payload, OpClass::Rebuild, attempt).await {
            Ok((NsdReply::Done, _)) => return Ok(()),
            Err(fault) if matches!(fault.strip_refusal(), Some(StripRefusal::NotNewer { .. })) => {
                return Ok(());
            }
            Ok(_) => Fault::Protocol,
            Err(fault) if fault.is_fenced() => return Err(StripeError::Fenced { stripe }),
            Err(fault) => fault,
        };
        if Instant::now() >= until {
            let faults = StripFaults(vec![StripFault { index, pdisk: Some(pdisk), fault }]);
            return Err(StripeError::Deadline { stripe, faults });
        }
        tokio::time::sleep(io.config().retry_pause).await;
    }
}
