//! Connection groups: requests and payloads between nodes, with deadlines.
//!
//! A process has one [`Endpoint`]. It listens, or only connects; either way the same connections carry
//! requests in both directions. [`Endpoint::peer`] gives a [`Peer`], the connection group to one other
//! process, which connects when first used and reconnects by itself. [`Peer::call`] sends one request and
//! waits for its reply, never beyond the deadline.
//!
//! Payloads are not copied in user space: they are sent from the caller's [`bytes::Bytes`] by one vectored
//! write with header and body, and received straight into the [`ReceiveInto`] given with the call, or into
//! one aligned pooled buffer.
//!
//! Bounds: unanswered requests and their bytes per connection and direction (the window of the handshake),
//! payload bytes of requests in all (`inbound_bytes_max`), reply bytes waiting on a connection
//! (`outbound_bytes_max`), accepted connections, handshakes at a time.

mod accept;
mod auto;
mod call;
mod calling;
mod choose;
mod config;
mod conn;
mod core;
mod dial;
mod dispatch;
mod endpoint;
mod error;
mod group;
mod groups;
mod handler;
mod handshake;
pub mod hash;
mod idmap;
mod inbound;
mod keeper;
mod links;
mod once;
mod outbox;
mod payload;
mod peer;
mod pending;
mod place;
mod plan;
mod probe;
mod reader;
mod refused;
mod response;
mod service;
mod services;
mod sight;
pub mod sizing;
mod socket;
mod start;
mod stats;
mod tcp_info;
mod verify;
mod watch;
mod writer;

pub use call::{Call, Reply};
pub use choose::Path;
pub use config::{Dispatch, EndpointConfig, Placement, Transfer};
pub use endpoint::Endpoint;
pub use error::{CallError, NetError};
pub use handler::{BoxFuture, Handler, PeerId, Request, handler_fn};
pub use payload::{Destination, Payload, ReceiveInto, ReplyPayload};
pub use peer::Peer;
pub use plan::PlacementStatus;
pub use response::Response;
pub use sight::{CallState, ConnState, ConnStatus, PeerStatus, RailStatus, Serving, Waiter};
pub use tcp_info::TcpInfo;
pub use wire::{
    auth::Secret,
    frame::{Header, Service, Status},
    hello::{Lane, Role, Window},
};
