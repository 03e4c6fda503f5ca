//! Until when a manager may answer, where another one could take its place: every answer is of a time at which it led.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::presence::boot_time;

/// A time on this machine's clock that does not stand while it sleeps. Copies share it.
#[derive(Clone, Default)]
pub struct Confirmed(Arc<AtomicU64>);

impl Confirmed {
    /// Whether it lies ahead.
    pub fn holds(&self) -> bool {
        boot_time().as_micros() as u64 <= self.0.load(Ordering::Acquire)
    }

    /// It may answer until then, time since boot.
    pub fn until(&self, time: Duration) {
        self.0.store(time.as_micros() as u64, Ordering::Release);
    }

    /// It may not.
    pub fn end(&self) {
        self.until(Duration::ZERO);
    }
}
