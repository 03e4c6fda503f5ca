//! The choice of the pdisks of one group, one after the other. The innermost loop of building a table:
//! what cannot win is passed over before its rank is computed, and that never changes who wins.
//! Buffers are kept from group to group.

use crate::{
    array::{Array, HOLE},
    hash::fold,
};

/// How far along a schedule the placement is: a pdisk should now be in `done`/`of` of its groups, or
/// above that by `slack` at most.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    pub done: u32,
    pub of: u32,
    pub slack: fn(u32) -> u32,
}

/// Largest value of the part of a rank that measures pairs or lag.
const MEASURE_MAX: u64 = (1 << 32) - 1;
/// The measure of a pdisk exactly on schedule.
const MEASURE_ON_TIME: i64 = 1 << 31;
/// Steps of the measure for each group behind.
const LAG_ONE: i64 = 256;

/// State of one choice.
#[derive(Default)]
pub(crate) struct Pick {
    group: u64,
    of: i64,
    in_group: Vec<bool>,
    node_count: Vec<u32>,
    enclosure_count: Vec<u32>,
    /// Weighted sum of what each pdisk shares with those in the group.
    shared: Vec<u64>,
    members: usize,
    /// In groups × `of`: how many groups a pdisk is behind its schedule.
    lag: Vec<i64>,
    /// Candidates in rising order: those that must be in this group, those behind, the others.
    classes: [Vec<u16>; 3],
}

/// The best candidate so far, and what another has to reach. Less is better, in this order.
#[derive(Clone, Copy)]
struct Best {
    spread: u64,
    measure: u64,
    tie: u64,
    pdisk: usize,
}

impl Pick {
    /// Starts with those that group `g` has already.
    pub fn start(&mut self, array: &Array, g: usize, schedule: Schedule) {
        let n = array.pdisks();
        let zero = |counts: &mut Vec<u32>, domain: &[u16]| {
            let domains = domain.iter().map(|d| usize::from(*d) + 1).max().unwrap_or(0);
            counts.clear();
            counts.resize(domains, 0);
        };
        if self.node_count.is_empty() {
            zero(&mut self.node_count, &array.domains.node);
            zero(&mut self.enclosure_count, &array.domains.enclosure);
        }
        self.node_count.fill(0);
        self.enclosure_count.fill(0);
        self.group = fold(array.seed, g as u64) | 1;
        self.of = schedule.of.into();
        self.in_group.clear();
        self.in_group.resize(n, false);
        self.shared.clear();
        self.shared.resize(n, 0);
        self.members = 0;
        for &m in array.group(g).iter().filter(|m| **m != HOLE) {
            self.add(array, usize::from(m), true);
        }
        self.classify(array, schedule);
    }

    fn classify(&mut self, array: &Array, schedule: Schedule) {
        self.classes.iter_mut().for_each(Vec::clear);
        self.lag.clear();
        let left = i64::from(schedule.of) - i64::from(schedule.done);
        for (p, (&used, &target)) in array.used.iter().zip(&array.target).enumerate() {
            let (used, target) = (i64::from(used), i64::from(target));
            let lag = target * i64::from(schedule.done) - used * self.of;
            let slack = i64::from((schedule.slack)(array.target[p])) * self.of;
            let must = target - used > left && schedule.of > 1;
            let class = if must { 0 } else { 1 + usize::from(lag <= -slack) };
            self.lag.push(lag);
            if !self.in_group[p] {
                self.classes[class].push(p as u16);
            }
        }
    }

    fn add(&mut self, array: &Array, p: usize, more: bool) {
        self.in_group[p] = true;
        self.members += 1;
        self.node_count[usize::from(array.domains.node[p])] += 1;
        self.enclosure_count[usize::from(array.domains.enclosure[p])] += 1;
        if more {
            for (sum, &pair) in self.shared.iter_mut().zip(array.pairs_of(p)) {
                *sum += u64::from(pair) * u64::from(array.inverse[p]);
            }
        }
    }

    /// The best pdisk that the domains allow, put into the group; `more` if another will be asked for.
    pub fn next(&mut self, array: &Array, more: bool) -> Option<u16> {
        let p = self.best(array)?;
        self.add(array, p, more);
        Some(p as u16)
    }

    fn best(&self, array: &Array) -> Option<usize> {
        // Above the enclosure cap only where that is a wish, and after all others.
        let over_allowed = !array.domains.enclosure_cap_holds();
        [false, true].into_iter().filter(|over| !over || over_allowed).find_map(|over| {
            (0..self.classes.len()).find_map(|class| {
                let by_lag = self.members == 0 || (class == 2 && !over);
                self.best_of(array, &self.classes[class], over, by_lag)
            })
        })
    }

    fn best_of(&self, array: &Array, candidates: &[u16], over: bool, by_lag: bool) -> Option<usize> {
        let d = &array.domains;
        let mut best = Best { spread: u64::MAX, measure: 0, tie: 0, pdisk: 0 };
        let mut lag_floor = i64::MIN;
        for &p in candidates {
            let p = usize::from(p);
            let node = self.node_count[usize::from(d.node[p])];
            let enclosure = self.enclosure_count[usize::from(d.enclosure[p])];
            if self.in_group[p] || node >= d.node_cap || (enclosure >= d.enclosure_cap) != over {
                continue;
            }
            let spread = u64::from(node.min(31) * 32 + enclosure.min(31));
            if spread > best.spread {
                continue;
            }
            let nearer = spread < best.spread;
            let measure = if by_lag {
                let lag = self.lag[p] * LAG_ONE;
                if !nearer && lag < lag_floor {
                    continue;
                }
                MEASURE_ON_TIME.saturating_sub(lag / self.of).max(0) as u64
            } else {
                // A strip of work outweighs what pairs usually differ by.
                let inverse = u64::from(array.inverse[p]);
                ((self.shared[p] * inverse) >> 8) + ((array.load[p] * inverse) >> 6)
            };
            let measure = measure.min(MEASURE_MAX);
            if !nearer && measure > best.measure {
                continue;
            }
            let tie = array.random[p].wrapping_mul(self.group) >> 48;
            if nearer || measure < best.measure || tie < best.tie {
                best = Best { spread, measure, tie, pdisk: p };
                if by_lag {
                    lag_floor = self.lag_floor(measure);
                }
            }
        }
        (best.spread != u64::MAX).then_some(best.pdisk)
    }

    /// The least lag, in steps × `of`, whose measure is not above `measure`.
    fn lag_floor(&self, measure: u64) -> i64 {
        if measure == MEASURE_MAX {
            return i64::MIN;
        }
        // Division rounds to zero.
        let steps = MEASURE_ON_TIME - measure as i64;
        if steps > 0 { steps * self.of } else { (steps - 1) * self.of + 1 }
    }
}
