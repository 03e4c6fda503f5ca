//! In the manager's process: stripes that a mount left half done when it died are resolved also if nobody who may write mounts
//! the file system again. Their groups could not be moved until then, and who may only read waits for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base::beat;
use manager::Manager;
use net::Endpoint;
use wire::map::FsEntry;

use super::{
    admin,
    endpoint::{client_config, start_client_endpoint},
};
use crate::cluster_dir::ClusterDir;

/// How often it is looked for such file systems. One that was there twice is resolved: who mounts again at once
/// does it itself.
const LOOK: Duration = Duration::from_secs(5);
/// Bounds the waits: a mount that comes meanwhile waits for the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What its sessions are called where a mount has its mount point.
const NAME: &str = "(resolves what a mount left)";

/// How often it is looked whether all is resolved.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until it is dropped.
pub async fn run(dir: &ClusterDir, manager: &Manager) -> Result<()> {
    let endpoint = start_client_endpoint(dir)?;
    // While it has a session it is asked as other mounts are.
    admin::serve_admin(&endpoint, "client", NAME);
    let mut seen = Vec::new();
    loop {
        tokio::time::sleep_until(beat::by(Instant::now(), LOOK).into()).await;
        let now = manager.unresolved().unwrap_or_default();
        for fs in now.iter().filter(|fs| seen.contains(*fs)) {
            if let Err(error) = resolve(dir, &endpoint, manager, fs).await {
                tracing::warn!("what mounts of {} left is resolved later: {error:#}", fs.name);
            }
        }
        seen = now;
    }
}

async fn resolve(dir: &ClusterDir, endpoint: &Endpoint, manager: &Manager, fs: &FsEntry) -> Result<()> {
    let mut config = client_config(dir, &fs.name, NAME.to_owned(), endpoint);
    config.tunables.deadline = PATIENCE;
    if manager.map().borrow().clients.iter().all(|client| client.fs != fs.id) {
        return Ok(client::resolve_unmounted(endpoint, config).await?);
    }
    // Those that are there only read: the manager gives the work to a session that may write.
    let client = client::Client::mount(endpoint, config).await?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && manager.is_unresolved(fs.id).unwrap_or(true) {
        tokio::time::sleep(PAUSE).await;
    }
    client.shutdown(Instant::now() + PATIENCE).await.context("end the session that resolves")
}
