//! Runs plans: one cell after the other, each observed, each recorded before the next begins. May be stopped at
//! any time and resumed. Everything is checked before anything is changed.

mod error;
mod stand_ins;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    agent::Crew,
    calibrate,
    cell::{Cell, Figures, Record},
    engine::{self, Context, EngineError, EngineKind},
    environment::Environment,
    observe::{LoadGroups, Observer, Serving, Usage, Watched},
    plan::{Plan, Series, Step},
    results::{FORMAT, PlannedRun, Results, Run, Seen},
    schedule::{self, Parts},
    standin,
    targets::{Targets, check_dir},
};
pub use error::RunError;
use stand_ins::{StandIns, files, for_series};

/// Time a cell takes beside its load, in seconds; for the first estimate only.
const OVERHEAD: f64 = 0.6;

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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// Cells that gave figures.
    pub measured: usize,
    /// Cells that failed.
    pub failed: usize,
    /// The first of these, and why.
    pub first_failure: Option<String>,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// Checks plans and targets, then makes the results directory. Nothing is changed if anything does not fit.
/// `tunables` are those of the cluster under test, where there is one; `seen` is where it shows what it did.
pub fn prepare(
    plans: Vec<Plan>,
    named: &Targets,
    tunables: BTreeMap<String, String>,
    seen: Option<Seen>,
    dir: &Path,
) -> Result<Results, RunError> {
    let dir = std::path::absolute(dir)
        .map_err(|source| RunError::Io { what: "find this directory".into(), source })?;
    let planned = plan_all(plans, named, &dir)?;
    let (mut programs, mut packages) = (BTreeSet::new(), BTreeMap::new());
    let all =
        planned.iter().flat_map(|planned| planned.plan.series.iter().map(move |series| (planned, series)));
    for (planned, series) in all {
        series.engine.present()?;
        engine::ready(series, &planned.targets)?;
        programs.extend(engine::programs(series));
        packages.extend(engine::packages(series, &planned.targets));
    }
    // Every one must answer before anything is changed.
    let agents = match named.agents.addrs.is_empty() {
        true => BTreeMap::new(),
        false => Crew::reach(&named.agents)?.environments,
    };
    // The nearest directory that exists must take the new one.
    let parent = dir.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    let parent = parent.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_dir(parent)?;
    room(&planned, &dir, parent)?;
    let mut environment = Environment { tunables, ..Environment::read() };
    programs.iter().for_each(|program| environment.add_program(program));
    environment.programs.extend(packages);
    let machine = calibrate::machine();
    let run =
        Run { format: FORMAT, started_ms: now_ms(), environment, agents, machine, plans: planned, seen };
    Ok(Results::create(&dir, run)?)
}

/// What stands in must fit on the disk, and leave something.
fn room(planned: &[PlannedRun], dir: &Path, parent: &Path) -> Result<(), RunError> {
    let of = |one: &PlannedRun| {
        one.plan.series.iter().map(|s| standin::bytes(&one.plan, s, &one.targets, dir)).max().unwrap_or(0)
    };
    let wanted = planned.iter().map(of).max().unwrap_or(0);
    let stat = rustix::fs::statvfs(parent).map_err(|e| RunError::Io {
        what: format!("ask how full {} is", parent.display()),
        source: e.into(),
    })?;
    let free = stat.f_bavail * stat.f_frsize;
    if wanted > free / 10 * 9 {
        return Err(RunError::Nothing(format!(
            "what stands in for devices and nodes may take {} below {}, where {} are free; name what shall be \
             measured, another directory with --out, or --short",
            base::units::human_size(wanted),
            parent.display(),
            base::units::human_size(free)
        )));
    }
    Ok(())
}

/// Each plan with what it will touch.
fn plan_all(plans: Vec<Plan>, named: &Targets, dir: &Path) -> Result<Vec<PlannedRun>, RunError> {
    let mut planned = Vec::new();
    for plan in plans {
        // Cells are told apart by the names of their plans.
        if planned.iter().any(|one: &PlannedRun| one.plan.name == plan.name) {
            return Err(RunError::Nothing(format!(
                "two plans have the name {}: run one after the other",
                plan.name
            )));
        }
        let mut targets = named.clone();
        targets.add(&plan.targets)?;
        let uses = |engine| plan.series.iter().any(|series| series.engine == engine);
        if uses(EngineKind::Fio) && targets.devices.is_empty() {
            targets.devices = standin::files(dir, files(&plan));
        }
        if plan.series.iter().any(|series| series.engine.uses_pairs()) && targets.pairs.is_empty() {
            targets.pairs = standin::pairs();
            targets.pairs_stand_in = true;
        }
        planned.push(PlannedRun { plan, targets });
    }
    if planned.is_empty() {
        return Err(RunError::Nothing("no plan is named; `ropewalk lab list` shows them".into()));
    }
    Ok(planned)
}

/// What a run would measure of one series.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outline {
    /// The plan.
    pub plan: String,
    /// The series.
    pub series: String,
    /// What is stepped.
    pub step: Step,
    /// Its steps.
    pub steps: Vec<u32>,
    /// Cells, repetitions and single parts included.
    pub cells: usize,
    /// Seconds that all of them take, about; where an amount is moved or a rate levels off it may be far less.
    #[serde(rename = "took_s")]
    pub seconds: f64,
    /// What it would touch.
    pub on: String,
}

/// What a run would measure, and about how long that takes. Touches nothing.
pub fn outline(plans: Vec<Plan>, named: &Targets, dir: &Path) -> Result<Vec<Outline>, RunError> {
    let mut all = Vec::new();
    for planned in plan_all(plans, named, dir)? {
        let plan = &planned.plan;
        for series in &plan.series {
            let targets = for_series(&planned.targets, series);
            let parts = schedule::parts(plan, &targets);
            let cells = schedule::count(plan, series, parts);
            all.push(Outline {
                plan: plan.name.clone(),
                series: series.name.clone(),
                step: plan.step,
                steps: plan.steps.resolve(parts.count),
                cells,
                seconds: cells as f64 * cell_seconds(plan),
                on: standin::touches(plan, series, &targets, dir),
            });
        }
    }
    Ok(all)
}

/// About how long a cell takes.
fn cell_seconds(plan: &Plan) -> f64 {
    // One period for each writer.
    let periods = if plan.step == Step::Writers { f64::from(plan.steps.most().unwrap_or(1)) } else { 1.0 };
    plan.seconds * periods + OVERHEAD
}

/// Runs what is not yet measured.
pub fn execute(
    results: &mut Results,
    ropewalk: Option<&Path>,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Ended, RunError> {
    let mut ended = Ended::default();
    let plans = results.run.plans.clone();
    let mut all = Vec::new();
    for planned in &plans {
        // Series over the same stand-in follow each other: each is made once.
        let mut order: Vec<&Series> = planned.plan.series.iter().collect();
        order.sort_by_key(|series| standin::KEYS.map(|key| series.set.get(key)));
        for series in order.into_iter().filter(|s| s.absent(results.run.environment.numa_nodes).is_none()) {
            let parts = schedule::parts(&planned.plan, &for_series(&planned.targets, series));
            all.push((planned, series, parts));
        }
    }
    let count = |(planned, series, parts): &(&PlannedRun, &Series, Parts)| {
        schedule::count(&planned.plan, series, *parts)
    };
    let total: usize = all.iter().map(count).sum();
    let guess: f64 = all.iter().map(|one| count(one) as f64 * cell_seconds(&one.0.plan)).sum();
    let (began, mut fresh) = (Instant::now(), 0usize);
    let mut stand_ins = StandIns::default();
    let agents = plans.first().map(|planned| &planned.targets.agents);
    let crew = agents.filter(|agents| !agents.addrs.is_empty()).map(Crew::reach).transpose()?;
    for (planned, series, parts) in &all {
        let plan = &planned.plan;
        let crew = crew.as_ref().filter(|_| matches!(plan.step, Step::Nodes | Step::Writers));
        let mut targets: Option<Targets> = None;
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
            let ready = match targets.take() {
                Some(ready) => ready,
                None => stand_ins.targets(plan, series, &planned.targets, results, ropewalk)?,
            };
            let (inside, serving) = (stand_ins.watched(), stand_ins.serving(&ready));
            let measured =
                Bench { plan, series, targets: &ready, results, ropewalk, stop, crew, inside, serving }
                    .measure(&cell)?;
            targets = Some(ready);
            let Some(record) = measured else {
                ended.stopped = true;
                return Ok(ended);
            };
            match &record.error {
                None => ended.measured += 1,
                Some(why) => {
                    ended.failed += 1;
                    ended.first_failure.get_or_insert_with(|| format!("{}: {why}", describe(&cell)));
                }
            }
            fresh += 1;
            results.add(record)?;
        }
        if let Some(ready) = &targets {
            let (inside, serving) = (None, Serving::Nobody);
            Bench { plan, series, targets: ready, results, ropewalk, stop, crew, inside, serving }.clean()?;
        }
    }
    drop(stand_ins);
    results.clear_work();
    Ok(ended)
}

/// A cell in a few words.
fn describe(cell: &Cell) -> String {
    let params: Vec<String> = cell.params.iter().map(|(k, v)| format!("{k} {v}")).collect();
    format!("{} {}, {} {}, {}", cell.plan, cell.series, cell.step, cell.of.unit(), params.join(" "))
}

/// Everything that measuring a cell of a series needs.
struct Bench<'a> {
    plan: &'a Plan,
    series: &'a Series,
    targets: &'a Targets,
    results: &'a Results,
    ropewalk: Option<&'a Path>,
    stop: &'a AtomicBool,
    /// Agents that run the cells of client nodes.
    crew: Option<&'a Crew>,
    /// A cluster of the run's own whose processes tell what they did.
    inside: Option<&'a Watched>,
    /// Which of Ropewalk's processes serve the load.
    serving: Serving,
}

impl Bench<'_> {
    /// Measures one cell; `None` if the run was stopped meanwhile.
    fn measure(&self, cell: &Cell) -> Result<Option<Record>, RunError> {
        let work = self.results.work()?;
        let groups = LoadGroups::default();
        let commands = Arc::default();
        let context = self.context(&work, &groups, &commands);
        let (started_ms, began) = (now_ms(), Instant::now());
        let (outcome, usage) = match self.prepare(cell, &context) {
            Err(error) => (Err(error), Usage::default()),
            Ok(()) if self.crew.is_some() => self.by_agents(cell, &commands),
            Ok(()) => {
                let before = self.inside.and_then(Watched::read);
                let observer = Observer::start(groups.clone(), self.serving.clone())
                    .map_err(|source| RunError::Io { what: "start a thread".into(), source })?;
                let started = Instant::now();
                let outcome = self.series.engine.run(cell, &context);
                let (began, ended) = (context.began.lock().take(), Instant::now());
                let usage = observer.stop(began);
                let lasted = ended.saturating_duration_since(began.unwrap_or(started));
                let inside =
                    self.inside.zip(before).and_then(|(watched, before)| watched.since(&before, lasted));
                (outcome, Usage { inside, ..usage })
            }
        };
        let (figures, error) = match outcome {
            Ok(figures) => {
                let why = figures.wrong();
                (Some(figures), why)
            }
            Err(EngineError::Stopped) => return Ok(None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Some(Record {
            id: cell.id(),
            cell: cell.clone(),
            started_ms,
            wall_seconds: began.elapsed().as_secs_f64(),
            figures,
            error,
            usage,
            commands: commands.lock().clone(),
            bundle: self.targets.links.clone(),
        }))
    }

    /// Agents prepare by themselves.
    fn prepare(&self, cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
        if self.crew.is_some() { Ok(()) } else { self.series.engine.prepare(cell, context) }
    }

    fn by_agents(&self, cell: &Cell, commands: &Mutex<Vec<String>>) -> (Result<Figures, EngineError>, Usage) {
        let Some(crew) = self.crew else {
            return (Err(EngineError::Target("no agents".into())), Usage::default());
        };
        let (engine, figure) = (self.series.engine, self.series.figure);
        match crew.run(engine, cell, self.plan.seconds, figure, self.stop) {
            Ok((figures, usage, lines)) => {
                commands.lock().extend(lines);
                (Ok(figures), usage)
            }
            Err(error) => (Err(error), Usage::default()),
        }
    }

    /// Removes what the cells of the series left for each other.
    fn clean(&self) -> Result<(), RunError> {
        let work = self.results.work()?;
        self.series.engine.clean(&self.context(&work, &LoadGroups::default(), &Arc::default()));
        Ok(())
    }

    fn context<'b>(
        &'b self,
        work: &'b Path,
        groups: &'b LoadGroups,
        commands: &Arc<Mutex<Vec<String>>>,
    ) -> Context<'b> {
        Context {
            targets: self.targets,
            work,
            part: 0,
            seconds: self.plan.seconds,
            figure: self.series.figure,
            stop: self.stop,
            groups,
            ropewalk: self.ropewalk,
            commands: Arc::clone(commands),
            began: Arc::default(),
            led: None,
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_millis() as u64).unwrap_or_default()
}
