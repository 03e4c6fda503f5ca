//! How fast rebuild and scrub may go: they yield to clients, and keep to a rate.
//!
//! *Yielding.* While a client was served within [`BUSY`], whoever makes a strip works
//! `rebuild_aggressiveness` percent of the time and pauses for the rest. *Rate.* What is read from and
//! written to one pdisk for rebuild keeps to `rebuild_rate`, both together; 0 is no limit.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use base::{PdiskId, tunables::Tunables};
use parking_lot::Mutex;

/// A client counts as active for this long after a request of it.
const BUSY: Duration = Duration::from_millis(100);
/// Latency is shown for this long after the last request.
const RECENT: Duration = Duration::from_secs(5);
/// Longest pause in favour of clients after one strip.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Weight of one request in the mean of client latency: 1/16.
const MEAN_SHIFT: u32 = 4;

/// Permits for the stripes that are worked on for one pdisk at a time; see [`Pace::share`].
pub const PERMITS: u32 = 1024;
/// Blocks of stripes that are worked on for one pdisk at a time, whatever the rate, bytes.
const FLIGHT_MAX: u64 = 64 << 20;

/// See the module.
pub struct Pace {
    started: Instant,
    /// Microseconds from the start to the last client request.
    client_at: AtomicU64,
    /// Mean time that client requests took here, microseconds.
    client_us: AtomicU64,
    aggressiveness: AtomicU64,
    /// Bytes a second, 0 for no limit.
    rate: AtomicU64,
    /// Seconds, 0 for never.
    scrub: AtomicU64,
    /// When the bytes that were let through so far are paid for.
    paid_at: Mutex<HashMap<PdiskId, Instant>>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new()
    }
}

impl Pace {
    /// By the defaults.
    pub fn new() -> Pace {
        let pace = Pace {
            started: Instant::now(),
            client_at: AtomicU64::new(0),
            client_us: AtomicU64::new(0),
            aggressiveness: AtomicU64::new(100),
            rate: AtomicU64::new(0),
            scrub: AtomicU64::new(0),
            paid_at: Mutex::default(),
        };
        pace.set(&Tunables::default());
        pace
    }

    /// Keeps to these tunables of the cluster from now on.
    pub fn set(&self, tunables: &Tunables) {
        self.aggressiveness.store(tunables.rebuild_aggressiveness().into(), Ordering::Relaxed);
        self.scrub.store(tunables.scrub_interval().as_secs(), Ordering::Relaxed);
        self.rate.store(u64::from(tunables.rebuild_rate()) * 1_000_000, Ordering::Relaxed);
    }

    /// How long scrub takes to go over everything once; none if it is not to.
    pub fn scrub_interval(&self) -> Option<Duration> {
        let seconds = self.scrub.load(Ordering::Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// A client's request that came at `received` is answered.
    pub fn client(&self, received: Instant) {
        let took = received.elapsed().as_micros() as u64;
        let at = (self.started.elapsed().as_micros() as u64).max(1); // 0: never
        self.client_at.store(at, Ordering::Relaxed);
        let mean = self.client_us.load(Ordering::Relaxed);
        let next = if mean == 0 { took } else { mean - (mean >> MEAN_SHIFT) + (took >> MEAN_SHIFT) };
        self.client_us.store(next, Ordering::Relaxed); // two at once: one of them is not counted
    }

    /// Mean time that client requests took here, microseconds; 0 while there are none.
    pub fn client_us(&self) -> u64 {
        let last = Duration::from_micros(self.client_at.load(Ordering::Relaxed));
        let recent = last > Duration::ZERO && self.started.elapsed().saturating_sub(last) < RECENT;
        if recent { self.client_us.load(Ordering::Relaxed) } else { 0 }
    }

    fn busy(&self) -> bool {
        let last = Duration::from_micros(self.client_at.load(Ordering::Relaxed));
        last > Duration::ZERO && self.started.elapsed().saturating_sub(last) < BUSY
    }

    /// A strip took this long to make: pauses as long as clients want it.
    pub async fn yield_to_clients(&self, worked: Duration) {
        let percent = self.aggressiveness.load(Ordering::Relaxed).clamp(1, 100) as u32;
        let until = Instant::now() + (worked * (100 - percent) / percent).min(PAUSE_MAX);
        while self.busy() && Instant::now() < until {
            tokio::time::sleep(BUSY.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }

    /// How many of [`PERMITS`] a stripe takes: `parallel` stripes are worked on at a time. Under a rate, more:
    /// each waits for its turn at several pdisks, and all of them are kept busy only if half a second's bytes are
    /// on their way (much more would wait for longer than a request is waited for).
    pub fn share(&self, block_size: u32, parallel: usize) -> u32 {
        let most = (PERMITS / u32::try_from(parallel).unwrap_or(PERMITS).max(1)).max(1);
        match self.rate.load(Ordering::Relaxed) / 2 {
            0 => most,
            half => {
                let share = u64::from(PERMITS) * u64::from(block_size) / half.min(FLIGHT_MAX);
                u32::try_from(share).unwrap_or(most).clamp(1, most)
            }
        }
    }

    /// Waits until `bytes` more may be read from or written to a pdisk for rebuild, at most until `until`.
    pub async fn take(&self, pdisk: PdiskId, bytes: u64, until: Instant) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 || bytes == 0 {
            return;
        }
        let now = Instant::now();
        let turn = {
            let mut paid = self.paid_at.lock();
            let at = paid.entry(pdisk).or_insert(now);
            let turn = (*at).max(now);
            *at = turn + Duration::from_micros(bytes.saturating_mul(1_000_000) / rate);
            turn
        };
        tokio::time::sleep_until(turn.min(until).into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rate_is_kept_and_none_costs_nothing() {
        let pace = Pace::new();
        let begun = Instant::now();
        let far = begun + Duration::from_secs(3600);
        pace.take(PdiskId(1), 1 << 40, far).await; // no limit: at once
        pace.rate.store(100_000_000, Ordering::Relaxed);
        for _ in 0..4 {
            pace.take(PdiskId(2), 5_000_000, far).await;
        }
        assert!(begun.elapsed() >= Duration::from_millis(150), "three times 5 MB at 100 MB/s were paid for");
        let paid = *pace.paid_at.lock().get(&PdiskId(2)).unwrap();
        assert!(paid >= begun + Duration::from_millis(200));
    }

    #[test]
    fn a_rate_lets_more_stripes_wait_within_bounds() {
        let pace = Pace::new();
        assert_eq!(pace.share(1 << 20, 4), PERMITS / 4);
        pace.rate.store(20_000_000, Ordering::Relaxed);
        assert_eq!(PERMITS / pace.share(1 << 20, 4), 9, "half a second at 20 MB/s");
        assert_eq!(pace.share(16 << 20, 4), PERMITS / 4);
        pace.rate.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(PERMITS / pace.share(1 << 20, 4), 64);
    }

    #[tokio::test]
    async fn nobody_waits_for_clients_that_are_not_there() {
        let pace = Pace::new();
        tokio::select! {
            biased;
            () = pace.yield_to_clients(Duration::from_secs(1000)) => {}
            () = std::future::ready(()) => panic!("it waits"),
        }
        assert_eq!(pace.client_us(), 0);
        // A thread that is stopped between the two sees it as long ago: not each time.
        let seen = (0..100).any(|_| {
            pace.client(Instant::now() - Duration::from_millis(1));
            pace.client_us() > 0
        });
        assert!(seen);
    }
}
