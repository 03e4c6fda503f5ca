//! How to mount: the options of a mount, and their ranges.

use std::{path::PathBuf, thread};

use base::InodeNo;
use wire::credentials::Squash;

use crate::{caching::Caching, error::MountError, sys, tune, uring};

/// How requests come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// By io_uring where the kernel has it and lets us, on machines of up to 64 CPUs; else by `/dev/fuse`. What is at hand is answered on the
    /// program's own CPU, so names and attributes take less time; what a server must be asked for is about as fast or faster (docs/path.md).
    #[default]
    Auto,
    /// By reads and writes of `/dev/fuse`.
    Classic,
    /// By io_uring; mounting fails without it.
    Uring,
}

/// With more CPUs than that the rings' queues would map more than 1 GiB.
const AUTO_CPUS_MAX: usize = 64;

impl Transport {
    /// Whether io_uring is to be tried. It switches the kernel's parameter `enable_uring` on where we may.
    pub(crate) fn tries_uring(self) -> bool {
        match self {
            Transport::Auto => matches!(tune::possible_cpus(), Some(1..=AUTO_CPUS_MAX)),
            Transport::Classic => false,
            Transport::Uring => true,
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Classic => "classic",
            Transport::Uring => "uring",
        })
    }
}

impl std::str::FromStr for Transport {
    type Err = String;
    fn from_str(s: &str) -> Result<Transport, String> {
        match s {
            "auto" => Ok(Transport::Auto),
            "classic" => Ok(Transport::Classic),
            "uring" => Ok(Transport::Uring),
            _ => Err(format!("transport {s:?} is not known: auto, classic or uring")),
        }
    }
}

/// How to mount. `..MountOptions::new(mountpoint, fs_name)` gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// Shown as the source, such as `fs1`.
    pub fs_name: String,
    /// What the kernel may keep.
    pub caching: Caching,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Requests of one CPU that are with us at once over io_uring, waiting ones included: 1..=256.
    /// `None`: as many as memory for all CPUs allows. Each holds up to `max_request` bytes.
    pub ring_depth: Option<usize>,
    /// Reader threads of the classic transport; each serves what is at hand itself. 1..=64.
    pub threads: usize,
    /// Other users than the mounting one may enter. Others than root need `user_allow_other` in
    /// /etc/fuse.conf for it.
    pub allow_other: bool,
    /// No changes.
    pub read_only: bool,
    /// Whom the machine's programs act as.
    pub squash: Squash,
    /// The inode that is the root of the mount.
    pub root: InodeNo,
    /// Mount over a directory that has entries.
    pub allow_non_empty: bool,
    /// Set-user-id programs work (root only).
    pub suid: bool,
    /// Device nodes work (root only).
    pub dev: bool,
    /// Programs on it are not run.
    pub no_exec: bool,
    /// Reading does not change access times.
    pub no_atime: bool,
    /// Requests the kernel may send on its own (read-ahead, direct I/O) before they are answered.
    pub max_background: u16,
    /// Largest data of one request, bytes: 4 KiB to 16 MiB, whole pages. The system's limit is raised where it
    /// is below and we may; where not, the limit holds.
    pub max_request: u32,
    /// How far the kernel reads ahead, bytes, where it may be set.
    pub read_ahead: u32,
    /// Requests under way at most; beyond it the kernel keeps them.
    pub requests_max: u32,
    /// Large writes under way at most, each in a buffer of `max_request`.
    pub write_buffers_max: usize,
}

impl MountOptions {
    /// The defaults, for root.
    pub fn new(mountpoint: impl Into<PathBuf>, fs_name: impl Into<String>) -> MountOptions {
        let cpus = thread::available_parallelism().map_or(2, |n| n.get());
        MountOptions {
            mountpoint: mountpoint.into(),
            fs_name: fs_name.into(),
            caching: Caching::EXCLUSIVE,
            transport: Transport::default(),
            ring_depth: None,
            threads: cpus.clamp(2, 16),
            allow_other: sys::effective_ids().0 == 0,
            read_only: false,
            squash: Squash::None,
            root: InodeNo::ROOT,
            allow_non_empty: false,
            suid: false,
            dev: false,
            no_exec: false,
            no_atime: false,
            max_background: 128,
            max_request: 1 << 20,
            read_ahead: 4 << 20,
            requests_max: 4096,
            write_buffers_max: 64,
        }
    }

    /// The most memory that requests take: buffers of the readers and of large writes, entries of rings.
    pub fn memory_max(&self) -> u64 {
        let buffers = self.threads + self.write_buffers_max;
        let classic = buffers as u64 * (u64::from(self.max_request) + 8192);
        classic + if self.transport.tries_uring() { uring::memory_max(self.max_request) } else { 0 }
    }

    /// Whether the kernel checks permissions: it does not know whom the programs act as where all act as one.
    pub(crate) fn kernel_checks(&self) -> bool {
        !matches!(self.squash, Squash::All { .. })
    }

    pub(crate) fn validate(&self) -> Result<(), MountError> {
        let bad = |option, value: u64, range| Err(MountError::BadOption { option, value, range });
        if !(1..=64).contains(&self.threads) {
            return bad("threads", self.threads as u64, "1 to 64");
        }
        if let Some(depth) = self.ring_depth.filter(|depth| !(1..=uring::DEPTH_MAX).contains(depth)) {
            return bad("ring_depth", depth as u64, "1 to 256");
        }
        let whole = self.max_request.is_multiple_of(4096);
        if !whole || !(4096..=16 << 20).contains(&self.max_request) {
            return bad("max_request", u64::from(self.max_request), "4k to 16m in whole 4 KiB pages");
        }
        if self.max_background == 0 {
            return bad("max_background", 0, "1 to 65535");
        }
        if self.requests_max == 0 {
            return bad("requests_max", 0, "at least 1");
        }
        if self.write_buffers_max == 0 {
            return bad("write_buffers_max", 0, "at least 1");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_outside_their_range_are_refused_by_name() {
        let options = MountOptions { threads: 0, ..MountOptions::new("/x", "fs1") };
        let message = options.validate().unwrap_err().to_string();
        assert!(message.contains("threads") && message.contains('0'), "{message}");
        let options = MountOptions { max_request: 5000, ..MountOptions::new("/x", "fs1") };
        assert!(options.validate().unwrap_err().to_string().contains("max_request"));
        assert!(MountOptions::new("/x", "fs1").validate().is_ok());
    }
}
