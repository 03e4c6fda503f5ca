//! Names: files created, looked up, listed and removed by threads of this process, each on one of the client
//! nodes' directories in turn. A worker has a directory of its own, or all share one, as in mdtest's two tests. What a
//! cell needs is made before anything is observed; what it made is removed before the next.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use base::ByteSize;

use super::{
    context::{Context, EngineError},
    writers::quantile,
};
use crate::{
    cell::{Cell, Figures, Latency},
    plan::Step,
    removal::{self, REMOVE_MAX},
};

/// Directory of all that the engine makes.
const OWN: &str = ".ropewalk-lab-names";
/// Powers of two of microseconds that are told apart.
const BUCKETS: usize = 26;
/// Between two looks whether the run was stopped.
const LOOK: Duration = Duration::from_millis(20);
/// From the first thread to the common start of all.
const LEAD: Duration = Duration::from_millis(100);

/// What one worker does.
#[derive(Clone)]
struct Job {
    operation: String,
    dir: PathBuf,
    /// How its names begin.
    prefix: String,
    files: u32,
    bytes: usize,
    seconds: f64,
}

/// What it did.
struct Done {
    operations: u64,
    took: Duration,
    buckets: Vec<u64>,
    sum_us: u64,
    max_us: u64,
}

fn number(cell: &Cell, key: &str, default: u32) -> u32 {
    cell.params.get(key).and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Directories of client nodes that take part.
fn nodes(cell: &Cell, context: &Context<'_>) -> Vec<PathBuf> {
    let dirs = match context.targets.dirs.as_slice() {
        [] => vec![context.work.to_owned()],
        dirs => dirs.to_vec(),
    };
    let wanted = match cell.of {
        Step::Nodes => cell.step,
        _ => number(cell, "clients", 1),
    };
    dirs.into_iter().take(wanted.max(1) as usize).collect()
}

/// The jobs of a cell, worker by worker.
fn jobs(cell: &Cell, context: &Context<'_>) -> Vec<Job> {
    let nodes = nodes(cell, context);
    let workers = match cell.of {
        Step::Workers => cell.step,
        _ => number(cell, "threads", 1) * nodes.len() as u32,
    };
    let shared = cell.params.get("shared").is_some_and(|value| value == "true");
    let operation = cell.params.get("operation").map_or("create", String::as_str);
    let bytes = cell.params.get("bytes").and_then(|value| value.parse::<ByteSize>().ok());
    let job = |n: u32| {
        let own = nodes[n as usize % nodes.len()].join(format!("{OWN}-{}", context.part));
        Job {
            operation: operation.to_owned(),
            dir: if shared { own } else { own.join(n.to_string()) },
            prefix: format!("{n}-"),
            files: number(cell, "files", 1000),
            bytes: bytes.map_or(0, |size| size.0 as usize),
            seconds: context.seconds,
        }
    };
    (0..workers).map(job).collect()
}

fn failed(what: &Path, error: &io::Error) -> EngineError {
    EngineError::Failed { program: "metadata".into(), why: format!("{}: {error}", what.display()) }
}

/// Makes the directories, and the files unless they are what is measured.
pub fn prepare(cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
    clean(context);
    for job in jobs(cell, context) {
        fs::create_dir_all(&job.dir).map_err(|e| failed(&job.dir, &e))?;
        if job.operation == "create" {
            continue;
        }
        for n in 0..job.files {
            if context.stopped() {
                return Err(EngineError::Stopped);
            }
            let path = job.path(n);
            create(&path, &vec![7; job.bytes]).map_err(|e| failed(&path, &e))?;
        }
    }
    Ok(())
}

/// Removes what the cells made.
pub fn clean(context: &Context<'_>) {
    for dir in context.targets.dirs.iter().map(PathBuf::as_path).chain([context.work]) {
        // Nothing is there before the first cell; several directories may be one mount.
        let _ = removal::tree(&dir.join(format!("{OWN}-{}", context.part)), REMOVE_MAX);
    }
}

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() { fs::File::create_new(path).map(drop) } else { fs::write(path, bytes) }
}

impl Job {
    fn path(&self, n: u32) -> PathBuf {
        self.dir.join(format!("{}{n}", self.prefix))
    }

    /// The operation number `n`, and how many it was.
    fn step(&self, n: u32, bytes: &[u8]) -> io::Result<u64> {
        let path = self.path(n % self.files);
        match self.operation.as_str() {
            "create" => create(&path, bytes)?,
            "remove" => fs::remove_file(&path)?,
            "read" => {
                let got = fs::read(&path)?;
                if got != bytes {
                    return Err(io::Error::other(format!("{} bytes are not what was written", got.len())));
                }
            }
            "list" => {
                let mut names = 0;
                for entry in fs::read_dir(&self.dir)? {
                    entry?;
                    names += 1;
                }
                return Ok(names);
            }
            _ => {
                fs::symlink_metadata(&path)?;
            }
        }
        Ok(1)
    }

    fn run(&self, start: Instant, stop: &AtomicBool) -> io::Result<Done> {
        let bytes = vec![7; self.bytes];
        let once = matches!(self.operation.as_str(), "create" | "remove");
        let mut done =
            Done { operations: 0, took: Duration::ZERO, buckets: vec![0; BUCKETS], sum_us: 0, max_us: 0 };
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        for n in 0u32.. {
            if began.elapsed().as_secs_f64() >= self.seconds || stop.load(Relaxed) || once && n == self.files
            {
                break;
            }
            let at = Instant::now();
            done.operations += self.step(n, &bytes)?;
            let us = at.elapsed().as_micros() as u64;
            done.buckets[(us.max(1).ilog2() as usize).min(BUCKETS - 1)] += 1;
            done.sum_us += us;
            done.max_us = done.max_us.max(us);
        }
        done.took = began.elapsed();
        Ok(done)
    }
}

/// Runs one cell: as many workers as the step says, over as many client nodes as `clients` says; or the other way.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let jobs = jobs(cell, context);
    let (start, stop) = (Instant::now() + LEAD, Arc::new(AtomicBool::new(false)));
    let mut workers = Vec::new();
    for (n, job) in jobs.iter().cloned().enumerate() {
        let stop = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(format!("lab-load-{n}"));
        let spawned = thread.spawn(move || job.run(start, &stop));
        workers.push(spawned.map_err(|e| failed(Path::new("a thread"), &e))?);
    }
    context.note_command(format!("{} threads of this process: {}", jobs.len(), jobs[0].operation));
    context.load_begins(start);
    while workers.iter().any(|worker| !worker.is_finished()) {
        if context.stopped() {
            stop.store(true, Relaxed);
        }
        std::thread::sleep(LOOK);
    }
    let mut all = Vec::new();
    for (worker, job) in workers.into_iter().zip(&jobs) {
        let gone = || EngineError::Failed { program: "metadata".into(), why: "a worker ended".into() };
        all.push(worker.join().map_err(|_| gone())?.map_err(|e| failed(&job.dir, &e))?);
    }
    if context.stopped() {
        return Err(EngineError::Stopped);
    }
    figures(&all, jobs[0].bytes)
}

fn figures(all: &[Done], bytes: usize) -> Result<Figures, EngineError> {
    let operations: u64 = all.iter().map(|one| one.operations).sum();
    let longest = all.iter().map(|one| one.took.as_secs_f64()).fold(0.0, f64::max);
    if operations == 0 || longest <= 0.0 {
        return Err(EngineError::Output { program: "metadata".into(), why: "no operation was done".into() });
    }
    let mut buckets = vec![0u64; BUCKETS];
    for one in all {
        buckets.iter_mut().zip(&one.buckets).for_each(|(sum, own)| *sum += own);
    }
    let calls: u64 = buckets.iter().sum();
    let latency = Latency {
        mean: all.iter().map(|one| one.sum_us).sum::<u64>() as f64 / calls.max(1) as f64,
        p50: quantile(&buckets, 0.5),
        p99: quantile(&buckets, 0.99),
        p999: quantile(&buckets, 0.999),
        max: all.iter().map(|one| one.max_us).max().unwrap_or(0) as f64,
    };
    // All by the time of the slowest, as mdtest counts.
    let operations = operations as f64 / longest;
    let parts = all.iter().enumerate().map(|(n, one)| {
        (format!("worker {}", n + 1), one.operations as f64 / one.took.as_secs_f64().max(1e-9))
    });
    let parts = parts.collect();
    Ok(Figures {
        operations,
        bytes: operations * bytes as f64,
        latency: Some(latency),
        parts,
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cell::Role,
        observe::LoadGroups,
        plan::{Figure, Params},
        targets::Targets,
    };

    #[test]
    fn names_are_made_seen_and_gone_again() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut targets = Targets::default();
        targets.dirs.extend(dirs.iter().map(|dir| dir.path().to_owned()));
        let (groups, stop) = (LoadGroups::default(), AtomicBool::new(false));
        let context = |seconds| Context {
            targets: &targets,
            work: dirs[0].path(),
            part: 0,
            seconds,
            figure: Figure::Operations,
            stop: &stop,
            groups: &groups,
            ropewalk: None,
            commands: Arc::default(),
            began: Arc::default(),
            led: None,
        };
        for (operation, left) in [("create", 20), ("stat", 20), ("list", 20), ("read", 20), ("remove", 0)] {
            // What is done once to each file ends by itself: on a busy machine five files may take longer than the others have.
            let once = matches!(operation, "create" | "remove");
            let context = context(if once { 60.0 } else { 0.1 });
            for shared in ["true", "false"] {
                let params = [
                    ("operation", operation),
                    ("clients", "2"),
                    ("files", "5"),
                    ("bytes", "3901"),
                    ("shared", shared),
                ];
                let params: Params = params.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
                let (plan, series) = ("t".to_owned(), "s".to_owned());
                let (role, of) = (Role::Point, Step::Workers);
                let cell = Cell { plan, series, role, of, step: 4, first: 0, params, repeat: 0 };
                prepare(&cell, &context).unwrap();
                let figures = run(&cell, &context).unwrap();
                assert!(figures.operations > 0.0 && figures.parts.len() == 4, "{operation}: {figures:?}");
                let names = |job: &Job| (0..9).filter(|n| job.path(*n).exists()).count();
                let all: usize = jobs(&cell, &context).iter().map(names).sum();
                assert_eq!(all, left, "{operation}, shared {shared}");
            }
        }
        clean(&context(0.1));
        assert!(dirs.iter().all(|dir| fs::read_dir(dir.path()).unwrap().count() == 0));
    }
}
