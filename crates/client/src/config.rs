//! What a client is started with, and the bounds of everything it keeps.

use std::time::Duration;

use base::units::{MIB, UNIT};
use serde::Serialize;
use wire::{map::PoolEntry, mgr::INLINE_LEN_MAX};

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
    /// Open files at once: four for each file that may be kept, 65,536 at least.
    pub handles_max: u32,
    /// Every wait ends after this time without progress.
    pub deadline: Duration,
    /// How often the lease is renewed.
    pub lease_renew_interval: Duration,
    /// The largest block of a pool that is mounted, bytes.
    pub block_size_max: u64,
    /// Raw bytes of room asked for at a time.
    pub reserve_bytes: u64,
    /// Extents of a file's record asked for in one call, and blocks of a window of it: 1 to 4096.
    pub record_window: u32,
    /// Runs of a file's record that are kept where nobody uses them: 2 MiB of a file.
    pub record_runs_max: u32,
    /// Names may be made ahead of the manager (docs/names-ahead.md).
    pub names_ahead: bool,
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
            handles_max: handles_max(50_000),
            deadline: Duration::from_secs(60),
            lease_renew_interval: Duration::from_secs(1),
            block_size_max: 16 * MIB,
            reserve_bytes: 64 * MIB,
            record_window: 4096,
            record_runs_max: 1 << 16,
            names_ahead: false,
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
        self.handles_max = handles_max(self.files_to_cache_max);
        self.deadline = cluster.operation_deadline();
        self.lease_renew_interval = cluster.lease_renew_interval();
        self.block_size_max = cluster.maxblocksize().0;
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

    /// The most memory this takes, by parts.
    pub fn memory_bound(&self, block_size: u64) -> MemoryBound {
        let parts = MemoryBound {
            pagepool: self.pagepool,
            idle_buffers: self.pagepool / crate::pages::pool::IDLE_SHARE,
            writing: u64::from(self.flushes_max) * block_size,
            files: u64::from(self.files_to_cache_max) * FILE_BYTES,
            handles: u64::from(self.handles_max) * HANDLE_BYTES,
            names: NAMES_BYTES,
            process: PROCESS_BYTES,
            total: 0,
        };
        let MemoryBound { pagepool, idle_buffers, writing, files, handles, names, process, .. } = parts;
        let all = [pagepool, idle_buffers, writing, files, handles, names, process];
        MemoryBound { total: all.into_iter().fold(0, u64::saturating_add), ..parts }
    }

    /// Refuses a pool of blocks above `maxblocksize`: four of those are all that the page pool is sure to hold.
    pub(crate) fn check_pool(&self, fs: &str, pool: &PoolEntry) -> Result<(), MountError> {
        if u64::from(pool.block_size) <= self.block_size_max {
            return Ok(());
        }
        Err(MountError::BlockSize {
            fs: fs.to_owned(),
            pool: pool.name.clone(),
            block_size: pool.block_size.into(),
            max: self.block_size_max,
        })
    }

    /// Refuses what does not fit into this machine.
    pub(crate) fn check_memory(&self, block_size: u64, installed: Option<u64>) -> Result<(), MountError> {
        let need = self.memory_bound(block_size).total;
        match installed {
            Some(installed) if need > installed => {
                Err(MountError::Memory { need, installed, pagepool: self.pagepool })
            }
            _ => Ok(()),
        }
    }
}

/// The most memory of a client, bytes, as a sum of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryBound {
    /// Cached, prefetched and dirty data, what is kept of the blocks that hold them, and extents.
    #[serde(rename = "pagepool_bytes")]
    pub pagepool: u64,
    /// Freed buffers kept for the next load.
    #[serde(rename = "idle_bytes")]
    pub idle_buffers: u64,
    /// Above the page pool while blocks are written: what parity needs and is not there, a block of each at most.
    #[serde(rename = "writing_bytes")]
    pub writing: u64,
    /// Inodes kept.
    #[serde(rename = "files_bytes")]
    pub files: u64,
    /// Open files with their streams, and their inodes beyond those kept.
    #[serde(rename = "handles_bytes")]
    pub handles: u64,
    /// Names kept of directories.
    #[serde(rename = "names_bytes")]
    pub names: u64,
    /// The program, its threads, messages, what the allocator keeps.
    #[serde(rename = "process_bytes")]
    pub process: u64,
    /// All of it.
    #[serde(rename = "total_bytes")]
    pub total: u64,
}

/// Memory of an inode in the cache: its state, its places in the tables. What it has of blocks is the page pool's.
pub(crate) const FILE_BYTES: u64 = 3 << 10;
/// Memory of an open file, its inode included.
pub(crate) const HANDLE_BYTES: u64 = FILE_BYTES + (1 << 10);
/// Open files for each file that may be kept, and at least.
const HANDLES: (u32, u32) = (4, 64 << 10);
/// Names kept, and those of directories of which all are known: [`crate::names::directory`], [`crate::names::all`].
const NAMES_BYTES: u64 = 64 * MIB;
const PROCESS_BYTES: u64 = 64 * MIB;

/// Open files at once, where so many may be kept.
fn handles_max(files_to_cache_max: u32) -> u32 {
    let (each, least) = HANDLES;
    files_to_cache_max.saturating_mul(each).max(least)
}

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
    fn files_and_handles_take_no_more_than_is_said() {
        let inode = size_of::<crate::files::inode::Inode>() as u64;
        // Beside themselves: their places in tables, short lists, what the allocator rounds up.
        assert!(inode * 2 <= FILE_BYTES, "{inode}");
        let handle = size_of::<crate::files::handle::OpenFile>() as u64;
        assert!(FILE_BYTES + handle * 3 / 2 <= HANDLE_BYTES, "{handle}");
        let bound = Tunables::default().memory_bound(4 * MIB);
        let parts = bound.pagepool + bound.idle_buffers + bound.writing + bound.files + bound.handles;
        assert_eq!(bound.total, parts + bound.names + bound.process);
    }

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
