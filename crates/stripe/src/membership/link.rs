//! The way to the manager.

use std::time::Instant;

use base::{Epoch, SessionId};
use net::{BoxFuture, Call, CallError, Endpoint, Lane, Service};
use thiserror::Error;
use wire::{
    frame,
    map::ClusterMap,
    mgr::{MgrError, MgrReply, MgrRequest},
};

use super::managers::{AskError, Managers};

/// Why the manager did not answer, or not as wished.
#[derive(Debug, Error)]
pub enum LinkError {
    /// Not reached.
    #[error("manager not reached: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer of the manager in time")]
    Timeout,
    /// It speaks a version of the protocol that does not have the request, which was not sent.
    #[error("{0}")]
    TooOld(String),
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
    managers: Managers,
}

impl NetManager {
    /// The active one of these.
    pub fn new(endpoint: Endpoint, managers: Managers) -> NetManager {
        NetManager { endpoint, managers }
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
        let (managers, endpoint) = (self.managers.clone(), self.endpoint.clone());
        Box::pin(async move {
            let idempotent = request.is_idempotent();
            let body = frame::encode(&request);
            let make = || Call {
                lane: Lane::Control,
                session,
                epoch,
                idempotent,
                since: request.since(),
                ..Call::new(Service::Manager, 0, body.clone(), deadline)
            };
            match managers.ask(&endpoint, make).await {
                Ok(MgrReply::Error(error)) => Err(LinkError::Refused(error)),
                Ok(reply) => Ok(reply),
                Err(AskError::Call(CallError::Deadline)) => Err(LinkError::Timeout),
                Err(AskError::Protocol) => Err(LinkError::Protocol),
                Err(AskError::Call(error @ CallError::TooOld { .. })) => {
                    Err(LinkError::TooOld(error.to_string()))
                }
                Err(error) => Err(LinkError::Unreachable(error.to_string())),
            }
        })
    }

    fn identify(&self, session: SessionId, map: &ClusterMap) {
        self.endpoint.set_session(session);
        self.endpoint.set_epoch(map.epoch);
        self.endpoint.shut_out(&map.revoked);
        self.managers.learn(map);
        self.endpoint.set_names(map.names().chain(self.managers.names()));
    }
}
