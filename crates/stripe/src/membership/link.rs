//! The way to the manager.

use std::{net::SocketAddr, time::Instant};

use base::{Epoch, SessionId};
use net::{BoxFuture, Call, CallError, Endpoint, Lane, Service};
use thiserror::Error;
use wire::{
    frame,
    map::ClusterMap,
    mgr::{MgrError, MgrReply, MgrRequest},
};

/// Why the manager did not answer, or not as wished.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Not reached.
    #[error("manager not reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer of the manager in time")]
    Timeout,
    /// The manager refused.
    #[error(transparent)]
    Refused(#[from] MgrError),
    /// Not an answer to the question.
    #[error("the manager's answer does not fit the request")]
    Protocol,
}

/// Carries requests to the manager.
pub trait ManagerLink: Send + Sync + 'static {
    /// Sends one request; `Ok` is any reply that is not an error.
    fn call(
        &self,
        session: SessionId,
        epoch: Epoch,
        request: MgrRequest,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>>;
    /// The session and the map now in use.
    fn identify(&self, _session: SessionId, _map: &ClusterMap) {}
}

/// Over connection groups.
pub struct NetManager {
    endpoint: Endpoint,
    addrs: Vec<SocketAddr>,
}

impl NetManager {
    /// The manager at `addrs`.
    pub fn new(endpoint: Endpoint, addrs: Vec<SocketAddr>) -> NetManager {
        NetManager { endpoint, addrs }
    }
}

impl ManagerLink for NetManager {
    fn call(
        &self,
        session: SessionId,
        epoch: Epoch,
        request: MgrRequest,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let peer = self.endpoint.peer(&self.addrs);
        Box::pin(async move {
            let call = Call {
                lane: Lane::Control,
                session,
                epoch,
                idempotent: request.is_idempotent(),
                ..Call::new(Service::Manager, 0, frame::encode(&request), deadline)
            };
            let reply = peer.call(call).await.map_err(|error| match error {
                CallError::Deadline => LinkError::Timeout,
                other => LinkError::Unreachable(other.to_string()),
            })?;
            match frame::decode(&reply.body).map_err(|_| LinkError::Protocol)? {
                MgrReply::Error(error) => Err(LinkError::Refused(error)),
                reply => Ok(reply),
            }
        })
    }

    fn identify(&self, session: SessionId, map: &ClusterMap) {
        self.endpoint.set_session(session);
        self.endpoint.set_epoch(map.epoch);
        self.endpoint.shut_out(&map.revoked);
        let manager = (None, "the manager".to_owned(), self.addrs.clone());
        self.endpoint.set_names(map.names().chain([manager]));
    }
}
