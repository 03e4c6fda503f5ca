//! What the manager knows of a pool's moves beside the map.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{GroupId, PdiskId};
use wire::map::{NodeRack, PoolEntry, StripMove};

/// So long nothing of what moves to a pdisk gets on, and it says why, until others have their turn.
const STILL_MAX: Duration = Duration::from_secs(30);
/// A group gives way once in this time.
const TURN: Duration = Duration::from_secs(600);

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
    /// How far what moves to each pdisk is, and since when.
    still: BTreeMap<PdiskId, (Duration, u64, Vec<StripMove>)>,
    /// Groups that gave way to others, and when: others begin before them.
    gave_way: BTreeMap<GroupId, Duration>,
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
    /// Whether others begin before this group.
    pub fn had_its_turn(&self, group: GroupId) -> bool {
        self.gave_way.contains_key(&group)
    }

    /// Which of these pdisks' moves have not got on for long: with what is under way to each, and the bytes that its server has stored.
    pub fn still(
        &mut self,
        full: Vec<(PdiskId, u64, Vec<StripMove>)>,
        now: Duration,
    ) -> Vec<(PdiskId, Vec<StripMove>)> {
        self.gave_way.retain(|_, at| now < at.saturating_add(TURN));
        let before = std::mem::take(&mut self.still);
        for (to, moved, under_way) in full {
            let since = match before.get(&to) {
                Some((since, was, moves)) if (*was, moves) == (moved, &under_way) => *since,
                _ => now,
            };
            self.still.insert(to, (since, moved, under_way));
        }
        let long = self.still.iter().filter(|(_, (since, ..))| now >= since.saturating_add(STILL_MAX));
        long.map(|(to, (.., moves))| (*to, moves.clone())).collect()
    }

    /// Those of these moves whose groups give way now.
    pub fn give_way(&mut self, mut moves: Vec<StripMove>, now: Duration) -> Vec<StripMove> {
        moves.retain(|m| !self.had_its_turn(m.group));
        self.gave_way.extend(moves.iter().map(|m| (m.group, now)));
        moves
    }

    /// Strips of groups whose place is not yet the planned one.
    pub fn work_left(&self, pool: &PoolEntry) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        pool.table.iter().zip(&plan.target).filter(|(a, b)| a != b).count()
    }
}
