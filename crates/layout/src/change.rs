//! Changes a layout table when pdisks come, go or are lost, moving close to the least data.
//! Groups keep their number and strips their position, so only strips named in a [`Move`] are copied
//! or rebuilt; the hash never changes.

use base::{GroupId, PdiskId, StripIndex};

use crate::{
    array::{Array, HOLE},
    arrays::{choose, owned_groups},
    build::check,
    error::LayoutError,
    hash::fold,
    parallel::for_each_array,
    pick::Schedule,
    table::{LayoutTable, PdiskDesc},
};

/// What happens to the pdisks of a pool.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// New pdisks. One that the table has already gets the new description (another capacity or node).
    pub add: Vec<PdiskDesc>,
    /// Pdisks to drain: their strips are copied.
    pub remove: Vec<PdiskId>,
    /// Pdisks that are gone: their strips are rebuilt, and each uses up one pdisk of spare space.
    pub lose: Vec<PdiskId>,
    /// The spare space afterwards; `None` leaves it (less what losses use up).
    pub spare: Option<u32>,
    /// Also level the shares where nothing else changes: goes on with a change that was left half done.
    pub level: bool,
}

/// One strip of all stripes of a group goes to another pdisk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Move {
    /// The group.
    pub group: GroupId,
    /// Which of its strips.
    pub strip: StripIndex,
    /// Where it was; possibly lost.
    pub from: PdiskId,
    /// Where it goes.
    pub to: PdiskId,
}

impl LayoutTable {
    /// The table after `change`, and what moves, in order of groups.
    pub fn change(&self, change: &Change) -> Result<(LayoutTable, Vec<Move>), LayoutError> {
        let mut next = self.with_pdisks(change)?;
        let index = next.index();
        let old: Vec<Option<usize>> = self.members.iter().map(|&id| index.get(id)).collect();
        let width = usize::from(self.code.width());
        let arrays = next.array_numbers();
        let owned = owned_groups(&next.owners(&old), arrays);
        let before = owned_groups(&self.owners_now(), arrays.max(self.array_numbers()));
        let placed = for_each_array(arrays, |array| {
            let own = &owned[usize::from(array)];
            let same =
                !change.level && *own == before[usize::from(array)] && self.descs(array) == next.descs(array);
            if own.is_empty() || same { Ok(None) } else { next.rearranged(array, own, &old).map(Some) }
        });
        for (own, placed) in owned.iter().zip(placed) {
            for (&g, from) in own.iter().zip(placed?.iter().flat_map(|members| members.chunks_exact(width))) {
                next.members[g * width..(g + 1) * width].copy_from_slice(from);
            }
        }
        let moves = self.moves_to(&next);
        Ok((next, moves))
    }

    /// The members of the groups `own` of one array of this table, placed; `old` is where all were.
    fn rearranged(
        &self,
        array: u16,
        own: &[usize],
        old: &[Option<usize>],
    ) -> Result<Vec<PdiskId>, LayoutError> {
        let (globals, width) = (self.local(array), usize::from(self.code.width()));
        let locals: Vec<PdiskDesc> = globals.iter().map(|&i| self.pdisks[i]).collect();
        let local_of = |old: &Option<usize>| {
            old.and_then(|global| globals.binary_search(&global).ok()).map_or(HOLE, |local| local as u16)
        };
        let members = own.iter().flat_map(|g| &old[g * width..(g + 1) * width]).map(local_of).collect();
        let seed = fold(self.seed, array.into());
        let mut placed = Array::new(&locals, self.code.data(), self.code.width(), members, seed);
        placed.rearrange();
        let ids = placed.members.iter().map(|&m| locals.get(usize::from(m)).map(|p| p.id));
        ids.collect::<Option<Vec<PdiskId>>>().ok_or(LayoutError::DoesNotFit {
            code: self.code,
            need: width as u32,
            pdisks: locals.len() as u32,
        })
    }

    /// The pdisks of one array that have a capacity.
    fn descs(&self, array: u16) -> Vec<PdiskDesc> {
        self.local(array).into_iter().map(|i| self.pdisks[i]).collect()
    }

    /// The array of each group.
    fn owners_now(&self) -> Vec<u16> {
        let index = self.index();
        let first = self.members.iter().step_by(self.code.width().into());
        first.map(|&id| index.get(id).map_or(0, |i| self.arrays[i])).collect()
    }

    /// What has to move from this table to `next`, a table of the same pool.
    pub fn moves_to(&self, next: &LayoutTable) -> Vec<Move> {
        let width = usize::from(self.code.width());
        let pairs = self.members.iter().zip(&next.members).enumerate();
        pairs
            .filter(|(_, (from, to))| from != to)
            .map(|(slot, (&from, &to))| Move {
                group: GroupId((slot / width) as u32),
                strip: StripIndex((slot % width) as u8),
                from,
                to,
            })
            .collect()
    }

    /// This table with the pdisks after the change; its members are still the old ones.
    fn with_pdisks(&self, change: &Change) -> Result<LayoutTable, LayoutError> {
        let gone: Vec<PdiskId> = change.remove.iter().chain(&change.lose).copied().collect();
        if let Some(&pdisk) = gone.iter().find(|&&id| self.index_of(id).is_none()) {
            return Err(LayoutError::NotInTable { pdisk });
        }
        let mut list: Vec<(PdiskDesc, Option<u16>)> = self
            .pdisks
            .iter()
            .zip(&self.arrays)
            .filter(|(p, _)| !gone.contains(&p.id))
            .map(|(p, a)| (*p, Some(*a)))
            .collect();
        for (i, new) in change.add.iter().enumerate() {
            if change.add[..i].iter().any(|other| other.id == new.id) {
                return Err(LayoutError::Duplicate { pdisk: new.id });
            }
            match list.iter_mut().find(|(p, _)| p.id == new.id) {
                Some((p, _)) => *p = *new,
                None => list.push((*new, None)),
            }
        }
        list.sort_unstable_by_key(|(p, _)| p.id);
        let spare = change.spare.unwrap_or(self.spare.saturating_sub(change.lose.len() as u32));
        let pdisks: Vec<PdiskDesc> = list.iter().map(|(p, _)| *p).collect();
        check(self.code, &pdisks, spare)?;
        let arrays = choose(self.code, &list)?;
        // Its members are replaced, array by array.
        Ok(LayoutTable { spare, pdisks, arrays, ..self.clone() })
    }
}

impl Array {
    /// Fills the holes, ends what breaks the caps, then levels the shares.
    fn rearrange(&mut self) {
        let holes = self.members.iter().filter(|m| **m == HOLE).count();
        if holes == self.members.len() {
            return self.place_all();
        }
        if holes * 2 > self.members.len() {
            // Mostly new: in order, as when a table is built.
            self.fill_in_order();
        }
        let now = Schedule { done: 1, of: 1, slack };
        let new: Vec<bool> = self.used.iter().map(|&used| used == 0).collect();
        let incomplete: Vec<usize> = (0..self.groups()).filter(|&g| self.group(g).contains(&HOLE)).collect();
        for &g in &incomplete {
            self.count_reads(g);
        }
        for &g in &incomplete {
            let before = self.group(g).to_vec();
            self.fill(g, now);
            for (i, _) in before.iter().enumerate().filter(|(_, m)| **m == HOLE) {
                let member = self.group(g)[i];
                if member != HOLE {
                    self.count_write(member);
                }
            }
        }
        for g in 0..self.groups() {
            // Each round lessens the excess of the group, so `width` rounds are enough.
            (0..self.width).any(|_| !self.relieve(g));
            self.place_crowded(g, now);
        }
        // Rounding and what `slack` allows are not worth moving data for, except to a new pdisk.
        let tolerance: Vec<i64> = (0..self.pdisks())
            .map(|q| 3 + if new[q] { 0 } else { 2 * i64::from(slack(self.target[q])) })
            .collect();
        self.settle(|q| tolerance[q]);
    }

    /// Moves one strip of group `g` out of a domain that holds too many; false if none can be moved.
    fn relieve(&mut self, g: usize) -> bool {
        let off = |m: usize| i64::from(self.used[m]) - i64::from(self.target[m]);
        let crowded: Vec<(usize, usize)> = self
            .group(g)
            .iter()
            .enumerate()
            .map(|(i, &m)| (g * self.width + i, usize::from(m)))
            .filter(|&(_, m)| m != usize::from(HOLE) && self.excess(g, m) > 0)
            .collect();
        let able = |q: &usize| crowded.iter().any(|&(slot, p)| self.cost(slot, p, *q).is_some());
        let receiver = (0..self.pdisks()).filter(able).min_by_key(|&q| (off(q), q));
        let Some(q) = receiver else { return false };
        let best = crowded
            .iter()
            .filter_map(|&(slot, p)| {
                self.cost_in_place(slot, p, q).map(|(spread, cost)| (spread, cost, slot))
            })
            .min();
        let Some((_, _, slot)) = best else { return false };
        let before = self.group_excess(g);
        let p = self.take(slot);
        self.put(slot, q as u16);
        let better = self.group_excess(g) < before;
        if !better {
            self.take(slot);
            self.put(slot, p);
        }
        better
    }

    fn group_excess(&self, g: usize) -> u32 {
        self.group(g).iter().filter(|m| **m != HOLE).map(|&m| self.excess(g, usize::from(m))).sum()
    }

    /// Where node and enclosure caps together leave no single move: keeps what fits of the group, the
    /// pdisks with the fewest groups first, and places the rest anew. With nested domains that succeeds.
    fn place_crowded(&mut self, g: usize, now: Schedule) {
        if self.group_excess(g) == 0 || self.group(g).contains(&HOLE) {
            return;
        }
        let off = |m: u16| i64::from(self.used[usize::from(m)]) - i64::from(self.target[usize::from(m)]);
        let mut members: Vec<(usize, u16)> = (g * self.width..).zip(self.group(g).iter().copied()).collect();
        members.sort_by_key(|&(slot, m)| (off(m), slot));
        for &(slot, _) in &members {
            self.take(slot);
        }
        let mut over = Vec::new();
        for (slot, m) in members {
            self.put(slot, m);
            if self.excess(g, usize::from(m)) > 0 {
                over.push((slot, self.take(slot)));
            }
        }
        self.fill(g, now);
        for (slot, m) in over {
            if self.members[slot] == HOLE && !self.group(g).contains(&m) {
                self.put(slot, m);
            }
        }
    }
}

/// How many groups a pdisk may be off its share when that makes a rebuild more even.
fn slack(target: u32) -> u32 {
    target / 128
}
