//! What the manager knows of a pool's moves beside the map.

use std::{collections::BTreeSet, time::Duration};

use base::PdiskId;
use wire::map::{NodeRack, PoolEntry, StripMove};

/// All of it can be found again from the map and what pdisks report.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Where it is to go.
    pub plan: Option<Plan>,
    /// Why there is no such table.
    pub hindered: String,
    /// Moves whose strips are all in the new place.
    pub filled: BTreeSet<StripMove>,
    pub stepped: Duration,
    /// Since when something moves.
    pub began: Option<Duration>,
    /// How long clients' requests took at the slowest server then, microseconds.
    pub client_us_before: u64,
    pub done: u32,
}

/// What a pool is to be laid out over, and what follows.
#[derive(Debug)]
pub(super) struct Plan {
    /// The pdisks.
    pub keep: Vec<PdiskId>,
    /// The racks of nodes that this was found with.
    pub racks: Vec<NodeRack>,
    /// The members of the table.
    pub target: Vec<PdiskId>,
}

impl Moving {
    /// Strips of groups whose place is not yet the planned one.
    pub fn work_left(&self, pool: &PoolEntry) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        pool.table.iter().zip(&plan.target).filter(|(a, b)| a != b).count()
    }
}
