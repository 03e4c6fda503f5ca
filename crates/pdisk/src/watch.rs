//! The watch over commits: a disk that hangs is told of while it hangs.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Since when a commit is under way. There is nothing else to do than to wait, for the kernel owns the buffers.
#[derive(Default)]
pub(crate) struct CommitWatch(Mutex<Option<(Instant, Duration)>>);

/// Ends the watch of one commit.
pub(crate) struct Watched<'a>(&'a CommitWatch);

const SLOW: Duration = Duration::from_secs(10);

impl CommitWatch {
    pub fn start(&self, now: Instant) -> Watched<'_> {
        *self.0.lock() = Some((now, SLOW));
        Watched(self)
    }

    /// Warns every [`SLOW`] of a commit that does not end.
    pub fn look(&self, dir: &Path) {
        if let Some((since, next)) = &mut *self.0.lock()
            && since.elapsed() >= *next
        {
            *next += SLOW;
            tracing::warn!(dir = %dir.display(), seconds = since.elapsed().as_secs(), "disk I/O is outstanding");
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}
