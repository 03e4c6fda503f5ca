//! Step load: one more synchronous writer after each period, client after client, until the rate levels off.
//! Threads of this process, each writing its own file with O_DSYNC; a client is a directory (a mount, for
//! instance), or a node where an agent runs: then each node begins when its turn comes, and the leader says when it is
//! enough. Latency is counted by powers of two for the heat map.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use base::{AlignedBuf, ByteSize};
use parking_lot::Mutex;

use super::context::{Context, EngineError};
use crate::cell::{Cell, Figures, Latency, Second};

/// A rate has levelled off when the last writers, as many as `patience` says, added less than this part to it.
pub const LEVEL_GAIN: f64 = 0.05;
/// Powers of two of microseconds that are told apart: up to 2^25 us, half a minute.
const BUCKETS: usize = 26;
/// How long a writer may take to end once told to.
const JOIN_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counts {
    buckets: [AtomicU64; BUCKETS],
    operations: AtomicU64,
    sum_us: AtomicU64,
    max_us: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

impl Counts {
    fn add(&self, took: Duration) {
        let us = took.as_micros() as u64;
        let bucket = us.max(1).ilog2() as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.operations.fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
        self.max_us.fetch_max(us, Relaxed);
    }
    fn read(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect()
    }
}

/// Whether a row of rates, one for each number of writers, has levelled off: the best of the last `patience`
/// is not `LEVEL_GAIN` above the best before them. A falling rate has levelled off as well.
pub fn level(rates: &[f64], patience: usize) -> bool {
    if patience == 0 || rates.len() <= patience {
        return false;
    }
    let best = |list: &[f64]| list.iter().copied().fold(0.0, f64::max);
    let (before, last) = rates.split_at(rates.len() - patience);
    best(last) < best(before) * (1.0 + LEVEL_GAIN)
}

/// Where this node's writers write, and how many there may be.
struct Job {
    bs: u64,
    file: u64,
    per_client: usize,
    patience: usize,
    dirs: Vec<PathBuf>,
    /// Writers of all nodes at most.
    most: usize,
    /// Writers of the nodes that come before this one.
    before: usize,
}

impl Job {
    fn of(cell: &Cell, context: &Context<'_>) -> Job {
        let size = |key: &str, default: u64| {
            cell.params.get(key).and_then(|v| v.parse::<ByteSize>().ok()).map_or(default, |size| size.0)
        };
        let per_client = per_client(cell);
        let mut dirs = context.targets.dirs.clone();
        if dirs.is_empty() {
            dirs.push(context.work.to_owned());
        }
        let mut most = cell.step as usize;
        match context.led {
            // One of several nodes is one client, whatever it may write in.
            Some(_) => dirs.truncate(1),
            None => most = most.min(per_client * dirs.len()),
        }
        let before = context.part as usize * per_client;
        Job {
            bs: size("bs", 4096),
            file: size("file", 16 << 20),
            per_client,
            patience: patience(cell),
            dirs,
            most,
            before,
        }
    }
    /// This node's writers when all nodes together have so many.
    fn own(&self, all: usize) -> usize {
        all.saturating_sub(self.before).min(self.per_client * self.dirs.len())
    }
    fn path(&self, part: u32, n: usize) -> PathBuf {
        self.dirs[n / self.per_client].join(format!("{}{n}", prefix(part)))
    }
}

fn number(cell: &Cell, key: &str, default: usize) -> usize {
    cell.params.get(key).and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Writers of one client.
pub fn per_client(cell: &Cell) -> usize {
    number(cell, "per_client", 10)
}

/// Writers after which a rate that does not grow has levelled off.
pub fn patience(cell: &Cell) -> usize {
    number(cell, "patience", 5)
}

/// Makes the writers' files and fills them: an overwrite allocates nothing, and making them is no part of the load.
pub fn prepare(cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
    let job = Job::of(cell, context);
    for n in 0..job.own(job.most) {
        if context.stopped() {
            return Err(EngineError::Stopped);
        }
        let path = job.path(context.part, n);
        if let Err(e) = fill(&path, n, job.file) {
            clean(context);
            return Err(failed(format!("{}: {e}", path.display())));
        }
    }
    Ok(())
}

/// Removes them.
pub fn clean(context: &Context<'_>) {
    let own = prefix(context.part);
    for dir in context.targets.dirs.iter().map(PathBuf::as_path).chain([context.work]) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(&own)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How the names of this process's files begin.
fn prefix(part: u32) -> String {
    format!(".ropewalk-lab-writer-{part}-{}-", std::process::id())
}

fn fill(path: &Path, n: usize, size: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let noise = noise(&mut seed(n));
    for offset in (0..size).step_by(noise.len()) {
        let length = noise.len().min((size - offset) as usize);
        file.write_all_at(&noise[..length], offset)?;
    }
    file.sync_all()
}

struct Writers {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let end = Instant::now() + JOIN_MAX;
        for thread in self.threads.drain(..) {
            // A write that hangs must not hang the lab.
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Runs the whole step load; the step is the most writers there may be.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let job = Job::of(cell, context);
    let shown: Vec<String> = job.dirs.iter().map(|dir| dir.display().to_string()).collect();
    context.note_command(format!(
        "up to {} threads, one more each {} s: pwrite of {} with O_DSYNC, {} in each of {}",
        job.own(job.most),
        context.seconds,
        ByteSize(job.bs),
        job.per_client,
        shown.join(", ")
    ));
    let mut crew = Writers { counts: Arc::default(), stop: Arc::default(), threads: Vec::new() };
    let (mut timeline, mut rates) = (Vec::new(), Vec::new());
    let (began, mut before) = (Instant::now(), crew.counts.read());
    for all in 1..=job.most {
        while crew.threads.len() < job.own(all) {
            let path = job.path(context.part, crew.threads.len());
            hire(&mut crew, &path, job.bs, job.file)
                .map_err(|e| failed(format!("{}: {e}", path.display())))?;
        }
        // From the common start on, so that the periods of all nodes are the same.
        let end = began + Duration::from_secs_f64(context.seconds * all as f64);
        while Instant::now() < end {
            if context.stopped() {
                return Err(EngineError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(5).min(end.saturating_duration_since(Instant::now())));
        }
        let now = crew.counts.read();
        let buckets: Vec<u64> = now.iter().zip(&before).map(|(a, b)| a - b).collect();
        before = now;
        let operations = buckets.iter().sum::<u64>();
        rates.push(operations as f64);
        timeline.push(Second { parts: crew.threads.len() as u32, operations, buckets });
        if let Some(error) = crew.counts.error.lock().take() {
            return Err(failed(error.to_string()));
        }
        let enough = match context.led {
            Some(led) => led.note(operations),
            None => level(&rates, job.patience),
        };
        if enough {
            break;
        }
    }
    // What was busy when it was level says what the limit is.
    let growing = rates.len().saturating_sub(job.patience) as f64;
    context.load_begins(began + Duration::from_secs_f64(context.seconds * growing));
    let counts = &crew.counts;
    let done = counts.operations.load(Relaxed);
    let mean = counts.sum_us.load(Relaxed) as f64 / done.max(1) as f64;
    let mut figures = figures(timeline, job.bs, context.seconds, mean, counts.max_us.load(Relaxed) as f64);
    if context.led.is_none() {
        figures.notes.push(why_ended(&rates, job.patience));
    }
    Ok(figures)
}

fn why_ended(rates: &[f64], patience: usize) -> String {
    if level(rates, patience) {
        let gain = LEVEL_GAIN * 100.0;
        format!("the rate levelled off: the last {patience} writers added less than {gain:.0} %")
    } else {
        format!("stopped at {} writers before the rate levelled off", rates.len())
    }
}

/// The best period, and latency over all of them.
fn figures(timeline: Vec<Second>, bs: u64, seconds: f64, mean: f64, max: f64) -> Figures {
    let best = timeline.iter().map(|second| second.operations).max().unwrap_or(0) as f64 / seconds;
    let mut buckets = vec![0; BUCKETS];
    for (i, count) in timeline.iter().flat_map(|second| second.buckets.iter().enumerate()) {
        buckets[i.min(BUCKETS - 1)] += count;
    }
    let quantile = |q: f64| quantile(&buckets, q);
    let latency = Latency { mean, p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max };
    let latency = Some(latency);
    Figures { operations: best, bytes: best * bs as f64, latency, timeline, ..Figures::default() }
}

/// What several nodes gave in the same periods, as one load. Each node's part is what it gave in the best period.
pub fn together(cell: &Cell, seconds: f64, nodes: &[(String, Figures)]) -> Figures {
    let periods = nodes.iter().map(|(_, figures)| figures.timeline.len()).min().unwrap_or(0);
    let mut all = vec![Second { buckets: vec![0; BUCKETS], ..Second::default() }; periods];
    let (mut done, mut sum_us, mut max) = (0.0, 0.0, 0.0f64);
    for (_, figures) in nodes {
        for (sum, second) in all.iter_mut().zip(&figures.timeline) {
            sum.parts += second.parts;
            sum.operations += second.operations;
            sum.buckets.iter_mut().zip(&second.buckets).for_each(|(sum, count)| *sum += count);
        }
        let operations = figures.timeline.iter().map(|second| second.operations).sum::<u64>() as f64;
        let latency = figures.latency.unwrap_or_default();
        done += operations;
        sum_us += latency.mean * operations;
        max = max.max(latency.max);
    }
    let rates: Vec<f64> = all.iter().map(|second| second.operations as f64).collect();
    let best = (0..periods).max_by(|&a, &b| rates[a].total_cmp(&rates[b]));
    let bs = cell.params.get("bs").and_then(|v| v.parse::<ByteSize>().ok()).map_or(4096, |size| size.0);
    let mut whole = figures(all, bs, seconds, sum_us / f64::max(done, 1.0), max);
    whole.notes.push(why_ended(&rates, patience(cell)));
    for (name, figures) in nodes {
        let part = best.map_or(0, |best| figures.timeline[best].operations);
        whole.parts.insert(name.clone(), part as f64 / seconds);
    }
    whole
}

fn failed(why: String) -> EngineError {
    EngineError::Failed { program: "a writer".into(), why }
}

/// The middle of the bucket, on the logarithmic scale, that holds the quantile; in microseconds.
pub fn quantile(buckets: &[u64], q: f64) -> f64 {
    let all: u64 = buckets.iter().sum();
    let wanted = (all as f64 * q).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (i, count) in buckets.iter().enumerate() {
        seen += count;
        if seen >= wanted {
            return 2f64.powi(i as i32) * std::f64::consts::SQRT_2;
        }
    }
    0.0
}

fn seed(n: usize) -> u64 {
    0x9e37_79b9_7f4a_7c15u64 ^ (n as u64 + 1)
}

fn noise(random: &mut u64) -> AlignedBuf {
    let mut noise = AlignedBuf::zeroed(1 << 20);
    for word in noise.chunks_exact_mut(8) {
        word.copy_from_slice(&next(random).to_le_bytes());
    }
    noise
}

/// One more writer, on its file.
fn hire(crew: &mut Writers, path: &Path, bs: u64, size: u64) -> io::Result<()> {
    let n = crew.threads.len();
    let mut random = seed(n);
    let noise = noise(&mut random);
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path)?;
    let (counts, stop) = (crew.counts.clone(), crew.stop.clone());
    let thread = std::thread::Builder::new().name(format!("lab-load-{n}")).spawn(move || {
        while !stop.load(Relaxed) {
            let offset = next(&mut random) % (size / bs) * bs;
            let began = Instant::now();
            if let Err(error) = file.write_all_at(&noise[..bs as usize], offset) {
                *counts.error.lock() = Some(error);
                return;
            }
            counts.add(began.elapsed());
        }
    })?;
    crew.threads.push(thread);
    Ok(())
}

/// xorshift64.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_and_growth_is_not_one() {
        let growing: Vec<f64> = (1..=12).map(|n| f64::from(n) * 100.0).collect();
        assert!(!level(&growing, 3) && !level(&[100.0, 100.0], 3) && !level(&[], 3));
        assert!(level(&[100.0, 200.0, 300.0, 303.0, 301.0, 305.0], 3));
        assert!(level(&[100.0, 200.0, 300.0, 250.0, 240.0, 230.0], 3), "a falling rate");
        assert!(!level(&[100.0, 200.0, 300.0, 303.0, 301.0, 330.0], 3), "it grows again");
    }

    #[test]
    fn nodes_are_one_load() {
        let second = |parts, operations: u64| Second { parts, operations, buckets: vec![0, operations] };
        let node = |list: &[(u32, u64)], mean| {
            let timeline = list.iter().map(|&(parts, operations)| second(parts, operations)).collect();
            figures(timeline, 4096, 0.5, mean, mean * 2.0)
        };
        // The second node's turn comes with the third period; it has seen one period more.
        let a = node(&[(1, 10), (2, 20), (2, 18)], 3.0);
        let b = node(&[(0, 0), (0, 0), (1, 10), (1, 50)], 1.0);
        let params = [("bs".to_owned(), "4k".to_owned())].into();
        let (plan, series) = ("t".into(), "s".into());
        let (role, of) = (crate::cell::Role::Point, crate::plan::Step::Writers);
        let cell = Cell { plan, series, role, of, step: 4, first: 0, params, repeat: 0 };
        let all = together(&cell, 0.5, &[("a".into(), a), ("b".into(), b)]);
        let seen: Vec<(u32, u64)> = all.timeline.iter().map(|s| (s.parts, s.operations)).collect();
        assert_eq!(seen, [(1, 10), (2, 20), (3, 28)]);
        assert_eq!((all.operations, all.bytes), (56.0, 56.0 * 4096.0));
        assert_eq!((all.parts["a"], all.parts["b"]), (36.0, 20.0));
        let latency = all.latency.unwrap();
        assert!(latency.max == 6.0 && latency.mean > 1.0 && latency.mean < 3.0, "{latency:?}");
    }

    #[test]
    fn quantiles_are_within_their_power_of_two() {
        let mut buckets = vec![0; BUCKETS];
        buckets[4] = 98;
        buckets[10] = 2;
        assert!((16.0..32.0).contains(&quantile(&buckets, 0.5)));
        assert!((1024.0..2048.0).contains(&quantile(&buckets, 0.99)));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
