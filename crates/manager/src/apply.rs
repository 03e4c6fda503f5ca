//! The writer: one thread that turns queued work into commits.
//!
//! Everything that is queued is applied to one transaction above the last committed snapshot, committed
//! at once, and only then answered. Readers see the snapshot that is replaced after each commit. If the
//! store fails, nothing of the batch is answered as done, the writer stops, and the manager with it:
//! after a failed commit nobody knows what is on disk. A panic counts as such a failure, the writer's and any other task's.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
};

use base::{InodeNo, SessionId};
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot, watch};
use wire::{
    credentials::Who,
    mgr::{Change, MgrError, MgrReply, OpId},
};

use crate::{
    cluster::UnderWay,
    namespace::{self, Fault, FsContext},
    store::{Snapshot, Store, StoreError, Txn},
};

/// Jobs waiting for the writer; who wants to queue more waits.
const QUEUE_MAX: usize = 1024;
/// Most jobs of one commit.
const BATCH_MAX: usize = 512;

/// Bytes of changes after which a commit is closed, and what is left goes into the next one: it stays a few requests of etcd's.
/// An operation is never divided, with the reply that is kept of it.
const BATCH_BYTES: usize = 1 << 20;

/// Outcome of one mutation.
pub type Outcome = Result<MgrReply, MgrError>;

type Work = Box<dyn FnOnce(&mut Txn<'_>) -> Result<(), Fault> + Send>;

enum Job {
    Mutate {
        session: SessionId,
        who: Who,
        changes: Vec<(OpId, Change)>,
        openers: Vec<(InodeNo, SessionId)>,
        under_way: UnderWay,
        answer: oneshot::Sender<Vec<Outcome>>,
    },
    Run {
        work: Work,
        answer: oneshot::Sender<Result<(), MgrError>>,
    },
    Stop,
}

enum Answer {
    Many(oneshot::Sender<Vec<Outcome>>, Vec<Outcome>, UnderWay),
    Run(oneshot::Sender<Result<(), MgrError>>, Result<(), MgrError>),
    Stop,
}

/// What readers and the writer share.
struct Shared {
    snapshot: RwLock<Snapshot>,
    contexts: RwLock<Arc<Vec<FsContext>>>,
}

/// Handle on the writer. It stops when the last handle goes.
#[derive(Clone)]
pub struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Whether the store waits.
    waits: bool,
    shared: Arc<Shared>,
    failed: watch::Sender<Option<StoreError>>,
}

impl Writer {
    /// Starts the writer on a store: on a thread of its own, or as a task where commits wait for nothing.
    pub fn start(store: Arc<dyn Store>) -> Result<(Writer, Option<JoinHandle<()>>), StoreError> {
        let shared = Arc::new(Shared {
            snapshot: RwLock::new(store.snapshot()?),
            contexts: RwLock::new(Arc::new(Vec::new())),
        });
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let failed = watch::Sender::new(None);
        let waits = store.waits();
        let batches = Batches { shared: shared.clone(), failing: failed.clone(), store };
        let thread = if waits {
            Some(batches.on_thread(queue)?)
        } else {
            tokio::spawn(batches.in_task(queue));
            None
        };
        Ok((Writer { jobs, waits, shared, failed }, thread))
    }

    /// The file systems there are.
    pub fn set_contexts(&self, contexts: Vec<FsContext>) {
        *self.shared.contexts.write() = Arc::new(contexts);
    }

    /// The file systems there are.
    pub fn contexts(&self) -> Arc<Vec<FsContext>> {
        self.shared.contexts.read().clone()
    }

    /// The last committed state.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot.read().clone()
    }

    /// Applies mutations on behalf of `who`; answered when they are committed. `openers` are sessions that have inodes open
    /// which may lose their last name; `under_way` ends when it is committed, whoever waits for that.
    pub async fn mutate(
        &self,
        session: SessionId,
        who: Who,
        changes: Vec<(OpId, Change)>,
        openers: Vec<(InodeNo, SessionId)>,
        under_way: UnderWay,
    ) -> Result<Vec<Outcome>, MgrError> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Mutate { session, who, changes, openers, under_way, answer }).await?;
        answered.await.map_err(|_| self.stopped())
    }

    /// Runs `work` in the writer's transaction; returns when it is committed. A fault discards it.
    pub async fn run(
        &self,
        work: impl FnOnce(&mut Txn<'_>) -> Result<(), Fault> + Send + 'static,
    ) -> Result<(), MgrError> {
        let (answer, answered) = oneshot::channel();
        self.send(Job::Run { work: Box::new(work), answer }).await?;
        answered.await.map_err(|_| self.stopped())?
    }

    /// Reads what may take long: not on a thread that leases are renewed on.
    pub async fn aside<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, MgrError> {
        if !self.waits {
            return Ok(read());
        }
        tokio::task::spawn_blocking(read).await.map_err(|_| self.stopped())
    }

    /// Ends the writer after what is queued now. Whoever asks later gets an error.
    pub async fn close(&self) {
        let _ = self.jobs.send(Job::Stop).await; // it may have ended already
        self.jobs.closed().await;
    }

    async fn send(&self, job: Job) -> Result<(), MgrError> {
        self.jobs.send(job).await.map_err(|_| self.stopped())
    }

    fn stopped(&self) -> MgrError {
        match &*self.failed.borrow() {
            Some(error) => MgrError::Store(error.to_string()),
            None => MgrError::Store("the manager is stopping".into()),
        }
    }

    /// The manager cannot go on: its process ends, and is seen to. The first reason counts.
    pub fn fail(&self, reason: String) {
        fail(&self.failed, StoreError::Engine { action: "go on with the", reason });
    }

    /// Resolves when the store has failed.
    pub async fn failure(&self) -> StoreError {
        let mut failed = self.failed.subscribe();
        loop {
            if let Some(error) = &*failed.borrow_and_update() {
                return error.clone();
            }
            if failed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn fail(failed: &watch::Sender<Option<StoreError>>, error: StoreError) {
    tracing::error!(%error, "the manager stops");
    failed.send_if_modified(|first| {
        let is_first = first.is_none();
        first.get_or_insert(error);
        is_first
    });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

/// Fails the manager if the task that holds it panics.
pub(crate) struct Watched(pub Writer);

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("one of its tasks panicked; the log says where".into());
        }
    }
}

/// What the writer works with.
struct Batches {
    store: Arc<dyn Store>,
    shared: Arc<Shared>,
    failing: watch::Sender<Option<StoreError>>,
}

impl Batches {
    fn on_thread(self, mut queue: mpsc::Receiver<Job>) -> Result<JoinHandle<()>, StoreError> {
        let thread = std::thread::Builder::new().name("manager-writer".into());
        let run = move || {
            let mut jobs = Vec::with_capacity(BATCH_MAX);
            while queue.blocking_recv_many(&mut jobs, BATCH_MAX) > 0 && self.one(&mut jobs) {}
        };
        thread.spawn(run).map_err(|error| StoreError::Engine {
            action: "start the writer of the",
            reason: error.to_string(),
        })
    }

    async fn in_task(self, mut queue: mpsc::Receiver<Job>) {
        let mut jobs = Vec::with_capacity(BATCH_MAX);
        while queue.recv_many(&mut jobs, BATCH_MAX).await > 0 && self.one(&mut jobs) {}
    }

    /// Commits them, all at once unless they are large; false if they were the last.
    fn one(&self, jobs: &mut Vec<Job>) -> bool {
        let stop = jobs.iter().any(|job| matches!(job, Job::Stop));
        let mut jobs = jobs.drain(..).peekable();
        let error = loop {
            if jobs.peek().is_none() {
                return !stop;
            }
            // What a panic leaves half done is dropped with the batch; nothing is read of it again.
            let commit = AssertUnwindSafe(|| commit_batch(&*self.store, &self.shared, &mut jobs));
            match catch_unwind(commit) {
                Ok(Ok(answers)) => answers.into_iter().for_each(Answer::send),
                Ok(Err(error)) => break error,
                Err(panic) => {
                    break StoreError::Engine {
                        action: "go on with the",
                        reason: format!("its writer panicked: {}", panic_text(&*panic)),
                    };
                }
            }
        };
        fail(&self.failing, error);
        false // dropping the jobs and the queue tells everyone who waits
    }
}

fn commit_batch(
    store: &dyn Store,
    shared: &Shared,
    jobs: &mut impl Iterator<Item = Job>,
) -> Result<Vec<Answer>, StoreError> {
    let snapshot = shared.snapshot.read().clone();
    let contexts = shared.contexts.read().clone();
    let full = store.is_full();
    let context = |fs| {
        let context = contexts.iter().find(|context| context.fs == fs).copied();
        context.map(|context| FsContext { full, ..context })
    };
    let mut txn = Txn::new(&*snapshot);
    let mut answers = Vec::new();
    while txn.bytes() < BATCH_BYTES
        && let Some(job) = jobs.next()
    {
        answers.push(match job {
            Job::Mutate { session, who, changes, openers, under_way, answer } => {
                let mut outcomes = Vec::with_capacity(changes.len());
                for (op, change) in changes {
                    outcomes.push(namespace::mutate(&mut txn, context, session, op, change, &openers, &who)?);
                }
                Answer::Many(answer, outcomes, under_way)
            }
            Job::Run { work, answer } => {
                let outcome = match work(&mut txn) {
                    Ok(()) => {
                        txn.keep();
                        Ok(())
                    }
                    Err(fault) => {
                        txn.discard();
                        Err(fault.into_reply()?)
                    }
                };
                Answer::Run(answer, outcome)
            }
            Job::Stop => Answer::Stop,
        });
    }
    if !txn.is_empty() {
        let changes = txn.into_changes();
        drop(snapshot);
        store.commit(&changes)?;
        *shared.snapshot.write() = store.snapshot()?;
    }
    Ok(answers)
}

impl Answer {
    /// Who waited may be gone; the work is done all the same.
    fn send(self) {
        match self {
            Answer::Many(to, outcomes, under_way) => {
                drop(under_way);
                let _ = to.send(outcomes);
            }
            Answer::Run(to, outcome) => drop(to.send(outcome)),
            Answer::Stop => {}
        }
    }
}
