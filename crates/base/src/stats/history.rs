//! What every second of this process held: operations by key, and what each series of the registry gained.
//! Owns the seconds as encoded bytes, the newest [`SECONDS_MAX`] of them within [`set_history_bytes`]; older ones go.
//! One thread closes a second, on the whole second of the system's clock. A second that it missed (a machine that
//! stood still) is a gap, and what happened in it counts in the one that follows.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Once, Weak},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    Gauge, cost,
    counted::Amount,
    gauge,
    histogram::LATENCY_BUCKETS,
    operations::{self, Operations, Recorder},
    registry,
    table::{self, Measure},
};

/// Seconds kept in memory, at most.
pub const SECONDS_MAX: usize = 3600;
/// Keys of a set that a second keeps apart.
pub const ROWS_MAX: usize = 512;

/// What a series gained in a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Gain {
    /// A counter's gain.
    Counter(u64),
    /// A gauge's value at the end; 0 is left out. Of several seconds the sum of their values.
    Gauge(i64),
    /// A histogram's new events. Of [`Utilisation`](super::Utilisation) one event in each second, in the bucket of the share
    /// ([`utilisation_bucket`]): of several seconds nothing is averaged.
    Histogram(Amount),
}

/// One second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Its end, seconds since 1970.
    pub at: u64,
    /// Seconds up to its end that it is about: 1, or 60 or 3600 that were put together.
    pub span: u32,
    /// As many of them were recorded.
    pub recorded: u32,
    /// Time since the end of the one before, microseconds.
    pub elapsed_us: u64,
    /// Operations by set.
    pub operations: Vec<Operations>,
    /// By number of the series; see [`super::Registry::series`].
    pub series: Vec<(u32, Gain)>,
}

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Seconds.
    pub seconds: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes that they may take.
    #[serde(rename = "max_bytes")]
    pub bytes_max: usize,
}

struct History {
    /// (end, encoded), oldest first.
    seconds: VecDeque<(u64, Arc<[u8]>)>,
    kept: Kept,
}

static HISTORY: LazyLock<Mutex<History>> = LazyLock::new(|| {
    let kept = Kept { bytes_max: 32 << 20, ..Kept::default() };
    Mutex::new(History { seconds: VecDeque::new(), kept })
});

impl History {
    fn push(&mut self, at: u64, bytes: Arc<[u8]>) {
        self.kept.bytes += bytes.len();
        self.seconds.push_back((at, bytes));
        self.shrink();
    }

    /// Not always the oldest: the system's clock may have been set back meanwhile.
    fn first(&self, after: u64) -> Option<u64> {
        self.seconds.iter().map(|(at, _)| *at).filter(|at| *at > after).min()
    }

    fn shrink(&mut self) {
        while self.seconds.len() > SECONDS_MAX || self.kept.bytes > self.kept.bytes_max {
            let Some((_, bytes)) = self.seconds.pop_front() else { break };
            self.kept.bytes -= bytes.len();
        }
        self.kept.seconds = self.seconds.len();
    }
}

/// Bytes that the seconds may take from now on.
pub fn set_history_bytes(bytes_max: usize) {
    let mut history = HISTORY.lock();
    history.kept.bytes_max = bytes_max;
    history.shrink();
}

/// Memory that history and the counting of operations take in this process at most, bytes.
pub fn memory_max() -> u64 {
    let recorders: usize = operations::recorders().map(Recorder::memory).sum();
    (HISTORY.lock().kept.bytes_max + recorders) as u64
}

/// The end of the first second that is kept of those that end after `after`: whatever of it and later ones is known stands here.
pub fn first(after: u64) -> Option<u64> {
    HISTORY.lock().first(after)
}

/// What is kept now.
pub fn kept() -> Kept {
    HISTORY.lock().kept
}

/// The seconds that end after `after` and not after `to` (seconds since 1970), oldest first, one at a time.
pub fn seconds(after: u64, to: u64) -> impl Iterator<Item = Second> {
    let history = HISTORY.lock();
    let of = history.seconds.iter().filter(|(at, _)| (after + 1..=to).contains(at));
    let encoded: Vec<Arc<[u8]>> = of.map(|(_, bytes)| Arc::clone(bytes)).collect();
    // Our own bytes: none is left out.
    encoded.into_iter().filter_map(|bytes| postcard::from_bytes(&bytes).ok())
}

/// Buckets of utilisation: 5 % each.
pub const UTILISATION_BUCKETS: u64 = 20;

/// The bucket of a share in percent; all of it is in the last.
pub fn utilisation_bucket(percent: f64) -> u64 {
    ((percent.max(0.0) / 100.0 * UTILISATION_BUCKETS as f64) as u64).min(UTILISATION_BUCKETS - 1)
}

/// What changes while nobody counts, such as how long something has been under way.
pub trait Brought: Send + Sync {
    /// Counts what there is up to now. It is quick, and waits for nobody.
    fn up_to_date(&self);
}

static BROUGHT: Mutex<Vec<Weak<dyn Brought>>> = Mutex::new(Vec::new());

/// Brings this up to date before each second is closed, as long as it lives.
pub fn bring_up_to_date(what: Weak<dyn Brought>) {
    let mut brought = BROUGHT.lock();
    brought.retain(|what| what.strong_count() > 0);
    brought.push(what);
}

/// Begins to keep history in this process; further calls change nothing.
pub fn keep() -> std::io::Result<()> {
    static BEGUN: Once = Once::new();
    let mut result = Ok(());
    BEGUN.call_once(|| {
        result = std::thread::Builder::new().name("statistics".to_owned()).spawn(run).map(drop);
    });
    result
}

/// The present, whole seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn run() {
    let mut closing = Closing::new();
    loop {
        let of_second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        std::thread::sleep(Duration::from_nanos(1_000_000_000 - u64::from(of_second)));
        closing.close(now());
    }
}

/// Closes seconds.
struct Closing {
    last: Instant,
    cost: Gauge,
    bytes: Gauge,
    seconds: Gauge,
}

impl Closing {
    fn new() -> Closing {
        Closing {
            last: Instant::now(),
            cost: gauge("analytics_cost_millionths", &[]),
            bytes: gauge("analytics_history_bytes", &[]),
            seconds: gauge("analytics_history_depth_seconds", &[]),
        }
    }

    fn close(&mut self, at: u64) {
        let (begun, cpu) = (Instant::now(), cost::thread_cpu());
        BROUGHT.lock().iter().filter_map(Weak::upgrade).for_each(|what| what.up_to_date());
        let elapsed = begun - std::mem::replace(&mut self.last, begun);
        let mut recording = Duration::ZERO;
        let mut all = Vec::new();
        for recorder in operations::recorders() {
            let (operations, totals, took) = recorder.close(ROWS_MAX);
            recording += took;
            roll_up(recorder, totals.into_iter());
            if !operations.rows.is_empty() || !operations.other.is_empty() {
                all.push(operations);
            }
        }
        let elapsed_us = elapsed.as_micros() as u64;
        let second =
            Second { at, span: 1, recorded: 1, elapsed_us, operations: all, series: registry().gains() };
        if let Ok(bytes) = postcard::to_stdvec(&second) {
            HISTORY.lock().push(at, bytes.into());
        }
        let kept = kept();
        self.bytes.set(kept.bytes as i64);
        self.seconds.set(kept.seconds as i64);
        let spent = recording + (cost::thread_cpu() - cpu) + cost::take_spent();
        self.cost.set((spent.as_secs_f64() / elapsed.as_secs_f64().max(1e-3) * 1e6) as i64);
    }
}

/// Adds a second's operations to the families that others read (Prometheus, `status`).
fn roll_up(recorder: &Recorder, totals: impl Iterator<Item = (u8, Amount)>) {
    for (op, amount) in totals {
        let labels = [("op", recorder.op_name(op))];
        if let Some(family) = table::family_of(recorder.set(), Measure::Operations) {
            super::histogram(family, &labels).absorb(&amount.latency, amount.ns);
        }
        if let Some(family) = table::family_of(recorder.set(), Measure::Bytes) {
            super::counter(family, &labels).add(amount.bytes);
        }
    }
}

/// What a series held when the last second ended.
#[derive(Default)]
pub(super) struct Last {
    count: u64,
    sum_ns: u64,
    latency: Option<Box<[u64; LATENCY_BUCKETS]>>,
}

impl Last {
    /// What the series gained since; none if nothing.
    pub(super) fn gain(&mut self, cell: &registry::Cell) -> Option<Gain> {
        match cell {
            registry::Cell::Gauge(gauge) => Some(gauge.get()).filter(|n| *n != 0).map(Gain::Gauge),
            registry::Cell::Counter(counter) => {
                let now = counter.get();
                let gained = now.wrapping_sub(std::mem::replace(&mut self.count, now));
                (gained > 0).then_some(Gain::Counter(gained))
            }
            registry::Cell::Utilisation(utilisation) => {
                let bucket = utilisation_bucket(utilisation.take()? * 100.0) as u8;
                Some(Gain::Histogram(Amount { ops: 1, latency: vec![(bucket, 1)], ..Amount::default() }))
            }
            registry::Cell::Histogram(histogram) => {
                let sum_ns = histogram.sum_ns();
                if sum_ns == self.sum_ns {
                    return None;
                }
                let ns = sum_ns.wrapping_sub(std::mem::replace(&mut self.sum_ns, sum_ns));
                let before = self.latency.get_or_insert_with(|| Box::new([0; LATENCY_BUCKETS]));
                let mut amount = Amount { ns, ..Amount::default() };
                for (bucket, now) in histogram.by_latency().into_iter().enumerate() {
                    let n = now - std::mem::replace(&mut before[bucket], now);
                    if n > 0 {
                        amount.ops += n;
                        amount.latency.push((bucket as u8, n));
                    }
                }
                Some(Gain::Histogram(amount))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Form, Registry, latency_bucket};

    #[test]
    fn a_series_gains_what_was_counted_since() {
        let registry = Registry::new();
        let counter = registry.counter("sent", "", &[]).unwrap();
        let gauge = registry.gauge("queue", "", &[]).unwrap();
        let histogram = registry.histogram("op_seconds", "", &[]).unwrap();
        counter.add(30);
        gauge.set(-4);
        histogram.record(Duration::from_millis(2));
        histogram.record(Duration::from_millis(4));
        let names = registry.series();
        let by_name = |gains: Vec<(u32, Gain)>, name: &str| {
            gains.into_iter().find(|(number, _)| names[number].0 == name).map(|g| g.1)
        };
        let first = registry.gains();
        assert_eq!(by_name(first.clone(), "sent"), Some(Gain::Counter(30)));
        assert_eq!(by_name(first.clone(), "queue"), Some(Gain::Gauge(-4)));
        let bucket = |ms: u64| latency_bucket(ms * 1_000_000) as u8;
        let expected =
            Amount { ops: 2, bytes: 0, ns: 6_000_000, latency: vec![(bucket(2), 1), (bucket(4), 1)] };
        assert_eq!(by_name(first, "op_seconds"), Some(Gain::Histogram(expected)));
        counter.add(2);
        let second = registry.gains();
        assert_eq!(by_name(second.clone(), "sent"), Some(Gain::Counter(2)));
        assert_eq!(by_name(second, "op_seconds"), None);
    }

    #[test]
    fn a_thing_in_use_is_one_event_in_the_bucket_of_its_share() {
        let registry = Registry::new();
        let of = |cpu: &str| registry.utilisation("cpu_utilisation", "", &[("cpu", cpu)]).unwrap();
        let gained = || -> Vec<u8> {
            let bucket = |gain: Gain| match gain {
                Gain::Histogram(amount) => {
                    assert_eq!((amount.ops, amount.latency.len()), (1, 1));
                    amount.latency[0].0
                }
                other => panic!("{other:?}"),
            };
            registry.gains().into_iter().map(|(_, gain)| bucket(gain)).collect()
        };
        of("0").add(0, 1_000_000);
        of("1").add(330_000, 500_000);
        of("1").add(340_000, 500_000);
        of("2").add(1_000_001, 1_000_000);
        assert_eq!(gained(), [0, 13, 19]);
        // Who says nothing is not idle, but unknown.
        of("1").add(49_999, 1_000_000);
        assert_eq!(gained(), [0]);
        assert_eq!([0.0, 4.99, 5.0, 99.9, 100.0, 250.0].map(utilisation_bucket), [0, 0, 1, 19, 19, 19]);
        // A counter of what was used is all that others see.
        assert!(
            registry.snapshot().families.is_empty() && registry.prometheus_text(Form::Prometheus).is_empty()
        );
    }

    #[test]
    fn old_seconds_go_by_number_and_by_bytes() {
        let mut history =
            History { seconds: VecDeque::new(), kept: Kept { bytes_max: 1 << 20, ..Kept::default() } };
        for at in 0..2 * SECONDS_MAX as u64 {
            history.push(at, vec![0; 10].into());
        }
        assert_eq!((history.kept.seconds, history.kept.bytes), (SECONDS_MAX, SECONDS_MAX * 10));
        assert_eq!(history.seconds.front().unwrap().0, SECONDS_MAX as u64);
        history.push(9999, vec![0; (1 << 20) - 25].into());
        assert_eq!((history.kept.seconds, history.kept.bytes), (3, (1 << 20) - 5));
        // The clock is set back: that is where it begins now.
        assert_eq!(history.first(0), Some(2 * SECONDS_MAX as u64 - 2));
        history.push(17, vec![0; 5].into());
        assert_eq!(history.first(0), Some(17));
        assert_eq!(
            history.first(17),
            Some(2 * SECONDS_MAX as u64 - 2),
            "of one that stood elsewhere nothing follows"
        );
    }

    #[test]
    fn a_second_survives_its_encoding() {
        let amount = Amount { ops: 3, bytes: 12288, ns: 77, latency: vec![(9, 3)] };
        let key = crate::stats::Key { session: 5, inode: 7, op: 15, size: 13, ..Default::default() };
        let row = operations::Row { key, amount: amount.clone(), missed: 1 };
        let of =
            Operations { set: operations::Set::File, rows: vec![row], other: vec![(16, amount.clone())] };
        let second = Second {
            at: 1_700_000_000,
            span: 1,
            recorded: 1,
            elapsed_us: 1_000_100,
            operations: vec![of],
            series: vec![(4, Gain::Gauge(-2)), (5, Gain::Histogram(amount))],
        };
        let bytes = postcard::to_stdvec(&second).unwrap();
        assert_eq!(postcard::from_bytes::<Second>(&bytes).unwrap(), second);
        assert!(bytes.len() < 64, "{}", bytes.len());
    }
}
