//! Messages that every process answers: what it is, what it counts, stop.

use serde::{Deserialize, Serialize};

/// A request to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Who are you, and all statistics.
    Status,
    /// Who waits for whom.
    Waiters,
    /// End cleanly.
    Shutdown,
    /// Peers, rails and connections.
    Net,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminReply {
    /// JSON text.
    Json(String),
    /// Accepted.
    Done,
}
