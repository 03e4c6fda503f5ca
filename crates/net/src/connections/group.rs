//! A connection group: all connections to one other process, as they come and go. The calls that use them: `calling.rs`.
//!
//! A dialed group (made by `Endpoint::peer`) connects by itself while it is used (`keeper.rs`); an accepted
//! one (a peer that connected to us) waits for the peer to come back.
//! Locks: `plan`, then `state`, then `once`; never held across an await, nor while a connection's outbox is used.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;
use wire::hello::Lane;

use crate::{
    calls::{
        once::Once,
        payload::Payload,
        pending::{Failure, Table},
    },
    connections::{
        auto,
        conn::{Conn, DrainState},
        handshake::{Accepted, Identity},
        plan::{Ended, Have, Plan},
    },
    core::Core,
    error::CloseReason,
};

/// Somebody who may use a group: as long as there is one it is not forgotten.
#[derive(Clone, Default)]
pub(crate) struct User(Arc<()>);

#[derive(Default)]
pub(crate) struct State {
    pub table: Table,
    pub conns: Vec<Arc<Conn>>,
    pub identity: Option<Identity>,
    /// Why the last attempt to connect failed.
    pub last_error: Option<String>,
    /// The peer refuses the handshake.
    pub refused: Option<String>,
    pub shut: bool,
}

pub(crate) struct Group {
    pub core: Arc<Core>,
    /// Empty: accepted.
    pub addrs: Vec<SocketAddr>,
    state: Mutex<State>,
    /// What is remembered of the peer's requests that must take effect once.
    pub once: Mutex<Once<Arc<Conn>>>,
    /// Payloads of calls under way that the peer fetches, by request id. Bounded as the calls are.
    pub offers: Mutex<HashMap<u64, Payload>>,
    /// A connection came, or room on one, by lane.
    pub changed: [Notify; 2],
    plan: Mutex<Plan>,
    /// The peer's `conns_max`; 0 until the first handshake.
    peer_conns_max: AtomicU8,
    /// Bulk connections found by measuring.
    conns_found: AtomicU8,
    /// A bulk connection has been asked for.
    pub bulk_wanted: AtomicBool,
    /// Wakes the keeper; a permit is stored.
    pub keeper: Notify,
    /// The keeper does not look by itself: who brings work wakes it.
    pub keeper_sleeps: AtomicBool,
    /// Connections replaced because they were slow.
    pub replaced: AtomicU32,
    pub used_us: AtomicU64,
    /// Its clones are counted.
    users: User,
}

pub(crate) fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Bulk => 1,
    }
}

impl Group {
    pub(crate) fn new(core: &Arc<Core>, addrs: Vec<SocketAddr>) -> Arc<Group> {
        let plan = Plan::new(&addrs, core.next_id() as usize, core.config.backoff_max);
        Arc::new(Group {
            core: Arc::clone(core),
            addrs,
            state: Mutex::default(),
            once: Mutex::default(),
            offers: Mutex::default(),
            changed: [Notify::new(), Notify::new()],
            plan: Mutex::new(plan),
            peer_conns_max: AtomicU8::new(0),
            conns_found: AtomicU8::new(auto::FIRST),
            bulk_wanted: AtomicBool::new(false),
            keeper: Notify::new(),
            keeper_sleeps: AtomicBool::new(true),
            replaced: AtomicU32::new(0),
            used_us: AtomicU64::new(core.now_us()),
            users: User::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn lock_plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bulk connections to have: the lower of both sides' values, or up to that what was found by measuring;
    /// 0 until the first handshake.
    pub(crate) fn conns_wanted(&self) -> u8 {
        let limit = self.conns_limit();
        if self.core.conns_auto() { limit.min(self.conns_found.load(Ordering::Relaxed)) } else { limit }
    }

    /// The most bulk connections that both sides allow; 0 until the first handshake.
    pub(crate) fn conns_limit(&self) -> u8 {
        self.peer_conns_max.load(Ordering::Relaxed).min(self.core.conns_max())
    }

    /// Measuring has found this number of bulk connections to be the best so far.
    pub(crate) fn set_conns_found(&self, n: u8) {
        if self.conns_found.swap(n, Ordering::Relaxed) != n && self.core.conns_auto() {
            tracing::info!(peer = %self.name(), "bulk connections, by measuring: {n}");
            self.keeper.notify_one();
        }
    }

    /// The peer says how many connections it takes.
    pub(crate) fn set_peer_conns_max(&self, n: u8) {
        self.peer_conns_max.store(n.max(1), Ordering::Relaxed);
        self.keeper.notify_one();
    }

    /// Whether connections are being made, replaced or drained.
    pub(crate) fn is_changing(&self) -> bool {
        let plan = self.lock_plan();
        plan.is_dialing() || plan.is_replacing() || self.lock().conns.iter().any(|c| c.have().leaving)
    }

    /// Whether it has left a rail while others work.
    pub(crate) fn has_left_a_rail(&self) -> bool {
        self.lock_plan().has_left() && self.lock().conns.iter().any(|c| !c.have().leaving)
    }

    /// Whether this side connects.
    pub(crate) fn dials(&self) -> bool {
        !self.addrs.is_empty()
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        let identity = self.lock().identity.clone();
        let called = |i: &Identity| self.core.names.of(i.node, &i.name);
        match (identity, self.addrs.first()) {
            (Some(i), Some(addr)) => format!("{} at {addr}", called(&i)),
            (Some(i), None) => format!("{} process {:016x}", called(&i), i.process),
            (None, Some(&addr)) => self.core.names.at(addr),
            (None, None) => "unknown peer".to_owned(),
        }
    }

    /// Time since a call last used the group.
    pub(crate) fn idle(&self) -> Duration {
        let idle = self.core.now_us().saturating_sub(self.used_us.load(Ordering::Relaxed));
        Duration::from_micros(idle)
    }

    /// One more who may use it.
    pub(crate) fn user(&self) -> User {
        self.users.clone()
    }

    /// Whether nobody holds it, waits on it or is connected by it. Who holds none of it gets it from `Groups` alone, which asks with its
    /// lock held: so that stays true until it is forgotten.
    pub(crate) fn is_unused(&self) -> bool {
        let held = Arc::strong_count(&self.users.0) > 1;
        let waits = || {
            let state = self.lock();
            !state.conns.is_empty() || state.table.is_busy()
        };
        !held && !self.is_changing() && !waits()
    }

    pub(crate) fn lock_once(&self) -> MutexGuard<'_, Once<Arc<Conn>>> {
        self.once.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn notify(&self, lane: Lane) {
        self.changed[lane_index(lane)].notify_one();
        if !self.dials() {
            self.changed[1 - lane_index(lane)].notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        self.changed.iter().for_each(Notify::notify_waiters);
    }

    /// A connection's handshake is done.
    pub(crate) fn add(self: &Arc<Self>, conn: &Arc<Conn>, accepted: &Accepted) {
        let superseded: Vec<_> = {
            let mut state = self.lock();
            let old = state.conns.iter().filter(|c| c.peer.process != conn.peer.process).cloned();
            let old = old.collect();
            state.identity = Some(conn.peer.clone());
            self.lock_once().be_of(conn.peer.process);
            state.refused = None;
            state.last_error = None;
            state.conns.push(Arc::clone(conn));
            state.table.add_member(conn.id, conn.lane, accepted.window);
            state.table.set_trial(conn.id, !conn.dialed && conn.lane == Lane::Bulk);
            old
        };
        conn.stats.connections.add(1);
        if self.is_shut() {
            conn.close(CloseReason::Shutdown);
        }
        for old in superseded {
            old.close(CloseReason::Superseded);
        }
        self.set_peer_conns_max(accepted.conns_max);
        self.notify_all();
    }

    /// A connection has ended: its calls are told. `unsent` names requests that never left.
    pub(crate) fn remove(&self, conn: &Conn, unsent: &[u64], reason: &CloseReason) {
        let mut plan = self.lock_plan();
        let (lost, alive) = {
            let mut state = self.lock();
            state.conns.retain(|c| c.id != conn.id);
            let alive = state.conns.iter().any(|c| c.rail == conn.rail && !c.have().leaving);
            (state.table.remove_member(conn.id), alive)
        };
        let meant = reason.is_meant() || conn.drain_state() != DrainState::No;
        let (have, held) = (Have { leaving: meant, ..conn.have() }, conn.opened.elapsed());
        let worked = conn.counters.frames_received.load(Ordering::Relaxed) > 0;
        let end = Ended { now: Instant::now(), held, worked, alive, path: reason.is_path() };
        plan.ended(have, end, self.core.jitter_factor());
        drop(plan);
        conn.stats.connections.sub(1);
        if !meant {
            conn.stats.lost.inc();
        }
        for (id, call) in lost {
            let Some(tx) = call.tx else { continue };
            let _ = tx.send(Err(Failure::Lost {
                maybe_executed: !unsent.contains(&id),
                reason: format!("connection to {}: {reason}", conn.peer_name()),
                destination: call.destination,
            }));
        }
        self.notify_all();
        self.keeper.notify_one();
    }

    /// A connection is being closed: nothing more is given to it.
    pub(crate) fn retire(&self, conn: &Conn) {
        self.lock().table.retire(conn.id);
    }

    /// The peer uses a connection that it made, and is not only trying it.
    pub(crate) fn proven(&self, conn: &Conn) {
        self.lock().table.set_trial(conn.id, false);
        self.notify_all();
    }

    /// Ends the connections with a member that is shut out; the next handshake refuses it.
    pub(crate) fn close_if_shut_out(&self) {
        let conns = self.lock().conns.clone();
        for conn in conns.iter().filter(|conn| self.core.is_shut_out(conn.peer.member)) {
            conn.close(CloseReason::Revoked);
        }
    }

    /// Ends all connections and calls.
    pub(crate) fn shut(&self) {
        let (conns, calls) = {
            let mut state = self.lock();
            state.shut = true;
            (state.conns.clone(), state.table.drain())
        };
        drop(calls);
        self.lock_once().clear();
        conns.iter().for_each(|c| c.close(CloseReason::Shutdown));
        self.keeper.notify_one();
        self.notify_all();
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.lock().shut
    }
}
