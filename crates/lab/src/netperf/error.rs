//! What can go wrong with a measurement.

use net::{CallError, NetError};
use thiserror::Error;

/// Why a test could not be run to its end.
#[derive(Debug, Error)]
pub enum NetperfError {
    /// A parameter is out of its bounds.
    #[error("cannot test with {name} {value}: allowed are {allowed}")]
    BadSpec {
        /// Which.
        name: &'static str,
        /// As given.
        value: String,
        /// Its bounds.
        allowed: String,
    },
    /// No server was named.
    #[error("no server given; start one with `ropewalk netperf server` and name it with --server")]
    NoServer,
    /// The transport could not be started.
    #[error(transparent)]
    Net(#[from] NetError),
    /// There is no secret for the lab's processes.
    #[error(transparent)]
    Key(#[from] crate::key::KeyError),
    /// A server or client does not answer.
    #[error("{server} does not answer; is `ropewalk netperf server` running there, on that address?")]
    Server {
        /// Its addresses.
        server: String,
        /// What happened.
        #[source]
        source: CallError,
    },
    /// Not all connections could be made.
    #[error("not all of {wanted} connections to {server} could be made: {reason}")]
    Connections {
        /// The server.
        server: String,
        /// How many there should be.
        wanted: u8,
        /// The last attempt's error.
        reason: String,
    },
    /// A client or server says no.
    #[error("{server}: {reason}")]
    Refused {
        /// Who.
        server: String,
        /// Why.
        reason: String,
    },
    /// A client or server answers with what is no answer.
    #[error("{server} gives an answer that cannot be read; run the same version of ropewalk on all hosts")]
    BadAnswer {
        /// Who.
        server: String,
    },
    /// Messages failed.
    #[error("{errors} messages failed, the first: {first}")]
    Messages {
        /// How many.
        errors: u64,
        /// The first one's reason.
        first: String,
    },
    /// The test was ended before its time.
    #[error("stopped")]
    Stopped,
}

/// An error with its causes, to be sent to another process.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
