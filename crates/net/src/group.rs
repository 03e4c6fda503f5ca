//! A connection group: all connections to one other process, and the calls that use them.
//!
//! A dialed group (made by `Endpoint::peer`) connects by itself while it is used (`keeper.rs`); an accepted
//! one (a peer that connected to us) waits for the peer to come back. A call takes the connection of its
//! lane with the least work under way; none free or none at all, it waits, within deadline and patience.
//! Locks: `plan`, then `state`; never held across an await, nor while a connection's outbox is used.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::NodeId;
use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use wire::{
    crc::crc32c,
    frame::{FrameKind, Header, Status},
    hello::Lane,
};

use crate::{
    Call, CallError, Destination, Payload, Reply, ReplyPayload, auto,
    conn::{Accepted, Conn, DrainState, Identity},
    dial::{DialError, Dialed},
    endpoint::Core,
    error::CloseReason,
    keeper,
    once::Once,
    outbox::OutFrame,
    pending::{Failure, Outcome, Pending, ReplyTo, Table, Unassigned},
    plan::{Ended, Failed, Have, Plan},
};

/// Requests on a connection above which small ones are left to the writer task, which sends many at once.
const COALESCE_ABOVE: u32 = 4;
/// Longest frame that is worth waiting for others.
const COALESCE_LEN_MAX: usize = 8 << 10;
/// Pauses between repetitions of a call that was answered `Busy`.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Another process, reached over one connection group. Cheap to clone; clones share the group.
#[derive(Clone)]
pub struct Peer {
    group: Arc<Group>,
}

impl Peer {
    pub(crate) fn from_group(group: Arc<Group>) -> Peer {
        Peer { group }
    }

    /// Sends one request and waits for its reply, until the call's deadline at most. A reply whose status
    /// is not `Ok` is an error, but `Busy` is tried again until the deadline. Dropping the future tells
    /// the peer that nobody waits.
    pub async fn call(&self, call: Call) -> Result<Reply, CallError> {
        call.check_lengths()?;
        let (deadline, now) = (call.deadline, Instant::now());
        if deadline <= now {
            return Err(CallError::Deadline);
        }
        match tokio::time::timeout_at(deadline.into(), self.group.call(call, now)).await {
            Ok(result) => result,
            Err(_) => Err(CallError::Deadline),
        }
    }

    /// Node and process number, once a handshake has told them.
    pub fn identity(&self) -> Option<(NodeId, u64)> {
        self.group.lock().identity.as_ref().map(|i| (i.node, i.process))
    }

    /// Whether a connection stands now.
    pub fn is_connected(&self) -> bool {
        !self.group.lock().conns.is_empty()
    }

    /// The addresses this peer is connected to; empty for a peer that connected to us.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.group.addrs
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.group.name())
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub table: Table,
    pub conns: Vec<Arc<Conn>>,
    pub identity: Option<Identity>,
    /// Why the last attempt to connect failed.
    pub last_error: Option<String>,
    /// The peer refuses the handshake.
    pub refused: Option<String>,
    shut: bool,
}

pub(crate) struct Group {
    pub core: Arc<Core>,
    /// Empty: accepted.
    pub addrs: Vec<SocketAddr>,
    state: Mutex<State>,
    /// What is remembered of the peer's requests that must take effect once.
    pub once: Mutex<Once<Arc<Conn>>>,
    /// Payloads of calls under way that the peer fetches, by request id. Bounded as the calls are.
    offers: Mutex<HashMap<u64, Payload>>,
    /// A connection came, or room on one, by lane.
    changed: [Notify; 2],
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
    keeper_started: AtomicBool,
    /// Connections replaced because they were slow.
    pub replaced: AtomicU32,
    used_us: AtomicU64,
}

fn lane_index(lane: Lane) -> usize {
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
            keeper_started: AtomicBool::new(false),
            replaced: AtomicU32::new(0),
            used_us: AtomicU64::new(core.now_us()),
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

    /// Whether this side connects.
    pub(crate) fn dials(&self) -> bool {
        !self.addrs.is_empty()
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        let identity = self.lock().identity.clone();
        match (identity, self.addrs.first()) {
            (Some(i), Some(addr)) => format!("{} at {addr}", i.node),
            (Some(i), None) => format!("{} process {:016x}", i.node, i.process),
            (None, Some(addr)) => addr.to_string(),
            (None, None) => "unknown peer".to_owned(),
        }
    }

    /// Time since a call last used the group.
    pub(crate) fn idle(&self) -> Duration {
        let idle = self.core.now_us().saturating_sub(self.used_us.load(Ordering::Relaxed));
        Duration::from_micros(idle)
    }

    /// `now` is the call's beginning: the clock is read seldom, because small calls feel each reading.
    async fn call(self: &Arc<Self>, mut call: Call, mut now: Instant) -> Result<Reply, CallError> {
        let core = &self.core;
        let once = !call.idempotent;
        let id = if once { core.next_unsettled() } else { core.next_id() };
        let body = Bytes::from(std::mem::take(&mut call.body));
        let payload = std::mem::take(&mut call.payload);
        let body_crc = crc32c(&body);
        let mut destination = call.into.take();
        let mut busy_pause = BUSY_PAUSE.0;
        let patience = call.patience.unwrap_or(core.config.patience_default);
        let offered = self.offer(id, &call, &payload);
        let sent = if offered.is_some() { Payload::new() } else { payload };
        let _kept = Kept { group: self, id, once, offered: offered.is_some() };
        // The process that may have carried it out already, and how its connection was lost.
        let mut tried: Option<(u64, String)> = None;
        loop {
            let mut guard = Guard { group: self, id, armed: true };
            let pending = self.pending(&call, now, body.len() + sent.len(), destination.take());
            let expects = pending.destination.is_some();
            self.lock().table.insert(id, pending);
            self.used_us.store(core.us_of(now), Ordering::Relaxed);
            self.wake_keeper();
            let (conn, rx, load) = match self.try_assign(id, call.lane) {
                Ok(Ok(assigned)) => assigned,
                _ => {
                    let assigned = self.assign(id, call.lane, patience).await;
                    now = Instant::now();
                    assigned.map_err(|e| if tried.is_some() { perhaps(e) } else { e })?
                }
            };
            if let Some((process, lost)) = &tried
                && once
                && *process != conn.peer.process
            {
                let reason = format!("{lost}; the peer has started anew since the request was sent");
                return Err(CallError::Disconnected { maybe_executed: true, reason });
            }
            let header = Header {
                kind: FrameKind::Request,
                service: call.service,
                class: call.class,
                op: call.op,
                status: Status::Ok,
                body_len: body.len() as u32,
                payload_len: sent.len() as u32,
                body_crc,
                deadline_us: remaining_us(call.deadline, now),
                server_us: 0,
                request_id: id,
                session: call.session,
                inode: call.inode,
                epoch: call.epoch,
                sent_us: core.us_of(now),
                offered: offered.unwrap_or(0),
                once,
                settled: if once { core.settled(id) } else { 0 },
            };
            let frame = OutFrame {
                header: header.encode(),
                body: body.clone(),
                payload: sent.clone(),
                request: Some(id),
            };
            let later = load >= COALESCE_ABOVE && frame.len() <= COALESCE_LEN_MAX;
            let expecting = Expecting::new(&conn, expects);
            let process = conn.peer.process;
            if conn.send(frame, later).is_err() {
                // It has ended meanwhile; its end tells the call, or has no longer seen it.
                drop(expecting);
                guard.armed = false;
                let taken = self.lock().table.take_back(id);
                destination = match taken {
                    Some(pending) => pending.destination,
                    None => match rx.await {
                        Ok(Err(Failure::Lost { destination, .. })) => destination,
                        _ => return Err(CallError::Shutdown),
                    },
                };
                now = Instant::now();
                continue;
            }
            let outcome = rx.await;
            drop(expecting);
            guard.armed = false;
            match outcome {
                Ok(Ok(reply)) => match reply.header.status {
                    Status::Ok => return Ok(reply),
                    Status::Busy => {
                        tokio::time::sleep(core.jitter(busy_pause)).await;
                        busy_pause = (busy_pause * 2).min(BUSY_PAUSE.1);
                        if let ReplyPayload::Received { destination: d, .. } = reply.payload {
                            destination = Some(d);
                        }
                    }
                    status => return Err(CallError::Status { status, body: reply.body }),
                },
                Ok(Err(Failure::TooLong { len, room })) => {
                    return Err(CallError::PayloadTooLong { len, room });
                }
                Ok(Err(Failure::Lost { maybe_executed, reason, destination: d })) => {
                    tracing::debug!(id, maybe_executed, "sending a request again: {reason}");
                    if maybe_executed {
                        tried.get_or_insert((process, reason));
                    }
                    destination = d;
                }
                Err(_) => return Err(CallError::Shutdown),
            }
            now = Instant::now();
        }
    }

    /// Keeps a payload for the peer to fetch, where that is how it travels. Returns its bytes.
    fn offer(&self, id: u64, call: &Call, payload: &Payload) -> Option<u32> {
        let fetched = call.lane == Lane::Bulk && self.core.is_fetched(payload.len());
        fetched.then(|| {
            self.lock_offers().insert(id, payload.clone());
            payload.len() as u32
        })
    }

    /// The payload offered with request `id`, if that call has not ended.
    pub(crate) fn offered(&self, id: u64) -> Option<Payload> {
        self.lock_offers().get(&id).cloned()
    }

    fn lock_offers(&self) -> MutexGuard<'_, HashMap<u64, Payload>> {
        self.offers.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn lock_once(&self) -> MutexGuard<'_, Once<Arc<Conn>>> {
        self.once.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn pending(&self, call: &Call, since: Instant, cost: usize, destination: Option<Destination>) -> Pending {
        Pending {
            service: call.service,
            class: call.class,
            op: call.op,
            inode: call.inode,
            since,
            deadline: call.deadline,
            cost: cost as u64,
            expected: destination.as_ref().map_or(0, |d| d.room() as u64),
            destination,
            conn: None,
            tx: None,
            receiving: false,
        }
    }

    /// Waits for a connection with room.
    async fn assign(
        self: &Arc<Self>,
        id: u64,
        lane: Lane,
        patience: Duration,
    ) -> Result<Assigned, CallError> {
        let mut waited = false;
        let mut patience_ends = None;
        loop {
            // Made before looking: what happens between looking and waiting is not missed.
            let changed = self.changed[lane_index(lane)].notified();
            match self.try_assign(id, lane)? {
                Ok(assigned) => {
                    if waited {
                        // The room may suffice for the next in line as well.
                        self.changed[lane_index(lane)].notify_one();
                    }
                    return Ok(assigned);
                }
                Err(Unassigned::NoRoom) => {
                    // There are connections: patience is for when there are none.
                    (waited, patience_ends) = (true, None);
                    changed.await;
                }
                Err(Unassigned::NoConnection) => {
                    waited = true;
                    self.want(lane);
                    let ends = *patience_ends.get_or_insert_with(|| Instant::now() + patience);
                    if tokio::time::timeout_at(ends.into(), changed).await.is_err() {
                        let reason = self.lock().last_error.clone();
                        return Err(CallError::Disconnected {
                            maybe_executed: false,
                            reason: reason.unwrap_or_else(|| format!("no connection to {}", self.name())),
                        });
                    }
                }
                Err(Unassigned::Gone) => return Err(CallError::Shutdown),
            }
        }
    }

    fn try_assign(&self, id: u64, lane: Lane) -> Result<Result<Assigned, Unassigned>, CallError> {
        let mut state = self.lock();
        if state.shut {
            return Err(CallError::Shutdown);
        }
        let dispatch = self.core.config.dispatch;
        let mut given = state.table.assign(id, lane, dispatch);
        if matches!(given, Err(Unassigned::NoConnection)) {
            if let Some(reason) = &state.refused {
                return Err(CallError::Refused(reason.clone()));
            }
            if !self.dials() {
                // The peer decides which lanes it opens.
                let other = if lane == Lane::Control { Lane::Bulk } else { Lane::Control };
                given = state.table.assign(id, other, dispatch);
            }
        }
        Ok(given.and_then(|(conn, rx, load)| {
            let conn = state.conns.iter().find(|c| c.id == conn).cloned().ok_or(Unassigned::Gone)?;
            Ok((conn, rx, load))
        }))
    }

    /// Somebody waits for a connection of `lane`.
    fn want(self: &Arc<Self>, lane: Lane) {
        if lane == Lane::Bulk {
            self.bulk_wanted.store(true, Ordering::Relaxed);
        }
        if self.dials() {
            self.start_keeper();
            self.keeper.notify_one();
        }
    }

    fn start_keeper(self: &Arc<Self>) {
        if !self.keeper_started.swap(true, Ordering::AcqRel) {
            self.core.runtime.spawn(keeper::run(Arc::downgrade(self)));
        }
    }

    fn wake_keeper(&self) {
        if self.keeper_sleeps.load(Ordering::Relaxed) && self.keeper_sleeps.swap(false, Ordering::SeqCst) {
            self.keeper.notify_one();
        }
    }

    fn notify(&self, lane: Lane) {
        self.changed[lane_index(lane)].notify_one();
        if !self.dials() {
            self.changed[1 - lane_index(lane)].notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        self.changed.iter().for_each(Notify::notify_waiters);
    }

    /// An attempt to connect has ended.
    pub(crate) fn dialed(self: &Arc<Self>, lane: Lane, rail: usize, result: Result<Dialed, DialError>) {
        // Held until the connection is in the group, so that it is counted once and not missed.
        let mut plan = self.lock_plan();
        let started = result.and_then(|Dialed { socket, accepted }| {
            let remote = socket.as_ref().peer_addr();
            plan.dialed(lane, rail);
            let remote_is_loopback = remote.is_ok_and(|a| a.ip().is_loopback());
            let passable = |a: &&SocketAddr| {
                a.port() != 0 && !a.ip().is_unspecified() && a.ip().is_loopback() == remote_is_loopback
            };
            accepted.addresses.iter().filter(passable).for_each(|&a| plan.add_rail(a));
            Conn::start(&self.core, self, socket, Some(rail), &accepted).map_err(|source| {
                let addr = plan.rails().get(rail).map_or(self.addrs[0], |r| r.addr);
                DialError::Connect { addr, source }
            })
        });
        if let Err(error) = started {
            let alive = self.lock().conns.iter().any(|c| c.rail == rail && !c.have().leaving);
            let refused = matches!(error, DialError::Refused { .. });
            let text = error.to_string();
            let failure = Failed { now: Instant::now(), alive, refused, error: text.clone() };
            plan.failed(lane, rail, failure, self.core.jitter_factor());
            let all_down = plan.rails().iter().all(|r| r.down);
            drop(plan);
            let mut state = self.lock();
            state.last_error = Some(text);
            if let (DialError::Refused { reason, .. }, true) = (error, all_down || !alive) {
                state.refused = Some(reason);
            }
        } else {
            drop(plan);
        }
        self.notify_all();
        self.keeper.notify_one();
    }

    /// A connection's handshake is done.
    pub(crate) fn add(self: &Arc<Self>, conn: &Arc<Conn>, accepted: &Accepted) {
        let superseded: Vec<_> = {
            let mut state = self.lock();
            let old = state.conns.iter().filter(|c| c.peer.process != conn.peer.process).cloned();
            let old = old.collect();
            state.identity = Some(conn.peer.clone());
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
        self.start_keeper();
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

    pub(crate) fn begin_reply(&self, conn: &Conn, id: u64) -> Option<ReplyTo> {
        self.lock().table.begin_reply(conn.id, id)
    }

    pub(crate) fn put_back(&self, id: u64, destination: Destination) {
        self.lock().table.put_back(id, destination);
    }

    pub(crate) fn end_reply(
        &self,
        conn: &Conn,
        header: Header,
        body: Vec<u8>,
        payload: ReplyPayload,
        failure: Option<Failure>,
    ) {
        let Some(call) = self.lock().table.end_reply(conn.id, header.request_id) else { return };
        self.notify(conn.lane);
        let now = Instant::now();
        self.core.call_times.of(call.service).record(now.saturating_duration_since(call.since));
        let Some(tx) = call.tx else { return };
        let elapsed = self.core.us_of(now).saturating_sub(header.sent_us);
        let rtt = Duration::from_micros(elapsed.saturating_sub(header.server_us.into()));
        let outcome = match failure {
            Some(failure) => Err(failure),
            None => Ok(Reply { header, body: Bytes::from(body), payload, rtt, connection: conn.id }),
        };
        let _ = tx.send(outcome);
    }

    fn abandon(&self, id: u64) {
        let conn = {
            let mut state = self.lock();
            let conn = state.table.abandon(id);
            conn.and_then(|conn| state.conns.iter().find(|c| c.id == conn).cloned())
        };
        if let Some(conn) = conn {
            let _ = conn.send(conn.bare(FrameKind::Cancel, id), false);
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

/// A connection for a call, the receiver of its outcome, and the requests the connection had already.
type Assigned = (Arc<Conn>, oneshot::Receiver<Outcome>, u32);

/// Microseconds from `now` until `deadline`, as the header carries them.
fn remaining_us(deadline: Instant, now: Instant) -> u32 {
    let left = deadline.saturating_duration_since(now).as_micros();
    u32::try_from(left).unwrap_or(u32::MAX).max(1)
}

/// The error of a call that was sent before: it may have been carried out.
fn perhaps(error: CallError) -> CallError {
    match error {
        CallError::Disconnected { reason, .. } | CallError::Refused(reason) => {
            CallError::Disconnected { maybe_executed: true, reason }
        }
        other => other,
    }
}

/// Forgets what is kept for a call, when it ends in whatever way.
struct Kept<'a> {
    group: &'a Group,
    id: u64,
    once: bool,
    offered: bool,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if self.once {
            self.group.core.settle(self.id);
        }
        if self.offered {
            self.group.lock_offers().remove(&self.id);
        }
    }
}

/// Tells table and peer if the call ends without an outcome: its future was dropped.
struct Guard<'a> {
    group: &'a Group,
    id: u64,
    armed: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.group.abandon(self.id);
        }
    }
}

/// Counts the calls of a connection whose payloads have a destination.
struct Expecting<'a>(Option<&'a Conn>);

impl<'a> Expecting<'a> {
    fn new(conn: &'a Conn, expects: bool) -> Expecting<'a> {
        let conn = expects.then_some(conn);
        if let Some(conn) = conn {
            conn.expecting.fetch_add(1, Ordering::Relaxed);
        }
        Expecting(conn)
    }
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.0 {
            conn.expecting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
