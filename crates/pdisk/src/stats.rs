//! Statistics of one pdisk in the process's registry: latency, strips and bytes by operation, commits,
//! and the events that an administrator must hear of. Handles are looked up once, when it is opened.

use std::time::Instant;

use base::{
    PdiskId,
    stats::{self, Counter, Gauge, Histogram},
};
use parking_lot::Mutex;

/// Operations that are measured.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Prepare,
    Install,
    Adopt,
    Discard,
    Seal,
    Delete,
    Read,
}

const OPS: [&str; 7] = ["prepare", "install", "adopt", "discard", "seal", "delete", "read"];

struct OpStats {
    latency: Histogram,
    strips: Counter,
    bytes: Counter,
}

/// The handles of one pdisk.
pub(crate) struct Stats {
    ops: Vec<OpStats>,
    /// Batches under way, and up to when the time with one is counted.
    under_way: Mutex<(u32, Instant)>,
    busy: Counter,
    queued: Gauge,
    /// From the first record of a group being taken up to its waiters being answered.
    pub commit: Histogram,
    pub commit_records: Counter,
    pub commit_bytes: Counter,
    pub checkpoint: Histogram,
    /// 1: latched failed.
    pub failed: Gauge,
    pub failures: Counter,
    /// Memory of the index, an upper bound.
    pub index_bytes: Gauge,
    /// 1: the host's file system has no room for what must be written.
    pub short: Gauge,
    /// Strips that could not be read or did not verify.
    pub lost: Counter,
}

impl Stats {
    pub fn new(pdisk: PdiskId) -> Stats {
        let id = pdisk.to_string();
        let mine = [("pdisk", id.as_str())];
        let op = |op: &&'static str| {
            let labels = [("pdisk", id.as_str()), ("op", op)];
            OpStats {
                latency: stats::histogram("pdisk_op_seconds", &labels),
                strips: stats::counter("pdisk_op_strips", &labels),
                bytes: stats::counter("pdisk_op_bytes", &labels),
            }
        };
        let counter = |name| stats::counter(name, &mine);
        let histogram = |name| stats::histogram(name, &mine);
        Stats {
            ops: OPS.iter().map(op).collect(),
            under_way: Mutex::new((0, Instant::now())),
            busy: counter("pdisk_busy_microseconds"),
            queued: stats::gauge("pdisk_queued", &mine),
            commit: histogram("pdisk_commit_seconds"),
            commit_records: counter("pdisk_commit_records"),
            commit_bytes: counter("pdisk_commit_bytes"),
            checkpoint: histogram("pdisk_checkpoint_seconds"),
            failed: stats::gauge("pdisk_failed", &mine),
            index_bytes: stats::gauge("pdisk_index_bytes", &mine),
            short: stats::gauge("pdisk_short", &mine),
            failures: counter("pdisk_failures"),
            lost: counter("pdisk_lost_strips"),
        }
    }

    /// A batch begins; it ends when what is returned is dropped.
    pub fn begin(&self) -> Begun<'_> {
        Begun { stats: self, start: self.step(1) }
    }

    /// So many batches more, or less, are under way from now on.
    fn step(&self, change: i32) -> Instant {
        let mut under_way = self.under_way.lock();
        let now = Instant::now();
        if under_way.0 > 0 {
            self.busy.add(now.duration_since(under_way.1).as_micros() as u64);
        }
        *under_way = (under_way.0.saturating_add_signed(change), now);
        self.queued.set(under_way.0.into());
        now
    }
}

/// A batch that is under way.
pub(crate) struct Begun<'a> {
    stats: &'a Stats,
    start: Instant,
}

impl Begun<'_> {
    /// It is done.
    pub fn done(self, op: Op, strips: usize, bytes: usize) {
        let of = &self.stats.ops[op as usize];
        of.latency.record(self.start.elapsed());
        of.strips.add(strips as u64);
        of.bytes.add(bytes as u64);
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.stats.step(-1);
    }
}
