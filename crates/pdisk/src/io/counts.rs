//! What went through a queue, for who looks from outside: how long each request took, by whose it was, and how many are under way.
//! What is done where it is asked for goes through none.

use std::collections::BTreeMap;

use base::{
    PdiskId,
    stats::{self, Gauge, Histogram},
};
use parking_lot::Mutex;

use super::request::{Job, Op};

const OPS: [&str; 3] = ["read", "write", "flush"];

impl Op {
    fn number(&self) -> usize {
        match self {
            Op::Read(_) => 0,
            Op::Write(_) => 1,
            Op::Flush => 2,
        }
    }
}

/// The handles of one queue.
pub(super) struct Counts {
    /// As its threads are called.
    queue: String,
    under_way: Gauge,
    took: Mutex<BTreeMap<PdiskId, [Histogram; 3]>>,
}

impl Counts {
    pub fn of(number: u32) -> Counts {
        let queue = format!("io{number}");
        let under_way = stats::gauge("queue_under_way", &[("queue", &queue)]);
        Counts { queue, under_way, took: Mutex::default() }
    }

    /// So many were put into it.
    pub fn put(&self, requests: usize) {
        self.under_way.add(requests as i64);
    }

    /// One of them has ended.
    pub fn ended(&self, job: &Job) {
        self.under_way.sub(1);
        let Some(pdisk) = job.request.file.pdisk else { return };
        let took = job.batch.begun.elapsed();
        let mut all = self.took.lock();
        let of = all.entry(pdisk).or_insert_with(|| {
            let id = pdisk.to_string();
            OPS.map(|op| {
                stats::histogram(
                    "queue_request_seconds",
                    &[("queue", &self.queue), ("pdisk", &id), ("op", op)],
                )
            })
        });
        of[job.request.op.number()].record(took);
    }
}
