//! Errors of the client: [`Errno`] for POSIX calls, [`MountError`] for what stops a mount, and
//! [`CallError`] / [`BlockError`] for what the parts below answer.

use std::fmt;

use base::units::human_size;
use thiserror::Error;

/// An error as POSIX names it (Linux number). What lies behind an `EIO` was logged where it happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error.
    pub const EIO: Errno = Errno(libc::EIO);
    /// No such file or directory.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// Bad file descriptor.
    pub const EBADF: Errno = Errno(libc::EBADF);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// No space left.
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    /// File too large.
    pub const EFBIG: Errno = Errno(libc::EFBIG);
    /// Is a directory.
    pub const EISDIR: Errno = Errno(libc::EISDIR);
    /// Too many open files.
    pub const ENFILE: Errno = Errno(libc::ENFILE);
    /// No such device or address (SEEK_DATA and SEEK_HOLE beyond the end).
    pub const ENXIO: Errno = Errno(libc::ENXIO);
    /// Operation not supported.
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// Name too long.
    pub const ENAMETOOLONG: Errno = Errno(libc::ENAMETOOLONG);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base::errno::text(self.0))
    }
}
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
impl std::error::Error for Errno {}

/// Why the manager gave no usable answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    /// No answer before the deadline.
    #[error("the manager did not answer in time: {0}")]
    Deadline(String),
    /// Its version of the protocol does not have it: it was not sent.
    #[error("{0}")]
    TooOld(String),
    /// It answered something that does not belong to the question.
    #[error("unexpected answer to {0}")]
    Unexpected(&'static str),
}

/// Why a block could not be read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BlockError {
    /// Not enough strips in time, or damaged beyond the code's redundancy.
    #[error("{0}")]
    Unavailable(String),
    /// The pdisks of the group are full.
    #[error("no space on the pdisks")]
    NoSpace,
    /// The session is fenced: nothing of it will be written any more.
    #[error("the session is fenced")]
    Fenced,
}

/// Why a file system could not be mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The manager gave no answer that could be used.
    #[error("open a session at the manager: {0}")]
    Manager(#[from] CallError),
    /// It gave none at all, for as long as it was asked.
    #[error(
        "the manager at {manager} does not answer ({reason}); is the cluster up? (`ropewalk up` starts it)"
    )]
    NoManager {
        /// The addresses at which it was looked for.
        manager: String,
        /// What came of the last attempt.
        reason: String,
    },
    /// The manager refused.
    #[error("open a session for file system {fs:?}: {reason}")]
    Refused {
        /// The file system asked for.
        fs: String,
        /// The manager's reason.
        reason: wire::mgr::MgrError,
    },
    /// Stripes left by an unclean end could not be resolved.
    #[error("resolve stripes of the previous session: {0}")]
    Resolve(BlockError),
    /// The cluster's stored tunables make no sense to this version.
    #[error("the cluster's tunables: {0}")]
    ClusterConfig(String),
    /// A tunable is out of its range.
    #[error("{name} = {value}: {reason}")]
    Config {
        /// The tunable.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        reason: &'static str,
    },
    /// More memory than the machine has.
    #[error(
        "pagepool = {}: with its buffers and caches this client could need {}, and this machine has {}; set a smaller pagepool",
        human_size(*pagepool), human_size(*need), human_size(*installed)
    )]
    Memory {
        /// The sum, bytes.
        need: u64,
        /// What there is, bytes.
        installed: u64,
        /// The largest part of it, bytes.
        pagepool: u64,
    },
    /// The file system's pool has larger blocks than a mount accepts.
    #[error(
        "file system {fs:?} is on pool {pool:?} with blocks of {}, and maxblocksize is {}: raise maxblocksize, with pagepool at least four times as large, and mount again",
        human_size(*block_size), human_size(*max)
    )]
    BlockSize {
        /// The file system.
        fs: String,
        /// Its pool.
        pool: String,
        /// Bytes of a block of that.
        block_size: u64,
        /// The largest that is accepted, bytes.
        max: u64,
    },
}
