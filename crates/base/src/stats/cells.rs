//! Counters and gauges: one atomic number each, alone on its cache line, shared by all handles. How much of its time a thing
//! was in use: two.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

/// Keeps two cells off one cache line, so that two busy threads do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// A number that only grows. Clones count into the same cell.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<Line<AtomicU64>>);

impl Counter {
    /// Adds `n`; wraps after 2^64.
    pub fn add(&self, n: u64) {
        self.0.0.fetch_add(n, Relaxed);
    }
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }
    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.0.load(Relaxed)
    }
}

/// A number that rises and falls. Clones show the same cell.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Line<AtomicI64>>);

impl Gauge {
    /// Makes it `n`.
    pub fn set(&self, n: i64) {
        self.0.0.store(n, Relaxed);
    }
    /// Adds `n`.
    pub fn add(&self, n: i64) {
        self.0.0.fetch_add(n, Relaxed);
    }
    /// Subtracts `n`.
    pub fn sub(&self, n: i64) {
        self.0.0.fetch_sub(n, Relaxed);
    }
    /// The value now.
    pub fn get(&self) -> i64 {
        self.0.0.load(Relaxed)
    }
}

/// How much of its time a thing was in use, or of its rate: of a CPU, a pdisk, a link. Clones count into the same cell.
#[derive(Clone, Debug, Default)]
pub struct Utilisation(Arc<(AtomicU64, AtomicU64)>);

impl Utilisation {
    /// Of so much that was possible since it was said last, so much was used.
    pub fn add(&self, used: u64, possible: u64) {
        self.0.0.fetch_add(used, Relaxed);
        self.0.1.fetch_add(possible, Relaxed);
    }

    /// The share since it was asked last, 0 to 1; none if nothing was said.
    pub(super) fn take(&self) -> Option<f64> {
        let (used, possible) = (self.0.0.swap(0, Relaxed), self.0.1.swap(0, Relaxed));
        (possible > 0).then(|| (used as f64 / possible as f64).min(1.0))
    }
}
