//! How a machine that has no certificate yet speaks to a manager.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use thiserror::Error;
use trust::Visitor;

use crate::connections::{handshake, handshake_error::HandshakeError, socket};

/// Why a visit came to nothing.
#[derive(Debug, Error)]
pub enum VisitError {
    /// There is another authority there, or no manager.
    #[error(
        "{0} is no manager of the token's cluster, or the cluster's authority has been exchanged since (`ropewalk cluster \
         authority`): what was signed or made before is worth nothing. Nothing secret was sent. Ask the cluster's administrator for \
         a new token"
    )]
    Stranger(SocketAddr),
    /// It is not reached, or does not answer.
    #[error("the manager at {addr}: {reason}")]
    Failed {
        /// Where it should be.
        addr: SocketAddr,
        /// What happened.
        reason: String,
    },
}

/// Says something (at most 4096 bytes) to the manager at `addr` once it has proven that it is one; its answer.
pub async fn visit(
    visitor: &Visitor,
    addr: SocketAddr,
    said: &[u8],
    limit: Duration,
) -> Result<Bytes, VisitError> {
    let failed = |reason: String| VisitError::Failed { addr, reason };
    let connecting = tokio::time::timeout(limit, socket::connect(addr, None)).await;
    let stream = match connecting {
        Ok(connected) => connected.map_err(|e| failed(e.to_string()))?,
        Err(_) => return Err(failed(format!("no answer within {limit:.1?}"))),
    };
    handshake::visit(visitor, stream, said, limit).await.map_err(|error| match error {
        HandshakeError::Stranger => VisitError::Stranger(addr),
        error => failed(error.to_string()),
    })
}
