//! What counting and keeping history cost, by the CPU clock of the threads that do it: waiting for a CPU or a disk is none.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has taken.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What one thing took, and what the clock says where nothing was done, nanoseconds: to look at it takes much longer than what is
/// looked at.
#[derive(Clone, Copy, Default)]
pub(super) struct Sample {
    it: u64,
    nothing: u64,
}

/// Looks at the clock for one [`Sample`].
const LOOKS: u32 = 4;

/// Does it, and says what it took. The first look brings what a look needs into the caches: so the two spans differ by the thing alone.
pub(super) fn sample(mut clock: impl FnMut() -> Duration, does: impl FnOnce()) -> Sample {
    clock();
    let (begun, without) = (clock(), clock());
    does();
    let with = clock();
    let ns = |from: Duration, to: Duration| to.saturating_sub(from).as_nanos() as u64;
    Sample { it: ns(without, with), nothing: ns(begun, without) }
}

/// The newest samples.
#[derive(Default)]
pub(super) struct Samples(VecDeque<Sample>);

impl Samples {
    /// Their number, at most.
    const MAX: usize = 256;

    pub fn add(&mut self, samples: &[Sample]) {
        self.0.extend(samples);
        self.0.drain(..self.0.len().saturating_sub(Samples::MAX));
    }

    /// What so many of the things took, of which so many were samples. Of the samples the eighth that took longest and that which
    /// took least are left out, with it as with nothing: in some of them the machine did something else.
    pub fn cost(&self, things: u64, samples: u64) -> Duration {
        let middle = |of: fn(&Sample) -> u64| {
            let mut sorted: Vec<u64> = self.0.iter().map(of).collect();
            sorted.sort_unstable();
            let inner = &sorted[sorted.len() / 8..sorted.len() - sorted.len() / 8];
            inner.iter().sum::<u64>() as f64 / inner.len().max(1) as f64
        };
        let (it, nothing) = (middle(|s| s.it), middle(|s| s.nothing));
        let ns = (it - nothing).max(0.0) * things as f64 + nothing * f64::from(LOOKS) * samples as f64;
        Duration::from_nanos(ns as u64)
    }
}

static SPENT: AtomicU64 = AtomicU64::new(0);

/// Adds CPU time that was spent on keeping history elsewhere than in [`super::keep`]'s thread.
pub fn spend(time: Duration) {
    SPENT.fetch_add(time.as_nanos() as u64, Relaxed);
}

/// What was spent so since it was asked last.
pub(super) fn take_spent() -> Duration {
    Duration::from_nanos(SPENT.swap(0, Relaxed))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn neither_the_look_at_the_clock_nor_what_came_between_counts() {
        let now = Cell::new(Duration::ZERO);
        let goes_on = |ns| now.set(now.get() + Duration::from_nanos(ns));
        let mut samples = Samples::default();
        assert_eq!(samples.cost(0, 0), Duration::ZERO);
        for n in 0..2000 {
            // A look takes a microsecond, the first twice that. The thing takes 40 ns, or the machine does something else.
            let mut first = Some(1000);
            let clock = || {
                goes_on(1000 + first.take().unwrap_or(0));
                now.get()
            };
            let took = if n % 20 == 0 { 50_000_000 } else { 40 };
            samples.add(&[sample(clock, || goes_on(took))]);
        }
        assert_eq!(samples.0.len(), Samples::MAX);
        assert_eq!(samples.cost(1_000_000, 0), Duration::from_millis(40));
        assert_eq!(samples.cost(0, 1000), Duration::from_millis(4), "the looks themselves cost something");
    }

    #[test]
    fn time_in_which_the_thread_does_not_run_is_none() {
        const WAITED: Duration = Duration::from_millis(200);
        let mut samples = Samples::default();
        (0..3).for_each(|_| samples.add(&[sample(thread_cpu, || std::thread::sleep(WAITED))]));
        let counted = samples.cost(1, 0);
        assert!(counted < WAITED / 2, "{counted:?} of {WAITED:?}");
    }
}
