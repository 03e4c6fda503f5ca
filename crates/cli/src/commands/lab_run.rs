//! `ropewalk lab list | plan | run | resume | report | compare`.

use std::{
    collections::BTreeMap,
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use base::tunables::Mark;
use lab::{
    agent::{Agent, Offer},
    builtin,
    compare::{Change, Comparison, compare},
    plan::{Plan, PlanTargets, Step},
    report::{self, Report},
    results::{self, Results},
    run::{self, Outline, Progress},
    targets::{Agents, Targets},
};

use crate::{
    args::{AgentArgs, CompareArgs, Format, ListArgs, ReportArgs, Resume, RunArgs},
    cluster_dir::ClusterDir,
    commands::{ask::Census, lab_seen},
    input,
    link::{self, Link},
    output,
    process::{mounts, stop::stop_signal, tunables},
};

/// Set by Ctrl-C and SIGTERM.
static STOP: AtomicBool = AtomicBool::new(false);

/// Time between two lines of progress where there is no terminal.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// `ropewalk lab list`.
pub fn list(args: &ListArgs) -> Result<()> {
    let plans = builtin::all(false)?;
    if args.json {
        return output::json(&plans);
    }
    let row = |plan: &Plan| {
        let mut engines: Vec<String> =
            plan.series.iter().map(|s| format!("{:?}", s.engine).to_lowercase()).collect();
        engines.sort();
        engines.dedup();
        vec![plan.name.clone(), plan.title.clone(), engines.join(", "), plan.source.clone()]
    };
    output::table(&["PLAN", "WHAT", "ENGINES", "AFTER"], plans.iter().map(row).collect());
    Ok(())
}

/// `ropewalk lab plan`.
pub fn plan(name: &str) -> Result<()> {
    let Some(text) = builtin::text(name) else {
        let names: Vec<&str> = builtin::names().collect();
        bail!("there is no plan {name:?}; there are {}", names.join(", "));
    };
    output::line(text.trim_end());
    Ok(())
}

/// A plan has some hundred lines. What has no end, such as a device, is not read into memory as a whole.
const PLAN_MAX: u64 = 1 << 20;

fn load(name: &str, short: bool) -> Result<Plan> {
    if let Some(text) = builtin::text(name) {
        return Ok(Plan::parse(name, text, short)?);
    }
    let text = input::text(Path::new(name), PLAN_MAX).with_context(|| {
        format!(
            "{name:?} is neither a built-in plan (`ropewalk lab list`) nor a file that can be read as one"
        )
    })?;
    match Path::new(name).extension().is_some_and(|ending| ending == "fio") {
        true => Ok(Plan::of_fio(name, &text, short)?),
        false => Ok(Plan::parse(name, &text, short)?),
    }
}

/// `ropewalk lab run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let plans = match args.all {
        true => builtin::all(args.short)?,
        false => args.plans.iter().map(|name| load(name, args.short)).collect::<Result<_>>()?,
    };
    let mut targets = Targets::default();
    let mut named = PlanTargets {
        devices: args.on.device.clone(),
        writable: args.on.writable.clone(),
        changeable: args.on.changeable.clone(),
        pairs: args.on.pair.clone(),
        links: args.on.link.clone(),
    };
    let mut clusters = Vec::new();
    if let Some(path) = &args.cluster {
        let cluster = ClusterDir::open(path)?;
        targets.agents = nodes_of(&cluster, std::mem::take(&mut named.writable))?;
        clusters.push(cluster);
    } else {
        targets.agents.addrs.clone_from(&args.agent);
    }
    targets.add(&named)?;
    if args.dry_run {
        return outline(plans, &targets);
    }
    clusters.extend(targets.dirs.iter().filter_map(|dir| mounts::of_file(dir)?.1));
    let out = args.out.clone().unwrap_or_else(new_directory);
    let (tunables, seen) = (changed_tunables(&clusters)?, lab_seen::place(&clusters, &out)?);
    let mut results = run::prepare(plans, &targets, tunables, seen, &out)?;
    execute(&mut results)
}

/// The results directory where none is named: the date, here.
pub(super) fn new_directory() -> PathBuf {
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_millis() as u64).unwrap_or_default();
    let date: String = report::date(ms).chars().filter(|c| c.is_ascii_digit() || *c == '-').collect();
    PathBuf::from(format!("ropewalk-lab-{date}"))
}

/// What a run would measure.
fn outline(plans: Vec<Plan>, targets: &Targets) -> Result<()> {
    let here = std::env::current_dir()?.join("ropewalk-lab");
    let outline = run::outline(plans, targets, &here)?;
    let row = |one: &Outline| {
        let steps: Vec<String> = one.steps.iter().map(u32::to_string).collect();
        vec![
            one.plan.clone(),
            one.series.clone(),
            if steps.is_empty() { "nothing to step over".into() } else { steps.join(" ") },
            one.cells.to_string(),
            duration(Duration::from_secs_f64(one.seconds)),
            one.on.clone(),
        ]
    };
    output::table(&["PLAN", "SERIES", "STEPS", "CELLS", "ABOUT", "ON"], outline.iter().map(row).collect());
    let cells: usize = outline.iter().map(|one| one.cells).sum();
    let seconds = outline.iter().map(|one| one.seconds).sum();
    output::line(format!("{cells} cells, about {}", duration(Duration::from_secs_f64(seconds))));
    Ok(())
}

/// Every node of a cluster as an agent, on whatever machine, with the directories that may be written on each.
fn nodes_of(cluster: &ClusterDir, writable: Vec<String>) -> Result<Agents> {
    let writable: Vec<PathBuf> = writable.into_iter().map(PathBuf::from).collect();
    if let Some(path) = writable.iter().find(|path| path.is_relative()) {
        bail!("{}: name a directory on the nodes by its absolute path", path.display());
    }
    let census = link::run(async { Ok(Census::take(cluster, &Link::new(cluster)?).await) })?;
    if let Err(error) = &census.report {
        output::note(&format!("the nodes of other machines are not known: {error:#}"));
    }
    let nodes = census.processes.iter().filter(|process| process.role == "nsd");
    let addrs = nodes.filter_map(|node| node.addresses.first().cloned()).collect();
    let secret_in = Some(cluster.path.join("cluster.toml"));
    Ok(Agents { addrs, cluster: Some(cluster.file.cluster_id()?), secret_in, writable })
}

/// Tunables of the clusters under test that differ from their defaults.
pub(super) fn changed_tunables(clusters: &[ClusterDir]) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for cluster in clusters {
        let tunables = link::run(async { tunables::read(&Link::new(cluster)?).await })
            .with_context(|| format!("read the tunables of {}", cluster.path.display()))?;
        let changed = tunables.show().into_iter().filter(|row| row.mark != Mark::Default);
        all.extend(
            changed.map(|row| (row.name.to_owned(), format!("{} (default {})", row.value, row.default))),
        );
    }
    Ok(all)
}

/// `ropewalk lab resume`.
pub fn resume(args: &Resume) -> Result<()> {
    let mut results = Results::resume(&args.dir)?;
    execute(&mut results)
}

/// Runs what is not yet measured, with its progress, and writes the report; fails if something failed.
pub(super) fn execute(results: &mut Results) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.spawn(async {
        if stop_signal().await.is_ok() {
            STOP.store(true, Relaxed);
        }
    });
    let dir = results.dir().to_owned();
    let terminal = std::io::stderr().is_terminal();
    let bar = output::progress("measuring", 0);
    let mut said: Option<Instant> = None;
    let mut show = |progress: &Progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        let text = format!(
            "cell {} of {}, about {} left: {}",
            progress.done + 1,
            progress.total,
            duration(progress.left),
            progress.what
        );
        if terminal {
            bar.set_message(text);
        } else if said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            output::note(&text);
            said = Some(Instant::now());
        }
    };
    let program = std::env::current_exe().ok();
    let ended = run::execute(results, program.as_deref(), &STOP, &mut show);
    // Also of a run that was stopped, or failed: its cells were seen.
    let seen = lab_seen::keep(results);
    let ended = ended?;
    bar.finish_and_clear();
    if ended.stopped {
        seen.iter().for_each(output::line);
        bail!("stopped; what was measured is kept, and `ropewalk lab resume {}` goes on", dir.display());
    }
    let report = read(&dir)?;
    let page = dir.join("report.html");
    fs::write(&page, report::html(&report)).with_context(|| format!("write {}", page.display()))?;
    for (name, text) in report::logs(&report) {
        let path = dir.join("logs").join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text)).with_context(|| format!("write {}", path.display()))?;
    }
    summary(&report);
    output::line(format!("report: {}", page.display()));
    seen.iter().for_each(output::line);
    if ended.failed > 0 {
        bail!(
            "{} of {} cells failed (named in the report), the first: {}; `ropewalk lab resume {}` tries them again",
            ended.failed,
            ended.failed + ended.measured,
            ended.first_failure.unwrap_or_default(),
            dir.display()
        );
    }
    Ok(())
}

fn duration(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

fn summary(report: &Report) {
    let rows = report.plans.iter().flat_map(|plan| {
        plan.series.iter().map(|series| {
            let best = series.analysis.points.iter().map(|p| p.measured).fold(0.0, f64::max);
            let last = series.analysis.points.last();
            vec![
                plan.planned.plan.name.clone(),
                series.series.name.clone(),
                report::show(series.series.figure, best),
                last.map_or(String::new(), |p| format!("{:.0} %", p.efficiency * 100.0)),
                series.verdict.as_ref().map_or(String::new(), |v| {
                    let confidence = format!("{:?}", v.confidence).to_lowercase();
                    format!("{} ({confidence} confidence)", v.text)
                }),
            ]
        })
    });
    output::table(&["PLAN", "SERIES", "BEST", "EFFICIENCY", "LIMIT"], rows.collect());
    for plan in &report.plans {
        let name = &plan.planned.plan.name;
        output::line(format!("{name}: {}", report::sentence(plan)));
        let missing = plan.missing.iter().map(ToString::to_string);
        let lines = plan.choices.iter().cloned().chain(missing).take(50);
        lines.for_each(|line| output::line(format!("{name}: {line}")));
    }
    for series in report.plans.iter().flat_map(|plan| &plan.series) {
        for jobs in &series.jobs {
            output::line(format!("{}, {}:", series.series.name, Step::Nodes.count(jobs.step)));
            report::sentences(jobs).iter().for_each(|line| output::line(format!("  {line}")));
            let (bad, starved) = (&jobs.summary.bad, &jobs.summary.starved);
            bad.iter().chain(starved).take(20).for_each(|line| output::line(format!("  {line}")));
        }
    }
}

fn read(dir: &Path) -> Result<Report> {
    let (run, records) = results::read(dir)?;
    Ok(report::build(&run, &records))
}

/// `ropewalk lab report`.
pub fn report(args: &ReportArgs) -> Result<()> {
    let report = read(&args.dir)?;
    let text = match args.format {
        Format::Html => report::html(&report),
        Format::Md => report::markdown(&report),
        Format::Json => serde_json::to_string_pretty(&report)?,
        Format::Csv => report::csv(&report),
    };
    let html = (args.format == Format::Html).then(|| args.dir.join("report.html"));
    match args.out.clone().or(html) {
        Some(path) => {
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            output::line(format!("report: {}", path.display()));
        }
        None => output::line(text.trim_end()),
    }
    Ok(())
}

/// `ropewalk lab compare`; fails if something became slower.
pub fn compare_runs(args: &CompareArgs) -> Result<()> {
    let comparison = comparison(&args.before, &args.after)?;
    if args.json {
        output::json(&comparison)?;
    } else {
        print_comparison(&comparison);
    }
    if comparison.regressed() {
        let slower = comparison.points.iter().filter(|p| matches!(p.change, Change::Slower | Change::Gone));
        bail!("{} of {} points became slower or are gone", slower.count(), comparison.points.len());
    }
    Ok(())
}

/// Two directories of results, held against each other.
pub fn comparison(before: &Path, after: &Path) -> Result<Comparison> {
    Ok(compare(&read(before)?, &read(after)?))
}

/// Each point in a line.
pub fn print_comparison(comparison: &Comparison) {
    let row = |point: &lab::compare::Compared| {
        let value = |value: Option<f64>| value.map_or("-".into(), |v| report::show(point.figure, v));
        let by = match (point.before, point.after) {
            (Some(a), Some(b)) if a > 0.0 && b > 0.0 => {
                format!("{:+.1} %", point.figure.faster_by(a, b) * 100.0)
            }
            _ => String::new(),
        };
        vec![
            point.plan.clone(),
            point.series.clone(),
            point.step.to_string(),
            value(point.before),
            value(point.after),
            by,
            format!("{:.0} %", point.threshold * 100.0),
            format!("{:?}", point.change).to_lowercase(),
        ]
    };
    let header = ["PLAN", "SERIES", "STEP", "BEFORE", "AFTER", "SPEED", "NOISE", "CHANGE"];
    output::table(&header, comparison.points.iter().map(row).collect());
    comparison.differences.iter().for_each(|line| output::line(format!("not the same: {line}")));
}

/// `ropewalk lab agent`.
pub fn agent(args: &AgentArgs) -> Result<()> {
    let mut targets = Targets::default();
    targets.add(&PlanTargets {
        devices: args.device.clone(),
        writable: args.writable.clone(),
        pairs: args.pair.clone(),
        ..PlanTargets::default()
    })?;
    let Some(work) = targets.dirs.first().cloned() else {
        bail!("an agent needs a directory it may write in: --writable DIR");
    };
    let agent = Agent::new(Offer::Named(Box::new(targets)), work, std::env::current_exe().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let endpoint = agent.listen(vec![args.listen])?;
        let addrs: Vec<String> = endpoint.local_addrs().iter().map(ToString::to_string).collect();
        let told = output::announce(format!("lab agent listens on {}", addrs.join(", ")));
        let stopped = if told { stop_signal().await } else { Ok(()) };
        agent.end().await;
        stopped
    })
}
