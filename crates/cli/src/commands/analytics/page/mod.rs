//! `ropewalk analytics serve`: the page, in a process of its own, which asks the cluster as any command does. So a fault
//! of the page, or who misuses it, touches no process that holds data, and it runs wherever a command can.
//! Read-only: there is GET and nothing else. Everything it shows is in the binary.

mod access;
mod api;
mod asking;
mod groups;
mod hardware;
mod listener;
mod live;
mod tls;

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, bail};
use axum::{Router, http::header, middleware, response::IntoResponse, routing::get};

pub use self::access::password;
use self::{
    access::Access,
    asking::{Asking, Place},
    listener::{Listener, Shown},
};
use super::ask::read;
use crate::{args::AnalyticsServe, cluster_dir::renewal, link, output, process::stop::Stop};

/// A file of the page: its path, its kind, its bytes.
type Asset = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        ($path, $kind, include_str!(concat!("../../../../assets/", $file)))
    };
}

const ASSETS: [Asset; 13] = [
    asset!("/", HTML, "index.html"),
    asset!("/icon.svg", "image/svg+xml", "icon.svg"),
    asset!("/page.css", STYLE, "page.css"),
    asset!("/page.js", SCRIPT, "page.js"),
    asset!("/chart.js", SCRIPT, "chart.js"),
    asset!("/lines.js", SCRIPT, "lines.js"),
    asset!("/heat.js", SCRIPT, "heat.js"),
    asset!("/compare.js", SCRIPT, "compare.js"),
    asset!("/hardware.js", SCRIPT, "hardware.js"),
    asset!("/redraw.js", SCRIPT, "redraw.js"),
    asset!("/words.js", SCRIPT, "words.js"),
    asset!("/uplot.js", SCRIPT, "uplot/uPlot.iife.min.js"),
    asset!("/uplot.css", STYLE, "uplot/uPlot.min.css"),
];

/// Serves the page until it is told to stop.
pub fn serve(args: &AnalyticsServe) -> Result<()> {
    // Who shows a recording elsewhere may have no cluster at all.
    let dir = match &args.recording {
        Some(_) => args.dir.open().ok(),
        None => Some(args.dir.open()?),
    };
    let sheets = dir.as_ref().map(|dir| dir.path.clone());
    let hash = sheets.as_ref().map_or(Ok(None), |dir| access::read(dir))?;
    let place = match (&args.recording, dir) {
        (None, Some(dir)) => Place::Cluster(Box::new(dir)),
        (None, None) => bail!("neither a cluster nor a recording is given"),
        (Some(file), _) => {
            Place::Recording { recording: read(file)?, speed: args.speed, begun: Instant::now() }
        }
    };
    if !args.listen.ip().is_loopback() && hash.is_none() {
        bail!(
            "--listen {}: whoever reaches it would see who does what; make a password first: ropewalk analytics password",
            args.listen
        );
    }
    link::run(async {
        let listener =
            listener::bind(args.listen).with_context(|| format!("--listen {}: listen", args.listen))?;
        let addr = listener.local_addr().context("the page's address")?;
        let (mut tls, mut known) = (None, None);
        if let Place::Cluster(dir) = &place
            && (args.tls || !addr.ip().is_loopback())
        {
            let (acceptor, fingerprint) =
                tls::acceptor(&dir.path, addr, &renewal::identity(&dir.machine()?)?)?;
            (tls, known) = (Some(acceptor), Some(fingerprint));
        }
        if tls.is_none() && (args.tls || !addr.ip().is_loopback()) {
            bail!("--listen {}: a recording is shown on a loopback address, without TLS", args.listen);
        }
        // Who cannot be asked is told here, not in the page.
        let asking = Arc::new(Asking::begin(place, sheets).await?);
        let access = Arc::new(Access::new(hash, Some(Arc::clone(&asking))));
        let mut stop = Stop::listen()?;
        output::line(format!("http{}://{addr}/", if tls.is_some() { "s" } else { "" }));
        if let Some(fingerprint) = known {
            output::note(&format!(
                "its certificate is its own: SHA-256 {fingerprint}, as the browser shows it"
            ));
        }
        let service = router(asking, access).into_make_service_with_connect_info::<Shown>();
        tokio::select! {
            // Requests under way are dropped: they only read.
            () = stop.wait() => Ok(()),
            ended = axum::serve(Listener::new(listener, tls), service) => ended.context("serve the page"),
        }
    })
}

fn router(asking: Arc<Asking>, access: Arc<Access>) -> Router {
    let mut router = Router::new();
    for (path, kind, text) in ASSETS {
        router =
            router.route(path, get(async move || ([(header::CONTENT_TYPE, kind)], text).into_response()));
    }
    router
        .route("/api/statistics", get(api::statistics))
        .route("/api/query", get(api::query))
        .route("/api/now", get(api::now))
        .route("/api/events", get(api::events))
        .route("/api/hardware", get(hardware::hardware))
        .route("/api/worksheets", get(api::worksheets))
        .route("/api/live", get(live::live))
        .with_state(asking)
        .layer(middleware::from_fn_with_state(access, access::check))
}
