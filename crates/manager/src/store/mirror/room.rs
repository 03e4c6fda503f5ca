//! Room for a copy in a directory: one that does not fit is removed, and none is begun before there is more room than that had. So a full
//! disk is not filled again and again. A quota shows nowhere but in what it refuses: a file of that size is made, and removed.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};

use super::super::{
    StoreError,
    files::{journal_path, mark_path, refused},
};

/// A disk with less room is full.
const FULL: u64 = 1 << 20;
/// More than a copy had that did not fit.
const MORE: u64 = 8 << 20;
/// Bytes of what a file is said to take.
const SECTOR: u64 = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    dir: PathBuf,
    /// A copy did not fit into so much.
    too_little: Mutex<Option<u64>>,
    /// In tests: a quota leaves so much.
    #[cfg(test)]
    quota: std::sync::atomic::AtomicU64,
}

/// Where the files of a new copy begin, beside those of the one before.
pub(super) fn new_table(dir: &Path) -> PathBuf {
    dir.join("new.redb")
}

/// By which it is tried how much fits in.
fn room_file(dir: &Path) -> PathBuf {
    new_table(dir).with_extension("room")
}

/// A new copy's files, and what may be left of a trial.
fn new_files(dir: &Path) -> [PathBuf; 4] {
    let new = new_table(dir);
    [journal_path(&new), mark_path(&new), room_file(dir), new]
}

/// Whether an error says that there is no room.
fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl Room {
    /// In this directory, which need not be there yet.
    pub(super) fn of(dir: &Path) -> Room {
        Room {
            dir: dir.to_owned(),
            too_little: Mutex::default(),
            #[cfg(test)]
            quota: u64::MAX.into(),
        }
    }

    fn left(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Whether so much more fits in.
    fn fits(&self, bytes: u64) -> io::Result<bool> {
        // Others would find no room while the file is there.
        if self.left()? < bytes {
            return Ok(false);
        }
        let path = room_file(&self.dir);
        let taken = self.take(&path, bytes);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match taken {
            Err(error) if is_no_room(&error) => Ok(false),
            // There it cannot be tried.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(true),
            taken => taken.map(|()| true),
        }
    }

    fn take(&self, path: &Path, bytes: u64) -> io::Result<()> {
        #[cfg(test)]
        if bytes > self.quota.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EDQUOT));
        }
        let file = fs::File::create(path)?;
        Ok(fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
    }

    /// Whether a copy can be made here.
    pub(super) fn ready(&self) -> Result<(), StoreError> {
        // A disk that is not mounted has no directory; one is not made in its place.
        fs::read_dir(&self.dir).map_err(|error| refused(&self.dir, &error))?;
        let Some(had) = *self.too_little.lock() else { return Ok(()) };
        let failed = |error: io::Error| refused(&self.dir, &error);
        if self.fits(had.saturating_add(MORE)).map_err(failed)? {
            return Ok(());
        }
        Err(StoreError::Engine {
            action: "make a copy of the",
            reason: format!(
                "the disk of {} is full: {} MiB are free (a quota may leave less), and a copy did not fit into {} MiB",
                self.dir.display(),
                self.left().map_err(failed)? >> 20,
                had >> 20
            ),
        })
    }

    /// What an interrupted copy left is removed; where the files of a new one begin.
    pub(super) fn clear(&self) -> Result<PathBuf, StoreError> {
        for file in new_files(&self.dir) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(refused(&file, &error)),
                _ => {}
            }
        }
        Ok(new_table(&self.dir))
    }

    /// Making a copy failed; `open`: what it has open. What was made takes no room any more.
    pub(super) fn failed<T>(&self, open: T, error: StoreError) -> StoreError {
        let full = self.fits(FULL).is_ok_and(|fits| !fits);
        let taken = new_files(&self.dir).map(|file| fs::metadata(file).map_or(0, |file| file.blocks()));
        drop(open);
        let cleared = self.clear().is_ok();
        let had = taken.iter().sum::<u64>() * SECTOR + FULL;
        *self.too_little.lock() = (full && cleared).then_some(had);
        error
    }

    /// A copy was made.
    pub(super) fn sufficed(&self) {
        *self.too_little.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_copy_that_a_quota_refused_is_begun_when_that_leaves_more() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::of(dir.path());
        let error = |errno| refused(dir.path(), &io::Error::from_raw_os_error(errno));
        let made = |bytes| fs::write(room.clear().unwrap(), vec![1; bytes]).unwrap();
        made(3 << 20);
        room.quota.store(FULL / 2, Relaxed);
        room.failed((), error(libc::EDQUOT));
        assert!(!new_table(dir.path()).exists());
        for left in [FULL / 2, (3 << 20) + MORE] {
            room.quota.store(left, Relaxed);
            let error = room.ready().unwrap_err().to_string();
            assert!(error.contains("is full: ") && error.contains("did not fit into 4 MiB"), "{error}");
        }
        room.quota.store((3 << 20) + FULL + MORE, Relaxed);
        room.ready().unwrap();
        // What fails for another reason is no matter of room.
        room.sufficed();
        made(3 << 20);
        room.failed((), error(libc::EIO));
        room.quota.store(0, Relaxed);
        room.ready().unwrap();
        // Who was killed while he tried has left that file.
        fs::write(room_file(dir.path()), [1]).unwrap();
        room.clear().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
