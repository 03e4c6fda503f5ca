//! The command line's connection to a cluster's processes.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use net::{Call, CallError, Endpoint, EndpointConfig, Lane, Role, Service};
use wire::{
    admin::{AdminReply, AdminRequest},
    frame,
    mgr::{ClusterReport, MgrReply, MgrRequest},
};

use crate::cluster_dir::{Addrs, ClusterDir, host::host_name};

/// How long a command waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a command calls itself, before the name of its machine.
pub const COMMAND: &str = "a command";

/// An endpoint that only connects, for one cluster. Clones share it.
#[derive(Clone)]
pub struct Link {
    endpoint: Endpoint,
    manager: Addrs,
}

impl Link {
    /// A link to the processes of `dir`'s cluster. Nothing is connected yet.
    pub fn new(dir: &ClusterDir) -> Result<Link> {
        Link::of(dir, format!("{COMMAND} on {}", host_name()))
    }

    /// The same of a process that people call so.
    pub fn of(dir: &ClusterDir, name: String) -> Result<Link> {
        let roles = [Role::Admin, Role::Server, Role::Client];
        let config = EndpointConfig { conns_max: 1, name, ..dir.endpoint_as(&roles)? };
        Ok(Link { endpoint: Endpoint::start(config)?, manager: dir.file.manager.clone() })
    }

    /// The same over a process's own end of the network.
    pub fn over(endpoint: &Endpoint, manager: &Addrs) -> Link {
        Link { endpoint: endpoint.clone(), manager: manager.clone() }
    }

    /// Asks the manager.
    pub async fn manager(&self, request: &MgrRequest) -> Result<MgrReply> {
        let body = self
            .call(&self.manager, Service::Manager, frame::encode(request), PATIENCE)
            .await
            .map_err(|error| {
                let is_up = match error.downcast_ref() {
                    Some(CallError::Refused(_)) => "",
                    _ => "; is the cluster up? (`ropewalk up` starts it)",
                };
                error.context(format!("ask the manager at {}{is_up}", self.manager))
            })?;
        match frame::decode(&body).context("decode the manager's answer")? {
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
        let call = Call {
            lane: Lane::Control,
            idempotent: true,
            patience: Some(Duration::from_secs(1).min(patience)),
            ..Call::new(service, 0, body, Instant::now() + patience)
        };
        Ok(self.endpoint.peer(addrs).call(call).await?.body)
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
