//! The manager's process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use net::Role;

use super::{admin, endpoint, joining::Door, presence::Presence, resolver, shut_out, stop::Stop, tunables};
use crate::cluster_dir::{ClusterDir, EtcdFile, host::host_name};

/// How long a manager waits for the store of one that was killed.
const STORE_WAIT: Duration = Duration::from_secs(5);

/// How long a standby that has taken over waits for its address.
const ADDRESS_WAIT: Duration = Duration::from_secs(20);

/// Opens the manager's store. The process that had it may be dead for all to see and still have threads that
/// hold the file: who restarts a killed manager at once waits for them.
///
/// `ROPEWALK_MANAGER_UNFLUSHED` is a seed, for tests: what the store has not flushed is lost when this process is killed.
async fn open_manager(dir: &ClusterDir, standby: bool) -> Result<manager::Manager> {
    let seed = std::env::var("ROPEWALK_MANAGER_UNFLUSHED").ok();
    let seed = seed.map(|seed| seed.parse().context("read ROPEWALK_MANAGER_UNFLUSHED")).transpose()?;
    let journal = dir.file.etcd.as_ref().map(|etcd| replicated(etcd, standby)).transpose()?;
    if standby && journal.is_none() {
        bail!(
            "--standby: the manager's journal is a file, which nobody else can follow (`ropewalk manager migrate` takes it into etcd)"
        );
    }
    let options = manager::Options {
        loses_unflushed: seed,
        journal,
        mirror: dir.mirror(),
        ..manager::Options::default()
    };
    let until = Instant::now() + STORE_WAIT;
    loop {
        let (path, options) = (dir.manager_dir(), options.clone());
        let opening = tokio::task::spawn_blocking(move || manager::Manager::open_with(&path, &options));
        match opening.await.context("open the manager's store")? {
            Err(error) if error.is_in_use() && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome.context("open the manager's store"),
        }
    }
}

fn replicated(etcd: &EtcdFile, standby: bool) -> Result<manager::Replicated> {
    let who = format!("process {} on {}", std::process::id(), host_name());
    Ok(manager::Replicated { place: etcd.place()?, who, standby })
}

/// Listens. Where a standby took over on the same machine, the one before may still be ending, and has the address.
async fn listen(dir: &ClusterDir, standby: bool) -> Result<net::Endpoint> {
    let until = Instant::now() + ADDRESS_WAIT;
    loop {
        match endpoint::start_endpoint(dir, Role::Manager, base::NodeId(0), &dir.file.manager) {
            Err(error) if standby && Instant::now() < until => {
                tracing::debug!("{error:#}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome,
        }
    }
}

/// How often those who ask for the authorities are told anew.
const TELL: Duration = Duration::from_secs(1);

/// Keeps what the manager says of the cluster's authorities as its process believes them.
async fn tell_authorities(manager: manager::Manager, endpoint: net::Endpoint) {
    loop {
        let believed: Vec<_> = endpoint.identity().believed().iter().map(|one| one.0).collect();
        let exchanging = believed.len() > 1;
        let others = if exchanging { endpoint.of_other_authorities() } else { Vec::new() };
        manager.set_authorities(believed, others);
        tokio::time::sleep(TELL).await;
    }
}

/// Until it is told to stop. A standby first follows the manager that leads, until that is gone.
pub async fn run(dir: &ClusterDir, presence: Presence, mut stop: Stop, standby: bool) -> Result<()> {
    let Some(manager) = stop.before(open_manager(dir, standby)).await else { presence.end_process(Ok(())) };
    let manager = manager?;
    shut_out::merge(dir, &manager).await?;
    tokio::spawn(shut_out::keep(dir.path.clone(), manager.clone()));
    let endpoint = listen(dir, standby).await?;
    let told = admin::serve_admin(&endpoint, "manager", "manager");
    let _ = told.manager.set(manager.clone()); // it was just made
    told.history.keep(dir, "manager", ("manager", "manager"), None);
    let running = manager.serve(&endpoint)?;
    let door = Arc::new(Door::new(dir, running.manager()));
    tokio::spawn(tell_authorities(running.manager().clone(), endpoint.clone()));
    endpoint.receive_visitors(Box::new(move |from, said| {
        let door = Arc::clone(&door);
        Box::pin(async move { door.answer(from, &said).await })
    }));
    tunables::follow(&endpoint, dir, told);
    presence.ready()?;
    tracing::info!("manager serves at {}", dir.file.manager);
    tokio::select! {
        // Neither arm holds state: the signal ends the process, and so does the store's failure.
        () = stop.wait() => {}
        error = running.failed() => bail!("the manager stops: {error}"),
        // What it is at is bounded by its session, which lapses.
        end = resolver::run(dir, running.manager()) => end?,
    }
    running.stop().await;
    Ok(())
}
