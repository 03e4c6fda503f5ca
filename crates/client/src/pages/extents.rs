//! Which blocks of a file are allocated, as runs; and of which blocks that is known. Pure data.

use std::collections::BTreeMap;

use base::BlockIndex;
use wire::{
    mgr::Extent,
    token::{Blocks, Span},
};

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

    /// One past the last block of the run that has `block`.
    pub fn run_end(&self, block: u64) -> Option<u64> {
        self.runs.range(..=block).next_back().map(|(_, &end)| end).filter(|&end| block < end)
    }

    /// One past the last block before `block` that is in the set; 0 if there is none.
    pub fn last_end(&self, block: u64) -> u64 {
        self.runs.range(..block).next_back().map_or(0, |(_, &end)| end.min(block))
    }

    /// The blocks of `from..to` that are in the set.
    pub fn within(&self, from: u64, to: u64) -> BlockSet {
        BlockSet { runs: self.runs_in(from, to.max(from)).collect() }
    }

    /// Whether any block is in both.
    pub fn meets(&self, other: &BlockSet) -> bool {
        other.runs.iter().any(|(&from, &to)| self.any_in(from, to))
    }

    /// The runs of the set within `from..to`.
    fn runs_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.runs.range(..=from).next_back().map_or(from, |(&s, _)| s);
        let runs = self.runs.range(first..to).map(move |(&s, &e)| (s.max(from), e.min(to)));
        runs.filter(|(s, e)| s < e)
    }

    /// Blocks of the set in `from..to`.
    pub fn count_in(&self, from: u64, to: u64) -> u64 {
        self.runs_in(from, to).map(|(s, e)| e - s).sum()
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

/// What is known of the manager's record of a file's blocks. A long record is learned window by window.
///
/// Invariant: a block that `allocated` has is in the record; one that it has not, and that `known` has, is not.
#[derive(Default)]
pub(crate) struct Recorded {
    allocated: BlockSet,
    known: BlockSet,
    doubts: u64,
}

impl Recorded {
    /// The blocks that are known to be allocated.
    pub fn allocated(&self) -> &BlockSet {
        &self.allocated
    }
    /// Whether `block` is in the record, which has been learned of it.
    pub fn contains(&self, block: u64) -> bool {
        let allocated = self.allocated.contains(block);
        debug_assert!(allocated || self.known.contains(block), "block {block} has been learned");
        allocated
    }

    /// First of blocks `from..to` of which nothing is known.
    pub fn first_unknown(&self, from: u64, to: u64) -> Option<u64> {
        let first = self.known.run_end(from).unwrap_or(from);
        (first < to).then_some(first)
    }
    /// One past the last block before `block` that is known; 0 if there is none.
    pub fn known_before(&self, block: u64) -> u64 {
        self.known.last_end(block)
    }
    /// Whether all of it is known.
    pub fn is_whole(&self) -> bool {
        self.first_unknown(0, u64::MAX).is_none()
    }
    /// Whether some of `from..to` may be allocated.
    pub fn may_have(&self, from: u64, to: u64) -> bool {
        self.first_unknown(from, to).is_some() || self.allocated.any_in(from, to)
    }

    /// How often others got the right to allocate: an answer that was asked for before is old.
    pub fn doubts(&self) -> u64 {
        self.doubts
    }

    /// The manager said that of `from..to` just these are allocated.
    pub fn learned(&mut self, from: u64, to: u64, extents: impl IntoIterator<Item = Extent>) {
        extents.into_iter().for_each(|extent| self.allocated.insert_extent(extent));
        self.known.insert(from, to);
    }
    /// A run of blocks has entered the record.
    pub fn entered(&mut self, extent: Extent) {
        self.allocated.insert_extent(extent);
    }
    /// Blocks `from..to` have been taken out of the record.
    pub fn taken_out(&mut self, from: u64, to: u64) {
        self.allocated.remove(from, to);
        self.known.insert(from, to);
    }
    /// Others may allocate outside of what is held here, or have done so. What is allocated stays so.
    pub fn doubt_all_but(&mut self, held: &Blocks) {
        self.doubts += 1;
        let known = std::mem::take(&mut self.known);
        for Span { first, end } in held.runs().iter().map(|run| run.span) {
            known.runs_in(first, end).for_each(|(from, to)| self.known.insert(from, to));
        }
    }
    /// Others may change anything of `from..to`.
    pub fn forget(&mut self, from: u64, to: u64) {
        self.doubts += 1;
        self.allocated.remove(from, to);
        self.known.remove(from, to);
    }
    /// Forgets all of it.
    pub fn forget_all(&mut self) {
        *self = Recorded { doubts: self.doubts + 1, ..Recorded::default() };
    }
    /// How many runs are kept.
    pub fn runs(&self) -> usize {
        self.allocated.runs() + self.known.runs()
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
                    prop_assert_eq!(runs.last_end(b), plain.range(..b).next_back().map_or(0, |last| last + 1));
                    let end = (b..).find(|n| !plain.contains(n)).filter(|&end| end > b);
                    prop_assert_eq!(runs.run_end(b), end);
                }
                let within = runs.within(from, from + len);
                prop_assert!((0..90).all(|b| within.contains(b) == (plain.contains(&b) && (from..from + len).contains(&b))));
                prop_assert_eq!(runs.meets(&within), !within.is_empty());
                let ends: Vec<_> = runs.runs.iter().map(|(&s, &e)| (s, e)).collect();
                prop_assert!(ends.windows(2).all(|w| w[0].1 < w[1].0), "runs touch: {:?}", ends);
            }
        }

        /// We hold some blocks, others the rest; what is held changes, the record is learned in pieces.
        #[test]
        fn of_what_is_held_the_record_is_known_or_not_and_never_wrong(
            ops in prop::collection::vec((0u8..6, 0u64..40, 1u64..12), 1..80),
        ) {
            let (mut recorded, mut truth, mut held) = (Recorded::default(), BTreeSet::new(), 0..40);
            for (op, from, len) in ops {
                let to = (from + len).min(40);
                match op {
                    0 => {
                        let extents: Vec<Extent> = (from..to)
                            .filter(|b| truth.contains(b))
                            .map(|b| Extent { first: BlockIndex(b), count: 1 })
                            .collect();
                        recorded.learned(from, to, extents);
                    }
                    1 => {
                        let (from, to) = (from.max(held.start), to.min(held.end));
                        if from < to {
                            recorded.entered(Extent { first: BlockIndex(from), count: to - from });
                            truth.extend(from..to);
                        }
                    }
                    2 if held == (0..40) => {
                        recorded.taken_out(from, to);
                        truth.retain(|b| !(from..to).contains(b));
                    }
                    3 => truth.extend((from..to).filter(|b| !held.contains(b))),
                    4 => {
                        // Less is held: others may change what was.
                        let kept = from.max(held.start)..to.min(held.end);
                        if kept.start < kept.end {
                            recorded.forget(held.start, kept.start);
                            recorded.forget(kept.end, held.end);
                            held = kept;
                        }
                    }
                    _ => {
                        let was = Span { first: held.start, end: held.end };
                        recorded.doubt_all_but(&Blocks::of(was, wire::token::Use::Write));
                        held = 0..40;
                    }
                }
                for block in held.clone() {
                    if recorded.first_unknown(block, block + 1).is_none() || recorded.allocated().contains(block) {
                        prop_assert_eq!(recorded.allocated().contains(block), truth.contains(&block), "{}", block);
                    }
                }
            }
        }
    }
}
