//! Why a pdisk cannot be created, opened or served.

use std::{io, path::PathBuf};

use base::{ClusterId, PdiskId};
use thiserror::Error;

/// Everything that can go wrong with a pdisk as a whole. What concerns one strip is
/// [`wire::strip::StripRefusal`].
#[derive(Debug, Error)]
pub enum PdiskError {
    /// An operating system call failed.
    #[error("{verb} {}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The directory already holds a pdisk.
    #[error("{} already is {pdisk} of cluster {cluster}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        pdisk: PdiskId,
        /// And of which cluster.
        cluster: ClusterId,
    },
    /// The directory holds something else.
    #[error("{} is not empty (it holds {found:?}) and is no pdisk", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// One name found in it.
        found: String,
    },
    /// There is no pdisk there.
    #[error("{} is no pdisk: it has no file `label`", dir.display())]
    NoPdisk {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds another pdisk than the one expected.
    #[error("{} is {found} of cluster {found_cluster}, expected {expected} of cluster {expected_cluster}", dir.display())]
    WrongPdisk {
        /// The directory.
        dir: PathBuf,
        /// What is there.
        found: PdiskId,
        /// Its cluster.
        found_cluster: ClusterId,
        /// What was asked for.
        expected: PdiskId,
        /// In which cluster.
        expected_cluster: ClusterId,
    },
    /// Another process has it open.
    #[error("{} is open in another process (or twice in this one)", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// Nobody has it open, but what a process that was killed has begun on it is not over.
    #[error(
        "{} is held by what a process that was killed has begun there, or by another process: open it again (start the server \
         again) when the disk has answered; where it never does, the machine must be started anew", file.display()
    )]
    LeftUnderWay {
        /// The first of its files for which that is so.
        file: PathBuf,
    },
    /// Written by another version of this program.
    #[error("{} has format {found}, this program reads format {supported}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// Ours.
        supported: u16,
    },
    /// A file is damaged beyond what can be attributed to single strips: the pdisk counts as lost.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// A size or an option out of its range.
    #[error("{name} = {value}: {rule}")]
    BadOption {
        /// The option.
        name: &'static str,
        /// What was given.
        value: u64,
        /// What is allowed.
        rule: &'static str,
    },
    /// A fault plan that cannot be read.
    #[error("fault plan: {statement:?}: {reason}")]
    BadFault {
        /// The statement that is wrong.
        statement: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No I/O engine could be started.
    #[error("start the I/O engine {engine}")]
    Engine {
        /// `io_uring` or `psync`.
        engine: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The pdisk latched itself failed, for this reason.
    #[error("pdisk failed: {reason}")]
    Failed {
        /// The first error.
        reason: String,
    },
}

impl PdiskError {
    /// Whether the disk is at fault (it is gone, unreadable or damaged), and not who asks.
    pub fn is_of_the_disk(&self) -> bool {
        use PdiskError::*;
        matches!(self, Io { .. } | NoPdisk { .. } | Damaged { .. } | Failed { .. } | LeftUnderWay { .. })
    }
    pub(crate) fn io(verb: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> PdiskError {
        let path = path.into();
        move |source| PdiskError::Io { verb, path, source }
    }
    pub(crate) fn damaged(path: impl Into<PathBuf>, what: impl Into<String>) -> PdiskError {
        PdiskError::Damaged { path: path.into(), what: what.into() }
    }
}
