//! Resolution of a file system after an unclean end of a session: lists what is prepared on every pdisk,
//! seals every strip of those stripes, decides, carries out. Restartable: a repetition finds what is left. A resolver whose own
//! session is fenced ends at once: another one does it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use base::{
    BlockIndex, FsId, Grant, InodeNo, OpClass, PdiskId, PoolId, StripId, StripIndex, StripeId, Version,
};
use tokio::{sync::Semaphore, task::JoinSet};
use wire::{
    map::PdiskState,
    nsd::{BATCH_MAX, NsdReply, NsdRequest},
    strip::{StripRefusal, StripState},
};

use crate::{
    Fault, StripFault, StripFaults, StripeError, StripeIo,
    resolve::{Decision, Member, Moved, decide, decide_moved},
};

/// How far resolution is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResolveProgress {
    /// Stripes with prepared versions.
    pub found: usize,
    /// Of these, done.
    pub done: usize,
}

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

/// Resolves all stripes of a file system that have prepared versions, under the resolver's grant.
pub async fn resolve_fs(
    io: &StripeIo,
    fs: FsId,
    grant: Grant,
    progress: impl Fn(ResolveProgress),
) -> Result<ResolveReport, StripeError> {
    let stripes = list_prepared(io, fs, None).await?;
    resolve_all(io, stripes, grant, progress).await
}

/// The same for one inode, beside live sessions: the resolver holds its write token, under this grant.
pub async fn resolve_inode(
    io: &StripeIo,
    fs: FsId,
    inode: InodeNo,
    grant: Grant,
) -> Result<ResolveReport, StripeError> {
    let stripes = list_prepared(io, fs, Some(inode)).await?;
    resolve_all(io, stripes, grant, |_| ()).await
}

/// The inodes of a file system that have prepared versions, rising. Those of live sessions are among them.
pub async fn unresolved_inodes(io: &StripeIo, fs: FsId) -> Result<Vec<InodeNo>, StripeError> {
    let mut inodes: Vec<InodeNo> = list_prepared(io, fs, None).await?.keys().map(|s| s.inode).collect();
    inodes.dedup();
    Ok(inodes)
}

async fn resolve_all(
    io: &StripeIo,
    stripes: BTreeMap<StripeId, PoolId>,
    grant: Grant,
    progress: impl Fn(ResolveProgress),
) -> Result<ResolveReport, StripeError> {
    let mut state = ResolveProgress { found: stripes.len(), done: 0 };
    progress(state);
    let mut report = ResolveReport { stripes: stripes.len(), ..ResolveReport::default() };
    let parallel = Arc::new(Semaphore::new(io.config().resolve_parallel.max(1)));
    let mut tasks = JoinSet::new();
    let mut under_way = HashMap::new();
    let mut waiting = stripes.into_iter();
    loop {
        while tasks.len() < io.config().resolve_parallel.max(1) {
            let Some((stripe, pool)) = waiting.next() else { break };
            let (io, parallel) = (io.clone(), Arc::clone(&parallel));
            let task = tasks.spawn(async move {
                let _permit = parallel.acquire_owned().await;
                resolve_stripe(&io, stripe, pool, grant).await
            });
            under_way.insert(task.id(), stripe);
        }
        let Some(done) = tasks.join_next_with_id().await else { break };
        state.done += 1;
        progress(state);
        // A task that ended without an outcome has resolved nothing.
        let (id, outcome) = match done {
            Ok((_, Err(error))) if error.is_fenced() => return Err(error),
            Ok((id, outcome)) => (id, outcome.map_err(|error| error.to_string())),
            Err(error) => (error.id(), Err(error.to_string())),
        };
        let Some(stripe) = under_way.remove(&id) else { continue };
        match outcome {
            Ok(one) => {
                report.forward += one.forward;
                report.back += one.back;
                report.installed += one.installed;
                report.unavailable.extend(one.unavailable);
            }
            Err(reason) => report.unavailable.push((stripe, reason)),
        }
    }
    for (stripe, reason) in &report.unavailable {
        tracing::warn!(%stripe, %reason, "block stays unresolved");
    }
    Ok(report)
}

/// Every stripe of the file system, or of one inode, that has a prepared version on a pdisk that counts.
async fn list_prepared(
    io: &StripeIo,
    fs: FsId,
    inode: Option<InodeNo>,
) -> Result<BTreeMap<StripeId, PoolId>, StripeError> {
    let view = io.view();
    let (mut tasks, mut under_way) = (JoinSet::new(), HashMap::new());
    for pdisk in view.map.pdisks.iter().filter(|p| p.state.written()).map(|p| p.id) {
        let io = io.clone();
        let task = tasks.spawn(async move { list_pdisk(&io, fs, inode, pdisk).await });
        under_way.insert(task.id(), pdisk);
    }
    let mut stripes = BTreeMap::new();
    while let Some(done) = tasks.join_next_with_id().await {
        // What a task that ended without an answer would have listed is not known to be resolved.
        let (id, listed) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err(Fault::Unreachable(error.to_string()))),
        };
        let Some(pdisk) = under_way.remove(&id) else { continue };
        match listed {
            Ok(list) => stripes.extend(list),
            Err(fault) => return Err(StripeError::CannotList { fs, pdisk, fault }),
        }
    }
    Ok(stripes)
}

async fn list_pdisk(
    io: &StripeIo,
    fs: FsId,
    inode: Option<InodeNo>,
    pdisk: PdiskId,
) -> Result<Vec<(StripeId, PoolId)>, Fault> {
    let mut found = Vec::new();
    // Strips sort by inode: those of one begin after the last that the one before it can have.
    let mut after = inode.map(|inode| {
        let before = InodeNo(inode.0.saturating_sub(1));
        StripeId { fs, inode: before, block: BlockIndex(u64::MAX) }.strip(StripIndex(u8::MAX))
    });
    let wanted = |strip: &StripId| inode.is_none_or(|inode| strip.stripe.inode == inode);
    let mut until = Instant::now() + io.config().deadline;
    loop {
        let view = io.view();
        if view.state(pdisk) != PdiskState::Ok && !view.state(pdisk).written() {
            return Ok(found); // does not count any more
        }
        let request = NsdRequest::ListPrepared { pdisk, fs, after, limit: BATCH_MAX as u32 };
        let attempt = until.min(Instant::now() + io.config().attempt);
        match io.call(pdisk, request, Vec::new(), OpClass::Rebuild, attempt).await {
            Ok((NsdReply::States { states, more }, _)) => {
                until = Instant::now() + io.config().deadline;
                found.extend(states.iter().filter(|s| wanted(&s.strip)).map(|s| (s.strip.stripe, s.pool)));
                match states.last() {
                    Some(last) if more && wanted(&last.strip) => after = Some(last.strip),
                    _ => return Ok(found),
                }
            }
            Ok(_) => return Err(Fault::Protocol),
            Err(fault) if fault.is_fenced() => return Err(fault),
            // One that is catching up may be left out: what only it holds was never acknowledged.
            Err(_) if view.state(pdisk) == PdiskState::Returning => return Ok(found),
            Err(fault) if Instant::now() >= until => return Err(fault),
            Err(_) => tokio::time::sleep(io.config().retry_pause).await,
        }
    }
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
    target: &crate::StripeTarget,
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
