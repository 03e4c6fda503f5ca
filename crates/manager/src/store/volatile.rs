//! A medium that loses power, for tests: what was written is kept apart until it is flushed.
//!
//! SIGKILL leaves the page cache alone, so it is no power cut; this is one. At the cut every write since
//! the last flush survives or not, each for itself.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::StorageBackend;

use super::journal::Medium;

#[derive(Debug, Default)]
struct State {
    /// What reads see.
    seen: Vec<u8>,
    /// What has been flushed.
    flushed: Vec<u8>,
    /// Written since.
    pending: Vec<(u64, Vec<u8>)>,
    /// Flushes fail from now on.
    broken: bool,
}

/// The medium. Clones are the same medium.
#[derive(Debug, Clone)]
pub struct Volatile {
    state: Arc<Mutex<State>>,
    /// With false, flushing does nothing: the fault that tests must find.
    honest: bool,
}

impl Volatile {
    /// Empty.
    pub fn new(honest: bool) -> Volatile {
        Volatile { state: Arc::default(), honest }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on every flush fails.
    pub fn break_down(&self) {
        self.state().broken = true;
    }

    /// What is left after a power cut now: `survives` decides for each unflushed write.
    pub fn power_cut(&self, mut survives: impl FnMut() -> bool) -> Volatile {
        let state = self.state();
        let mut left = state.flushed.clone();
        left.resize(state.seen.len(), 0);
        for (offset, bytes) in &state.pending {
            if survives() {
                let start = *offset as usize;
                let end = (start + bytes.len()).min(left.len());
                left[start..end].copy_from_slice(&bytes[..end - start]);
            }
        }
        let state = State { seen: left.clone(), flushed: left, ..State::default() };
        Volatile { state: Arc::new(Mutex::new(state)), honest: true }
    }
}

impl StorageBackend for Volatile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().seen.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let start = offset as usize;
        let bytes = state.seen.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state().seen.resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.broken {
            return Err(io::Error::other("broken down"));
        }
        if self.honest {
            state.flushed = state.seen.clone();
            state.pending.clear();
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let start = offset as usize;
        let end = start + data.len();
        if end > state.seen.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.seen[start..end].copy_from_slice(data);
        state.pending.push((offset, data.to_vec()));
        Ok(())
    }
}

impl Medium for Volatile {
    fn size(&self) -> io::Result<u64> {
        StorageBackend::len(self)
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        StorageBackend::read(self, offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        StorageBackend::write(self, offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
