//! What a measurement gives: bytes, time, CPU; and why it gives nothing.

use std::{
    fmt, io,
    path::PathBuf,
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use base::{ByteSize, units::gb_per_second};
use serde::Serialize;
use thiserror::Error;

/// Bytes of one write, read, pwrite or pread.
pub const TRANSFER_BYTES: usize = 1 << 20;

/// What was moved, in what time, with how much CPU.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rate {
    /// Bytes of data.
    pub bytes: u64,
    /// From the first transfer to the last, in seconds.
    pub elapsed_seconds: f64,
    /// CPU time of all threads that moved them (both ends, user and system), in seconds. What the kernel
    /// does in its own threads is not in it.
    pub cpu_seconds: f64,
}

impl Rate {
    /// Decimal GB/s.
    pub fn gb_per_second(&self) -> f64 {
        gb_per_second(self.bytes, Duration::from_secs_f64(self.elapsed_seconds))
    }
    /// CPU seconds for 10^9 bytes.
    pub fn cpu_seconds_per_gb(&self) -> f64 {
        self.cpu_seconds / (self.bytes as f64 / 1e9).max(1e-9)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} GB/s, {:.3} CPU s/GB", self.gb_per_second(), self.cpu_seconds_per_gb())
    }
}

/// Why a ceiling could not be measured.
#[derive(Debug, Error)]
pub enum CeilingError {
    /// A parameter is out of its bounds.
    #[error("cannot measure with {name} = {value}: allowed are {allowed}")]
    BadParameter {
        /// Which.
        name: &'static str,
        /// As given.
        value: String,
        /// Its bounds.
        allowed: String,
    },
    /// The directory's file system has too little free space.
    #[error(
        "not enough space in {dir}: the test file takes {need}, free are {free}; free some or measure with less"
    )]
    NoSpace {
        /// The directory.
        dir: PathBuf,
        /// Bytes of the test file.
        need: ByteSize,
        /// Bytes free.
        free: ByteSize,
    },
    /// The test file failed.
    #[error("cannot {action} in directory {dir}")]
    Disk {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A loopback connection failed.
    #[error("cannot {action} on loopback")]
    Tcp {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// CPU time of the calling thread so far, in seconds.
pub(super) fn thread_cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// What one thread moved.
pub(super) struct Part {
    pub bytes: u64,
    pub cpu_seconds: f64,
    pub ended: Instant,
}

/// Runs one thread's work and notes its CPU time and end.
pub(super) fn timed<E>(work: impl FnOnce() -> Result<u64, E>) -> Result<Part, E> {
    let cpu = thread_cpu_seconds();
    let bytes = work()?;
    Ok(Part { bytes, cpu_seconds: thread_cpu_seconds() - cpu, ended: Instant::now() })
}

/// The result of a thread; a panic in it goes on here.
pub(super) fn joined<T>(handle: ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
