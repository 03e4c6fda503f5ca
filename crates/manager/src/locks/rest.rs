//! Is anything about to happen by itself?

use super::Locks;

impl Locks {
    /// Whether nothing comes of time alone.
    pub fn rest(&self) -> bool {
        self.busy.is_empty() && self.stalled.is_none() && self.members.values().all(|member| !member.ending)
    }
}
