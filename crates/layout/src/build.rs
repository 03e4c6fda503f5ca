//! Builds a layout table from nothing, and settles an array whose groups are off their shares.

use std::collections::BTreeSet;

use base::PdiskId;

use crate::{
    array::{Array, HOLE, Schedule},
    code::Code,
    domains::{Share, share_out},
    error::LayoutError,
    hash::fold,
    table::{LayoutTable, PdiskDesc},
};

/// Most pdisks of one declustered array. A pool with more spans several.
pub const ARRAY_PDISKS_MAX: u32 = 512;
/// Most pdisks of one table.
pub const TABLE_PDISKS_MAX: u32 = 128 * ARRAY_PDISKS_MAX;
/// Most groups of one table.
pub const GROUPS_MAX: u32 = 1 << 24;

/// Groups a pdisk is in by default: as many as give every pair of pdisks `PAIRS` groups in common ...
const PAIRS: u32 = 16;
/// ... but at least this many, so that rounding is well below one percent ...
const PER_PDISK_MIN: u32 = 256;
/// ... and at most this many, for the size of the table.
const PER_PDISK_MAX: u32 = 1536;

/// The number of groups used when none is given. It cannot be changed later: a pool that is to grow
/// much beyond its first pdisks may be given more.
pub fn default_groups(code: Code, pdisks: u32) -> u32 {
    let width = u32::from(code.width());
    let in_array = pdisks.div_ceil(arrays_of(pdisks));
    let wanted = (PAIRS * in_array.saturating_sub(1)).div_ceil((width - 1).max(1));
    let per_pdisk = wanted.clamp(PER_PDISK_MIN, PER_PDISK_MAX);
    let groups = (u64::from(per_pdisk) * u64::from(pdisks)).div_ceil(width.into());
    u32::try_from(groups).unwrap_or(GROUPS_MAX).clamp(1, GROUPS_MAX)
}

pub(crate) fn arrays_of(pdisks: u32) -> u32 {
    pdisks.div_ceil(ARRAY_PDISKS_MAX).max(1)
}

impl LayoutTable {
    /// Builds the table of a pool. `spare` is spare space in pdisks; `groups` the number of groups
    /// ([`default_groups`] if nothing speaks against it). The order of `pdisks` does not matter.
    pub fn build(
        code: Code,
        pdisks: &[PdiskDesc],
        spare: u32,
        groups: u32,
        seed: u64,
    ) -> Result<LayoutTable, LayoutError> {
        let mut sorted = pdisks.to_vec();
        sorted.sort_unstable_by_key(|p| p.id);
        check(code, &sorted, spare)?;
        let default = default_groups(code, sorted.len() as u32);
        if groups == 0 || groups > GROUPS_MAX {
            return Err(LayoutError::Groups { groups, max: GROUPS_MAX, default });
        }
        let arrays = deal(&sorted, arrays_of(sorted.len() as u32));
        let blank = LayoutTable { code, seed, spare, pdisks: sorted, arrays, members: Vec::new() };
        let owners = interleave(&blank.array_shares(groups));
        let mut members = vec![PdiskId(0); groups as usize * usize::from(code.width())];
        for array in 0..arrays_of(blank.pdisks.len() as u32) as u16 {
            let locals: Vec<PdiskDesc> = blank.local(array).into_iter().map(|i| blank.pdisks[i]).collect();
            let own: Vec<usize> = (0..owners.len()).filter(|&g| owners[g] == array).collect();
            let holes = vec![HOLE; own.len() * usize::from(code.width())];
            let array_seed = fold(seed, array.into());
            let mut placed = Array::new(&locals, code.data(), code.width(), holes, array_seed);
            place_all(&mut placed);
            for (local, &g) in own.iter().enumerate() {
                let to = &mut members[g * placed.width..(g + 1) * placed.width];
                let from = placed.group(local).iter();
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = locals[usize::from(from)].id);
            }
        }
        Ok(LayoutTable { members, ..blank })
    }

    /// The pdisks of one array that have a capacity, as indices into `pdisks`.
    pub(crate) fn local(&self, array: u16) -> Vec<usize> {
        (0..self.pdisks.len()).filter(|&i| self.arrays[i] == array && self.pdisks[i].weight > 0).collect()
    }

    /// How many of `groups` groups each array should have: by capacity.
    pub(crate) fn array_shares(&self, groups: u32) -> Vec<u64> {
        let arrays = self.arrays.iter().copied().max().map_or(1, |a| usize::from(a) + 1);
        let mut shares = vec![Share { weight: 0, cap: u64::MAX }; arrays];
        for (p, array) in self.pdisks.iter().zip(&self.arrays) {
            shares[usize::from(*array)].weight += u128::from(p.weight);
        }
        share_out(groups.into(), &shares)
    }
}

/// What every table needs; `pdisks` are sorted.
pub(crate) fn check(code: Code, pdisks: &[PdiskDesc], spare: u32) -> Result<(), LayoutError> {
    if let Some(pair) = pdisks.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(LayoutError::Duplicate { pdisk: pair[0].id });
    }
    let need = u32::from(code.width());
    let usable = pdisks.iter().filter(|p| p.weight > 0).count() as u32;
    if usable < need {
        return Err(LayoutError::DoesNotFit { code, need, pdisks: usable });
    }
    if usable - need < spare {
        return Err(LayoutError::SpareDoesNotFit { code, spare, need, pdisks: usable });
    }
    if pdisks.len() as u64 > u64::from(TABLE_PDISKS_MAX) {
        let pdisks = u32::try_from(pdisks.len()).unwrap_or(u32::MAX);
        return Err(LayoutError::TooManyPdisks { pdisks, max: TABLE_PDISKS_MAX });
    }
    Ok(())
}

/// Deals pdisks to arrays node by node, so that every array reaches as many nodes as there are.
fn deal(pdisks: &[PdiskDesc], arrays: u32) -> Vec<u16> {
    let order: BTreeSet<_> =
        pdisks.iter().enumerate().map(|(i, p)| (p.weight == 0, p.node, p.id, i)).collect();
    let mut dealt = vec![0; pdisks.len()];
    for (turn, (_, _, _, i)) in (0u32..).zip(order) {
        dealt[i] = (turn % arrays) as u16;
    }
    dealt
}

/// A sequence in which owner a occurs `shares[a]` times, as evenly spread as possible.
fn interleave(shares: &[u64]) -> Vec<u16> {
    let total: u64 = shares.iter().sum();
    let mut given = vec![0u64; shares.len()];
    (1..=total)
        .map(|done| {
            let behind = |a: &usize| (shares[*a] * done) as i128 - (given[*a] * total) as i128;
            let next = (0..shares.len()).rev().max_by_key(behind).unwrap_or(0);
            given[next] += 1;
            next as u16
        })
        .collect()
}

/// Fills all groups of an empty array in order.
fn place_all(array: &mut Array) {
    let groups = array.groups() as u32;
    for g in 0..groups {
        array.fill(g as usize, Schedule { done: g + 1, of: groups, slack: |_| 0 });
    }
    array.settle(|_| 2);
    array.refine();
}

impl Array {
    /// Moves strips until every pdisk is in its share of groups. A pdisk is given a strip only if it and
    /// the giver are together off by `tolerance` of the receiver or more. Gives the number of moves.
    pub fn settle(&mut self, tolerance: impl Fn(usize) -> i64) -> usize {
        let mut moves = 0;
        let mut slots_of: Vec<Vec<usize>> = vec![Vec::new(); self.pdisks()];
        for (slot, &m) in self.members.iter().enumerate() {
            if m != HOLE {
                slots_of[usize::from(m)].push(slot);
            }
        }
        let mut stuck = vec![false; self.pdisks()];
        loop {
            let off = |p: usize| i64::from(self.used[p]) - i64::from(self.target[p]);
            let most = (0..self.pdisks()).map(off).max().unwrap_or(0).max(0);
            let wants = |q: &usize| !stuck[*q] && off(*q) < 0 && most - off(*q) >= tolerance(*q);
            let Some(q) = (0..self.pdisks()).filter(wants).min_by_key(|&q| (off(q), q)) else { break };
            let mut donors: Vec<usize> =
                (0..self.pdisks()).filter(|&p| off(p) > 0 && off(p) - off(q) >= tolerance(q)).collect();
            donors.sort_by_key(|&p| (-off(p), p));
            match self.best_move(&slots_of, &donors, q).or_else(|| self.best_chain(&slots_of, &donors, q)) {
                None => stuck[q] = true,
                Some(steps) => {
                    for (slot, p, to) in steps {
                        self.take(slot);
                        self.put(slot, to as u16);
                        slots_of[p].retain(|&s| s != slot);
                        slots_of[to].push(slot);
                        moves += 1;
                    }
                }
            }
        }
        moves
    }

    /// The best strip that the first able donor can give to `q`.
    fn best_move(&self, slots_of: &[Vec<usize>], donors: &[usize], q: usize) -> Option<Vec<Step>> {
        donors.iter().find_map(|&p| self.best_slot(&slots_of[p], p, q)).map(|step| vec![step])
    }

    fn best_slot(&self, slots: &[usize], p: usize, q: usize) -> Option<Step> {
        let costs = slots.iter().filter_map(|&slot| self.cost_in_place(slot, p, q).map(|cost| (cost, slot)));
        costs.min().map(|(_, slot)| (slot, p, q))
    }

    /// A donor gives to a third pdisk, and that one to `q`.
    fn best_chain(&self, slots_of: &[Vec<usize>], donors: &[usize], q: usize) -> Option<Vec<Step>> {
        donors.iter().find_map(|&p| {
            (0..self.pdisks()).filter(|&r| r != p && r != q).find_map(|r| {
                let first = self.best_slot(&slots_of[p], p, r)?;
                let own = |slot: &&usize| **slot / self.width != first.0 / self.width;
                let second = slots_of[r]
                    .iter()
                    .filter(own)
                    .filter_map(|&slot| self.cost_in_place(slot, r, q).map(|cost| (cost, slot)))
                    .min()?;
                Some(vec![first, (second.1, r, q)])
            })
        })
    }
}

/// One strip changes its pdisk: (slot, from, to).
type Step = (usize, usize, usize);
