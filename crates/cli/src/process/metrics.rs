//! The Prometheus endpoint of a process: GET /metrics on the address of `--metrics`, as text or as
//! OpenMetrics, whichever is asked for.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{HeaderMap, header},
    routing::get,
};
use base::stats::Form;

use super::mounts;
use crate::cluster_dir::ClusterDir;

/// Where a process shows its metrics if it is not told: from the address in `cluster.toml` on a port for each, in the order of
/// [`ClusterDir::servers`], and then for the mount that is remembered.
pub fn address(dir: &ClusterDir, process: &str) -> Option<SocketAddr> {
    let first = dir.file.metrics?;
    let names = dir.server_names();
    let mount = dir.file.mount.as_deref().map(mounts::process_name);
    let at = names.iter().chain(&mount).position(|name| name == process)?;
    let port = first.port().checked_add(u16::try_from(at).ok()?)?;
    Some(SocketAddr::new(first.ip(), port))
}

/// Serves until the process ends.
pub async fn serve(addr: SocketAddr) -> Result<()> {
    let listener =
        tokio::net::TcpListener::bind(addr).await.with_context(|| format!("--metrics {addr}: listen"))?;
    let text = async |headers: HeaderMap| {
        let wanted = headers.get(header::ACCEPT).and_then(|wanted| wanted.to_str().ok()).unwrap_or_default();
        let (form, kind) = match wanted.contains("application/openmetrics-text") {
            true => (Form::OpenMetrics, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
            false => (Form::Prometheus, "text/plain; version=0.0.4"),
        };
        ([(header::CONTENT_TYPE, kind)], base::stats::registry().prometheus_text(form))
    };
    let app = Router::new().route("/metrics", get(text));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!("metrics endpoint ended: {error}");
        }
    });
    Ok(())
}
