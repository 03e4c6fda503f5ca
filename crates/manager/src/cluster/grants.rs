//! Numbers of grants: each above all before, restarts of the manager included.

use base::Grant;

/// Grants numbered ahead of what is stored, so that a grant needs no commit.
const GRANTS_AHEAD: u64 = 4096;

/// Numbers of grants. Those up to `stored` may have been given before a restart.
#[derive(Debug)]
pub(super) struct Grants {
    last: Grant,
    stored: Grant,
}

impl Grants {
    pub fn new(stored: Grant) -> Grants {
        Grants { last: stored, stored }
    }
    pub fn next(&mut self) -> Grant {
        self.last.0 += 1;
        self.last
    }

    /// Whether the last number is not above what is stored.
    pub fn are_stored(&self) -> bool {
        self.last <= self.stored
    }

    /// What is to be stored before anybody hears of the last number, unless it is ahead of it already.
    pub fn number_ahead(&mut self) -> Option<Grant> {
        if self.last <= self.stored {
            return None;
        }
        self.stored = Grant(self.last.0 + GRANTS_AHEAD);
        Some(self.stored)
    }
}
