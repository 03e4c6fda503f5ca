//! The mixed analytics workload on real engines. A client node is a directory named as writable, or three of them (DATA, WORK,
//! UTIL). The inputs are made before anything is observed, and what each test must give is computed once on a local disk; then each
//! node keeps so many jobs running at a time until its list is empty. A job that gives other values than on the local disk fails
//! its cell, whose figures stay.

mod crowd;
mod limits;
mod values;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::context::{Context, EngineError};
use crate::{
    cell::{Cell, Figures},
    plan::Params,
    targets::Targets,
    workload::{
        Outcome,
        catalogue::{self, CONCURRENCY, Catalogue, Test, catalogue},
        data, setup, summarise,
    },
};

/// Programs of the jobs, written into the run's own directory.
const PROGRAMS: [(&str, &str); 4] = [
    ("supervise.py", include_str!("../../workload/supervise.py")),
    ("common.py", include_str!("../../workload/common.py")),
    ("io_tests.py", include_str!("../../workload/io_tests.py")),
    ("compute_tests.py", include_str!("../../workload/compute_tests.py")),
];
/// Memory that a job may need beside what sorting takes, as far as how many run at a time goes.
const JOB_MEMORY: f64 = 200e6;
/// Part of the free memory that jobs may take together.
const MEMORY_PART: f64 = 0.8;
/// Where the inputs lie in DATA.
const DATA: &str = "ropewalk-workload";

/// What a cell asks for, read from its parameters.
struct Setting {
    form: usize,
    scale: f64,
    seed: u64,
    rounds: u32,
    /// Jobs at a time on each node.
    at_once: u32,
    tests: Vec<&'static Test>,
    /// The Python of the jobs.
    python: PathBuf,
}

impl Setting {
    fn of(cell: &Cell, context: &Context<'_>) -> Result<Setting, EngineError> {
        let text = |key: &str| cell.params.get(key).map(String::as_str);
        let tests = tests(&cell.params);
        let form = usize::from(text("tests") == Some("30"));
        let number = |key: &str, default: u32| text(key).and_then(|v| v.parse().ok()).unwrap_or(default);
        Ok(Setting {
            form,
            scale: scale(&cell.params),
            seed: text("seed").and_then(|v| v.parse().ok()).unwrap_or(1),
            rounds: number("rounds", 1),
            at_once: number("concurrency", CONCURRENCY[form]),
            python: python(&tests, context.targets)?,
            tests,
        })
    }
}

/// The tests of the engines that take part.
fn tests(params: &Params) -> Vec<&'static Test> {
    let takes_part = |test: &&Test| {
        params.get("engines").is_none_or(|list| list.split(',').any(|engine| engine == test.engine))
    };
    catalogue().test.iter().filter(takes_part).collect()
}

/// Whether the engines of a series are there.
pub fn ready(params: &Params, targets: &Targets) -> Result<(), EngineError> {
    python(&tests(params), targets).map(drop)
}

/// The scale of a cell.
fn scale(params: &Params) -> f64 {
    params.get("scale").and_then(|value| value.parse().ok()).unwrap_or(1.0)
}

/// Bytes that a node's inputs and what its jobs write at a time may take, at most.
pub fn bytes(params: &Params) -> u64 {
    let (all, scale) = (catalogue(), scale(params));
    let inputs: u64 = all.input.iter().map(|input| input.bytes(scale)).sum();
    // Each job's files are gone with it; every test may be there as often as a round has it.
    let written = |test: &Test| f64::from(test.jobs[1]) * test.writes * all.input_bytes(test, scale) as f64;
    inputs + all.test.iter().map(written).sum::<f64>() as u64
}

/// The Python that has the engines of these tests; each engine's program must be there.
fn python(tests: &[&Test], targets: &Targets) -> Result<PathBuf, EngineError> {
    let mut from_env = None;
    for engine in tests.iter().filter_map(|test| catalogue::engine(&test.engine)) {
        match engine.package {
            Some(package) if !setup::found(engine.program) => {
                return Err(EngineError::Missing { program: engine.program.into(), package });
            }
            Some(_) => {}
            None => from_env = Some(engine.name),
        }
    }
    match (&targets.workload.env, from_env) {
        (Some(env), _) => setup::python(env).map_err(|e| EngineError::Target(e.to_string())),
        (None, None) => Ok("python3".into()),
        (None, Some(engine)) => Err(EngineError::Target(format!(
            "{engine} is no program of the distribution: name the environment that `ropewalk lab workload setup --env DIR` made by --env \
             DIR, or say by --engine which engines take part"
        ))),
    }
}

/// The directories of one client node.
#[derive(Clone)]
struct Place {
    data: PathBuf,
    work: PathBuf,
    util: PathBuf,
}

impl Place {
    /// Of node `n`, from 0. Nodes beyond those that have directories share them.
    fn of(cell: &Cell, context: &Context<'_>, n: u32) -> Result<Place, EngineError> {
        let dirs = &context.targets.dirs;
        let each = if cell.params.get("dirs").is_some_and(|dirs| dirs == "3") { 3 } else { 1 };
        if !dirs.len().is_multiple_of(each) {
            return Err(EngineError::Target(
                "each client node needs three directories: DATA,WORK,UTIL".into(),
            ));
        }
        let own = match dirs.len() / each {
            0 => vec![context.work.join("dir"); 3],
            nodes => {
                let first = (context.part + n) as usize % nodes * each;
                (0..3).map(|i| dirs[first + i.min(each - 1)].clone()).collect()
            }
        };
        // Of this process only: two runs on one directory do not meet.
        let jobs = format!("ropewalk-workload-{}", std::process::id());
        Ok(Place { data: own[0].join(DATA), work: own[1].join(&jobs), util: own[2].join(&jobs) })
    }

    /// Removes what jobs left; the inputs stay.
    fn clear(&self) {
        let _ = fs::remove_dir_all(&self.work);
        let _ = fs::remove_dir_all(&self.util);
    }
}

/// Makes programs, inputs and the values that are expected, before anything is observed.
pub fn prepare(cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
    let setting = Setting::of(cell, context)?;
    let dir = programs(context);
    let write = |(name, text): &(&str, &str)| fs::write(dir.join(name), text);
    fs::create_dir_all(&dir).and_then(|()| PROGRAMS.iter().try_for_each(write)).map_err(|e| {
        EngineError::Failed { program: format!("writing {}", dir.display()), why: e.to_string() }
    })?;
    let all = catalogue();
    for node in 0..cell.step {
        make(all, &setting, &Place::of(cell, context, node)?, context)?;
    }
    values::expected(&setting, context).map(drop)
}

fn make(
    all: &Catalogue,
    setting: &Setting,
    place: &Place,
    context: &Context<'_>,
) -> Result<data::Manifest, EngineError> {
    let inputs = all.inputs(&setting.tests);
    data::make(&place.data, inputs, (setting.seed, setting.scale), context.stop).map_err(|e| match e {
        data::DataError::Stopped => EngineError::Stopped,
        e => EngineError::Target(e.to_string()),
    })
}

fn programs(context: &Context<'_>) -> PathBuf {
    context.work.join("programs")
}

/// Runs the workload on as many client nodes as the step has.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let mut setting = Setting::of(cell, context)?;
    let expected = values::expected(&setting, context)?;
    let mut notes = Vec::new();
    let each = JOB_MEMORY + catalogue::sort_bytes(setting.scale) as f64;
    let room = (free_memory() * MEMORY_PART / each / f64::from(cell.step.max(1))) as u32;
    if room < setting.at_once {
        notes.push(format!(
            "{} jobs at a time on each node were asked for; the free memory has room for {}",
            setting.at_once,
            room.max(1)
        ));
        setting.at_once = room.max(1);
    }
    let places: Vec<Place> =
        (0..cell.step).map(|node| Place::of(cell, context, node)).collect::<Result<_, _>>()?;
    for (node, place) in places.iter().enumerate() {
        // It is there: this only reads what was noted.
        let made = make(catalogue(), &setting, place, context)?;
        let bytes: u64 = made.inputs.iter().map(|made| made.bytes).sum();
        let digests: Vec<String> =
            made.inputs.iter().map(|made| format!("{} {}", made.name, made.digest)).collect();
        notes.push(format!(
            "node {}: inputs in {}, {} from seed {}; digests {}",
            node + 1,
            place.data.display(),
            base::units::human_size(bytes),
            setting.seed,
            digests.join(", ")
        ));
    }
    let limits = limits::Limits::make(&cell.params, cell.step).map_err(EngineError::Target)?;
    notes.extend(limits.note());
    context.load_begins(Instant::now());
    let jobs = crowd::run(&setting, &places, &limits, &expected, context);
    places.iter().for_each(Place::clear);
    let jobs = jobs?;
    let sum = summarise(&jobs, 1.0);
    let right = jobs.iter().filter(|job| job.outcome == Outcome::Right).count();
    Ok(Figures {
        operations: right as f64 / sum.elapsed_s.max(1e-9),
        bytes: sum.bytes_per_second.values().sum(),
        parts: sum.bytes_per_second.iter().map(|(node, rate)| (format!("client {node}"), *rate)).collect(),
        notes,
        jobs,
        ..Figures::default()
    })
}

/// Bytes of memory that are free or can be freed.
fn free_memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map_or(f64::MAX, |kib| kib * 1024.0)
}

/// Whether files there may come from another machine, or through another file system's daemon.
fn is_remote(dir: &Path) -> bool {
    // FUSE, NFS, SMB, CIFS, Ceph, Lustre, GPFS, 9p: linux/magic.h and the makers' headers.
    const REMOTE: [u64; 8] =
        [0x6573_5546, 0x6969, 0x517b, 0xff53_4d42, 0x00c3_6400, 0x0bd0_0bd0, 0x4750_4653, 0x0102_1997];
    rustix::fs::statfs(dir).is_ok_and(|found| REMOTE.contains(&(found.f_type as u64 & 0xffff_ffff)))
}
