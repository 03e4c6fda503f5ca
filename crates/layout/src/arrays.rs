//! Which array a pdisk and a group belong to, when a pool is built and when it changes.
//!
//! A pdisk that has an array keeps it, a group keeps the array where most of its strips are, unless one of
//! these says otherwise: an array that can hold no group any more is dissolved; a pool that outgrows its
//! arrays opens another; a node that would have more of an array than its domain cap lets it use
//! exchanges pdisks with other arrays; arrays get groups in proportion to their capacity.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use base::NodeId;

use crate::{
    code::Code,
    domains::{Share, least_node_cap, share_out},
    error::LayoutError,
    table::{ARRAY_PDISKS_MAX, LayoutTable, PdiskDesc},
};

/// An array that is opened later has at least this many times K+M pdisks, so that it can rebuild.
const OPENED_WIDTHS_MIN: usize = 4;
/// ... of which at least this many times K+M are new: the others are emptied for it.
const OPENED_NEW_WIDTHS_MIN: usize = 2;

/// How many arrays a pool of that many pdisks (those with a capacity) needs.
pub(crate) fn arrays_of(pdisks: u32) -> u32 {
    pdisks.div_ceil(ARRAY_PDISKS_MAX).max(1)
}

/// Deals pdisks to arrays node by node, so that every array reaches as many nodes as there are.
pub(crate) fn deal(pdisks: &[PdiskDesc], arrays: u32) -> Vec<u16> {
    let order: BTreeSet<_> =
        pdisks.iter().enumerate().map(|(i, p)| (p.weight == 0, p.node, p.id, i)).collect();
    let mut dealt = vec![0; pdisks.len()];
    for (turn, (_, _, _, i)) in (0u32..).zip(order) {
        dealt[i] = (turn % arrays) as u16;
    }
    dealt
}

/// A sequence in which owner a occurs `shares[a]` times, as evenly spread as possible.
pub(crate) fn interleave(shares: &[u64]) -> Vec<u16> {
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

/// The groups of each array, given the array of each group.
pub(crate) fn owned_groups(owners: &[u16], arrays: u16) -> Vec<Vec<usize>> {
    let mut owned = vec![Vec::new(); arrays.into()];
    owners.iter().enumerate().for_each(|(g, &array)| owned[usize::from(array)].push(g));
    owned
}

impl LayoutTable {
    /// How many array numbers there are; some may have no pdisks.
    pub(crate) fn array_numbers(&self) -> u16 {
        self.arrays.iter().copied().max().map_or(1, |a| a + 1)
    }

    /// The pdisks of one array that have a capacity, as indices into `pdisks`.
    pub(crate) fn local(&self, array: u16) -> Vec<usize> {
        (0..self.pdisks.len()).filter(|&i| self.arrays[i] == array && self.pdisks[i].weight > 0).collect()
    }

    /// How many of `groups` groups each array should have: by capacity.
    pub(crate) fn array_shares(&self, groups: u32) -> Vec<u64> {
        let mut shares = vec![Share { weight: 0, cap: u64::MAX }; self.array_numbers().into()];
        for (p, array) in self.pdisks.iter().zip(&self.arrays) {
            shares[usize::from(*array)].weight += u128::from(p.weight);
        }
        share_out(groups.into(), &shares)
    }

    /// Which array each group belongs to from now on; `old` are its members among the pdisks that are left.
    pub(crate) fn owners(&self, old: &[Option<usize>]) -> Vec<u16> {
        let width = usize::from(self.code.width());
        if self.array_numbers() == 1 {
            return vec![0; old.len() / width];
        }
        let here = |g: usize, array: usize| {
            let left = old[g * width..(g + 1) * width].iter().flatten();
            left.filter(|&&i| usize::from(self.arrays[i]) == array).count()
        };
        let mut owners: Vec<u16> = old
            .chunks_exact(width)
            .enumerate()
            .map(|(g, group)| {
                let arrays = group.iter().flatten().map(|&i| self.arrays[i]);
                arrays.max_by_key(|&a| (here(g, a.into()), Reverse(a))).unwrap_or(0)
            })
            .collect();
        let shares = self.array_shares(owners.len() as u32);
        let mut sizes = vec![0u64; shares.len()];
        owners.iter().for_each(|&a| sizes[usize::from(a)] += 1);
        let off: Vec<i64> =
            sizes.iter().zip(&shares).map(|(&size, &share)| size as i64 - share as i64).collect();
        let mut wanted: Vec<i64> = off.iter().map(|off| (-off).max(0)).collect();
        // Little is not worth moving whole groups for: they move with all their strips.
        let starved = (0..off.len()).any(|a| off[a] < -(1 + (shares[a] / 64) as i64));
        let owned = owned_groups(&owners, off.len() as u16);
        for (from, groups) in owned.iter().enumerate() {
            let over = shares[from] == 0 || off[from] > 1 + (shares[from] / 256) as i64;
            if off[from] <= 0 || !(over || starved) {
                continue;
            }
            let partly = |g: usize| (0..off.len()).filter(|&a| wanted[a] > 0).map(|a| here(g, a)).max();
            let mut order: Vec<_> = groups.iter().map(|&g| (Reverse(partly(g)), g)).collect();
            order.sort_unstable();
            for g in leaving(&order, off[from] as usize, |g| &old[g * width..(g + 1) * width]) {
                let takers = (0..off.len()).filter(|&a| wanted[a] > 0);
                if let Some(to) = takers.max_by_key(|&a| (here(g, a), wanted[a], Reverse(a))) {
                    wanted[to] -= 1;
                    owners[g] = to as u16;
                }
            }
        }
        owners
    }
}

/// Which `count` of the groups leave their array: the best class first; of a class that leaves in part
/// one in so many, so that any run of groups is on all arrays, the one whose pdisks have given least.
fn leaving<'a>(
    order: &[(impl PartialEq, usize)],
    count: usize,
    members: impl Fn(usize) -> &'a [Option<usize>],
) -> Vec<usize> {
    let mut gave: BTreeMap<usize, u32> = BTreeMap::new();
    let mut leaving = Vec::new();
    for class in order.chunk_by(|a, b| a.0 == b.0) {
        let take = class.len().min(count - leaving.len());
        for i in 0..take {
            let few = &class[i * class.len() / take..(i + 1) * class.len() / take];
            let given =
                |g: usize| members(g).iter().flatten().map(|p| gave.get(p).unwrap_or(&0)).sum::<u32>();
            let Some(&(_, g)) = few.iter().min_by_key(|(_, g)| (given(*g), *g)) else { continue };
            members(g).iter().flatten().for_each(|&p| *gave.entry(p).or_default() += 1);
            leaving.push(g);
        }
    }
    leaving
}

/// Gives every pdisk of `list` an array, those that have none yet a place where they can be used.
/// At least K+M pdisks have a capacity.
pub(crate) fn choose(code: Code, list: &[(PdiskDesc, Option<u16>)]) -> Result<Vec<u16>, LayoutError> {
    let mut pool = Pool::new(code, list);
    let new = pool.homeless();
    let room = pool.sizes.values().map(|n| ARRAY_PDISKS_MAX.saturating_sub(*n as u32)).sum();
    let dissolved = pool.dissolve();
    let opened = pool.open();
    let need = (OPENED_NEW_WIDTHS_MIN * pool.width * opened.len()) as u32;
    if new < need && !dissolved {
        return Err(LayoutError::ArraysFull { pdisks: new, room, need });
    }
    pool.place();
    opened.into_iter().for_each(|array| pool.enlarge(array));
    if pool.sizes.len() > 1 {
        pool.exchange();
    }
    Ok(pool.array_of.into_iter().map(|a| a.unwrap_or(0)).collect())
}

/// The pdisks of a pool while they are being given to arrays.
struct Pool<'a> {
    width: usize,
    node_cap: usize,
    pdisks: Vec<&'a PdiskDesc>,
    array_of: Vec<Option<u16>>,
    /// New in their array, so they hold nothing yet.
    fresh: Vec<bool>,
    /// Arrays in use, and how many pdisks with a capacity each has.
    sizes: BTreeMap<u16, usize>,
    /// How many of them each node has, by array.
    of_node: BTreeMap<(u16, NodeId), usize>,
}

impl<'a> Pool<'a> {
    fn new(code: Code, list: &'a [(PdiskDesc, Option<u16>)]) -> Pool<'a> {
        let pdisks: Vec<&PdiskDesc> = list.iter().map(|(p, _)| p).collect();
        let nodes = pdisks.iter().filter(|p| p.weight > 0).map(|p| p.node);
        let mut pool = Pool {
            width: code.width().into(),
            node_cap: least_node_cap(nodes, code.width().into()) as usize,
            array_of: vec![None; pdisks.len()],
            fresh: list.iter().map(|(_, array)| array.is_none()).collect(),
            pdisks,
            sizes: BTreeMap::new(),
            of_node: BTreeMap::new(),
        };
        (0..list.len()).for_each(|i| pool.set(i, list[i].1));
        pool
    }

    fn set(&mut self, i: usize, array: Option<u16>) {
        let p = self.pdisks[i];
        let before = std::mem::replace(&mut self.array_of[i], array);
        if p.weight == 0 {
            return;
        }
        if let Some(old) = before {
            self.sizes.entry(old).and_modify(|n| *n -= 1);
            self.of_node.entry((old, p.node)).and_modify(|n| *n -= 1);
        }
        if let Some(new) = array {
            *self.sizes.entry(new).or_default() += 1;
            *self.of_node.entry((new, p.node)).or_default() += 1;
        }
    }

    fn count(&self, array: u16, node: NodeId) -> usize {
        self.of_node.get(&(array, node)).copied().unwrap_or(0)
    }

    /// The most pdisks of one node that an array can use: each can hold its share of the groups.
    fn node_max(&self, array: u16) -> usize {
        (self.sizes[&array] * self.node_cap / self.width).max(1)
    }

    /// How many pdisks with a capacity have no array.
    fn homeless(&self) -> u32 {
        let arrays = self.array_of.iter().zip(&self.pdisks);
        arrays.filter(|(a, p)| a.is_none() && p.weight > 0).count() as u32
    }

    /// An array that can hold no group is none; says whether there was one.
    fn dissolve(&mut self) -> bool {
        let width = self.width;
        let small: Vec<u16> = self.sizes.iter().filter(|(_, n)| **n < width).map(|(a, _)| *a).collect();
        for i in 0..self.pdisks.len() {
            if self.array_of[i].is_some_and(|a| small.contains(&a)) {
                self.set(i, None);
                self.fresh[i] = true;
            }
        }
        small.iter().for_each(|a| {
            self.sizes.remove(a);
        });
        !small.is_empty()
    }

    /// Opens as many arrays as the pdisks need; gives their numbers.
    fn open(&mut self) -> Vec<u16> {
        let usable = self.pdisks.iter().filter(|p| p.weight > 0).count() as u32;
        let mut opened = Vec::new();
        while (self.sizes.len() as u32) < arrays_of(usable) {
            let Some(free) = (0..u16::MAX).find(|a| !self.sizes.contains_key(a)) else { break };
            self.sizes.insert(free, 0);
            opened.push(free);
        }
        opened
    }

    /// Pdisks without an array go to the one with the fewest, node by node.
    fn place(&mut self) {
        let homeless: BTreeSet<_> = (0..self.pdisks.len())
            .filter(|&i| self.array_of[i].is_none())
            .map(|i| (self.pdisks[i].weight == 0, self.pdisks[i].node, self.pdisks[i].id, i))
            .collect();
        for (_, _, _, i) in homeless {
            let smallest = self.sizes.iter().map(|(a, n)| (*n, *a)).min().map(|(_, a)| a);
            self.set(i, smallest);
        }
    }

    /// Takes pdisks from the largest arrays into one that is too small, so that its nodes are even.
    fn enlarge(&mut self, array: u16) {
        while self.sizes[&array] < OPENED_WIDTHS_MIN * self.width {
            let others = self.sizes.iter().filter(|(a, _)| **a != array);
            let Some((_, Reverse(from))) = others.map(|(a, n)| (*n, Reverse(*a))).max() else { return };
            let best = (0..self.pdisks.len())
                .filter(|&i| self.array_of[i] == Some(from) && self.pdisks[i].weight > 0)
                .min_by_key(|&i| {
                    let p = self.pdisks[i];
                    (self.count(array, p.node), !self.fresh[i], Reverse(self.count(from, p.node)), p.id)
                });
            let Some(i) = best else { return };
            self.set(i, Some(array));
            self.fresh[i] = true;
        }
    }

    /// Exchanges new pdisks of a node that has too many in its array for others of other nodes.
    fn exchange(&mut self) {
        let newcomers: Vec<usize> =
            (0..self.pdisks.len()).filter(|&i| self.fresh[i] && self.pdisks[i].weight > 0).collect();
        for p in newcomers {
            let (Some(here), node, weight) = (self.array_of[p], self.pdisks[p].node, self.pdisks[p].weight)
            else {
                continue;
            };
            if self.count(here, node) <= self.node_max(here) {
                continue;
            }
            let fits = |q: &usize| {
                let other = self.pdisks[*q];
                other.weight > 0
                    && other.node != node
                    && self.count(here, other.node) < self.node_max(here)
                    && self.array_of[*q]
                        .is_some_and(|there| there != here && self.count(there, node) < self.node_max(there))
            };
            let best = (0..self.pdisks.len()).filter(fits).min_by_key(|&q| {
                let other = self.pdisks[q];
                let difference = other.weight.abs_diff(weight);
                (!self.fresh[q], self.count(here, other.node), difference, other.id)
            });
            if let Some(q) = best {
                let there = self.array_of[q];
                self.set(q, Some(here));
                self.set(p, there);
                self.fresh[q] = true;
            }
        }
    }
}
