//! A run worked out: each series with its bounds, its verdict and a second witness of its payload.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    choices::{Gave, choices},
    crossing::{Crossing, crossings},
    numbers::show,
    seen,
};
use crate::{
    calibrate::Machine,
    cell::Record,
    engine,
    expect::{self, Analysis, Point},
    observe::LinkUse,
    plan::{Figure, Series},
    results::{PlannedRun, Run},
    standin,
    verdict::{self, Verdict},
    workload::{self, Summary},
};

/// Links and disks that together move less than this part of the payload had no part in it.
const CACHED: f64 = 0.01;

/// A run, held against what its parts promise.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// What was run, where.
    pub run: Run,
    /// Each plan.
    pub plans: Vec<PlanReport>,
}

/// One plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanReport {
    /// The plan and its targets.
    pub planned: PlannedRun,
    /// Each series that has points.
    pub series: Vec<SeriesReport>,
    /// What the values of the picked parameter gave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Where two of those values cross along a key of sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crossings: Vec<Crossing>,
    /// What was not measured, or not right.
    pub missing: Vec<Missing>,
}

/// What was not measured, or not right, and why.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Missing {
    /// The cell that failed; none where there was nothing to measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Why.
    pub why: String,
    /// Where one sees what the clusters under test did during the cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.cell.iter().try_for_each(|cell| write!(f, "{cell}: "))?;
        f.write_str(&self.why)
    }
}

/// One series.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SeriesReport {
    /// The series.
    pub series: Series,
    /// Its points and bounds.
    pub analysis: Analysis,
    /// What limits it; absent without points.
    pub verdict: Option<Verdict>,
    /// Payload against the counters of links and disks, a second witness.
    pub cross_check: Vec<String>,
    /// The jobs of the workload, for each of its points.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobsReport>,
    /// The records of its points, in their order; a record with seconds in it stands for several points.
    pub records: Vec<Record>,
    /// Where one sees what the clusters under test did meanwhile, by names of these records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub seen: BTreeMap<String, String>,
}

impl SeriesReport {
    /// The point that the verdict is about.
    pub fn judged(&self) -> Option<&Point> {
        let step = self.verdict.as_ref()?.step;
        self.analysis.points.iter().find(|point| point.step == step)
    }

    /// Where one sees what was done during a point's cell.
    pub fn seen_at(&self, point: &Point) -> Option<&str> {
        self.seen.get(&point.record).map(String::as_str)
    }
}

/// All jobs of the workload at one step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JobsReport {
    /// Client nodes.
    pub step: u32,
    /// CPUs of the machine that the run may use.
    pub cpus: u32,
    /// Part of them that was busy.
    pub busy: f64,
    /// What the jobs say together.
    pub summary: Summary,
}

/// The jobs of a series' points.
fn jobs(records: &[Record], machine: &Machine) -> Vec<JobsReport> {
    let of = |record: &Record| {
        let jobs = &record.figures.as_ref().filter(|figures| !figures.jobs.is_empty())?.jobs;
        let factor = record.cell.params.get("cpu_factor").and_then(|value| value.parse().ok()).unwrap_or(1.0);
        let busy = record.usage.busy_cpus() / f64::from(machine.cpus.max(1));
        Some(JobsReport {
            step: record.cell.step,
            cpus: machine.cpus,
            busy,
            summary: workload::summarise(jobs, factor),
        })
    };
    records.iter().filter_map(of).collect()
}

/// Works a run out. `records` are as [`crate::results::read`] gives them.
pub fn build(run: &Run, records: &[Record]) -> Report {
    let plans = run.plans.iter().map(|planned| plan(planned, run, records)).collect();
    Report { run: run.clone(), plans }
}

fn plan(planned: &PlannedRun, run: &Run, records: &[Record]) -> PlanReport {
    let own: Vec<Record> = records.iter().filter(|r| r.cell.plan == planned.plan.name).cloned().collect();
    // Bounds from other series need their best point first; those have no bounds from others.
    let best = |begins: &str| {
        let named = planned.plan.series.iter().filter(|s| s.name.starts_with(begins));
        let values = named.flat_map(|series| {
            own.iter().filter(|r| r.cell.series == series.name).filter_map(|r| r.value(series.figure))
        });
        values.reduce(f64::max)
    };
    let mut missing = Vec::new();
    let mut series = Vec::new();
    for one in &planned.plan.series {
        let analysis = expect::analyse(planned, one, &own, &run.machine, &best);
        let failed = |record: &Record| {
            let why = record.error.clone()?;
            let seen = run.seen.as_ref().map(|seen| seen::at(seen, record));
            Some(Missing { cell: Some(record.id.clone()), why, seen })
        };
        missing.extend(own.iter().filter(|r| r.cell.series == one.name).filter_map(failed));
        if analysis.points.is_empty() {
            // What a machine cannot show at all is said once.
            let why = match one.absent(run.environment.numa_nodes) {
                Some(why) => why.to_owned(),
                None => format!("{}: not measured: no target for it, or the run was stopped", one.name),
            };
            let line = Missing { cell: None, why, seen: None };
            if !missing.contains(&line) {
                missing.push(line);
            }
            continue;
        }
        let of_series: Vec<Record> = own.iter().filter(|r| r.cell.series == one.name).cloned().collect();
        let (of, links) = (planned.plan.step, bundle(planned, &of_series));
        let judged = verdict::judged(of, &analysis).into_iter().filter_map(|point| {
            let capacity = |link: &str, record: &Record| capacity(planned, run, one, link, record);
            verdict::evidence(of, &analysis, point, &of_series, &run.machine, &links, &capacity)
        });
        let verdict = verdict::first_known(judged.map(|evidence| verdict::judge(&evidence)));
        let wanted: Vec<&String> = analysis.points.iter().map(|point| &point.record).collect();
        let last = analysis.points.last().and_then(|p| of_series.iter().find(|r| r.id == p.record));
        let mut cross_check = last.map(|r| cross_check(r, planned.plan.seconds)).unwrap_or_default();
        cross_check.extend(last.and_then(|r| effort(r, one.figure)));
        let records: Vec<Record> = of_series.into_iter().filter(|r| wanted.contains(&&r.id)).collect();
        let jobs = jobs(&records, &run.machine);
        let seen = run.seen.iter().flat_map(|seen| records.iter().map(|r| (r.id.clone(), seen::at(seen, r))));
        let seen = seen.collect();
        series.push(SeriesReport {
            series: one.clone(),
            analysis,
            verdict,
            cross_check,
            jobs,
            records,
            seen,
        });
    }
    let best = |one: &SeriesReport| one.analysis.points.iter().map(|p| p.measured).fold(0.0, f64::max);
    let gave: Vec<Gave<'_>> = series
        .iter()
        .map(|one| Gave {
            series: &one.series,
            best: best(one),
            noise: one.analysis.noise,
            doubtful: one.verdict.as_ref().is_some_and(|verdict| verdict.doubtful),
        })
        .collect();
    let crossings = crossings(&planned.plan, &gave);
    let mut choices = choices(&planned.plan, &gave);
    choices.extend(crossings.iter().map(Crossing::to_string));
    PlanReport { planned: planned.clone(), series, choices, crossings, missing }
}

/// What the load took of the machine: operations for each percent of a CPU, and interrupts.
fn effort(record: &Record, figure: Figure) -> Option<String> {
    let figures = record.figures.as_ref().filter(|f| figure == Figure::Operations && f.operations > 0.0)?;
    let usage = &record.usage;
    let percents = (usage.busy_cpus() - usage.foreign_cpus) * 100.0;
    (percents >= 1.0 && usage.interrupts > 0.0).then(|| {
        format!(
            "{} for each percent of a CPU, {} interrupts, {:.2} for each operation",
            show(figure, figures.operations / percents),
            show(figure, usage.interrupts),
            usage.interrupts / figures.operations
        )
    })
}

/// What links and disks moved for the payload of a cell. Less than the payload on all of them means that caches
/// took part, or that the counters do not see the traffic; more is headers, redundancy, journals.
fn cross_check(record: &Record, seconds: f64) -> Vec<String> {
    let Some(figures) = &record.figures else { return Vec::new() };
    let payload = match figures.timeline.is_empty() {
        true => figures.bytes,
        // Counters are medians over the last periods, so the payload is one as well.
        false => {
            let last = figures.timeline.iter().rev().take(engine::patience(&record.cell));
            let rates: Vec<f64> = last.map(|s| s.operations as f64 / seconds).collect();
            crate::observe::median(&rates) * figures.bytes / figures.operations.max(f64::MIN_POSITIVE)
        }
    };
    if payload <= 0.0 {
        return Vec::new();
    }
    let links = record.usage.links.iter().map(|link| (link.name.as_str(), link.rx.max(link.tx)));
    let devices = record.usage.devices.iter().map(|device| (device.name.as_str(), device.bytes));
    let line = |(name, moved): (&str, f64)| {
        let (moved_text, payload_text) = (show(Figure::Bytes, moved), show(Figure::Bytes, payload));
        format!("{name} moved {moved_text}, {:.2} times the payload of {payload_text}", moved / payload)
    };
    let busy = |(_, moved): &(&str, f64)| *moved > 0.05 * payload;
    let (mut links, devices): (Vec<_>, Vec<_>) =
        (links.filter(busy).collect(), devices.filter(busy).collect());
    let mut lines = Vec::new();
    if links.len() > 1 {
        // Each byte on a wire is sent once, whatever passes it on.
        let sent = record.usage.links.iter().map(|link| link.tx).sum();
        lines.push(line(("all links together", sent)));
        links.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    let shown = links.len().min(2);
    lines.extend(links[..shown].iter().chain(devices.iter().take(4)).copied().map(line));
    if links.len() > shown {
        let (more, least) = (links.len() - shown, links.last().map_or(0.0, |link| link.1));
        lines.push(format!("{more} more links moved less, the least {}", show(Figure::Bytes, least)));
    }
    // That nothing but memory gave it is proven by what all that was watched moved together, or not at all.
    let cached = record.cell.params.get("cached").is_some_and(|value| value == "true");
    if cached && record.usage.intervals > 0 {
        // All traffic of a cluster of the run's own is in its namespace; elsewhere others may use the links too.
        let all = &record.usage.links;
        let own = |link: &&LinkUse| link.name.starts_with("ropewalk-lab-");
        let links: f64 = match all.iter().any(|link| own(&link)) {
            true => all.iter().filter(own).map(|link| link.tx).sum(),
            false => all.iter().map(|link| link.tx).sum(),
        };
        let disks: f64 = record.usage.devices.iter().map(|device| device.bytes).sum();
        let part = (links + disks) / payload;
        let moved = format!("links and disks together moved {:.1} % of the payload", part * 100.0);
        let line = match part < CACHED {
            true => format!("all of it came from memory: {moved}"),
            false => {
                format!("it is not proven that all came from memory: {moved}, for this load or for others")
            }
        };
        lines.insert(0, line);
        return lines;
    }
    if lines.is_empty() && record.usage.intervals > 0 {
        let payload = show(Figure::Bytes, payload);
        return vec![format!(
            "no link and no disk moved a twentieth of the payload of {payload}: it came from caches"
        )];
    }
    lines
}

/// Bytes a second that a link can carry, where that is known: what a stand-in was set to, else what its driver tells.
fn capacity(planned: &PlannedRun, run: &Run, one: &Series, link: &str, record: &Record) -> Option<f64> {
    let targets = &planned.targets;
    let own = targets.pairs_stand_in || (targets.dirs.is_empty() && targets.agents.addrs.is_empty());
    let mbit: f64 = match link.split_once('/') {
        Some(_) if own => {
            let speed = record.cell.params.get("speed")?.parse().ok()?;
            standin::capacity(&planned.plan, one.engine, link, speed)? as f64
        }
        Some(_) => return None,
        None => run.environment.links.get(link)?.split_once(" Mbit/s")?.0.parse().ok()?,
    };
    Some(mbit * 1e6 / 8.0)
}

/// The links that a series' connections should spread over: those of its own testbed, else those named.
fn bundle(planned: &PlannedRun, records: &[Record]) -> Vec<String> {
    let own: Vec<String> = records.iter().flat_map(|r| r.bundle.iter().cloned()).collect();
    let mut links = if own.is_empty() { planned.targets.links.clone() } else { own };
    links.sort();
    links.dedup();
    links
}
