//! What a cell of the workload asks for, where its jobs work, and which Python they run in.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    cell::Cell,
    engine::context::{Context, EngineError},
    plan::Params,
    removal::{self, REMOVE_MAX},
    targets::{ClientNode, Targets},
    workload::{
        catalogue::{self, CONCURRENCY, Catalogue, Test, catalogue},
        data, setup,
    },
};

/// Programs of the jobs, written into the run's own directory.
pub(super) const PROGRAMS: [(&str, &str); 4] = [
    ("supervise.py", include_str!("../../../workload/supervise.py")),
    ("common.py", include_str!("../../../workload/common.py")),
    ("io_tests.py", include_str!("../../../workload/io_tests.py")),
    ("compute_tests.py", include_str!("../../../workload/compute_tests.py")),
];
/// How often, and after how long, what jobs left is tried to be removed again.
const CLEAR_TRIES: u32 = 100;
const CLEAR_EACH: Duration = Duration::from_millis(50);
/// Where the inputs lie in DATA.
const DATA: &str = "ropewalk-workload";

/// What a cell asks for, read from its parameters.
pub(super) struct Setting {
    /// 0: the 20-test form; 1: the 30-test form.
    pub form: usize,
    pub scale: f64,
    pub seed: u64,
    pub rounds: u32,
    /// A round has the jobs of each test divided by this, one at least.
    pub share: u32,
    /// Jobs at a time on each node.
    pub at_once: u32,
    pub tests: Vec<&'static Test>,
    /// The Python of the jobs.
    pub python: PathBuf,
}

impl Setting {
    pub(super) fn of(cell: &Cell, context: &Context<'_>) -> Result<Setting, EngineError> {
        let text = |key: &str| cell.params.get(key).map(String::as_str);
        let tests = tests(&cell.params);
        let form = usize::from(text("tests") == Some("30"));
        let number = |key: &str, default: u32| text(key).and_then(|v| v.parse().ok()).unwrap_or(default);
        Ok(Setting {
            form,
            scale: scale(&cell.params),
            seed: text("seed").and_then(|v| v.parse().ok()).unwrap_or(1),
            rounds: number("rounds", 1),
            share: number("share", 1),
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

/// The distribution's programs that take part.
pub fn programs(params: &Params) -> Vec<&'static str> {
    tests(params).iter().filter_map(|test| Some(catalogue::engine(&test.engine)?.program)).collect()
}

/// The scale of a cell.
fn scale(params: &Params) -> f64 {
    params.get("scale").and_then(|value| value.parse().ok()).unwrap_or(1.0)
}

/// Bytes that a node's inputs and what its jobs write at a time may take, at most.
pub fn bytes(params: &Params) -> u64 {
    let (all, scale) = (catalogue(), scale(params));
    let inputs: u64 = all.input.iter().map(|input| input.bytes(scale)).sum();
    // Each job's files are gone with it; of a test there are as many at a time as its order lets run.
    let rounds = params.get("rounds").and_then(|value| value.parse().ok()).unwrap_or(1);
    let at_once = |test: &Test| test.at_once(test.jobs[1]).min(test.jobs[1] * rounds);
    let written = |test: &Test| f64::from(at_once(test)) * test.writes * all.input_bytes(test, scale) as f64;
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
            "{engine} is no program of the distribution: make the environment of the engines by `ropewalk lab workload setup`, name \
             another one by --env, or say by --engine which engines take part"
        ))),
    }
}

impl Setting {
    /// Jobs of a test in one round.
    pub(super) fn jobs(&self, test: &Test) -> u32 {
        test.jobs[self.form].div_ceil(self.share)
    }
}

/// Node `n`, from 0, if the run made it.
pub(super) fn made<'a>(context: &Context<'a>, n: u32) -> Option<&'a ClientNode> {
    let nodes = &context.targets.nodes;
    nodes.get((context.part + n) as usize % nodes.len().max(1))
}

/// The directories of one client node.
#[derive(Clone)]
pub(super) struct Place {
    pub data: PathBuf,
    pub work: PathBuf,
    pub util: PathBuf,
}

impl Place {
    /// Of node `n`, from 0. Nodes beyond those that have directories share them.
    pub(super) fn of(cell: &Cell, context: &Context<'_>, n: u32) -> Result<Place, EngineError> {
        if let Some(node) = made(context, n)
            && let [data, work, util] = &node.dirs[..]
        {
            return Ok(Place::within(data, work, util));
        }
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
        Ok(Place::within(&own[0], &own[1], &own[2]))
    }

    fn within(data: &Path, work: &Path, util: &Path) -> Place {
        // Of this process only: two runs on one directory do not meet.
        let jobs = format!("ropewalk-workload-{}", std::process::id());
        Place { data: data.join(DATA), work: work.join(&jobs), util: util.join(&jobs) }
    }

    /// Removes what jobs left; the inputs stay.
    pub(super) fn clear(&self) {
        for dir in [&self.work, &self.util] {
            // A job that was killed may be within its last call.
            let mut tries = 0..CLEAR_TRIES;
            while removal::tree(dir, REMOVE_MAX).is_err_and(|e| e.kind() != io::ErrorKind::TimedOut)
                && tries.next().is_some()
            {
                thread::sleep(CLEAR_EACH);
            }
        }
    }
}

/// Makes the inputs of a setting's tests, or sees that they are there.
pub(super) fn make(
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

/// Where the programs of the jobs are.
pub(super) fn program_dir(context: &Context<'_>) -> PathBuf {
    context.work.join("programs")
}
