//! Why a run could not be made.

use std::io;

use thiserror::Error;

use crate::{engine::EngineError, results::ResultsError, standin::StandInError, targets::TargetError};

/// Why a run could not be made.
#[derive(Debug, Error)]
pub enum RunError {
    /// A target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The results directory cannot be used.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// Something that stands in could not be made.
    #[error(transparent)]
    StandIn(#[from] StandInError),
    /// An engine is missing.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file could not be made, or a thread not started.
    #[error("cannot {what}")]
    Io {
        /// Verb and object.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing to do.
    #[error("{0}")]
    Nothing(String),
}
