//! The psync engine: pread, pwrite and fdatasync on a few threads a queue, for kernels and containers
//! that forbid io_uring.

use std::{io, os::unix::fs::FileExt, sync::Arc, sync::atomic::Ordering};

use super::{Inbox, IoFile, Job, Op, Queue, lock};
use crate::options::IoConfig;

/// Threads a queue: its depth, but not more than this.
const THREADS_MAX: u32 = 8;

pub(super) fn start(config: &IoConfig) -> io::Result<Vec<Queue>> {
    (0..config.num_io_queues)
        .map(|q| {
            let inbox = Inbox::new(None);
            let threads = (0..config.queue_depth.min(THREADS_MAX))
                .map(|t| {
                    let inbox = Arc::clone(&inbox);
                    std::thread::Builder::new().name(format!("io{q}.{t}")).spawn(move || run(&inbox))
                })
                .collect::<io::Result<_>>()?;
            Ok(Queue { inbox, threads })
        })
        .collect()
}

fn run(inbox: &Inbox) {
    loop {
        let job = {
            let mut jobs = lock(&inbox.jobs);
            loop {
                if let Some(job) = jobs.pop_front() {
                    break job;
                }
                if inbox.stop.load(Ordering::SeqCst) {
                    return;
                }
                jobs = inbox.wake.wait(jobs).unwrap_or_else(|e| e.into_inner());
            }
        };
        serve(job);
        inbox.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn serve(mut job: Job) {
    let Job { request, .. } = &mut job;
    let result = perform(&request.file, &mut request.op, request.offset);
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
