//! The rings of a node: `num_io_queues` queues, each with its thread (io_uring) or threads (psync).
//! A request owns its buffer and its file from submission to completion; who waits for it may go away.
//! The last completion of a batch runs the batch's finish function on the queue's thread.
//! Errors are handed to that function; queues themselves never fail a request of their own accord.

pub(crate) mod fault;
mod psync;
mod uring;
mod window;

use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use bytes::Bytes;
use fault::FaultPlan;
pub(crate) use window::{Window, split};

use crate::{
    error::PdiskError,
    options::{EngineChoice, IoConfig},
};

/// A file that requests go to.
pub(crate) struct IoFile {
    pub file: File,
    pub path: PathBuf,
}

/// What to do with the file.
pub(crate) enum Op {
    Read(Window),
    Write(Bytes),
    /// fdatasync.
    Flush,
}

/// One request of a batch.
pub(crate) struct Request {
    pub file: Arc<IoFile>,
    pub op: Op,
    pub offset: u64,
    /// Names it in the batch's list of errors.
    pub tag: u32,
}

/// Requests of a batch that failed: tag and error.
pub(crate) type Errors = Vec<(u32, io::Error)>;
type Finish = Box<dyn FnOnce(Errors) + Send>;

struct Batch {
    left: AtomicUsize,
    end: Mutex<(Errors, Option<Finish>)>,
}

impl Batch {
    fn complete(&self, tag: u32, result: io::Result<()>) {
        if let Err(e) = result {
            lock(&self.end).0.push((tag, e));
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (errors, finish) = {
                let mut end = lock(&self.end);
                (std::mem::take(&mut end.0), end.1.take())
            };
            if let Some(finish) = finish {
                finish(errors);
            }
        }
    }
}

/// A request on its way, with the batch it belongs to.
struct Job {
    request: Request,
    batch: Arc<Batch>,
}

impl Job {
    /// Gives the buffer up first: the finish function takes it back.
    fn complete(self, result: io::Result<()>) {
        let tag = self.request.tag;
        drop(self.request);
        self.batch.complete(tag, result);
    }
}

/// The way into one queue.
struct Inbox {
    jobs: Mutex<VecDeque<Job>>,
    wake: Condvar,
    /// io_uring: the thread waits for completions and wants a write to `eventfd`.
    sleeping: AtomicBool,
    eventfd: Option<File>,
    stop: AtomicBool,
    done: AtomicU64,
}

struct Queue {
    inbox: Arc<Inbox>,
    threads: Vec<JoinHandle<()>>,
}

/// How completions are gathered; changes live.
pub(crate) struct Coalesce {
    count: AtomicU32,
    us: AtomicU32,
}

/// The engine that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// io_uring, one ring a queue.
    IoUring,
    /// pread, pwrite and fdatasync on threads.
    Psync,
}

/// The I/O queues of a node, shared by its pdisks. Clones share them; the last one stops them.
#[derive(Clone)]
pub struct IoNode(Arc<Node>);

struct Node {
    queues: Vec<Queue>,
    next_queue: AtomicUsize,
    engine: Engine,
    coalesce: Arc<Coalesce>,
    why_psync: Option<String>,
    fault: Option<fault::Layer>,
}

impl IoNode {
    /// Starts the queues. `Auto` takes io_uring where the kernel allows it, psync elsewhere.
    pub fn start(config: IoConfig) -> Result<IoNode, PdiskError> {
        config.check()?;
        let coalesce = Arc::new(Coalesce {
            count: AtomicU32::new(config.io_coalesce_count),
            us: AtomicU32::new(config.io_coalesce_us),
        });
        let mut why_psync = None;
        let mut queues = None;
        if config.engine != EngineChoice::Psync {
            match uring::start(&config, &coalesce) {
                Ok(q) => queues = Some((Engine::IoUring, q)),
                Err(source) if config.engine == EngineChoice::IoUring => {
                    return Err(PdiskError::Engine { engine: "io_uring", source });
                }
                Err(e) => {
                    tracing::warn!(error = %e, "io_uring is not available; using psync");
                    why_psync = Some(e.to_string());
                }
            }
        }
        let (engine, queues) = match queues {
            Some(found) => found,
            None => {
                let started = psync::start(&config);
                (Engine::Psync, started.map_err(|source| PdiskError::Engine { engine: "psync", source })?)
            }
        };
        let fault = match &config.fault {
            Some(plan) => {
                tracing::warn!(?plan, "faults are injected below the pdisks of this node");
                let layer = fault::Layer::start(plan);
                Some(layer.map_err(|source| PdiskError::Engine { engine: "faults", source })?)
            }
            None => None,
        };
        let next_queue = AtomicUsize::new(0);
        Ok(IoNode(Arc::new(Node { queues, next_queue, engine, coalesce, why_psync, fault })))
    }

    /// The engine in use.
    pub fn engine(&self) -> Engine {
        self.0.engine
    }
    /// Why `Auto` chose psync, if it did.
    pub fn why_psync(&self) -> Option<&str> {
        self.0.why_psync.as_deref()
    }
    /// Number of queues.
    pub fn queues(&self) -> usize {
        self.0.queues.len()
    }
    /// Changes how completions are gathered: up to `count` of them, for at most `us` microseconds.
    pub fn set_coalesce(&self, count: u32, us: u32) {
        self.0.coalesce.count.store(count.max(1), Ordering::Relaxed);
        self.0.coalesce.us.store(us, Ordering::Relaxed);
    }

    /// New fault rules from now on, on a node that was started with a plan. What the first plan says of
    /// `volatile` and `noflush` stays. False: the node has no fault engine.
    pub fn change_faults(&self, plan: &FaultPlan) -> bool {
        self.0.fault.as_ref().map(|layer| layer.change_rules(plan)).is_some()
    }

    /// Reads at once and waits: for recovery, before the queues are used.
    pub(crate) fn read_now(&self, file: &IoFile, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.0.fault {
            Some(layer) => layer.read_now(file, buf, offset),
            None => std::os::unix::fs::FileExt::read_exact_at(&file.file, buf, offset),
        }
    }

    /// Bytes of a file.
    pub(crate) fn size(&self, file: &IoFile) -> io::Result<u64> {
        match &self.0.fault {
            Some(layer) => layer.size(file),
            None => Ok(file.file.metadata()?.len()),
        }
    }

    /// The queues for a pdisk that wants `count`: the next ones in turn.
    pub(crate) fn assign(&self, count: usize) -> Vec<usize> {
        let n = self.queues();
        let count = count.min(n);
        let first = self.0.next_queue.fetch_add(count, Ordering::Relaxed);
        (0..count).map(|i| (first + i) % n).collect()
    }

    /// Submits requests, each to the queue beside it. `finish` runs after the last of them, on a queue's
    /// thread (here, if there are none), and must not wait.
    pub(crate) fn submit_queues(
        &self,
        requests: Vec<(usize, Request)>,
        finish: impl FnOnce(Errors) + Send + 'static,
    ) {
        if requests.is_empty() {
            return finish(Vec::new());
        }
        let batch = Arc::new(Batch {
            left: AtomicUsize::new(requests.len()),
            end: Mutex::new((Vec::new(), Some(Box::new(finish)))),
        });
        if let Some(layer) = &self.0.fault {
            for (queue, request) in requests {
                let inbox = &self.0.queues[queue].inbox;
                let job = Job { request, batch: Arc::clone(&batch) };
                if let Some(job) = layer.take(job, inbox) {
                    inbox.push(job);
                }
            }
            return;
        }
        let mut requests = requests.into_iter().peekable();
        while let Some((queue, request)) = requests.next() {
            let inbox = &self.0.queues[queue].inbox;
            let mut jobs = lock(&inbox.jobs);
            jobs.push_back(Job { request, batch: Arc::clone(&batch) });
            while let Some((_, request)) = requests.next_if(|(q, _)| *q == queue) {
                jobs.push_back(Job { request, batch: Arc::clone(&batch) });
            }
            drop(jobs);
            inbox.ring();
        }
    }

    /// Submits and waits, on a thread that may wait.
    pub(crate) fn submit_and_wait(&self, queue: usize, requests: Vec<Request>) -> io::Result<()> {
        let (tx, rx) = std::sync::mpsc::channel();
        let what = requests.first().map(|r| r.file.path.clone());
        let requests = requests.into_iter().map(|r| (queue, r)).collect();
        self.submit_queues(requests, move |errors| {
            // The receiver waits until it has got this.
            let _ = tx.send(errors);
        });
        let mut waited = 0u64;
        loop {
            match rx.recv_timeout(std::time::Duration::from_secs(10)) {
                Ok(errors) => return errors.into_iter().next().map_or(Ok(()), |(_, e)| Err(e)),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    // The kernel owns the buffers: there is nothing else to do than to wait, visibly.
                    waited += 10;
                    tracing::warn!(file = ?what, seconds = waited, "disk I/O is outstanding");
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the I/O queue has stopped"));
                }
            }
        }
    }
}

impl Inbox {
    fn new(eventfd: Option<File>) -> Arc<Inbox> {
        Arc::new(Inbox {
            jobs: Mutex::default(),
            wake: Condvar::new(),
            sleeping: AtomicBool::new(false),
            eventfd,
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
        })
    }

    fn push(&self, job: Job) {
        lock(&self.jobs).push_back(job);
        self.ring();
    }

    fn ring(&self) {
        match &self.eventfd {
            Some(fd) => {
                if self.sleeping.swap(false, Ordering::SeqCst) {
                    // A full eventfd counter means it is awake anyway.
                    let _ = io::Write::write(&mut &*fd, &1u64.to_ne_bytes());
                }
            }
            None => self.wake.notify_one(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(layer) = &mut self.fault {
            layer.stop();
        }
        for q in &self.queues {
            q.inbox.stop.store(true, Ordering::SeqCst);
            q.inbox.sleeping.store(true, Ordering::SeqCst);
            // Under the lock, so that no psync thread is between its check and its wait.
            let jobs = lock(&q.inbox.jobs);
            q.inbox.ring();
            q.inbox.wake.notify_all();
            drop(jobs);
        }
        for q in &mut self.queues {
            join_all(&mut q.threads);
        }
    }
}

/// Joins threads, but not the one that runs this: the last clone of a node may go on a queue's thread.
fn join_all(threads: &mut Vec<JoinHandle<()>>) {
    let me = std::thread::current().id();
    for t in threads.drain(..) {
        if t.thread().id() != me && t.join().is_err() {
            tracing::error!("an I/O thread panicked");
        }
    }
}

/// A poisoned lock means that a thread panicked while it held it; each user keeps its data consistent
/// at every step, so the others go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl std::fmt::Debug for IoNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoNode({:?}, {} queues)", self.engine(), self.queues())
    }
}
