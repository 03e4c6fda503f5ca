//! Runs plans: one cell after the other, each observed, each recorded before the next begins. May be stopped at
//! any time and resumed. Everything is checked before anything is changed.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base::AlignedBuf;
use thiserror::Error;

use crate::{
    calibrate,
    cell::{Cell, Record},
    engine::{Context, EngineError},
    environment::Environment,
    observe::{LoadGroups, Observer},
    plan::{Plan, Series, Step, StepValue, Steps},
    results::{FORMAT, PlannedRun, Results, ResultsError, Run},
    schedule,
    targets::{Device, Pair, Side, TargetError, Targets, check_dir, device},
};

/// Files that stand in for devices where none is named: so many at most, and so large.
const FILES_MAX: u32 = 16;
const FILE_BYTES: u64 = 128 << 20;
/// Loopback pairs where none is named.
const PAIRS: u32 = 4;
/// Time a cell takes beside its load, in seconds; for the first estimate only.
const OVERHEAD: f64 = 0.6;

/// Why a run could not be made.
#[derive(Debug, Error)]
pub enum RunError {
    /// A target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The results directory cannot be used.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// An engine is missing.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be made, or a thread not started.
    #[error("cannot {what}")]
    Io {
        /// Verb and object.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing to do.
    #[error("{0}")]
    Nothing(String),
}

/// Where a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Cells done.
    pub done: usize,
    /// Cells in all.
    pub total: usize,
    /// Time left, estimated from what the cells took.
    pub left: Duration,
    /// The cell that runs now, for people.
    pub what: String,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Cells that gave figures.
    pub measured: usize,
    /// Cells that failed.
    pub failed: usize,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// Checks plans and targets, then makes the results directory. Nothing is changed if anything does not fit.
pub fn prepare(plans: Vec<Plan>, named: &Targets, dir: &Path) -> Result<Results, RunError> {
    let mut planned = Vec::new();
    let mut programs = BTreeSet::new();
    for plan in plans {
        for series in &plan.series {
            series.engine.present()?;
            programs.extend(series.engine.program().map(|(program, _)| program));
        }
        let mut targets = named.clone();
        targets.add(&plan.targets)?;
        planned.push(PlannedRun { plan, targets });
    }
    if planned.is_empty() {
        return Err(RunError::Nothing("no plan is named; `ropewalk lab list` shows them".into()));
    }
    // The nearest directory that exists must take the new one.
    let parent = dir.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    let parent = parent.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_dir(parent)?;
    let mut environment = Environment::read();
    programs.iter().for_each(|program| environment.add_program(program));
    let machine = calibrate::machine();
    let run = Run { format: FORMAT, started_ms: now_ms(), environment, machine, plans: planned };
    Ok(Results::create(dir, run)?)
}

/// Runs what is not yet measured.
pub fn execute(
    results: &mut Results,
    ropewalk: Option<&Path>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Ended, RunError> {
    let mut ended = Ended { measured: 0, failed: 0, stopped: false };
    let plans = results.run.plans.clone();
    let mut all = Vec::new();
    for planned in &plans {
        let (plan, stand_in) = (&planned.plan, stand_ins(planned, results)?);
        for series in &plan.series {
            let targets = for_series(&stand_in, series);
            let parts = schedule::parts(plan, &targets);
            all.push((plan, series, targets, parts));
        }
    }
    let total: usize = all.iter().map(|(plan, series, _, parts)| schedule::count(plan, series, *parts)).sum();
    let guess: f64 = all
        .iter()
        .map(|(plan, series, _, parts)| {
            schedule::count(plan, series, *parts) as f64 * (plan.seconds + OVERHEAD)
        })
        .sum();
    let (began, mut fresh) = (Instant::now(), 0usize);
    for (plan, series, targets, parts) in &all {
        loop {
            let own: Vec<Record> =
                results.records.iter().filter(|r| r.cell.plan == plan.name).cloned().collect();
            let cells = schedule::cells(plan, series, *parts, &own);
            let Some(cell) = cells.into_iter().find(|cell| !own.iter().any(|r| r.cell == *cell)) else {
                break;
            };
            if stop.load(Relaxed) {
                ended.stopped = true;
                return Ok(ended);
            }
            let done = results.records.len();
            let rest = total.saturating_sub(done) as f64;
            let left = match fresh {
                0..3 => guess * rest / total.max(1) as f64,
                _ => began.elapsed().as_secs_f64() / fresh as f64 * rest,
            };
            let what = describe(&cell);
            progress(&Progress {
                done,
                total: total.max(done + 1),
                left: Duration::from_secs_f64(left),
                what,
            });
            match measure(&cell, plan, series, targets, results, ropewalk, stop)? {
                None => {
                    ended.stopped = true;
                    return Ok(ended);
                }
                Some(record) => {
                    match record.error {
                        None => ended.measured += 1,
                        Some(_) => ended.failed += 1,
                    }
                    fresh += 1;
                    results.add(record)?;
                }
            }
        }
    }
    results.clear_work();
    Ok(ended)
}

/// A cell in a few words.
fn describe(cell: &Cell) -> String {
    let params: Vec<String> = cell.params.iter().map(|(k, v)| format!("{k} {v}")).collect();
    format!("{} {}, {} {}, {}", cell.plan, cell.series, cell.step, cell.of.unit(), params.join(" "))
}

/// Measures one cell; `None` if the run was stopped meanwhile.
fn measure(
    cell: &Cell,
    plan: &Plan,
    series: &Series,
    targets: &Targets,
    results: &Results,
    ropewalk: Option<&Path>,
    stop: &AtomicBool,
) -> Result<Option<Record>, RunError> {
    let work = results.work()?;
    let groups = LoadGroups::default();
    let commands = Arc::default();
    let context = Context {
        targets,
        work: &work,
        seconds: plan.seconds,
        figure: series.figure,
        stop,
        groups: &groups,
        ropewalk,
        commands: Arc::clone(&commands),
    };
    let (started_ms, began) = (now_ms(), Instant::now());
    let observer = Observer::start(groups.clone())
        .map_err(|source| RunError::Io { what: "start a thread".into(), source })?;
    let outcome = series.engine.run(cell, &context);
    let usage = observer.stop();
    let (figures, error) = match outcome {
        Ok(figures) => (Some(figures), None),
        Err(EngineError::Stopped) => return Ok(None),
        Err(error) => (None, Some(error.to_string())),
    };
    let commands = commands.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let wall_seconds = began.elapsed().as_secs_f64();
    let cell = cell.clone();
    Ok(Some(Record {
        id: cell.id(),
        cell,
        started_ms,
        wall_seconds,
        figures,
        error,
        usage,
        commands,
        bundle: Vec::new(),
    }))
}

/// A load that writes gets only what was named as writable.
fn for_series(targets: &Targets, series: &Series) -> Targets {
    let writes = series.combinations().iter().any(|params| series.engine.writes(params));
    let mut targets = targets.clone();
    targets.devices.retain(|device| device.writable || !writes);
    targets
}

/// The targets of a plan; where it needs some and none is named, files in the run's own directory or loopback
/// addresses stand in.
fn stand_ins(planned: &PlannedRun, results: &Results) -> Result<Targets, RunError> {
    let mut targets = planned.targets.clone();
    let plan = &planned.plan;
    let uses_devices = plan.series.iter().any(|s| s.engine == crate::engine::EngineKind::Fio);
    let uses_pairs = plan.series.iter().any(|s| s.engine == crate::engine::EngineKind::Iperf3);
    if uses_devices && targets.devices.is_empty() {
        let wanted = match &plan.steps {
            Steps::List(list) => list.iter().filter_map(|value| match value {
                StepValue::Number(number) => Some(*number),
                StepValue::All(_) => None,
            }),
            Steps::Range(_) => return file_devices(4, results, targets),
        };
        let wanted = if plan.step == Step::Devices { wanted.max().unwrap_or(4) } else { 1 };
        targets = file_devices(wanted.min(FILES_MAX), results, targets)?;
    }
    if uses_pairs && targets.pairs.is_empty() {
        let side = |n| Side { namespace: None, address: format!("127.0.0.{n}") };
        targets.pairs = (1..=PAIRS).map(|n| Pair { client: side(n), server: side(n) }).collect();
    }
    Ok(targets)
}

fn file_devices(count: u32, results: &Results, mut targets: Targets) -> Result<Targets, RunError> {
    let work = results.work()?;
    for n in 1..=count {
        let path = work.join(format!("disk{n}"));
        if fs::metadata(&path).map(|m| m.len()).unwrap_or_default() != FILE_BYTES {
            fill(&path)
                .map_err(|source| RunError::Io { what: format!("fill {}", path.display()), source })?;
        }
        targets.devices.push(Device { writable: true, ..device(&path, true)? });
    }
    Ok(targets)
}

/// A file with real bytes in it: reading what was only allocated would not touch the disk.
fn fill(path: &PathBuf) -> io::Result<()> {
    let file = File::create(path)?;
    let mut buffer = AlignedBuf::zeroed(1 << 20);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for offset in (0..FILE_BYTES).step_by(buffer.len()) {
        for word in buffer.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all_at(&buffer, offset)?;
    }
    file.sync_all()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_millis() as u64).unwrap_or_default()
}
