//! `ropewalk analytics`: what every process of the cluster has recorded of each second, asked and put together.

mod ask;
mod export;
mod names;
mod page;
mod params;
mod show;
mod statistics;
pub mod worksheets;

use std::time::Duration;

use anyhow::{Result, bail};

pub use self::{
    ask::{Found, Span, Watch},
    page::{password, serve},
    show::{latency, rate},
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
    let (from, to) = (asked.from.as_secs(), asked.to.as_secs());
    if from <= to {
        bail!(
            "--from {from} seconds ago is not before --to {to} seconds ago: give --from the greater number, as in --from -5m"
        );
    }
    if step.is_some_and(|step| step < SECOND) {
        bail!("--step: what happened is recorded by the second: give 1s or more");
    }
    let span = Span { from_ago: from, to_ago: to, step: step.map_or(0, |step| step.as_secs()) };
    let dir = asked.dir.open()?;
    link::run(async {
        let mut watch = Watch::begin(&dir).await?;
        watch.ask(&asked.query, span, asked.rows).await
    })
}
