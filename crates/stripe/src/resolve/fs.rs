//! Resolution of a file system after an unclean end of a session: lists what is prepared on every pdisk,
//! seals every strip of those stripes, decides, carries out. Restartable: a repetition finds what is left. A resolver whose own
//! session is fenced ends at once: another one does it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

use base::{BlockIndex, FsId, Grant, InodeNo, OpClass, PdiskId, PoolId, StripId, StripIndex, StripeId};
use tokio::{sync::Semaphore, task::JoinSet};
use wire::{
    map::PdiskState,
    nsd::{BATCH_MAX, NsdReply, NsdRequest},
};

use super::stripe::{ResolveReport, resolve_stripe};
use crate::{Fault, StripeError, StripeIo};

/// How far resolution is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResolveProgress {
    /// Stripes with prepared versions.
    pub found: usize,
    /// Of these, done.
    pub done: usize,
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
