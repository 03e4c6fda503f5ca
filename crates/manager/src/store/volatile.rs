//! A medium that loses power, for tests: what was written is kept apart until it is flushed.
//!
//! SIGKILL leaves the page cache alone, so it is no power cut; this is one. At the cut every write since
//! the last flush survives or not, each for itself. It can also be full, or fail, from some write or flush on.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redb::StorageBackend;

use super::medium::Medium;

/// What a medium that fails does no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// Writing and growing: there is no room. Half of a write may be there.
    Writes,
    /// Flushing: what was to be flushed is still read, and never gets to the disk.
    Flushes,
}

#[derive(Debug, Default)]
struct State {
    /// What reads see.
    seen: Vec<u8>,
    /// What has been flushed.
    flushed: Vec<u8>,
    /// Written since.
    pending: Vec<(u64, Vec<u8>)>,
    /// What fails after so many more of its kind.
    fails: Option<(Fails, u64)>,
}

impl State {
    /// Whether this one fails.
    fn fails(&mut self, what: Fails) -> bool {
        match &mut self.fails {
            Some((fails, 0)) => *fails == what,
            Some((fails, left)) if *fails == what => {
                *left -= 1;
                false
            }
            _ => false,
        }
    }
}

/// Carries writes out, as far as they lie within.
fn write_all(to: &mut [u8], writes: &[(u64, Vec<u8>)]) {
    for (offset, bytes) in writes {
        let room = to.get_mut(*offset as usize..).unwrap_or_default();
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }
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

    /// With `bytes` on it.
    pub fn holding(bytes: Vec<u8>) -> Volatile {
        let state = State { seen: bytes.clone(), flushed: bytes, ..State::default() };
        Volatile { state: Arc::new(Mutex::new(state)), honest: true }
    }

    /// What is on it.
    pub fn bytes(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// After `after` more of its kind every one fails, until it is mended.
    pub fn fail(&self, what: Fails, after: u64) {
        self.state().fails = Some((what, after));
    }

    /// There is room again; nothing fails.
    pub fn mend(&self) {
        self.state().fails = None;
    }

    /// What is left after a power cut now: `survives` decides for each unflushed write.
    pub fn power_cut(&self, survives: impl FnMut() -> bool) -> Volatile {
        let [left] = Volatile::cut_together([self], survives);
        left
    }

    /// The same of several media of one machine: nothing is written to any of them between the cuts.
    pub fn cut_together<const N: usize>(
        media: [&Volatile; N],
        mut survives: impl FnMut() -> bool,
    ) -> [Volatile; N] {
        media.map(Volatile::state).map(|mut state| {
            let mut left = state.flushed.clone();
            left.resize(state.seen.len(), 0);
            state.pending.retain(|_| survives());
            write_all(&mut left, &state.pending);
            let state = State { seen: left.clone(), flushed: left, ..State::default() };
            Volatile { state: Arc::new(Mutex::new(state)), honest: true }
        })
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
        let mut state = self.state();
        if len > state.seen.len() as u64 && state.fails(Fails::Writes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.seen.resize(len as usize, 0);
        state.flushed.truncate(len as usize);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.state();
        let failed = state.fails(Fails::Flushes);
        if self.honest {
            state.flushed.resize(state.seen.len(), 0);
            let pending = std::mem::take(&mut state.pending);
            if failed {
                return Err(io::Error::other("a flush failed"));
            }
            write_all(&mut state.flushed, &pending);
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
        let full = state.fails(Fails::Writes);
        let data = if full { &data[..data.len() / 2] } else { data };
        state.seen[start..start + data.len()].copy_from_slice(data);
        state.pending.push((offset, data.to_vec()));
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
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
