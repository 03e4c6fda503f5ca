//! A set of block numbers as runs: which blocks of a file are allocated. Pure data.

use std::collections::BTreeMap;

use base::BlockIndex;
use wire::mgr::Extent;

/// Runs that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet {
    /// First block to one past the last.
    runs: BTreeMap<u64, u64>,
}

impl BlockSet {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many runs it takes.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    pub fn contains(&self, block: u64) -> bool {
        self.runs.range(..=block).next_back().is_some_and(|(_, &end)| block < end)
    }

    pub fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut from, mut to) = (from, to);
        let touching: Vec<u64> =
            self.runs.range(..=to).rev().take_while(|&(_, &end)| end >= from).map(|(&s, _)| s).collect();
        for start in touching {
            if let Some(end) = self.runs.remove(&start) {
                from = from.min(start);
                to = to.max(end);
            }
        }
        self.runs.insert(from, to);
    }

    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let overlapping: Vec<(u64, u64)> =
            self.runs.range(..to).rev().take_while(|&(_, &end)| end > from).map(|(&s, &e)| (s, e)).collect();
        for (start, end) in overlapping {
            self.runs.remove(&start);
            if start < from {
                self.runs.insert(start, from);
            }
            if end > to {
                self.runs.insert(to, end);
            }
        }
    }

    /// Whether any block of `from..to` is in the set.
    pub fn any_in(&self, from: u64, to: u64) -> bool {
        self.next_in(from).is_some_and(|b| b < to)
    }

    /// First block of the set at or after `from`.
    pub fn next_in(&self, from: u64) -> Option<u64> {
        if self.contains(from) {
            return Some(from);
        }
        self.runs.range(from..).next().map(|(&s, _)| s)
    }

    /// One past the last block of the set.
    pub fn end(&self) -> u64 {
        self.runs.values().next_back().copied().unwrap_or(0)
    }

    /// Blocks of the set in `from..to`.
    pub fn count_in(&self, from: u64, to: u64) -> u64 {
        let first = self.runs.range(..=from).next_back().map_or(from, |(&s, _)| s);
        self.runs.range(first..to).map(|(&s, &e)| e.min(to).saturating_sub(s.max(from))).sum()
    }

    /// The runs, at most `limit` of them.
    pub fn extents(&self, limit: usize) -> Vec<Extent> {
        let extent = |(&s, &e): (&u64, &u64)| Extent { first: BlockIndex(s), count: e - s };
        self.runs.iter().take(limit).map(extent).collect()
    }

    /// Adds or removes what the manager reported.
    pub fn insert_extent(&mut self, extent: Extent) {
        self.insert(extent.first.0, extent.first.0.saturating_add(extent.count));
    }

    /// Removes a run that was reported.
    pub fn remove_extent(&mut self, extent: Extent) {
        self.remove(extent.first.0, extent.first.0.saturating_add(extent.count));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..16), 1..60)) {
            let mut runs = BlockSet::default();
            let mut plain = BTreeSet::new();
            for (add, from, len) in ops {
                if add {
                    runs.insert(from, from + len);
                    plain.extend(from..from + len);
                } else {
                    runs.remove(from, from + len);
                    plain.retain(|b| !(from..from + len).contains(b));
                }
                for b in 0..90 {
                    prop_assert_eq!(runs.contains(b), plain.contains(&b));
                    prop_assert_eq!(runs.next_in(b), plain.range(b..).next().copied());
                    prop_assert_eq!(runs.count_in(b, b + 9), plain.range(b..b + 9).count() as u64);
                }
                let ends: Vec<_> = runs.runs.iter().map(|(&s, &e)| (s, e)).collect();
                prop_assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "runs touch: {:?}", ends);
            }
        }
    }
}
