//! Bench: what the store reaches on a disk. A pdisk is made in a directory of its own, loaded, and removed
//! at the end. Each measurement gives operations, bytes, latency and the CPU time of the whole process.
//! Payload is kept aligned and shared, as a server's receive buffers are: nothing but the store is measured.

mod worker;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use base::{
    AlignedBuf, ClusterId, Grant, PdiskId, Version,
    stats::{HistSnapshot, Histogram},
    units::UNIT,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wire::crc::unit_crcs;

use self::worker::{Worker, failed, strip, whole};
use crate::{
    error::PdiskError,
    io::IoNode,
    options::{CreateOptions, IoConfig, OpenOptions},
    pdisk::Pdisk,
    random::Random,
};

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Whole strips of 1 MiB, this many at a time.
    Write {
        /// Strips in flight.
        depth: u32,
    },
    /// Whole strips of 1 MiB in order, this many at a time.
    Read {
        /// Strips in flight.
        depth: u32,
    },
    /// 4 KiB anywhere in strips of 1 MiB.
    RandomRead {
        /// Reads in flight, in all batches together.
        depth: u32,
        /// Reads in one batch.
        batch: u32,
    },
    /// 4 KiB over strips that exist, each answered when it is durable.
    SyncWrite {
        /// Writers, each with one write at a time.
        writers: u32,
    },
}

/// How and where to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory on the disk; `pdisk-bench` is made in it and removed.
    pub dir: PathBuf,
    /// Bytes of each pdisk.
    pub size: u64,
    /// Pdisks, each loaded alike.
    pub pdisks: u32,
    /// Time of each measurement.
    pub time: Duration,
    /// The node's queues.
    pub io: IoConfig,
    /// Queues of each pdisk.
    pub queues_per_pdisk: u32,
}

impl Options {
    /// The defaults for a disk.
    pub fn new(dir: &Path) -> Options {
        Options {
            dir: dir.into(),
            size: 2 << 30,
            pdisks: 1,
            time: Duration::from_secs(5),
            io: IoConfig::default(),
            queues_per_pdisk: 1,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What was measured.
    pub load: String,
    /// Operations answered.
    pub operations: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Wall time.
    #[serde(rename = "took_s")]
    pub seconds: f64,
    /// CPU time of the process, all threads.
    #[serde(rename = "cpu_s")]
    pub cpu_seconds: f64,
    /// Median latency of an operation in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Groups that the log was written and flushed for.
    pub groups: u64,
    /// Mean time of one, from its records being taken up to their answers, in microseconds.
    pub group_us: f64,
}

impl Row {
    /// Operations a second.
    pub fn iops(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
    /// Decimal megabytes a second.
    pub fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
    /// Microseconds of CPU an operation.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.operations.max(1) as f64
    }
}

/// What opening a pdisk with many strips takes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OpenRow {
    /// Strips in it.
    pub strips: u64,
    /// Bytes of its data file.
    pub data_bytes: u64,
    /// Seconds to open it after a clean close.
    #[serde(rename = "took_s")]
    pub seconds: f64,
    /// Bytes of memory that the process has more than before, when it is open.
    pub memory_bytes: u64,
    /// The same at its highest while it opened.
    pub peak_bytes: u64,
}

/// What random overwrites make of a pdisk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Aging {
    /// Bytes overwritten, at random places in pieces of random length.
    pub overwritten_bytes: u64,
    /// Pieces a strip of 1 MiB lies in, on average, before and after.
    pub extents_before: f64,
    /// After.
    pub extents_after: f64,
    /// Sequential read before and after.
    pub read_before: Row,
    /// After.
    pub read_after: Row,
}

/// Bytes of the strips measured.
const STRIP: usize = 1 << 20;
/// Adoptions gathered into one batch, as messages carry them.
const ADOPT_BATCH: usize = 16;
/// What is made in the directory.
const NAME: &str = "pdisk-bench";

/// A directory with pdisks for measurements, removed when dropped.
pub struct Bench {
    dir: PathBuf,
    options: Options,
    runtime: tokio::runtime::Runtime,
    pdisks: Vec<Pdisk>,
    /// Strips of each pdisk that are loaded.
    strips: u64,
    payload: Bytes,
    crcs: Arc<Vec<u32>>,
    /// The next version.
    version: u64,
    why_one_queue: Option<String>,
}

impl Bench {
    /// Why there is one I/O queue only, if more were asked for.
    pub fn why_one_queue(&self) -> Option<&str> {
        self.why_one_queue.as_deref()
    }

    /// Makes the pdisks and fills half of each, twice: the other half holds the next versions then, and no measurement
    /// writes where nothing was written before.
    pub fn start(options: Options) -> Result<Bench, PdiskError> {
        let dir = options.dir.join(NAME);
        let node = IoNode::start(options.io.clone())?;
        // One thread: the queues' own threads and this one are what a small server has.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(PdiskError::io("start a runtime for", &dir))?;
        let mut buf = AlignedBuf::zeroed(STRIP);
        let mut random = Random::new(1);
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let payload = buf.freeze();
        let mut bench = Bench {
            why_one_queue: node.why_one_queue().map(str::to_owned),
            crcs: Arc::new(unit_crcs(&payload).collect()),
            strips: options.size / STRIP as u64 / 2,
            dir,
            options,
            runtime,
            pdisks: Vec::new(),
            payload,
            version: 1,
        };
        for n in 0..bench.options.pdisks {
            let dir = bench.dir.join(n.to_string());
            Pdisk::create(&dir, CreateOptions::new(ClusterId(1), PdiskId(n), bench.options.size))?;
            let open = OpenOptions {
                queues_per_pdisk: bench.options.queues_per_pdisk,
                ..OpenOptions::new(ClusterId(1), PdiskId(n))
            };
            bench.pdisks.push(Pdisk::open(&dir, open, &node)?.0);
        }
        bench.load()?;
        bench.load()?;
        Ok(bench)
    }

    /// Whether data and record are flushed together from now on, or the data first.
    pub fn flush_together(&self, together: bool) {
        self.pdisks.iter().for_each(|pdisk| pdisk.flush_together(together));
    }

    fn load(&mut self) -> Result<(), PdiskError> {
        let each = (self.strips * u64::from(self.options.pdisks)).div_ceil(8);
        let workers: Vec<_> = (0..8).map(|w| self.worker(w * each, 8)).collect();
        let all = self.strips * u64::from(self.options.pdisks);
        self.runtime.block_on(async {
            let load = workers.into_iter().enumerate().map(|(w, mut worker)| {
                tokio::spawn(async move {
                    for n in w as u64 * each..((w as u64 + 1) * each).min(all) {
                        worker.write(n).await?;
                    }
                    worker.adopt().await
                })
            });
            join(load.collect()).await
        })?;
        self.version += 1;
        Ok(())
    }

    fn worker(&self, at: u64, step: u64) -> Worker {
        Worker {
            pdisks: self.pdisks.clone(),
            strips: self.strips,
            payload: self.payload.clone(),
            crcs: Arc::clone(&self.crcs),
            version: self.version,
            at,
            step,
            adopt: Vec::new(),
            latency: Histogram::default(),
            random: Random::new(at),
        }
    }

    /// Measures one load.
    pub fn run(&mut self, load: Load) -> Result<Row, PdiskError> {
        let pdisks = u64::from(self.options.pdisks);
        let all = self.strips * pdisks;
        let (name, tasks, operation_bytes) = match load {
            Load::Write { depth } => (format!("write 1 MiB, depth {depth}"), u64::from(depth), STRIP),
            Load::Read { depth } => (format!("read 1 MiB, depth {depth}"), u64::from(depth), STRIP),
            Load::RandomRead { depth, batch } => {
                let name = format!("random read 4 KiB, depth {depth} in batches of {batch}");
                (name, u64::from(depth / batch), UNIT)
            }
            Load::SyncWrite { writers } => {
                (format!("synchronous write 4 KiB, {writers} writers"), u64::from(writers), UNIT)
            }
        };
        let latency = Histogram::default();
        let workers: Vec<_> =
            (0..tasks).map(|t| Worker { latency: latency.clone(), ..self.worker(t, tasks) }).collect();
        let before = self.groups();
        let end = Instant::now() + self.options.time;
        let (start, cpu) = (Instant::now(), cpu_time());
        self.runtime.block_on(async {
            let run = workers.into_iter().map(|mut worker| {
                tokio::spawn(async move {
                    while Instant::now() < end {
                        worker.step(load, all).await?;
                    }
                    worker.adopt().await
                })
            });
            join(run.collect()).await
        })?;
        let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
        let (latency, groups) = (latency.snapshot(), self.groups().since(&before));
        let batch = if let Load::RandomRead { batch, .. } = load { u64::from(batch) } else { 1 };
        let operations = latency.count() * batch;
        // Above every version that a worker has given.
        self.version += 1 << 32;
        Ok(Row {
            load: name,
            operations,
            bytes: operations * operation_bytes as u64,
            seconds,
            cpu_seconds,
            p50_us: latency.quantile(0.5).as_secs_f64() * 1e6,
            p99_us: latency.quantile(0.99).as_secs_f64() * 1e6,
            p999_us: latency.quantile(0.999).as_secs_f64() * 1e6,
            mean_us: latency.mean().as_secs_f64() * 1e6,
            max_us: latency.max().as_secs_f64() * 1e6,
            groups: groups.count(),
            group_us: groups.mean().as_secs_f64() * 1e6,
        })
    }

    /// The group commits of all pdisks so far.
    fn groups(&self) -> HistSnapshot {
        let mut all = HistSnapshot::default();
        self.pdisks.iter().for_each(|p| all.merge(&p.store().stats.commit.snapshot()));
        all
    }

    /// Ages the pdisks: overwrites random ranges of up to 256 KiB until `bytes` have been written, with a
    /// sequential read before and after.
    pub fn age(&mut self, bytes: u64) -> Result<Aging, PdiskError> {
        const WRITERS: u64 = 8;
        let read = Load::Read { depth: 8 };
        let (read_before, extents_before) = (self.run(read)?, self.extents_a_strip());
        let all = self.strips * u64::from(self.options.pdisks);
        let workers: Vec<_> = (0..WRITERS).map(|w| self.worker(w, WRITERS)).collect();
        let written = self.runtime.block_on(async {
            let tasks = workers.into_iter().map(|mut worker| {
                tokio::spawn(async move {
                    let mut written = 0;
                    while written < bytes / WRITERS {
                        written += worker.overwrite(all).await?;
                    }
                    Ok(written)
                })
            });
            join(tasks.collect()).await
        })?;
        self.version += 1 << 32;
        let overwritten_bytes = written.into_iter().sum();
        let extents_after = self.extents_a_strip();
        let read_after = self.run(read)?;
        Ok(Aging { overwritten_bytes, extents_before, extents_after, read_before, read_after })
    }

    fn extents_a_strip(&self) -> f64 {
        let (strips, extents) =
            self.pdisks.iter().map(Pdisk::extents).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        extents as f64 / strips.max(1) as f64
    }

    /// Changes how completions are gathered, live.
    pub fn coalesce(&mut self, count: u32, us: u32) -> Result<(), PdiskError> {
        (self.options.io.io_coalesce_count, self.options.io.io_coalesce_us) = (count, us);
        self.pdisks.first().map_or(Ok(()), |p| p.node().reconfigure(&self.options.io))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.pdisks.clear();
        if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), error = %e, "remove the benchmark's files");
        }
    }
}

/// Makes a pdisk with `strips` strips of 4 KiB in `dir`/pdisk-bench and closes it, for [`open`] to measure.
/// Who calls removes it.
pub fn fill(dir: &Path, strips: u64, io: IoConfig) -> Result<(), PdiskError> {
    const BATCH: u64 = 1024;
    let dir = &dir.join(NAME);
    let node = IoNode::start(io)?;
    let size = strips * UNIT as u64 * 9 / 8 + (64 << 20);
    Pdisk::create(dir, CreateOptions::new(ClusterId(1), PdiskId(0), size))?;
    let options = OpenOptions::new(ClusterId(1), PdiskId(0));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(PdiskError::io("start a runtime for", dir))?;
    let pdisk = Pdisk::open(dir, options.clone(), &node)?.0;
    let payload = AlignedBuf::zeroed(UNIT).freeze();
    let crcs: Vec<u32> = unit_crcs(&payload).collect();
    runtime.block_on(async {
        for first in (0..strips).step_by(BATCH as usize) {
            let ids = first..(first + BATCH).min(strips);
            let version = Version { grant: Grant(1), seq: 1 };
            let batch = ids.clone().map(|n| (whole(strip(n), version, UNIT, &crcs), payload.clone()));
            for answer in pdisk.prepare(batch.collect()).await {
                answer.map_err(failed)?;
            }
            for answer in pdisk.adopt(ids.map(|n| (strip(n), version)).collect()).await {
                answer.map_err(failed)?;
            }
        }
        pdisk.close().await
    })?;
    Ok(())
}

/// Opens the pdisk that [`fill`] made, in a process that has done nothing else before.
pub fn open(dir: &Path, io: IoConfig) -> Result<OpenRow, PdiskError> {
    let node = IoNode::start(io)?;
    let dir = dir.join(NAME);
    let (start, before) = (Instant::now(), memory("VmRSS:"));
    let (pdisk, report) = Pdisk::open(&dir, OpenOptions::new(ClusterId(1), PdiskId(0)), &node)?;
    let seconds = start.elapsed().as_secs_f64();
    let more = |now: u64| now.saturating_sub(before);
    Ok(OpenRow {
        strips: report.strips,
        data_bytes: pdisk.stats().capacity,
        seconds,
        memory_bytes: more(memory("VmRSS:")),
        peak_bytes: more(memory("VmHWM:")),
    })
}

async fn join<T>(tasks: Vec<tokio::task::JoinHandle<Result<T, PdiskError>>>) -> Result<Vec<T>, PdiskError> {
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        let panicked = |e| Err(PdiskError::Failed { reason: format!("a task panicked: {e}") });
        results.push(task.await.unwrap_or_else(panicked));
    }
    results.into_iter().collect()
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A line of this process's status, which is in KiB, in bytes.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found =
        status.lines().find_map(|l| l.strip_prefix(line)?.trim().split(' ').next()?.parse::<u64>().ok());
    found.unwrap_or(0) * 1024
}
