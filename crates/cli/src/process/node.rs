//! An NSD server's process: opens the pdisks of its node, serves them, closes them. Here is seen how a process is put together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use net::{Endpoint, Role, Service};
use wire::version::Build;

use super::{
    admin, callback, endpoint, ident, mounts,
    pdisks::{Queues, open_options},
    presence::{Presence, told_early},
    service,
    stop::Stop,
    tunables,
};
use crate::cluster_dir::{ClusterDir, NodeFile};

/// Until it is told to stop.
pub async fn run(dir: &ClusterDir, node: &NodeFile, presence: Presence, mut stop: Stop) -> Result<()> {
    // A manager may wait for what servers know of copies of its store before it serves.
    let early = listen(dir, node);
    if let Err(error) = &early {
        tracing::warn!("{} listens when the manager answers: {error:#}", node.name);
    }
    tracing::info!("{} waits for the manager", node.name);
    service::status("waits for the manager");
    // Nothing is open yet.
    let Some(found) = stop.before(tunables::wait_for(dir, &node.name)).await else {
        told_early();
        return Ok(());
    };
    let (tunables, map) = found?;
    // The manager says the same; here before anything of the pdisks is touched.
    if let Err(reason) = Build::own().check_level(map.level) {
        bail!("{} cannot be part of the cluster: {reason}", node.name);
    }
    tracing::info!("{} opens its pdisks", node.name);
    service::status("opens its pdisks");
    let queues = Queues::start(&tunables)?;
    let cluster = dir.file.cluster_id()?;
    let (mut pdisks, mut disks, mut left_out) = (Vec::new(), Vec::new(), None);
    // What a killed process has begun on them is waited for once, not for each.
    let begun = Instant::now();
    for p in &node.pdisks {
        let entry = map.pdisk(p.id);
        if entry.is_none_or(|entry| !entry.nodes.contains(&node.id)) {
            // `pdisk add` was interrupted: named in the file, not yet at the manager. Or it was removed from elsewhere.
            tracing::warn!("{} is in cluster.toml and not this node's in the cluster; it is left out", p.id);
            continue;
        }
        let path = dir.path.join(&p.dir);
        let mut options = open_options(&tunables, cluster, p.id);
        options.left_wait = options.left_wait.saturating_sub(begun.elapsed());
        let name = map.pdisk_called(p.id);
        let called = map.pdisk(p.id).map_or_else(|| p.id.to_string(), |pdisk| pdisk.name.clone());
        disks.push((called, path.clone()));
        let what = || format!("open {name} in {}", path.display());
        let (at, io) = (path.clone(), queues.io.clone());
        let opening = tokio::task::spawn_blocking(move || pdisk::Pdisk::open(&at, options, &io));
        let Some(opened) = stop.before(opening).await else { presence.end_process(close_all(pdisks).await) };
        match opened.with_context(what)? {
            Ok((pdisk, report)) => {
                tracing::info!("{name} in {} {}", path.display(), report.sentence());
                pdisks.push(nsd::ServedPdisk { id: p.id, pdisk, damaged: report.damaged.strip_ids() });
            }
            // One bad disk is no reason to take the node's others away: its strips are read from the rest.
            Err(error) if error.is_of_the_disk() => {
                let error = anyhow::Error::new(error).context(what());
                tracing::error!("left out, {} serves its other pdisks: {error:#}", node.name);
                left_out.get_or_insert(error);
            }
            Err(error) => return Err(error).with_context(what),
        }
    }
    if let Some(error) = left_out
        && pdisks.is_empty()
    {
        return Err(error);
    }
    let endpoint = early.or_else(|_| listen(dir, node))?;
    let called = map.node(node.id).map_or(&node.name, |entry| &entry.name);
    let running = admin::serve_admin(&endpoint, "nsd", called);
    running.history.keep(dir, &node.name, (called, "nsd"), None);
    let _ = running.queues.set(queues); // once
    let _ = running.disks.set(disks); // once
    tunables::follow(&endpoint, dir, Arc::clone(&running));
    let agent = lab_agent(dir);
    endpoint.serve(Service::Lab, agent.handler());
    let config = nsd::ServerConfig {
        node: node.id,
        process: ident::own_ident(),
        addrs: node.addr.texts(),
        pdisks: pdisks.clone(),
        manager: Arc::new(stripe::NetManager::new(endpoint.clone(), dir.managers.clone())),
        membership: stripe::MembershipConfig {
            renew_interval: tunables.lease_renew_interval(),
            ..stripe::MembershipConfig::default()
        },
        io: stripe::IoConfig::default(),
        tuning: nsd::Tuning { cache_bytes: admin::cache_bytes(&tunables), ..nsd::Tuning::default() },
    };
    // It may wait for the manager, and serves nothing before.
    let Some(started) = stop.before(nsd::Server::start(&endpoint, config)).await else {
        told_early();
        return close_all(pdisks).await;
    };
    let server = started.context("start the NSD server")?;
    server.set_pace(&tunables);
    let _ = running.nsd.set(server.clone()); // once
    presence.ready()?;
    tracing::info!("{} serves at {}", node.name, node.addr);
    stop.wait().await;
    agent.end().await;
    server.stop();
    close_all(pdisks).await
}

/// Its end of the network, which says what it knows of copies of the manager's store.
fn listen(dir: &ClusterDir, node: &NodeFile) -> Result<Endpoint> {
    let endpoint = endpoint::start_endpoint(dir, Role::Server, node.id, &node.addr)?;
    let ballots = manager::store::Ballots::new(dir.path.join(format!("copies-{}.votes", node.name)));
    callback::serve(&endpoint, move |body| ballots.answer(body));
    Ok(endpoint)
}

/// How long a disk may take to end what it is at when its server ends. Shorter than `down` waits.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Closes all pdisks at once. One that hangs holds up no other, and not the process's end for ever: what is not closed is
/// as after a crash, which the next open puts right.
async fn close_all(pdisks: Vec<nsd::ServedPdisk>) -> Result<()> {
    let ids: Vec<_> = pdisks.iter().map(|served| served.id).collect();
    let closing: Vec<_> = pdisks.into_iter().map(|served| tokio::spawn(served.pdisk.close())).collect();
    let until = tokio::time::Instant::now() + CLOSE_PATIENCE;
    let (mut failed, mut hangs) = (None, false);
    for (id, closing) in ids.into_iter().zip(closing) {
        match tokio::time::timeout_at(until, closing).await {
            Ok(closed) => {
                let closed = closed.map_err(anyhow::Error::new).and_then(|closed| Ok(closed?));
                failed = failed.or(closed.err().map(|error| error.context(format!("close {id}"))));
            }
            Err(_) => {
                hangs = true;
                tracing::error!(
                    "{id} has not ended its I/O within {CLOSE_PATIENCE:?}: it is left as after a crash"
                );
            }
        }
    }
    if hangs {
        // Its threads cannot be ended and would be waited for. The pid file stays: it says when the process is gone.
        std::process::exit(1);
    }
    failed.map_or(Ok(()), Err)
}

/// Takes part in the lab's runs on this cluster's mounts of this node.
fn lab_agent(dir: &ClusterDir) -> Arc<lab::agent::Agent> {
    let path = dir.path.clone();
    let mounts = move || ClusterDir::open(&path).map_or(Vec::new(), |dir| mounts::mounts_of(&dir));
    let offer = lab::agent::Offer::Mounts(Box::new(mounts));
    lab::agent::Agent::new(offer, dir.path.join("run"), std::env::current_exe().ok())
}
