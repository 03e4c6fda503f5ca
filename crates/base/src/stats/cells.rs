//! Counters and gauges: one atomic number each, alone on its cache line, shared by all handles.

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
