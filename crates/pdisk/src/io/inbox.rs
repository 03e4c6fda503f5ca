//! The way into one queue: requests in, and one wake-up for as many of them as have come meanwhile.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use parking_lot::{Condvar, Mutex};

use super::{
    counts::Counts,
    lanes::{Lanes, share},
    request::Job,
};

/// One queue of a node.
pub(super) struct Queue {
    pub inbox: Arc<Inbox>,
    /// The ring's thread; 0: threads that are not placed.
    pub tid: i32,
}

#[derive(Default)]
pub(super) struct Jobs {
    pub list: VecDeque<Job>,
    /// psync: those that its threads have looked at.
    pub lanes: Lanes<Job>,
    /// The threads of the queue.
    pub threads: Vec<JoinHandle<()>>,
    /// psync: threads that have no job. One at least, so that what may begin does, unless none could be started.
    pub idle: usize,
}

pub(super) struct Inbox {
    pub jobs: Mutex<Jobs>,
    /// Length of the list, to be looked at without the lock.
    pub queued: AtomicUsize,
    /// psync: threads wait here.
    pub wake: Condvar,
    /// io_uring: the thread waits for completions and wants a write to `eventfd`.
    pub sleeping: AtomicBool,
    pub eventfd: Option<File>,
    /// Files that are closed: their numbers, to be taken out of the ring's table.
    pub closed: Mutex<Vec<u64>>,
    pub stop: AtomicBool,
    /// Pdisks that have a share of the queue.
    pub pdisks: AtomicUsize,
    pub done: AtomicU64,
    /// Times the thread had to be woken.
    pub wakes: AtomicU64,
    /// Times that it found completions.
    pub rounds: AtomicU64,
    /// Most requests in flight since the settings changed.
    pub deepest: AtomicUsize,
    /// For who looks from outside.
    counts: Counts,
}

impl Inbox {
    pub fn new(number: u32, eventfd: Option<File>) -> Arc<Inbox> {
        Arc::new(Inbox {
            jobs: Mutex::default(),
            queued: AtomicUsize::new(0),
            wake: Condvar::new(),
            sleeping: AtomicBool::new(false),
            eventfd,
            closed: Mutex::default(),
            stop: AtomicBool::new(false),
            pdisks: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            deepest: AtomicUsize::new(0),
            counts: Counts::of(number),
        })
    }

    /// What each pdisk may have in flight where `depth` may be in all.
    pub fn share(&self, depth: usize) -> usize {
        share(depth, self.pdisks.load(Ordering::Relaxed))
    }

    pub fn push(&self, more: impl IntoIterator<Item = Job>) {
        let mut jobs = self.jobs.lock();
        let before = jobs.list.len();
        jobs.list.extend(more);
        let added = jobs.list.len() - before;
        self.queued.store(jobs.list.len(), Ordering::SeqCst);
        drop(jobs);
        self.counts.put(added);
        self.ring(added);
    }

    /// A request is done. Counted before it is answered: who has the answer finds it counted.
    pub fn end(&self, job: Job, result: io::Result<()>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.counts.ended(&job);
        job.complete(result);
    }

    /// Wakes who has something to do now, if he sleeps.
    pub fn ring(&self, jobs: usize) {
        match &self.eventfd {
            Some(fd) => {
                if self.sleeping.swap(false, Ordering::SeqCst) {
                    self.wakes.fetch_add(1, Ordering::Relaxed);
                    // A full eventfd counter means it is awake anyway.
                    let _ = io::Write::write(&mut &*fd, &1u64.to_ne_bytes());
                }
            }
            None if jobs == 1 => {
                self.wake.notify_one();
            }
            None => {
                self.wake.notify_all();
            }
        }
    }

    /// A file of a pdisk is closed.
    pub fn forget(&self, file: u64) {
        self.closed.lock().push(file);
        self.ring(0);
    }

    /// Everything queued so far is still served; then the threads end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.sleeping.store(true, Ordering::SeqCst);
        // Under the lock, so that no psync thread is between its check and its wait.
        let jobs = self.jobs.lock();
        self.ring(0);
        drop(jobs);
    }

    /// Waits for the threads, those included that they start while they end.
    pub fn join(&self) {
        loop {
            let threads = std::mem::take(&mut self.jobs.lock().threads);
            if threads.is_empty() {
                return;
            }
            join_all(threads);
        }
    }
}

/// Joins threads, but not the one that runs this: the last clone of a node may go on a queue's thread.
pub(super) fn join_all(threads: Vec<JoinHandle<()>>) {
    let me = std::thread::current().id();
    for t in threads {
        if t.thread().id() != me && t.join().is_err() {
            tracing::error!("an I/O thread panicked");
        }
    }
}
