//! Catch-up of a pdisk that came back: every group it is in is compared with what the other members have,
//! strip by strip, and what is missing or old is made anew.
//!
//! A member answers a listing only when the map that made this pdisk `returning` is in force there, so
//! nothing that was written without this pdisk is missed. Writes since then include it. So one pass, and
//! another look at what was on its way, converge; then the manager is told. Started again from the
//! beginning after any interruption: what is equal costs only its place in a listing. It ends: where the strips
//! cannot say what became of a block the manager's record does, and what too few strips are left of is given up.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use base::{
    Epoch, GroupId, OpClass, PdiskId, PoolId, StripId, StripIndex, StripeId, Version,
    stats::{Counter, counter},
};
use parking_lot::Mutex;
use pdisk::Pdisk;
use stripe::{ClusterView, Membership, StripeIo};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
    strip::StripState,
};

use crate::{
    config::{ServedPdisk, Tuning},
    judge::{Seen, Verdict, Why, all_named, judge, vouched},
    pace::{PERMITS, Pace},
    progress::Progress,
    records::Records,
    settle::{Maker, Place, Settled, Unsettled, empty},
    status::CatchUpStatus,
    strips::Strips,
};

/// Catch-up of one pdisk: its state, and what it reports.
pub struct CatchUp<S = Pdisk> {
    served: ServedPdisk<S>,
    io: StripeIo,
    membership: Membership,
    records: Records,
    tuning: Tuning,
    status: Mutex<Option<CatchUpStatus>>,
    pace: Arc<Pace>,
    progress: Arc<Progress>,
    rebuilt: Counter,
}

/// Stripes to look at again; bounded.
#[derive(Default)]
pub struct Revisit {
    /// With the version that each waits for if it is one that is prepared there and perhaps complete.
    places: HashMap<Place, Option<Version>>,
    /// Groups with stripes that did not fit in, or that could not be listed.
    pub groups: HashSet<(PoolId, GroupId)>,
}

impl<S: Strips> CatchUp<S> {
    /// For one pdisk. `progress` is what the reports to the manager say.
    pub fn new(
        served: ServedPdisk<S>,
        io: StripeIo,
        membership: Membership,
        tuning: Tuning,
        pace: Arc<Pace>,
        progress: Arc<Progress>,
    ) -> CatchUp<S> {
        let records = Records::new(membership.clone());
        let rebuilt = counter("nsd_rebuilt_bytes", &[("pdisk", &served.id.to_string())]);
        CatchUp { rebuilt, served, io, membership, records, tuning, status: Mutex::default(), pace, progress }
    }

    /// What the reports to the manager say of it.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
    /// The pdisk it makes strips on.
    pub(crate) fn pdisk(&self) -> PdiskId {
        self.served.id
    }
    /// A permit to work on a stripe of a pool.
    async fn permit(&self, pool: PoolId, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let block_size = self.io.view().pool(pool).map_or(0, |pool| pool.geometry.block_len());
        let share = self.pace.share(block_size, self.tuning.rebuild_parallel);
        Arc::clone(permits).acquire_many_owned(share).await.ok()
    }
    /// Pause between looks at stripes that could not be settled yet.
    pub(crate) fn pause(&self) -> Duration {
        self.tuning.revisit_pause
    }

    /// How far it is, if it ever began.
    pub fn status(&self) -> Option<CatchUpStatus> {
        self.status.lock().clone()
    }

    fn note(&self, change: impl FnOnce(&mut CatchUpStatus)) {
        change(self.status.lock().get_or_insert_default());
    }

    /// Runs for the life of the server: catches up whenever the map says that the pdisk is returning.
    pub async fn run(self: Arc<Self>) {
        let mut views = self.membership.views();
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            let returning = view.pdisk(self.served.id).filter(|p| p.state == PdiskState::Returning);
            let epoch = returning.map(|p| p.changed);
            let done = *self.progress.caught_up.lock();
            if let Some(epoch) = epoch.filter(|e| done.is_none_or(|d| d < *e)) {
                // Given up when the pdisk's state changes; what was installed stays and is not wrong.
                tokio::select! {
                    () = self.catch_up(epoch) => {
                        *self.progress.caught_up.lock() = Some(epoch);
                        self.note(|s| s.done = true);
                        self.membership.renew_now().await;
                    }
                    () = self.state_changes(epoch) => {}
                }
                continue;
            }
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends when the pdisk is no longer returning as of `epoch`.
    async fn state_changes(&self, epoch: Epoch) {
        let mut views = self.membership.views();
        let still = |view: &Arc<ClusterView>| {
            view.pdisk(self.served.id).is_some_and(|p| p.state == PdiskState::Returning && p.changed == epoch)
        };
        if views.wait_for(|v| !still(v)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn catch_up(self: &Arc<Self>, epoch: Epoch) {
        let id = self.served.id;
        let name = self.membership.view().map.pdisk_called(id);
        tracing::info!(%epoch, "{name} begins to catch up");
        let mut in_force = self.membership.in_force();
        if in_force.wait_for(|now| now.of(id) >= epoch).await.is_err() {
            std::future::pending::<()>().await;
        }
        let view = self.io.view();
        let mut groups = VecDeque::new();
        for pool in &view.map.pools {
            let width = usize::from(pool.width).max(1);
            for (g, members) in pool.table.chunks_exact(width).enumerate() {
                if let Some(me) = members.iter().position(|m| *m == id) {
                    groups.push_back((pool.id, GroupId(g as u32), me));
                }
            }
        }
        let total = groups.len();
        *self.status.lock() = Some(CatchUpStatus { epoch, groups: total, ..CatchUpStatus::default() });
        let revisit = Arc::new(Mutex::new(Revisit::default()));
        let parallel = Arc::new(Semaphore::new(PERMITS as usize));
        loop {
            let mut tasks = JoinSet::new();
            loop {
                while tasks.len() < self.tuning.groups_parallel.max(1) {
                    let Some((pool, group, me)) = groups.pop_front() else { break };
                    let (this, revisit, parallel) =
                        (Arc::clone(self), Arc::clone(&revisit), Arc::clone(&parallel));
                    tasks.spawn(async move { this.group(pool, group, me, revisit, parallel).await });
                }
                if tasks.join_next().await.is_none() {
                    break;
                }
                self.note(|s| s.groups_done = (s.groups_done + 1).min(s.groups));
            }
            if self.look_again(&revisit, &parallel).await {
                break;
            }
            let again = std::mem::take(&mut revisit.lock().groups);
            let me = |(pool, group)| view.members(pool, group).iter().position(|m| *m == id);
            groups.extend(again.into_iter().filter_map(|of| Some((of.0, of.1, me(of)?))));
            if groups.is_empty() {
                tokio::time::sleep(self.tuning.revisit_pause).await;
            }
        }
        tracing::info!(%epoch, "{name} has caught up: {total} groups compared");
    }

    /// Settles what waits; true if nothing is left.
    pub(crate) async fn look_again(
        self: &Arc<Self>,
        revisit: &Arc<Mutex<Revisit>>,
        parallel: &Arc<Semaphore>,
    ) -> bool {
        let places: Vec<Place> = revisit.lock().places.keys().copied().collect();
        let mut tasks = JoinSet::new();
        for place in places {
            let Some(permit) = self.permit(place.pool, parallel).await else { return false };
            let (this, revisit) = (Arc::clone(self), Arc::clone(revisit));
            tasks.spawn(async move {
                this.one(place, &revisit).await;
                drop(permit);
            });
        }
        while tasks.join_next().await.is_some() {}
        let left = revisit.lock();
        self.note(|s| (s.waiting, s.groups_waiting) = (left.places.len(), left.groups.len()));
        if left.places.is_empty() && left.groups.is_empty() {
            self.progress.waits.lock().clear();
        }
        left.places.is_empty() && left.groups.is_empty()
    }

    /// Settles one strip, or remembers it.
    async fn one(&self, place: Place, revisit: &Mutex<Revisit>) {
        let begun = Instant::now();
        let deadline = begun + self.io.config().attempt;
        let view = self.io.view();
        // A strip that moves is copied from where it is, if that counts.
        let member = view.members(place.pool, place.group).get(usize::from(place.index.0)).copied();
        let avoid = member.is_none_or(|m| m == self.served.id || view.state(m) != PdiskState::Ok);
        let maker = Maker {
            io: &self.io,
            records: &self.records,
            on: self.served.id,
            avoid,
            gives_up: member == Some(self.served.id),
            doubted: false,
            class: OpClass::Rebuild,
            deadline,
        };
        let outcome = maker.settle(&self.served.pdisk, place).await;
        if let Ok(Settled::Installed(bytes)) = outcome {
            self.progress.moved.fetch_add(bytes, Ordering::Relaxed);
            self.rebuilt.add(bytes);
            self.pace.take(self.served.id, bytes, deadline).await;
            self.pace.yield_to_clients(begun.elapsed()).await;
        }
        let mut waiting = revisit.lock();
        let before = waiting.places.get(&place).copied().flatten();
        let held = match &outcome {
            Err(Unsettled::Judge(Why::Held(version))) => Some(*version),
            _ => None,
        };
        let outcome = match (before, held) {
            // It came since the catch-up began: its writer knows it, and adopts it here.
            (Some(first), Some(now)) if now > first => Ok(Settled::Fine),
            _ => outcome,
        };
        match outcome {
            Ok(settled) => {
                waiting.places.remove(&place);
                self.note(|s| match settled {
                    Settled::Fine | Settled::Sound => {}
                    Settled::Adopted => s.adopted += 1,
                    Settled::Discarded => s.discarded += 1,
                    Settled::Installed(bytes) => {
                        s.installed += 1;
                        s.installed_bytes += bytes;
                    }
                    Settled::Deleted => s.deleted += 1,
                    Settled::Hopeless => s.hopeless += 1,
                });
            }
            Err(reason) => {
                if !matches!(reason, Unsettled::Judge(_)) {
                    tracing::debug!(pdisk = %self.served.id, stripe = %place.stripe, %reason, "looked at again later");
                }
                let room =
                    waiting.places.len() < self.tuning.revisit_max || waiting.places.contains_key(&place);
                if room {
                    waiting.places.insert(place, before.or(held));
                } else {
                    waiting.groups.insert((place.pool, place.group));
                }
                let text = format!("{}: {reason}", place.stripe);
                self.progress.waits.lock().clone_from(&text);
                self.note(|s| {
                    s.waiting = waiting.places.len();
                    s.last_reason = text;
                });
            }
        }
    }

    /// Compares strip `me` of one group with the others; what differs is settled, or remembered.
    pub(crate) async fn group(
        self: Arc<Self>,
        pool: PoolId,
        group: GroupId,
        me: usize,
        revisit: Arc<Mutex<Revisit>>,
        parallel: Arc<Semaphore>,
    ) {
        let view = self.io.view();
        let Some(pool_view) = view.pool(pool).cloned() else { return };
        let members = view.members(pool, group).to_vec();
        let again = || {
            revisit.lock().groups.insert((pool, group));
        };
        let waits = |text: String| {
            self.progress.waits.lock().clone_from(&text);
            self.note(|s| s.last_reason = text);
            tokio::time::sleep(self.tuning.revisit_pause)
        };
        // A strip that moves: without K members the others cannot even say what there is.
        let moved_from = members.get(me).copied().filter(|m| *m != self.served.id);
        let ok =
            members.iter().filter(|m| **m != self.served.id && view.state(**m) == PdiskState::Ok).count();
        let given_up = |m: &PdiskId| view.is_given_up(*m);
        if moved_from.is_some() && ok < pool_view.geometry.k() && !members.iter().any(given_up) {
            waits(format!("{group}: fewer pdisks count than it takes to read it")).await;
            return again();
        }
        // Where no `ok` pdisk is sure to know of every block, those that are catching up are listed as well, and waited for.
        let state = |i: usize| members.get(i).map_or(PdiskState::Missing, |m| view.state(*m));
        let gone = |i: usize| members.get(i).is_some_and(given_up);
        let vouched = vouched(pool_view.geometry, me, state);
        if !all_named(pool_view.geometry, me, moved_from.is_some(), state, gone) {
            waits(format!("{group}: {}", Why::Unnamed)).await;
            return again();
        }
        let mut lists: Vec<List> = Vec::new();
        for (i, &pdisk) in members.iter().enumerate() {
            let back = !vouched && view.state(pdisk) == PdiskState::Returning;
            let ask = i == me || back || view.state(pdisk) == PdiskState::Ok;
            lists.push(List::new(if i == me { self.served.id } else { pdisk }, i, ask));
        }
        // The only strip of its stripe: where it comes from is the only one that knows.
        if let Some(from) = moved_from.filter(|_| members.len() == 1) {
            lists.push(List::new(from, me, view.state(from) == PdiskState::Ok));
        }
        let mut tasks = JoinSet::new();
        loop {
            if self.fill(&mut lists, pool, group).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
                again();
                break;
            }
            let Some(stripe) = lists.iter().filter_map(List::head).min() else { break };
            let mut others = Vec::with_capacity(lists.len());
            let mut mine = None;
            for (i, list) in lists.iter_mut().enumerate() {
                let state = list.take(stripe);
                others.push(if i == me {
                    mine = state;
                    Seen::Mine
                } else if list.ask && view.state(list.pdisk) != PdiskState::Ok {
                    Seen::Returning(state)
                } else if list.ask {
                    Seen::Ok(state)
                } else {
                    Seen::Away
                });
            }
            self.note(|s| s.stripes += 1);
            if judge(pool_view.geometry, me, mine.as_ref(), &others, None) == Verdict::Fine {
                continue;
            }
            // The listing is only a hint: it is settled over fresh states.
            let place = Place { stripe, pool, group, index: StripIndex(me as u8) };
            let Some(permit) = self.permit(pool, &parallel).await else { break };
            let (this, revisit) = (Arc::clone(&self), Arc::clone(&revisit));
            tasks.spawn(async move {
                this.one(place, &revisit).await;
                drop(permit);
            });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Gets the next page of every member whose page is used up.
    async fn fill(&self, lists: &mut [List], pool: PoolId, group: GroupId) -> Result<(), ()> {
        let mut tasks = JoinSet::new();
        for (i, list) in lists.iter().enumerate() {
            if list.end || !list.page.is_empty() {
                continue;
            }
            let (io, after, pdisk) = (self.io.clone(), list.after, list.pdisk);
            let limit = self.tuning.list_page;
            let deadline = Instant::now() + io.config().attempt;
            let own = (pdisk == self.served.id).then(|| self.served.pdisk.clone());
            tasks.spawn(async move {
                let page = match own {
                    Some(own) => own
                        .list_group(pool, group, after, limit as usize)
                        .await
                        .map(|states| (states.len() >= limit as usize, states))
                        .map_err(|refusal| refusal.to_string()),
                    None => {
                        let request = NsdRequest::ListGroup { pdisk, pool, group, after, limit };
                        match io.call(pdisk, request, Vec::new(), OpClass::Rebuild, deadline).await {
                            Ok((NsdReply::States { states, more }, _)) => Ok((more, states)),
                            Ok(_) => Err("unexpected answer".to_owned()),
                            Err(fault) => Err(fault.to_string()),
                        }
                    }
                };
                (i, page)
            });
        }
        let mut result = Ok(());
        while let Some(done) = tasks.join_next().await {
            match done {
                Ok((i, Ok((more, states)))) => {
                    let list = &mut lists[i];
                    list.end = !more || states.is_empty();
                    list.after = states.last().map(|s| s.strip).or(list.after);
                    let index = list.index;
                    list.page.extend(states.into_iter().filter(|s| s.strip.index == index && !empty(s)));
                }
                Ok((i, Err(reason))) => {
                    tracing::debug!(pdisk = %lists[i].pdisk, %group, reason, "cannot list");
                    self.note(|s| s.last_reason = format!("{}: {reason}", lists[i].pdisk));
                    result = Err(());
                }
                Err(_) => result = Err(()),
            }
        }
        // A page may have held nothing of interest; then the next one is needed first.
        let more = lists.iter().any(|l| !l.end && l.page.is_empty());
        if result.is_ok() && more {
            return Box::pin(self.fill(lists, pool, group)).await;
        }
        result
    }
}

/// A member's listing of a group.
struct List {
    pdisk: PdiskId,
    index: StripIndex,
    page: VecDeque<StripState>,
    after: Option<StripId>,
    end: bool,
    ask: bool,
}

impl List {
    fn new(pdisk: PdiskId, index: usize, ask: bool) -> List {
        let index = StripIndex(index as u8);
        List { pdisk, index, page: VecDeque::new(), after: None, end: !ask, ask }
    }
    fn head(&self) -> Option<StripeId> {
        self.page.front().map(|s| s.strip.stripe)
    }
    fn take(&mut self, stripe: StripeId) -> Option<StripState> {
        if self.head() == Some(stripe) { self.page.pop_front() } else { None }
    }
}
