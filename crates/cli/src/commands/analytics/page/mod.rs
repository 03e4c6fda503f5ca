//! `ropewalk analytics serve`: the page, in a process of its own, which asks the cluster as any command does. So a fault
//! of the page, or who misuses it, touches no process that holds data, and it runs wherever a command can. At the address that
//! `cluster.toml` remembers it is one of the cluster's processes, which `up` begins and `down` ends.
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
use crate::{
    args::{AnalyticsServe, PAGE_ADDR},
    cluster_dir::{PAGE, access::close_what_is_made, page, renewal},
    link, output,
    process::{presence::Presence, stop::Stop},
};

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
    let hash = sheets.as_ref().map_or(Ok(None), |dir| page::password(dir))?;
    let place = match (&args.recording, dir) {
        (None, Some(dir)) => Place::Cluster(Box::new(dir)),
        (None, None) => bail!("neither a cluster nor a recording is given"),
        (Some(file), _) => {
            Place::Recording { recording: read(file)?, speed: args.speed, begun: Instant::now() }
        }
    };
    let remembered = match &place {
        Place::Cluster(dir) => dir.file.analytics,
        Place::Recording { .. } => None,
    };
    let listen = args.listen.0.or(remembered).unwrap_or(PAGE_ADDR);
    if !listen.ip().is_loopback() && hash.is_none() {
        bail!(
            "--listen {listen}: whoever reaches it would see who does what; make a password first: ropewalk analytics password"
        );
    }
    link::run(async {
        // Before its pid file is there, which a signal that nobody listens for would leave.
        let mut stop = Stop::listen()?;
        let presence = match &place {
            Place::Cluster(dir) if remembered == Some(listen) => {
                close_what_is_made();
                Some(Presence::claim(dir, PAGE)?)
            }
            _ => None,
        };
        let listener = listener::bind(listen).with_context(|| format!("--listen {listen}: listen"))?;
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
            bail!("--listen {listen}: a recording is shown on a loopback address, without TLS");
        }
        let asking = Arc::new(Asking::new(place, sheets));
        match (stop.before(asking.look()).await, &presence) {
            (None, _) => return Ok(()),
            // As the other processes of the cluster it waits for the manager: until then the page says why it shows nothing.
            (Some(Err(error)), Some(_)) => tracing::error!("{error:#}"),
            // Who cannot be asked is told here, not in the page.
            (Some(asked), _) => asked?,
        }
        let access = Arc::new(Access::new(hash, Some(Arc::clone(&asking))));
        // As a process of the cluster it is found by its files.
        if !output::announce(page::url(addr, tls.is_some())) && presence.is_none() {
            return Ok(());
        }
        if let Some(fingerprint) = known {
            output::note(&page::told(fingerprint));
        }
        if let Some(presence) = &presence {
            presence.ready()?;
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
