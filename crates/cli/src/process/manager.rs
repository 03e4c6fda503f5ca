//! The manager's process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use net::Role;

use super::{admin, endpoint, joining::Door, presence::Presence, resolver, shut_out, stop::Stop, tunables};
use crate::cluster_dir::ClusterDir;

/// How long a manager waits for the store of one that was killed.
const STORE_WAIT: Duration = Duration::from_secs(5);

/// Opens the manager's store. The process that had it may be dead for all to see and still have threads that
/// hold the file: who restarts a killed manager at once waits for them.
///
/// `ROPEWALK_MANAGER_UNFLUSHED` is a seed, for tests: what the store has not flushed is lost when this process is killed.
async fn open_manager(dir: &ClusterDir) -> Result<manager::Manager> {
    let seed = std::env::var("ROPEWALK_MANAGER_UNFLUSHED").ok();
    let seed = seed.map(|seed| seed.parse().context("read ROPEWALK_MANAGER_UNFLUSHED")).transpose()?;
    let options = manager::Options { loses_unflushed: seed, ..manager::Options::default() };
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

/// Until it is told to stop.
pub async fn run(dir: &ClusterDir, presence: Presence, mut stop: Stop) -> Result<()> {
    let Some(manager) = stop.before(open_manager(dir)).await else { presence.end_process(Ok(())) };
    let manager = manager?;
    shut_out::merge(dir, &manager).await?;
    tokio::spawn(shut_out::keep(dir.path.clone(), manager.clone()));
    let endpoint = endpoint::start_endpoint(dir, Role::Manager, base::NodeId(0), &dir.file.manager)?;
    let told = admin::serve_admin(&endpoint, "manager", "manager");
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
