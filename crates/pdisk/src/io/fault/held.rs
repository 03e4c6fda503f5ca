//! Writes held in memory until they are flushed: a disk with a volatile cache, and a power cut whenever
//! the process ends. A read sees what is held. A flush brings what was held when it began to the disk.
//! Held bytes are bounded: beyond `max` the oldest go to the disk unflushed, as caches do.
//! Files are told apart by their path.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::unix::fs::FileExt,
    sync::Arc,
};

use base::{AlignedBuf, units::UNIT};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::plan::Volatile;
use crate::{io::file::IoFile, random::Random};

/// Bytes that a disk writes as a whole or not at all.
pub(crate) const SECTOR: usize = 512;
/// Bytes written to the disk at once.
const RUN_MAX: usize = 1 << 20;

/// Number of the write that brought it, bytes.
type Unit = (u64, Bytes);

#[derive(Default)]
struct Cache {
    files: Vec<HeldFile>,
    /// File, unit, number of the write: in the order of writing. May name units that are gone.
    order: VecDeque<(usize, u64, u64)>,
    bytes: u64,
    writes: u64,
}

struct HeldFile {
    file: Arc<IoFile>,
    /// By index of the 4096 byte unit.
    units: BTreeMap<u64, Unit>,
}

impl Cache {
    fn find(&self, file: &IoFile) -> Option<usize> {
        self.files.iter().position(|f| f.file.path == file.path)
    }

    fn units(&self, file: &IoFile) -> Option<&BTreeMap<u64, Unit>> {
        self.find(file).map(|at| &self.files[at].units)
    }

    fn put(&mut self, file: &Arc<IoFile>, first: u64, bytes: &[u8]) {
        let at = self.find(file).unwrap_or_else(|| {
            self.files.push(HeldFile { file: Arc::clone(file), units: BTreeMap::new() });
            self.files.len() - 1
        });
        // A pdisk that was opened again has files of its own.
        self.files[at].file = Arc::clone(file);
        self.writes += 1;
        for (unit, bytes) in (first..).zip(bytes.chunks_exact(UNIT)) {
            // A copy: the caller's buffer goes back to its pool.
            let held = (self.writes, Bytes::copy_from_slice(bytes));
            if self.files[at].units.insert(unit, held).is_none() {
                self.bytes += UNIT as u64;
            }
            self.order.push_back((at, unit, self.writes));
        }
        if self.order.len() as u64 > 2 * (self.bytes / UNIT as u64) + 1024 {
            let files = &self.files;
            self.order.retain(|(at, unit, n)| files[*at].units.get(unit).is_some_and(|u| u.0 == *n));
        }
    }

    /// The oldest unit, if too much is held.
    fn oldest(&mut self, max: u64) -> Option<(Arc<IoFile>, u64, Unit)> {
        while self.bytes > max {
            let (at, unit, number) = self.order.pop_front()?;
            let held = self.files[at].units.get(&unit).filter(|u| u.0 == number);
            if let Some(held) = held {
                return Some((Arc::clone(&self.files[at].file), unit, held.clone()));
            }
        }
        None
    }

    /// These units are on the disk; newer ones stay.
    fn forget(&mut self, file: &IoFile, written: impl Iterator<Item = (u64, u64)>) {
        let Some(at) = self.find(file) else { return };
        for (unit, number) in written {
            if self.files[at].units.get(&unit).is_some_and(|u| u.0 == number) {
                self.files[at].units.remove(&unit);
                self.bytes -= UNIT as u64;
            }
        }
    }
}

/// A file system without room refuses the write, not the flush after it.
fn take_room(file: &IoFile, offset: u64, len: usize) -> io::Result<()> {
    match rustix::fs::fallocate(&file.file, FallocateFlags::KEEP_SIZE, offset, len as u64) {
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        taken => Ok(taken?),
    }
}

pub(super) struct Held {
    volatile: Volatile,
    cache: Mutex<Cache>,
    /// One way to the disk: an older unit must not overtake a newer one. Taken before `cache`.
    way_out: Mutex<Random>,
}

impl Held {
    pub fn new(volatile: Volatile, seed: u64) -> Held {
        Held { volatile, cache: Mutex::default(), way_out: Mutex::new(Random::new(seed)) }
    }

    pub fn write(&self, file: &Arc<IoFile>, offset: u64, bytes: &Bytes) -> io::Result<()> {
        if !offset.is_multiple_of(UNIT as u64) || !bytes.len().is_multiple_of(UNIT) {
            return Err(io::Error::other("the fault engine holds whole 4096 byte units only"));
        }
        take_room(file, offset, bytes.len())?;
        self.cache.lock().put(file, offset / UNIT as u64, bytes);
        let mut way_out = self.way_out.lock();
        let leak = self.volatile.leak_per_million;
        if leak > 0 {
            write_sectors(file, offset, bytes, || way_out.chance(leak))?;
        }
        loop {
            let Some((file, unit, (number, bytes))) = self.cache.lock().oldest(self.volatile.max) else {
                return Ok(());
            };
            write_run(&file, unit, &[bytes])?;
            self.cache.lock().forget(&file, std::iter::once((unit, number)));
        }
    }

    pub fn flush(&self, file: &IoFile) -> io::Result<()> {
        let _way_out = self.way_out.lock();
        let units: Vec<(u64, Unit)> = {
            let cache = self.cache.lock();
            let all = |u: &BTreeMap<u64, Unit>| u.iter().map(|(i, unit)| (*i, unit.clone())).collect();
            cache.units(file).map(all).unwrap_or_default()
        };
        let mut rest = units.as_slice();
        while let Some((first, _)) = rest.first() {
            let run = rest.iter().zip(*first..).take(RUN_MAX / UNIT).take_while(|((i, _), e)| i == e).count();
            let bytes: Vec<Bytes> = rest[..run].iter().map(|(_, (_, b))| b.clone()).collect();
            write_run(file, *first, &bytes)?;
            rest = &rest[run..];
        }
        file.file.sync_data()?;
        self.cache.lock().forget(file, units.iter().map(|(i, (number, _))| (*i, *number)));
        Ok(())
    }

    /// What is held now for this part of the file. Taken before the disk is read: what goes out meanwhile
    /// is on the disk, or here.
    pub fn seen(&self, file: &IoFile, offset: u64, len: usize) -> Vec<(u64, Bytes)> {
        let cache = self.cache.lock();
        let Some(units) = cache.units(file) else { return Vec::new() };
        let span = offset / UNIT as u64..(offset + len as u64).div_ceil(UNIT as u64);
        units.range(span).map(|(i, (_, bytes))| (i * UNIT as u64, bytes.clone())).collect()
    }

    /// One past the last byte held.
    pub fn end(&self, file: &IoFile) -> u64 {
        let cache = self.cache.lock();
        let last = cache.units(file).and_then(|u| u.last_key_value().map(|(i, _)| *i + 1));
        last.unwrap_or(0) * UNIT as u64
    }
}

/// Lays what is held over what was read at `offset`.
pub(super) fn overlay(buf: &mut [u8], offset: u64, held: &[(u64, Bytes)]) {
    let end = offset + buf.len() as u64;
    for (at, bytes) in held {
        let (from, to) = ((*at).max(offset), (at + bytes.len() as u64).min(end));
        if from < to {
            let part = &bytes[(from - at) as usize..(to - at) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
    }
}

fn write_run(file: &IoFile, first: u64, units: &[Bytes]) -> io::Result<()> {
    let mut buf = AlignedBuf::zeroed(units.len() * UNIT);
    for (to, from) in buf.chunks_exact_mut(UNIT).zip(units) {
        to.copy_from_slice(from);
    }
    file.file.write_all_at(&buf, first * UNIT as u64)
}

/// Writes those sectors that `choose` takes; the others keep what is on the disk.
pub(super) fn write_sectors(
    file: &IoFile,
    offset: u64,
    bytes: &[u8],
    mut choose: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut buf = AlignedBuf::zeroed(bytes.len());
    let mut at = 0;
    // O_DIRECT may not take single sectors: read, change, write. Beyond the file's end are zeros.
    while at < buf.len() {
        match file.file.read_at(&mut buf[at..], offset + at as u64)? {
            0 => break,
            n => at += n,
        }
    }
    for (to, from) in buf.chunks_mut(SECTOR).zip(bytes.chunks(SECTOR)) {
        if choose() {
            to.copy_from_slice(from);
        }
    }
    file.file.write_all_at(&buf, offset)
}
