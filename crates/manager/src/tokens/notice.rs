//! What a session is to be told until it obeys.

use std::time::Duration;

/// A recall that was told and not obeyed is told again after this.
const RETELL: Duration = Duration::from_secs(2);

/// Something a session is to be told until it obeys.
#[derive(Debug, Clone)]
pub(super) struct Notice<T> {
    pub what: T,
    pub since: Duration,
    pub told: Option<Duration>,
}

impl<T> Notice<T> {
    pub fn new(what: T, since: Duration) -> Notice<T> {
        Notice { what, since, told: None }
    }

    /// Whether it is to be told now; notes that it is.
    pub fn tell(&mut self, now: Duration) -> bool {
        let due = self.told.is_none_or(|told| now >= told + RETELL);
        if due {
            self.told = Some(now);
        }
        due
    }
}
