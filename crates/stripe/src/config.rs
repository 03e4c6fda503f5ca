//! Bounds and times of stripe work.

use std::time::Duration;

/// Bounds and times of stripe work.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// An operation without progress for this long fails.
    pub deadline: Duration,
    /// One request is waited for this long, then sent again.
    pub attempt: Duration,
    /// A pdisk that has not answered a write for this long is reported to the manager as silent.
    pub silent_after: Duration,
    /// Pause before a refused or failed request is sent again.
    pub retry_pause: Duration,
    /// A read that is later than this, at least, is replaced by parity; the bound in use follows from
    /// measured latency.
    pub hedge_min: Duration,
    /// The bound is never above this.
    pub hedge_max: Duration,
    /// Complete versions are adopted this often.
    pub adopt_interval: Duration,
    /// Or when this many stripes wait for it.
    pub adopt_batch: usize,
    /// Writes wait while this many stripes are complete and not adopted.
    pub adopt_stripes_max: usize,
    /// Stripes that resolution works on at a time.
    pub resolve_parallel: usize,
}

impl Default for IoConfig {
    fn default() -> Self {
        IoConfig {
            deadline: Duration::from_secs(60),
            attempt: Duration::from_secs(10),
            silent_after: Duration::from_secs(3),
            retry_pause: Duration::from_millis(50),
            hedge_min: Duration::from_millis(100),
            hedge_max: Duration::from_secs(2),
            adopt_interval: Duration::from_millis(50),
            adopt_batch: 256,
            adopt_stripes_max: 16384,
            resolve_parallel: 32,
        }
    }
}
