//! Messages that every process answers: what it is, what it counts, stop.

use serde::{Deserialize, Serialize};

/// A request to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Who are you, and all statistics.
    Status,
    /// Who waits for whom.
    Waiters,
    /// NSD servers: read stripes of a group and prove them; the answer says where to go on.
    Prove {
        /// The pool.
        pool: base::PoolId,
        /// The group.
        group: base::GroupId,
        /// The last stripe already proved.
        after: Option<base::StripeId>,
        /// Most stripes to prove.
        limit: u32,
        /// Make damaged and absent strips anew.
        repair: bool,
    },
    /// End cleanly.
    Shutdown,
    /// Peers, rails and connections.
    Net,
    /// NSD servers: whether blocks can be read from the strips that are in reach, without reading them.
    Readable {
        /// Their pool.
        pool: base::PoolId,
        /// At most 256.
        stripes: Vec<base::StripeId>,
    },
    /// What its seconds held.
    Analytics {
        /// A question of the part `analytics`, as JSON.
        question: String,
    },
    /// What its machine shows: which machine that is, and the advisor's facts.
    Host,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AdminReply {
    /// JSON text.
    Json(String),
    /// Accepted.
    Done,
}
