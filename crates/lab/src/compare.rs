//! Two runs of the same plans: what became slower or faster by more than noise can do. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    plan::Figure,
    report::{Report, SeriesReport},
};

/// A difference counts from this many times the noise of the two runs together.
const SIGMAS: f64 = 2.0;
/// And from this part of the value, however quiet the machine.
const LEAST: f64 = 0.03;

/// And never needs more than this, however noisy.
const MOST: f64 = 0.9;

/// What became of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Within the noise.
    Same,
    /// Slower by more.
    Slower,
    /// Faster by more.
    Faster,
    /// Only in the first run.
    Gone,
    /// Only in the second run.
    New,
}

/// One point in both runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    /// The plan.
    pub plan: String,
    /// The series.
    pub series: String,
    /// How many parts.
    pub step: u32,
    /// What is counted.
    pub figure: Figure,
    /// In the first run.
    pub before: Option<f64>,
    /// In the second.
    pub after: Option<f64>,
    /// From which relative difference on it counts.
    pub threshold: f64,
    /// What became of it.
    pub change: Change,
}

/// Both runs held against each other.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// Each point of either run.
    pub points: Vec<Compared>,
    /// What in the environments differs: version, kernel, CPUs, memory.
    pub differences: Vec<String>,
}

impl Comparison {
    /// Whether something became slower, or is gone.
    pub fn regressed(&self) -> bool {
        self.points.iter().any(|point| matches!(point.change, Change::Slower | Change::Gone))
    }
}

type Key = (String, String, u32);

fn points(report: &Report) -> BTreeMap<Key, (Figure, f64, f64)> {
    let all = report.plans.iter().flat_map(|plan| plan.series.iter().map(move |series| (plan, series)));
    let of = |(plan, series): (&crate::report::PlanReport, &SeriesReport)| {
        let (plan, name, figure) =
            (plan.planned.plan.name.clone(), series.series.name.clone(), series.series.figure);
        let noise = series.analysis.noise;
        let points = series.analysis.points.iter();
        points
            .map(|p| ((plan.clone(), name.clone(), p.step), (figure, p.measured, noise)))
            .collect::<Vec<_>>()
    };
    all.flat_map(of).collect()
}

/// Holds `after` against `before`.
pub fn compare(before: &Report, after: &Report) -> Comparison {
    let (a, b) = (points(before), points(after));
    let mut keys: Vec<&Key> = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
    keys.sort();
    let point = |key: &Key| {
        let (old, new) = (a.get(key), b.get(key));
        let noise = |point: Option<&(Figure, f64, f64)>| point.map_or(0.0, |p| p.2);
        let threshold = (SIGMAS * noise(old).hypot(noise(new))).clamp(LEAST, MOST);
        let change = match (old, new) {
            (Some(old), Some(new)) if new.1 < old.1 * (1.0 - threshold) => Change::Slower,
            (Some(old), Some(new)) if new.1 * (1.0 - threshold) > old.1 => Change::Faster,
            (Some(_), Some(_)) => Change::Same,
            (Some(_), None) => Change::Gone,
            (None, _) => Change::New,
        };
        Compared {
            plan: key.0.clone(),
            series: key.1.clone(),
            step: key.2,
            figure: old.or(new).map_or(Figure::Operations, |p| p.0),
            before: old.map(|p| p.1),
            after: new.map(|p| p.1),
            threshold,
            change,
        }
    };
    let (x, y) = (&before.run.environment, &after.run.environment);
    let facts = [
        ("version", x.version.clone(), y.version.clone()),
        ("host", x.host.clone(), y.host.clone()),
        ("kernel", x.kernel.clone(), y.kernel.clone()),
        ("CPU", x.cpu.clone(), y.cpu.clone()),
        ("CPUs allowed", x.cpus_allowed.len().to_string(), y.cpus_allowed.len().to_string()),
        ("memory", x.memory.to_string(), y.memory.to_string()),
    ];
    let differences =
        facts.into_iter().filter(|(_, a, b)| a != b).map(|(what, a, b)| format!("{what}: {a}, then {b}"));
    Comparison { points: keys.into_iter().map(point).collect(), differences: differences.collect() }
}
