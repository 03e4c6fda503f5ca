//! What a query found: rows by the values of its breakdowns, each with a figure for every step of time and, of
//! operations, the distribution of their latencies. Answers of several processes add up.

use std::collections::BTreeMap;

use base::stats::latency_start;
use serde::{Deserialize, Serialize};

use crate::{known::Known, value::Value};

/// One row.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct AnswerRow {
    /// Events, bytes or units in all; of gauges the mean.
    pub total: f64,
    /// (step, the same in it), by rising step; where there is nothing it is 0.
    pub points: Vec<(u32, f64)>,
    /// Operations by bucket of latency; of utilisation seconds by its bucket.
    pub latency: BTreeMap<u8, u64>,
}

/// What a query found.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Seconds of each step that were recorded, by the process that recorded most of it.
    pub recorded: Vec<u32>,
    /// By the values of the breakdowns, in their order.
    pub rows: Vec<(Vec<Value>, AnswerRow)>,
    /// Of the total of the rows, what was not kept apart by a breakdown.
    pub others: f64,
    /// What may or may not pass the filters: it was not kept apart. It is in no row.
    pub unfiltered: f64,
    /// Seconds of the longest record that was put together for it: 1, 60 or 3600. Steps that are no multiple of it, and
    /// begin elsewhere, show some of what belongs to their neighbours.
    #[serde(default)]
    pub resolution: u32,
    /// What is known of the values that each filter names; empty where a process that was asked does not tell.
    #[serde(default)]
    pub known: Vec<Known>,
}

impl AnswerRow {
    /// Adds another row.
    pub fn merge(&mut self, other: &AnswerRow) {
        self.total += other.total;
        let mut points: BTreeMap<u32, f64> = self.points.drain(..).collect();
        other.points.iter().for_each(|(step, value)| *points.entry(*step).or_default() += value);
        self.points = points.into_iter().collect();
        other.latency.iter().for_each(|(bucket, n)| *self.latency.entry(*bucket).or_default() += n);
    }
}

impl Answer {
    /// The total of all rows.
    pub fn total(&self) -> f64 {
        self.rows.iter().map(|(_, row)| row.total).sum()
    }

    /// The share of what was asked for that could be told apart, 0 to 1.
    pub fn coverage(&self) -> f64 {
        let all = self.total() + self.unfiltered;
        if all > 0.0 { 1.0 - (self.others + self.unfiltered) / all } else { 1.0 }
    }

    /// Adds the answer of another process.
    pub fn merge(&mut self, other: Answer) {
        let mut rows: BTreeMap<Vec<Value>, AnswerRow> = self.rows.drain(..).collect();
        for (key, row) in other.rows {
            rows.entry(key).or_default().merge(&row);
        }
        self.rows = rows.into_iter().collect();
        let steps = self.recorded.len().max(other.recorded.len());
        self.recorded.resize(steps, 0);
        for (most, recorded) in self.recorded.iter_mut().zip(other.recorded) {
            *most = recorded.max(*most);
        }
        self.resolution = self.resolution.max(other.resolution);
        self.others += other.others;
        self.unfiltered += other.unfiltered;
        if self.known.len() == other.known.len() {
            self.known.iter_mut().zip(other.known).for_each(|(known, other)| known.merge(other));
        } else {
            self.known.clear();
        }
    }

    /// Keeps the heaviest rows apart, at most `max` of them; the rest becomes one of [`Value::Other`], the last.
    pub fn shorten(&mut self, max: usize) {
        let is_rest = |key: &[Value]| !key.is_empty() && key.iter().all(|value| *value == Value::Other);
        self.rows.sort_by(|a, b| {
            let by_weight = b.1.total.total_cmp(&a.1.total).then_with(|| a.0.cmp(&b.0));
            is_rest(&a.0).cmp(&is_rest(&b.0)).then(by_weight)
        });
        let named = self.rows.iter().filter(|row| !is_rest(&row.0)).count();
        if named <= max {
            return;
        }
        let mut rest: Option<(Vec<Value>, AnswerRow)> = None;
        for (key, row) in self.rows.split_off(max) {
            self.others += if key.contains(&Value::Other) { 0.0 } else { row.total };
            rest.get_or_insert_with(|| (vec![Value::Other; key.len()], AnswerRow::default())).1.merge(&row);
        }
        self.rows.extend(rest);
    }
}

/// The bucket that a share `q` of what is in buckets did not exceed. None where there is nothing.
pub fn quantile_bucket(buckets: &BTreeMap<u8, u64>, q: f64) -> Option<u8> {
    let count: u64 = buckets.values().sum();
    let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
    let mut seen = 0;
    let found = buckets.iter().find(|(_, n)| {
        seen += **n;
        seen >= rank
    });
    found.map(|(bucket, _)| *bucket)
}

/// The latency that a share `q` of the operations did not exceed, nanoseconds: the end of its bucket, so that it is
/// never too low and at most half too high. None without operations.
pub fn quantile_ns(latency: &BTreeMap<u8, u64>, q: f64) -> Option<u64> {
    quantile_bucket(latency, q).map(|bucket| latency_start(usize::from(bucket) + 1))
}

#[cfg(test)]
mod tests {
    use base::stats::latency_bucket;

    use super::*;

    fn row(total: f64, points: &[(u32, f64)]) -> AnswerRow {
        AnswerRow { total, points: points.to_vec(), ..AnswerRow::default() }
    }

    fn text(name: &str) -> Vec<Value> {
        vec![Value::Text(name.to_owned())]
    }

    #[test]
    fn answers_add_up_and_a_gap_stays_one() {
        let mut all = Answer {
            recorded: vec![1, 0, 0],
            rows: vec![(text("a"), row(3.0, &[(0, 3.0)]))],
            ..Answer::default()
        };
        all.merge(Answer {
            recorded: vec![1, 0, 1],
            rows: vec![(text("a"), row(4.0, &[(0, 1.0), (2, 3.0)])), (text("b"), row(1.0, &[(2, 1.0)]))],
            others: 0.0,
            unfiltered: 2.0,
            resolution: 60,
            known: Vec::new(),
        });
        assert_eq!(all.recorded, [1, 0, 1]);
        assert_eq!(all.rows[0], (text("a"), row(7.0, &[(0, 4.0), (2, 3.0)])));
        assert_eq!((all.total(), all.coverage()), (8.0, 0.8));
    }

    #[test]
    fn what_is_cut_off_is_in_the_others() {
        let rows = (1..=10u32).map(|n| (text(&n.to_string()), row(n.into(), &[(n, n.into())]))).collect();
        let mut all = Answer { rows, ..Answer::default() };
        all.shorten(3);
        assert_eq!(all.rows.len(), 4);
        assert_eq!(all.rows[0].0, text("10"));
        assert_eq!((&all.rows[3].0, all.rows[3].1.total), (&vec![Value::Other], 28.0));
        assert_eq!((all.total(), all.others), (55.0, 28.0));
        all.shorten(2);
        assert_eq!((all.rows.len(), all.total(), all.others), (3, 55.0, 36.0));
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let bucket = |us: u64| latency_bucket(us * 1000) as u8;
        let latency = [(bucket(100), 99), (bucket(5000), 1)].into();
        let of = |q| quantile_ns(&latency, q).unwrap();
        assert!((100_000..=150_000).contains(&of(0.5)), "{}", of(0.5));
        assert_eq!(of(0.99), of(0.5));
        assert!((5_000_000..=7_500_000).contains(&of(1.0)), "{}", of(1.0));
        assert_eq!(quantile_ns(&BTreeMap::new(), 0.5), None);
    }
}
