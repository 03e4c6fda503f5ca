//! The serving side's interface: a [`Handler`] for each service gets [`Request`]s and returns
//! [`Response`]s. A handler is first polled by the connection's receiver: it must not block; what takes long
//! belongs behind an await.

use std::{fmt, future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Instant};

use base::{MemberId, NodeId, SessionId};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use wire::{frame::Header, hello::Role, version::Build};

use crate::{
    calls::{inbound::Cancel, response::Response},
    connections::group::Group,
    peer::Peer,
};

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One service of this process.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request. The future is never dropped before it ends; a caller that gave up shows in
    /// [`Request::cancelled`].
    fn handle(&self, request: Request) -> BoxFuture<'static, Response>;
    /// Whether [`Request::unit_crcs`] are wanted.
    fn wants_unit_crcs(&self) -> bool {
        false
    }
}

struct FnHandler<F>(F);

impl<F, Fut> Handler for FnHandler<F>
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    fn handle(&self, request: Request) -> BoxFuture<'static, Response> {
        Box::pin((self.0)(request))
    }
}

/// A handler from an async function.
pub fn handler_fn<F, Fut>(f: F) -> Arc<dyn Handler>
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    Arc::new(FnHandler(f))
}

/// A received request.
#[derive(Debug)]
pub struct Request {
    /// Its validated header.
    pub header: Header,
    /// The encoded message, its CRC verified.
    pub body: Bytes,
    /// The payload in one 4 KiB aligned buffer. Its CRCs are the service's to verify.
    pub payload: Bytes,
    /// CRC-32C of each whole 4 KiB of the payload as it lies in memory, computed as it came, while the CPU's cache had it;
    /// empty if the handler does not want them.
    pub unit_crcs: Vec<u32>,
    /// Who sent it.
    pub peer: PeerId,
    /// When the caller gives up: nothing need be done after that.
    pub expires: Instant,
    /// When its last byte was received.
    pub received: Instant,
    pub(crate) cancel: Arc<Cancel>,
    /// Its share of `inbound_bytes_max`, returned when the request is dropped.
    pub(crate) _share: Option<OwnedSemaphorePermit>,
}

impl Request {
    /// Whether the caller no longer waits.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_set()
    }
    /// Ends when the caller no longer waits (it gave up, or its connection is gone).
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        let cancel = Arc::clone(&self.cancel);
        async move { cancel.told().await }
    }
}

/// The authenticated peer: the process at the other end of a connection, as its handshake has proven it. The one place
/// where a handler learns who asks. The proof is its certificate, which says in which roles and as which nodes it may speak.
#[derive(Clone)]
pub struct PeerId {
    /// Its node; 0 for clients that are not cluster nodes.
    pub node: NodeId,
    /// Drawn at its start: a restarted peer is another one.
    pub process: u64,
    /// What it is to the cluster.
    pub role: Role,
    /// Which member of the cluster it has proven to be.
    pub member: MemberId,
    /// Its address on this connection.
    pub addr: SocketAddr,
    /// The session named in its handshake; a request's own is in its header.
    pub session: SessionId,
    /// Its build. What is answered must be known in the version of the connection, which its request's header names.
    pub build: Build,
    pub(crate) group: Arc<Group>,
}

impl PeerId {
    /// The node whose server it is, if it is one.
    pub fn server(&self) -> Option<NodeId> {
        (self.role == Role::Server).then_some(self.node)
    }

    /// The peer's connection group, for requests in the other direction.
    pub fn reply_to(&self) -> Peer {
        Peer::from_group(Arc::clone(&self.group))
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.group.name(), self.addr)
    }
}
