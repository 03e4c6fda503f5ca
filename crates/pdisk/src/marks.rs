//! Points of the log that the manager may have on record, so that an open can show that the log still
//! contains them: position and digest of everything up to there. A length alone would let other content of
//! the same length pass. Known are the points told in this life, those that the checkpoint brought, and, after
//! an open, every end of a group behind it.
//!
//! A checkpoint keeps the newest [`MARKS_MAX`]. Until the manager has confirmed a point of this life nobody
//! knows which of the others it will ask for: a pdisk of a server then makes no checkpoint that would forget one.

use wire::mgr::LogMark;

use crate::log::LogPoint;

/// Points that a checkpoint's header has room for.
pub(crate) const MARKS_MAX: usize = 240;

impl LogPoint {
    /// The point as others write it down. The digest is the header CRC of the last group before it, which covers
    /// that group's records, the CRCs of their bytes, and the header CRC of the group before; and the number of
    /// groups.
    pub fn mark(&self) -> LogMark {
        LogMark { position: self.position, digest: self.sequence << 32 | u64::from(self.chain) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Rising by position.
    list: Vec<LogMark>,
    /// Nothing older than the newest [`MARKS_MAX`] will be asked for.
    confirmed: bool,
}

impl Marks {
    /// `found`: rising, by an open. `asked`: somebody will ask, and confirm.
    pub fn new(mut found: Vec<LogMark>, asked: bool) -> Marks {
        found.dedup();
        Marks { list: found, confirmed: !asked }
    }

    /// A point is told to somebody.
    pub fn tell(&mut self, mark: LogMark) {
        if self.list.last() != Some(&mark) {
            assert!(self.list.last().is_none_or(|last| last.position < mark.position), "points rise");
            self.list.push(mark);
        }
        self.trim();
    }

    /// The point at a position, if it is known.
    pub fn at(&self, position: u64) -> Option<LogMark> {
        let found = self.list.binary_search_by_key(&position, |mark| mark.position);
        found.ok().map(|at| self.list[at])
    }

    /// What was told last is on record: nothing older will be asked for, but what was told shortly before.
    pub fn confirm(&mut self) {
        self.confirmed = true;
        self.trim();
    }

    fn trim(&mut self) {
        if self.confirmed && self.list.len() > MARKS_MAX {
            self.list.drain(..self.list.len() - MARKS_MAX);
        }
    }

    /// A checkpoint would forget a point that may be asked for.
    pub fn must_stay(&self) -> bool {
        !self.confirmed && self.list.len() > MARKS_MAX
    }

    /// What a checkpoint as of `end` keeps.
    pub fn newest(&self, end: LogMark) -> Vec<LogMark> {
        let mut list: Vec<LogMark> =
            self.list.iter().filter(|mark| mark.position < end.position).copied().collect();
        list.push(end);
        list.drain(..list.len().saturating_sub(MARKS_MAX));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u64) -> LogMark {
        LogMark { position: n * 8192, digest: n ^ 7 }
    }

    #[test]
    fn points_are_found_and_the_oldest_go_once_one_is_confirmed() {
        let mut marks = Marks::new((0..1000).map(mark).collect(), true);
        assert!(marks.must_stay());
        assert_eq!((marks.at(8192), marks.at(8193), marks.at(1000 * 8192)), (Some(mark(1)), None, None));
        assert_eq!(marks.newest(mark(1000)).len(), MARKS_MAX);
        marks.tell(mark(1000));
        marks.tell(mark(1000));
        marks.confirm();
        assert!(!marks.must_stay());
        assert_eq!((marks.at(8192), marks.at(1000 * 8192)), (None, Some(mark(1000))));
        let kept = marks.newest(mark(1000));
        assert_eq!((kept.len(), kept[0], kept[239]), (MARKS_MAX, mark(761), mark(1000)));
        assert_eq!(marks.newest(mark(999)).last(), Some(&mark(999)), "a checkpoint keeps nothing behind it");
    }

    #[test]
    fn who_is_not_asked_forgets_nothing_it_needs() {
        let marks = Marks::new((0..1000).map(mark).collect(), false);
        assert!(!marks.must_stay());
    }
}
