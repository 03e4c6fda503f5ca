//! Statistics of one pdisk in the process's registry: latency, strips and bytes by operation, commits,
//! and the events that an administrator must hear of. Handles are looked up once, when it is opened.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use base::{
    PdiskId,
    stats::{self, Brought, Counter, Gauge, Histogram, Utilisation},
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
    at_work: Arc<AtWork>,
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

/// The time in which there was a batch to do.
struct AtWork {
    now: Mutex<UnderWay>,
    busy: Counter,
    utilisation: Utilisation,
    queued: Gauge,
}

struct UnderWay {
    batches: u32,
    /// Up to when the time with one is counted.
    counted: Instant,
    /// Of it, microseconds since utilisation was told last ...
    busy_us: u64,
    /// ... which was then.
    told: Instant,
}

impl AtWork {
    /// So many batches more, or less, are under way from now on.
    fn step(&self, change: i32) -> Instant {
        let mut of = self.now.lock();
        let now = Instant::now();
        of.count(now, &self.busy);
        of.batches = of.batches.saturating_add_signed(change);
        self.queued.set(of.batches.into());
        now
    }
}

impl UnderWay {
    fn count(&mut self, now: Instant, busy: &Counter) {
        if self.batches == 0 {
            self.counted = now;
            return;
        }
        let us = now.duration_since(self.counted).as_micros() as u64;
        busy.add(us);
        self.busy_us += us;
        // What is less than a microsecond counts the next time.
        self.counted += Duration::from_micros(us);
    }
}

impl Brought for AtWork {
    fn up_to_date(&self) {
        let mut of = self.now.lock();
        let now = Instant::now();
        of.count(now, &self.busy);
        let busy_us = std::mem::take(&mut of.busy_us);
        let since = now.duration_since(std::mem::replace(&mut of.told, now));
        self.utilisation.add(busy_us, since.as_micros() as u64);
    }
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
        let now = Instant::now();
        let at_work = Arc::new(AtWork {
            now: Mutex::new(UnderWay { batches: 0, counted: now, busy_us: 0, told: now }),
            busy: counter("pdisk_busy_microseconds"),
            utilisation: stats::utilisation("pdisk_utilisation", &mine),
            queued: stats::gauge("pdisk_queued", &mine),
        });
        let brought: Weak<AtWork> = Arc::downgrade(&at_work);
        stats::bring_up_to_date(brought);
        Stats {
            ops: OPS.iter().map(op).collect(),
            at_work,
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
        Begun { stats: self, start: self.at_work.step(1) }
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
        self.stats.at_work.step(-1);
    }
}
