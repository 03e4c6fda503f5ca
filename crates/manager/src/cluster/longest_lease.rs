//! The longest lease that may be out.

use std::time::Duration;

use crate::{
    keys::{self, LeaseRecord, ReadError},
    store::Read,
};

/// As long as a lease can be configured.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(300);

/// The longest lease that may still be out. It is stored before a longer one is given.
#[derive(Debug)]
pub(super) struct LongestLease {
    pub stored: Duration,
    pub longest: Duration,
    /// Then all that are out are as long as the present one.
    pub falls: Duration,
}

impl LongestLease {
    pub fn load(from: &dyn Read, lease: Duration, now: Duration) -> Result<LongestLease, ReadError> {
        let record: LeaseRecord = keys::read(from, &keys::lease_key())?.unwrap_or_default();
        let stored = Duration::from_micros(record.longest_us);
        let longest = stored.max(lease);
        Ok(LongestLease { stored, longest, falls: now + longest })
    }

    /// How much longer than `lease` it is.
    pub fn beyond(&self, lease: Duration) -> Duration {
        self.longest.saturating_sub(lease)
    }
}
