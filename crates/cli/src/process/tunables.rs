//! The cluster's tunables: asked for here and nowhere else, once at the start and then every few seconds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{
    CipherList, beat,
    tunables::{ConnCount, TransferMode, TransportMode, Tunables},
};
use net::{Endpoint, Transfer, Transport};
use wire::{
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
};

use super::admin::Running;
use crate::{
    cluster_dir::{ClusterDir, cipher},
    link::Link,
};

/// Time between questions: a change is in force everywhere after this.
const EVERY: Duration = Duration::from_secs(2);
/// The same while a server waits for its first answer.
const EVERY_AT_START: Duration = Duration::from_millis(200);

/// The cluster's tunables.
pub async fn read(link: &Link) -> Result<Tunables> {
    let MgrReply::Config(pairs) = link.manager(&MgrRequest::ConfigGet).await? else {
        bail!("unexpected answer from the manager to ConfigGet");
    };
    let mut tunables = Tunables::default();
    tunables
        .apply(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())))
        .context("the cluster's stored tunables")?;
    Ok(tunables)
}

/// The cluster's tunables and map, as soon as the manager answers: a server, of this name, has nothing to do before.
pub async fn wait_for(dir: &ClusterDir, server: &str) -> Result<(Tunables, ClusterMap)> {
    let both = async || {
        // Anew each time: a certificate that has ended is renewed then.
        let link = Link::of(dir, server.to_owned())?;
        Ok((read(&link).await?, link.cluster().await?.map))
    };
    loop {
        let found: Result<_> = both().await;
        match found {
            Ok(found) => return Ok(found),
            Err(error) => tracing::warn!("waiting for the tunables: {error:#}"),
        }
        tokio::time::sleep(EVERY_AT_START).await;
    }
}

/// What the tunables say of connections, for an `endpoint` that is about to begin.
pub async fn begin(endpoint: &Endpoint, dir: &ClusterDir) {
    if let Ok(tunables) = read(&Link::over(endpoint, &dir.managers)).await {
        apply(endpoint, dir.file.cipher_list, &tunables);
    }
}

/// Keeps `endpoint` and what runs in this process as the tunables say. A manager that does not answer changes nothing.
pub fn follow(endpoint: &Endpoint, dir: &ClusterDir, running: Arc<Running>) {
    let (endpoint, link) = (endpoint.clone(), Link::over(endpoint, &dir.managers));
    let (path, of_machine) = (dir.path.clone(), dir.file.cipher_list);
    tokio::spawn(async move {
        loop {
            match read(&link).await {
                Ok(tunables) => {
                    if let Err(error) = cipher::keep(&path, tunables.cipher_list()) {
                        tracing::warn!("cipherList is not kept for the next start: {error:#}");
                    }
                    apply(&endpoint, of_machine, &tunables);
                    running.retune(&tunables);
                }
                Err(error) if error.is::<net::CallError>() => {
                    tracing::debug!("the manager does not tell the tunables now: {error:#}");
                }
                Err(error) => tracing::warn!("the tunables stay as they are: {error:#}"),
            }
            tokio::time::sleep_until(beat::by(Instant::now(), EVERY).into()).await;
        }
    });
}

/// `of_machine`: how its connections are protected where the tunable says nothing.
fn apply(endpoint: &Endpoint, of_machine: CipherList, tunables: &Tunables) {
    if let Err(error) = endpoint.set_cipher_list(tunables.cipher_list().unwrap_or(of_machine)) {
        tracing::warn!("cipherList: {error}");
    }
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
    endpoint.set_transport(match tunables.transport() {
        TransportMode::Auto => Transport::Auto,
        TransportMode::Tcp => Transport::Tcp,
        TransportMode::Shm => Transport::Shm,
    });
    endpoint.set_transfer(transfer, tunables.nsd_inline_write_max().0 as usize);
}
