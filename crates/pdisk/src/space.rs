//! The free-space map of the data file: free runs by place and by size. It is derived from the index
//! at every open, so that it cannot leak, and lives in memory only.
//! Best fit: the smallest run that holds all; if none does, the largest runs one after the other.

use std::collections::{BTreeMap, BTreeSet};

use crate::extent::Extent;

/// Free units of one data file.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Space {
    by_start: BTreeMap<u64, u64>,
    by_count: BTreeSet<(u64, u64)>,
    free: u64,
    units: u64,
}

/// Two owners claim the same unit, or one claims a unit beyond the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap(pub u64);

impl Space {
    /// The space of `units` units that `used` leaves.
    pub fn from_used(units: u64, mut used: Vec<Extent>) -> Result<Space, Overlap> {
        let mut space = Space { units, ..Space::default() };
        used.sort_unstable();
        let mut at = 0;
        for e in used {
            if e.start() < at || e.end() > units {
                return Err(Overlap(e.start()));
            }
            space.insert(at, e.start() - at);
            at = e.end();
        }
        space.insert(at, units - at);
        Ok(space)
    }

    /// Free units.
    pub fn free_units(&self) -> u64 {
        self.free
    }

    /// Number of free runs, the length of the longest.
    pub fn runs(&self) -> (usize, u64) {
        (self.by_start.len(), self.by_count.last().map_or(0, |r| r.0))
    }

    /// Takes `count` units, in as few extents as there are; `goal` is tried first (the unit after the
    /// strip's last one). `None` and no change if there is not enough.
    pub fn allocate(&mut self, count: u32, goal: Option<u64>) -> Option<Vec<Extent>> {
        if u64::from(count) > self.free {
            return None;
        }
        let mut taken = Vec::new();
        let mut left = u64::from(count);
        if let Some(goal) = goal
            && let Some((&start, &run)) = self.by_start.range(..=goal).next_back()
            && start == goal
            && run >= left
        {
            self.remove(start, run);
            self.insert(start + left, run - left);
            return Some(vec![Extent::new(start, count)]);
        }
        while left > 0 {
            let fit = self.by_count.range((left, 0)..).next().or_else(|| self.by_count.last());
            let (run, start) = *fit.expect("free units are in runs");
            let n = run.min(left);
            self.remove(start, run);
            self.insert(start + n, run - n);
            taken.push(Extent::new(start, n as u32));
            left -= n;
        }
        Some(taken)
    }

    /// Gives units back. They must have been taken: anything else is our own broken memory.
    pub fn release(&mut self, e: Extent) {
        let (mut start, mut end) = (e.start(), e.end());
        assert!(end <= self.units);
        if let Some((&s, &n)) = self.by_start.range(..=start).next_back() {
            assert!(s + n <= start, "unit {start} is freed twice");
            if s + n == start {
                self.remove(s, n);
                start = s;
            }
        }
        if let Some((&s, &n)) = self.by_start.range(e.start()..).next() {
            assert!(s >= end, "unit {s} is freed twice");
            if s == end {
                self.remove(s, n);
                end = s + n;
            }
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, start: u64, count: u64) {
        if count > 0 {
            self.by_start.insert(start, count);
            self.by_count.insert((count, start));
            self.free += count;
        }
    }

    fn remove(&mut self, start: u64, count: u64) {
        self.by_start.remove(&start);
        self.by_count.remove(&(count, start));
        self.free -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_fit_goal_and_merging() {
        let mut s = Space::from_used(100, vec![Extent::new(10, 10), Extent::new(25, 5)]).unwrap();
        assert_eq!((s.free_units(), s.runs()), (85, (3, 70)));
        assert_eq!(s.allocate(4, None).unwrap(), [Extent::new(20, 4)]);
        assert_eq!(s.allocate(4, Some(30)).unwrap(), [Extent::new(30, 4)]);
        assert_eq!(s.allocate(72, None).unwrap(), [Extent::new(34, 66), Extent::new(0, 6)]);
        assert_eq!(s.allocate(6, None), None);
        assert_eq!(s.free_units(), 5);
        for e in [Extent::new(34, 66), Extent::new(0, 6), Extent::new(20, 4), Extent::new(30, 4)] {
            s.release(e);
        }
        assert_eq!(s, Space::from_used(100, vec![Extent::new(10, 10), Extent::new(25, 5)]).unwrap());
    }

    #[test]
    fn overlapping_owners_are_found() {
        assert_eq!(Space::from_used(9, vec![Extent::new(3, 3), Extent::new(5, 1)]), Err(Overlap(5)));
        assert_eq!(Space::from_used(9, vec![Extent::new(8, 2)]), Err(Overlap(8)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_our_bug() {
        let mut s = Space::from_used(9, vec![]).unwrap();
        s.release(Extent::new(3, 1));
    }
}
