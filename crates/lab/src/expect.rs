//! The expected maximum: what the single parts promise, layer by layer, and how close each point comes.
//! Pure: records in, lines out.
//!
//! * parts: the sum over the parts of the best single result of their kind (FACTS D-06); for parts without names,
//!   such as connections, n times the best that one gave in the first three steps;
//! * CPU: the CPUs the run may use times what "full" means here, by the least CPU time an operation took at the
//!   first step (what other programs used is left out);
//! * memory: one copy of every byte by all CPUs;
//! * the link of a set speed that all traffic of a cluster of the run's own shares, by what a byte takes of it;
//! * what other series measured, where the plan says so: a link, twice a link.
//!
//! Efficiency is measured by the parts' sum; incremental efficiency is what a step adds by what it promises to add.
//! The knee is the last step before the steps give less than half of what they promise.

pub mod line;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    calibrate::Machine,
    cell::{Record, Role},
    engine::{self, EngineKind},
    observe::median,
    plan::{Figure, Params, Series, Step},
    results::PlannedRun,
    targets::Device,
};
pub use line::Fit;

/// A step adds less than this part of what it promises: the knee is before it.
pub const KNEE: f64 = 0.5;
/// Noise that is assumed where nothing was measured twice.
pub const NOISE_ASSUMED: f64 = 0.05;

/// What was reached proves an estimate wrong that is less than this part of it.
const ESTIMATED: f64 = 0.9;

/// A link that moved less than this part of the payload had no part in it.
const LITTLE: f64 = 0.05;

/// How the names of namespaces begin in which clusters of a run's own are.
pub(crate) const OWN_NAMESPACE: &str = "ropewalk-lab-";

/// Steps whose best value for each part stands for one part alone, where parts have no names.
const SINGLES: usize = 3;

/// One part by itself.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Alone {
    /// Its name.
    pub name: String,
    /// Parts of a kind are expected to do the same.
    pub kind: String,
    /// The disk it stands on, if it is a file on one.
    pub on: Option<String>,
    /// How much it holds, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What it gave alone, in the figure's unit; absent if it was not measured.
    pub alone: Option<f64>,
    /// The best alone of its kind.
    pub best_of_kind: f64,
}

/// A bound by one layer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bound {
    /// The layer.
    pub layer: String,
    /// The most it allows, in the figure's unit.
    pub value: f64,
}

/// One step of a series.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// How many parts.
    pub step: u32,
    /// What its best combination reached, in the figure's unit.
    pub measured: f64,
    /// The combination.
    pub params: Params,
    /// The record it is from.
    pub record: String,
    /// The sum of the parts.
    pub parts_sum: f64,
    /// The lowest bound, the parts' sum included.
    pub expected: Bound,
    /// Measured by the parts' sum.
    pub efficiency: f64,
    /// What this step added by what it promised to add; absent for the first.
    pub incremental: Option<f64>,
}

/// A series held against its single parts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Analysis {
    /// Its steps, ascending.
    pub points: Vec<Point>,
    /// The parts by themselves; empty for parts without names.
    pub parts: Vec<Alone>,
    /// Bounds by layers that do not grow with the steps.
    pub bounds: Vec<Bound>,
    /// The last step before the knee; absent if every step gives at least half of what it promises.
    pub knee: Option<u32>,
    /// The line through the steps of a load up to the knee.
    pub fit: Option<Fit>,
    /// Relative spread of equal cells.
    pub noise: f64,
    /// Whether the noise was measured, or assumed because nothing was measured twice.
    pub noise_measured: bool,
}

/// What one combination of a step gave: the median of its repeats, and the record nearest to it.
struct Measured<'a> {
    value: f64,
    record: &'a Record,
}

/// Holds a series against its parts. `others` gives the best point of the series whose name begins so.
pub fn analyse(
    planned: &PlannedRun,
    series: &Series,
    records: &[Record],
    machine: &Machine,
    others: &dyn Fn(&str) -> Option<f64>,
) -> Analysis {
    let own: Vec<&Record> = records
        .iter()
        .filter(|r| r.cell.plan == planned.plan.name && r.cell.series == series.name && r.figures.is_some())
        .collect();
    let mut steps = points(&own, series.figure, planned.plan.seconds);
    steps.sort_by_key(|(step, _)| *step);
    let parts = alone(planned, series, &own);
    let (noise, noise_measured) = noise(&own, series.figure, &parts);
    // The first of a rising load is often the coldest: the best of the first few counts.
    let of = planned.plan.step;
    let each = steps.iter().take(SINGLES).map(|(step, m)| m.value / of.promises((*step).max(1)));
    let single = each.fold(0.0, f64::max);
    let mut bounds = bounds(&own, series, machine, others);
    if !planned.targets.agents.addrs.is_empty() {
        // This machine's CPUs and memory are not theirs.
        bounds.retain(|bound| !matches!(bound.layer.as_str(), "CPU" | "memory"));
    }
    let sum = |step: u32| match parts.len() {
        0 => single * of.promises(step),
        _ => parts.iter().take(step as usize).map(|part| part.best_of_kind).sum(),
    };
    let mut out: Vec<Point> = Vec::new();
    for (step, measured) in &steps {
        let parts_sum = sum(*step);
        let layer = Bound { layer: of.layer().into(), value: parts_sum };
        let expected =
            bounds.iter().fold(layer, |low, bound| if bound.value < low.value { bound.clone() } else { low });
        let incremental = out.last().and_then(|before| {
            let promised = parts_sum - before.parts_sum;
            (promised > 0.0).then(|| (measured.value - before.measured) / promised)
        });
        out.push(Point {
            step: *step,
            measured: measured.value,
            params: measured.record.cell.params.clone(),
            record: measured.record.id.clone(),
            parts_sum,
            expected,
            efficiency: measured.value / parts_sum.max(f64::MIN_POSITIVE),
            incremental,
        });
    }
    let knee = knee(&out, noise);
    let measured: Vec<(u32, f64)> = out.iter().map(|point| (point.step, point.measured)).collect();
    let fit = of.is_load().then(|| line::fit(&measured, knee)).flatten();
    Analysis { points: out, parts, bounds, knee, fit, noise, noise_measured }
}

/// The knee: the first step after which the next, and all the rest together, give less than half of what they
/// promise, by more than noise can do.
pub fn knee(points: &[Point], noise: f64) -> Option<u32> {
    let last = points.last()?;
    let falls = |from: &Point, to: &Point| {
        let promised = to.parts_sum - from.parts_sum;
        to.measured + noise * from.measured < from.measured + KNEE * promised
    };
    points.windows(2).find(|pair| falls(&pair[0], &pair[1]) && falls(&pair[0], last)).map(|pair| pair[0].step)
}

/// How much equal things differ: repeated cells, files on one disk each measured alone, the periods of a load that
/// has levelled off.
fn noise(own: &[&Record], figure: Figure, parts: &[Alone]) -> (f64, bool) {
    let mut cells: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for part in parts {
        if let (Some(on), Some(value)) = (&part.on, part.alone) {
            cells.entry(format!("file on {on}")).or_default().push(value);
        }
    }
    for record in own {
        let mut cell = record.cell.clone();
        cell.repeat = 0;
        cells.entry(cell.id()).or_default().extend(record.value(figure));
    }
    if own.first().is_some_and(|record| record.cell.of == Step::Periods) {
        // Equal things as well, but for the drift: neighbours differ by noise alone.
        let rates: Vec<f64> = own.iter().filter_map(|record| record.value(figure)).collect();
        let steps: Vec<f64> = rates.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        if steps.len() > 1 {
            return ((median(&steps) / median(&rates).max(f64::MIN_POSITIVE)).clamp(0.01, 0.5), true);
        }
    }
    let spread = |values: &Vec<f64>| {
        let (low, high) = values.iter().fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
        (high - low) / median(values).max(f64::MIN_POSITIVE)
    };
    let mut spreads: Vec<f64> = cells.values().filter(|values| values.len() > 1).map(spread).collect();
    spreads.extend(own.iter().filter_map(|record| plateau(record)));
    if spreads.is_empty() { (NOISE_ASSUMED, false) } else { (median(&spreads).clamp(0.01, 0.5), true) }
}

/// The spread of the middle half of the periods after which a growing load was called level.
fn plateau(record: &Record) -> Option<f64> {
    let rates: Vec<f64> = record.figures.as_ref()?.timeline.iter().map(|s| s.operations as f64).collect();
    let patience = engine::patience(&record.cell);
    if !engine::level(&rates, patience) {
        return None;
    }
    let mut last = rates[rates.len() - patience..].to_vec();
    last.sort_by(f64::total_cmp);
    let quarter = last.len() / 4;
    Some((last[last.len() - 1 - quarter] - last[quarter]) / median(&last).max(f64::MIN_POSITIVE))
}

/// The best combination of every step.
fn points<'a>(own: &[&'a Record], figure: Figure, seconds: f64) -> Vec<(u32, Measured<'a>)> {
    let mut steps: BTreeMap<u32, BTreeMap<Params, Vec<&'a Record>>> = BTreeMap::new();
    let mut out = Vec::new();
    for record in own.iter().filter(|r| r.cell.role == Role::Point) {
        let figures = record.figures.as_ref();
        let timeline = figures.map(|f| f.timeline.as_slice()).unwrap_or_default();
        for second in timeline {
            let rate = second.operations as f64 / seconds;
            let each = figures.map_or(0.0, |f| f.bytes / f.operations.max(f64::MIN_POSITIVE));
            let value = if figure == Figure::Bytes { rate * each } else { rate };
            out.push((second.parts, Measured { value, record }));
        }
        if timeline.is_empty() {
            let cells = steps.entry(record.cell.step).or_default();
            cells.entry(record.cell.params.clone()).or_default().push(record);
        }
    }
    for (step, cells) in steps {
        let median = |list: Vec<&'a Record>| {
            let mut list: Vec<(f64, &Record)> =
                list.into_iter().filter_map(|r| Some((r.value(figure)?, r))).collect();
            list.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (value, record) = *list.get(list.len() / 2)?;
            Some(Measured { value, record })
        };
        let best = cells.into_values().filter_map(median).max_by(|a, b| a.value.total_cmp(&b.value));
        out.extend(best.map(|best| (step, best)));
    }
    out
}

fn alone(planned: &PlannedRun, series: &Series, own: &[&Record]) -> Vec<Alone> {
    let names: Vec<(String, String, Option<String>, Option<u64>)> = match planned.plan.step {
        Step::Devices => {
            let writes = own.iter().any(|r| series.engine.writes(&r.cell.params));
            let devices = planned.targets.devices.iter().filter(|device| device.writable || !writes);
            let one = |d: &Device| {
                (d.path.display().to_string(), d.kind.clone(), d.file.then(|| d.disk.clone()), Some(d.size))
            };
            devices.map(one).collect()
        }
        Step::Pairs => planned
            .targets
            .pairs
            .iter()
            .enumerate()
            .map(|(i, p)| {
                let name = match planned.targets.pairs_stand_in {
                    true => format!("pair {}", i + 1),
                    false => format!("{}={}", p.client.address, p.server.address),
                };
                (name, "pair".into(), None, None)
            })
            .collect(),
        _ => Vec::new(),
    };
    let measured = |i: usize| {
        let at = |r: &&&Record| r.cell.step == 1 && r.cell.first as usize == i;
        let values = own.iter().filter(at).filter_map(|r| r.value(series.figure));
        // Alone at the first step a part has all combinations; the best counts.
        values.reduce(f64::max)
    };
    let alone: Vec<Option<f64>> = (0..names.len()).map(measured).collect();
    if alone.iter().all(Option::is_none) {
        return Vec::new();
    }
    let best = |kind: &str| {
        let of = names.iter().zip(&alone).filter(|((_, k, ..), _)| k == kind);
        of.filter_map(|(_, value)| *value).fold(0.0, f64::max)
    };
    names
        .iter()
        .zip(&alone)
        .map(|((name, kind, on, bytes), alone)| Alone {
            name: name.clone(),
            kind: kind.clone(),
            on: on.clone(),
            bytes: *bytes,
            alone: *alone,
            best_of_kind: best(kind),
        })
        .collect()
}

fn bounds(
    own: &[&Record],
    series: &Series,
    machine: &Machine,
    others: &dyn Fn(&str) -> Option<f64>,
) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let first = own.iter().map(|r| r.cell.step).min().unwrap_or(1);
    let singles = own.iter().filter(|r| r.cell.step == first && r.usage.intervals >= 2);
    let cost = |record: &&&Record| {
        let value = record.value(series.figure).filter(|value| *value > 0.0)?;
        let busy = record.usage.busy_cpus() - record.usage.foreign_cpus;
        (busy > 0.02).then_some(busy / value)
    };
    // Estimates: what was reached is possible, and one that is far below that was wrong.
    let reached = own.iter().filter_map(|r| r.value(series.figure)).fold(0.0, f64::max);
    let mut estimate = |layer: &str, value: f64| {
        if value >= ESTIMATED * reached {
            bounds.push(Bound { layer: layer.into(), value: value.max(reached) });
        }
    };
    if let Some(least) = singles.clone().filter_map(|r| cost(&r)).reduce(f64::min) {
        estimate("CPU", f64::from(machine.cpus) * machine.cpu_full / least);
    }
    let each = own.iter().filter_map(|r| r.figures.as_ref()).find(|f| f.operations > 0.0 && f.bytes > 0.0);
    match (series.figure, each) {
        (Figure::Bytes, _) => estimate("memory", machine.memory_copy),
        (Figure::Operations, Some(f)) => estimate("memory", machine.memory_copy / (f.bytes / f.operations)),
        (Figure::Operations, None) | (Figure::Seconds, _) => {}
    }
    bounds.extend(line_rate(own, series));
    for from in &series.ceiling {
        if let Some(best) = others(&from.series) {
            bounds.push(Bound { layer: from.layer.clone(), value: best * from.times });
        }
    }
    bounds.retain(|bound| bound.value.is_finite() && bound.value > 0.0);
    bounds
}

/// What the one link allows over which all traffic of a cluster of the run's own goes: its rate, by what a byte took of it. A
/// page pool may have given some of them, and redundancy takes more; a load that memory gave has no such bound.
fn line_rate(own: &[&Record], series: &Series) -> Option<Bound> {
    if series.engine != EngineKind::Perf || series.figure != Figure::Bytes {
        return None;
    }
    let mbit: f64 = series.set.get("speed")?.parse().ok()?;
    let of_each = own.iter().filter_map(|record| {
        let bytes = record.figures.as_ref()?.bytes;
        let links = record.usage.links.iter().filter(|link| link.name.starts_with(OWN_NAMESPACE));
        let moved: f64 = links.map(|link| link.tx).sum();
        (moved > LITTLE * bytes).then(|| bytes / moved)
    });
    let part = of_each.reduce(f64::max)?;
    Some(Bound { layer: "link".into(), value: mbit * 1e6 / 8.0 * part })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(u32, f64)], single: f64) -> Vec<Point> {
        let point = |&(step, measured): &(u32, f64)| Point {
            step,
            measured,
            params: Params::new(),
            record: String::new(),
            parts_sum: f64::from(step) * single,
            expected: Bound { layer: "device".into(), value: f64::from(step) * single },
            efficiency: measured / (f64::from(step) * single),
            incremental: None,
        };
        values.iter().map(point).collect()
    }

    #[test]
    fn the_knee_of_the_source_and_of_straight_lines() {
        // E980 storage: 28 devices at 97 % of 28 times one.
        let straight = points(&[(1, 1.0), (8, 8.0), (16, 16.0), (28, 27.2)], 1.0);
        assert_eq!(knee(&straight, 0.05), None);
        // E980 network: the second port of an adapter gives less: 11 pairs at about 75 %, 6 at 100 %.
        let pairs = points(&[(1, 1.0), (2, 2.0), (4, 4.0), (6, 6.0), (11, 8.25)], 1.0);
        assert_eq!(knee(&pairs, 0.02), Some(6));
        let flat = points(&[(1, 1.0), (2, 1.02), (4, 0.98)], 1.0);
        assert_eq!(knee(&flat, 0.05), Some(1));
        // One bad cell is no knee when the line recovers.
        let dent = points(&[(1, 1.0), (2, 2.0), (3, 2.1), (4, 4.0), (8, 8.0)], 1.0);
        assert_eq!(knee(&dent, 0.05), None);
        assert_eq!(knee(&[], 0.05), None);
    }

    #[test]
    fn noise_is_what_equal_things_differ_by() {
        assert_eq!(noise(&[], Figure::Bytes, &[]), (NOISE_ASSUMED, false));
        let file = |alone| {
            let (name, kind, on) = (String::new(), String::new(), Some("sda".to_owned()));
            Alone { name, kind, on, bytes: None, alone: Some(alone), best_of_kind: 100.0 }
        };
        assert_eq!(noise(&[], Figure::Bytes, &[file(60.0), file(100.0), file(80.0)]), (0.5, true));
        // Disks of their own may differ because they do.
        let disk = |alone| Alone { on: None, ..file(alone) };
        assert_eq!(noise(&[], Figure::Bytes, &[disk(60.0), disk(100.0)]), (NOISE_ASSUMED, false));
        let mut level = record("s", Step::Writers, Role::Point, 7, 0, 104.0);
        let second = |operations| crate::cell::Second { operations, ..Default::default() };
        level.figures.as_mut().unwrap().timeline = [50, 100, 104, 100, 98, 96, 102].map(second).to_vec();
        assert_eq!(noise(&[&level], Figure::Operations, &[]), (0.04, true));
    }

    fn planned(text: &str) -> PlannedRun {
        let plan = crate::plan::Plan::parse("t", text, false).unwrap();
        let device = |n: u32, kind: &str| crate::targets::Device {
            path: format!("/dev/d{n}").into(),
            writable: false,
            size: 1 << 30,
            kind: kind.into(),
            disk: format!("d{n}"),
            file: false,
        };
        let devices = vec![device(0, "a"), device(1, "a"), device(2, "b")];
        PlannedRun { plan, targets: crate::targets::Targets { devices, ..Default::default() } }
    }

    fn record(series: &str, of: Step, role: Role, step: u32, first: u32, value: f64) -> Record {
        let cell = crate::cell::Cell {
            plan: "t".into(),
            series: series.into(),
            role,
            of,
            step,
            first,
            params: Params::new(),
            repeat: 0,
        };
        let figures = crate::cell::Figures { operations: value, bytes: value * 10.0, ..Default::default() };
        let mut usage = crate::observe::Usage { intervals: 4, ..Default::default() };
        usage.cpus.push(crate::observe::CpuUse { busy: 0.5, allowed: true, ..Default::default() });
        Record {
            id: cell.id(),
            cell,
            started_ms: 0,
            wall_seconds: 1.0,
            figures: Some(figures),
            error: None,
            usage,
            commands: Vec::new(),
            bundle: Vec::new(),
        }
    }

    const MACHINE: Machine = Machine { cpus: 4, cpu_full: 1.0, memory_copy: 1e6, caches: 0 };

    #[test]
    fn kinds_are_summed_by_their_own_best() {
        let planned = planned(
            "name='t'\ntitle='t'\nstep='devices'\nsteps='1..n'\nseconds=1\n\
             [[series]]\nname='r'\nengine='fio'\nfigure='operations'\n",
        );
        let of = |role, step, first, value| record("r", Step::Devices, role, step, first, value);
        let records = [
            of(Role::Point, 1, 0, 100.0),
            of(Role::Part, 1, 1, 80.0),
            of(Role::Part, 1, 2, 300.0),
            of(Role::Point, 2, 0, 190.0),
            of(Role::Point, 3, 0, 450.0),
        ];
        let analysis = analyse(&planned, &planned.plan.series[0], &records, &MACHINE, &|_| None);
        let sums: Vec<f64> = analysis.points.iter().map(|p| p.parts_sum).collect();
        assert_eq!(sums, [100.0, 200.0, 500.0]);
        assert_eq!(analysis.points[2].efficiency, 0.9);
        assert_eq!(analysis.points[1].incremental, Some(0.9));
        assert_eq!(analysis.parts[1].alone, Some(80.0));
        assert_eq!((analysis.knee, analysis.noise_measured), (None, false));
        // Half a CPU for 300 a second: four CPUs give 2400; a copy of every byte: 100,000.
        let bound = |layer: &str| analysis.bounds.iter().find(|b| b.layer == layer).unwrap().value;
        assert!((bound("CPU") - 2400.0).abs() < 1e-6 && (bound("memory") - 1e5).abs() < 1e-6);
    }

    #[test]
    fn the_line_rate_of_an_own_cluster_is_a_bound_by_what_crosses_it() {
        let planned = planned(
            "name='t'\ntitle='t'\nstep='nodes'\nsteps=[1,2]\nseconds=1\n\
             [[series]]\nname='r'\nengine='perf'\nfigure='bytes'\nset={speed=400}\n",
        );
        let link = |name: &str, tx: f64| {
            let mut record = record("r", Step::Nodes, Role::Point, 2, 0, 5e6);
            record.usage.links.push(crate::observe::LinkUse { name: name.into(), rx: tx, tx });
            let analysis = analyse(&planned, &planned.plan.series[0], &[record], &MACHINE, &|_| None);
            analysis.bounds.iter().find(|b| b.layer == "link").map(|b| b.value)
        };
        // 50 MB/s on the wire; a fifth of the 50 MB/s came from memory.
        assert_eq!(link("ropewalk-lab-7/lo", 4e7), Some(6.25e7));
        assert_eq!(link("ropewalk-lab-7/lo", 1e5), None, "memory gave it");
        assert_eq!(link("eth0", 4e7), None, "its rate is not the plan's");
    }

    #[test]
    fn a_bound_from_another_series_holds_the_line_down() {
        let planned = planned(
            "name='t'\ntitle='t'\nstep='connections'\nsteps=[1,2,4]\nseconds=1\n\
             [[series]]\nname='one'\nengine='iperf3'\nfigure='operations'\n\
             [[series]]\nname='two'\nengine='iperf3'\nfigure='operations'\n\
             ceiling=[{layer='links',series='one',times=2}]\n",
        );
        let of = |step, value| record("two", Step::Connections, Role::Point, step, 0, value);
        let records = [of(1, 100.0), of(2, 198.0), of(4, 199.0)];
        let best = |begins: &str| (begins == "one").then_some(100.0);
        let analysis = analyse(&planned, &planned.plan.series[1], &records, &MACHINE, &best);
        let expected: Vec<(&str, f64)> =
            analysis.points.iter().map(|p| (p.expected.layer.as_str(), p.expected.value)).collect();
        assert_eq!(expected, [("connection", 100.0), ("connection", 200.0), ("links", 200.0)]);
        assert_eq!(analysis.knee, Some(2));
    }
}
