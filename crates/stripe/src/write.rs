//! Stripe writer: one stripe in, K+M prepared strips out.
//!
//! A write completes when every touched strip whose pdisk is written to has stored it, and at least K
//! strips fit the new version. A silent server is asked again until the map says that its pdisk is
//! missing; a stale map is replaced and the same version sent again (a repetition has no further effect).
//! A strip that is on its way to another pdisk is stored there as well: a place of its own, as necessary
//! as a member's, but never one of the K.
//! Until it completes the version counts as abandoned: whatever ends the writer, the next write of the
//! stripe discards it first.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{Epoch, Incarnation, OpClass, PdiskId, PoolId, StripIndex, StripSet, StripeId, Version};
use bytes::Bytes;
use tokio::{task::JoinSet, time::MissedTickBehavior};
use wire::{
    map::{PdiskState, StripMove},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{PrepareStrip, Range, StripRefusal},
};

use crate::{
    ClusterView, Fault, StripFault, StripFaults, StripeError, StripeIo,
    io::Shared,
    meta::BlockMeta,
    pieces::Pieces,
    plan::{self, Change, StripWrite, WritePlan},
    view::PoolView,
};

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
}

/// What the writer does about one strip.
#[derive(Clone, Debug, PartialEq)]
enum Slot {
    /// To be sent, not before this time and map version.
    Ready { at: Instant, epoch: Epoch },
    /// Sent, or being made whole.
    Flying { since: Instant },
    /// Stored on this pdisk in this life of it.
    Stored(PdiskId, Life),
}

/// A pdisk counts from one change of its state to the next, and in one incarnation: what it answered before
/// counts for nothing.
type Life = (Incarnation, Epoch);

fn life(view: &ClusterView, pdisk: PdiskId) -> Life {
    view.pdisk(pdisk).map(|p| (p.incarnation, p.changed)).unwrap_or_default()
}

struct Strip {
    write: Arc<StripWrite>,
    adopt: Option<Version>,
    /// A stale prepared version to drop first.
    discard: Option<Version>,
    slot: Slot,
    fault: Option<Fault>,
    retries: u32,
    whole: bool,
}

enum Event {
    Prepared(usize, PdiskId, Life, Result<(), Fault>),
    Whole(usize, Result<StripWrite, StripeError>),
}

struct Writer<'a> {
    io: &'a StripeIo,
    stripe: StripeId,
    version: Version,
    pool: Arc<PoolView>,
    plan: WritePlan,
    previous: Option<BlockMeta>,
    pieces: Pieces,
    /// By place: the strips of the stripe, then those of `joins`.
    strips: Vec<Option<Strip>>,
    /// Touched strips that are on their way to another pdisk.
    joins: Vec<StripMove>,
    /// What the prepares adopt, by strip.
    adopts: Vec<Option<Version>>,
    tasks: JoinSet<Event>,
    /// An attempt ended without an answer: it may still be carried out.
    unknown: bool,
    progress: Instant,
}

impl StripeIo {
    /// Writes a block. Returns what is known of it now; on an error its last complete version stands.
    ///
    /// Near the end of a pdisk its reserve is all there is for new versions, and comes back as versions are
    /// adopted. Writes that each hold a part of it would wait for one another: who finds none gives back what
    /// it holds, and goes on when it is alone.
    pub async fn write(&self, write: WriteStripe) -> Result<BlockMeta, StripeError> {
        let first = self.write_once(write.clone()).await;
        let Err(StripeError::NoSpace { .. }) = first else { return first };
        let shared = &self.shared;
        let until = Instant::now() + shared.config.deadline;
        self.clear_abandoned(write.stripe, until).await?;
        let Ok(_alone) = tokio::time::timeout_at(until.into(), shared.last_room.lock()).await else {
            return first;
        };
        let until = Instant::now() + shared.config.attempt;
        loop {
            shared.adoption.hurry();
            tokio::time::sleep(shared.config.retry_pause).await;
            match self.write_once(write.clone()).await {
                Err(StripeError::NoSpace { .. }) if Instant::now() < until => {
                    self.clear_abandoned(write.stripe, until).await?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn write_once(&self, write: WriteStripe) -> Result<BlockMeta, StripeError> {
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
        let mut len = write.len;
        let previous = match write.previous {
            None => None,
            Some(claimed) if claimed.is_complete(geometry.k()) => Some(claimed),
            Some(claimed) => {
                let learnt = self.learn(stripe, write.pool).await?;
                if len >= claimed.len {
                    len = len.max(learnt.len);
                }
                Some(learnt)
            }
        };
        let change = Change {
            stripe,
            version: write.version,
            len,
            dirty: &write.dirty,
            pieces: &pieces,
            previous: previous.as_ref(),
        };
        let plan = plan::plan(geometry, &pool.codec, &shared.buffers, &change);
        let complete = shared.adoption.complete_of(stripe);
        let adopts: Vec<_> =
            geometry.all().map(|i| complete.as_ref().and_then(|c| c.version_of(i))).collect();
        let strips =
            plan.strips.iter().zip(&adopts).map(|(w, a)| Some(Strip::new(w.as_ref()?, *a))).collect();
        let mut writer = Writer {
            io: self,
            stripe,
            version: write.version,
            pool,
            plan,
            previous,
            pieces,
            strips,
            joins: Vec::new(),
            adopts,
            tasks: JoinSet::new(),
            unknown: false,
            progress: Instant::now(),
        };
        let outcome = writer.run().await;
        if matches!(outcome, Err(StripeError::NoSpace { .. })) {
            writer.drain().await;
        }
        let settled = writer.tasks.is_empty() && !writer.unknown;
        match outcome {
            Ok(stored) => {
                let meta = writer.plan.after.clone();
                let touched = writer.plan.touched;
                let pool = writer.pool.id;
                let joined = writer.joins.iter().map(|m| (m.strip, m.to)).collect();
                let fresh = writer.previous.is_none();
                let (version, adoption) = (write.version, &shared.adoption);
                adoption.completed(stripe, pool, version, fresh, touched, stored, joined, meta.clone());
                Ok(meta)
            }
            Err(error) => {
                if settled {
                    shared.adoption.settled(stripe);
                }
                Err(error)
            }
        }
    }

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

impl Strip {
    fn new(write: &StripWrite, adopt: Option<Version>) -> Strip {
        Strip {
            write: Arc::new(write.clone()),
            adopt,
            discard: None,
            slot: Slot::Ready { at: Instant::now(), epoch: Epoch(0) },
            fault: None,
            retries: 0,
            whole: write.base.is_none(),
        }
    }
}

impl Writer<'_> {
    /// Until the write is complete (then the strips that store it), or failed.
    async fn run(&mut self) -> Result<StripSet, StripeError> {
        let config = &self.io.shared.config;
        let mut views = self.io.shared.views.clone();
        let mut tick = tokio::time::interval(config.retry_pause.max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            self.launch(&view);
            if let Some(stored) = self.complete(&view) {
                return Ok(stored);
            }
            if self.progress.elapsed() >= config.deadline {
                let faults = self.faults(&view);
                return Err(StripeError::Deadline { stripe: self.stripe, faults });
            }
            // Each branch only waits: what arrives stays until the next turn.
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => {
                    if let Ok(event) = done {
                        self.event(&view, event)?;
                    }
                }
                Ok(()) = views.changed() => self.progress = Instant::now(),
                _ = tick.tick() => self.report_silent(&view),
            }
        }
    }

    /// Waits for the answers of what was sent: then nothing of this write is under way.
    async fn drain(&mut self) {
        while let Some(done) = self.tasks.join_next().await {
            let unknown = |fault: &Fault| matches!(fault, Fault::Timeout | Fault::Unreachable(_));
            self.unknown |= match done {
                Ok(Event::Prepared(_, _, _, Err(fault))) => unknown(&fault),
                Ok(_) => false,
                Err(_) => true,
            };
        }
    }

    fn members<'v>(&self, view: &'v ClusterView) -> &'v [PdiskId] {
        view.members(self.pool.id, self.pool.group_of(self.stripe))
    }

    /// Which strip a place is of.
    fn index(&self, place: usize) -> StripIndex {
        match place.checked_sub(self.pool.geometry.width()) {
            Some(join) => self.joins[join].strip,
            None => StripIndex(place as u8),
        }
    }

    /// The pdisk of a place; none where a strip no longer moves.
    fn pdisk(&self, view: &ClusterView, place: usize) -> Option<PdiskId> {
        let Some(join) = place.checked_sub(self.pool.geometry.width()) else {
            return self.members(view).get(place).copied();
        };
        let join = &self.joins[join];
        view.moves(self.pool.id, join.group).contains(join).then_some(join.to)
    }

    /// A place for every touched strip that moves.
    fn join(&mut self, view: &ClusterView) {
        for join in view.moves(self.pool.id, self.pool.group_of(self.stripe)) {
            let i = usize::from(join.strip.0);
            let Some(write) = self.plan.strips.get(i).and_then(Option::as_ref) else { continue };
            if !self.joins.contains(join) {
                self.strips.push(Some(Strip::new(write, self.adopts[i])));
                self.joins.push(*join);
            }
        }
    }

    /// Sends what is ready and due.
    fn launch(&mut self, view: &Arc<ClusterView>) {
        self.join(view);
        let pdisks: Vec<_> = (0..self.strips.len()).map(|place| self.pdisk(view, place)).collect();
        let indices: Vec<_> = (0..self.strips.len()).map(|place| self.index(place)).collect();
        let now = Instant::now();
        let deadline = now + self.io.shared.config.attempt;
        let mut launched = false;
        for (i, place) in self.strips.iter_mut().enumerate() {
            let (Some(strip), Some(pdisk)) = (place, pdisks[i]) else { continue };
            let life = life(view, pdisk);
            if let Slot::Stored(on, then) = strip.slot
                && (on, then) != (pdisk, life)
            {
                // The group has moved, or the pdisk was away: it is asked again.
                strip.slot = Slot::Ready { at: now, epoch: view.epoch() };
            }
            let Slot::Ready { at, epoch } = strip.slot else { continue };
            if at > now || epoch > view.epoch() || !view.state(pdisk).written() {
                continue;
            }
            strip.slot = Slot::Flying { since: now };
            launched = true;
            let shared = Arc::clone(&self.io.shared);
            let view = Arc::clone(view);
            let id = self.stripe.strip(indices[i]);
            let (write, adopt, discard) = (Arc::clone(&strip.write), strip.adopt, strip.discard.take());
            let (pool, group) = (self.pool.id, self.pool.group_of(self.stripe));
            self.tasks.spawn(async move {
                let prepare = PrepareStrip {
                    strip: id,
                    pool,
                    group,
                    info: write.info.clone(),
                    base: write.base,
                    adopt,
                    ranges: write.ranges.clone(),
                    crcs: write.crcs.clone(),
                };
                let sent = send(&shared, &view, pdisk, prepare, &write.payload, discard, deadline);
                Event::Prepared(i, pdisk, life, sent.await)
            });
        }
        if launched {
            let (version, touched) = (self.version, self.plan.touched);
            let adoption = &self.io.shared.adoption;
            adoption.begun(self.stripe, self.pool.id, version, touched, deadline);
        }
    }

    /// The strips that store the version, once that is enough.
    fn complete(&self, view: &ClusterView) -> Option<StripSet> {
        let members = self.members(view);
        let geometry = self.pool.geometry;
        let mut stored = StripSet::default();
        let mut fit = 0;
        for place in geometry.width()..self.strips.len() {
            let needed = self.pdisk(view, place).is_some_and(|pdisk| view.state(pdisk).written());
            let stored = |s: &Strip| matches!(s.slot, Slot::Stored(..));
            if needed && !self.strips[place].as_ref().is_some_and(stored) {
                return None;
            }
        }
        for i in geometry.all() {
            let state = view.state(*members.get(usize::from(i.0))?);
            match &self.strips[usize::from(i.0)] {
                Some(strip) => match strip.slot {
                    Slot::Stored(..) if state.written() => {
                        stored.insert(i);
                        fit += 1;
                    }
                    Slot::Stored(..) => {}
                    _ if state.written() => return None,
                    _ => {}
                },
                None => {
                    let covered = self.plan.after.data.get(usize::from(i.0)).copied().flatten();
                    if state == PdiskState::Ok || covered == Some(Version::ZERO) {
                        fit += 1;
                    }
                }
            }
        }
        (fit >= geometry.k() && !stored.is_empty()).then_some(stored)
    }

    fn event(&mut self, view: &ClusterView, event: Event) -> Result<(), StripeError> {
        match event {
            Event::Prepared(i, pdisk, life, result) => match result {
                Ok(()) => {
                    self.progress = Instant::now();
                    self.slot(i, Slot::Stored(pdisk, life), None);
                    Ok(())
                }
                Err(fault) => self.failed(view, i, (pdisk, life), fault),
            },
            Event::Whole(i, Ok(write)) => {
                self.progress = Instant::now();
                if let Some(strip) = &mut self.strips[i] {
                    strip.write = Arc::new(write);
                }
                self.slot(i, Slot::Ready { at: Instant::now(), epoch: Epoch(0) }, None);
                Ok(())
            }
            Event::Whole(_, Err(error)) => Err(error),
        }
    }

    fn slot(&mut self, i: usize, slot: Slot, fault: Option<Fault>) {
        if let Some(strip) = &mut self.strips[i] {
            strip.slot = slot;
            strip.fault = fault;
        }
    }

    /// Sends strip `i` again, `pause` from now, under a map of at least `epoch`.
    fn again(&mut self, i: usize, pause: Duration, epoch: Epoch, fault: Fault) {
        self.slot(i, Slot::Ready { at: Instant::now() + pause, epoch }, Some(fault));
    }

    fn failed(
        &mut self,
        view: &ClusterView,
        i: usize,
        (pdisk, life): (PdiskId, Life),
        fault: Fault,
    ) -> Result<(), StripeError> {
        let stripe = self.stripe;
        let index = self.index(i);
        let pause = self.io.shared.config.retry_pause;
        let Some(strip) = &mut self.strips[i] else { return Ok(()) };
        strip.retries += 1;
        let retries = strip.retries;
        let refusal = match &fault {
            Fault::Refused(NsdRefusal::StaleEpoch { current }) => {
                self.again(i, Duration::ZERO, *current, fault);
                return Ok(());
            }
            Fault::Refused(NsdRefusal::Fenced) => return Err(StripeError::Fenced { stripe }),
            Fault::Refused(NsdRefusal::Strip(refusal)) => refusal.clone(),
            Fault::Timeout | Fault::Unreachable(_) => {
                self.unknown = true;
                self.again(i, pause * retries.min(20), Epoch(0), fault);
                return Ok(());
            }
            _ => {
                self.again(i, pause * retries.min(20), Epoch(0), fault);
                return Ok(());
            }
        };
        let conflict = |present| StripeError::Conflict { stripe, index, present, version: self.version };
        match refusal {
            StripRefusal::NotNewer { present } if present == self.version => {
                self.slot(i, Slot::Stored(pdisk, life), None);
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
        strip.slot = Slot::Flying { since: Instant::now() };
        strip.fault = Some(fault);
        let (io, pool, stripe) = (self.io.clone(), Arc::clone(&self.pool), self.stripe);
        let (dirty, pieces, info) = (self.plan.dirty.clone(), self.pieces.clone(), strip.write.info.clone());
        let index = usize::from(self.index(i).0);
        self.tasks.spawn(async move {
            let whole = whole_strip(io, pool, stripe, index, info, dirty, pieces, previous);
            Event::Whole(i, whole.await)
        });
    }

    fn report_silent(&mut self, view: &ClusterView) {
        let pdisks: Vec<_> = (0..self.strips.len()).map(|place| self.pdisk(view, place)).collect();
        let silent_after = self.io.shared.config.silent_after;
        for (i, strip) in self.strips.iter().enumerate() {
            let Some(strip) = strip else { continue };
            let silent = match &strip.slot {
                Slot::Flying { since } => since.elapsed() >= silent_after,
                Slot::Ready { .. } => strip.retries > 0 && self.progress.elapsed() >= silent_after,
                Slot::Stored(..) => false,
            };
            if let Some(pdisk) = pdisks[i]
                && silent
                && view.state(pdisk).written()
            {
                self.io.shared.reporter.silent(pdisk);
            }
        }
    }

    /// What is waited for, strip by strip.
    fn faults(&self, view: &ClusterView) -> StripFaults {
        let fault = |(i, strip): (usize, &Option<Strip>)| {
            let strip = strip.as_ref()?;
            if matches!(strip.slot, Slot::Stored(..)) {
                return None;
            }
            let pdisk = self.pdisk(view, i);
            let state = pdisk.map_or(PdiskState::Missing, |p| view.state(p));
            let fault = if state.written() {
                strip.fault.clone().unwrap_or(Fault::Timeout)
            } else {
                Fault::NotOk(state)
            };
            Some(StripFault { index: self.index(i), pdisk, fault })
        };
        StripFaults(self.strips.iter().enumerate().filter_map(fault).collect())
    }
}

async fn send(
    shared: &Shared,
    view: &ClusterView,
    pdisk: PdiskId,
    prepare: PrepareStrip,
    payload: &[Bytes],
    discard: Option<Version>,
    deadline: Instant,
) -> Result<(), Fault> {
    let inode = prepare.strip.stripe.inode;
    if let Some(version) = discard {
        let request = NsdRequest::Discard { pdisk, items: vec![(prepare.strip, version)] };
        shared.call(view, pdisk, request, Vec::new(), OpClass::Write, inode, deadline).await?;
    }
    let request = NsdRequest::Prepare { pdisk, strip: prepare };
    match shared.call(view, pdisk, request, payload.to_vec(), OpClass::Write, inode, deadline).await? {
        (NsdReply::Done, _) => Ok(()),
        _ => Err(Fault::Protocol),
    }
}

/// Strip `i` of the new version whole: what the block held before it, with the change laid over.
#[allow(clippy::too_many_arguments)]
async fn whole_strip(
    io: StripeIo,
    pool: Arc<PoolView>,
    stripe: StripeId,
    i: usize,
    info: wire::strip::VersionInfo,
    dirty: Vec<Range>,
    pieces: Pieces,
    previous: BlockMeta,
) -> Result<StripWrite, StripeError> {
    let geometry = pool.geometry;
    let whole = if info.len == 0 { Vec::new() } else { vec![Range { offset: 0, len: info.len }] };
    let parity = !geometry.replicated() && i >= geometry.k();
    let wanted = if parity {
        geometry.rows_as_block(&whole)
    } else {
        whole.iter().map(|r| Range { offset: r.offset + geometry.start(i), len: r.len }).collect()
    };
    let old = if previous.data.iter().all(|v| *v == Some(Version::ZERO)) {
        Pieces::default()
    } else {
        Pieces::from_sorted(io.read(stripe, pool.id, &wanted, OpClass::Write).await?.pieces)
    };
    let content = old.overlay(&pieces, &dirty);
    let (payload, crcs) = if parity {
        let all = plan::encode(geometry, &pool.codec, &io.shared.buffers, &content, &whole);
        let (bytes, crcs) = all.into_iter().nth(i - geometry.k()).unwrap_or_default();
        (if bytes.is_empty() { Vec::new() } else { vec![bytes] }, crcs)
    } else {
        content.payload(&whole, geometry.start(i))
    };
    Ok(StripWrite { info, base: None, ranges: whole, crcs, payload })
}
