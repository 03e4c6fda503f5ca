//! How long loads of read-ahead take, and how many streams share it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A stream counts as active for one to two of these.
const EPOCH: Duration = Duration::from_secs(1);
/// A load is taken to last at least this long: windows do not shrink below what hides a hiccup.
pub(crate) const LATENCY_MIN: Duration = Duration::from_millis(5);

/// How long loads take, and how many streams share what may be ahead.
#[derive(Default)]
pub(crate) struct LoadMeter(Mutex<Meter>);

#[derive(Default)]
struct Meter {
    latency: Duration,
    epoch: Option<Instant>,
    /// Handles with a stream in this epoch and the one before.
    active: [u32; 2],
    number: u64,
}

impl LoadMeter {
    /// A load of read-ahead took this long.
    pub fn took(&self, time: Duration) {
        let mut meter = self.0.lock();
        meter.latency = if meter.latency.is_zero() { time } else { (meter.latency * 7 + time) / 8 };
    }

    /// A handle streams that did so last in epoch `seen`; returns the epoch now, the streams that share and
    /// the time that a load takes.
    pub fn share(&self, seen: u64, now: Instant) -> (u64, u32, Duration) {
        let mut meter = self.0.lock();
        let began = *meter.epoch.get_or_insert(now);
        let age = now.saturating_duration_since(began);
        if age >= EPOCH {
            let last = if age < 2 * EPOCH { meter.active[0] } else { 0 };
            meter.active = [0, last];
            meter.epoch = Some(now);
            meter.number += 1;
        }
        if seen != meter.number + 1 {
            meter.active[0] += 1;
        }
        let sharers = meter.active[0].max(meter.active[1]);
        (meter.number + 1, sharers, meter.latency.max(LATENCY_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_until_they_are_quiet() {
        let meter = LoadMeter::default();
        let start = Instant::now();
        let (a, one, _) = meter.share(0, start);
        let (b, two, _) = meter.share(0, start);
        assert_eq!((one, two, meter.share(a, start).1), (1, 2, 2));
        // One of them goes on: the other counts for a while, then no more.
        let (a, still, _) = meter.share(a, start + EPOCH);
        assert_eq!(still, 2);
        assert_eq!(meter.share(a, start + EPOCH * 2).1, 1);
        assert_ne!(a, b);
    }

    #[test]
    fn latency_is_an_average_with_a_floor() {
        let meter = LoadMeter::default();
        assert_eq!(meter.share(0, Instant::now()).2, LATENCY_MIN);
        (0..100).for_each(|_| meter.took(Duration::from_millis(40)));
        assert!(meter.share(0, Instant::now()).2 > Duration::from_millis(30));
    }
}
