//! Why a self-test could not be made.

use std::io;

use crate::{results::ResultsError, testbed::TestbedError};

/// Why a self-test could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// A file, device or process could not be had.
    #[error("cannot {what}")]
    Io {
        /// Verb and object.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A run of the lab failed.
    #[error("the run failed: {said}")]
    Run {
        /// What it said.
        said: String,
    },
    /// A testbed could not be made.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// Its results cannot be read.
    #[error(transparent)]
    Results(#[from] ResultsError),
}

/// What could not be done, as a verb and an object.
pub fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> SelfTestError {
    let what = what.into();
    move |source| SelfTestError::Io { what, source }
}
