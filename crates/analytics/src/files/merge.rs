//! Seconds put together into minutes, minutes into hours. Sums stay exact: operations, bytes, buckets of latency, counters.
//! What of a key was among the others of a second in which it has no row is added to what it may have missed.
//! Memory is bounded: beyond [`KEYS_MAX`] keys of a set the lighter half goes to the others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use base::stats::{Amount, Gain, Key, Operations, Row, Second, Set};

/// Keys of a set that are kept apart of a minute or an hour.
pub const ROWS_MAX: usize = 128;
const KEYS_MAX: usize = 8192;

/// A key, as far as it was kept apart.
#[derive(Default)]
struct Kept {
    amount: Amount,
    missed: u64,
    /// The others' weight in the seconds in which it has a row: nothing more of it is there.
    seen: u64,
}

#[derive(Default)]
struct Keys {
    kept: HashMap<Key, Kept>,
    other: BTreeMap<u8, Amount>,
    /// The others' weight, by operation.
    weight: BTreeMap<u8, u64>,
}

impl Keys {
    fn add(&mut self, operations: &Operations) {
        let mut others: BTreeMap<u8, u64> = BTreeMap::new();
        for (op, amount) in &operations.other {
            self.other.entry(*op).or_default().merge(amount);
            *others.entry(*op).or_default() += amount.weight();
        }
        for row in &operations.rows {
            let kept = self.kept.entry(row.key).or_default();
            kept.amount.merge(&row.amount);
            kept.missed += row.missed;
            kept.seen += others.get(&row.key.op).copied().unwrap_or(0);
        }
        for (op, weight) in others {
            *self.weight.entry(op).or_default() += weight;
        }
        if self.kept.len() > KEYS_MAX {
            self.shorten(KEYS_MAX / 2);
        }
    }

    /// Keeps the heaviest.
    fn shorten(&mut self, max: usize) {
        let mut all: Vec<(Key, Kept)> = self.kept.drain().collect();
        all.sort_unstable_by_key(|(key, kept)| (Reverse(kept.amount.weight()), *key));
        for (key, kept) in all.drain(max.min(all.len())..) {
            *self.weight.entry(key.op).or_default() += kept.amount.weight();
            self.other.entry(key.op).or_default().merge(&kept.amount);
        }
        self.kept.extend(all);
    }

    fn finish(mut self, set: Set) -> Operations {
        // What is left out here is in the others of the whole: a row of it could not have missed it.
        let weight = std::mem::take(&mut self.weight);
        self.shorten(ROWS_MAX);
        let mut rows: Vec<Row> = self
            .kept
            .into_iter()
            .map(|(key, kept)| {
                let others = weight.get(&key.op).copied().unwrap_or(0);
                Row { key, missed: kept.missed + others.saturating_sub(kept.seen), amount: kept.amount }
            })
            .collect();
        rows.sort_unstable_by_key(|row| (Reverse(row.amount.weight()), row.key));
        Operations { set, rows, other: self.other.into_iter().collect() }
    }
}

/// A minute or an hour that is being put together.
pub struct Merging {
    resolution: u64,
    end: u64,
    recorded: u32,
    elapsed_us: u64,
    sets: BTreeMap<Set, Keys>,
    series: BTreeMap<u32, Gain>,
}

impl Merging {
    /// Records of so many seconds.
    pub fn new(resolution: u64) -> Merging {
        let (sets, series) = Default::default();
        Merging { resolution, end: 0, recorded: 0, elapsed_us: 0, sets, series }
    }

    /// Adds a second; the record before it, if that is now whole.
    pub fn add(&mut self, second: &Second) -> Option<Second> {
        let end = second.at.div_ceil(self.resolution) * self.resolution;
        let whole = if end == self.end { None } else { self.finish() };
        self.end = end;
        self.recorded += second.recorded;
        self.elapsed_us += second.elapsed_us;
        for operations in &second.operations {
            self.sets.entry(operations.set).or_default().add(operations);
        }
        for (number, gain) in &second.series {
            match (self.series.get_mut(number), gain) {
                (Some(Gain::Counter(all)), Gain::Counter(n)) => *all += n,
                (Some(Gain::Gauge(all)), Gain::Gauge(n)) => *all = all.saturating_add(*n),
                (Some(Gain::Histogram(all)), Gain::Histogram(n)) => all.merge(n),
                _ => drop(self.series.insert(*number, gain.clone())),
            }
        }
        whole
    }

    fn finish(&mut self) -> Option<Second> {
        let done = std::mem::replace(self, Merging::new(self.resolution));
        (done.recorded > 0).then(|| Second {
            at: done.end,
            span: done.resolution as u32,
            recorded: done.recorded,
            elapsed_us: done.elapsed_us,
            operations: done.sets.into_iter().map(|(set, keys)| keys.finish(set)).collect(),
            series: done.series.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(ops: u64, bucket: u8) -> Amount {
        Amount { ops, bytes: ops * 10, ns: ops, latency: vec![(bucket, ops)] }
    }

    fn second(at: u64, rows: &[(u64, u64)], other: u64) -> Second {
        let rows = rows.iter().map(|&(inode, ops)| Row {
            key: Key { inode, op: 1, ..Key::default() },
            amount: amount(ops, at as u8 % 3),
            missed: 0,
        });
        let other = if other > 0 { vec![(1, amount(other, 5))] } else { Vec::new() };
        let operations = vec![Operations { set: Set::File, rows: rows.collect(), other }];
        let series = vec![(1, Gain::Counter(2)), (2, Gain::Gauge(-3)), (3, Gain::Histogram(amount(1, 7)))];
        Second { at, span: 1, recorded: 1, elapsed_us: 1_000_000, operations, series }
    }

    fn ops(second: &Second) -> u64 {
        let of = |o: &Operations| {
            o.rows.iter().map(|r| &r.amount).chain(o.other.iter().map(|o| &o.1)).map(|a| a.ops).sum::<u64>()
        };
        second.operations.iter().map(of).sum()
    }

    #[test]
    fn a_minute_is_the_sum_of_its_seconds_and_gaps_stay_gaps() {
        let mut minute = Merging::new(60);
        assert_eq!(minute.add(&second(61, &[(7, 5)], 2)), None);
        assert_eq!(minute.add(&second(62, &[(8, 1)], 4)), None);
        assert_eq!(minute.add(&second(120, &[(7, 1)], 0)), None);
        let whole = minute.add(&second(121, &[], 0)).unwrap();
        assert_eq!((whole.at, whole.span, whole.recorded, ops(&whole)), (120, 60, 3, 13));
        let rows = &whole.operations[0].rows;
        assert_eq!((rows[0].key.inode, rows[0].amount.ops), (7, 6));
        // In one second it had no row, and 4 were among the others.
        assert_eq!(rows[0].missed, 4);
        assert_eq!(rows[0].amount.latency.iter().map(|l| l.1).sum::<u64>(), 6);
        let latency = vec![(7, 3)];
        let series = vec![
            (1, Gain::Counter(6)),
            (2, Gain::Gauge(-9)),
            (3, Gain::Histogram(Amount { ops: 3, bytes: 30, ns: 3, latency })),
        ];
        assert_eq!(whole.series, series);
        // A pause of hours: the next minute is on its own.
        assert_eq!(minute.add(&second(90_000, &[], 1)).unwrap().at, 180);
    }

    #[test]
    fn sums_are_exact_whatever_the_number_of_keys() {
        let mut minute = Merging::new(60);
        let (mut all, mut heavy) = (0, 0);
        for at in 1..=60u64 {
            let mut rows: Vec<(u64, u64)> = (0..400).map(|n| (at * 1000 + n, 1 + n % 3)).collect();
            if at % 2 == 0 {
                rows.push((7, 100));
                heavy += 100;
            }
            all += rows.iter().map(|row| row.1).sum::<u64>() + 3;
            assert_eq!(minute.add(&second(at, &rows, 3)), None);
        }
        let whole = minute.add(&second(61, &[], 0)).unwrap();
        assert_eq!((whole.recorded, ops(&whole)), (60, all));
        let rows = &whole.operations[0].rows;
        assert_eq!((rows.len(), rows[0].key.inode, rows[0].amount.ops), (ROWS_MAX, 7, heavy));
        assert!(rows[0].missed >= 30 * 3);
    }
}
