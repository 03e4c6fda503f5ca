//! How late a read may be before parity replaces it: a bound that follows measured latency, smoothed as
//! TCP smooths its retransmission timeout (RFC 6298), between a least and a greatest value.

use std::time::Duration;

use parking_lot::Mutex;

pub(crate) struct Latency {
    min: Duration,
    max: Duration,
    smoothed: Mutex<Option<Smoothed>>,
}

#[derive(Clone, Copy)]
struct Smoothed {
    mean: f64,
    deviation: f64,
}

impl Latency {
    pub fn new(min: Duration, max: Duration) -> Latency {
        Latency { min, max: max.max(min), smoothed: Mutex::new(None) }
    }

    /// Takes note of one answered read.
    pub fn record(&self, took: Duration) {
        let sample = took.as_secs_f64();
        let mut smoothed = self.smoothed.lock();
        *smoothed = Some(match *smoothed {
            None => Smoothed { mean: sample, deviation: sample / 2.0 },
            Some(s) => Smoothed {
                deviation: s.deviation * 0.75 + (sample - s.mean).abs() * 0.25,
                mean: s.mean * 0.875 + sample * 0.125,
            },
        });
    }

    /// The bound now.
    pub fn bound(&self) -> Duration {
        let smoothed = *self.smoothed.lock();
        let measured = smoothed.map_or(0.0, |s| (s.mean + 8.0 * s.deviation).min(3600.0));
        Duration::from_secs_f64(measured).clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_latency_within_its_limits() {
        let ms = Duration::from_millis;
        let l = Latency::new(ms(10), ms(500));
        assert_eq!(l.bound(), ms(10));
        (0..100).for_each(|_| l.record(ms(40)));
        assert!(l.bound() >= ms(39) && l.bound() < ms(60), "{:?}", l.bound());
        (0..10).for_each(|_| l.record(ms(4000)));
        assert_eq!(l.bound(), ms(500));
    }
}
