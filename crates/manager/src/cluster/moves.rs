//! What moves between pdisks: rebuild, drain, add, replace and rebalance are one machinery.
//!
//! A pool is laid out over the pdisks that are to hold something: not those that are leaving, failed, or
//! missing for too long; and no rack is to hold more of a group than must be. [`layout::LayoutTable::change`] says which table follows from that; it is
//! computed anew from the present table whenever that set changes, and after a restart, so that no plan
//! has to be stored. What differs between the two tables moves, groups with the most strips lost first. Of a
//! group that has lost strips these alone move: they are made of what is left, while a strip that
//! merely moves may need the lost ones to be judged, and a group is switched as a whole.
//!
//! 1. The move is put into the map: from then on the strip is written in both places ([`StripMove`]).
//! 2. The new pdisk's server makes everything of it there and says so.
//! 3. When all moves of a group are done the table is switched, in one map change.
//!
//! A move to a pdisk that stops counting is taken back, and those that hold all its places and do not get on
//! give way to others. Nothing but the map and what pdisks hold is
//! needed to go on after any crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{GroupId, PdiskId, StripIndex};
use layout::{Code, LayoutTable, PdiskDesc};
use wire::{
    map::{PdiskEntry, PdiskState, PoolEntry, PoolPdisk, StripMove},
    mgr::{FILLED_MAX, Filled, PoolMoving},
};

use super::{
    Cluster, Step,
    code::needed,
    moving::{Moving, Plan},
    state::Disk,
};

/// Strips of groups that move to one pdisk at a time. More make a map change worth more, fewer leave
/// less undone by a crash.
const FILLS_MAX: usize = 8;
const _: () = assert!(FILLS_MAX <= FILLED_MAX);
/// Least time between two map changes that moves cause in a pool.
const STEP_MIN: Duration = Duration::from_millis(100);
/// Moves go only to pdisks with more than this part of them free (1/64) ...
const ROOM_SHIFT: u32 = 6;
/// ... and are taken back when less than this (1/128) is left.
const FULL_SHIFT: u32 = 7;

impl Cluster {
    /// What servers say of strips that moved to their pdisks.
    pub(super) fn filled(&mut self, to: PdiskId, filled: &[Filled]) {
        for Filled { pool, what } in filled.iter().take(FILLED_MAX).filter(|f| f.what.to == to) {
            let known = self.map.pool(*pool).is_some_and(|p| p.moves.binary_search(what).is_ok());
            if known {
                self.moving.entry(*pool).or_default().filled.insert(*what);
            }
        }
    }

    /// Plans, takes back, switches and starts.
    pub(super) fn settle_moves(&mut self, now: Duration, step: &mut Step) {
        for (id, disk) in &mut self.disks {
            let missing = self.map.pdisk(*id).is_some_and(|p| p.state == PdiskState::Missing);
            disk.missing_since = missing.then(|| disk.missing_since.unwrap_or(now));
        }
        for at in 0..self.map.pools.len() {
            // A pool that does not say what it is laid out over stays as it is.
            if !self.map.pools[at].pdisks.is_empty() {
                self.settle_pool(at, now, step);
            }
        }
    }

    fn settle_pool(&mut self, at: usize, now: Duration, step: &mut Step) {
        let id = self.map.pools[at].id;
        let mut moving = self.moving.remove(&id).unwrap_or_default();
        let keep = self.to_hold(&self.map.pools[at], now);
        let news = self.replan(at, &keep, &mut moving, step);
        let pool = &self.map.pools[at];
        let mut taken_back = self.to_take_back(pool, &keep, &moving);
        let mut give_way = self.to_give_way(pool, &mut moving, now);
        give_way.retain(|m| !taken_back.contains(m));
        taken_back.append(&mut give_way);
        let waiting = pool.moves.len() < moving.work_left(pool) || !moving.filled.is_empty();
        if news || !taken_back.is_empty() || waiting && now >= moving.stepped + STEP_MIN {
            moving.stepped = now;
            self.step_pool(at, &keep, &taken_back, &mut moving, now, step);
        }
        self.moving.insert(id, moving);
    }

    /// The pdisks a pool is to be laid out over.
    fn to_hold(&self, pool: &PoolEntry, now: Duration) -> Vec<PdiskId> {
        pool.pdisks.iter().map(|p| p.id).filter(|id| self.is_to_hold(*id, now)).collect()
    }

    /// Whether a pdisk is to hold something.
    pub(super) fn is_to_hold(&self, id: PdiskId, now: Duration) -> bool {
        let gone_for_good = |disk: &Disk| {
            disk.missing_since.is_some_and(|since| now >= since.saturating_add(self.rebuild_delay))
        };
        self.map.pdisk(id).is_some_and(|entry| {
            let gone = self.disks.get(&id).is_some_and(gone_for_good);
            !entry.leaving && entry.state != PdiskState::Failed && !gone
        })
    }

    /// Plans anew if the set, or where its pdisks stand, has changed; true if there is a new plan.
    fn replan(&mut self, at: usize, keep: &[PdiskId], moving: &mut Moving, step: &mut Step) -> bool {
        if moving.plan.as_ref().is_some_and(|plan| plan.keep == keep && plan.racks == self.map.racks) {
            return false;
        }
        let racks: Vec<Option<u32>> =
            self.map.pools[at].pdisks.iter().map(|p| self.map.rack_number(p.id)).collect();
        for (pdisk, rack) in self.map.pools[at].pdisks.iter_mut().zip(racks) {
            pdisk.enclosure = rack;
        }
        let pool = &self.map.pools[at];
        let first = moving.plan.is_none();
        let outcome = self.plan(pool, keep);
        let pool = &mut self.map.pools[at];
        let target = match outcome {
            Ok(table) => {
                moving.hindered.clear();
                for pdisk in &mut pool.pdisks {
                    pdisk.array = table.array_of(pdisk.id).or(pdisk.array);
                }
                step.put(crate::keys::pool_key(pool.id), pool);
                table.group_ids().flat_map(|g| table.members(g).to_vec()).collect()
            }
            Err(reason) => {
                step.notes.push(format!("pool {}: cannot be laid out anew: {reason}", pool.name));
                moving.hindered = reason;
                // What is under way to those that stay goes on. It is switched when it is there, and is to stay then: by the
                // table as it was it would have to go back.
                let mut target = pool.table.clone();
                for m in pool.moves.iter().filter(|m| keep.contains(&m.to)) {
                    target[slot(pool, m.group, m.strip)] = m.to;
                }
                target
            }
        };
        let strips = pool.table.iter().zip(&target).filter(|(a, b)| a != b).count();
        if strips > 0 || !first {
            step.notes.push(format!("pool {}: {strips} strips of groups are to move", pool.name));
        }
        moving.plan = Some(Plan { keep: keep.to_vec(), racks: self.map.racks.clone(), target });
        true
    }

    /// The table over `keep` that follows from the present one, with what is under way taken as done.
    fn plan(&self, pool: &PoolEntry, keep: &[PdiskId]) -> Result<LayoutTable, String> {
        let code: Code = pool.code.parse().map_err(|error: layout::UnknownCode| error.to_string())?;
        let mut members = pool.table.clone();
        for m in &pool.moves {
            members[slot(pool, m.group, m.strip)] = m.to;
        }
        let desc = |p: &PoolPdisk| PdiskDesc {
            id: p.id,
            node: self.map.pdisk(p.id).and_then(|entry| entry.nodes.first().copied()).unwrap_or_default(),
            enclosure: p.enclosure,
            weight: p.weight,
        };
        let known: Vec<(PdiskDesc, u16)> =
            pool.pdisks.iter().filter_map(|p| p.array.map(|array| (desc(p), array))).collect();
        let spare = pool.spare.min((keep.len() as u32).saturating_sub(pool.width.into()));
        let table = LayoutTable::from_parts(code, pool.seed, spare, &known, members)
            .map_err(|error| error.to_string())?;
        let gone: Vec<PdiskId> = known.iter().map(|(p, _)| p.id).filter(|id| !keep.contains(id)).collect();
        let counts = |id: &PdiskId| self.map.pdisk(*id).is_some_and(|p| p.state.written());
        let (remove, lose) = gone.into_iter().partition(counts);
        let add =
            pool.pdisks.iter().filter(|p| p.array.is_none() && keep.contains(&p.id)).map(desc).collect();
        let change = layout::Change { add, remove, lose, spare: Some(spare), level: true };
        table.change(&change).map(|(next, _)| next).map_err(|error| error.to_string())
    }

    /// Moves to pdisks that do not count, are not to hold anything, or are full; and of groups that have lost strips
    /// those of other strips.
    fn to_take_back(&self, pool: &PoolEntry, keep: &[PdiskId], moving: &Moving) -> Vec<StripMove> {
        let fits = |id: &PdiskId| self.counts(*id) && keep.contains(id) && self.has_room(*id, FULL_SHIFT);
        let target = moving.plan.as_ref().map_or(&pool.table, |plan| &plan.target);
        let urgent = |m: &StripMove| {
            let (row, want) = (members(pool, &pool.table, m.group), members(pool, target, m.group));
            self.is_lost(row, want, m.strip.0.into()) || !self.lacks(row, want)
        };
        pool.moves.iter().filter(|m| !fits(&m.to) || !urgent(m)).copied().collect()
    }

    /// Moves that hold all places of a pdisk and do not get on, where others could have them.
    fn to_give_way(&self, pool: &PoolEntry, moving: &mut Moving, now: Duration) -> Vec<StripMove> {
        let mut held: BTreeMap<PdiskId, Vec<StripMove>> = BTreeMap::new();
        for m in &pool.moves {
            held.entry(m.to).or_default().push(*m);
        }
        let waits = |to: PdiskId, held: Vec<StripMove>| {
            let disk = self.disks.get(&to).filter(|_| held.len() >= FILLS_MAX)?;
            // It says why, or has done its part and the group's others wait.
            let waits = !disk.waits.is_empty() || held.iter().all(|m| moving.filled.contains(m));
            waits.then_some((to, disk.moved, held))
        };
        let full = held.into_iter().filter_map(|(to, held)| waits(to, held)).collect();
        let mut still = moving.still(full, now);
        still.retain(|(to, held)| self.others_wait(pool, *to, held, moving));
        still.into_iter().flat_map(|(_, held)| moving.give_way(held, now)).collect()
    }

    /// Whether a strip of a group that has not had its turn could move to a pdisk, beside those that do.
    fn others_wait(&self, pool: &PoolEntry, to: PdiskId, held: &[StripMove], moving: &Moving) -> bool {
        let width = usize::from(pool.width.max(1));
        let target = moving.plan.as_ref().map_or(&pool.table, |plan| &plan.target);
        let rows = pool.table.chunks_exact(width).zip(target.chunks_exact(width));
        (0u32..).map(GroupId).zip(rows).any(|(group, (row, want))| {
            let Some(strip) = want.iter().position(|id| *id == to) else { return false };
            let later = row.contains(&to) || self.lacks(row, want) && self.is_back(row[strip]);
            let others = !held.iter().any(|m| m.group == group) && !moving.had_its_turn(group);
            !later && others && self.can_make(pool, row)
        }) && self.has_room(to, ROOM_SHIFT)
    }

    fn counts(&self, id: PdiskId) -> bool {
        self.map.pdisk(id).is_some_and(|p| p.state == PdiskState::Ok)
    }

    /// Whether it counts, or catches up.
    fn is_back(&self, id: PdiskId) -> bool {
        self.map.pdisk(id).is_some_and(|p| p.state.written())
    }

    /// Whether strip `i` of a group moves because its pdisk is gone. One that is back may wait for others that are lost.
    fn is_lost(&self, row: &[PdiskId], want: &[PdiskId], i: usize) -> bool {
        row.get(i) != want.get(i) && row.get(i).is_some_and(|id| !self.is_back(*id))
    }

    /// Whether any of a group's strips does.
    fn lacks(&self, row: &[PdiskId], want: &[PdiskId]) -> bool {
        (0..row.len()).any(|i| self.is_lost(row, want, i))
    }

    fn has_room(&self, id: PdiskId, shift: u32) -> bool {
        self.disks.get(&id).is_some_and(|d| d.record.free > d.record.capacity >> shift)
    }

    /// One map change: takes back, switches groups that are done, starts what may start.
    fn step_pool(
        &mut self,
        at: usize,
        keep: &[PdiskId],
        taken_back: &[StripMove],
        moving: &mut Moving,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(mut plan) = moving.plan.take() else { return };
        let mut pool = self.map.pools[at].clone();
        let mut changed: BTreeSet<GroupId> = taken_back.iter().map(|m| m.group).collect();
        pool.moves.retain(|m| !taken_back.contains(m));
        for m in taken_back {
            let to = self.map.pdisk_called(m.to);
            step.notes.push(format!("pool {}: {} does not move to {to}", pool.name, m.group));
        }

        // Switch.
        moving.filled.retain(|m| pool.moves.binary_search(m).is_ok());
        let mut pending: BTreeMap<GroupId, bool> = BTreeMap::new();
        for m in &pool.moves {
            *pending.entry(m.group).or_insert(true) &= moving.filled.contains(m);
        }
        let ready: BTreeSet<GroupId> = pending.into_iter().filter(|(_, all)| *all).map(|(g, _)| g).collect();
        for m in pool.moves.iter().filter(|m| ready.contains(&m.group)) {
            pool.table[usize::from(pool.width) * m.group.0 as usize + usize::from(m.strip.0)] = m.to;
            moving.done += 1;
        }
        pool.moves.retain(|m| !ready.contains(&m.group));
        moving.filled.retain(|m| !ready.contains(&m.group));
        changed.extend(&ready);

        // Start.
        let started = self.starts(&pool, keep, &mut plan.target, moving);
        changed.extend(started.iter().map(|m| m.group));
        if !changed.is_empty() {
            let epoch = self.bump();
            pool.moves.extend(started.iter().map(|m| StripMove { since: epoch, ..*m }));
            pool.moves.sort_unstable();
            if pool.group_changed.is_empty() {
                pool.group_changed = vec![pool.changed; pool.table.len() / usize::from(pool.width.max(1))];
            }
            for group in changed {
                if let Some(of) = pool.group_changed.get_mut(group.0 as usize) {
                    *of = epoch;
                }
            }
            pool.changed = epoch;
        }
        moving.plan = Some(plan);
        if moving.work_left(&pool) == 0 {
            if let Some(began) = moving.began.take() {
                let seconds = now.saturating_sub(began).as_secs();
                step.notes.push(format!(
                    "pool {}: {} strips of groups have moved in {seconds} s",
                    pool.name, moving.done
                ));
            }
        } else if moving.began.is_none() {
            moving.began = Some(now);
            let disks = pool.pdisks.iter().filter_map(|p| self.disks.get(&p.id));
            moving.client_us_before = disks.map(|d| d.client_us).max().unwrap_or_default();
            moving.done = 0;
        }
        debug_assert!(is_sound(&pool), "{pool:?}");
        if pool != self.map.pools[at] {
            step.put(crate::keys::pool_key(pool.id), &pool);
            self.map.pools[at] = pool;
        }
    }

    /// Whether there is something to make a group's strips from, or nothing left to wait for: a pdisk that may
    /// be back, and is not given up. What is given up is made of those that catch up as well: these may wait for it.
    fn can_make(&self, pool: &PoolEntry, row: &[PdiskId]) -> bool {
        let given_up = |id: &PdiskId| self.map.pdisk(*id).is_some_and(PdiskEntry::given_up);
        let enough =
            |there: &dyn Fn(&PdiskId) -> bool| row.iter().filter(|id| there(id)).count() >= needed(pool);
        let back = |id: &PdiskId| self.is_back(*id);
        enough(&|id| self.counts(*id))
            || row.iter().any(given_up) && (enough(&back) || row.iter().all(|id| back(id) || given_up(id)))
    }

    /// What may start now, by urgency.
    fn starts(
        &self,
        pool: &PoolEntry,
        keep: &[PdiskId],
        target: &mut [PdiskId],
        moving: &Moving,
    ) -> Vec<StripMove> {
        let width = usize::from(pool.width.max(1));
        let counts = |id: &PdiskId| self.counts(*id);
        let mut to: BTreeMap<PdiskId, usize> = BTreeMap::new();
        let mut taken: BTreeMap<GroupId, Vec<StripMove>> = BTreeMap::new();
        for m in &pool.moves {
            *to.entry(m.to).or_default() += 1;
            taken.entry(m.group).or_default().push(*m);
        }
        let rows = pool.table.chunks_exact(width).zip(target.chunks_exact_mut(width));
        let mut differ: Vec<_> = (0u32..).zip(rows).filter(|(_, (row, want))| row != want).collect();
        let left = |row: &[PdiskId]| row.iter().filter(|id| counts(id)).count();
        differ.sort_by_key(|(g, (row, _))| (moving.had_its_turn(GroupId(*g)), left(row), *g));
        let mut started = Vec::new();
        for (g, (row, want)) in differ {
            if !self.can_make(pool, row) {
                continue;
            }
            let lacks = self.lacks(row, want);
            if lacks {
                self.lost_only(row, want);
            }
            let under_way = taken.entry(GroupId(g)).or_default();
            let mut blocked = Vec::new();
            for i in 0..width {
                let strip = StripIndex(i as u8);
                if row[i] == want[i] || under_way.iter().any(|m| m.strip == strip) {
                    continue;
                }
                if lacks && self.is_back(row[i]) {
                    continue; // when the lost ones are there
                }
                if row.contains(&want[i]) {
                    blocked.push(i); // until that one has moved on
                    continue;
                }
                // What `to_take_back` would take back at once is not begun, whatever the plan says.
                let free = |id: &PdiskId, under_way: &[StripMove]| {
                    counts(id)
                        && keep.contains(id)
                        && to.get(id).copied().unwrap_or(0) < FILLS_MAX
                        && !under_way.iter().any(|m| m.to == *id)
                        && self.has_room(*id, ROOM_SHIFT)
                };
                if free(&want[i], under_way) {
                    let m = StripMove { group: GroupId(g), strip, to: want[i], ..StripMove::default() };
                    *to.entry(m.to).or_default() += 1;
                    under_way.push(m);
                    started.push(m);
                }
            }
            if under_way.is_empty()
                && let Some(&i) = blocked.first()
                && (0..width).all(|i| row[i] == want[i] || blocked.contains(&i))
            {
                // They wait for each other in a ring: one goes out of the way, or all stay.
                match keep
                    .iter()
                    .find(|id| counts(id) && !row.contains(id) && self.has_room(**id, ROOM_SHIFT))
                {
                    Some(&aside) => want[i] = aside,
                    None => want.copy_from_slice(row),
                }
            }
        }
        started
    }

    /// Lets lost strips of a group go to pdisks that hold none of it: in place of a chain of strips that make room for each
    /// other, the lost one goes to its end and the others stay. The group is on the same pdisks either way.
    pub(super) fn lost_only(&self, row: &[PdiskId], want: &mut [PdiskId]) {
        for i in 0..row.len() {
            // It ends: each step lets one more strip stay where it is.
            while self.is_lost(row, want, i)
                && let Some(j) = row.iter().position(|id| *id == want[i]).filter(|j| row[*j] != want[*j])
            {
                want[i] = std::mem::replace(&mut want[j], row[j]);
            }
        }
    }

    /// For the listing: what moves in each pool.
    pub(super) fn report_moves(&self, now: Duration) -> Vec<PoolMoving> {
        let one = |pool: &PoolEntry| {
            let Some(moving) = self.moving.get(&pool.id) else { return PoolMoving::default() };
            let Some(Plan { target, .. }) = &moving.plan else { return PoolMoving::default() };
            let counts = |id: &PdiskId| self.map.pdisk(*id).is_some_and(|p| p.state.written());
            let differ = || pool.table.iter().zip(target).filter(|(a, b)| a != b);
            let width = usize::from(pool.width.max(1));
            let rows = pool.table.chunks_exact(width).zip(target.chunks_exact(width));
            let stuck = rows.filter(|(row, want)| row != want && !self.can_make(pool, row));
            let waiting = stuck.map(|(row, want)| row.iter().zip(want).filter(|(a, b)| a != b).count());
            PoolMoving {
                left: moving.work_left(pool) as u32,
                lost: differ().filter(|(a, _)| !counts(a)).count() as u32,
                waiting: waiting.sum::<usize>() as u32,
                client_us_before: moving.client_us_before,
                done: moving.done,
                running_ms: moving.began.map_or(0, |began| now.saturating_sub(began).as_millis() as u64),
                hindered: moving.hindered.clone(),
            }
        };
        self.map.pools.iter().map(one).collect()
    }
}

/// A group's part of a table.
fn members<'a>(pool: &PoolEntry, table: &'a [PdiskId], group: GroupId) -> &'a [PdiskId] {
    let width = usize::from(pool.width);
    table.get(width * group.0 as usize..width * (group.0 as usize + 1)).unwrap_or_default()
}

/// Where a strip of a group stands in the table.
fn slot(pool: &PoolEntry, group: GroupId, strip: StripIndex) -> usize {
    usize::from(pool.width) * group.0 as usize + usize::from(strip.0)
}

/// Whether the moves can be searched, and no pdisk has two strips of a group, in neither place.
fn is_sound(pool: &PoolEntry) -> bool {
    let groups = pool.table.chunks_exact(usize::from(pool.width.max(1)));
    let apart = (0u32..).zip(groups).all(|(group, row)| {
        let joining = pool.moves.iter().filter(|m| m.group.0 == group).map(|m| &m.to);
        let mut all = BTreeSet::new();
        row.iter().chain(joining).all(|id| all.insert(id))
    });
    apart && pool.moves.is_sorted()
}
