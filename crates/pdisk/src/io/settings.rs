//! What can be changed while the queues run, and whether waiting actively pays at the moment.

use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// The live settings of a node's queues.
pub(crate) struct Settings {
    coalesce_count: AtomicU32,
    coalesce_us: AtomicU32,
    depth: AtomicU32,
    spin_us: AtomicU32,
    /// Queues that wait actively now, and how many may.
    spinning: AtomicUsize,
    spinning_max: usize,
}

impl Settings {
    pub fn new(count: u32, us: u32, depth: u32, spin_us: u32) -> Settings {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        Settings {
            coalesce_count: AtomicU32::new(count),
            coalesce_us: AtomicU32::new(us),
            depth: AtomicU32::new(depth),
            spin_us: AtomicU32::new(spin_us),
            spinning: AtomicUsize::new(0),
            // Half of the CPUs stay for those who bring the work; on a single one nobody waits actively.
            spinning_max: cpus / 2,
        }
    }
    pub fn set_coalesce(&self, count: u32, us: u32) {
        self.coalesce_count.store(count, Ordering::Relaxed);
        self.coalesce_us.store(us, Ordering::Relaxed);
    }
    pub fn set_depth(&self, depth: u32) {
        self.depth.store(depth, Ordering::Relaxed);
    }
    pub fn set_spin(&self, us: u32) {
        self.spin_us.store(us, Ordering::Relaxed);
    }
    /// Completions to gather, and for how long.
    pub fn coalesce(&self) -> (usize, Duration) {
        let us = self.coalesce_us.load(Ordering::Relaxed);
        (self.coalesce_count.load(Ordering::Relaxed) as usize, Duration::from_micros(us.into()))
    }
    /// Requests in flight on one queue.
    pub fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed) as usize
    }
    /// Longest active wait. Zero: none, also while completions are gathered, which is meant to save CPU.
    pub fn spin(&self) -> Duration {
        let gathers = self.coalesce_count.load(Ordering::Relaxed) > 1;
        let us = if gathers { 0 } else { self.spin_us.load(Ordering::Relaxed) };
        Duration::from_micros(us.into())
    }
    /// The right to wait actively, if not too many do.
    pub fn start_spinning(&self) -> bool {
        let one_more = |n| (n < self.spinning_max).then_some(n + 1);
        self.spinning.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
    pub fn stop_spinning(&self) {
        self.spinning.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often something happens on a queue: requests that come and completions, counted over a window.
pub(crate) struct Pace {
    since: Instant,
    events: u32,
    gap: Duration,
}

/// The window: short, so that an idle queue sleeps soon; long against the gaps that matter.
const WINDOW: Duration = Duration::from_micros(500);

impl Pace {
    pub fn new(now: Instant) -> Pace {
        Pace { since: now, events: 0, gap: Duration::MAX }
    }
    /// `events` more have happened up to `now`.
    pub fn add(&mut self, events: u32, now: Instant) {
        self.events += events;
        let time = now.saturating_duration_since(self.since);
        if time >= WINDOW {
            self.gap = time / self.events.max(1);
            (self.since, self.events) = (now, 0);
        }
    }
    /// Whether the next event is expected within `time`: waiting actively then costs less than being woken.
    pub fn expects_within(&self, time: Duration) -> bool {
        self.gap <= time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_pace_is_seen_and_forgotten() {
        let (start, us) = (Instant::now(), Duration::from_micros);
        let mut pace = Pace::new(start);
        assert!(!pace.expects_within(us(1_000_000)));
        for i in 1..200 {
            pace.add(2, start + us(20 * i));
        }
        assert!(pace.expects_within(us(10)) && !pace.expects_within(us(9)));
        pace.add(1, start + us(6000));
        assert!(!pace.expects_within(us(10)), "a long gap ends it at once");
    }

    #[test]
    fn only_so_many_wait_actively_and_none_while_completions_are_gathered() {
        let settings = Settings { spinning_max: 1, ..Settings::new(1, 0, 8, 20) };
        assert!(settings.start_spinning() && !settings.start_spinning());
        settings.stop_spinning();
        assert!(settings.start_spinning());
        assert_eq!(settings.spin(), Duration::from_micros(20));
        settings.set_coalesce(4, 50);
        assert_eq!((settings.spin(), settings.coalesce()), (Duration::ZERO, (4, Duration::from_micros(50))));
    }
}
