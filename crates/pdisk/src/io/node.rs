//! The queues of a node: started on an engine, placed for its pdisks, asked and told what changes live.
//! Errors of requests are handed to who submitted them; queues never fail a request of their own accord.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use base::{
    PdiskId,
    events::{self, Severity},
};
use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    buffers::{Buffers, IoBuf},
    fault::{FaultPlan, Layer},
    file::{IoFile, Lane, Rings},
    inbox::Queue,
    numa, psync,
    request::{Batch, Errors, Job, Request},
    settings::Settings,
    uring,
};
use crate::{
    error::PdiskError,
    options::{DMA_MIB_PER_QUEUE, EngineChoice, IoConfig},
};

/// Bytes of files in memory that are copied where they are asked for.
const NOW_BYTES_MAX: usize = 64 << 10;

/// The engine that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// io_uring, one ring a queue.
    IoUring,
    /// pread, pwrite and fdatasync on threads.
    Psync,
}

/// How one queue has run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    /// Requests done.
    pub requests: u64,
    /// Times its thread slept and had to be woken for a request.
    pub wakes: u64,
    /// Times its thread found completions; one round may end many requests.
    pub rounds: u64,
    /// Most requests in flight since the settings were last changed.
    pub deepest: u64,
}

/// The I/O queues of a node, shared by its pdisks. Clones share them; the last one stops them.
#[derive(Clone)]
pub struct IoNode(Arc<Node>);

/// The queues of a pdisk, each of which it has a share of.
pub(crate) struct Queues {
    node: Arc<Node>,
    placed: Vec<usize>,
}

impl std::ops::Deref for Queues {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.placed
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        for q in &self.placed {
            self.node.queues[*q].inbox.pdisks.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Node {
    queues: Vec<Queue>,
    /// Given to pdisks so far.
    lanes: AtomicU64,
    placement: Mutex<numa::Placement>,
    engine: Engine,
    settings: Arc<Settings>,
    buffers: Buffers,
    why_psync: Option<String>,
    why_one_queue: Option<String>,
    fault: Option<Layer>,
}

/// What an engine gave.
struct Started {
    queues: Vec<Queue>,
    engine: Engine,
    buffers: Buffers,
    why_psync: Option<String>,
    why_one_queue: Option<String>,
}

impl IoNode {
    /// Starts the queues. `Auto` takes io_uring where the kernel allows it, psync elsewhere.
    pub fn start(config: IoConfig) -> Result<IoNode, PdiskError> {
        config.check()?;
        let (count, us) = (config.io_coalesce_count, config.io_coalesce_us);
        let settings = Arc::new(Settings::new(count, us, config.queue_depth, config.io_spin_us));
        let started = match config.engine {
            EngineChoice::Psync => start_psync(&config, &settings, None)?,
            choice => match start_uring(&config, &settings) {
                Ok(started) => started,
                Err(source) if choice == EngineChoice::IoUring => {
                    return Err(PdiskError::Engine { engine: "io_uring", source });
                }
                Err(e) => start_psync(&config, &settings, Some(e.to_string()))?,
            },
        };
        let fault = match &config.fault {
            Some(plan) => {
                tracing::warn!(?plan, "faults are injected below the pdisks of this node");
                let layer = Layer::start(plan);
                Some(layer.map_err(|source| PdiskError::Engine { engine: "faults", source })?)
            }
            None => None,
        };
        let Started { queues, engine, buffers, why_psync, why_one_queue } = started;
        let placement = Mutex::new(numa::Placement::new(queues.len()));
        let lanes = AtomicU64::new(1);
        let node =
            Node { queues, lanes, placement, engine, settings, buffers, why_psync, why_one_queue, fault };
        Ok(IoNode(Arc::new(node)))
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
    /// Why it runs with one queue though it was told to have more, if so.
    pub fn why_one_queue(&self) -> Option<&str> {
        self.0.why_one_queue.as_deref()
    }

    /// Changes, live, what of `config` is live: depth, coalescing, active waiting. Refuses values out of
    /// range and changes nothing then; the rest of `config` counts when the node is started again.
    pub fn reconfigure(&self, config: &IoConfig) -> Result<(), PdiskError> {
        config.check()?;
        let settings = &self.0.settings;
        settings.set_coalesce(config.io_coalesce_count, config.io_coalesce_us);
        settings.set_depth(config.queue_depth);
        settings.set_spin(config.io_spin_us);
        for q in &self.0.queues {
            q.inbox.deepest.store(0, Ordering::Relaxed);
            if self.engine() == Engine::Psync {
                q.inbox.ring(0);
            }
        }
        Ok(())
    }

    /// How the queues have run so far.
    pub fn queue_stats(&self) -> Vec<QueueStats> {
        let numbers = |q: &Queue| QueueStats {
            requests: q.inbox.done.load(Ordering::Relaxed),
            wakes: q.inbox.wakes.load(Ordering::Relaxed),
            rounds: q.inbox.rounds.load(Ordering::Relaxed),
            deepest: q.inbox.deepest.load(Ordering::Relaxed) as u64,
        };
        self.0.queues.iter().map(numbers).collect()
    }

    /// Memory for I/O, registered with the rings as far as there is.
    pub(crate) fn buffer(&self, len: usize) -> IoBuf {
        self.0.buffers.get(len)
    }

    /// New fault rules from now on, on a node that was started with a plan. What the first plan says of
    /// `volatile`, `noflush` and `until` stays. False: the node has no fault engine.
    pub fn change_faults(&self, plan: &FaultPlan) -> bool {
        self.0.fault.as_ref().map(|layer| layer.change_rules(plan)).is_some()
    }

    /// How many requests the fault engine holds up now.
    pub fn held_up(&self) -> usize {
        self.0.fault.as_ref().map_or(0, |layer| layer.held_up())
    }

    /// What the fault engine holds up goes on at once.
    pub fn let_go(&self) {
        if let Some(layer) = &self.0.fault {
            layer.let_go();
        }
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

    /// The queues for a pdisk in `dir` that wants `count`: of its device's NUMA node where there are
    /// several, in turn among equals.
    pub(crate) fn assign(&self, count: usize, dir: &Path) -> Queues {
        let sys = Path::new("/sys");
        let near = numa::device_node(sys, dir);
        let placed = self.0.placement.lock().assign(count, near);
        if let Some(near) = near {
            let tids = placed.iter().map(|q| self.0.queues[*q].tid).filter(|tid| *tid > 0);
            numa::pin(sys, near, tids);
        }
        let node = Arc::clone(&self.0);
        for q in &placed {
            node.queues[*q].inbox.pdisks.fetch_add(1, Ordering::Relaxed);
        }
        Queues { node, placed }
    }

    /// A file of a pdisk that is opened, in its lane.
    pub(crate) fn file(&self, lane: Lane, file: File, path: &Path) -> IoFile {
        let rings: Weak<dyn Rings> = Arc::<Node>::downgrade(&self.0);
        IoFile::on(Some((rings, lane)), file, path)
    }

    /// A number for the files of a pdisk that is opened.
    pub(crate) fn lane(&self, pdisk: PdiskId) -> Lane {
        Lane { number: self.0.lanes.fetch_add(1, Ordering::Relaxed), pdisk }
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
        let batch = Batch::new(requests.len(), finish);
        if let Some(layer) = &self.0.fault {
            for (queue, request) in requests {
                let inbox = &self.0.queues[queue].inbox;
                let job = Job { request, batch: Arc::clone(&batch) };
                if let Some(job) = layer.take(job, inbox) {
                    inbox.push([job]);
                }
            }
            return;
        }
        let mut rest = requests.into_iter().peekable();
        while let Some((queue, first)) = rest.next() {
            let job = |request| Job { request, batch: Arc::clone(&batch) };
            let same = std::iter::from_fn(|| rest.next_if(|(q, _)| *q == queue).map(|(_, r)| r));
            self.0.queues[queue].inbox.push(std::iter::once(first).chain(same).map(job));
        }
    }

    /// Does requests here and now, if that costs less than to hand them to a queue's thread: few bytes of files in
    /// memory. The errors, if it was done.
    pub(crate) fn try_now(&self, requests: &mut Vec<(usize, Request)>) -> Option<Errors> {
        let small = requests.iter().map(|(_, r)| r.op.len()).sum::<usize>() <= NOW_BYTES_MAX;
        if !small || self.0.fault.is_some() || !requests.iter().all(|(_, r)| r.file.in_memory) {
            return None;
        }
        let done = requests.drain(..).filter_map(|(queue, mut r)| {
            self.0.queues[queue].inbox.done.fetch_add(1, Ordering::Relaxed);
            r.perform().err().map(|error| (r.tag, error))
        });
        Some(done.collect())
    }

    /// Whether so many bytes of a file are lent where they lie: it is in memory, and they cost more to copy.
    pub(crate) fn lends(&self, file: &IoFile, len: usize) -> bool {
        len > NOW_BYTES_MAX && file.in_memory && self.0.fault.is_none()
    }

    /// Lends bytes of such a file. They must stay as they are until `token` is dropped. `None`: read them; an error is the
    /// read's to find again, and to tell.
    pub(crate) fn lend<T: Send + 'static>(
        &self,
        file: &IoFile,
        offset: u64,
        len: usize,
        token: T,
    ) -> Option<Bytes> {
        file.map()?.lend(usize::try_from(offset).ok()?, len, token).ok()
    }

    /// Submits and waits, on a thread that may wait. One request alone is done here and now: handing it to
    /// another thread and back costs more than most of them take.
    pub(crate) fn submit_and_wait(&self, queue: usize, mut requests: Vec<Request>) -> io::Result<()> {
        if let ([one], None) = (&mut requests[..], &self.0.fault) {
            return one.perform();
        }
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

impl Rings for Node {
    fn forget(&self, file: u64) {
        self.queues.iter().for_each(|q| q.inbox.forget(file));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(layer) = &mut self.fault {
            layer.stop();
        }
        self.queues.iter().for_each(|q| q.inbox.stop());
        self.queues.iter().for_each(|q| q.inbox.join());
    }
}

fn start_uring(config: &IoConfig, settings: &Arc<Settings>) -> io::Result<Started> {
    let mut config = config.clone();
    let why_one_queue = one_queue(&config);
    if let Some(why) = &why_one_queue {
        tracing::warn!("{why}");
        events::raise(Severity::Warning, "io_one_queue", "io", why);
        config.num_io_queues = 1;
    }
    let buffers = Buffers::new(config.io_dma_mib)?;
    let (queues, unregistered) = uring::start(&config, settings, &buffers)?;
    if let Some(why) = unregistered {
        let why = format!("I/O goes unregistered, and costs more CPU: {why}; raise RLIMIT_MEMLOCK");
        tracing::warn!("{why}");
        events::raise(Severity::Info, "io_unregistered", "io", &why);
    }
    Ok(Started { queues, engine: Engine::IoUring, buffers, why_psync: None, why_one_queue })
}

/// Why only one queue can be had: registered memory for more is missing.
fn one_queue(config: &IoConfig) -> Option<String> {
    let (queues, dma) = (config.num_io_queues, config.io_dma_mib);
    let need = queues * DMA_MIB_PER_QUEUE;
    (queues > 1 && dma < need).then(|| {
        format!(
            "{queues} I/O queues need io_dma_mib={need}, there are {dma}: running with one queue; raise \
             io_dma_mib or lower num_io_queues, and open the pdisks again"
        )
    })
}

fn start_psync(
    config: &IoConfig,
    settings: &Arc<Settings>,
    why_psync: Option<String>,
) -> Result<Started, PdiskError> {
    if let Some(why) = &why_psync {
        let text = format!("io_uring is not available ({why}): using psync");
        tracing::warn!("{text}");
        events::raise(Severity::Info, "io_psync", "io", &text);
    }
    let engine = |source| PdiskError::Engine { engine: "psync", source };
    let queues = psync::start(config.num_io_queues, settings).map_err(engine)?;
    let buffers = Buffers::new(0).map_err(engine)?;
    Ok(Started { queues, engine: Engine::Psync, buffers, why_psync, why_one_queue: None })
}

impl std::fmt::Debug for IoNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoNode({:?}, {} queues)", self.engine(), self.queues())
    }
}
