//! What an endpoint shows of itself: who waits for whom, and how its connections fare.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use base::{CipherList, InodeNo, NodeId, OpClass, SessionId, units::as_seconds};
use serde::Serialize;
use wire::{
    frame::Service,
    hello::{Lane, Role},
};

use crate::{
    connections::{conn::Conn, group::Group, plan::PlacementStatus, socket::Protection},
    links::{
        choose::Path,
        tcp_info::{self, TcpInfo},
    },
};

/// What a waiting call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// For a connection, or for room on one.
    Connection,
    /// For the reply.
    Reply,
    /// The reply's payload is coming.
    Receiving,
    /// For nothing: the caller gave up, the peer has not answered yet.
    Abandoned,
}

/// A call that has not ended.
#[derive(Clone, Debug, Serialize)]
pub struct Waiter {
    /// Whom it waits for.
    pub peer: String,
    /// The part of the peer.
    #[serde(serialize_with = "debug")]
    pub service: Service,
    /// The message's number in its service.
    pub op: u8,
    /// Kind of work.
    pub class: OpClass,
    /// The inode it is about; 0 is none.
    pub inode: InodeNo,
    /// What it waits for.
    pub state: CallState,
    /// Since when.
    #[serde(rename = "age_s", serialize_with = "as_seconds")]
    pub age: Duration,
    /// Time until its deadline.
    #[serde(rename = "left_s", serialize_with = "as_seconds")]
    pub left: Duration,
    /// The connection that carries it.
    pub connection: Option<u64>,
}

/// A request that this process has not answered.
#[derive(Clone, Debug, Serialize)]
pub struct Serving {
    /// Who waits.
    pub peer: String,
    /// The part of this process.
    #[serde(serialize_with = "debug")]
    pub service: Service,
    /// The message's number in its service.
    pub op: u8,
    /// Kind of work.
    pub class: OpClass,
    /// The inode it is about; 0 is none.
    pub inode: InodeNo,
    /// Time since it was received.
    #[serde(rename = "age_s", serialize_with = "as_seconds")]
    pub age: Duration,
    /// Time until its caller gives up.
    #[serde(rename = "left_s", serialize_with = "as_seconds")]
    pub left: Duration,
}

/// One connection group.
#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// For people.
    pub name: String,
    /// What it is, once known: manager, server, client, admin (a command), lab.
    pub role: Option<&'static str>,
    /// Its node, once known.
    pub node: Option<NodeId>,
    /// Its process number, once known.
    pub process: Option<u64>,
    /// The session of its handshake.
    pub session: Option<SessionId>,
    /// Its program version.
    pub software: Option<String>,
    /// Addresses connected to; empty: the peer connected to us.
    pub addrs: Vec<SocketAddr>,
    /// Bulk connections it should have, over all rails; 0: not known yet.
    pub conns_wanted: u8,
    /// Connections replaced because they were much slower than others.
    pub replaced: u32,
    /// Its addresses as they are used.
    pub rails: Vec<RailStatus>,
    /// Why the last attempt to connect failed, if it did.
    pub last_error: Option<String>,
    /// Its connections.
    pub connections: Vec<ConnStatus>,
}

/// One network address of a peer.
#[derive(Clone, Debug, Serialize)]
pub struct RailStatus {
    /// The peer's address.
    pub addr: SocketAddr,
    /// Whether it is used. One that is left is tried again until it answers.
    pub up: bool,
    /// Connections on it.
    pub connections: usize,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// How its connections were placed on links; absent: they were not (loopback, a single one, or
    /// placement is off).
    pub placement: Option<PlacementStatus>,
}

/// How a connection is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnState {
    /// Takes calls.
    Active,
    /// Nothing seems to get through at the moment: takes calls only if all others are the same.
    Suspect,
    /// Takes no new calls and ends when those under way have.
    Draining,
}

/// One connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnStatus {
    /// Its number on this endpoint.
    pub id: u64,
    /// What it is called in statistics: its number among those to the peer, `control`, or `others`.
    pub connection: String,
    /// What it carries.
    #[serde(serialize_with = "debug")]
    pub lane: Lane,
    /// How it is used.
    pub state: ConnState,
    /// Its place in the peer's rails.
    pub rail: usize,
    /// Whether this side connected.
    pub dialed: bool,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// What it goes by: `tcp`, or `shm`, memory of both ends.
    pub transport: &'static str,
    /// The version of the protocol that both ends speak on it.
    pub version: u16,
    /// Whether all that is sent on it is encrypted.
    pub encrypted: bool,
    /// How it is protected: EMPTY, AUTHONLY or ENCRYPTED.
    pub protection: Protection,
    /// By which cipher; absent with EMPTY.
    pub cipher: Option<CipherList>,
    /// The links it uses, where that was tried.
    pub path: Option<Path>,
    /// Time since its handshake.
    #[serde(rename = "age_s", serialize_with = "as_seconds")]
    pub age: Duration,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes queued for sending since it began.
    #[serde(rename = "sent_bytes")]
    pub bytes_sent: u64,
    /// Bytes received.
    #[serde(rename = "received_bytes")]
    pub bytes_received: u64,
    /// Bytes waiting to be taken by the socket.
    #[serde(rename = "queued_bytes")]
    pub bytes_queued: u64,
    /// Requests sent and not answered.
    pub requests_unanswered: u32,
    /// Bytes of them.
    #[serde(rename = "unanswered_bytes")]
    pub bytes_unanswered: u64,
    /// Reply bytes expected.
    #[serde(rename = "expected_bytes")]
    pub bytes_expected: u64,
    /// Measured rate, bytes a second; 0: not measured.
    #[serde(rename = "bytes_per_second")]
    pub rate: u64,
    /// Payload bytes received straight into their place.
    #[serde(rename = "payload_direct_bytes")]
    pub payload_direct: u64,
    /// Payload bytes that were caught in the read-ahead of small frames and copied.
    #[serde(rename = "payload_copied_bytes")]
    pub payload_copied: u64,
    /// What the kernel knows; absent once the socket is gone, and with `shm`.
    pub tcp: Option<TcpInfo>,
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Manager => "manager",
        Role::Server => "server",
        Role::Client => "client",
        Role::Admin => "admin",
        Role::Lab => "lab",
    }
}

fn debug<T: std::fmt::Debug, S: serde::Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format!("{value:?}").to_lowercase())
}

impl Group {
    pub(crate) fn waiters(&self, out: &mut Vec<Waiter>) {
        let peer = self.name();
        let now = Instant::now();
        out.extend(self.lock().table.calls().map(|(_, c)| Waiter {
            peer: peer.clone(),
            service: c.service,
            op: c.op,
            class: c.class,
            inode: c.inode,
            state: match (&c.conn, &c.tx) {
                (None, _) => CallState::Connection,
                (Some(_), None) => CallState::Abandoned,
                (Some(_), Some(_)) if c.receiving => CallState::Receiving,
                (Some(_), Some(_)) => CallState::Reply,
            },
            age: now.saturating_duration_since(c.since),
            left: c.deadline.saturating_duration_since(now),
            connection: c.conn,
        }));
    }

    pub(crate) fn serving(&self, out: &mut Vec<Serving>) {
        let conns = self.lock().conns.clone();
        let now = Instant::now();
        for conn in conns {
            let peer = conn.peer_name();
            conn.inbound.for_each(|_, a| {
                out.push(Serving {
                    peer: peer.clone(),
                    service: a.service,
                    op: a.op,
                    class: a.class,
                    inode: a.inode,
                    age: now.saturating_duration_since(a.since),
                    left: a.expires.saturating_duration_since(now),
                });
            });
        }
    }

    pub(crate) fn status(&self) -> PeerStatus {
        let name = self.name();
        let plan = self.lock_plan();
        let state = self.lock();
        let identity = state.identity.as_ref();
        let connections = state.conns.iter().map(|conn| {
            let mut status = conn.status();
            if let Some(m) = state.table.members().iter().find(|m| m.conn == conn.id) {
                status.requests_unanswered = m.requests;
                status.bytes_unanswered = m.bytes;
                status.bytes_expected = m.expected;
                status.rate = m.rate;
                status.state = match (m.retired, m.suspect) {
                    (true, _) => ConnState::Draining,
                    (false, true) => ConnState::Suspect,
                    (false, false) => ConnState::Active,
                };
            }
            status
        });
        let on_rail = |i| state.conns.iter().filter(|c| c.rail == i && !c.have().leaving).count();
        let rails = plan.rails().iter().enumerate().map(|(i, rail)| RailStatus {
            addr: rail.addr,
            up: !rail.down,
            connections: on_rail(i),
            last_error: rail.error.clone(),
            placement: rail.placement.clone(),
        });
        PeerStatus {
            name,
            role: identity.map(|i| role(i.role)),
            node: identity.map(|i| i.node),
            process: identity.map(|i| i.process),
            session: identity.map(|i| i.session),
            software: identity.map(|i| i.build.to_string()),
            addrs: self.addrs.clone(),
            conns_wanted: self.conns_wanted(),
            replaced: self.replaced.load(Ordering::Relaxed),
            rails: rails.collect(),
            last_error: state.last_error.clone(),
            connections: connections.collect(),
        }
    }
}

impl Conn {
    fn status(&self) -> ConnStatus {
        let n = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let shared = self.socket.shared().is_some();
        ConnStatus {
            id: self.id,
            connection: self.own_stats.name.clone(),
            lane: self.lane,
            state: ConnState::Active,
            rail: self.rail,
            dialed: self.dialed,
            local: self.local,
            remote: self.remote,
            transport: if shared { "shm" } else { "tcp" },
            version: self.socket.version(),
            encrypted: self.socket.protection() == Protection::Encrypted,
            protection: self.socket.protection(),
            cipher: self.socket.cipher(),
            path: self.path.clone(),
            age: self.opened.elapsed(),
            frames_sent: n(&self.counters.frames_sent),
            frames_received: n(&self.counters.frames_received),
            bytes_sent: n(&self.counters.bytes_sent),
            bytes_received: n(&self.counters.bytes_received),
            bytes_queued: self.outbox.bytes(),
            requests_unanswered: 0,
            bytes_unanswered: 0,
            bytes_expected: 0,
            rate: 0,
            payload_direct: n(&self.counters.payload_direct),
            payload_copied: n(&self.counters.payload_copied),
            tcp: if shared { None } else { tcp_info::tcp_info(self.socket.as_ref()).ok() },
        }
    }
}
