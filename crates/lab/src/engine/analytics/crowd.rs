//! Runs many jobs: a closed loop of so many at a time on each node, from a list whose order comes from the seed. A stop ends all of
//! them, each with its whole process group.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use serde::Deserialize;
use serde_json::Value;

use super::{
    nodes::Nodes,
    setting::{Place, Setting, program_dir},
};
use crate::{
    engine::{
        context::{Context, EngineError},
        process::Running,
    },
    removal::{self, REMOVE_MAX},
    workload::{
        Job, Outcome, Used,
        catalogue::{Test, sort_bytes},
        difference,
    },
};

/// How long who waits for a job of its test to end sleeps before it looks for a stop.
const LOOK: Duration = Duration::from_millis(200);
/// Jobs of the local pass at a time.
const LOCAL: u32 = 2;
/// Each job calculates with one thread: jobs are many, and sums come out the same.
const THREADS: [&str; 4] =
    ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"];

/// What the supervisor prints.
#[derive(Deserialize)]
struct Told {
    exit: i32,
    error: String,
    values: Option<Value>,
    #[serde(flatten)]
    used: Used,
}

/// The jobs of one node that have not begun, and how many of each test run.
struct List {
    waiting: Vec<(&'static Test, u32)>,
    running: BTreeMap<&'static str, u32>,
}

impl List {
    /// The next job that may begin; none if every test that waits has as many running as it may.
    fn next(&mut self, setting: &Setting) -> Option<(&'static Test, u32)> {
        let free = |(test, _): &(&'static Test, u32)| {
            let running = self.running.get(test.name.as_str()).copied().unwrap_or(0);
            running < test.at_once(setting.jobs(test))
        };
        let next = self.waiting.remove(self.waiting.iter().position(free)?);
        *self.running.entry(next.0.name.as_str()).or_default() += 1;
        Some(next)
    }

    fn done(&mut self, test: &'static Test) {
        if let Some(running) = self.running.get_mut(test.name.as_str()) {
            *running -= 1;
        }
    }
}

/// What the threads of one node share.
struct Node<'a> {
    number: u32,
    place: &'a Place,
    list: Mutex<List>,
    ended: Condvar,
}

impl<'a> Node<'a> {
    fn new(number: u32, place: &'a Place, waiting: Vec<(&'static Test, u32)>) -> Node<'a> {
        let list = Mutex::new(List { waiting, running: BTreeMap::new() });
        Node { number, place, list, ended: Condvar::new() }
    }

    /// The next job that may begin; `None` if there is none, or the run was stopped.
    fn next(&self, setting: &Setting, context: &Context<'_>) -> Option<(&'static Test, u32)> {
        let mut list = self.list.lock();
        loop {
            if context.stop.load(Relaxed) || list.waiting.is_empty() {
                return None;
            }
            if let Some(next) = list.next(setting) {
                return Some(next);
            }
            self.ended.wait_for(&mut list, LOOK);
        }
    }

    fn done(&self, test: &'static Test) {
        self.list.lock().done(test);
        self.ended.notify_all();
    }
}

/// The list of one node: round after round, each in an order drawn from the seed.
fn list(setting: &Setting, node: u32) -> Vec<(&'static Test, u32)> {
    let mut draw = setting.seed ^ (u64::from(node) << 32) | 1;
    let mut all = Vec::new();
    for round in 0..setting.rounds {
        let of = |test: &&'static Test| {
            let (test, jobs) = (*test, setting.jobs(test));
            (1..=jobs).map(move |n| (test, round * jobs + n))
        };
        let mut jobs: Vec<(&'static Test, u32)> = setting.tests.iter().flat_map(of).collect();
        for i in (1..jobs.len()).rev() {
            // Marsaglia's xorshift.
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            jobs.swap(i, (draw % (i as u64 + 1)) as usize);
        }
        all.extend(jobs);
    }
    all
}

/// Runs the workload on all nodes.
pub(super) fn run(
    setting: &Setting,
    places: &[Place],
    on: &Nodes,
    expected: &BTreeMap<String, Value>,
    context: &Context<'_>,
) -> Result<Vec<Job>, EngineError> {
    let nodes = (0..).zip(places).map(|(n, place)| Node::new(n + 1, place, list(setting, n)));
    let nodes: Vec<Node<'_>> = nodes.collect();
    let check = |job: &mut Job, value: Option<Value>| {
        if job.outcome != Outcome::Right {
            return;
        }
        let wrong = match (expected.get(&job.test), &value) {
            (Some(expected), Some(value)) => difference(expected, value),
            _ => Some("there is no value".into()),
        };
        job.outcome = wrong.map_or(Outcome::Right, Outcome::Wrong);
    };
    let jobs = all(setting, &nodes, on, context)?;
    Ok(jobs
        .into_iter()
        .map(|(mut job, value)| {
            check(&mut job, value);
            job
        })
        .collect())
}

/// Runs each test once, and gives its values.
pub(super) fn once(
    setting: &Setting,
    place: &Place,
    on: &Nodes,
    context: &Context<'_>,
) -> Result<Vec<(Job, Option<Value>)>, EngineError> {
    let node = Node::new(0, place, setting.tests.iter().map(|test| (*test, 1)).collect());
    let few =
        Setting { at_once: LOCAL, tests: setting.tests.clone(), python: setting.python.clone(), ..*setting };
    all(&few, &[node], on, context)
}

/// Empties the lists of all nodes.
fn all(
    setting: &Setting,
    nodes: &[Node<'_>],
    on: &Nodes,
    context: &Context<'_>,
) -> Result<Vec<(Job, Option<Value>)>, EngineError> {
    let began = Instant::now();
    let out = Mutex::new(Vec::new());
    let work = |node: &Node<'_>| {
        while let Some((test, number)) = node.next(setting, context) {
            let ended = one(setting, node, on, (test, number), began, context);
            node.done(test);
            out.lock().push(ended);
        }
    };
    std::thread::scope(|scope| {
        for node in nodes {
            let most = setting.at_once.min(node.list.lock().waiting.len() as u32);
            for _ in 0..most {
                let work = &work;
                let thread = std::thread::Builder::new().name("lab-jobs".into());
                // Fewer threads run fewer jobs at a time; without any, none ends, which shows below.
                let _ = thread.spawn_scoped(scope, move || work(node));
            }
        }
    });
    if context.stopped() {
        return Err(EngineError::Stopped);
    }
    if let Some(node) = nodes.iter().find(|node| !node.list.lock().waiting.is_empty()) {
        return Err(EngineError::Target(format!("node {}: no thread could be started", node.number)));
    }
    Ok(out.into_inner())
}

/// Runs one job to its end. What cannot be started is a job that failed.
fn one(
    setting: &Setting,
    node: &Node<'_>,
    on: &Nodes,
    (test, number): (&'static Test, u32),
    began: Instant,
    context: &Context<'_>,
) -> (Job, Option<Value>) {
    let started = Instant::now();
    let mut job = Job {
        test: test.name.clone(),
        class: test.class,
        engine: test.engine.clone(),
        node: node.number,
        number,
        started_s: (started - began).as_secs_f64(),
        used: Used::default(),
        outcome: Outcome::Right,
    };
    let (work, util) = (node.place.work.join(job.name()), node.place.util.join(job.name()).join("util"));
    let told = fs::create_dir_all(&work)
        .and_then(|()| fs::create_dir_all(&util))
        .map_err(|e| format!("cannot make {}: {e}", work.display()))
        .and_then(|()| {
            let command = command(setting, node, on, test, &work, &util, context);
            let output = Running::start(command, "python3", context.seconds, context)
                .and_then(|running| running.output(context))
                .map_err(|e| e.to_string())?;
            serde_json::from_str::<Told>(&output).map_err(|e| format!("its supervisor said {output:?}: {e}"))
        });
    let _ = removal::tree(&work, REMOVE_MAX);
    let _ = removal::tree(util.parent().unwrap_or(&util), REMOVE_MAX);
    match told {
        Err(why) => {
            job.used.real_s = started.elapsed().as_secs_f64();
            job.outcome = Outcome::Failed(why);
            (job, None)
        }
        Ok(told) => {
            job.used = told.used;
            if told.exit != 0 {
                let how = if told.exit < 0 {
                    format!("ended by signal {}", -told.exit)
                } else {
                    format!("exit status {}", told.exit)
                };
                let last = told.error.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                job.outcome = Outcome::Failed(format!("{how}: {last}"));
            }
            (job, told.values)
        }
    }
}

fn command(
    setting: &Setting,
    node: &Node<'_>,
    on: &Nodes,
    test: &Test,
    work: &Path,
    util: &Path,
    context: &Context<'_>,
) -> Command {
    let dir = program_dir(context);
    let mut command = on.command(node.number, &setting.python);
    // -B, -s: nothing is written beside the programs, nothing is taken from the user's own packages.
    command.args(["-B", "-s"]).arg(dir.join("supervise.py")).arg(on.groups(node.number));
    command.arg(&setting.python).args(["-B", "-s"]).arg(dir.join(test.program())).arg(&test.name);
    command.args([node.place.data.as_path(), work, util]).arg(sort_bytes(setting.scale).to_string());
    command.envs(THREADS.map(|name| (name, "1"))).env("TMPDIR", util);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::catalogue::{CONCURRENCY, catalogue};

    fn setting(form: usize, rounds: u32) -> Setting {
        let (at_once, tests) = (CONCURRENCY[form], catalogue().test.iter().collect());
        Setting { form, scale: 1.0, seed: 7, rounds, share: 1, at_once, tests, python: "python3".into() }
    }

    /// How many jobs run at a time on average and at most, if a job of a test takes so long.
    fn at_a_time(setting: &Setting, seconds: impl Fn(&Test) -> u32) -> (f64, usize) {
        let mut all = List { waiting: list(setting, 0), running: BTreeMap::new() };
        let (mut now, mut work, mut most) = (0, 0, 0);
        let mut running: Vec<(u32, &'static Test)> = Vec::new();
        loop {
            while running.len() < setting.at_once as usize
                && let Some((test, _)) = all.next(setting)
            {
                running.push((now + seconds(test), test));
                work += seconds(test);
            }
            most = most.max(running.len());
            let Some(next) = running.iter().map(|(end, _)| *end).min() else { break };
            now = next;
            running.retain(|(end, test)| {
                let goes_on = *end > now;
                (!goes_on).then(|| all.done(test));
                goes_on
            });
        }
        assert!(all.waiting.is_empty());
        (f64::from(work) / f64::from(now), most)
    }

    #[test]
    fn as_many_jobs_run_at_a_time_as_the_source_has_by_design() {
        for (form, wanted) in [71, 101].into_iter().enumerate() {
            for rounds in [1, 4, 10] {
                let found = at_a_time(&setting(form, rounds), |_| 10);
                assert_eq!(found, (f64::from(wanted), wanted as usize), "form {form}, {rounds} rounds");
            }
            // If those of some take twice as long, the last of them run alone.
            let uneven = at_a_time(&setting(form, 4), |test| 10 + 10 * (test.name.len() as u32 % 2));
            assert!((0.6..1.0).contains(&(uneven.0 / f64::from(wanted))), "{uneven:?}");
        }
    }

    #[test]
    fn a_test_has_no_more_running_than_its_order_lets_it() {
        let setting = Setting { at_once: 1000, ..setting(0, 4) };
        let mut all = List { waiting: list(&setting, 0), running: BTreeMap::new() };
        while all.next(&setting).is_some() {}
        let running = |name: &str| all.running[name];
        // Serial, both, concurrent: one, those of a round, those of all rounds.
        assert_eq!((running("focus2"), running("gsort"), running("dim_50mil")), (1, 5, 20));
    }
}
