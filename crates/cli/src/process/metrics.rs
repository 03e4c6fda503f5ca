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
