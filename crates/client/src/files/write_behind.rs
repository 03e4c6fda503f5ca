//! One inode's part of writing behind: when something is due, what is under way, and what failed.

use std::time::{Duration, Instant};

use crate::error::Errno;

/// Pause of background work on an inode after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// When something is due.
#[derive(Default)]
pub(crate) struct Due {
    /// Since when there is something to store.
    pub data_since: Option<Instant>,
    /// Since when there is something to commit.
    pub commit_since: Option<Instant>,
    /// Both without waiting for age (last close).
    pub soon: bool,
    /// A background write-out of this inode is under way.
    pub storing: bool,
}

impl Due {
    /// There is something to store.
    pub fn note_data(&mut self) {
        self.data_since.get_or_insert_with(Instant::now);
    }

    /// There is something to commit.
    pub fn note_commit(&mut self) {
        self.commit_since.get_or_insert_with(Instant::now);
    }

    /// Something is to be committed, but not before it is older.
    pub fn commit_later(&mut self) {
        self.commit_since = Some(Instant::now());
    }

    /// A background write-out has ended.
    pub fn stored(&mut self, dirty: bool) {
        self.storing = false;
        self.data_since = dirty.then(Instant::now);
    }

    /// There is nothing to store or commit.
    pub fn forget(&mut self) {
        (self.data_since, self.commit_since) = Default::default();
    }
}

/// Failures of writing and committing.
#[derive(Default)]
pub(crate) struct Failures {
    count: u64,
    last: Option<Errno>,
    /// After one: not before this time in the background.
    retry_at: Option<Instant>,
}

impl Failures {
    pub fn add(&mut self, error: Errno) {
        self.count += 1;
        self.last = Some(error);
        self.retry_at = Some(Instant::now() + RETRY);
    }

    /// Something succeeded: nothing needs to pause.
    pub fn over(&mut self) {
        self.retry_at = None;
    }

    /// Whether background work pauses.
    pub fn pause(&self) -> bool {
        self.retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last of them.
    pub fn last(&self) -> Errno {
        self.last.unwrap_or(Errno::EIO)
    }
}

/// Blocks being written.
#[derive(Default)]
pub(crate) struct Flushes {
    /// While above 0 none begins.
    held: u32,
    /// Being written now.
    in_flight: u32,
}

impl Flushes {
    /// No flush begins until [`Flushes::resume`].
    pub fn hold(&mut self) {
        self.held += 1;
    }

    pub fn resume(&mut self) {
        debug_assert!(self.held > 0, "nobody holds flushes");
        self.held -= 1;
    }

    pub fn are_held(&self) -> bool {
        self.held > 0
    }

    pub fn begin(&mut self) {
        debug_assert!(self.held == 0, "a flush begins while they are held");
        self.in_flight += 1;
    }

    pub fn end(&mut self) {
        debug_assert!(self.in_flight > 0, "no flush is in flight");
        self.in_flight -= 1;
    }

    pub fn in_flight(&self) -> bool {
        self.in_flight > 0
    }
}
