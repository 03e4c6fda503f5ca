//! `ropewalk lab workload`: the mixed analytics workload, run as a plan like any other.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use lab::{
    builtin,
    plan::{Plan, PlanTargets},
    run,
    targets::Targets,
    workload::{catalogue, setup},
};
use serde::Serialize;

use super::{lab_run, lab_seen};
use crate::{
    args::{Workload, WorkloadArgs},
    input, interrupt, output,
    process::mounts,
};

/// `ropewalk lab workload ...`.
pub fn workload(command: &Workload) -> Result<()> {
    match command {
        Workload::Setup { env } => make_environment(env.clone().or_else(setup::usual)),
        Workload::List { json } => list(*json),
        Workload::Analytics20(args) => start("analytics-20", args),
        Workload::Analytics30(args) => start("analytics-30", args),
        Workload::AnalyticsNodes(args) => start("analytics-nodes", args),
        Workload::AnalyticsLinks(args) => start("analytics-links", args),
    }
}

fn make_environment(env: Option<PathBuf>) -> Result<()> {
    let env = std::path::absolute(env.context("HOME is not set; name a directory by --env")?)?;
    interrupt::catch()?;
    setup::setup(&env, &interrupt::asked, &mut output::note)?;
    packages();
    output::line(format!("environment: {}", env.display()));
    Ok(())
}

fn packages() {
    let row = |package: setup::Package| vec![package.name, package.version, package.licence];
    output::table(&["PACKAGE", "VERSION", "LICENCE"], setup::packages().into_iter().map(row).collect());
}

#[derive(Serialize)]
struct Listing<'a> {
    tests: &'a [catalogue::Test],
    inputs: &'a [catalogue::Input],
    engines: &'a [catalogue::Engine],
    packages: Vec<setup::Package>,
}

fn list(json: bool) -> Result<()> {
    let all = catalogue::catalogue();
    if json {
        return output::json(&Listing {
            tests: &all.test,
            inputs: &all.input,
            engines: catalogue::ENGINES,
            packages: setup::packages(),
        });
    }
    let row = |test: &catalogue::Test| {
        vec![
            test.name.clone(),
            test.class.word().into(),
            test.engine.clone(),
            base::units::human_size(all.input_bytes(test, 1.0)),
            format!("{} / {}", test.jobs[0], test.jobs[1]),
            test.what.clone(),
            test.checks.clone(),
        ]
    };
    let header = ["TEST", "CLASS", "ENGINE", "INPUT", "JOBS 20/30", "WHAT", "CHECKED"];
    output::table(&header, all.test.iter().map(row).collect());
    output::line("");
    packages();
    Ok(())
}

/// The plan with what was asked for in place of its own.
fn plan(name: &str, args: &WorkloadArgs, dirs: usize) -> Result<Plan> {
    let text = builtin::text(name).context("the plan is part of the program")?;
    let mut plan = Plan::parse(name, text, args.short)?;
    let engines = (!args.engine.is_empty()).then(|| args.engine.join(","));
    let given = [
        ("scale", args.scale.map(|v| v.to_string())),
        ("engines", engines),
        ("seed", args.seed.map(|v| v.to_string())),
        ("concurrency", args.concurrency.map(|v| v.to_string())),
        ("rounds", args.rounds.map(|v| v.to_string())),
        ("cpus", args.cpus.map(|v| v.to_string())),
        ("memory", args.memory.map(|v| v.to_string())),
        ("cpu_factor", args.cpu_factor.map(|v| v.to_string())),
        ("dirs", (dirs > 0).then(|| dirs.to_string())),
    ];
    for series in &mut plan.series {
        for (key, value) in given.iter().filter_map(|(key, value)| Some((*key, value.as_ref()?))) {
            if let Err(why) = series.engine.check(key, value) {
                bail!("--{}: {why}", key.replace("engines", "engine").replace('_', "-"));
            }
            series.set.insert(key.into(), value.clone());
        }
    }
    Ok(plan)
}

fn start(name: &str, args: &WorkloadArgs) -> Result<()> {
    let nodes: Vec<Vec<String>> =
        args.dir.iter().map(|dirs| dirs.split(',').map(str::to_owned).collect()).collect();
    let each = nodes.first().map_or(0, Vec::len);
    if nodes.iter().any(|dirs| dirs.len() != each || !matches!(each, 1 | 3)) {
        bail!("--dir: name for each client node one directory, or three as DATA,WORK,UTIL");
    }
    let mut targets = Targets::default();
    for dir in nodes.into_iter().flatten() {
        let path = std::path::absolute(&dir)?;
        if !path.is_dir() {
            bail!("--dir: {dir} is no directory");
        }
        // It stands in what engines are asked, where these mean something.
        if let Some(sign) = path.to_string_lossy().chars().find(|sign| "'*?[".contains(*sign)) {
            bail!(
                "--dir: {} has a {sign} in its name, which engines take for a pattern or an end; name another one",
                path.display()
            );
        }
        targets.add(&PlanTargets { writable: vec![path.display().to_string()], ..PlanTargets::default() })?;
    }
    let plan = plan(name, args, each)?;
    if plan.steps.most().unwrap_or(1) as usize > args.dir.len().max(1) && !args.dir.is_empty() {
        output::note("there are more client nodes than directories: some share one");
    }
    let out = std::path::absolute(args.out.clone().unwrap_or_else(lab_run::new_directory))?;
    let usual = || setup::usual().filter(|env| setup::python(env).is_ok());
    targets.workload.env = args.env.clone().or_else(usual).map(std::path::absolute).transpose()?;
    targets.workload.values = Some(match &args.values {
        Some(path) => {
            if path.exists() {
                input::check(path).with_context(|| format!("--values {}", path.display()))?;
            }
            std::path::absolute(path)?
        }
        None => out.join("values.json"),
    });
    let clusters: Vec<_> = targets.dirs.iter().filter_map(|dir| mounts::of_file(dir)?.1).collect();
    let (tunables, seen) = (lab_run::changed_tunables(&clusters)?, lab_seen::place(&clusters, &out)?);
    let mut results = run::prepare(vec![plan], &targets, tunables, seen, &out)?;
    lab_run::execute(&mut results)
}
