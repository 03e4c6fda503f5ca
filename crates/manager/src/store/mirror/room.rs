//! Room for a copy in a directory: one that does not fit is removed, and none is begun before there is more room than that had. So a full
//! disk is not filled again and again.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use super::super::{
    StoreError,
    files::{journal_path, mark_path, refused},
};

/// A disk with less room is full.
const FULL: u64 = 1 << 20;
/// More than a copy had that did not fit.
const MORE: u64 = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    dir: PathBuf,
    /// A copy did not fit into so much.
    too_little: Mutex<Option<u64>>,
}

/// Where the files of a new copy begin, beside those of the one before.
pub(super) fn new_table(dir: &Path) -> PathBuf {
    dir.join("new.redb")
}

impl Room {
    /// In this directory, which need not be there yet.
    pub(super) fn of(dir: &Path) -> Room {
        Room { dir: dir.to_owned(), too_little: Mutex::default() }
    }

    fn left(&self) -> Result<u64, StoreError> {
        let stat = rustix::fs::statvfs(&self.dir).map_err(|error| refused(&self.dir, &error.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Whether a copy can be made here.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        // A disk that is not mounted has no directory; one is not made in its place.
        fs::read_dir(&self.dir).map_err(|error| refused(&self.dir, &error))?;
        let left = self.left()?;
        match *self.too_little.lock() {
            Some(had) if left < had.saturating_add(MORE) => Err(StoreError::Engine {
                action: "make a copy of the",
                reason: format!(
                    "the disk of {} is full: {} MiB are free, and a copy did not fit into {} MiB",
                    self.dir.display(),
                    left >> 20,
                    had >> 20
                ),
            }),
            _ => Ok(()),
        }
    }

    /// What an interrupted copy left is removed; where the files of a new one begin.
    pub(super) fn clear(&self) -> Result<PathBuf, StoreError> {
        let new = new_table(&self.dir);
        for file in [new.clone(), journal_path(&new), mark_path(&new)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&file, &error)),
                _ => {}
            }
        }
        Ok(new)
    }

    /// Making a copy failed; `open`: what it has open. What was made takes no room any more.
    pub(super) fn failed<T>(&self, open: T, error: StoreError) -> StoreError {
        let full = self.left().is_ok_and(|left| left < FULL);
        drop(open);
        let cleared = self.clear().and_then(|_| self.left());
        *self.too_little.lock() = cleared.ok().filter(|_| full);
        error
    }

    /// A copy was made.
    pub(super) fn sufficed(&self) {
        *self.too_little.lock() = None;
    }
}
