//! Latency histograms: log-linear buckets of atomic counts, in nanoseconds.
//! Below 32 ns every value has its bucket; above, each power of two is cut into 32. So a bucket is at most
//! 1/32 of its lower end wide, and its middle is within 1/64 (1.6 %) of every value in it.
//! What lasts longer than 2^40 ns (18 minutes) is counted in the last bucket; `max` still has its true value.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// log2 of the buckets in each power of two.
const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Values from 2^RANGE_BITS nanoseconds share the last bucket.
const RANGE_BITS: u32 = 40;
pub(super) const BUCKETS: usize = (RANGE_BITS - SUB_BITS + 1) as usize * SUB;

/// Buckets of latency that a second keeps: halves of powers of two nanoseconds.
pub const LATENCY_BUCKETS: usize = BUCKETS / FINE;
/// Buckets of a [`super::Histogram`] in one of those.
pub(super) const FINE: usize = 16;

/// The bucket of a value.
pub(super) fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    let index = (shift as usize) * SUB + (ns >> shift) as usize;
    index.min(BUCKETS - 1)
}

/// The least value of bucket `index`; that of `BUCKETS` is the end of the last one.
pub(super) fn bucket_start(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    ((SUB + index % SUB) as u64) << shift
}

/// The bucket of a latency.
pub fn latency_bucket(ns: u64) -> usize {
    bucket_of(ns) / FINE
}

/// Where a bucket of latency begins, nanoseconds; that of [`LATENCY_BUCKETS`] is the end of the last.
pub fn latency_start(bucket: usize) -> u64 {
    bucket_start(bucket.min(LATENCY_BUCKETS) * FINE)
}

#[derive(Debug)]
struct Cells {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// A latency histogram. Clones record into the same buckets.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Cells>);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(Arc::new(Cells {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
        }))
    }
}

impl Histogram {
    /// Bytes of one histogram.
    pub const BYTES: usize = BUCKETS * 8 + size_of::<Cells>();

    /// Counts one event that took `latency`.
    pub fn record(&self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let cells = &*self.0;
        cells.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        cells.sum_ns.fetch_add(ns, Relaxed);
        // Extremes move rarely: the plain loads keep the line shared between cores.
        if ns < cells.min_ns.load(Relaxed) {
            cells.min_ns.fetch_min(ns, Relaxed);
        }
        if ns > cells.max_ns.load(Relaxed) {
            cells.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// What was recorded so far. Events recorded meanwhile may be in it or not.
    pub fn snapshot(&self) -> HistSnapshot {
        let cells = &*self.0;
        let mut snapshot = HistSnapshot::default();
        for (index, bucket) in cells.buckets.iter().enumerate() {
            let n = bucket.load(Relaxed);
            if n > 0 {
                snapshot.buckets.push((index as u16, n));
                snapshot.count += n;
            }
        }
        if snapshot.count > 0 {
            snapshot.sum_ns = cells.sum_ns.load(Relaxed);
            snapshot.max_ns = cells.max_ns.load(Relaxed);
            snapshot.min_ns = cells.min_ns.load(Relaxed).min(snapshot.max_ns);
        }
        snapshot
    }

    /// The sum of nanoseconds so far.
    pub(super) fn sum_ns(&self) -> u64 {
        self.0.sum_ns.load(Relaxed)
    }

    /// Events so far by [`LATENCY_BUCKETS`].
    pub(super) fn by_latency(&self) -> [u64; LATENCY_BUCKETS] {
        let mut all = [0; LATENCY_BUCKETS];
        for (index, bucket) in self.0.buckets.iter().enumerate() {
            all[index / FINE] += bucket.load(Relaxed);
        }
        all
    }

    /// Adds events that were counted elsewhere, in the finest bucket that is known of each, and their latencies together.
    pub(super) fn absorb(&self, latency: &[(u8, u64)], ns: u64) {
        let cells = &*self.0;
        for &(bucket, n) in latency {
            let index = (usize::from(bucket) * FINE).min(BUCKETS - FINE);
            cells.buckets[index + FINE / 2].fetch_add(n, Relaxed);
            cells.min_ns.fetch_min(bucket_start(index), Relaxed);
            cells.max_ns.fetch_max(bucket_start(index + FINE) - 1, Relaxed);
        }
        cells.sum_ns.fetch_add(ns, Relaxed);
    }
}

/// What a histogram held at one moment. Snapshots of the same kind can be added (several nodes) and an
/// earlier one subtracted (one interval).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistSnapshot {
    /// (bucket, events), only buckets with events, in rising order.
    buckets: Vec<(u16, u64)>,
    /// Events.
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

impl HistSnapshot {
    /// How many events.
    pub fn count(&self) -> u64 {
        self.count
    }
    /// All latencies together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }
    /// The shortest; zero without events.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.min_ns)
    }
    /// The longest; zero without events.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
    /// The mean; zero without events.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count).unwrap_or(0))
    }

    /// The latency that a share `q` (0 to 1) of the events did not exceed, within 3 %: the middle of its
    /// bucket, never outside min..=max. Zero without events.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        if rank == self.count {
            return self.max();
        }
        let mut seen = 0;
        for &(index, n) in &self.buckets {
            seen += n;
            if seen >= rank {
                let (start, end) = (bucket_start(index as usize), bucket_start(index as usize + 1));
                let middle = start + (end - start) / 2;
                return Duration::from_nanos(middle.clamp(self.min_ns, self.max_ns));
            }
        }
        self.max()
    }

    /// Events below 2^`bits` nanoseconds. Exact: powers of two are bucket ends.
    pub fn count_below_power(&self, bits: u32) -> u64 {
        let end = bucket_of(1 << bits);
        self.buckets.iter().take_while(|(i, _)| usize::from(*i) < end).map(|(_, n)| n).sum()
    }

    /// Adds the events of another snapshot.
    pub fn merge(&mut self, other: &HistSnapshot) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for &(index, n) in &other.buckets {
            match self.buckets.binary_search_by_key(&index, |b| b.0) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(n),
                Err(at) => self.buckets.insert(at, (index, n)),
            }
        }
    }

    /// The events since `earlier`, a snapshot of the same histogram. The extremes of the interval are
    /// known to a bucket only.
    pub fn since(&self, earlier: &HistSnapshot) -> HistSnapshot {
        let mut interval = HistSnapshot::default();
        for &(index, n) in &self.buckets {
            let before =
                earlier.buckets.binary_search_by_key(&index, |b| b.0).map_or(0, |i| earlier.buckets[i].1);
            let n = n.saturating_sub(before);
            if n > 0 {
                interval.buckets.push((index, n));
                interval.count += n;
            }
        }
        if let (Some(first), Some(last)) = (interval.buckets.first(), interval.buckets.last()) {
            interval.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
            interval.min_ns = bucket_start(first.0 as usize).max(self.min_ns);
            interval.max_ns = (bucket_start(last.0 as usize + 1) - 1).min(self.max_ns);
        }
        interval
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> HistSnapshot {
        let histogram = Histogram::default();
        values.iter().for_each(|&v| histogram.record(Duration::from_nanos(v)));
        histogram.snapshot()
    }

    #[test]
    fn buckets_tile_the_range() {
        for index in 0..BUCKETS {
            let (start, end) = (bucket_start(index), bucket_start(index + 1));
            assert!(start < end);
            assert_eq!((bucket_of(start), bucket_of(end - 1)), (index, index));
            assert!((end - start) * SUB as u64 <= start.max(SUB as u64), "bucket {index} is too wide");
        }
        assert_eq!(bucket_start(BUCKETS), 1 << RANGE_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn empty_and_endless() {
        let empty = of(&[]);
        assert_eq!((empty.count(), empty.quantile(0.99), empty.mean()), (0, Duration::ZERO, Duration::ZERO));
        let histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.snapshot().quantile(0.5), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let histogram = histogram.clone();
                scope.spawn(move || {
                    (0..10_000).for_each(|i| histogram.record(Duration::from_nanos(thread * 10_000 + i)))
                });
            }
        });
        let all = histogram.snapshot();
        assert_eq!((all.count(), all.min().as_nanos(), all.max().as_nanos()), (40_000, 0, 39_999));
        assert_eq!(all.sum().as_nanos(), (0..40_000).sum::<u128>());
    }

    proptest! {
        #[test]
        fn quantiles_are_within_three_percent(
            values in prop::collection::vec((0u32..40).prop_flat_map(|bits| 0u64..(2 << bits)), 1..300),
            q in 0.0f64..=1.0,
        ) {
            let snapshot = of(&values);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            // Beyond the range only the order is known.
            let exact = sorted[rank - 1];
            prop_assume!(exact < 1 << RANGE_BITS);
            let got = snapshot.quantile(q).as_nanos() as f64;
            let error = (got - exact as f64).abs();
            prop_assert!(error <= exact as f64 * 0.03, "q {q}: {got} for {exact}");
            prop_assert_eq!(snapshot.count(), values.len() as u64);
            prop_assert_eq!(snapshot.sum().as_nanos(), values.iter().map(|&v| u128::from(v)).sum::<u128>());
            prop_assert_eq!(snapshot.min().as_nanos() as u64, sorted[0]);
            prop_assert_eq!(snapshot.max().as_nanos() as u64, sorted[sorted.len() - 1]);
        }

        #[test]
        fn powers_of_two_are_exact(values in prop::collection::vec(0u64..1 << 38, 0..100), bits in 5u32..38) {
            let below = values.iter().filter(|&&v| v < 1 << bits).count() as u64;
            prop_assert_eq!(of(&values).count_below_power(bits), below);
        }

        #[test]
        fn merge_is_all_events_and_since_takes_them_back(
            a in prop::collection::vec(0u64..1 << 38, 0..50),
            b in prop::collection::vec(0u64..1 << 38, 0..50),
        ) {
            let both: Vec<u64> = a.iter().chain(&b).copied().collect();
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(&merged, &of(&both));
            let rest = merged.since(&of(&a));
            prop_assert_eq!(&rest.buckets, &of(&b).buckets);
            prop_assert_eq!(rest.sum(), of(&b).sum());
            prop_assert!(b.is_empty() || (rest.min() <= of(&b).min() && rest.max() >= of(&b).max()));
        }
    }
}
