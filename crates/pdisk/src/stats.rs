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
                latency: stats::histogram("pdisk_op_seconds", "Latency of batches, by operation", &labels),
                strips: stats::counter("pdisk_op_strips", "Strips in batches, by operation", &labels),
                bytes: stats::counter("pdisk_op_bytes", "Bytes of payload, by operation", &labels),
            }
        };
        let counter = |name, help| stats::counter(name, help, &mine);
        let histogram = |name, help| stats::histogram(name, help, &mine);
        Stats {
            ops: OPS.iter().map(op).collect(),
            commit: histogram("pdisk_commit_seconds", "Time of group commits"),
            commit_records: counter("pdisk_commit_records", "Records made durable by group commits"),
            commit_bytes: counter("pdisk_commit_bytes", "Bytes written to the log"),
            checkpoint: histogram("pdisk_checkpoint_seconds", "Time of checkpoints"),
            failed: stats::gauge("pdisk_failed", "1 if the pdisk has latched itself failed", &mine),
            index_bytes: stats::gauge("pdisk_index_bytes", "Memory that the index takes, at most", &mine),
            short: stats::gauge("pdisk_short", "1 while the host's file system has no room", &mine),
            failures: counter("pdisk_failures", "Times a pdisk latched itself failed"),
            lost: counter("pdisk_lost_strips", "Strips found unreadable or not matching their CRCs"),
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
