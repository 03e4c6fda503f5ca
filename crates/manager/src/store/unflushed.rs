//! A file that loses power, for tests on a living manager: what it writes is kept in its memory until it is flushed, but for
//! some sectors that reach the file before, as with the cache of a disk. So SIGKILL, which leaves the system's page cache alone,
//! is a power cut. (Within one process, and exactly: `volatile`.)

use std::{collections::BTreeMap, io, ops::Bound};

use parking_lot::{Mutex, MutexGuard};
use redb::{BackendError, StorageBackend, backends::FileBackend};

use super::medium::Medium;

/// What a disk writes whole or not at all, bytes.
const SECTOR: u64 = 512;

#[derive(Debug)]
struct State {
    /// Sectors that have not reached the file, as they are read. The last of a file may be short.
    held: BTreeMap<u64, Vec<u8>>,
    random: u64,
}

impl State {
    /// The next number of a generator (SplitMix64).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Unflushed {
    file: FileBackend,
    state: Mutex<State>,
}

impl Unflushed {
    /// Over a file; `seed` says what reaches it early.
    pub fn new(file: FileBackend, seed: u64) -> Unflushed {
        Unflushed { file, state: Mutex::new(State { held: BTreeMap::new(), random: seed }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl StorageBackend for Unflushed {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        self.file.read(offset, out)?;
        let end = offset + out.len() as u64;
        for (sector, bytes) in state.held.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let at = sector * SECTOR;
            let (from, to) = (at.max(offset), end.min(at + bytes.len() as u64));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.held.retain(|sector, bytes| {
            bytes.truncate(len.saturating_sub(sector * SECTOR) as usize);
            !bytes.is_empty()
        });
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.state();
        // Not flushed there: the machine does not lose power.
        while let Some((sector, bytes)) = state.held.first_key_value() {
            self.file.write(sector * SECTOR, bytes)?;
            state.held.pop_first();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let state = &mut *self.state();
        let len = self.file.len()?;
        let end = offset + data.len() as u64;
        if end > len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // All of it, none of it, or some sectors.
        let (whole, torn) = (state.random().is_multiple_of(3), state.random().is_multiple_of(2));
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let at = sector * SECTOR;
            let mut bytes = vec![0; SECTOR.min(len - at) as usize];
            let (from, to) = (at.max(offset), end.min(at + bytes.len() as u64));
            if to - from < bytes.len() as u64 {
                self.file.read(at, &mut bytes)?;
                let held = state.held.get(&sector).map(Vec::as_slice).unwrap_or_default();
                bytes[..held.len()].copy_from_slice(held);
            }
            bytes[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            if whole || torn && state.random().is_multiple_of(2) {
                self.file.write(at, &bytes)?;
                state.held.remove(&sector);
            } else {
                state.held.insert(sector, bytes);
            }
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

impl Medium for Unflushed {
    fn size(&self) -> io::Result<u64> {
        self.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written_and_the_file_has_it_after_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let medium = Unflushed::new(FileBackend::new(file.unwrap()).unwrap(), 7);
        let mut model = vec![0; 5_000];
        medium.set_len(5_000).unwrap();
        let mut differs = 0;
        for i in 0..500u64 {
            let len = 1 + (i * 37) % 1_300;
            let at = (i * 911) % (5_000 - len);
            let bytes = vec![i as u8 | 1; len as usize];
            medium.write(at, &bytes).unwrap();
            model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            let mut read = vec![0; model.len()];
            medium.read(0, &mut read).unwrap();
            assert_eq!(read, model);
            differs += u32::from(std::fs::read(&path).unwrap() != model);
            if i % 50 == 49 {
                medium.sync_data().unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), model);
            }
            if i % 100 == 99 {
                // What is cut off comes back as zeros.
                medium.set_len(1_000).unwrap();
                medium.set_len(5_000).unwrap();
                model[1_000..].fill(0);
            }
        }
        assert!(differs > 100, "{differs}");
    }
}
