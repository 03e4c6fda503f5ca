//! What counting and keeping history cost, by the CPU clock of the threads that do it: waiting for a CPU or a disk is none.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has taken.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What looking at the clock twice takes: it is in every sample.
static LOOKING: LazyLock<Duration> = LazyLock::new(|| {
    let pair = |_| {
        let begun = thread_cpu();
        thread_cpu() - begun
    };
    (0..64).map(pair).min().unwrap_or_default()
});

/// CPU time since `begun`, of this thread, without looking at the clock.
pub(super) fn since(begun: Duration) -> Duration {
    (thread_cpu() - begun).saturating_sub(*LOOKING)
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
