//! `ropewalk analytics`: what every process of the cluster has recorded of each second, asked and put together.

mod ask;
mod names;
mod show;
mod statistics;

use std::time::Duration;

use anyhow::{Result, bail};

pub use self::{
    ask::{Found, Span, Watch},
    show::{latency, rate},
    statistics::{history, statistics},
};
use crate::{args::AnalyticsQuery, link, output};

/// `ropewalk analytics query`.
pub fn query(args: &AnalyticsQuery) -> Result<()> {
    let (from, to) = (args.from.as_secs(), args.to.as_secs());
    if from <= to {
        bail!(
            "--from {from} seconds ago is not before --to {to} seconds ago: give --from the greater number, as in --from -5m"
        );
    }
    if args.step.is_some_and(|step| step < Duration::from_secs(1)) {
        bail!("--step: what happened is recorded by the second: give 1s or more");
    }
    let span = Span { from_ago: from, to_ago: to, step: args.step.map_or(0, |step| step.as_secs()) };
    let dir = args.listing.dir.open()?;
    let found = link::run(async {
        let mut watch = Watch::begin(&dir).await?;
        watch.ask(&args.query, span, args.rows).await
    })?;
    if args.listing.json {
        output::json(&show::json(&found))?;
    } else {
        output::line(show::text(&found));
    }
    found.all_answered()
}
