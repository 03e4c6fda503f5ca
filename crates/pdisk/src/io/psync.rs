//! The psync engine: pread, pwrite and fdatasync on a few threads a queue, for kernels and containers
//! that forbid io_uring.

use std::{
    io,
    os::unix::fs::FileExt,
    sync::{Arc, atomic::Ordering},
};

use super::{Inbox, IoFile, Job, Op, Queue, Settings, inbox::Jobs};
use crate::options::IoConfig;

/// Threads a queue; with a smaller depth some of them rest.
const THREADS: u32 = 8;

pub(super) fn start(config: &IoConfig, settings: &Arc<Settings>) -> io::Result<Vec<Queue>> {
    (0..config.num_io_queues)
        .map(|q| {
            let inbox = Inbox::new(None);
            let threads = (0..THREADS)
                .map(|t| {
                    let (inbox, settings) = (Arc::clone(&inbox), Arc::clone(settings));
                    let builder = std::thread::Builder::new().name(format!("io{q}.{t}"));
                    builder.spawn(move || run(&inbox, &settings))
                })
                .collect::<io::Result<_>>()?;
            Ok(Queue { inbox, threads, tid: 0 })
        })
        .collect()
}

fn run(inbox: &Inbox, settings: &Settings) {
    while let Some(job) = next(inbox, settings) {
        let lane = job.lane();
        serve(job, inbox);
        inbox.jobs.lock().lanes.end(lane);
        // Who waits for its share alone.
        inbox.wake.notify_one();
    }
}

fn next(inbox: &Inbox, settings: &Settings) -> Option<Job> {
    let mut jobs = inbox.jobs.lock();
    loop {
        let Jobs { list, lanes } = &mut *jobs;
        list.drain(..).for_each(|job| lanes.push(job.lane(), job));
        let job = lanes.next(inbox.share(settings.depth().min(THREADS as usize)));
        inbox.queued.store(lanes.waiting(), Ordering::Relaxed);
        if let Some(job) = job {
            inbox.deepest.fetch_max(lanes.active(), Ordering::Relaxed);
            return Some(job);
        }
        if inbox.stop.load(Ordering::SeqCst) && lanes.waiting() == 0 {
            // Those that wait for their share end as well.
            inbox.wake.notify_all();
            return None;
        }
        inbox.wake.wait(&mut jobs);
    }
}

fn serve(mut job: Job, inbox: &Inbox) {
    let Job { request, .. } = &mut job;
    let result = perform(&request.file, &mut request.op, request.offset);
    // Counted before it is answered: who has the answer finds it counted.
    inbox.done.fetch_add(1, Ordering::Relaxed);
    inbox.rounds.fetch_add(1, Ordering::Relaxed);
    job.complete(result);
}

/// Does one operation and waits for it.
pub(super) fn perform(file: &IoFile, op: &mut Op, offset: u64) -> io::Result<()> {
    match op {
        Op::Read(window) => file.file.read_exact_at(window.as_mut(), offset),
        Op::Write(bytes) => file.file.write_all_at(bytes, offset),
        Op::Flush => file.file.sync_data(),
    }
}
