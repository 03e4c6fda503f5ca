//! What can go wrong with an endpoint and with a call.

use std::{io, net::SocketAddr};

use bytes::Bytes;
use thiserror::Error;
use wire::frame::{FrameError, Status};

/// Why an endpoint could not be started, or a setting was refused.
#[derive(Debug, Error)]
pub enum NetError {
    /// Another socket has the address.
    #[error(
        "listen on {addr}: the port is taken; stop the program that has it (`ss -ltnp` shows which) or choose \
         another port"
    )]
    PortTaken {
        /// The address.
        addr: SocketAddr,
    },
    /// The address cannot be listened on for another reason.
    #[error("listen on {addr}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// `Endpoint::start` was called outside a tokio runtime.
    #[error("an endpoint needs a tokio runtime")]
    NoRuntime,
    /// A process stays the member that it is.
    #[error(
        "the new certificate is another member's: the machine has joined again; end its processes and start them"
    )]
    OtherMember,
    /// `EndpointConfig::identity` is not set: anybody could speak to the process.
    #[error("an endpoint needs an identity in its cluster")]
    NoIdentity,
    /// The ciphers of the identity could not be put in another order.
    #[error(transparent)]
    Trust(#[from] trust::TrustError),
    /// What the process is to be is not what its certificate says.
    #[error("{0} is not allowed to be {1:?} on {2}: ask for another certificate")]
    NotAllowed(String, wire::hello::Role, base::NodeId),
    /// A configuration value is out of its range.
    #[error("{name} is {value}; it must be {range}")]
    Config {
        /// The field of `EndpointConfig`.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
}

/// How a call ended without a reply.
#[derive(Debug, Error)]
pub enum CallError {
    /// The deadline passed. The request may or may not have been carried out.
    #[error("the deadline passed before the reply came")]
    Deadline,
    /// The connection was lost, or none could be made.
    #[error("disconnected ({}executed): {reason}", if *.maybe_executed { "perhaps " } else { "not " })]
    Disconnected {
        /// False: the request never left this process.
        maybe_executed: bool,
        /// What happened, for a person.
        reason: String,
    },
    /// The peer refused the handshake, or has another version. The reason is for a person.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer does not know this message yet. The older way is the caller's to try.
    #[error(
        "{peer} speaks version {speaks} of the protocol, and this came with {since}; upgrade ropewalk there"
    )]
    TooOld {
        /// Whom it was for.
        peer: String,
        /// The version of the connection.
        speaks: u16,
        /// The first version that has the message.
        since: u16,
    },
    /// The peer answered with a status other than `Ok`; the body is a text or the service's own.
    #[error("the peer answered {status:?}: {}", String::from_utf8_lossy(.body))]
    Status {
        /// The status.
        status: Status,
        /// The reply's body.
        body: Bytes,
    },
    /// The request or its reply breaks a bound of the frame format.
    #[error("bad frame")]
    Frame(#[from] FrameError),
    /// The reply's payload is longer than the destination given for it.
    #[error("a reply of {len} bytes does not fit into the {room} bytes given for it")]
    PayloadTooLong {
        /// Bytes of the payload.
        len: usize,
        /// Bytes of the destination.
        room: usize,
    },
    /// The endpoint was shut down.
    #[error("the endpoint is shut down")]
    Shutdown,
}

impl CallError {
    /// Whether the request cannot have been carried out: repeating it is safe whatever it is.
    pub fn not_executed(&self) -> bool {
        match self {
            CallError::Disconnected { maybe_executed, .. } => !maybe_executed,
            CallError::Refused(_) | CallError::TooOld { .. } | CallError::Frame(_) => true,
            CallError::Status { status, .. } => {
                matches!(status, Status::NoService | Status::BadRequest | Status::Expired | Status::Busy)
            }
            CallError::Deadline | CallError::PayloadTooLong { .. } | CallError::Shutdown => false,
        }
    }
}

/// Why a connection ended.
#[derive(Debug, Error, Clone)]
pub(crate) enum CloseReason {
    #[error("closed by the peer")]
    Eof,
    #[error("{0}")]
    Io(std::sync::Arc<io::Error>),
    #[error("{0}")]
    Frame(std::sync::Arc<FrameError>),
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    #[error("no sign of life for {0:?}")]
    Silent(std::time::Duration),
    #[error("it reads nothing of what it is sent for {0:?}, though it is there")]
    Unread(std::time::Duration),
    #[error("its request comes too slowly, {0} bytes in {1:?}, and others wait for the memory")]
    Trickles(u64, std::time::Duration),
    #[error("replaced by a newer process of the peer")]
    Superseded,
    #[error("nothing gets through for {0:?} while other connections do")]
    PathDead(std::time::Duration),
    #[error("drained")]
    Drained,
    #[error("the endpoint is shut down")]
    Shutdown,
    #[error("the peer's certificate has been revoked")]
    Revoked,
    #[error("the peer's certificate is of an authority that is believed no more")]
    FormerAuthority,
}

impl CloseReason {
    /// Whether the end was meant, not a failure.
    pub(crate) fn is_meant(&self) -> bool {
        use CloseReason::{Drained, FormerAuthority, Revoked, Shutdown, Superseded};
        matches!(self, Superseded | Drained | Shutdown | Revoked | FormerAuthority)
    }
    /// Whether the peer has sent something else than it may.
    pub(crate) fn is_broken(&self) -> bool {
        match self {
            CloseReason::Frame(_) | CloseReason::Protocol(_) => true,
            CloseReason::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }
    /// Whether the network between the nodes no longer passes anything.
    pub(crate) fn is_path(&self) -> bool {
        matches!(self, CloseReason::PathDead(_) | CloseReason::Silent(_))
    }
}

impl From<io::Error> for CloseReason {
    fn from(e: io::Error) -> Self {
        CloseReason::Io(std::sync::Arc::new(e))
    }
}
impl From<FrameError> for CloseReason {
    fn from(e: FrameError) -> Self {
        CloseReason::Frame(std::sync::Arc::new(e))
    }
}
