//! Tunables that a process follows while it runs: the manager is asked every few seconds.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base::tunables::{ConnCount, TransferMode, Tunables};
use net::{Call, Endpoint, Service, Transfer};
use wire::{
    frame,
    mgr::{MgrReply, MgrRequest},
};

use crate::process::server::Running;

/// Time between questions: a change is in force everywhere after this.
const EVERY: Duration = Duration::from_secs(2);

/// What the cluster's tunables say of connections, for an `endpoint` that is about to begin.
pub async fn begin(endpoint: &Endpoint, manager: SocketAddr) {
    if let Some(tunables) = read(endpoint, manager).await {
        apply(endpoint, &tunables);
    }
}

/// Keeps `endpoint` and what runs in this process as the cluster's tunables say.
pub fn follow(endpoint: &Endpoint, manager: SocketAddr, running: Arc<Running>) {
    let endpoint = endpoint.clone();
    tokio::spawn(async move {
        loop {
            match read(&endpoint, manager).await {
                Some(tunables) => {
                    apply(&endpoint, &tunables);
                    running.retune(&tunables);
                }
                None => tracing::debug!("the manager does not tell the tunables now"),
            }
            tokio::time::sleep(EVERY).await;
        }
    });
}

async fn read(endpoint: &Endpoint, manager: SocketAddr) -> Option<Tunables> {
    let body = frame::encode(&MgrRequest::ConfigGet);
    let call = Call { idempotent: true, ..Call::new(Service::Manager, 0, body, Instant::now() + EVERY) };
    let reply = endpoint.peer(&[manager]).call(call).await.ok()?;
    let MgrReply::Config(pairs) = frame::decode(&reply.body).ok()? else { return None };
    let mut tunables = Tunables::default();
    tunables.apply(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str()))).ok()?;
    Some(tunables)
}

fn apply(endpoint: &Endpoint, tunables: &Tunables) {
    match tunables.max_tcp_conns_per_node_conn() {
        ConnCount::Auto => endpoint.set_conns_auto(),
        ConnCount::Count(n) => {
            if let Err(error) = endpoint.set_conns_max(n) {
                tracing::warn!("maxTcpConnsPerNodeConn: {error}");
            }
        }
    }
    let transfer = match tunables.net_transfer() {
        TransferMode::Push => Transfer::Push,
        TransferMode::Fetch => Transfer::Fetch,
    };
    endpoint.set_transfer(transfer, tunables.nsd_inline_write_max().0 as usize);
}
