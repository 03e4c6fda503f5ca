//! `ropewalk lab net-figures`.

use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use lab::netfigures::{Figure, Group, Settings, measure};

use crate::{args::NetFigures, output};

/// Measures the groups asked for; a figure that is not reached is a failure.
pub fn figures(args: &NetFigures) -> Result<()> {
    let groups = if args.groups.is_empty() { Group::ALL.to_vec() } else { args.groups.clone() };
    if !(0.2..=3600.0).contains(&args.seconds) {
        bail!("{} seconds a run: allowed are 0.2 to 3600", args.seconds);
    }
    let settings = Settings {
        program: std::env::current_exe().context("find this program's own file")?,
        runs: args.runs,
        seconds: args.seconds,
        seed: args.seed.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos() as u64)),
    };
    let bar = output::spinner("");
    let mut figures: Vec<Figure> = Vec::new();
    for group in groups {
        let measured = measure(group, &settings, &mut |what| bar.set_message(what.to_owned()));
        let measured = measured.with_context(|| format!("figures {}", group.name()))?;
        if !args.json {
            bar.suspend(|| measured.iter().for_each(show));
        }
        figures.extend(measured);
    }
    bar.finish_and_clear();
    if args.json {
        output::json(&figures)?;
    }
    let missed = figures.iter().filter(|f| f.reached == Some(false)).count();
    if missed > 0 {
        bail!(
            "{missed} of {} figures are not reached",
            figures.iter().filter(|f| f.reached.is_some()).count()
        );
    }
    Ok(())
}

fn show(figure: &Figure) {
    let verdict = match figure.reached {
        Some(true) => "reached",
        Some(false) => "NOT reached",
        None => "shown",
    };
    output::line(format!("{} [{}] {verdict}", figure.case, figure.group));
    output::line(format!("  wanted: {}", figure.wanted));
    output::line(format!("  seen:   {}", figure.seen));
    output::line(format!("  raw:    {}", figure.raw));
    for run in figure.runs.iter().filter(|r| figure.reached == Some(false) || r.errors > 0) {
        output::line(format!(
            "    {}: {:.2} (raw {:.2}), {} links used, {} failed, {:.1} % CPU stolen {}",
            run.drawn, run.seen, run.raw, run.links_used, run.errors, run.stolen_percent, run.says
        ));
    }
}
