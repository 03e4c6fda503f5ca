//! Failure domains of one array: how many strips of a group a node or an enclosure may hold, and how
//! many groups each pdisk should be in.
//!
//! The node comes first: its cap is the least that lets every group find K+M pdisks. The enclosure
//! (rack) comes second, with the least cap that is possible beside the node's. One exception: where racks
//! would then hold more than M strips of a group, and more on a node (M at most) helps, nodes hold more, so
//! that the loss of a rack is survived. Within the caps, groups are shared out in proportion to capacity.

use std::collections::BTreeMap;

use base::NodeId;

use crate::table::PdiskDesc;

/// How enclosures lie relative to nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nesting {
    /// Every node is in one enclosure: racks.
    EnclosureHoldsNodes,
    /// Every enclosure is in one node: disk drawers. Also if no enclosure is known.
    NodeHoldsEnclosures,
    /// Neither: enclosures shared by nodes. Their cap is then a wish.
    Crossed,
}

/// The domains of the pdisks of one array, by local index.
#[derive(Clone, Debug)]
pub(crate) struct Domains {
    /// Dense node number of each pdisk.
    pub node: Vec<u16>,
    /// Dense enclosure number of each pdisk; unknown ones are alone in theirs.
    pub enclosure: Vec<u16>,
    /// Most strips of a group on one node.
    pub node_cap: u32,
    /// Most strips of a group in one enclosure.
    pub enclosure_cap: u32,
    nesting: Nesting,
}

impl Domains {
    /// For at least `width` pdisks; `parity` strips of a group may be lost.
    pub fn new(pdisks: &[PdiskDesc], width: u32, parity: u32) -> Domains {
        assert!(pdisks.len() >= width as usize && pdisks.len() <= usize::from(u16::MAX));
        let node = dense(pdisks.iter().map(|p| (0, u64::from(p.node.0))));
        let enclosure = dense(pdisks.iter().map(|p| match p.enclosure {
            Some(enclosure) => (0, u64::from(enclosure)),
            None => (1, u64::from(p.id.0)),
        }));
        let nesting = if nested(&enclosure, &node) {
            Nesting::NodeHoldsEnclosures
        } else if nested(&node, &enclosure) {
            Nesting::EnclosureHoldsNodes
        } else {
            Nesting::Crossed
        };
        let mut domains = Domains { node, enclosure, node_cap: 0, enclosure_cap: width, nesting };
        domains.node_cap = least_cap(width, |cap| sum_capped(&counts(&domains.node), cap));
        domains.enclosure_cap = least_cap(width, |cap| domains.reach(cap));
        if domains.nesting == Nesting::EnclosureHoldsNodes && domains.enclosure_cap > parity {
            let more = (domains.node_cap + 1..=parity).map(|node_cap| {
                let more = Domains { node_cap, ..domains.clone() };
                Domains { enclosure_cap: least_cap(width, |cap| more.reach(cap)), ..more }
            });
            if let Some(survives) = more.into_iter().find(|more| more.enclosure_cap <= parity) {
                return survives;
            }
        }
        domains
    }

    /// How many strips of one group can be placed with `cap` for enclosures.
    fn reach(&self, cap: u32) -> u32 {
        match self.nesting {
            Nesting::NodeHoldsEnclosures => two_levels((&self.node, self.node_cap), (&self.enclosure, cap)),
            Nesting::EnclosureHoldsNodes => two_levels((&self.enclosure, cap), (&self.node, self.node_cap)),
            Nesting::Crossed => sum_capped(&counts(&self.enclosure), cap),
        }
    }

    /// Whether a group can always be completed within the enclosure cap as well.
    pub fn enclosure_cap_holds(&self) -> bool {
        self.nesting != Nesting::Crossed
    }

    /// In how many of `groups` groups of `width` strips each pdisk should be: shares by weight within
    /// the caps. They sum to `groups` × `width`.
    pub fn targets(&self, pdisks: &[PdiskDesc], groups: u32, width: u32) -> Vec<u32> {
        let cap_of = |cap: u32| u64::from(cap) * u64::from(groups);
        let (outer, inner) = match self.nesting {
            Nesting::EnclosureHoldsNodes => {
                ((&self.enclosure, cap_of(self.enclosure_cap)), (&self.node, cap_of(self.node_cap)))
            }
            Nesting::NodeHoldsEnclosures => {
                ((&self.node, cap_of(self.node_cap)), (&self.enclosure, cap_of(self.enclosure_cap)))
            }
            Nesting::Crossed => ((&self.node, cap_of(self.node_cap)), (&self.node, u64::MAX)),
        };
        // A tree of domains, each with its weight and the most it can take.
        let mut tree: BTreeMap<u16, BTreeMap<u16, Vec<usize>>> = BTreeMap::new();
        for i in 0..pdisks.len() {
            tree.entry(outer.0[i]).or_default().entry(inner.0[i]).or_default().push(i);
        }
        let weight = |i: &usize| u128::from(pdisks[*i].weight);
        let inner_share = |leaves: &Vec<usize>| Share {
            weight: leaves.iter().map(weight).sum(),
            cap: inner.1.min(u64::from(groups) * leaves.len() as u64),
        };
        let outer_share = |children: &BTreeMap<u16, Vec<usize>>| {
            let shares: Vec<Share> = children.values().map(inner_share).collect();
            Share {
                weight: shares.iter().map(|s| s.weight).sum(),
                cap: outer.1.min(shares.iter().map(|s| s.cap).sum()),
            }
        };
        let mut targets = vec![0u32; pdisks.len()];
        let outer_shares: Vec<Share> = tree.values().map(outer_share).collect();
        let total = u64::from(groups) * u64::from(width);
        for (children, quota) in tree.values().zip(share_out(total, &outer_shares)) {
            let inner_shares: Vec<Share> = children.values().map(inner_share).collect();
            for (leaves, quota) in children.values().zip(share_out(quota, &inner_shares)) {
                let leaf_shares: Vec<Share> =
                    leaves.iter().map(|i| Share { weight: weight(i), cap: groups.into() }).collect();
                for (&leaf, quota) in leaves.iter().zip(share_out(quota, &leaf_shares)) {
                    targets[leaf] = u32::try_from(quota).unwrap_or(groups);
                }
            }
        }
        targets
    }
}

/// The most strips of a group that some node must hold, given the node of each pdisk.
pub(crate) fn least_node_cap(nodes: impl Iterator<Item = NodeId>, width: u32) -> u32 {
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    nodes.for_each(|node| *counts.entry(node).or_default() += 1);
    let counts: Vec<u32> = counts.into_values().collect();
    least_cap(width, |cap| sum_capped(&counts, cap))
}

/// One claimant of [`share_out`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub weight: u128,
    pub cap: u64,
}

/// Shares `total` out by weight, none above its cap, in whole numbers: what is left over by rounding
/// goes to the largest remainders, the first of equals. Gives less than `total` only if all are full.
pub(crate) fn share_out(total: u64, shares: &[Share]) -> Vec<u64> {
    let mut given: Vec<Option<u64>> = shares.iter().map(|s| (s.weight == 0).then_some(0)).collect();
    loop {
        let open = || shares.iter().zip(&given).filter(|(_, g)| g.is_none());
        let weight: u128 = open().map(|(s, _)| s.weight).sum();
        let left = u128::from(total - given.iter().flatten().sum::<u64>());
        if weight == 0 {
            return given.into_iter().map(Option::unwrap_or_default).collect();
        }
        let full: Vec<usize> = (0..shares.len())
            .filter(|&i| given[i].is_none() && left * shares[i].weight > u128::from(shares[i].cap) * weight)
            .collect();
        if full.is_empty() {
            let mut remainders = Vec::new();
            for i in 0..shares.len() {
                if given[i].is_none() {
                    let exact = left * shares[i].weight;
                    remainders.push((exact % weight, i));
                    given[i] = Some((exact / weight) as u64);
                }
            }
            remainders.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut over = total.saturating_sub(given.iter().flatten().sum());
            for (_, i) in remainders.into_iter().filter(|(r, _)| *r > 0) {
                if over == 0 {
                    break;
                }
                given[i] = given[i].map(|g| g + 1);
                over -= 1;
            }
            return given.into_iter().map(Option::unwrap_or_default).collect();
        }
        full.into_iter().for_each(|i| given[i] = Some(shares[i].cap));
    }
}

/// Numbers keys 0, 1, 2, ... in their order.
fn dense(keys: impl Iterator<Item = (u8, u64)> + Clone) -> Vec<u16> {
    let mut sorted: Vec<(u8, u64)> = keys.clone().collect();
    sorted.sort_unstable();
    sorted.dedup();
    keys.map(|key| sorted.partition_point(|other| *other < key) as u16).collect()
}

/// Whether all of one `inner` domain are always in the same `outer` one.
fn nested(inner: &[u16], outer: &[u16]) -> bool {
    let mut seen: BTreeMap<u16, u16> = BTreeMap::new();
    inner.iter().zip(outer).all(|(i, o)| seen.entry(*i).or_insert(*o) == o)
}

fn counts(domain: &[u16]) -> Vec<u32> {
    let mut counts = vec![0; domain.iter().map(|d| usize::from(*d) + 1).max().unwrap_or(0)];
    domain.iter().for_each(|d| counts[usize::from(*d)] += 1);
    counts
}

fn sum_capped(counts: &[u32], cap: u32) -> u32 {
    counts.iter().map(|n| (*n).min(cap)).sum()
}

fn least_cap(width: u32, reach: impl Fn(u32) -> u32) -> u32 {
    (1..width).find(|&cap| reach(cap) >= width).unwrap_or(width)
}

/// Strips that fit with a cap on the outer domains and one on the inner domains within them.
fn two_levels(outer: (&[u16], u32), inner: (&[u16], u32)) -> u32 {
    let mut tree: BTreeMap<u16, BTreeMap<u16, u32>> = BTreeMap::new();
    for (o, i) in outer.0.iter().zip(inner.0) {
        *tree.entry(*o).or_default().entry(*i).or_default() += 1;
    }
    tree.values().map(|children| children.values().map(|n| (*n).min(inner.1)).sum::<u32>().min(outer.1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::PdiskId;

    fn pdisks(shape: &[(u32, Option<u32>, u64)]) -> Vec<PdiskDesc> {
        let desc = |(id, &(node, enclosure, weight))| PdiskDesc {
            id: PdiskId(id),
            node: NodeId(node),
            enclosure,
            weight,
        };
        (0u32..).zip(shape).map(desc).collect()
    }

    #[test]
    fn caps_are_the_least_possible() {
        let four_by_two: Vec<_> = (0..8).map(|i| (i / 2, None, 1)).collect();
        assert_eq!(Domains::new(&pdisks(&four_by_two), 6, 2).node_cap, 2);
        assert_eq!(Domains::new(&pdisks(&four_by_two), 4, 2).node_cap, 1);
        // Two small nodes force the large one to hold more.
        let uneven: Vec<_> = (0..8).map(|i: u32| (i.saturating_sub(5), None, 1)).collect();
        assert_eq!(Domains::new(&pdisks(&uneven), 6, 2).node_cap, 4);
        // 8 nodes in 2 racks: one strip a node, three a rack.
        let racks: Vec<_> = (0..16).map(|i| (i / 2, Some(i / 8), 1)).collect();
        let domains = Domains::new(&pdisks(&racks), 6, 2);
        assert_eq!((domains.node_cap, domains.enclosure_cap), (1, 3));
        assert!(domains.enclosure_cap_holds());
        // Two racks of one node, one of four: with one strip a node the large rack would hold four, so nodes hold two.
        let large: Vec<_> = (0..12).map(|i: u32| (i / 2, Some((i / 2).min(2)), 1)).collect();
        let domains = Domains::new(&pdisks(&large), 6, 2);
        assert_eq!((domains.node_cap, domains.enclosure_cap), (2, 2));
        // A code that cannot survive a rack's loss anyway keeps one strip a node.
        let domains = Domains::new(&pdisks(&large), 6, 1);
        assert_eq!((domains.node_cap, domains.enclosure_cap), (1, 4));
        // Enclosures that two nodes share.
        let crossed: Vec<_> = (0..8).map(|i| (i % 2, Some(i / 4), 1)).collect();
        assert!(!Domains::new(&pdisks(&crossed), 3, 1).enclosure_cap_holds());
    }

    #[test]
    fn targets_follow_weight_until_a_cap_binds() {
        let shape = [(0, None, 1), (1, None, 1), (2, None, 1), (3, None, 3)];
        let p = pdisks(&shape);
        assert_eq!(Domains::new(&p, 1, 0).targets(&p, 60, 1), [10, 10, 10, 30]);
        // Two copies: the large one can be in every group once, no more.
        assert_eq!(Domains::new(&p, 2, 0).targets(&p, 60, 2), [20, 20, 20, 60]);
        assert_eq!(Domains::new(&p, 4, 0).targets(&p, 60, 4), [60; 4]);
    }

    #[test]
    fn shares_are_whole_and_sum_up() {
        let share = |weight, cap| Share { weight, cap };
        assert_eq!(share_out(10, &[share(1, 99), share(1, 99), share(1, 99)]), [4, 3, 3]);
        assert_eq!(share_out(10, &[share(8, 2), share(1, 99), share(1, 99)]), [2, 4, 4]);
        assert_eq!(share_out(10, &[share(0, 9), share(5, 99)]), [0, 10]);
        assert_eq!(share_out(10, &[share(5, 3), share(5, 3)]), [3, 3]);
    }
}
