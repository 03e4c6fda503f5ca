//! How long messages took: average, median, standard deviation and a histogram.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Below one millisecond buckets of 10 µs, from there of 1 ms; the last takes whatever is longer.
const FINE: usize = 100;
const COARSE_MAX_MS: usize = 10_000;

/// Times of messages. Their sum and the sum of their squares are exact, the median is good to its bucket.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Times {
    /// Events by bucket; as long as the highest one used.
    buckets: Vec<u64>,
    count: u64,
    sum_us: f64,
    sum_squares: f64,
}

fn bucket(time: Duration) -> usize {
    let us = time.as_micros();
    if us < 1000 { us as usize / 10 } else { FINE - 1 + ((us / 1000) as usize).min(COARSE_MAX_MS) }
}

/// Where a bucket begins, in microseconds.
fn begins(bucket: usize) -> u64 {
    if bucket < FINE { bucket as u64 * 10 } else { (bucket - FINE + 1) as u64 * 1000 }
}

impl Times {
    /// Adds one.
    pub fn record(&mut self, time: Duration) {
        let i = bucket(time);
        if self.buckets.len() <= i {
            self.buckets.resize(i + 1, 0);
        }
        self.buckets[i] += 1;
        self.count += 1;
        let us = time.as_secs_f64() * 1e6;
        self.sum_us += us;
        self.sum_squares += us * us;
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Times) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(a, b)| *a += b);
        self.count += other.count;
        self.sum_us += other.sum_us;
        self.sum_squares += other.sum_squares;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Milliseconds; 0 without events.
    pub fn average_ms(&self) -> f64 {
        self.sum_us / 1e3 / self.count.max(1) as f64
    }

    /// Milliseconds.
    pub fn deviation_ms(&self) -> f64 {
        let n = self.count.max(1) as f64;
        let mean = self.sum_us / n;
        (self.sum_squares / n - mean * mean).max(0.0).sqrt() / 1e3
    }

    /// The time, in milliseconds, that a share `q` (0 to 1) did not exceed: the middle of its bucket.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let rank = ((self.count as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return (begins(i) + begins(i + 1)) as f64 / 2e3;
            }
        }
        0.0
    }

    /// (begin in milliseconds, events) of the buckets that have any: below 1 ms in steps of 0.1, above of 1.
    pub fn histogram(&self) -> Vec<(f64, u64)> {
        let mut rows: Vec<(f64, u64)> = Vec::new();
        for (i, &n) in self.buckets.iter().enumerate().filter(|(_, n)| **n > 0) {
            let begin = if i < FINE { (i / 10) as f64 / 10.0 } else { begins(i) as f64 / 1e3 };
            match rows.last_mut() {
                Some((last, sum)) if *last == begin => *sum += n,
                _ => rows.push((begin, n)),
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_times() {
        let mut times = Times::default();
        assert_eq!((times.average_ms(), times.quantile_ms(0.5), times.deviation_ms()), (0.0, 0.0, 0.0));
        for ms in [2, 4, 4, 4, 5, 5, 7, 9] {
            times.record(Duration::from_millis(ms));
        }
        assert_eq!(times.count(), 8);
        assert_eq!(times.average_ms(), 5.0);
        assert!((times.deviation_ms() - 2.0).abs() < 1e-9);
        assert_eq!(times.quantile_ms(0.5), 4.5, "the middle of 4 to 5 ms");
        assert_eq!(times.histogram(), [(2.0, 1), (4.0, 3), (5.0, 2), (7.0, 1), (9.0, 1)]);
    }

    #[test]
    fn merged_are_as_recorded_together() {
        let (mut a, mut b, mut both) = (Times::default(), Times::default(), Times::default());
        for us in [3, 12, 99, 105, 999, 1000, 1999, 5_000_000, 99_000_000] {
            let time = Duration::from_micros(us);
            if us % 2 == 0 { &mut a } else { &mut b }.record(time);
            both.record(time);
        }
        a.merge(&b);
        assert_eq!(a.histogram(), both.histogram());
        assert_eq!(a.count(), 9);
        let begins: Vec<f64> = both.histogram().iter().map(|h| h.0).collect();
        assert_eq!(begins, [0.0, 0.1, 0.9, 1.0, 5000.0, 10000.0]);
    }
}
