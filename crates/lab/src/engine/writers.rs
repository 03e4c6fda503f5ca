//! Step load: one more synchronous writer after each period, client after client, until the rate levels off.
//! Threads of this process, each writing its own file with O_DSYNC; a client is a directory (a mount, for
//! instance). Latency is counted by powers of two for the heat map.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use base::{AlignedBuf, ByteSize};

use super::{
    Context, EngineError,
    params::{Kind, Known},
};
use crate::cell::{Cell, Figures, Latency, Second};

/// What can be asked for. `speed` (Mbit/s): where no directory is named, mounts of a small cluster stand in.
pub const PARAMS: Known = &[
    ("bs", Kind::Size(512, 1 << 20)),
    ("per_client", Kind::Number(1, 1024)),
    ("file", Kind::Size(1 << 20, 1 << 40)),
    ("patience", Kind::Number(2, 100)),
    ("speed", Kind::Number(1, 1_000_000)),
];

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

struct Crew {
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    files: Vec<PathBuf>,
}

impl Drop for Crew {
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
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// Runs the whole step load; the step is the most writers there may be.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let size = |key: &str, default: u64| {
        cell.params.get(key).and_then(|v| v.parse::<ByteSize>().ok()).map_or(default, |size| size.0)
    };
    let number = |key: &str, default| cell.params.get(key).and_then(|v| v.parse().ok()).unwrap_or(default);
    let (bs, file) = (size("bs", 4096), size("file", 16 << 20));
    let (per_client, patience) = (number("per_client", 10usize), number("patience", 5usize));
    let own = [context.work.to_owned()];
    let dirs = if context.targets.dirs.is_empty() { &own[..] } else { &context.targets.dirs[..] };
    let most = (cell.step as usize).min(per_client * dirs.len());
    let mut crew =
        Crew { counts: Arc::default(), stop: Arc::default(), threads: Vec::new(), files: Vec::new() };
    let shown: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    context.note_command(format!(
        "up to {most} threads, one more each {} s: pwrite of {} with O_DSYNC, {per_client} in each of {}",
        context.seconds,
        ByteSize(bs),
        shown.join(", ")
    ));
    let mut timeline: Vec<Second> = Vec::new();
    let mut rates = Vec::new();
    let period = Duration::from_secs_f64(context.seconds);
    let mut next = Instant::now();
    while crew.threads.len() < most && !level(&rates, patience) {
        let dir = &dirs[crew.threads.len() / per_client];
        hire(&mut crew, dir, context.part, bs, file)
            .map_err(|e| failed(format!("in {}: {e}", dir.display())))?;
        // Making the file of the new writer is not part of the second.
        let before = crew.counts.read();
        next = next.max(Instant::now()) + period;
        let began = Instant::now();
        while Instant::now() < next {
            if context.stopped() {
                return Err(EngineError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(5).min(next.saturating_duration_since(Instant::now())));
        }
        let ended = Instant::now();
        let now = crew.counts.read();
        let buckets: Vec<u64> = now.iter().zip(&before).map(|(a, b)| a - b).collect();
        let operations = buckets.iter().sum::<u64>();
        rates.push(operations as f64 / (ended - began).as_secs_f64());
        timeline.push(Second { parts: crew.threads.len() as u32, operations, buckets });
        if let Some(error) = crew.counts.error.lock().unwrap_or_else(|e| e.into_inner()).take() {
            return Err(failed(error.to_string()));
        }
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let counts = &crew.counts;
    let all = counts.operations.load(Relaxed).max(1);
    let mut figures = Figures { operations: best, bytes: best * bs as f64, ..Figures::default() };
    let quantile = |q: f64| quantile(&counts.read(), q);
    figures.latency = Some(Latency {
        mean: counts.sum_us.load(Relaxed) as f64 / all as f64,
        p50: quantile(0.5),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: counts.max_us.load(Relaxed) as f64,
    });
    let why = if level(&rates, patience) {
        format!(
            "the rate levelled off: the last {patience} writers added less than {:.0} %",
            LEVEL_GAIN * 100.0
        )
    } else {
        format!("stopped at {most} writers before the rate levelled off")
    };
    figures.notes.push(why);
    figures.timeline = timeline;
    Ok(figures)
}

fn failed(why: String) -> EngineError {
    EngineError::Failed { program: "a writer".into(), why }
}

/// The middle of the bucket, on the logarithmic scale, that holds the quantile; in microseconds.
fn quantile(buckets: &[u64], q: f64) -> f64 {
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

/// One more writer, on a new file that is filled first: an overwrite allocates nothing.
fn hire(crew: &mut Crew, dir: &std::path::Path, part: u32, bs: u64, size: u64) -> io::Result<()> {
    let n = crew.threads.len();
    let path = dir.join(format!(".ropewalk-lab-writer-{part}-{}-{n}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(&path)?;
    crew.files.push(path.clone());
    let mut noise = AlignedBuf::zeroed(1 << 20);
    let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ (n as u64 + 1);
    for word in noise.chunks_exact_mut(8) {
        word.copy_from_slice(&next(&mut random).to_le_bytes());
    }
    for offset in (0..size).step_by(1 << 20) {
        file.write_all_at(&noise, offset)?;
    }
    file.sync_all()?;
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&path)?;
    let (counts, stop) = (crew.counts.clone(), crew.stop.clone());
    let thread = std::thread::Builder::new().name(format!("lab-load-{n}")).spawn(move || {
        while !stop.load(Relaxed) {
            let offset = next(&mut random) % (size / bs) * bs;
            let began = Instant::now();
            if let Err(error) = file.write_all_at(&noise[..bs as usize], offset) {
                *counts.error.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
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
    fn quantiles_are_within_their_power_of_two() {
        let mut buckets = vec![0; BUCKETS];
        buckets[4] = 98;
        buckets[10] = 2;
        assert!((16.0..32.0).contains(&quantile(&buckets, 0.5)));
        assert!((1024.0..2048.0).contains(&quantile(&buckets, 0.99)));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
