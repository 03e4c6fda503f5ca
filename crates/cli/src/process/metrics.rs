//! The Prometheus endpoint of a process: GET /metrics on the address of `--metrics`, as text or as
//! OpenMetrics, whichever is asked for.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{HeaderMap, header},
    routing::get,
};
use base::stats::Form;
use tokio::net::TcpListener;

use super::{mounts, tcp_ports};
use crate::cluster_dir::ClusterDir;

/// How long it waits for a port that is taken before it looks again.
const AGAIN: Duration = Duration::from_secs(1);

/// Where a process shows its metrics if it is not told: from the address in `cluster.toml` on a port for each, in the order of
/// [`ClusterDir::servers`], and then for the mount that is remembered.
fn address(dir: &ClusterDir, process: &str) -> Option<SocketAddr> {
    let first = dir.file.metrics?;
    let names = dir.server_names();
    let mount = dir.file.mount.as_deref().map(mounts::process_name);
    let at = names.iter().chain(&mount).position(|name| name == process)?;
    tcp_ports::nth(first, at)
}

/// Shows them until the process ends, where it is `told` to, or where the file says. A port of the file that is taken keeps nobody
/// from his work: it may be that of another process here whose turn it was before, and is waited for.
pub async fn begin(dir: &ClusterDir, process: &str, told: Option<SocketAddr>) -> Result<()> {
    if let Some(addr) = told {
        serve(TcpListener::bind(addr).await.with_context(|| format!("--metrics {addr}: listen"))?);
    } else if let Some(addr) = address(dir, process) {
        if let Some(other) = tcp_ports::server_at(dir, addr) {
            tracing::error!(
                "no metrics are shown: {addr} is that of {other}; give `ropewalk up` others with --metrics"
            );
            return Ok(());
        }
        match TcpListener::bind(addr).await {
            Ok(listener) => serve(listener),
            Err(error) => {
                tracing::error!("no metrics are shown while {addr} cannot be had: {error}");
                tokio::spawn(async move {
                    loop {
                        tokio::time::sleep(AGAIN).await;
                        if let Ok(listener) = TcpListener::bind(addr).await {
                            return serve(listener);
                        }
                    }
                });
            }
        }
    }
    Ok(())
}

fn serve(listener: TcpListener) {
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
}
