//! The Prometheus endpoint of a process: GET /metrics on the address of `--metrics`.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::{Router, http::header, routing::get};

/// Serves until the process ends.
pub async fn serve(addr: SocketAddr) -> Result<()> {
    let listener =
        tokio::net::TcpListener::bind(addr).await.with_context(|| format!("--metrics {addr}: listen"))?;
    let text = || async {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], base::stats::registry().prometheus_text())
    };
    let app = Router::new().route("/metrics", get(text));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!("metrics endpoint ended: {error}");
        }
    });
    Ok(())
}
