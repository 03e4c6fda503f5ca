//! What clients and servers of a test have counted.

use serde::{Deserialize, Serialize};

use super::times::Times;

/// What one client measured in the counted time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientResult {
    /// Bytes of whole messages.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// The counted time, in seconds.
    pub seconds: f64,
    /// CPU time of its process, in seconds.
    pub cpu_seconds: f64,
    /// Messages that failed, also outside the counted time.
    pub errors: u64,
    /// The first one's reason.
    pub first_error: Option<String>,
    /// Time of a message without the server's part: network and queues.
    pub delay: Times,
    /// Whole time of a message.
    pub block: Times,
    /// Seconds of one entry of `timeline`.
    pub interval: f64,
    /// Bytes of messages that ended in each interval, from the start.
    pub timeline: Vec<u64>,
    /// When the test began: seconds since 1970.
    pub started: f64,
    /// The bulk connections at the end.
    pub connections: Vec<Connection>,
    /// What came of placing connections on links, for each rail where that was tried.
    pub placement: Vec<String>,
    /// Connections that were replaced because they were slow.
    pub replaced: u32,
}

/// One bulk connection of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The client's address.
    pub local: String,
    /// The server's.
    pub remote: String,
    /// Bytes sent on it.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// The links it uses where that was tried: out from the client, back to it.
    pub links: Option<(String, String)>,
    /// Segments the kernel sent again.
    pub retransmits: u64,
}

/// What a server counts of itself.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerResult {
    /// CPU time of its process in the counted time, in seconds.
    pub cpu_seconds: f64,
    /// The counted time, in seconds.
    pub seconds: f64,
}
