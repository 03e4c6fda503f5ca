//! The fault engine: a layer between the stores and the I/O engine that spoils requests by plan (`plan`),
//! holds writes in memory until they are flushed (`held`) and keeps a record of them (`trace`).
//! What no rule touches goes to the engine below as if the layer were not there; the rest is done by the
//! layer's own threads. Requests are completed exactly once, as by any engine.

mod held;
mod plan;
mod trace;

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

#[cfg(test)]
pub(crate) use held::SECTOR;
use held::{Held, overlay, write_sectors};
pub use plan::FaultPlan;
use plan::{Action, On, Rule};
pub use trace::{Trace, TraceEvent};

use super::{
    file::IoFile,
    inbox::{Inbox, join_all},
    request::{Job, Op},
};
use crate::random::Random;

/// Who is held up for so long is told of, so that whoever waits for it sees that it began.
const LONG: Duration = Duration::from_secs(1);
/// How often it is looked whether delays have ended, where a file says so.
const LOOK: Duration = Duration::from_millis(50);
/// Threads that do what the engine below does not.
const THREADS: usize = 4;

/// What is to happen to one request.
#[derive(Clone, Copy, Default)]
struct Verdict {
    delay: Duration,
    /// The error it ends with.
    error: Option<i32>,
    /// Seed of the choice of sectors.
    torn: Option<u64>,
}

struct Rules {
    list: Vec<(Rule, u64, u64)>,
    random: Random,
}

impl Rules {
    fn new(plan: &FaultPlan) -> Rules {
        Rules { list: plan.rules.iter().map(|r| (r.clone(), 0, 0)).collect(), random: Random::new(plan.seed) }
    }

    fn judge(&mut self, on: On, path: &Path) -> Verdict {
        let mut verdict = Verdict::default();
        for (rule, fitted, hit) in self.list.iter_mut().filter(|(r, ..)| r.fits(on, path)) {
            *fitted += 1;
            if *fitted <= rule.after || *hit >= rule.times || !self.random.chance(rule.per_million) {
                continue;
            }
            *hit += 1;
            match rule.action {
                Action::Error(number) => verdict.error = Some(number),
                Action::Torn => verdict.torn = Some(self.random.next()),
                Action::Delay(time) => verdict.delay += time,
            }
        }
        verdict
    }
}

struct Due {
    at: Instant,
    order: u64,
    job: Job,
    verdict: Verdict,
    trace_id: Option<u64>,
    below: Arc<Inbox>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.order == other.order
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
struct Waiting {
    due: BinaryHeap<Reverse<Due>>,
    submitted: u64,
    stop: bool,
}

struct Shared {
    rules: Mutex<Rules>,
    noflush: bool,
    until: Option<PathBuf>,
    held: Option<Held>,
    trace: Option<Trace>,
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

pub(super) struct Layer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Layer {
    pub fn start(plan: &FaultPlan) -> io::Result<Layer> {
        let shared = Arc::new(Shared {
            rules: Mutex::new(Rules::new(plan)),
            noflush: plan.noflush,
            until: plan.until.clone(),
            held: plan.volatile.map(|v| Held::new(v, plan.seed)),
            trace: plan.trace.clone(),
            waiting: Mutex::default(),
            wake: Condvar::new(),
        });
        let mut layer = Layer { shared, threads: Vec::new() };
        for t in 0..THREADS {
            let shared = Arc::clone(&layer.shared);
            let thread = std::thread::Builder::new().name(format!("fault{t}")).spawn(move || run(&shared));
            layer.threads.push(thread?);
        }
        Ok(layer)
    }

    /// New rules from now on. What is held, traced, not flushed or to go on when a file exists stays so.
    pub fn change_rules(&self, plan: &FaultPlan) {
        *self.shared.rules.lock() = Rules::new(plan);
    }

    /// How many requests are held up here now.
    pub fn held_up(&self) -> usize {
        self.shared.waiting.lock().due.len()
    }

    /// What is held up goes on at once.
    pub fn let_go(&self) {
        let mut waiting = self.shared.waiting.lock();
        let now = Instant::now();
        let held = std::mem::take(&mut waiting.due);
        waiting.due =
            held.into_iter().map(|Reverse(due)| Reverse(Due { at: due.at.min(now), ..due })).collect();
        drop(waiting);
        self.shared.wake.notify_all();
    }

    /// Takes the job, or gives it back for the engine `below`.
    pub fn take(&self, job: Job, below: &Arc<Inbox>) -> Option<Job> {
        let shared = &self.shared;
        let on = match job.request.op {
            Op::Read(_) => On::Read,
            Op::Write(_) => On::Write,
            Op::Flush => On::Flush,
        };
        let verdict = shared.rules.lock().judge(on, &job.request.file.path);
        let spoiled = verdict.error.is_some() || verdict.torn.is_some() || verdict.delay > Duration::ZERO;
        if verdict.delay >= LONG {
            let file = job.request.file.path.display();
            tracing::warn!(%file, delay = ?verdict.delay, "the fault plan holds up a request");
        }
        let trace_id = shared.trace.as_ref().and_then(|t| t.submitted(&job.request));
        let ours =
            spoiled || shared.held.is_some() || trace_id.is_some() || shared.noflush && on == On::Flush;
        if !ours {
            return Some(job);
        }
        let mut waiting = shared.waiting.lock();
        waiting.submitted += 1;
        let due = Due {
            at: Instant::now() + verdict.delay,
            order: waiting.submitted,
            job,
            verdict,
            trace_id,
            below: Arc::clone(below),
        };
        waiting.due.push(Reverse(due));
        drop(waiting);
        shared.wake.notify_one();
        None
    }

    /// Reads at once, for recovery.
    pub fn read_now(&self, file: &IoFile, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let verdict = self.shared.rules.lock().judge(On::Read, &file.path);
        std::thread::sleep(verdict.delay);
        if let Some(number) = verdict.error {
            return Err(io::Error::from_raw_os_error(number));
        }
        self.shared.read(file, buf, offset)
    }

    /// Bytes of the file, those held included.
    pub fn size(&self, file: &IoFile) -> io::Result<u64> {
        let held = self.shared.held.as_ref().map_or(0, |h| h.end(file));
        Ok(file.file.metadata()?.len().max(held))
    }

    /// Ends the threads, when all that was submitted is done.
    pub fn stop(&mut self) {
        self.shared.waiting.lock().stop = true;
        self.shared.wake.notify_all();
        join_all(std::mem::take(&mut self.threads));
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

fn run(shared: &Shared) {
    while let Some(due) = next(shared) {
        let Due { mut job, verdict, trace_id, below, .. } = due;
        let only_late = verdict.error.is_none()
            && verdict.torn.is_none()
            && trace_id.is_none()
            && shared.held.is_none()
            && !(shared.noflush && matches!(job.request.op, Op::Flush));
        if only_late {
            below.push([job]);
            continue;
        }
        let result = shared.perform(&mut job, verdict);
        if let (Some(trace), Some(id)) = (&shared.trace, trace_id) {
            trace.done(id, result.is_ok());
        }
        job.complete(result);
    }
}

/// The next request whose time has come. `None`: the end.
fn next(shared: &Shared) -> Option<Due> {
    let mut waiting = shared.waiting.lock();
    loop {
        let now = Instant::now();
        let wait = match waiting.due.peek() {
            Some(Reverse(due)) if due.at <= now || waiting.stop => return waiting.due.pop().map(|d| d.0),
            Some(Reverse(due)) => match &shared.until {
                Some(file) if file.exists() => return waiting.due.pop().map(|d| d.0),
                Some(_) => Some(LOOK.min(due.at - now)),
                None => Some(due.at - now),
            },
            None if waiting.stop => return None,
            None => None,
        };
        match wait {
            Some(time) => {
                shared.wake.wait_for(&mut waiting, time);
            }
            None => shared.wake.wait(&mut waiting),
        }
    }
}

impl Shared {
    fn perform(&self, job: &mut Job, verdict: Verdict) -> io::Result<()> {
        let request = &mut job.request;
        let (file, offset) = (&request.file, request.offset);
        if let (Some(seed), Op::Write(bytes)) = (verdict.torn, &request.op) {
            let mut random = Random::new(seed);
            write_sectors(file, offset, bytes, || random.chance(500_000))?;
            return Err(eio());
        }
        if let Some(number) = verdict.error {
            return Err(io::Error::from_raw_os_error(number));
        }
        match (&mut request.op, &self.held) {
            (Op::Flush, _) if self.noflush => Ok(()),
            (Op::Read(window), _) => self.read(file, window.as_mut(), offset),
            (Op::Write(bytes), Some(held)) => held.write(file, offset, bytes),
            (Op::Flush, Some(held)) => held.flush(file),
            (_, None) => request.perform(),
        }
    }

    fn read(&self, file: &IoFile, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(held) = &self.held else { return file.file.read_exact_at(buf, offset) };
        let seen = held.seen(file, offset, buf.len());
        let mut at = 0;
        while at < buf.len() {
            match file.file.read_at(&mut buf[at..], offset + at as u64)? {
                // The file's end; what is held may be beyond it.
                0 if offset + buf.len() as u64 <= held.end(file) => {
                    buf[at..].fill(0);
                    break;
                }
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        overlay(buf, offset, &seen);
        Ok(())
    }
}
