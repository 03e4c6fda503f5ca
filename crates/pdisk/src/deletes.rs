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

use std::collections::{HashMap, VecDeque};

use base::{FsId, InodeNo, StripId, Version};
use wire::strip::DeleteStrips;

/// Most deletes remembered, of some 100 bytes each. Fewer than this happen while one strip is made or written.
const REMEMBERED_MAX: usize = 16 << 10;

/// How many deletes a pdisk had carried out at some moment of its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeletesSeen(u64);

impl DeletesSeen {
    /// For a prepare, or an install whose beginning is not known: only what is remembered counts.
    pub(crate) const UNKNOWN: DeletesSeen = DeletesSeen(u64::MAX);
}

#[derive(Default)]
pub(crate) struct RecentDeletes {
    /// Every prepare looks here: by inode, so that few are looked at.
    of: HashMap<(FsId, InodeNo), VecDeque<DeleteStrips>>,
    /// Whose they are, oldest first.
    order: VecDeque<(FsId, InodeNo)>,
    /// Deletes that were remembered and are forgotten.
    forgotten: u64,
}

impl RecentDeletes {
    pub fn seen(&self) -> DeletesSeen {
        DeletesSeen(self.forgotten + self.order.len() as u64)
    }

    pub fn note(&mut self, delete: DeleteStrips) {
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.forgotten += 1;
            if let Some(list) = self.of.get_mut(&oldest) {
                list.pop_front();
                if list.is_empty() {
                    self.of.remove(&oldest);
                }
            }
        }
        let whose = (delete.fs, delete.inode);
        self.order.push_back(whose);
        self.of.entry(whose).or_default().push_back(delete);
    }

    /// The version up to which what is to be stored of `strip`, begun at `since`, is refused, if it is.
    pub fn refuses(&self, strip: StripId, version: Version, since: DeletesSeen) -> Option<Version> {
        if since.0 < self.forgotten {
            return Some(version);
        }
        let stripe = strip.stripe;
        let list = self.of.get(&(stripe.fs, stripe.inode))?;
        let covers = |d: &&DeleteStrips| (d.first..=d.last).contains(&stripe.block);
        let highest = list.iter().filter(covers).map(|d| d.highest).max();
        highest.filter(|highest| version <= *highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{BlockIndex, Grant, StripIndex, StripeId};

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
        assert_eq!((deletes.order.len(), deletes.of.len()), (REMEMBERED_MAX, 1));
        assert_eq!(deletes.refuses(strip(3, 5), v(1), before), Some(v(1)), "asked before what is forgotten");
        assert_eq!(deletes.refuses(strip(3, 5), v(1), deletes.seen()), None);
        assert_eq!(deletes.refuses(strip(2, 100), v(1), deletes.seen()), Some(v(1)));
    }
}
