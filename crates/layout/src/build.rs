//! Builds a layout table from nothing, and settles an array whose groups are off their shares.

use base::PdiskId;

use crate::{
    array::{Array, HOLE},
    arrays::{arrays_of, deal, interleave, owned_groups},
    code::Code,
    error::LayoutError,
    hash::fold,
    parallel::for_each_array,
    pick::Schedule,
    table::{GROUPS_MAX, LayoutTable, PdiskDesc, TABLE_PDISKS_MAX},
};

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
        let usable = sorted.iter().filter(|p| p.weight > 0).count() as u32;
        let dealt = deal(&sorted, arrays_of(usable));
        let blank = LayoutTable { code, seed, spare, pdisks: sorted, arrays: dealt, members: Vec::new() };
        let arrays = blank.array_numbers();
        let owned = owned_groups(&interleave(&blank.array_shares(groups)), arrays);
        let width = usize::from(code.width());
        let placed = for_each_array(arrays, |array| {
            let locals: Vec<PdiskDesc> = blank.local(array).into_iter().map(|i| blank.pdisks[i]).collect();
            let holes = vec![HOLE; owned[usize::from(array)].len() * width];
            let mut placed = Array::new(&locals, code.data(), code.width(), holes, fold(seed, array.into()));
            placed.place_all();
            let ids = placed.members.iter().map(|&m| locals[usize::from(m)].id);
            ids.collect::<Vec<PdiskId>>()
        });
        let mut members = vec![PdiskId(0); groups as usize * width];
        for (own, placed) in owned.iter().zip(&placed) {
            for (&g, from) in own.iter().zip(placed.chunks_exact(width)) {
                members[g * width..(g + 1) * width].copy_from_slice(from);
            }
        }
        Ok(LayoutTable { members, ..blank })
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

impl Array {
    /// Places all groups of an array that holds nothing yet.
    pub fn place_all(&mut self) {
        self.fill_in_order();
        self.settle(|_| 2);
        self.refine();
    }

    /// Fills all holes, group by group, so that any run of groups is even.
    pub fn fill_in_order(&mut self) {
        let of = self.groups() as u32;
        for g in 0..of {
            self.fill(g as usize, Schedule { done: g + 1, of, slack: |_| 0 });
        }
    }

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
