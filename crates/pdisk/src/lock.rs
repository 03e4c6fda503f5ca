//! Who has a pdisk: locks (`flock`) on its directory, and on each of the files that are written to while it is open.
//!
//! The directory's lock is on a file of its own, and goes with the process. What the process has begun need not: the requests of a
//! ring go on when it has been killed, and such a write would land on units that belong to another strip by then. But it holds the
//! open file that it goes to, and by that the lock on it, until it has ended. So an open takes these locks as well, before it reads anything,
//! and waits for them for some time.

use std::{
    fs::{File, OpenOptions as FileOptions, TryLockError},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, Instant},
};

use crate::{error::PdiskError, io::IoFile};

pub(crate) const LOCK: &str = "lock";
/// Between two looks whether what is waited for has ended.
const LOOK: Duration = Duration::from_millis(10);

/// The lock on a pdisk's directory, held.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a program that another thread forks just now has it too, until its exec.
        let _ = self.0.unlock();
    }
}

/// Takes the directory's lock, or says at once that another has it.
pub(crate) fn take_lock(dir: &Path) -> Result<Lock, PdiskError> {
    let path = dir.join(LOCK);
    let file = FileOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(PdiskError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(PdiskError::Locked { dir: dir.into() }),
        Err(TryLockError::Error(e)) => Err(PdiskError::io("lock", &path)(e)),
    }
}

/// Takes the lock on an open file that will be written to, and waits for it until `until`.
pub(crate) fn take_file(file: &IoFile, until: Instant) -> Result<(), PdiskError> {
    let mut told = false;
    loop {
        match file.file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(PdiskError::io("lock", &file.path)(e)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(PdiskError::LeftUnderWay { file: file.path.clone() });
            }
            Err(TryLockError::WouldBlock) => {}
        }
        if !std::mem::replace(&mut told, true) {
            tracing::info!(file = %file.path.display(), "what a killed process has begun there is waited for");
        }
        std::thread::sleep(LOOK);
    }
}

/// Gives that lock up. A ring may have the file in its table for another moment, so closing it is not enough here either.
pub(crate) fn release_file(file: &IoFile) {
    let _ = file.file.unlock();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forked program has a copy of every descriptor for a moment.
    #[test]
    fn a_lock_that_is_given_up_is_free_though_a_copy_of_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let lock = take_lock(dir.path()).unwrap();
        let _forked = lock.0.try_clone().unwrap();
        assert!(matches!(take_lock(dir.path()), Err(PdiskError::Locked { .. })));
        drop(lock);
        take_lock(dir.path()).unwrap();
    }
}
