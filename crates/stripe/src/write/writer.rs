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

use base::{Epoch, Incarnation, OpClass, PdiskId, StripIndex, StripSet, StripeId, Version};
use bytes::Bytes;
use tokio::time::MissedTickBehavior;
use wire::{
    map::{PdiskState, StripMove},
    nsd::{NsdReply, NsdRequest},
    strip::PrepareStrip,
};

use super::{
    plan::{StripWrite, WritePlan},
    under_way::UnderWay,
};
use crate::{
    ClusterView, Fault, StripFault, StripFaults, StripeError, StripeIo, adopt::Written, meta::BlockMeta,
    pieces::Pieces, shared::Shared, view::PoolView,
};

/// How far one strip is.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// To be sent, not before this time and map version.
    Due { at: Instant, epoch: Epoch },
    /// Sent under this map version, or being made whole.
    Sent { since: Instant, epoch: Epoch },
    /// Stored on this pdisk, by this standing of it.
    Stored(PdiskId, Standing),
}

/// Since when a pdisk counts: from one change of its state to the next, and in one incarnation. What it answered before
/// counts for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    incarnation: Incarnation,
    changed: Epoch,
}

impl Standing {
    fn of(view: &ClusterView, pdisk: PdiskId) -> Standing {
        let of = view.pdisk(pdisk).map(|p| Standing { incarnation: p.incarnation, changed: p.changed });
        of.unwrap_or_default()
    }
}

/// One strip to be stored at one place.
pub struct Strip {
    pub write: Arc<StripWrite>,
    /// What its prepare adopts.
    pub adopt: Option<Version>,
    /// A stale prepared version to drop first.
    pub discard: Option<Version>,
    pub phase: Phase,
    /// Why it was not stored at last.
    pub fault: Option<Fault>,
    pub retries: u32,
    /// It is sent whole, not as a change.
    pub whole: bool,
}

/// What became of a task, by place.
pub enum Event {
    Prepared(usize, PdiskId, Standing, Result<(), Fault>),
    Whole(usize, Result<StripWrite, StripeError>),
}

/// One write of one stripe.
pub struct Writer<'a> {
    pub io: &'a StripeIo,
    pub stripe: StripeId,
    pub version: Version,
    pub pool: Arc<PoolView>,
    pub plan: WritePlan,
    pub previous: Option<BlockMeta>,
    pub pieces: Pieces,
    /// By place: the strips of the stripe, then those of `moves`.
    pub strips: Vec<Option<Strip>>,
    /// Touched strips that are on their way to another pdisk.
    moves: Vec<StripMove>,
    /// What the prepares adopt, by strip.
    adopts: Vec<Option<Version>>,
    pub tasks: UnderWay<Event>,
    /// For each request that has no answer, though it may have ended: its pdisk, which may carry it out still.
    pub unanswered: Vec<PdiskId>,
    progress: Instant,
}

impl Strip {
    fn new(write: &StripWrite, adopt: Option<Version>) -> Strip {
        Strip {
            write: Arc::new(write.clone()),
            adopt,
            discard: None,
            phase: Phase::Due { at: Instant::now(), epoch: Epoch(0) },
            fault: None,
            retries: 0,
            whole: write.base.is_none(),
        }
    }
}

impl<'a> Writer<'a> {
    /// Sends nothing yet.
    pub fn new(
        io: &'a StripeIo,
        stripe: StripeId,
        pool: Arc<PoolView>,
        plan: WritePlan,
        pieces: Pieces,
        previous: Option<BlockMeta>,
    ) -> Writer<'a> {
        let complete = io.shared.adoption.complete_of(stripe);
        let adopts: Vec<_> =
            pool.geometry.all().map(|i| complete.as_ref().and_then(|c| c.version_of(i))).collect();
        let strips =
            plan.strips.iter().zip(&adopts).map(|(w, a)| Some(Strip::new(w.as_ref()?, *a))).collect();
        Writer {
            io,
            stripe,
            version: plan.version,
            pool,
            plan,
            previous,
            pieces,
            strips,
            moves: Vec::new(),
            adopts,
            tasks: UnderWay::new(),
            unanswered: Vec::new(),
            progress: Instant::now(),
        }
    }

    /// Until the write is complete (then the strips that store it), or failed.
    pub async fn run(&mut self) -> Result<StripSet, StripeError> {
        let config = &self.io.shared.config;
        let mut views = self.io.shared.views.clone();
        let pause = config.retry_pause.max(Duration::from_millis(1));
        // Not at once: most writes are over before the first.
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + pause, pause);
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
                Some(done) = self.tasks.next() => {
                    if let Ok(event) = done {
                        self.answered(&event);
                        self.event(&view, event)?;
                    }
                }
                Ok(()) = views.changed() => self.progress = Instant::now(),
                _ = tick.tick() => self.report_silent(&view),
            }
        }
    }

    /// Waits for the answers of what was sent: then nothing of this write is under way.
    pub async fn drain(&mut self) {
        while let Some(done) = self.tasks.next().await {
            if let Ok(event) = done {
                self.answered(&event);
            }
        }
    }

    /// A request has ended: with an answer it is no longer under way.
    fn answered(&mut self, event: &Event) {
        let Event::Prepared(_, pdisk, _, result) = event else { return };
        let none = matches!(result, Err(Fault::Timeout | Fault::Unreachable(_)));
        if !none && let Some(at) = self.unanswered.iter().position(|asked| asked == pdisk) {
            self.unanswered.swap_remove(at);
        }
    }

    /// What is complete: `stored` are the strips that hold it.
    pub fn written(&self, stored: StripSet) -> Written {
        Written {
            pool: self.pool.id,
            version: self.version,
            fresh: self.previous.is_none(),
            touched: self.plan.touched,
            stored,
            moved: self.moves.iter().map(|m| (m.strip, m.to)).collect(),
            meta: self.plan.after.clone(),
        }
    }

    fn members<'v>(&self, view: &'v ClusterView) -> &'v [PdiskId] {
        view.members(self.pool.id, self.pool.group_of(self.stripe))
    }

    /// Which strip a place is of.
    pub fn index(&self, place: usize) -> StripIndex {
        match place.checked_sub(self.pool.geometry.width()) {
            Some(place) => self.moves[place].strip,
            None => StripIndex(place as u8),
        }
    }

    /// The pdisk of a place; none where a strip no longer moves.
    fn pdisk(&self, view: &ClusterView, place: usize) -> Option<PdiskId> {
        let Some(moved) = place.checked_sub(self.pool.geometry.width()) else {
            return self.members(view).get(place).copied();
        };
        let moved = &self.moves[moved];
        view.moves(self.pool.id, moved.group).contains(moved).then_some(moved.to)
    }

    /// A place for every touched strip that moves.
    fn follow_moves(&mut self, view: &ClusterView) {
        for moved in view.moves(self.pool.id, self.pool.group_of(self.stripe)) {
            let i = usize::from(moved.strip.0);
            let Some(write) = self.plan.strips.get(i).and_then(Option::as_ref) else { continue };
            if !self.moves.contains(moved) {
                self.strips.push(Some(Strip::new(write, self.adopts[i])));
                self.moves.push(*moved);
            }
        }
    }

    /// Sends what is ready and due.
    fn launch(&mut self, view: &Arc<ClusterView>) {
        self.follow_moves(view);
        let pdisks: Vec<_> = (0..self.strips.len()).map(|place| self.pdisk(view, place)).collect();
        let indices: Vec<_> = (0..self.strips.len()).map(|place| self.index(place)).collect();
        let now = Instant::now();
        let deadline = now + self.io.shared.config.attempt;
        let mut launched = Vec::new();
        for (i, place) in self.strips.iter_mut().enumerate() {
            let (Some(strip), Some(pdisk)) = (place, pdisks[i]) else { continue };
            let standing = Standing::of(view, pdisk);
            if let Phase::Stored(on, then) = strip.phase
                && (on, then) != (pdisk, standing)
            {
                // The group has moved, or the pdisk was away: it is asked again.
                strip.phase = Phase::Due { at: now, epoch: view.epoch() };
            }
            let Phase::Due { at, epoch } = strip.phase else { continue };
            if at > now || epoch > view.epoch() || !view.state(pdisk).written() {
                continue;
            }
            strip.phase = Phase::Sent { since: now, epoch: view.epoch() };
            launched.push(pdisk);
            let shared = Arc::clone(&self.io.shared);
            let view = Arc::clone(view);
            let id = self.stripe.strip(indices[i]);
            let (write, adopt, discard) = (Arc::clone(&strip.write), strip.adopt, strip.discard.take());
            let (pool, group) = (self.pool.id, self.pool.group_of(self.stripe));
            let bytes = write.payload.iter().map(Bytes::len).sum();
            self.tasks.ask(bytes, async move {
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
                Event::Prepared(i, pdisk, standing, sent.await)
            });
        }
        if !launched.is_empty() {
            self.unanswered.extend(&launched);
            let (version, touched) = (self.version, self.plan.touched);
            let adoption = &self.io.shared.adoption;
            adoption.begun(self.stripe, self.pool.id, version, touched, (&launched, deadline));
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
            let stored = |s: &Strip| matches!(s.phase, Phase::Stored(..));
            if needed && !self.strips[place].as_ref().is_some_and(stored) {
                return None;
            }
        }
        for i in geometry.all() {
            let state = view.state(*members.get(usize::from(i.0))?);
            match &self.strips[usize::from(i.0)] {
                Some(strip) => match strip.phase {
                    Phase::Stored(..) if state.written() => {
                        stored.insert(i);
                        fit += 1;
                    }
                    Phase::Stored(..) => {}
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
            Event::Prepared(i, pdisk, standing, result) => match result {
                Ok(()) => {
                    self.progress = Instant::now();
                    self.set(i, Phase::Stored(pdisk, standing), None);
                    Ok(())
                }
                Err(fault) => self.refused(view, i, (pdisk, standing), fault),
            },
            Event::Whole(i, Ok(write)) => {
                self.progress = Instant::now();
                if let Some(strip) = &mut self.strips[i] {
                    strip.write = Arc::new(write);
                }
                self.set(i, Phase::Due { at: Instant::now(), epoch: Epoch(0) }, None);
                Ok(())
            }
            Event::Whole(_, Err(error)) => Err(error),
        }
    }

    pub fn set(&mut self, i: usize, phase: Phase, fault: Option<Fault>) {
        if let Some(strip) = &mut self.strips[i] {
            strip.phase = phase;
            strip.fault = fault;
        }
    }

    /// Sends strip `i` again, `pause` from now, under a map of at least `epoch`.
    pub fn again(&mut self, i: usize, pause: Duration, epoch: Epoch, fault: Fault) {
        self.set(i, Phase::Due { at: Instant::now() + pause, epoch }, Some(fault));
    }

    fn report_silent(&mut self, view: &ClusterView) {
        let pdisks: Vec<_> = (0..self.strips.len()).map(|place| self.pdisk(view, place)).collect();
        let silent_after = self.io.shared.config.silent_after;
        for (i, strip) in self.strips.iter().enumerate() {
            let Some(strip) = strip else { continue };
            let silent = match &strip.phase {
                Phase::Sent { since, .. } => since.elapsed() >= silent_after,
                Phase::Due { .. } => strip.retries > 0 && self.progress.elapsed() >= silent_after,
                Phase::Stored(..) => false,
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
    pub fn faults(&self, view: &ClusterView) -> StripFaults {
        let fault = |(i, strip): (usize, &Option<Strip>)| {
            let strip = strip.as_ref()?;
            if matches!(strip.phase, Phase::Stored(..)) {
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
