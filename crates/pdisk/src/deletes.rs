//! The latest deletes: what was deleted is not made anew.
//!
//! Who makes a strip anew asks the other pdisks first, reads them, and installs what comes out. A delete
//! that reaches this pdisk in between finds nothing here, and would be undone by the install. So installs
//! at or below a remembered delete are refused; and an install that was begun so long ago that deletes
//! since then are forgotten is refused as well: it asks again.
//!
//! A prepare can come after the delete of its block as well: it was delayed on its way, or its writer asks
//! again for what had no answer. It is refused like an install. Every version that is written later is
//! above the delete, so only what is late is refused.
//!
//! Kept in memory. An open takes up again those that the log behind the newest checkpoint holds: after a
//! kill the writers that were at it ask once more, and the manager does not repeat a delete that was
//! answered. What is forgotten all the same is found by the scrub.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
};

use base::{BlockIndex, FsId, InodeNo, StripId, Version};
use wire::strip::DeleteStrips;

/// Most deletes remembered, of some 200 bytes each. Fewer than this happen while one strip is made or written.
const REMEMBERED_MAX: usize = 16 << 10;

/// How many deletes a pdisk had carried out at some moment of its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeletesSeen(u64);

impl DeletesSeen {
    /// For a prepare, or an install whose beginning is not known: only what is remembered counts.
    pub(crate) const UNKNOWN: DeletesSeen = DeletesSeen(u64::MAX);
}

/// The first block of a run.
type Key = (FsId, InodeNo, BlockIndex);

/// Blocks of an inode of which the deletes say the same.
#[derive(Clone, Copy)]
struct Run {
    last: BlockIndex,
    /// The highest version that is deleted of them.
    highest: Version,
    /// The number of the latest delete of them.
    latest: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RecentDeletes {
    /// Every prepare looks here: runs that do not overlap, so that it looks at one, however often a file was punched.
    runs: BTreeMap<Key, Run>,
    /// The deletes, oldest first; the first has the number `forgotten`.
    order: VecDeque<DeleteStrips>,
    /// Deletes that were remembered and are forgotten.
    forgotten: u64,
}

impl RecentDeletes {
    pub fn seen(&self) -> DeletesSeen {
        DeletesSeen(self.forgotten + self.order.len() as u64)
    }

    pub fn note(&mut self, delete: DeleteStrips) {
        self.note_within(delete, REMEMBERED_MAX);
    }

    fn note_within(&mut self, delete: DeleteStrips, max: usize) {
        let number = self.seen().0;
        self.order.push_back(delete);
        if let Some(keys) = keys(&delete) {
            self.cover(&delete, keys, number);
        }
        // So many deletes have at most twice as many runs, unless later ones are of lower versions.
        while self.order.len() > max || self.runs.len() > 2 * max {
            self.forget_oldest();
        }
    }

    /// The version up to which what is to be stored of `strip`, begun at `since`, is refused, if it is. What was deleted once
    /// may be refused longer than the delete is remembered: it is late all the same.
    pub fn refuses(&self, strip: StripId, version: Version, since: DeletesSeen) -> Option<Version> {
        if since.0 < self.forgotten {
            return Some(version);
        }
        let StripId { stripe, .. } = strip;
        let (&(fs, inode, _), run) =
            self.runs.range(..=(stripe.fs, stripe.inode, stripe.block)).next_back()?;
        let here = (fs, inode) == (stripe.fs, stripe.inode) && stripe.block <= run.last;
        (here && version <= run.highest).then_some(run.highest)
    }

    /// Takes a delete into the runs: one run where nothing higher was deleted before.
    fn cover(&mut self, delete: &DeleteStrips, keys: RangeInclusive<Key>, number: u64) {
        let (fs, inode) = (delete.fs, delete.inode);
        self.split((fs, inode, delete.first));
        if let Some(next) = delete.last.0.checked_add(1) {
            self.split((fs, inode, BlockIndex(next)));
        }
        let before: Vec<(Key, Run)> = self.runs.range(keys).map(|(key, run)| (*key, *run)).collect();
        let mut first = delete.first;
        let mut covered: Vec<(BlockIndex, Run)> = Vec::with_capacity(1);
        let mut add = |first: BlockIndex, last: BlockIndex, highest: Version| match covered.last_mut() {
            Some((_, run)) if run.highest == highest => run.last = last,
            _ => covered.push((first, Run { last, highest, latest: number })),
        };
        let mut rest = true;
        for (key, run) in before {
            self.runs.remove(&key);
            if first < key.2 {
                add(first, BlockIndex(key.2.0 - 1), delete.highest);
            }
            add(key.2, run.last, run.highest.max(delete.highest));
            rest = run.last < delete.last;
            first = BlockIndex(run.last.0.saturating_add(1));
        }
        if rest {
            add(first, delete.last, delete.highest);
        }
        self.runs.extend(covered.into_iter().map(|(first, run)| ((fs, inode, first), run)));
    }

    /// Lets a run begin here, if one goes over this place.
    fn split(&mut self, at: Key) {
        let Some((key, run)) = self.runs.range_mut(..at).next_back() else { return };
        if (key.0, key.1) == (at.0, at.1) && run.last >= at.2 {
            let behind = *run;
            run.last = BlockIndex(at.2.0 - 1);
            self.runs.insert(at, behind);
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        let number = self.forgotten;
        self.forgotten += 1;
        let Some(keys) = keys(&oldest) else { return };
        let gone = self.runs.range(keys).filter(|(_, run)| run.latest == number).map(|(key, _)| *key);
        for key in gone.collect::<Vec<_>>() {
            self.runs.remove(&key);
        }
    }
}

/// Where the runs of a delete begin; `None` if it is of no block.
fn keys(delete: &DeleteStrips) -> Option<RangeInclusive<Key>> {
    let at = |block| (delete.fs, delete.inode, block);
    (delete.first <= delete.last).then(|| at(delete.first)..=at(delete.last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Grant, StripIndex, StripeId};

    fn delete(first: u64, last: u64, seq: u64) -> DeleteStrips {
        let highest = Version { grant: Grant(1), seq };
        DeleteStrips {
            fs: FsId(1),
            inode: InodeNo(2),
            first: BlockIndex(first),
            last: BlockIndex(last),
            highest,
        }
    }

    #[test]
    fn remembers_the_latest_and_refuses_what_may_be_forgotten() {
        let strip = |inode, block| {
            StripeId { fs: FsId(1), inode: InodeNo(inode), block: BlockIndex(block) }.strip(StripIndex(3))
        };
        let v = |seq| Version { grant: Grant(1), seq };
        let mut deletes = RecentDeletes::default();
        let before = deletes.seen();
        deletes.note(delete(5, 9, 7));
        deletes.note(delete(0, 6, 4));
        let cases = [
            (strip(2, 5), 7, Some(v(7))), // under both: the higher one counts
            (strip(2, 5), 8, None),
            (strip(2, 4), 4, Some(v(4))),
            (strip(2, 4), 5, None),
            (strip(2, 10), 1, None),
            (strip(3, 5), 1, None),
        ];
        for (strip, seq, refused) in cases {
            assert_eq!(deletes.refuses(strip, v(seq), before), refused, "{strip} {seq}");
        }
        for _ in 0..REMEMBERED_MAX {
            deletes.note(delete(100, 100, 1));
        }
        assert_eq!((deletes.order.len(), deletes.runs.len()), (REMEMBERED_MAX, 1));
        assert_eq!(deletes.refuses(strip(3, 5), v(1), before), Some(v(1)), "asked before what is forgotten");
        assert_eq!(deletes.refuses(strip(3, 5), v(1), deletes.seen()), None);
        assert_eq!(deletes.refuses(strip(2, 100), v(1), deletes.seen()), Some(v(1)));
    }

    /// Any deletes of any runs, of versions that rise and fall: what a remembered one deleted is refused, what none ever deleted
    /// is not, and runs stay few.
    #[test]
    fn runs_say_what_the_deletes_say() {
        const MAX: usize = 12;
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut deletes, mut all) = (RecentDeletes::default(), Vec::new());
        for turn in 0..3000 {
            let first = random(40);
            let last = if random(8) == 0 { u64::MAX } else { first + random(9) - random(2).min(first) };
            let one = DeleteStrips {
                inode: InodeNo(1 + random(2)),
                ..delete(first, last, random(20) + turn / 200)
            };
            deletes.note_within(one, MAX);
            all.push(one);
            assert!(deletes.order.len() <= MAX && deletes.runs.len() <= 2 * MAX);
            let remembered = &all[all.len() - deletes.order.len()..];
            for inode in [1, 2, 3] {
                for block in (0..52).chain([u64::MAX]) {
                    let stripe = StripeId { fs: FsId(1), inode: InodeNo(inode), block: BlockIndex(block) };
                    let highest = |of: &[DeleteStrips]| {
                        let covers = |d: &&DeleteStrips| {
                            d.inode == stripe.inode && (d.first..=d.last).contains(&stripe.block)
                        };
                        of.iter().filter(covers).map(|d| d.highest).max()
                    };
                    let refused =
                        deletes.refuses(stripe.strip(StripIndex(0)), Version::ZERO, DeletesSeen::UNKNOWN);
                    assert!(highest(remembered) <= refused && refused <= highest(&all), "{stripe}");
                }
            }
        }
    }
}
