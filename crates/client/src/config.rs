//! What a client is started with, and the bounds of everything it keeps.

use std::time::Duration;

use base::units::{MIB, UNIT};
use wire::mgr::INLINE_LEN_MAX;

use crate::error::MountError;

/// Bounds and habits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Blocks that reads of applications load at once.
    pub loads_max: u32,
    /// Files written back at once in the background.
    pub cleaners_max: u32,
    /// Files written at once by `sync`.
    pub syncs_max: u32,
    /// The rate this node is expected to move, 10^6 bytes a second: sizes read-ahead.
    pub mb_per_second_max: u32,
    /// Pages of files above this many bytes are given up first once they were read in sequence.
    pub seq_discard_threshold: u64,
    /// Blocks filled in sequence go out at once in files of at least this many bytes.
    pub writebehind_threshold: u64,
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
            loads_max: 64,
            cleaners_max: 64,
            syncs_max: 64,
            mb_per_second_max: 2048,
            seq_discard_threshold: MIB,
            writebehind_threshold: 512 << 10,
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
        let counts = [self.flushes_max, self.prefetches_max, self.loads_max, self.cleaners_max];
        if counts.contains(&0) || self.syncs_max == 0 || self.handles_max == 0 {
            return bad("flushes, prefetches, loads, cleaners, syncs, handles", 0, "at least 1 each");
        }
        Ok(())
    }

    /// Takes over what the cluster's configuration sets, by the names of `base::tunables`.
    pub fn adopt_cluster_values(&mut self, pairs: &[(String, String)]) -> Result<(), MountError> {
        let mut cluster = base::tunables::Tunables::default();
        cluster
            .apply(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map_err(|error| MountError::ClusterConfig(error.to_string()))?;
        self.inline_data_max = u32::try_from(cluster.inline_data_max().0).unwrap_or(u32::MAX);
        self.files_to_cache_max = cluster.max_files_to_cache();
        self.deadline = cluster.operation_deadline();
        self.adopt_live(&cluster);
        Ok(())
    }

    /// The part of it that may change while the client runs.
    pub(crate) fn adopt_live(&mut self, cluster: &base::tunables::Tunables) {
        self.pagepool = cluster.pagepool().0;
        self.dirty_pct = cluster.dirty_limit_pct();
        self.prefetch_pct = cluster.prefetch_pct();
        self.prefetches_max = cluster.prefetch_threads();
        self.loads_max = cluster.worker1_threads();
        self.flushes_max = cluster.max_buffer_cleaners();
        self.cleaners_max = cluster.max_file_cleaners();
        self.syncs_max = cluster.sync_worker_threads();
        self.mb_per_second_max = cluster.max_mbps();
        self.seq_discard_threshold = cluster.seq_discard_threshold().0;
        self.writebehind_threshold = cluster.writebehind_threshold().0;
    }

    /// The most memory this takes, bytes: the page pool, a quarter of it in freed buffers, what is above
    /// the pool's bound while blocks are written (a unit of each strip at least; a block at most), inodes
    /// and handles with their streams.
    pub fn memory_max(&self, block_size: u64) -> u64 {
        let files = u64::from(self.files_to_cache_max) * FILE_BYTES;
        let pool = self.pagepool.saturating_add(self.pagepool / crate::pool::IDLE_SHARE);
        pool.saturating_add(files).saturating_add(u64::from(self.flushes_max) * block_size)
    }

    /// Refuses what does not fit into this machine.
    pub(crate) fn check_memory(&self, block_size: u64, installed: Option<u64>) -> Result<(), MountError> {
        let need = self.memory_max(block_size);
        match installed {
            Some(installed) if need > installed => {
                Err(MountError::Memory { need, installed, pagepool: self.pagepool })
            }
            _ => Ok(()),
        }
    }
}

/// Memory of an inode in the cache: its state, a few blocks, its places in the tables.
const FILE_BYTES: u64 = 3 << 10;

/// Memory of this machine, bytes; `None` where the system does not say.
pub(crate) fn installed_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_pool_that_does_not_fit_into_the_machine_is_refused_with_the_sum() {
        let tunables = Tunables { pagepool: 8 << 30, ..Tunables::default() };
        assert!(tunables.check_memory(4 * MIB, Some(16 << 30)).is_ok());
        let error = tunables.check_memory(4 * MIB, Some(8 << 30)).unwrap_err().to_string();
        assert!(error.contains("pagepool") && error.contains("8.00 GiB"), "{error}");
        assert!(installed_memory().is_some_and(|bytes| bytes > 64 * MIB));
    }

    #[test]
    fn the_master_knob_moves_what_follows_from_it() {
        let mut tunables = Tunables::default();
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        tunables.adopt_cluster_values(&[set("workerThreads", "1024")]).unwrap();
        let derived = (tunables.prefetches_max, tunables.flushes_max, tunables.syncs_max);
        assert_eq!(derived, (341, 1024, 256));
        let pairs = [set("workerThreads", "1024"), set("prefetchThreads", "7")];
        tunables.adopt_cluster_values(&pairs).unwrap();
        assert_eq!((tunables.prefetches_max, tunables.flushes_max), (7, 1024));
        assert_eq!((tunables.loads_max, tunables.cleaners_max), (1024, 1024));
    }
}
