//! Stripe reader: ranges of a block from its data strips, or from any K strips that agree.
//!
//! CRCs are verified unit by unit where each answer arrives, by the transport. What does not match is an erasure:
//! decoded from the others, reported to its server, never returned. Nothing is copied besides decoding.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{AlignedBuf, OpClass, PdiskId, PoolId, StripIndex, StripSet, StripeId, units::UNIT};
use bytes::Bytes;
use tokio::task::JoinSet;
use wire::{
    map::PdiskState,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{Range, ReadStrip, ReadVersion, StripRefusal, VersionInfo},
};

use crate::{
    ClusterView, Fault, StripFault, StripFaults, StripeError, StripeIo, geometry,
    io::Shared,
    meta::BlockMeta,
    pieces::Pieces,
    read_plan::{Phase, ReadPlan, Step},
    repair::StripeTarget,
    view::PoolView,
};

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct BlockRead {
    /// Bytes at block offsets, sorted; zeros are left out. Beyond what was asked nothing is returned.
    pub pieces: Vec<(u32, Bytes)>,
    /// What was learnt of the block on the way.
    pub meta: BlockMeta,
}

/// Decoded strips: index and bytes at strip offsets.
pub(crate) type Decoded = Vec<(usize, Vec<(u32, Bytes)>)>;

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

/// What an attempt came to.
enum Attempt {
    Done(ReadPlan, Decoded),
    /// Begin again, under a map of at least this epoch.
    Again(base::Epoch, Vec<(StripIndex, Fault)>),
    TooFew(ReadPlan),
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

struct ReadAttempt<'a> {
    shared: &'a Arc<Shared>,
    view: &'a Arc<ClusterView>,
    pool: &'a Arc<PoolView>,
    stripe: StripeId,
    /// Versions follow this process's own table of complete versions.
    own: bool,
    class: OpClass,
    until: Instant,
    plan: ReadPlan,
}

type Answer = (usize, Result<(VersionInfo, Vec<(u32, Bytes)>), Fault>);

impl ReadAttempt<'_> {
    async fn run(&mut self) -> Attempt {
        let mut tasks: JoinSet<Answer> = JoinSet::new();
        // Rebuild and scrub wait: what they do on top would be in the way of others.
        let hedged = !matches!(self.class, OpClass::Rebuild | OpClass::Scrub);
        let bound = if hedged { self.shared.latency.bound() } else { self.shared.config.attempt };
        let mut late_at: Vec<Option<Instant>> = vec![None; self.plan.strips.len()];
        loop {
            match self.plan.step() {
                Step::Ask(asks) => {
                    for (index, ranges) in asks {
                        let i = usize::from(index.0);
                        late_at[i].get_or_insert(Instant::now() + bound);
                        self.spawn(&mut tasks, i, ranges);
                    }
                    continue;
                }
                Step::Done => return Attempt::Done(self.plan.clone(), Vec::new()),
                Step::Decode { lost, sources } => {
                    let decoded = self.decode(lost, sources);
                    return Attempt::Done(self.plan.clone(), decoded);
                }
                Step::Disagree(faults) => return Attempt::Again(base::Epoch(0), faults),
                Step::TooFew => return Attempt::TooFew(self.plan.clone()),
                Step::Wait => {}
            }
            let due = |(i, at): (usize, &Option<Instant>)| {
                at.filter(|_| self.plan.strips[i].flying > 0 && !self.plan.strips[i].late)
            };
            let next_late = late_at.iter().enumerate().filter_map(due).min().unwrap_or(self.until);
            // Dropping `tasks` at a return gives up what is still under way.
            match tokio::time::timeout_at(next_late.into(), tasks.join_next()).await {
                Ok(Some(Ok((i, answer)))) => {
                    if let Some(again) = self.answer(i, answer) {
                        return again;
                    }
                }
                Ok(_) if tasks.is_empty() => {
                    // Nothing is under way and the plan waits: a task was lost.
                    return Attempt::Again(base::Epoch(0), Vec::new());
                }
                Ok(_) => {}
                Err(_) => {
                    let now = Instant::now();
                    if now >= self.until {
                        return Attempt::TooFew(self.plan.clone());
                    }
                    for (i, at) in late_at.iter().enumerate() {
                        if at.is_some_and(|at| at <= now) {
                            self.plan.mark_late(i);
                        }
                    }
                }
            }
        }
    }

    fn spawn(&self, tasks: &mut JoinSet<Answer>, i: usize, ranges: Vec<Range>) {
        let members = self.view.members(self.pool.id, self.pool.group_of(self.stripe));
        let Some(&pdisk) = members.get(i) else { return };
        let (shared, view) = (Arc::clone(self.shared), Arc::clone(self.view));
        let strip = self.stripe.strip(StripIndex(i as u8));
        let version = self.plan.strips[i].version;
        let class = self.class;
        let deadline = self.until.min(Instant::now() + shared.config.attempt);
        tasks.spawn(async move {
            let sent = Instant::now();
            let read = ReadStrip { strip, version, ranges };
            let result = read_one(&shared, &view, pdisk, read, class, deadline).await;
            if result.is_ok() {
                shared.latency.record(sent.elapsed());
            }
            if let Err(Fault::BadCrc { .. }) = &result {
                suspect(&shared, &view, pdisk, strip);
            }
            (i, result)
        });
    }

    /// Takes an answer in; `Some` ends the attempt.
    fn answer(
        &mut self,
        i: usize,
        answer: Result<(VersionInfo, Vec<(u32, Bytes)>), Fault>,
    ) -> Option<Attempt> {
        match answer {
            Ok((info, got)) => self.plan.answered(i, info, got),
            Err(Fault::Refused(NsdRefusal::StaleEpoch { current })) => {
                return Some(Attempt::Again(current, Vec::new()));
            }
            Err(Fault::Refused(NsdRefusal::Strip(StripRefusal::Absent))) => {
                if let ReadVersion::Exactly(wanted) = self.plan.strips[i].version {
                    // It was adopted and replaced meanwhile, or the pdisk has caught up.
                    let now = self.shared.adoption.complete_of(self.stripe);
                    if self.own && now.and_then(|c| c.version_of(StripIndex(i as u8))) != Some(wanted) {
                        return Some(Attempt::Again(base::Epoch(0), Vec::new()));
                    }
                    let fault = Fault::Refused(NsdRefusal::Strip(StripRefusal::Absent));
                    self.plan.failed(i, Some(fault));
                } else {
                    self.plan.failed(i, None);
                }
            }
            Err(fault) => self.plan.failed(i, Some(fault)),
        }
        None
    }

    /// Computes what is wanted of the strips `lost`.
    fn decode(&self, lost: StripSet, sources: StripSet) -> Decoded {
        let geometry = self.pool.geometry;
        let content: Vec<Option<Pieces>> =
            geometry.all().map(|i| sources.contains(i).then(|| self.plan.pieces(i.0.into()))).collect();
        let mut out = Vec::new();
        for index in lost.iter() {
            let i = usize::from(index.0);
            let ranges = self.plan.wanted(i);
            let mut list = Vec::new();
            for range in ranges {
                let mut buffer = self.shared.buffers.get(range.len as usize);
                decode_range(self.pool, &content, index, *range, &mut buffer);
                list.push((range.offset, buffer.freeze()));
            }
            out.push((i, list));
        }
        out
    }
}

fn decode_range(
    pool: &PoolView,
    content: &[Option<Pieces>],
    index: StripIndex,
    range: Range,
    out: &mut AlignedBuf,
) {
    let mut at = range.offset;
    while at < range.end() {
        let mut len = range.end() - at;
        for pieces in content.iter().flatten() {
            len = pieces.run(at, len).1;
        }
        let present: Vec<Option<&[u8]>> =
            content.iter().map(|pieces| pieces.as_ref().map(|p| p.run(at, len).0.unwrap_or(&[]))).collect();
        let from = (at - range.offset) as usize;
        let target = &mut out[from..from + len as usize];
        if present.iter().flatten().all(|p| p.is_empty()) {
            target.fill(0);
        } else if let Err(few) = pool.codec.reconstruct(&present, &[index], &mut [target]) {
            // The plan gave K sources; fewer is a mistake in it.
            unreachable!("{few}");
        }
        at += len;
    }
}

/// Reads ranges of one strip; the transport has verified their CRCs.
pub(crate) async fn read_one(
    shared: &Shared,
    view: &ClusterView,
    pdisk: PdiskId,
    read: ReadStrip,
    class: OpClass,
    deadline: Instant,
) -> Result<(VersionInfo, Vec<(u32, Bytes)>), Fault> {
    let inode = read.strip.stripe.inode;
    let asked = read.ranges.clone();
    let request = NsdRequest::Read { pdisk, read };
    let (reply, payload) = shared.call(view, pdisk, request, Vec::new(), class, inode, deadline).await?;
    let NsdReply::Read(read) = reply else { return Err(Fault::Protocol) };
    let total: usize = read.ranges.iter().map(|r| r.len as usize).sum();
    let inside = |r: &Range| asked.iter().any(|a| r.offset >= a.offset && r.end() <= a.end());
    let rising = read.ranges.windows(2).all(|w| w[0].end() <= w[1].offset);
    let whole = read.ranges.iter().all(|r| r.len.is_multiple_of(UNIT as u32) && inside(r));
    if payload.len() != total || read.crcs.len() != total / UNIT || !rising || !whole {
        return Err(Fault::Protocol);
    }
    // What is shortened must be so because the strip ends there.
    let expected = geometry::total(&geometry::clip(&asked, read.info.len)) as usize;
    if total != expected {
        return Err(Fault::Protocol);
    }
    let mut at = 0;
    let mut pieces = Vec::with_capacity(read.ranges.len());
    for range in read.ranges.iter().filter(|r| r.len > 0) {
        let end = at + range.len as usize;
        pieces.push((range.offset, payload.slice(at..end)));
        at = end;
    }
    Ok((read.info, pieces))
}

/// Tells the server that bytes from this strip do not match; nobody waits for the answer.
fn suspect(shared: &Arc<Shared>, view: &Arc<ClusterView>, pdisk: PdiskId, strip: base::StripId) {
    tracing::warn!(%strip, %pdisk, "CRC mismatch: the strip is decoded from the others and reported");
    let (shared, view) = (Arc::clone(shared), Arc::clone(view));
    let deadline = Instant::now() + shared.config.attempt;
    tokio::spawn(async move {
        let request = NsdRequest::Suspect { pdisk, strip };
        let inode = strip.stripe.inode;
        let told = shared.call(&view, pdisk, request, Vec::new(), OpClass::Scrub, inode, deadline).await;
        if let Err(fault) = told {
            tracing::warn!(%strip, %pdisk, %fault, "cannot report a CRC mismatch");
        }
    });
}
