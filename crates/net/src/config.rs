//! What an endpoint is told at its start. Every bound of this crate is here.

use std::{net::SocketAddr, time::Duration};

use base::{CipherList, ClusterId, NodeId, SessionId};
use trust::Identity;
use wire::{
    hello::{Role, Window},
    version::Build,
};

use crate::error::NetError;

/// How calls are given to the connections of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dispatch {
    /// To the one with the least work under way, weighted by its measured rate.
    #[default]
    ShortestQueue,
    /// To each in turn.
    RoundRobin,
    /// Each inode to one of them: for comparison.
    Pinned,
}

/// How bulk connections get their source ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Several are tried, and those kept that use all links equally.
    #[default]
    Probe,
    /// As the kernel gives them: for comparison.
    Off,
}

/// How payloads of requests above `inline_write_max` travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transfer {
    /// In the request, against the credit that the peer's window gives.
    #[default]
    Push,
    /// The peer fetches them when it has room: one more round trip, and nothing sent that must wait.
    Fetch,
}

/// What bulk connections between two processes of one machine go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Memory of both, where the addresses say that it is one machine and both can reach it; else TCP.
    Auto,
    /// TCP always.
    #[default]
    Tcp,
    /// Memory of both is tried with every peer, whatever the addresses say; what cannot share it goes by TCP all the same.
    Shm,
}

/// Settings of an [`Endpoint`](crate::Endpoint). `..EndpointConfig::default()` fills what is not special.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Peers of other clusters are refused.
    pub cluster: ClusterId,
    /// What proves to others who this process is. An endpoint without one is refused.
    pub identity: Option<Identity>,
    /// What of what follows the handshake is encrypted; of two sides the stricter decides.
    /// [`Endpoint::set_cipher_list`](crate::Endpoint::set_cipher_list) changes it.
    pub cipher_list: CipherList,
    /// Who has no certificate is heard as well: see [`Endpoint::receive_visitors`](crate::Endpoint::receive_visitors).
    pub visitors: bool,
    /// What this process is to its cluster.
    pub role: Role,
    /// This node; 0 for clients that are not cluster nodes.
    pub node: NodeId,
    /// The session named in handshakes; [`Endpoint::set_session`](crate::Endpoint::set_session) changes it.
    pub session: SessionId,
    /// `maxTcpConnsPerNodeConn`: bulk connections to one peer over all rails, 1–16; the lower of both
    /// sides' values counts. [`Endpoint::set_conns_max`](crate::Endpoint::set_conns_max) changes it.
    pub conns_max: u8,
    /// The number of bulk connections is found by measuring, up to `conns_max`.
    pub conns_auto: bool,
    /// How calls are given to connections.
    pub dispatch: Dispatch,
    /// How bulk connections get their source ports.
    pub placement: Placement,
    /// How payloads of requests above `inline_write_max` travel.
    pub transfer: Transfer,
    /// What bulk connections within a machine go by.
    /// [`Endpoint::set_transport`](crate::Endpoint::set_transport) changes it.
    pub transport: Transport,
    /// `nsdInlineWriteMax`: payloads of requests up to this many bytes always travel in the request.
    pub inline_write_max: usize,
    /// Addresses to listen on; port 0 takes a free one. Empty: this endpoint only connects.
    pub listen: Vec<SocketAddr>,
    /// Addresses told to peers for multi-rail use; empty: those listened on.
    pub advertise: Vec<SocketAddr>,
    /// What people call this process, at most 255 bytes; empty: by role and node.
    pub name: String,
    /// What it speaks: another build than this one only in tests.
    pub build: Build,
    /// What [`Call::new`](crate::Call::new) users may take as their deadline; the crate never waits longer
    /// than a call's own deadline.
    pub deadline_default: Duration,
    /// How long a call waits for a first connection before it ends with `Disconnected`.
    pub patience_default: Duration,
    /// One attempt to connect, handshake included.
    pub connect_timeout: Duration,
    /// Longest pause between attempts to connect.
    pub backoff_max: Duration,
    /// An idle connection is probed this often.
    pub heartbeat_interval: Duration,
    /// A connection without any sign of life for this long is closed.
    pub heartbeat_timeout: Duration,
    /// What one connection accepts of unanswered requests from its peer.
    pub window: Window,
    /// Bytes of received requests held by all handlers together; more wait in the sockets, then are
    /// answered `Busy`.
    pub inbound_bytes_max: usize,
    /// Reply bytes waiting to be sent on one connection beyond which further requests wait.
    pub outbound_bytes_max: usize,
    /// Unused receive buffers kept for the next payload.
    pub pool_idle_bytes_max: usize,
    /// Connections that go by memory of both ends, of 1 MiB each; further ones go by TCP.
    pub shared_max: usize,
    /// Accepted connections in all.
    pub accepted_max: usize,
    /// Accepted connections whose handshake is not finished.
    pub handshakes_max: usize,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            cluster: ClusterId::default(),
            identity: None,
            cipher_list: CipherList::Default,
            visitors: false,
            role: Role::Admin,
            node: NodeId(0),
            session: SessionId(0),
            conns_max: 2,
            conns_auto: false,
            dispatch: Dispatch::ShortestQueue,
            placement: Placement::Probe,
            transfer: Transfer::Push,
            transport: Transport::Tcp,
            inline_write_max: 32 << 10,
            listen: Vec::new(),
            advertise: Vec::new(),
            name: String::new(),
            build: Build::own(),
            deadline_default: Duration::from_secs(60),
            patience_default: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            backoff_max: Duration::from_secs(1),
            heartbeat_interval: Duration::from_secs(1),
            heartbeat_timeout: Duration::from_secs(5),
            window: Window { requests: 512, bytes: 64 << 20 },
            inbound_bytes_max: 512 << 20,
            outbound_bytes_max: 64 << 20,
            pool_idle_bytes_max: 256 << 20,
            shared_max: 256,
            accepted_max: 16384,
            handshakes_max: 1024,
        }
    }
}

pub(crate) fn check_conns_max(n: u8) -> Result<(), NetError> {
    let range = "1 to 16";
    let refused = NetError::Config { name: "conns_max", value: n.to_string(), range };
    if (1..=16).contains(&n) { Ok(()) } else { Err(refused) }
}

impl EndpointConfig {
    pub(crate) fn validate(&self) -> Result<(), NetError> {
        let check = |ok: bool, name, value: String, range| {
            if ok { Ok(()) } else { Err(NetError::Config { name, value, range }) }
        };
        let whole_payload = wire::frame::PAYLOAD_LEN_MAX as usize + wire::frame::BODY_LEN_MAX as usize;
        check_conns_max(self.conns_max)?;
        check(self.window.requests >= 1, "window.requests", self.window.requests.to_string(), "at least 1")?;
        check(
            (whole_payload..=1 << 40).contains(&self.inbound_bytes_max),
            "inbound_bytes_max",
            self.inbound_bytes_max.to_string(),
            "24m to 1t (one largest request must fit)",
        )?;
        check(
            self.heartbeat_timeout >= self.heartbeat_interval * 2 && !self.heartbeat_interval.is_zero(),
            "heartbeat_timeout",
            format!("{:?}", self.heartbeat_timeout),
            "at least twice heartbeat_interval, which is above 0",
        )?;
        check(self.accepted_max >= 1, "accepted_max", self.accepted_max.to_string(), "at least 1")?;
        check(self.handshakes_max >= 1, "handshakes_max", self.handshakes_max.to_string(), "at least 1")?;
        check(self.name.len() <= 255, "name", self.name.clone(), "at most 255 bytes")
    }
}
