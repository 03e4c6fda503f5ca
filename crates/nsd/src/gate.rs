//! Admission: which requests are carried out, under which map.
//!
//! Owns the map that new requests are admitted under. A newer one counts for whatever comes from then on, at once. Every
//! admitted request holds a pass of that map version at its pdisk; a version is *in force* at a pdisk only when all passes
//! of older ones are back ([`base::fence`]), and only then is the manager told so. So whoever is fenced can change nothing
//! after the fence is acknowledged; and a disk that does not answer holds up its own acknowledgement and nothing else: neither
//! the map, nor other pdisks, nor the server's lease. The manager sets such a pdisk aside.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use base::{
    Epoch, FsId, PdiskId, SessionId, beat,
    fence::{Passes, Permit},
    presence::{Presence, boot_time},
};
use parking_lot::Mutex;
use stripe::{ClusterView, InForce, Membership};
use tokio::sync::watch;
use wire::{
    map::{Limits, PdiskState},
    nsd::{NsdRefusal, NsdRequest},
};

/// How often it is looked how long requests have been under way.
const LOOK: Duration = Duration::from_millis(512);
/// What is under way mostly ends within this time: then one message tells the manager all.
const GATHER: Duration = Duration::from_millis(20);

/// Leave to carry out one request under one map version; given back by dropping it.
pub struct Pass {
    shared: Arc<Shared>,
    pdisk: PdiskId,
    permit: Option<Permit>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut present = self.shared.present.lock();
        let (at, permit) = (present.pdisks.get_mut(&self.pdisk), self.permit.take());
        if at.zip(permit).is_some_and(|(at, permit)| at.passes.end(permit)) {
            self.shared.tell(&present);
        }
    }
}

/// A served pdisk begins a new life.
pub type BeginLife = Box<dyn Fn() + Send>;

struct Served {
    begin_life: BeginLife,
    /// The epoch of the last change of any group it is in.
    changed: Epoch,
    passes: Passes,
}

struct Present {
    view: Arc<ClusterView>,
    pdisks: HashMap<PdiskId, Served>,
    clock: Presence,
}

struct Shared {
    started: Instant,
    present: Mutex<Present>,
    in_force: watch::Sender<InForce>,
}

/// See the module.
pub struct Gate {
    shared: Arc<Shared>,
}

impl Shared {
    fn tell(&self, present: &Present) {
        self.in_force.send_replace(present.in_force());
    }
}

impl Present {
    fn in_force(&self) -> InForce {
        let pdisks: BTreeMap<_, _> = self.pdisks.iter().map(|(&id, at)| (id, at.passes.in_force())).collect();
        InForce { admitting: self.view.epoch(), pdisks }
    }
}

impl Gate {
    /// Admits under `view` from the start.
    pub fn new(view: Arc<ClusterView>, served: Vec<(PdiskId, BeginLife)>) -> Gate {
        let of = |(id, begin_life)| {
            let (changed, passes) = (view.pdisk_changed(id), Passes::new(view.epoch()));
            (id, Served { begin_life, changed, passes })
        };
        let pdisks = served.into_iter().map(of).collect();
        let present = Present { pdisks, view, clock: Presence::default() };
        let in_force = watch::Sender::new(present.in_force());
        Gate { shared: Arc::new(Shared { started: Instant::now(), present: Mutex::new(present), in_force }) }
    }

    /// Admits under a newer map from now on.
    fn replace(&self, view: Arc<ClusterView>) {
        let mut present = self.shared.present.lock();
        let before = present.view.epoch();
        for (&id, at) in &mut present.pdisks {
            // It was away: what it was asked for before is forgotten, and what those ask who know that it is back comes later.
            if view.pdisk(id).is_some_and(|p| p.state == PdiskState::Returning && p.changed > before) {
                (at.begin_life)();
            }
            at.changed = view.pdisk_changed(id);
            at.passes.replace(view.epoch());
        }
        present.view = view;
        self.shared.tell(&present);
    }

    /// How long the oldest request at each pdisk has been under way, this process's own absence not counted.
    fn oldest(&self) -> BTreeMap<PdiskId, Duration> {
        let mut present = self.shared.present.lock();
        let now = present.clock.look(self.shared.started.elapsed(), boot_time()).present;
        present.pdisks.iter().map(|(&id, at)| (id, at.passes.oldest(now))).collect()
    }

    /// Follows the map: admits under each new version, and says what is in force.
    pub async fn follow(&self, membership: Membership) {
        let (mut views, mut in_force) = (membership.views(), self.shared.in_force.subscribe());
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            if view.epoch() > self.epoch() {
                self.replace(view);
            }
            let all = in_force.wait_for(InForce::everywhere);
            // Late is told as well.
            drop(tokio::time::timeout(GATHER, all).await);
            let now = in_force.borrow_and_update().clone();
            if membership.set_in_force(now) {
                // The manager may wait for this acknowledgement: not at the next turn, now.
                membership.renew_soon();
            }
            membership.set_oldest(self.oldest());
            // All arms only wait.
            let more = tokio::select! {
                more = views.changed() => more,
                more = in_force.changed() => more,
                () = tokio::time::sleep_until(beat::by(Instant::now(), LOOK).into()) => Ok(()),
            };
            if more.is_err() {
                return;
            }
        }
    }

    /// The map version that requests are admitted under.
    pub fn epoch(&self) -> Epoch {
        self.shared.present.lock().view.epoch()
    }

    /// Checks a request against lease, session and map. `Err` is the answer to its sender.
    pub async fn admit(
        &self,
        membership: &Membership,
        session: SessionId,
        epoch: Epoch,
        request: &NsdRequest,
        wait: Duration,
        expires: Instant,
    ) -> Result<Pass, NsdRefusal> {
        if !membership.lease_valid() {
            return Err(NsdRefusal::NoLease);
        }
        let until = expires.min(Instant::now() + wait);
        let pdisk = request.pdisk();
        let lists = lists(request);
        // What is listed must contain all that was written under older maps.
        let here = |now: &InForce| now.admitting >= epoch && (!lists || now.of(pdisk) >= epoch);
        let at_once = here(&self.shared.in_force.borrow());
        if !at_once {
            let mut in_force = self.shared.in_force.subscribe();
            let here = in_force.wait_for(here);
            if !matches!(tokio::time::timeout_at(until.into(), here).await, Ok(Ok(_))) {
                return Err(NsdRefusal::NoMap);
            }
        }
        let mut present = self.shared.present.lock();
        let present = &mut *present;
        let map = &present.view.map;
        let from_manager = session == SessionId(0) && matches!(request, NsdRequest::Delete { .. });
        if !map.has_session(session) && !from_manager {
            return Err(NsdRefusal::Fenced);
        }
        if let Some(client) = map.client(session)
            && !is_allowed(request, client.fs, map.limits_of(client.member))
        {
            return Err(NsdRefusal::NotAllowed);
        }
        let Some(at) = present.pdisks.get_mut(&pdisk) else { return Err(NsdRefusal::NoSuchPdisk) };
        let changed = match request {
            NsdRequest::Prepare { strip, .. } | NsdRequest::Install { strip, .. } => {
                map.group_changed(strip.pool, strip.group)
            }
            // The last change of all groups of the pdisk is the group's, or later.
            _ => at.changed,
        };
        if epoch < changed && !from_manager {
            return Err(NsdRefusal::StaleEpoch { current: changed });
        }
        let permit = at.passes.begin(present.clock.present(self.shared.started.elapsed()));
        Ok(Pass { shared: Arc::clone(&self.shared), pdisk, permit: Some(permit) })
    }
}

/// Whether a client's session may ask this. Which files it may use, where not all, is the manager's to say ([`crate::permits`]).
fn is_allowed(request: &NsdRequest, fs: FsId, limits: Option<&Limits>) -> bool {
    let its_own = match request {
        NsdRequest::ListPrepared { fs: of, .. } => *of == fs && !limits.is_some_and(Limits::is_checked),
        _ => request.files_of(fs).is_some(),
    };
    its_own && !(request.changes() && limits.is_some_and(|limits| limits.read_only))
}

/// Requests whose answer says what is there, so that it has to be complete.
fn lists(request: &NsdRequest) -> bool {
    matches!(
        request,
        NsdRequest::State { .. }
            | NsdRequest::Seal { .. }
            | NsdRequest::ListGroup { .. }
            | NsdRequest::ListPrepared { .. }
    )
}
