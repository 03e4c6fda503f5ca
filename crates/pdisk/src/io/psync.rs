//! The psync engine: pread, pwrite and fdatasync on threads, for kernels and containers that forbid io_uring.
//!
//! A disk that hangs keeps the threads that are in it. So no queue has a fixed number: whoever takes a request and leaves no
//! thread idle starts another first, and a pdisk within its share (`lanes`) never waits for the disks of others. The shares
//! are the bound: [`THREADS`] requests for a pdisk alone, one for each of many; and one thread that is idle.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use super::{
    inbox::{Inbox, Jobs, Queue},
    request::Job,
    settings::Settings,
};

/// What the pdisks of a queue share, whatever its depth. So many threads, and one, stay while they are idle.
const THREADS: usize = 8;

pub(super) fn start(queues: u32, settings: &Arc<Settings>) -> io::Result<Vec<Queue>> {
    let start = |number| {
        let crew = Crew { number, inbox: Inbox::new(number, None), settings: Arc::clone(settings) };
        crew.start_thread(&mut crew.inbox.jobs.lock())?;
        Ok(Queue { inbox: crew.inbox, tid: 0 })
    };
    (0..queues).map(start).collect()
}

/// The threads of one queue.
#[derive(Clone)]
struct Crew {
    number: u32,
    inbox: Arc<Inbox>,
    settings: Arc<Settings>,
}

impl Crew {
    /// One more; it is idle until it has found a job.
    fn start_thread(&self, jobs: &mut Jobs) -> io::Result<()> {
        let crew = self.clone();
        let builder = std::thread::Builder::new().name(format!("io{}", self.number));
        let thread = builder.spawn(move || crew.run())?;
        jobs.threads.retain(|thread| !thread.is_finished());
        jobs.threads.push(thread);
        jobs.idle += 1;
        Ok(())
    }

    fn run(self) {
        while let Some(job) = self.next() {
            let lane = job.lane();
            self.serve(job);
            let mut jobs = self.inbox.jobs.lock();
            jobs.lanes.end(lane);
            jobs.idle += 1;
            // Who waits for its share alone.
            self.inbox.wake.notify_one();
        }
    }

    /// The next request that may begin. `None`: the thread ends.
    fn next(&self) -> Option<Job> {
        let inbox = &self.inbox;
        let mut jobs = inbox.jobs.lock();
        loop {
            let Jobs { list, lanes, idle, .. } = &mut *jobs;
            list.drain(..).for_each(|job| lanes.push(job.lane(), job));
            let job = lanes.next(inbox.share(self.settings.depth().min(THREADS)));
            inbox.queued.store(lanes.waiting(), Ordering::Relaxed);
            if let Some(job) = job {
                inbox.deepest.fetch_max(lanes.active(), Ordering::Relaxed);
                *idle -= 1;
                if *idle == 0
                    && let Err(error) = self.start_thread(&mut jobs)
                {
                    tracing::warn!(%error, "no thread for requests that come: they wait for those at work");
                }
                return Some(job);
            }
            if *idle > THREADS + 1 || inbox.stop.load(Ordering::SeqCst) && lanes.waiting() == 0 {
                *idle -= 1;
                // Those that wait for their share end as well.
                inbox.wake.notify_all();
                return None;
            }
            inbox.wake.wait(&mut jobs);
        }
    }

    fn serve(&self, mut job: Job) {
        let result = job.request.perform();
        self.inbox.rounds.fetch_add(1, Ordering::Relaxed);
        self.inbox.end(job, result);
    }
}
