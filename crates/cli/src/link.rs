//! The command line's connection to a cluster's processes.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use net::{Call, CallError, Endpoint, EndpointConfig, Lane, Role, Service};
use stripe::{AskError, Managers};
use wire::{
    admin::{AdminReply, AdminRequest},
    frame,
    mgr::{ClusterReport, MgrError, MgrReply, MgrRequest},
};

use crate::cluster_dir::{ClusterDir, host::host_name};

/// How long a command waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it waits for a connection: one attempt of the network, handshake included. A process on a busy machine may take more than a second for
/// that, and would be said not to be there. Whoever asks one that is gone waits so long; where that is many at once, or another manager
/// may be asked, less is said there (`ASK_PATIENCE`, `stripe::Managers`).
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// What a command calls itself, before the name of its machine.
pub const COMMAND: &str = "a command";

/// An endpoint that only connects, for one cluster. Clones share it.
#[derive(Clone)]
pub struct Link {
    endpoint: Endpoint,
    managers: Managers,
}

impl Link {
    /// A link to the processes of `dir`'s cluster. Nothing is connected yet.
    pub fn new(dir: &ClusterDir) -> Result<Link> {
        Link::of(dir, format!("{COMMAND} on {}", host_name()))
    }

    /// The same of a process that people call so.
    pub fn of(dir: &ClusterDir, name: String) -> Result<Link> {
        Link::in_role(dir, name, &[Role::Admin, Role::Server, Role::Client])
    }

    /// A command's, as the manager's own: for machines that have the cluster's secret.
    pub fn as_manager(dir: &ClusterDir) -> Result<Link> {
        Link::in_role(dir, format!("{COMMAND} on {}", host_name()), &[Role::Manager])
    }

    fn in_role(dir: &ClusterDir, name: String, roles: &[Role]) -> Result<Link> {
        let config = EndpointConfig { conns_max: 1, name, ..dir.endpoint_as(roles)? };
        Ok(Link { endpoint: Endpoint::start(config)?, managers: dir.managers.clone() })
    }

    /// The same over a process's own end of the network.
    pub fn over(endpoint: &Endpoint, managers: &Managers) -> Link {
        Link { endpoint: endpoint.clone(), managers: managers.clone() }
    }

    /// Asks the active manager.
    pub async fn manager(&self, request: &MgrRequest) -> Result<MgrReply> {
        let (body, deadline) = (frame::encode(request), Instant::now() + PATIENCE);
        let make = || Call { since: request.since(), ..call(Service::Manager, body.clone(), deadline) };
        let reply = self.managers.ask(&self.endpoint, make).await.map_err(|error| {
            let is_up = match &error {
                AskError::Call(CallError::Refused(_)) => "",
                _ => "; is the cluster up? (`ropewalk up` starts it)",
            };
            let error = match error {
                AskError::Call(error) => error.into(),
                other => anyhow::Error::new(other),
            };
            error.context(format!("ask the manager at {}{is_up}", self.managers.places()))
        })?;
        match reply {
            MgrReply::Error(error @ MgrError::Errno(libc::ETIMEDOUT)) => {
                Err(error).context("the manager had no answer in time; give the command again")
            }
            MgrReply::Error(error) => Err(error).context("the manager refused"),
            reply => {
                // Whoever learns from the map where others are, learns who of them is shut out.
                match &reply {
                    MgrReply::Cluster(report) => self.endpoint.shut_out(&report.map.revoked),
                    MgrReply::Map(map) => self.endpoint.shut_out(&map.revoked),
                    _ => {}
                }
                Ok(reply)
            }
        }
    }

    /// The listing that most commands show.
    pub async fn cluster(&self) -> Result<ClusterReport> {
        match self.manager(&MgrRequest::Cluster).await? {
            MgrReply::Cluster(report) => Ok(*report),
            other => bail!("unexpected answer from the manager: {other:?}"),
        }
    }

    /// Asks any process about itself, at one of its addresses.
    pub async fn admin(
        &self,
        addrs: &[SocketAddr],
        request: &AdminRequest,
        patience: Duration,
    ) -> Result<AdminReply> {
        let body = self.call(addrs, Service::Admin, frame::encode(request), patience).await?;
        frame::decode(&body).context("decode the answer")
    }

    async fn call(
        &self,
        addrs: &[SocketAddr],
        service: Service,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<bytes::Bytes> {
        let call = call(service, body, Instant::now() + patience);
        Ok(self.endpoint.peer(addrs).call(call).await?.body)
    }
}

fn call(service: Service, body: Vec<u8>, deadline: Instant) -> Call {
    Call {
        lane: Lane::Control,
        idempotent: true,
        patience: Some(CONNECT_PATIENCE),
        ..Call::new(service, 0, body, deadline)
    }
}

/// Runs a future of one command on a small runtime.
pub fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(future)
}
