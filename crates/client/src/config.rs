//! What a client is started with, and the bounds of everything it keeps.

use std::time::Duration;

use base::units::{MIB, UNIT};
use wire::mgr::INLINE_LEN_MAX;

use crate::error::MountError;

/// Bounds and habits of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// Bytes of the page pool: cached, prefetched and dirty data of all files.
    pub pagepool: u64,
    /// Percent of the page pool that may be dirty; writers wait above it.
    pub dirty_pct: u32,
    /// Percent of the page pool that one stream of reads may have read ahead.
    pub prefetch_pct: u32,
    /// Files up to this many bytes are kept in their inode.
    pub inline_data_max: u32,
    /// Dirty data is written after this time at the latest.
    pub writeback_age: Duration,
    /// Sizes, times and allocation of written files reach the manager after this time at the latest.
    pub commit_age: Duration,
    /// Blocks being written at once.
    pub flushes_max: u32,
    /// Blocks being read ahead at once.
    pub prefetches_max: u32,
    /// Inodes kept in memory beyond those in use.
    pub files_to_cache_max: u32,
    /// Open files at once.
    pub handles_max: u32,
    /// Every wait ends after this time without progress.
    pub deadline: Duration,
    /// Raw bytes of room asked for at a time.
    pub reserve_bytes: u64,
}

impl Default for Tunables {
    fn default() -> Self {
        Tunables {
            pagepool: 1024 * MIB,
            dirty_pct: 40,
            prefetch_pct: 20,
            inline_data_max: 4096,
            writeback_age: Duration::from_secs(3),
            commit_age: Duration::from_secs(1),
            flushes_max: 64,
            prefetches_max: 32,
            files_to_cache_max: 50_000,
            handles_max: 1 << 20,
            deadline: Duration::from_secs(60),
            reserve_bytes: 64 * MIB,
        }
    }
}

impl Tunables {
    /// Refuses what cannot work. Nothing is changed silently.
    pub fn validate(&self) -> Result<(), MountError> {
        let bad = |name, value: u64, reason| Err(MountError::Config { name, value, reason });
        if self.pagepool < 4 * MIB || !self.pagepool.is_multiple_of(UNIT as u64) {
            return bad("pagepool", self.pagepool, "at least 4m, a multiple of 4k");
        }
        if !(1..=90).contains(&self.dirty_pct) {
            return bad("dirtyPct", self.dirty_pct.into(), "1 to 90");
        }
        if self.prefetch_pct > 60 {
            return bad("prefetchPct", self.prefetch_pct.into(), "0 to 60");
        }
        if self.inline_data_max as usize > INLINE_LEN_MAX {
            return bad("inlineDataMax", self.inline_data_max.into(), "at most 16k");
        }
        if self.flushes_max == 0 || self.prefetches_max == 0 || self.handles_max == 0 {
            return bad("flushes, prefetches, handles", 0, "at least 1 each");
        }
        Ok(())
    }

    /// Takes over what the cluster's configuration sets, by the names of `base::tunables`.
    pub fn adopt_cluster_values(&mut self, pairs: &[(String, String)]) -> Result<(), MountError> {
        let mut cluster = base::tunables::Tunables::default();
        cluster
            .apply(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map_err(|error| MountError::ClusterConfig(error.to_string()))?;
        self.pagepool = cluster.pagepool().0;
        self.inline_data_max = u32::try_from(cluster.inline_data_max().0).unwrap_or(u32::MAX);
        self.prefetch_pct = cluster.prefetch_pct();
        self.dirty_pct = cluster.dirty_limit_pct();
        self.files_to_cache_max = cluster.max_files_to_cache();
        self.deadline = cluster.operation_deadline();
        Ok(())
    }
}
