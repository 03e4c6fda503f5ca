//! One connection: its state and its end.
//!
//! Two tasks own it: the reader (`reader.rs`), which also ends it, and the writer (`writer.rs`), which sends what the
//! queueing tasks could not and probes an idle peer. `close` may be called by anyone and only begins the
//! end: it shuts the socket down, the reader sees that and does the rest once.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use tokio::sync::Notify;
use trust::Fingerprint;
use wire::{
    frame::{FrameKind, Header},
    hello::Lane,
};

use crate::{
    calls::{inbound::Inbound, payload::Payload},
    config::Transport,
    connections::{
        group::Group,
        handshake::{Accepted, Identity},
        outbox::{Closed, Flushed, OutFrame, Outbox},
        plan::Have,
        refused,
        socket::Socket,
        trickle::Incoming,
    },
    core::Core,
    error::CloseReason,
    links::choose::Path,
    stats::{ConnStats, LaneStats},
};

/// Counted while running; read by `Endpoint::status`.
#[derive(Default)]
pub(crate) struct Counters {
    pub frames_sent: AtomicU64,
    pub frames_received: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub bytes_received: AtomicU64,
    /// Payload bytes received straight into their place.
    pub payload_direct: AtomicU64,
    /// Payload bytes that came with the read-ahead of small frames and were copied from there.
    pub payload_copied: AtomicU64,
}

/// How far a connection is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DrainState {
    No,
    /// We asked the peer to send nothing new.
    Begun(Instant),
    /// It agreed: what is under way ends, then we close.
    Agreed(Instant),
    /// The peer asked, and closes.
    ByPeer,
}

pub(crate) struct Conn {
    pub id: u64,
    pub lane: Lane,
    /// Its place in the plan of a group that dials.
    pub rail: usize,
    pub dialed: bool,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub peer: Identity,
    pub opened: Instant,
    /// The links it uses, where that was tried.
    pub path: Option<Path>,
    /// The endpoint's choice of protection for which it was made.
    choice: u64,
    /// What it was to go by.
    transport: Transport,
    /// The authority of the certificate that this side has shown.
    pub own: Fingerprint,
    pub core: Arc<Core>,
    pub group: Arc<Group>,
    pub socket: Socket,
    pub outbox: Outbox,
    pub inbound: Inbound,
    pub incoming: Incoming,
    pub counters: Counters,
    /// Calls on this connection whose replies' payloads have a destination.
    pub expecting: AtomicU32,
    /// The reader waits for memory, not for the peer.
    pub paused: AtomicBool,
    pub stats: LaneStats,
    pub own_stats: ConnStats,
    /// Since the watch last looked.
    pub heard: AtomicBool,
    pub closing: Notify,
    reason: OnceLock<CloseReason>,
    drain: Mutex<DrainState>,
}

impl Conn {
    /// A connection whose handshake is done; `start.rs` brings it to life.
    pub(crate) fn new(
        group: &Arc<Group>,
        mut socket: Socket,
        rail: Option<usize>,
        accepted: &Accepted,
    ) -> std::io::Result<Arc<Conn>> {
        socket.serve(accepted.lane);
        // A rail is an address of who was called.
        let called = match rail {
            Some(_) => socket.as_ref().peer_addr()?,
            None => socket.as_ref().local_addr()?,
        };
        Ok(Arc::new(Conn {
            id: group.core.next_id(),
            lane: accepted.lane,
            rail: rail.unwrap_or(0),
            dialed: rail.is_some(),
            local: socket.as_ref().local_addr()?,
            remote: socket.as_ref().peer_addr()?,
            peer: accepted.peer.clone(),
            opened: Instant::now(),
            path: accepted.path.clone(),
            choice: accepted.choice,
            transport: accepted.transport,
            own: accepted.own,
            core: Arc::clone(&group.core),
            group: Arc::clone(group),
            own_stats: ConnStats::of(accepted.peer.node, accepted.lane, called.ip()),
            socket,
            outbox: Outbox::default(),
            inbound: Inbound::default(),
            incoming: Incoming::default(),
            counters: Counters::default(),
            expecting: AtomicU32::new(0),
            paused: AtomicBool::new(false),
            stats: LaneStats::of(accepted.peer.node, accepted.lane),
            heard: AtomicBool::new(true),
            closing: Notify::new(),
            reason: OnceLock::new(),
            drain: Mutex::new(DrainState::No),
        }))
    }

    fn lock_drain(&self) -> MutexGuard<'_, DrainState> {
        self.drain.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn drain_state(&self) -> DrainState {
        *self.lock_drain()
    }

    /// Notes that this side wants the connection to end; false: it is ending already.
    pub(crate) fn begin_drain(&self) -> bool {
        let mut drain = self.lock_drain();
        let begins = *drain == DrainState::No;
        if begins {
            *drain = DrainState::Begun(Instant::now());
        }
        begins
    }

    /// The peer sends nothing new here, and neither do we.
    pub(crate) fn drain_received(&self) {
        let asked = {
            let mut drain = self.lock_drain();
            let before = *drain;
            *drain = match before {
                DrainState::No | DrainState::ByPeer => DrainState::ByPeer,
                DrainState::Begun(since) | DrainState::Agreed(since) => DrainState::Agreed(since),
            };
            before == DrainState::No
        };
        if asked {
            self.group.retire(self);
            let _ = self.cork(self.bare(FrameKind::Drain, 0));
        }
        self.group.keeper.notify_one();
    }

    /// As the plan sees it.
    pub(crate) fn have(&self) -> Have {
        let leaving = self.drain_state() != DrainState::No || self.reason.get().is_some();
        Have { id: self.id, lane: self.lane, rail: self.rail, leaving }
    }

    /// Whether it is to be replaced because it is protected otherwise, or goes by something else, than connections are now to.
    pub(crate) fn is_outdated(&self) -> bool {
        let transport = self.core.transport();
        let by_tcp = self.socket.shared().is_none();
        let elsewise = self.lane == Lane::Bulk && by_tcp != (transport == Transport::Tcp);
        elsewise && transport != self.transport
            || self.core.is_outdated(self.choice, self.socket.protection(), self.socket.cipher())
    }

    fn count_sent(&self, len: u64) {
        self.counters.frames_sent.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_sent.fetch_add(len, Ordering::Relaxed);
        self.stats.sent_messages.inc();
        self.stats.sent_bytes.add(len);
        self.own_stats.sent_bytes.add(len);
    }

    /// Counts bytes that were read.
    pub(crate) fn count_received(&self, len: u64) {
        self.counters.bytes_received.fetch_add(len, Ordering::Relaxed);
        self.stats.received_bytes.add(len);
        self.own_stats.received_bytes.add(len);
    }

    pub(crate) fn peer_name(&self) -> String {
        let called = self.core.names.of(self.peer.node, &self.peer.name);
        format!("{called} process {:016x} at {}", self.peer.process, self.remote)
    }

    /// Queues a frame and sends as much as the socket takes. With `later` the writer task sends it,
    /// together with what else is queued by then. `Err`: the connection is closed.
    pub(crate) fn send(&self, frame: OutFrame, later: bool) -> Result<(), Closed> {
        let len = frame.len() as u64;
        let mine = self.outbox.push(frame, later)?;
        self.count_sent(len);
        if later {
            self.outbox.wake.notify_one();
        } else if mine {
            self.after_flush(self.outbox.flush(&self.socket));
        }
        Ok(())
    }

    /// Queues a frame; the caller calls `flush` soon.
    pub(crate) fn cork(&self, frame: OutFrame) -> Result<(), Closed> {
        let len = frame.len() as u64;
        self.outbox.push(frame, true)?;
        self.count_sent(len);
        Ok(())
    }

    /// Sends what was corked.
    pub(crate) fn flush(&self) {
        if self.outbox.begin_flush(false) {
            self.after_flush(self.outbox.flush(&self.socket));
        }
    }

    fn after_flush(&self, flushed: Flushed) {
        match flushed {
            Flushed::All => {}
            Flushed::Blocked | Flushed::Later => self.outbox.wake.notify_one(),
            Flushed::Failed(e) => self.close(e.into()),
        }
    }

    /// A frame without body.
    pub(crate) fn bare(&self, kind: FrameKind, request_id: u64) -> OutFrame {
        let (version, sent_us) = (self.socket.version(), self.core.now_us());
        let header = Header { version, kind, request_id, sent_us, ..Header::default() };
        OutFrame { header: header.encode(), body: Bytes::new(), payload: Payload::new(), request: None }
    }

    /// Notes a sign of life.
    pub(crate) fn heard(&self) {
        // Reading it costs less than writing, and much less than the clock.
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// Begins the end. The first reason counts.
    pub(crate) fn close(&self, reason: CloseReason) {
        let broken = reason.is_broken();
        if self.reason.set(reason).is_ok() {
            if broken && self.socket.shared().is_some() {
                // Before the peer can hear of the end: it may be back before the reader is.
                self.core.share_no_more(self.peer.process());
            }
            self.socket.shutdown();
            self.closing.notify_one();
            self.group.retire(self);
        }
    }

    /// The end, called once by the reader: whoever waits for something here is told.
    pub(crate) fn finish(&self, reason: CloseReason) {
        self.close(reason);
        let reason = self.reason.get().unwrap_or(&CloseReason::Eof);
        let unsent = self.outbox.close();
        self.group.remove(self, &unsent, reason);
        self.inbound.cancel_all();
        if !self.dialed {
            self.core.count_accepted(false);
        }
        if let CloseReason::Io(error) = reason
            && error.kind() == std::io::ErrorKind::InvalidData
        {
            refused::note_tampered(&self.core, self.remote, &self.peer_name(), error);
        }
        tracing::debug!(conn = self.id, peer = %self.peer_name(), "connection ended: {reason}");
    }
}
