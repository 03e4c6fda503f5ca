//! What two processes tell each other first, within TLS, whose handshake has proven by then whose certificates they have:
//! an [`Introduction`] from the side that connects, a [`Welcome`] from the other. Each is held to its certificate.

use std::net::SocketAddr;

use base::{NodeId, SessionId};
use serde::{Deserialize, Serialize};

use crate::version::Build;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// Leases, tokens, names, map: never behind bulk data.
    Control,
    /// Payloads.
    Bulk,
}

/// What one side of a connection will hold of the other's unanswered requests. The requester keeps
/// within it; a connection that goes beyond is closed. One request is always allowed, whatever its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Requests sent and not yet answered.
    pub requests: u32,
    /// Bytes of their bodies and payloads.
    pub bytes: u64,
}

/// What a process is to its cluster: one of what its certificate allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Owns the namespace and the map.
    Manager,
    /// Serves pdisks.
    Server,
    /// Mounts file systems.
    Client,
    /// A command.
    Admin,
    /// Measures: part of no cluster that holds data.
    Lab,
}

/// What the connecting side says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// The sending node; clients that are not cluster nodes use a number from the manager or 0.
    pub node: NodeId,
    /// A number drawn at the start of the sending process: a restarted peer is another one.
    pub process: u64,
    /// What it is.
    pub role: Role,
    /// The sender's session, if it has one.
    pub session: SessionId,
    /// What the connection is for.
    pub lane: Lane,
    /// The sender's `maxTcpConnsPerNodeConn`.
    pub conns_max: u8,
    /// What the sender accepts of requests in the other direction (callbacks).
    pub window: Window,
    /// Bits of optional features; unknown ones are ignored. See [`AUTHONLY`] and [`SHARED`].
    pub capabilities: u64,
    /// The sender's build.
    pub build: Build,
    /// The sender wants what follows in the clear, and this is the connection as it sees it: its own address and the one it
    /// connected to. Between two that see the same there is no relay that could change what they say.
    pub clear: Option<Seen>,
    /// What people call it, for logs and listings; nothing is decided by it.
    pub name: String,
}

/// A connection as one end sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Address of the side that connected.
    pub from: SocketAddr,
    /// Address that it connected to.
    pub to: SocketAddr,
    /// Where these mean something: nothing, but for loopback addresses, which each machine and network namespace has.
    pub place: String,
}

/// A bit of the capabilities. In an introduction: the sender wants no more than that everything but bulk payloads is encrypted, and
/// those have tags. In a welcome: so it is, on a bulk connection.
pub const AUTHONLY: u64 = 1;

/// Another bit. In an introduction: the sender would let bytes go through memory of both. In a welcome: a [`Meeting`] follows.
pub const SHARED: u64 = 2;

/// Where the accepting side waits for memory of both: it follows a welcome with [`SHARED`], in a frame of the same kind. The
/// connecting side answers whether it has brought some (a `bool`, in a frame of its introduction's kind); if so the accepting side
/// answers whether it uses it (a `bool`). All of this is within TLS, and of no use to anybody else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meeting {
    /// A Unix socket of the abstract namespace, without the leading zero.
    pub name: String,
    /// What is to be sent there, beside the descriptor of the memory.
    pub secret: [u8; 32],
    /// The connection as the accepting side sees it: what has a relay in its way is not within a machine.
    pub seen: Seen,
}

/// What the accepting side says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    /// Come in.
    Accepted {
        /// The answering node.
        node: NodeId,
        /// Its process number.
        process: u64,
        /// What it is.
        role: Role,
        /// Its `maxTcpConnsPerNodeConn`; both sides use the lower one.
        conns_max: u8,
        /// What it accepts of unanswered requests on this connection.
        window: Window,
        /// Its features, and of those that the other side wants the ones that are in force. See [`AUTHONLY`] and
        /// [`SHARED`].
        capabilities: u64,
        /// Its build.
        build: Build,
        /// Further addresses ("ip:port") of the same process, for multi-rail.
        addresses: Vec<String>,
        /// What follows is in the clear: both want it, and both see the same connection.
        clear: bool,
        /// What people call it.
        name: String,
    },
    /// Go away: the reason is for a person.
    Refused {
        /// Names what does not match and the remedy.
        reason: String,
    },
}

/// Requests of the transport itself (`Service::Net`), between two endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NetRequest {
    /// The sender's `maxTcpConnsPerNodeConn` is now this. The answer has no body.
    ConnsMax(u8),
    /// Sends back a payload of this many bytes, at most [`PROBE_BYTES_MAX`], and drops the one received: by
    /// it the sender sees which links the two directions of a connection use. The answer's body is [`Links`]
    /// as they are between the two payloads.
    Probe(u32),
    /// What the receiver's network links have counted. The answer's body is [`Links`].
    Links,
    /// Sends the payload that the receiver offered with its request of this id.
    Fetch(u64),
}

/// One network link of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkCount {
    /// The interface.
    pub name: String,
    /// Bytes received since it exists.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// A bond of network links that spreads flows by a hash.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BondInfo {
    /// Its `xmit_hash_policy`, as the kernel names it.
    pub policy: String,
    /// Links that are up.
    pub links: u32,
}

/// The network links of a node, without the loopback.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Links {
    /// Their counters, all read at one instant.
    pub links: Vec<LinkCount>,
    /// The bond on the way to the asking node, if there is one.
    pub bond: Option<BondInfo>,
    /// The node's routes over several links choose by addresses only (`fib_multipath_hash_policy` 0).
    pub layer3_only: bool,
}

/// Largest payload of a probe's answer.
pub const PROBE_BYTES_MAX: u32 = 1 << 20;
