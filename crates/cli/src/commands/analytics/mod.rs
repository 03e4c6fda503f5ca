//! `ropewalk analytics`: what every process of the cluster has recorded of each second, asked and put together.

mod ask;
mod export;
mod figures;
mod members;
mod names;
mod page;
mod params;
mod record;
mod show;
mod statistics;
pub mod worksheets;

use std::time::Duration;

use anyhow::{Result, bail};

pub use self::{
    ask::{Found, Span, Watch},
    figures::{latency, rate},
    page::{password, serve},
    record::record,
    statistics::{history, statistics},
    worksheets::worksheet,
};
use crate::{
    args::{AnalyticsExport, AnalyticsQuery, Asked},
    link, output,
};

const SECOND: Duration = Duration::from_secs(1);

/// `ropewalk analytics query`.
pub fn query(args: &AnalyticsQuery) -> Result<()> {
    let found = find(&args.asked, args.asked.step)?;
    if args.json {
        output::json(&show::json(&found))?;
    } else {
        output::line(show::text(&found));
    }
    found.all_answered()
}

/// `ropewalk analytics export`.
pub fn export(args: &AnalyticsExport) -> Result<()> {
    let found = find(&args.asked, Some(args.asked.step.unwrap_or(SECOND)))?;
    export::write(args, &found)?;
    found.all_answered()
}

fn find(asked: &Asked, step: Option<Duration>) -> Result<Found> {
    if step.is_some_and(|step| step < SECOND) {
        bail!("--step: what happened is recorded by the second: give 1s or more");
    }
    let step = step.map_or(0, |step| step.as_secs());
    if let Some(file) = &asked.recording {
        let watch = Watch::replay(file, 0.0)?;
        return link::run(put(watch, asked, step));
    }
    let dir = asked.dir.open()?;
    link::run(async { put(Watch::begin(&dir).await?, asked, step).await })
}

async fn put(mut watch: Watch, asked: &Asked, step: u64) -> Result<Found> {
    let span = Span::of(&asked.time, watch.now(), step)?;
    watch.ask(&asked.query, span, asked.rows).await
}
