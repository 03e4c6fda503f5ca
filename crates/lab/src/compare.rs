//! Two runs of the same plans: what became slower or faster by more than noise can do. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    expect::NOISE_ASSUMED,
    observe::median,
    plan::{Figure, Step},
    report::{Report, SeriesReport},
    workload::{Outcome, TestSummary, by_test},
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

/// What became of a value, from this relative difference on.
fn change(figure: Figure, before: f64, after: f64, threshold: f64) -> Change {
    let (before, after) = (figure.speed(before), figure.speed(after));
    if after < before * (1.0 - threshold) {
        Change::Slower
    } else if after * (1.0 - threshold) > before {
        Change::Faster
    } else {
        Change::Same
    }
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
    /// What is measured.
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

/// What is measured, the value, its noise.
type Value = (Figure, f64, f64);

fn points(report: &Report) -> BTreeMap<Key, Value> {
    let all = report.plans.iter().flat_map(|plan| plan.series.iter().map(move |series| (plan, series)));
    let of = |(plan, series): (&crate::report::PlanReport, &SeriesReport)| {
        let asked = &plan.planned.plan;
        let (plan, name) = (asked.name.clone(), series.series.name.clone());
        let figure = series.series.figure;
        let noise = series.analysis.noise;
        // What failed is no speed, whatever it did in the meantime.
        let failed = |step| series.records.iter().any(|r| r.cell.step == step && r.error.is_some());
        let points = series.analysis.points.iter().filter(|point| !failed(point.step));
        // A load that grows ends when it has levelled off, now earlier, now later: its best counts.
        if asked.step == Step::Writers {
            let best = points.map(|p| p.measured).fold(0.0, f64::max);
            return vec![((plan, name, asked.steps.most().unwrap_or(1)), (figure, best, noise))];
        }
        let mut all: Vec<_> =
            points.map(|p| ((plan.clone(), name.clone(), p.step), (figure, p.measured, noise))).collect();
        all.extend(tests(&plan, series));
        all
    };
    all.flat_map(of).collect()
}

/// The tests of a workload, each by the time that its jobs took. The jobs of a test are equal, so their spread is its noise.
fn tests(plan: &str, series: &SeriesReport) -> Vec<(Key, Value)> {
    let mut all = Vec::new();
    for record in &series.records {
        for (test, mut jobs) in record.figures.iter().flat_map(|figures| by_test(&figures.jobs)) {
            jobs.retain(|job| job.outcome == Outcome::Right);
            if jobs.is_empty() {
                continue;
            }
            let times: Vec<f64> = jobs.iter().map(|job| job.used.real_s).collect();
            let seconds = median(&times).max(f64::MIN_POSITIVE);
            let noise = TestSummary::spread(&jobs).unwrap_or(NOISE_ASSUMED).max(series.analysis.noise);
            let key = (plan.to_owned(), format!("{}: {test}", series.series.name), record.cell.step);
            all.push((key, (Figure::Seconds, seconds, noise)));
        }
    }
    all
}

/// Holds `after` against `before`.
pub fn compare(before: &Report, after: &Report) -> Comparison {
    let (a, b) = (points(before), points(after));
    let mut keys: Vec<&Key> = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
    keys.sort();
    let point = |key: &Key| {
        let (old, new) = (a.get(key), b.get(key));
        let noise = |point: Option<&Value>| point.map_or(0.0, |p| p.2);
        let threshold = (SIGMAS * noise(old).hypot(noise(new))).clamp(LEAST, MOST);
        let change = match (old, new) {
            (Some(old), Some(new)) => change(old.0, old.1, new.1, threshold),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        calibrate::Machine,
        cell::{Cell, Figures, Record, Role},
        environment::Environment,
        plan::Plan,
        report::build,
        results::{FORMAT, PlannedRun, Run},
        workload::{Job, Used, catalogue::Class},
    };

    /// Each step with what its repetitions gave.
    type Steps<'a> = &'a [(u32, &'a [f64])];

    fn run(steps: Steps<'_>) -> Report {
        run_of("connections", "iperf3", steps)
    }

    fn run_of(step: &str, engine: &str, steps: Steps<'_>) -> Report {
        let text = format!(
            "name='t'\ntitle='t'\nstep='{step}'\nsteps=[1,2]\nseconds=1\n[[series]]\nname='s'\n\
             engine='{engine}'\nfigure='bytes'\n"
        );
        let plan = Plan::parse("t", &text, false).unwrap();
        let run = Run {
            format: FORMAT,
            started_ms: 0,
            environment: Environment::default(),
            agents: BTreeMap::new(),
            machine: Machine { cpus: 1, cpu_full: 1.0, memory_copy: 1e9, caches: 0 },
            plans: vec![PlannedRun { plan, targets: Default::default() }],
            seen: None,
        };
        let record = |step: u32, repeat: u32, bytes: f64| {
            let (plan, series) = ("t".into(), "s".into());
            let (role, of, params) = (Role::Point, Step::Connections, Default::default());
            let cell = Cell { plan, series, role, of, step, first: 0, params, repeat };
            Record {
                id: cell.id(),
                cell,
                started_ms: 0,
                wall_seconds: 1.0,
                figures: Some(Figures { bytes, ..Figures::default() }),
                error: None,
                usage: Default::default(),
                commands: Vec::new(),
                bundle: Vec::new(),
            }
        };
        let all = steps.iter().flat_map(|(step, values)| {
            values.iter().enumerate().map(|(repeat, value)| record(*step, repeat as u32, *value))
        });
        build(&run, &all.collect::<Vec<_>>())
    }

    fn changes(before: Steps<'_>, after: Steps<'_>) -> (Vec<Change>, bool) {
        let comparison = compare(&run(before), &run(after));
        (comparison.points.iter().map(|point| point.change).collect(), comparison.regressed())
    }

    #[test]
    fn a_regression_is_more_than_the_noise_of_both_runs() {
        let quiet: Steps = &[(1, &[100.0, 101.0, 102.0]), (2, &[200.0, 202.0, 204.0])];
        assert_eq!(changes(quiet, quiet), (vec![Change::Same, Change::Same], false));
        // 10 % less is far beyond 2 % of noise,
        let less: Steps = &[(1, &[100.0, 101.0, 102.0]), (2, &[180.0, 182.0, 184.0])];
        assert_eq!(changes(quiet, less), (vec![Change::Same, Change::Slower], true));
        assert_eq!(changes(less, quiet), (vec![Change::Same, Change::Faster], false));
        // and within the noise where equal cells differ by 20 %.
        let noisy: Steps = &[(1, &[90.0, 101.0, 110.0]), (2, &[160.0, 182.0, 200.0])];
        assert_eq!(changes(quiet, noisy), (vec![Change::Same, Change::Same], false));
        // A collapse is seen through any noise.
        let wild: Steps = &[(1, &[60.0, 101.0, 160.0]), (2, &[5.0, 10.0, 40.0])];
        assert_eq!(changes(quiet, wild), (vec![Change::Same, Change::Slower], true));
    }

    /// A run of a workload whose jobs of two tests took so many seconds; of `gzip` one was wrong, and quick.
    fn workload(sort: &[f64], gzip: f64) -> Report {
        let mut report = run(&[(1, &[100.0])]);
        let job = |test: &str, real_s: f64, outcome: Outcome| Job {
            test: test.into(),
            class: Class::Io,
            engine: "sort".into(),
            node: 1,
            number: 1,
            started_s: 0.0,
            used: Used { real_s, ..Used::default() },
            outcome,
        };
        let jobs = sort.iter().map(|real_s| job("gsort", *real_s, Outcome::Right));
        let other = [job("gzip", gzip, Outcome::Right), job("gzip", 0.1, Outcome::Wrong("x".into()))];
        let figures = report.plans[0].series[0].records[0].figures.as_mut().unwrap();
        figures.jobs = jobs.chain(other).collect();
        report
    }

    #[test]
    fn the_jobs_of_a_workload_are_compared_by_their_seconds() {
        let jobs = |sort: &[f64], gzip| {
            let comparison = compare(&workload(&[40.0, 40.4, 40.0, 40.4], 5.0), &workload(sort, gzip));
            let tests = comparison.points.into_iter().filter(|point| point.series != "s");
            tests.map(|p| (p.series, p.figure, p.before, p.after, p.change)).collect::<Vec<_>>()
        };
        let one = |test: &str, before, after, change| {
            (format!("s: {test}"), Figure::Seconds, Some(before), Some(after), change)
        };
        assert_eq!(
            jobs(&[60.0, 60.4, 60.0, 60.4], 5.0),
            [one("gsort", 40.2, 60.2, Change::Slower), one("gzip", 5.0, 5.0, Change::Same)]
        );
        assert_eq!(
            jobs(&[20.0, 20.4, 20.0, 20.4], 4.9),
            [one("gsort", 40.2, 20.2, Change::Faster), one("gzip", 5.0, 4.9, Change::Same)]
        );
        assert!((Figure::Seconds.faster_by(40.0, 50.0) + 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_point_that_is_gone_is_a_regression_and_a_new_one_is_not() {
        let one: Steps = &[(1, &[1.0])];
        let two: Steps = &[(1, &[1.0]), (2, &[2.0])];
        assert_eq!(changes(two, one), (vec![Change::Same, Change::Gone], true));
        assert_eq!(changes(one, two), (vec![Change::Same, Change::New], false));
    }

    #[test]
    fn what_failed_is_gone_and_no_speed() {
        let two: Steps = &[(1, &[1.0]), (2, &[2.0])];
        let mut after = run(&[(1, &[1.0]), (2, &[200.0])]);
        let records = &mut after.plans[0].series[0].records;
        records.iter_mut().filter(|r| r.cell.step == 2).for_each(|r| r.error = Some("wrong".into()));
        let changes: Vec<Change> = compare(&run(two), &after).points.iter().map(|p| p.change).collect();
        assert_eq!(changes, [Change::Same, Change::Gone]);
    }

    #[test]
    fn a_load_that_levels_off_earlier_is_not_gone() {
        let writers = |steps: Steps<'_>| run_of("writers", "writers", steps);
        let later: Steps = &[(1, &[5.0]), (2, &[8.9]), (3, &[9.1])];
        let earlier: Steps = &[(1, &[5.0]), (2, &[9.0])];
        let lower: Steps = &[(1, &[5.0]), (2, &[6.0])];
        let same = compare(&writers(later), &writers(earlier));
        assert_eq!(same.points.len(), 1);
        assert!(!same.regressed(), "{:?}", same.points);
        assert!(compare(&writers(later), &writers(lower)).regressed());
    }
}
