//! Runs a job: a thread each with its own open file, a common start, latencies of every record.
//! Stops at the first error, or when told to; what was measured until then is not reported.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant, SystemTime},
};

use base::{AlignedBuf, stats::Histogram};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use super::{
    cpu::{self, Process},
    job::{BadJob, Job, Operation, Spec},
    offsets::{Visit, Visits},
    report::{Part, Report},
    target::{PerfFile, Target},
};

/// How often progress is told, and whether to stop is asked.
const TICK: Duration = Duration::from_millis(100);

/// Memory of the records that are written without a copy, all threads together.
const SHARED_BYTES: u64 = 256 << 20;
/// Such records of a thread at most.
const SHARED_RECORDS_MAX: u64 = 4096;

/// Why a job gave no result.
#[derive(Debug, Error)]
pub enum PerfError {
    /// It cannot be run as given.
    #[error(transparent)]
    Bad(#[from] BadJob),
    /// The file is not there.
    #[error("{} does not exist; make it first: create seq {} -r 1m -n SIZE", path.display(), path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A call failed.
    #[error("{action} {} failed", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file ended before it should.
    #[error("{} gave {got} of {record} bytes at {offset}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// Bytes that came.
        got: usize,
        /// Bytes of a record.
        record: usize,
    },
    /// A record with `-V` has other bytes than were written.
    #[error("{} has wrong bytes at {offset}: expected {expected:#018x}, found {found:#018x}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Of the first wrong word.
        offset: u64,
        /// The pattern.
        expected: u64,
        /// What was read.
        found: u64,
    },
    /// Told to stop.
    #[error("stopped before the job was done")]
    Stopped,
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Everything around a job.
pub struct Surroundings<'a> {
    /// Processes whose CPU time is counted besides this one.
    pub processes: &'a [Process],
    /// All nodes of one test begin at this time.
    pub start_at: Option<SystemTime>,
    /// Set: the job stops at the next record.
    pub stop: &'a AtomicBool,
    /// Told now and then how many bytes of how many were moved.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// Runs a job over `path`.
pub fn run(
    target: &dyn Target,
    path: &Path,
    spec: &Spec,
    around: &Surroundings<'_>,
) -> Result<Report, PerfError> {
    let failed = |action| move |source| PerfError::File { action, path: path.to_owned(), source };
    let len = target.len(path).map_err(failed("look at"))?;
    if len.is_none() && spec.operation != Operation::Create {
        return Err(PerfError::Missing { path: path.to_owned() });
    }
    let job = spec.over(len, target.block_size(path))?;
    let first = target.open(path, &job, job.spec.operation == Operation::Create).map_err(failed("open"))?;
    let mut uncached = false;
    if job.spec.invalidate || job.spec.operation == Operation::Uncache {
        first.uncache().map_err(failed("uncache"))?;
        uncached = true;
    }
    if job.spec.operation == Operation::Uncache {
        return Ok(Report::uncached(path, job));
    }
    let mut files = vec![first];
    for _ in 1..job.spec.threads {
        files.push(target.open(path, &job, false).map_err(failed("open"))?);
    }
    let mut report = measured(files, path, &job, around)?;
    report.uncached = uncached;
    Ok(report)
}

/// What the threads of a job share.
struct Shared<'a> {
    job: &'a Job,
    path: &'a Path,
    stop: &'a AtomicBool,
    /// A thread failed: the others stop.
    failed: AtomicBool,
    /// Threads that have their buffers.
    ready: AtomicU32,
    /// Closed until all are ready; then whether to go.
    gate: (Mutex<Option<bool>>, Condvar),
    moved: AtomicU64,
    reads: Histogram,
    writes: Histogram,
}

impl Shared<'_> {
    fn open_gate(&self, go: bool) {
        *self.gate.0.lock() = Some(go);
        self.gate.1.notify_all();
    }

    fn pass_gate(&self) -> bool {
        self.ready.fetch_add(1, Relaxed);
        let mut gate = self.gate.0.lock();
        self.gate.1.wait_while(&mut gate, |go| go.is_none());
        gate.unwrap_or(false)
    }

    fn error(&self, action: &'static str) -> impl Fn(io::Error) -> PerfError + '_ {
        move |source| PerfError::File { action, path: self.path.to_owned(), source }
    }
}

fn measured(
    files: Vec<Box<dyn PerfFile>>,
    path: &Path,
    job: &Job,
    around: &Surroundings<'_>,
) -> Result<Report, PerfError> {
    let shared = &Shared {
        job,
        path,
        stop: around.stop,
        failed: AtomicBool::new(false),
        ready: AtomicU32::new(0),
        gate: Default::default(),
        moved: AtomicU64::new(0),
        reads: Histogram::default(),
        writes: Histogram::default(),
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            let work = move || visit_all(file, number as u32, shared);
            match thread::Builder::new().name(format!("perf-{number}")).spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.open_gate(false);
                    return Err(PerfError::Thread(error));
                }
            }
        }
        while shared.ready.load(Relaxed) < job.spec.threads {
            thread::sleep(TICK / 100);
        }
        wait_for_start(around);
        let before = (cpu::sample(around.processes), cpu::machine());
        let begun = Instant::now();
        shared.open_gate(true);
        while threads.iter().any(|t| !t.is_finished()) {
            thread::sleep(TICK.min(begun.elapsed() / 20).max(TICK / 100));
            (around.progress)(shared.moved.load(Relaxed), job.transfer_bytes);
        }
        let mut ended = begun;
        let mut one_file = None;
        for thread in threads {
            let (file, end) = thread.join().unwrap_or(Err(PerfError::Stopped))?;
            ended = ended.max(end);
            one_file = Some(file);
        }
        if around.stop.load(Relaxed) {
            return Err(PerfError::Stopped);
        }
        if let Some(file) = one_file.filter(|_| job.spec.fsync && job.writes()) {
            file.sync().map_err(shared.error("fsync"))?;
            ended = Instant::now();
        }
        let after = (cpu::sample(around.processes), cpu::machine());
        let parts = [&shared.reads, &shared.writes].map(|h| Part::new(&h.snapshot(), job.record_bytes));
        let cpu = cpu::between(around.processes, &before.0, &after.0);
        let machine = before.1.zip(after.1);
        Ok(Report::new(path, job.clone(), ended - begun, parts, cpu, machine))
    })
}

fn wait_for_start(around: &Surroundings<'_>) {
    let left = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    while let Some(left) = around.start_at.map(left).filter(|left| !left.is_zero()) {
        if around.stop.load(Relaxed) {
            return;
        }
        thread::sleep(left.min(TICK));
    }
}

/// One thread: all its visits. Returns the file, still open, and when it was through.
fn visit_all(
    file: Box<dyn PerfFile>,
    number: u32,
    shared: &Shared<'_>,
) -> Result<(Box<dyn PerfFile>, Instant), PerfError> {
    let job = shared.job;
    let mut buffer = AlignedBuf::zeroed(job.record_bytes as usize);
    fill(&mut buffer, u64::from(number) << 40);
    let memory = shared_records(&*file, &buffer, job);
    let mut turn = 0;
    if !shared.pass_gate() {
        return Err(PerfError::Stopped);
    }
    for visit in Visits::new(job, number) {
        if shared.stop.load(Relaxed) || shared.failed.load(Relaxed) {
            break;
        }
        let record = memory.get(turn % memory.len().max(1));
        turn += usize::from(!visit.read);
        if let Err(error) = one(&*file, visit, &mut buffer, record, shared) {
            shared.failed.store(true, Relaxed);
            return Err(error);
        }
        shared.moved.fetch_add(job.record_bytes, Relaxed);
    }
    Ok((file, Instant::now()))
}

/// Records that are written in turn, if the file takes them without a copy. They are more than the CPU's caches hold: as if an
/// application had made each of them.
fn shared_records(file: &dyn PerfFile, content: &[u8], job: &Job) -> Vec<Bytes> {
    if !job.writes() || job.spec.verify || !file.takes_shared() {
        return Vec::new();
    }
    let records = SHARED_BYTES / u64::from(job.spec.threads.max(1)) / job.record_bytes.max(1);
    let one = |_| {
        let mut record = AlignedBuf::zeroed(content.len());
        record.copy_from_slice(content);
        record.freeze()
    };
    (0..records.clamp(1, SHARED_RECORDS_MAX)).map(one).collect()
}

fn one(
    file: &dyn PerfFile,
    visit: Visit,
    buffer: &mut [u8],
    record: Option<&Bytes>,
    shared: &Shared<'_>,
) -> Result<(), PerfError> {
    let (job, offset) = (shared.job, visit.offset);
    if visit.read {
        let begun = Instant::now();
        let got = file.read(offset, buffer, job.spec.verify).map_err(shared.error("read"))?;
        shared.reads.record(begun.elapsed());
        if got != buffer.len() {
            return Err(PerfError::Short { path: shared.path.to_owned(), offset, got, record: buffer.len() });
        }
        return if job.spec.verify { check(buffer, offset, shared.path) } else { Ok(()) };
    }
    if job.spec.verify {
        fill(buffer, offset);
    }
    let begun = Instant::now();
    let written = match record {
        Some(record) => file.write_shared(offset, record),
        None => file.write(offset, buffer),
    };
    written.map_err(shared.error("write"))?;
    shared.writes.record(begun.elapsed());
    Ok(())
}

/// Words that tell where they belong; the rest of a record that is no multiple of 8 stays as it is.
fn fill(buffer: &mut [u8], offset: u64) {
    for (i, word) in buffer.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(offset + i as u64 * 8).to_le_bytes());
    }
}

fn check(buffer: &[u8], offset: u64, path: &Path) -> Result<(), PerfError> {
    for (i, word) in buffer.chunks_exact(8).enumerate() {
        let at = offset + i as u64 * 8;
        let found = word.iter().rev().fold(0, |found, &byte| found << 8 | u64::from(byte));
        if found != word_at(at) {
            return Err(PerfError::Wrong { path: path.to_owned(), offset: at, expected: word_at(at), found });
        }
    }
    Ok(())
}

/// The word that belongs at a byte of the file; no two are alike, and none is zero.
fn word_at(offset: u64) -> u64 {
    (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{Amount, Mounted, Pattern};

    fn spec(operation: Operation, pattern: Pattern) -> Spec {
        Spec {
            record: Some(10_000),
            amount: Some(Amount::Records(100)),
            threads: 3,
            fsync: true,
            verify: true,
            ..crate::perf::job::spec(operation, pattern)
        }
    }

    fn run_on(path: &Path, spec: &Spec) -> Result<Report, PerfError> {
        let around = Surroundings {
            processes: &[],
            start_at: None,
            stop: &AtomicBool::new(false),
            progress: &|_, _| (),
        };
        run(&Mounted, path, spec, &around)
    }

    #[test]
    fn what_is_made_is_read_back_in_every_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let made = run_on(&path, &spec(Operation::Create, Pattern::Seq)).unwrap();
        assert_eq!((made.bytes, made.operations), (1_000_000, 100));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1_000_000);
        for pattern in [Pattern::Seq, Pattern::Rand, Pattern::Strided] {
            let read = run_on(&path, &spec(Operation::Read, pattern)).unwrap();
            assert_eq!((read.bytes, read.reads.operations, read.writes.operations), (1_000_000, 100, 0));
            let mixed = run_on(&path, &spec(Operation::MixRw, pattern)).unwrap();
            assert_eq!(mixed.reads.operations + mixed.writes.operations, 100);
            assert!((68..=72).contains(&mixed.reads.operations), "{}", mixed.reads.operations);
        }
        let uncached = run_on(&path, &spec(Operation::Uncache, Pattern::Seq)).unwrap();
        assert_eq!((uncached.bytes, uncached.uncached), (0, true));
    }

    #[test]
    fn a_wrong_byte_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        run_on(&path, &spec(Operation::Create, Pattern::Seq)).unwrap();
        use std::os::unix::fs::FileExt;
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(b"!", 480_000).unwrap();
        let error = run_on(&path, &spec(Operation::Read, Pattern::Seq)).unwrap_err();
        assert!(matches!(error, PerfError::Wrong { offset: 480_000, .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_and_a_stop_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let missing = run_on(&path, &spec(Operation::Read, Pattern::Seq)).unwrap_err();
        assert!(missing.to_string().contains("make it first"), "{missing}");
        let around = Surroundings {
            processes: &[],
            start_at: None,
            stop: &AtomicBool::new(true),
            progress: &|_, _| (),
        };
        let stopped = run(&Mounted, &path, &spec(Operation::Create, Pattern::Seq), &around).unwrap_err();
        assert!(matches!(stopped, PerfError::Stopped));
    }
}
