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

mod broken;
mod calls;
mod config;
mod connections;
mod core;
mod endpoint;
mod error;
mod links;
mod names;
mod peer;
#[cfg(test)]
mod shared_tests;
mod sight;
pub mod sizing;
mod stats;
mod visit;

pub use calls::call::{Call, Reply};
pub use calls::handler::{BoxFuture, Handler, PeerId, Request, handler_fn};
pub use calls::payload::{Destination, Payload, ReceiveInto, ReplyPayload};
pub use calls::response::Response;
pub use config::{Dispatch, EndpointConfig, Placement, Transfer, Transport};
pub use connections::groups::Receive;
pub use connections::plan::PlacementStatus;
pub use connections::socket::Protection;
pub use endpoint::Endpoint;
pub use error::{CallError, NetError};
pub use links::{choose::Path, hash, tcp_info::TcpInfo};
pub use peer::Peer;
pub use sight::{CallState, ConnState, ConnStatus, PeerStatus, RailStatus, Serving, Waiter};
pub use trust::{Identity, SECRET_LEN, Secret, TrustError};
pub use visit::{VisitError, visit};
pub use wire::{
    frame::{Header, Service, Status},
    hello::{Lane, Role, Window},
};
