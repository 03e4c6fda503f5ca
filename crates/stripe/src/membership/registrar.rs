//! How a process registers at the manager.

use std::{sync::Arc, time::Duration};

use base::SessionId;
use net::BoxFuture;
use thiserror::Error;
use wire::{map::ClusterMap, mgr::PdiskReport};

use super::link::{LinkError, ManagerLink};

/// What a registration gave.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The session.
    pub session: SessionId,
    /// When the request was sent, by [`boot_time`](base::presence::boot_time).
    pub sent: Duration,
    /// The lease from then on.
    pub lease: Duration,
    /// The map that includes the registration.
    pub map: ClusterMap,
}

/// Why a registration failed.
#[derive(Debug, Error)]
pub enum RegistrarError {
    /// It is tried again.
    #[error("{0}")]
    Retry(LinkError),
    /// It makes no sense to try again: the process stops.
    #[error("{0}")]
    Fatal(LinkError),
    /// The same, for a reason of the registrar's own.
    #[error("{reason}")]
    Ended {
        /// For a person.
        reason: String,
    },
}

/// How a process becomes part of the cluster: as a server, or as a client.
pub trait Registrar: Send + Sync + 'static {
    /// Registers; called at the start, and again when the manager no longer knows the session.
    fn register(&self, link: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>>;
    /// What a renewal reports (servers).
    fn reports(&self) -> Vec<PdiskReport> {
        Vec::new()
    }
}
