//! What a server is started with.

use std::{sync::Arc, time::Duration};

use base::{NodeId, PdiskId, StripId};
use pdisk::Pdisk;
use stripe::{IoConfig, ManagerLink, MembershipConfig};
use wire::mgr::ProcessIdent;

/// An open pdisk to serve.
#[derive(Clone)]
pub struct ServedPdisk<S = Pdisk> {
    /// Its number.
    pub id: PdiskId,
    /// The pdisk.
    pub pdisk: S,
    /// Strips that were found damaged when it was opened: they are repaired, also if nobody reads them.
    pub damaged: Vec<StripId>,
}

/// Bounds and times of a server.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// A request under a map that is not here yet waits this long for it.
    pub map_wait: Duration,
    /// Stripes that catch-up and moves work on at a time, per pdisk, while no rate is set.
    pub rebuild_parallel: usize,
    /// Groups that catch-up compares at a time, per pdisk.
    pub groups_parallel: usize,
    /// States in one page of a listing.
    pub list_page: u32,
    /// Stripes that catch-up remembers to look at again; beyond that it compares their groups again.
    pub revisit_max: usize,
    /// Pause between looks at stripes that could not be settled yet.
    pub revisit_pause: Duration,
    /// Damaged strips waiting for repair; beyond that they wait to be found again.
    pub repair_queue_max: usize,
    /// Memory for strips read more than once, bytes; 0: none.
    pub cache_bytes: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            map_wait: Duration::from_secs(2),
            rebuild_parallel: 4,
            groups_parallel: 2,
            list_page: 512,
            revisit_max: 65536,
            revisit_pause: Duration::from_millis(200),
            repair_queue_max: 4096,
            cache_bytes: 64 << 20,
        }
    }
}

/// A server's start.
pub struct ServerConfig {
    /// The node it is.
    pub node: NodeId,
    /// Its process.
    pub process: ProcessIdent,
    /// Addresses "ip:port" at which it is reached.
    pub addrs: Vec<String>,
    /// What it serves.
    pub pdisks: Vec<ServedPdisk>,
    /// The way to the manager.
    pub manager: Arc<dyn ManagerLink>,
    /// Times of lease and map.
    pub membership: MembershipConfig,
    /// Times and bounds of reads from other servers (catch-up, repair).
    pub io: IoConfig,
    /// Bounds and times of its own.
    pub tuning: Tuning,
}
