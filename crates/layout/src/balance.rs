//! How even a table is: measured, never assumed.

use base::PdiskId;
use serde::Serialize;

use crate::table::LayoutTable;

/// How often the reads of a rebuild are chosen anew.
const READ_PASSES: u32 = 4;

/// Evenness of a table. Ratios are in thousandths: 1000 is exactly the mean, 1050 is 5 % above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Evenness {
    /// Groups per capacity: the largest and smallest of any pdisk against the mean. They differ from
    /// 1000 by design where failure domains leave no room for shares by capacity.
    pub groups_max: u32,
    /// See `groups_max`.
    pub groups_min: u32,
    /// The largest share of parity strips among a pdisk's strips against M/(K+M).
    pub parity_max: u32,
    /// The smallest.
    pub parity_min: u32,
    /// Groups that two pdisks of different nodes in one array share: the largest against the mean.
    pub pairs_max: u32,
    /// The smallest.
    pub pairs_min: u32,
}

impl LayoutTable {
    /// Measures the table.
    pub fn evenness(&self) -> Evenness {
        let width = usize::from(self.code.width());
        let n = self.pdisks.len();
        let (mut slots, mut parity) = (vec![0u64; n], vec![0u64; n]);
        let members: Vec<usize> = self.member_indices().collect();
        for (slot, &p) in members.iter().enumerate() {
            slots[p] += 1;
            parity[p] += u64::from(slot % width >= usize::from(self.code.data()));
        }
        let in_use: Vec<usize> = (0..n).filter(|&p| self.pdisks[p].weight > 0).collect();
        let weight: u128 = in_use.iter().map(|&p| u128::from(self.pdisks[p].weight)).sum();
        let groups = in_use.iter().map(|&p| {
            thousandths(
                u128::from(slots[p]) * weight,
                u128::from(self.pdisks[p].weight) * members.len() as u128,
            )
        });
        let (groups_min, groups_max) = min_max(groups);
        let m = u128::from(self.code.parity());
        let shares = in_use
            .iter()
            .filter(|&&p| slots[p] > 0 && m > 0)
            .map(|&p| thousandths(u128::from(parity[p]) * width as u128, u128::from(slots[p]) * m));
        let (parity_min, parity_max) = min_max(shares);
        let (pairs_min, pairs_max) = self.pair_evenness(&members);
        Evenness { groups_max, groups_min, parity_max, parity_min, pairs_max, pairs_min }
    }

    fn pair_evenness(&self, members: &[usize]) -> (u32, u32) {
        let width = usize::from(self.code.width());
        let arrays = self.arrays.iter().copied().max().map_or(0, |a| a + 1);
        let mut all = (u32::MAX, 0);
        for array in 0..arrays {
            let locals: Vec<usize> = (0..self.pdisks.len())
                .filter(|&p| self.arrays[p] == array && self.pdisks[p].weight > 0)
                .collect();
            let n = locals.len();
            let local = |p: usize| locals.binary_search(&p).ok();
            let mut shared = vec![0u64; n * n];
            for group in members.chunks_exact(width) {
                if self.arrays[group[0]] != array {
                    continue;
                }
                let group: Vec<usize> = group.iter().filter_map(|&p| local(p)).collect();
                for &a in &group {
                    group.iter().filter(|&&b| b != a).for_each(|&b| shared[a * n + b] += 1);
                }
            }
            let node = |a: usize| self.pdisks[locals[a]].node;
            let counts: Vec<u128> = (0..n)
                .flat_map(|a| (0..a).map(move |b| (a, b)))
                .filter(|&(a, b)| node(a) != node(b))
                .map(|(a, b)| u128::from(shared[a * n + b]))
                .collect();
            let sum: u128 = counts.iter().sum();
            if sum > 0 {
                let of_mean = counts.iter().map(|c| thousandths(c * counts.len() as u128, sum));
                let (min, max) = min_max(of_mean);
                all = (all.0.min(min), all.1.max(max));
            }
        }
        if all.1 == 0 { (1000, 1000) } else { all }
    }

    /// What the loss of `lost` asks of each other pdisk: strips to read, strips to write, parallel to
    /// [`LayoutTable::pdisks`]. Of the strips that are left, the K on the pdisks with least to do are read;
    /// the choice is gone over a few times, as later groups make it known what earlier ones should spare.
    pub fn rebuild_load(&self, lost: PdiskId, next: &LayoutTable) -> Vec<(u32, u32)> {
        let mut load = vec![(0u32, 0u32); self.pdisks.len()];
        for step in self.moves_to(next).iter().filter(|step| step.from == lost) {
            if let Some(to) = self.index_of(step.to) {
                load[to].1 += 1;
            }
        }
        let left_of = |group| {
            let left = self.members(group).iter().filter(|&&m| m != lost);
            left.filter_map(|&m| self.index_of(m)).collect::<Vec<usize>>()
        };
        let mut groups: Vec<Vec<usize>> = self.groups_on(lost).map(|(group, _)| left_of(group)).collect();
        let k = usize::from(self.code.data());
        for pass in 0..READ_PASSES {
            for left in &mut groups {
                let k = k.min(left.len());
                if pass > 0 {
                    left[..k].iter().for_each(|&p| load[p].0 -= 1);
                }
                left.sort_by_key(|&p| (load[p].0 + load[p].1, p));
                left[..k].iter().for_each(|&p| load[p].0 += 1);
            }
        }
        load
    }
}

fn thousandths(value: u128, of: u128) -> u32 {
    u32::try_from((value * 1000 + of / 2) / of.max(1)).unwrap_or(u32::MAX)
}

fn min_max(values: impl Iterator<Item = u32>) -> (u32, u32) {
    let (min, max) = values.fold((u32::MAX, 0), |(min, max), v| (min.min(v), max.max(v)));
    if min > max { (1000, 1000) } else { (min, max) }
}
