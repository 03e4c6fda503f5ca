//! What a node's queues and a pdisk can be told. A value out of its range is refused, never bent.

use std::{path::PathBuf, time::Duration};

use base::{
    ClusterId, PdiskId,
    units::{MIB, UNIT},
};

use crate::{error::PdiskError, io::fault::FaultPlan};

/// Which I/O engine to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EngineChoice {
    /// io_uring where it is allowed, else psync.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// pread, pwrite and fdatasync on threads.
    Psync,
}

/// Requests in flight on one queue at most.
pub(crate) const QUEUE_DEPTH_MAX: u32 = 1024;
/// Registered memory that a queue needs, in MiB.
pub const DMA_MIB_PER_QUEUE: u32 = 8;

/// The I/O queues of a node.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// Queues, each with its thread: 1..=16.
    pub num_io_queues: u32,
    /// Completions gathered before they are handled; 1 is none. Live.
    pub io_coalesce_count: u32,
    /// Longest time completions are gathered, in microseconds. Live.
    pub io_coalesce_us: u32,
    /// Registered memory of all queues, in MiB: 1..=4096. Less than [`DMA_MIB_PER_QUEUE`] for each queue:
    /// the node runs with one queue.
    pub io_dma_mib: u32,
    /// Requests in flight on one queue: 1..=1024. More wait. Live.
    pub queue_depth: u32,
    /// Longest time a queue's thread waits actively before it sleeps, in microseconds: 0..=1000. It does so
    /// only while something happens more often than that. Live.
    pub io_spin_us: u32,
    /// The engine.
    pub engine: EngineChoice,
    /// Faults to inject below the stores.
    pub fault: Option<FaultPlan>,
}

impl Default for IoConfig {
    fn default() -> IoConfig {
        IoConfig {
            num_io_queues: 2,
            io_coalesce_count: 1,
            io_coalesce_us: 0,
            io_dma_mib: 32,
            queue_depth: 64,
            io_spin_us: 20,
            engine: EngineChoice::Auto,
            fault: None,
        }
    }
}

impl IoConfig {
    pub(crate) fn check(&self) -> Result<(), PdiskError> {
        range("num_io_queues", self.num_io_queues.into(), 1..=16, "1 to 16")?;
        range("io_coalesce_count", self.io_coalesce_count.into(), 1..=1024, "1 to 1024")?;
        range("io_coalesce_us", self.io_coalesce_us.into(), 0..=100_000, "0 to 100000")?;
        range("io_dma_mib", self.io_dma_mib.into(), 1..=4096, "1 to 4096")?;
        range("io_spin_us", self.io_spin_us.into(), 0..=1000, "0 to 1000")?;
        range("queue_depth", self.queue_depth.into(), 1..=u64::from(QUEUE_DEPTH_MAX), "1 to 1024")
    }
}

/// How a new pdisk is made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub pdisk: PdiskId,
    /// Bytes of the data file; rounded down to whole 4 KiB units. At least 1 MiB.
    pub size: u64,
    /// Directory of the log, if it is to stand on another device. Losing it loses the pdisk.
    pub log_dir: Option<PathBuf>,
    /// Bytes of the log; `None`: 1/64 of the data file, 16 MiB to 1 GiB.
    pub log_size: Option<u64>,
}

impl CreateOptions {
    /// The defaults for a pdisk of `size` bytes.
    pub fn new(cluster: ClusterId, pdisk: PdiskId, size: u64) -> CreateOptions {
        CreateOptions { cluster, pdisk, size, log_dir: None, log_size: None }
    }
    pub(crate) fn units(&self) -> Result<u64, PdiskError> {
        let units = self.size / UNIT as u64;
        range("size", self.size, MIB..=u64::MAX, "at least 1 MiB")?;
        range("size", units, 1..=crate::extent::UNITS_MAX, "at most 4 PiB")?;
        Ok(units)
    }
    pub(crate) fn log_bytes(&self) -> Result<u64, PdiskError> {
        let wanted = self.log_size.unwrap_or_else(|| (self.size / 64).clamp(16 * MIB, 1024 * MIB));
        range("log_size", wanted, 512 * 1024..=1 << 40, "512 KiB to 1 TiB")?;
        Ok(wanted / UNIT as u64 * UNIT as u64)
    }
}

/// How a pdisk is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The cluster it must belong to.
    pub cluster: ClusterId,
    /// The number it must have.
    pub pdisk: PdiskId,
    /// Where the log is, if not where it was when the pdisk was made.
    pub log_dir: Option<PathBuf>,
    /// Queues of the node it uses: 1..=16, at most the node's. A strip always uses the same one.
    pub queues_per_pdisk: u32,
    /// Prepares whose payload has at most this many bytes go to the log first: 0..=1 MiB.
    pub fast_write_limit: u32,
    /// Memory for bytes that are in the log and not yet at their place. Above half of it prepares go to
    /// their place at once.
    pub fast_write_memory: u64,
    /// Space kept free for new versions of strips that exist, in bytes; `None`: 1/32 of the pdisk. Strips that are made again (installed)
    /// may take half of it.
    pub reserve: Option<u64>,
    /// Memory for the index, in bytes; `None`: 1/64 of the pdisk, at least [`INDEX_MEMORY_MIN`]. New strips are
    /// refused from 15/16 of it on, everything that makes it grow at all of it.
    pub index_memory: Option<u64>,
    /// After this time without a new record the last group is followed by one that proves it whole; `None`: the
    /// next record does it.
    pub prove_after: Option<Duration>,
    /// Somebody keeps points of the log and asks for one after the open: until [`crate::Pdisk::confirm_marks`]
    /// none is forgotten.
    pub marks_asked: bool,
    /// Bytes in the data file are flushed together with the record that names them, not before that is written: of programs
    /// from before this was, none may open the pdisk after a crash. See [`crate::Pdisk::flush_together`].
    pub flush_together: bool,
    /// Strips that a delete looks at before it lets others have the pdisk; the rest follows.
    pub delete_round: usize,
    /// How long an open waits for what a process that was killed has left under way on the pdisk's files.
    pub left_wait: Duration,
    /// Verify CRCs of everything read, and answer `Lost` on a mismatch.
    pub verify_reads: bool,
}

/// The least that the index may take unless told otherwise, in bytes.
pub const INDEX_MEMORY_MIN: u64 = 256 * MIB;

impl OpenOptions {
    /// The defaults.
    pub fn new(cluster: ClusterId, pdisk: PdiskId) -> OpenOptions {
        OpenOptions {
            cluster,
            pdisk,
            log_dir: None,
            queues_per_pdisk: 1,
            fast_write_limit: 64 * 1024,
            fast_write_memory: 64 * MIB,
            reserve: None,
            index_memory: None,
            prove_after: Some(Duration::from_millis(100)),
            marks_asked: false,
            flush_together: true,
            delete_round: 1024,
            left_wait: Duration::from_secs(20),
            verify_reads: false,
        }
    }
    pub(crate) fn check(&self) -> Result<(), PdiskError> {
        range("queues_per_pdisk", self.queues_per_pdisk.into(), 1..=16, "1 to 16")?;
        range("fast_write_limit", self.fast_write_limit.into(), 0..=MIB, "at most 1 MiB")?;
        range("delete_round", self.delete_round as u64, 1..=u64::MAX, "at least 1")
    }
}

pub(crate) fn range(
    name: &'static str,
    value: u64,
    allowed: std::ops::RangeInclusive<u64>,
    rule: &'static str,
) -> Result<(), PdiskError> {
    if allowed.contains(&value) { Ok(()) } else { Err(PdiskError::BadOption { name, value, rule }) }
}
