//! `maxTcpConnsPerNodeConn = auto`: the number of connections found by measuring. Decisions only.
//!
//! While a group is busy without a break its rate is measured over a few windows; then the number is doubled,
//! and kept where that carries clearly more, else taken back. Where doubling did not help halving is tried
//! once: fewer connections that carry as much are better. Then it rests, and tries again later.

use std::time::{Duration, Instant};

/// The number to begin with.
pub(crate) const FIRST: u8 = 2;
/// Busy windows measured for each number, after one in which the change settles.
const WINDOWS: u32 = 3;
/// More is kept if it carries this much more.
const GAIN: f64 = 1.08;
/// Fewer are kept if they carry no less than this.
const LOSS: f64 = 0.97;
/// Rest between two searches.
const REST: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// The number in use is measured before others are tried.
    Base,
    /// Twice the number that carried `rate`.
    Up {
        rate: f64,
        doubled: bool,
    },
    /// Half of it.
    Down {
        rate: f64,
    },
    Rest {
        until: Instant,
    },
}

pub(crate) struct Auto {
    count: u8,
    phase: Phase,
    /// Windows seen with this number; the first only settles.
    windows: u32,
    sum: f64,
}

impl Auto {
    pub(crate) fn new() -> Auto {
        Auto { count: FIRST, phase: Phase::Base, windows: 0, sum: 0.0 }
    }

    /// One window of a group: its rate, and whether it was busy all the time. `stands`: the connections that
    /// are there are those asked for. Returns the number to have from now on, up to `limit`.
    pub(crate) fn window(&mut self, now: Instant, busy: bool, stands: bool, rate: f64, limit: u8) -> u8 {
        self.count = self.count.clamp(1, limit.max(1));
        if let Phase::Rest { until } = self.phase {
            if now >= until {
                self.go(self.count, Phase::Base);
            }
            return self.count;
        }
        if !busy || !stands {
            // A pause makes windows that cannot be compared.
            (self.windows, self.sum) = (0, 0.0);
            return self.count;
        }
        if self.windows > 0 {
            self.sum += rate;
        }
        self.windows += 1;
        if self.windows <= WINDOWS {
            return self.count;
        }
        let mean = self.sum / f64::from(WINDOWS);
        let up = self.count.saturating_mul(2).min(limit.max(1));
        match self.phase {
            Phase::Base if up > self.count => self.go(up, Phase::Up { rate: mean, doubled: false }),
            Phase::Base if self.count > 1 => self.go(self.count / 2, Phase::Down { rate: mean }),
            Phase::Up { rate, .. } if mean >= rate * GAIN && up > self.count => {
                self.go(up, Phase::Up { rate: mean, doubled: true });
            }
            Phase::Up { rate, .. } if mean >= rate * GAIN => self.rest(self.count, now),
            Phase::Up { rate, doubled: false } if self.count > 2 => {
                self.go(self.count.div_ceil(4), Phase::Down { rate: rate.max(mean) });
            }
            Phase::Up { .. } => self.rest(self.count.div_ceil(2), now),
            Phase::Down { rate } if mean >= rate * LOSS => self.rest(self.count, now),
            Phase::Down { .. } => self.rest((self.count * 2).min(limit.max(1)), now),
            Phase::Base | Phase::Rest { .. } => self.rest(self.count, now),
        }
        self.count
    }

    fn go(&mut self, count: u8, phase: Phase) {
        (self.count, self.phase, self.windows, self.sum) = (count, phase, 0, 0.0);
    }

    fn rest(&mut self, count: u8, now: Instant) {
        self.go(count, Phase::Rest { until: now + REST });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs until it rests; the number found.
    fn find(limit: u8, rate: impl Fn(u8) -> f64) -> u8 {
        let (mut auto, mut now) = (Auto::new(), Instant::now());
        let mut count = FIRST.min(limit);
        for _ in 0..200 {
            now += Duration::from_secs(1);
            count = auto.window(now, true, true, rate(count), limit);
            if matches!(auto.phase, Phase::Rest { .. }) {
                return count;
            }
        }
        panic!("never settles");
    }

    #[test]
    fn it_finds_as_many_as_carry_more_and_no_more() {
        assert_eq!(find(16, |n| f64::from(n.min(4)) * 10.0), 4, "four links");
        assert_eq!(find(16, |n| f64::from(n) * 10.0), 16, "more is always better");
        assert_eq!(find(3, |n| f64::from(n) * 10.0), 3, "the limit");
        assert_eq!(find(16, |_| 10.0), 1, "one link");
        assert_eq!(find(16, |n| f64::from(n.min(2)) * 10.0), 2, "two links");
        assert_eq!(find(1, |_| 10.0), 1);
    }

    #[test]
    fn a_pause_begins_the_measurement_anew_and_rest_ends() {
        let (mut auto, mut now) = (Auto::new(), Instant::now());
        for i in 0..50 {
            now += Duration::from_secs(1);
            assert_eq!(auto.window(now, i % 2 == 0, true, 10.0, 16), FIRST);
        }
        let mut numbers = Vec::new();
        for _ in 0..700 {
            now += Duration::from_secs(1);
            numbers.push(auto.window(now, true, true, 10.0, 16));
        }
        let searches = numbers.windows(2).filter(|w| w[0] < w[1]).count();
        assert!((2..6).contains(&searches), "{searches}");
    }
}
