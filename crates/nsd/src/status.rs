//! What a server tells about itself.

use base::{Epoch, PdiskId, SessionId};
use serde::Serialize;

/// Catch-up of one pdisk.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CatchUpStatus {
    /// The epoch in which the pdisk became returning.
    pub epoch: Epoch,
    /// Groups the pdisk is in.
    pub groups: usize,
    /// Of these, compared.
    pub groups_done: usize,
    /// Stripes compared.
    pub stripes: u64,
    /// Strips made anew.
    pub installed: u64,
    /// Bytes of these.
    pub installed_bytes: u64,
    /// Prepared versions adopted.
    pub adopted: u64,
    /// Left-over prepared versions dropped.
    pub discarded: u64,
    /// Strips deleted.
    pub deleted: u64,
    /// Strips given up: too few of their stripes are left.
    pub hopeless: u64,
    /// Of those, groups to be compared again: not all of their pdisks answered.
    pub groups_waiting: usize,
    /// Stripes to be looked at again.
    pub waiting: usize,
    /// Why the last of these waits, for people.
    pub last_reason: String,
    /// Finished.
    pub done: bool,
}

/// Repair of damaged strips.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RepairStatus {
    /// Strips found damaged.
    pub found: u64,
    /// Made anew.
    pub repaired: u64,
    /// Found whole when looked at again: nothing was made.
    pub sound: u64,
    /// Not repairable when last tried.
    pub failed: u64,
    /// Waiting.
    pub queued: usize,
}

/// One pdisk.
#[derive(Clone, Debug, Serialize)]
pub struct PdiskStatus {
    /// Its number.
    pub id: PdiskId,
    /// As the map says: ok, missing, returning, failed.
    pub state: &'static str,
    /// Bytes.
    #[serde(rename = "size_bytes")]
    pub capacity: u64,
    /// Bytes.
    #[serde(rename = "free_bytes")]
    pub free: u64,
    /// Strips held.
    pub strips: u64,
    /// Strips with a prepared version.
    pub prepared: u64,
    /// Why it latched itself failed, if it did.
    pub failed: Option<String>,
    /// Catch-up, if there was one since the start.
    pub catch_up: Option<CatchUpStatus>,
}

/// A server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its session.
    pub session: SessionId,
    /// The map version it has.
    pub epoch: Epoch,
    /// Whether its lease holds.
    pub lease: bool,
    /// Its pdisks.
    pub pdisks: Vec<PdiskStatus>,
    /// Repair.
    pub repair: RepairStatus,
}
