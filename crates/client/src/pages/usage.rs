//! What is in the page pool and where reads were answered from, for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::stats::{self, Counter};
use serde::Serialize;

/// What is in the pool, in bytes, and what was read since the client began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolUse {
    /// Bytes it may hold.
    #[serde(rename = "max_bytes")]
    pub bytes_max: u64,
    /// Bytes it holds.
    #[serde(rename = "used_bytes")]
    pub used: u64,
    /// Bytes it ever held at most.
    #[serde(rename = "used_most_bytes")]
    pub used_most: u64,
    /// Blocks in memory, each a KiB of the pool beside its data, and long lists of extents.
    pub entries: u64,
    /// Bytes of those that are not yet stored.
    #[serde(rename = "dirty_bytes")]
    pub dirty: u64,
    /// Bytes that may be dirty; writers wait above it.
    #[serde(rename = "dirty_max_bytes")]
    pub dirty_max: u64,
    /// Bytes of clean pages that were used more than once.
    #[serde(rename = "reused_bytes")]
    pub reused: u64,
    /// Bytes of freed buffers kept for the next load, beside the pool: those of the network included.
    #[serde(rename = "idle_bytes")]
    pub idle_buffers: u64,
    /// Bytes of reads that were in memory.
    pub hit_bytes: u64,
    /// Bytes of reads that were on their way: read ahead, or asked for by another reader.
    pub coming_bytes: u64,
    /// Bytes of reads that had to be asked for.
    pub miss_bytes: u64,
    /// Bytes read ahead.
    pub ahead_bytes: u64,
    /// Bytes of those that were given up before anybody asked for them.
    pub ahead_unused_bytes: u64,
}

/// A sum of this client, and in the process's registry.
pub(crate) struct Count {
    own: AtomicU64,
    all: Counter,
}

impl Count {
    fn new(source: &str) -> Count {
        Count { own: AtomicU64::new(0), all: stats::counter("pagepool_read_bytes", &[("how", source)]) }
    }

    pub fn add(&self, bytes: u64) {
        self.own.fetch_add(bytes, Relaxed);
        self.all.add(bytes);
    }

    pub fn get(&self) -> u64 {
        self.own.load(Relaxed)
    }
}

/// Bytes of reads that missed, by why.
pub(crate) struct Misses {
    pub first: Counter,
    pub evicted: Counter,
    pub given_up: Counter,
    pub part: Counter,
}

/// The sums behind [`PoolUse`].
pub(crate) struct PoolCounts {
    pub misses: Misses,
    pub hit: Count,
    pub coming: Count,
    pub miss: Count,
    pub ahead: Count,
    pub ahead_unused: Count,
}

impl Default for PoolCounts {
    fn default() -> PoolCounts {
        let missed = |reason| stats::counter("pagepool_miss_bytes", &[("reason", reason)]);
        PoolCounts {
            misses: Misses {
                first: missed("first"),
                evicted: missed("evicted"),
                given_up: missed("given_up"),
                part: missed("part"),
            },
            hit: Count::new("hit"),
            coming: Count::new("coming"),
            miss: Count::new("miss"),
            ahead: Count::new("ahead"),
            ahead_unused: Count::new("ahead_unused"),
        }
    }
}
