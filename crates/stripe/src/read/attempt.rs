//! One attempt at a read: asks what the plan says, takes the answers, decodes what is lost.

use std::{sync::Arc, time::Instant};

use base::{AlignedBuf, Epoch, OpClass, StripIndex, StripSet, StripeId};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use wire::{
    nsd::NsdRefusal,
    strip::{Range, ReadStrip, ReadVersion, StripRefusal, VersionInfo},
};

use super::{
    plan::{ReadPlan, Step},
    strip::{read_one, suspect},
};
use crate::{
    ClusterView, Fault,
    compute::compute,
    pieces::Pieces,
    shared::Shared,
    statistics::{DECODED_READS, HEDGED_STRIPS},
    view::PoolView,
};

/// Decoded strips: index and bytes at strip offsets.
pub type Decoded = Vec<(usize, Vec<(u32, Bytes)>)>;

/// What an attempt came to.
pub enum Attempt {
    Done(ReadPlan, Decoded),
    /// Begin again, under a map of at least this epoch.
    Again(Epoch, Vec<(StripIndex, Fault)>),
    TooFew(ReadPlan),
}

/// See the module.
pub struct ReadAttempt<'a> {
    pub shared: &'a Arc<Shared>,
    pub view: &'a Arc<ClusterView>,
    pub pool: &'a Arc<PoolView>,
    pub stripe: StripeId,
    /// Versions follow this process's own table of complete versions.
    pub own: bool,
    pub class: OpClass,
    pub until: Instant,
    pub plan: ReadPlan,
}

type Answer = (usize, Result<(VersionInfo, Vec<(u32, Bytes)>), Fault>);

impl ReadAttempt<'_> {
    pub async fn run(&mut self) -> Attempt {
        // Of this task, not tasks of their own: each of those would be one more to be woken.
        let mut asked = FuturesUnordered::new();
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
                        if let Some(ask) = self.ask(i, ranges) {
                            asked.push(ask);
                        }
                    }
                    continue;
                }
                Step::Done => return Attempt::Done(self.plan.clone(), Vec::new()),
                Step::Decode { lost, sources } => {
                    DECODED_READS.inc();
                    let decoded = self.decode(lost, sources).await;
                    return Attempt::Done(self.plan.clone(), decoded);
                }
                Step::Disagree(faults) => return Attempt::Again(Epoch(0), faults),
                Step::TooFew => return Attempt::TooFew(self.plan.clone()),
                Step::Wait => {}
            }
            let due = |(i, at): (usize, &Option<Instant>)| {
                at.filter(|_| self.plan.strips[i].flying > 0 && !self.plan.strips[i].late)
            };
            let next_late = late_at.iter().enumerate().filter_map(due).min().unwrap_or(self.until);
            // Dropping `asked` at a return gives up what is still under way.
            match tokio::time::timeout_at(next_late.into(), asked.next()).await {
                Ok(Some((i, answer))) => {
                    if let Some(again) = self.answer(i, answer) {
                        return again;
                    }
                }
                // Nothing is under way and the plan waits: its strip is on no pdisk.
                Ok(None) => return Attempt::Again(Epoch(0), Vec::new()),
                Err(_) => {
                    let now = Instant::now();
                    if now >= self.until {
                        return Attempt::TooFew(self.plan.clone());
                    }
                    for (i, at) in late_at.iter().enumerate() {
                        if at.is_some_and(|at| at <= now) {
                            HEDGED_STRIPS.add(u64::from(self.plan.mark_late(i)));
                        }
                    }
                }
            }
        }
    }

    /// Asks strip `i` for `ranges`; `None`: no pdisk is to have it.
    fn ask(&self, i: usize, ranges: Vec<Range>) -> Option<impl Future<Output = Answer> + Send + use<>> {
        let members = self.view.members(self.pool.id, self.pool.group_of(self.stripe));
        let &pdisk = members.get(i)?;
        let (shared, view) = (Arc::clone(self.shared), Arc::clone(self.view));
        let strip = self.stripe.strip(StripIndex(i as u8));
        let version = self.plan.strips[i].version;
        let class = self.class;
        let deadline = self.until.min(Instant::now() + shared.config.attempt);
        Some(async move {
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
        })
    }

    /// Takes an answer in; `Some` ends the attempt.
    fn answer(
        &mut self,
        i: usize,
        answer: Result<(VersionInfo, Vec<(u32, Bytes)>), Fault>,
    ) -> Option<Attempt> {
        match answer {
            Ok((info, got)) => self.plan.answered(i, info, got),
            Err(Fault::Refused(NsdRefusal::StaleEpoch { .. })) => {
                // Any newer map may do. The server may name one that is for servers only.
                return Some(Attempt::Again(Epoch(self.view.epoch().0 + 1), Vec::new()));
            }
            Err(Fault::Refused(NsdRefusal::Strip(StripRefusal::Absent))) => {
                if let ReadVersion::Exactly(wanted) = self.plan.strips[i].version {
                    // It was adopted and replaced meanwhile, or the pdisk has caught up.
                    let now = self.shared.adoption.complete_of(self.stripe);
                    if self.own && now.and_then(|c| c.version_of(StripIndex(i as u8))) != Some(wanted) {
                        return Some(Attempt::Again(Epoch(0), Vec::new()));
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
    async fn decode(&self, lost: StripSet, sources: StripSet) -> Decoded {
        let geometry = self.pool.geometry;
        let content: Vec<Option<Pieces>> =
            geometry.all().map(|i| sources.contains(i).then(|| self.plan.pieces(i.0.into()))).collect();
        let wanted: Vec<(StripIndex, Vec<Range>)> =
            lost.iter().map(|index| (index, self.plan.wanted(index.0.into()).to_vec())).collect();
        let bytes: u64 = wanted.iter().flat_map(|(_, ranges)| ranges).map(|range| u64::from(range.len)).sum();
        let (shared, pool) = (Arc::clone(self.shared), Arc::clone(self.pool));
        let work = move || {
            let decode = |(index, ranges): (StripIndex, Vec<Range>)| {
                let one = |range: Range| {
                    let mut buffer = shared.buffers.get(range.len as usize);
                    decode_range(&pool, &content, index, range, &mut buffer);
                    (range.offset, buffer.freeze())
                };
                (usize::from(index.0), ranges.into_iter().map(one).collect())
            };
            wanted.into_iter().map(decode).collect()
        };
        compute(bytes * geometry.k() as u64, work).await
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
