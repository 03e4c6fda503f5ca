//! A call's way through its group: it takes the connection of its lane with the least work under way, is sent, and waits
//! for its reply; none free or none at all, it waits, within deadline and patience. A connection lost meanwhile
//! means that it is sent again on another. What is kept for a call goes when it ends, in whatever way.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::oneshot;
use wire::{
    crc::crc32c,
    frame::{FrameKind, Header, Status},
    hello::Lane,
};

use crate::{
    calls::{
        call::{Call, Reply},
        payload::{Destination, Payload, ReplyPayload},
        pending::{Failure, Outcome, Pending, ReplyTo, Unassigned},
    },
    connections::{
        conn::Conn,
        group::{Group, lane_index},
        outbox::OutFrame,
    },
    error::CallError,
};

/// Requests on a connection above which small ones are left to the writer task, which sends many at once.
const COALESCE_ABOVE: u32 = 4;
/// Longest frame that is worth waiting for others.
const COALESCE_LEN_MAX: usize = 8 << 10;
/// Pauses between repetitions of a call that was answered `Busy`.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl Group {
    /// `now` is the call's beginning: the clock is read seldom, because small calls feel each reading.
    pub(crate) async fn call(self: &Arc<Self>, mut call: Call, mut now: Instant) -> Result<Reply, CallError> {
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
            let mut guard = Guard { group: self, id, lane: call.lane, stage: Stage::Unsent };
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
            if !call.service.is_served_by(conn.peer.role) {
                let (there, service) = (conn.peer_name(), call.service);
                return Err(CallError::Refused(format!(
                    "{there} has a certificate as {:?}, which does not answer for {service:?}",
                    conn.peer.role
                )));
            }
            if let Some((process, lost)) = &tried
                && once
                && *process != conn.peer.process
            {
                let reason = format!("{lost}; the peer has started anew since the request was sent");
                return Err(CallError::Disconnected { maybe_executed: true, reason });
            }
            let version = conn.socket.version();
            if call.since > version {
                return Err(CallError::TooOld { peer: conn.peer_name(), speaks: version, since: call.since });
            }
            let header = Header {
                version,
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
            guard.stage = Stage::Sent;
            if conn.send(frame, later).is_err() {
                // It has ended meanwhile; its end tells the call, or has no longer seen it.
                drop(expecting);
                guard.stage = Stage::Over;
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
            guard.stage = Stage::Over;
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
            unit_crcs: call.unit_crcs,
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
            self.keeper.notify_one();
        }
    }

    fn wake_keeper(&self) {
        if self.keeper_sleeps.load(Ordering::Relaxed) && self.keeper_sleeps.swap(false, Ordering::SeqCst) {
            self.keeper.notify_one();
        }
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
        (payload, unit_crcs): (ReplyPayload, Vec<u32>),
        failure: Option<Failure>,
    ) {
        let Some(call) = self.lock().table.end_reply(conn.id, header.request_id) else { return };
        self.notify(conn.lane);
        let now = Instant::now();
        self.core.call_times.of(call.service).record(now.saturating_duration_since(call.since));
        let elapsed = self.core.us_of(now).saturating_sub(header.sent_us);
        let rtt = Duration::from_micros(elapsed.saturating_sub(header.server_us.into()));
        conn.own_stats.round_trips.record(rtt);
        let Some(tx) = call.tx else { return };
        let outcome = match failure {
            Some(failure) => Err(failure),
            None => {
                let body = Bytes::from(body);
                Ok(Reply { header, body, payload, unit_crcs, rtt, connection: conn.id })
            }
        };
        let _ = tx.send(outcome);
    }

    /// A call ends before its request was sent: nobody will answer it, so its place is free at once.
    fn withdraw(&self, id: u64, lane: Lane) {
        let taken = self.lock().table.take_back(id);
        if taken.is_some_and(|call| call.conn.is_some()) {
            self.notify(lane);
        }
    }

    /// A call ends after its request was sent: its place is free when the peer has answered.
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

/// How far a call has come on its connection.
enum Stage {
    /// It waits for one, or its request is not sent yet.
    Unsent,
    /// The peer may have the request.
    Sent,
    /// The call is no longer in the table.
    Over,
}

/// Tells table and peer if the call ends without an outcome: it was refused, or its future was dropped.
struct Guard<'a> {
    group: &'a Group,
    id: u64,
    lane: Lane,
    stage: Stage,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Unsent => self.group.withdraw(self.id, self.lane),
            Stage::Sent => self.group.abandon(self.id),
            Stage::Over => {}
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
