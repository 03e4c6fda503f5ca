//! Statistics of one pdisk in the process's registry: latency, strips and bytes by operation, commits,
//! and the events that an administrator must hear of. Handles are looked up once, when it is opened.

use std::time::Instant;

use base::{
    PdiskId,
    stats::{self, Counter, Gauge, Histogram},
};

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

    /// An operation ends now that began at `start`.
    pub fn done(&self, op: Op, start: Instant, strips: usize, bytes: usize) {
        let stats = &self.ops[op as usize];
        stats.latency.record(start.elapsed());
        stats.strips.add(strips as u64);
        stats.bytes.add(bytes as u64);
    }
}
