//! `ropewalk analytics`: what every process of the cluster has recorded of each second, asked and put together.

mod ask;
mod chart;
mod export;
mod figures;
mod filters;
mod members;
mod names;
mod page;
mod params;
mod printable;
mod record;
mod show;
mod statistics;
pub mod worksheets;

use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use self::{
    ask::{Found, Span, Watch, read},
    figures::{latency, rate},
    page::{password, serve},
    record::record,
    statistics::{history, statistics},
};
use self::{export::Sheet, worksheets::Worksheet};
use crate::{
    args::{self, AnalyticsExport, AnalyticsQuery, Asked, ExportFormat, Time, When, WorksheetExport},
    link, output,
};

const SECOND: Duration = Duration::from_secs(1);

/// Seconds that a worksheet of the present shows, as the page does.
const PRESENT: u64 = 300;

/// `ropewalk analytics query`.
pub fn query(args: &AnalyticsQuery) -> Result<()> {
    let step = step(args.asked.step)?.unwrap_or(0);
    let (found, _) = link::run(find(&args.asked, |_| step))?;
    if args.json {
        output::json(&show::json(&found))?;
    } else {
        output::line(show::text(&found));
    }
    found.all_answered()
}

/// `ropewalk analytics export`.
pub fn export(args: &AnalyticsExport) -> Result<()> {
    let given = step(args.asked.step)?;
    let looked_at = export::form(&args.to) == ExportFormat::Html;
    let usual = |seconds| if looked_at { export::step(seconds) } else { 1 };
    let sheet = link::run(async {
        let (found, watch) = find(&args.asked, |seconds| given.unwrap_or_else(|| usual(seconds))).await?;
        Ok(Sheet { name: None, charts: vec![found], marks: Vec::new() }.with_events(&watch).await)
    })?;
    sheet.write(&args.to)?;
    sheet.all_answered()
}

/// `ropewalk analytics worksheet ...`.
pub fn worksheet(command: &args::Worksheet) -> Result<()> {
    match command {
        args::Worksheet::Export(args) => export_worksheet(args),
        other => worksheets::worksheet(other),
    }
}

fn export_worksheet(args: &WorksheetExport) -> Result<()> {
    let dir = args.dir.open()?;
    let Worksheet { name, charts, mut from_at_us, mut to_at_us, marks } = worksheets::find(&dir, &args.name)?;
    let given = step(args.step)?;
    let sheet = link::run(async {
        let mut watch = match &args.recording {
            Some(file) => Watch::recorded(file)?,
            None => Watch::begin(&dir).await?,
        };
        let now = watch.now();
        if let Some(begins) = watch.begins() {
            // All of it, whatever time the worksheet was made for.
            (from_at_us, to_at_us) = (i64::try_from(begins * 1_000_000).ok(), None);
        }
        let at = |us: Option<i64>| us.map(|us| When::At(u64::try_from(us / 1_000_000).unwrap_or(0).min(now)));
        let from = args.from.or(at(from_at_us)).unwrap_or(When::Ago(PRESENT));
        // Of a time that ends within a second, that second.
        let to = args.to.or(at(to_at_us.map(|us| us + 999_999))).unwrap_or(When::Ago(0));
        let span = Span::of(&Time { from, to }, now, 0)?;
        let step = given.unwrap_or_else(|| export::step(span.from_ago - span.to_ago));
        let mut sheet = Sheet { name: Some(name), charts: Vec::new(), marks };
        for chart in &charts {
            // As time passes it is longer ago.
            let later = watch.now() - now;
            let span = Span { from_ago: span.from_ago + later, to_ago: span.to_ago + later, step, ..span };
            sheet.charts.push(watch.ask(chart, span, args.rows).await.with_context(|| chart.clone())?);
        }
        Ok(sheet.with_events(&watch).await)
    })?;
    sheet.write(&args.to_file)?;
    sheet.all_answered()
}

/// The step that is given, in seconds.
fn step(given: Option<Duration>) -> Result<Option<u64>> {
    if given.is_some_and(|step| step < SECOND) {
        bail!("--step: what happened is recorded by the second: give 1s or more");
    }
    Ok(given.map(|step| step.as_secs()))
}

/// Asks, in steps by the length of the time; and whom.
async fn find(asked: &Asked, step: impl FnOnce(u64) -> u64) -> Result<(Found, Watch)> {
    let mut watch = match &asked.recording {
        Some(file) => Watch::recorded(file)?,
        None => Watch::begin(&asked.dir.open()?).await?,
    };
    let span = Span::of(&asked.time, watch.now(), 0)?;
    let span = Span { step: step(span.from_ago - span.to_ago), ..span };
    let found = watch.ask(&asked.query, span, asked.rows).await?;
    Ok((found, watch))
}
