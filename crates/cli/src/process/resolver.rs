//! In the manager's process: stripes that a mount left half done when it died are resolved also if nobody mounts
//! the file system again. Their groups could not be moved until then.

use std::time::Duration;

use anyhow::Result;
use net::Endpoint;

use super::endpoint::{client_config, start_client_endpoint};
use crate::cluster_dir::ClusterDir;

/// How often it is looked for such file systems. One that was there twice is resolved: who mounts again at once
/// does it itself.
const LOOK: Duration = Duration::from_secs(5);
/// Bounds the waits: a mount that comes meanwhile waits for the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs until it is dropped.
pub async fn run(dir: &ClusterDir, manager: &manager::Manager) -> Result<()> {
    let endpoint = start_client_endpoint(dir)?;
    let mut seen = Vec::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = manager.unresolved().unwrap_or_default();
        for fs in now.iter().filter(|fs| seen.contains(*fs)) {
            if let Err(error) = resolve(dir, &endpoint, fs).await {
                tracing::warn!("what mounts of {fs} left is resolved later: {error:#}");
            }
        }
        seen = now;
    }
}

async fn resolve(dir: &ClusterDir, endpoint: &Endpoint, fs: &str) -> Result<()> {
    let mut config = client_config(dir, fs, "(resolves what a mount left)".to_owned(), endpoint);
    config.tunables.deadline = PATIENCE;
    Ok(client::resolve_unmounted(endpoint, config).await?)
}
