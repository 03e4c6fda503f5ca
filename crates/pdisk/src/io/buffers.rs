//! I/O memory of a node: one region (`io_dma_mib`) that every ring registers with the kernel, cut into
//! slabs of 1 MiB, each cut into buffers of one power-of-two size. What does not fit (strips above 1 MiB,
//! a region that is lent out) comes from the heap and goes the unregistered way: slower, never refused.
//! The unsafe code: the region is mapped once, and lent in disjoint parts that each have one owner.

use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use base::{
    AlignedBuf, BufPool,
    stats::{self, Counter},
    units::{MIB, UNIT},
};
use bytes::Bytes;
use parking_lot::Mutex;

const SLAB: usize = MIB as usize;
/// Sizes of buffers: 4 KiB to 1 MiB.
const CLASSES: usize = 9;
/// The kernel registers at most so much as one buffer.
const PART: usize = 1 << 30;
/// Idle heap buffers that are kept.
const IDLE_BYTES: usize = 64 << 20;

/// The region. Unmapped when the last buffer and the last ring are gone.
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is plain memory; who may touch which part is decided by the slabs.
unsafe impl Send for Region {}
// SAFETY: as above; a shared region gives out addresses only.
unsafe impl Sync for Region {}

impl Region {
    fn map(len: usize) -> io::Result<Region> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is ours. A kernel without huge pages refuses, which does no harm.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, len })
    }

    /// What a ring registers: the region in parts.
    pub fn parts(&self) -> Vec<libc::iovec> {
        (0..self.len)
            .step_by(PART)
            .map(|at| libc::iovec {
                // SAFETY: `at` lies in the region.
                iov_base: unsafe { self.start.as_ptr().add(at) }.cast(),
                iov_len: PART.min(self.len - at),
            })
            .collect()
    }

    /// The number of the registered part that holds these bytes.
    pub fn part_of(&self, bytes: *const u8, len: usize) -> Option<u16> {
        let at = (bytes as usize).checked_sub(self.start.as_ptr() as usize)?;
        let inside = at + len <= self.len && at / PART == (at + len).saturating_sub(1) / PART;
        inside.then_some((at / PART) as u16)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nobody has a part any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Which parts of the region are lent.
struct Slabs {
    /// By slab: the free buffers in it.
    free: Vec<Vec<u16>>,
    /// By class: slabs with a free buffer.
    partial: [Vec<u32>; CLASSES],
    /// Slabs without a class.
    empty: Vec<u32>,
}

impl Slabs {
    fn take(&mut self, class: usize) -> Option<(u32, u16)> {
        let slab = match self.partial[class].last() {
            Some(slab) => *slab,
            None => {
                let slab = self.empty.pop()?;
                self.free[slab as usize].extend((0..buffers(class)).rev());
                self.partial[class].push(slab);
                slab
            }
        };
        let free = &mut self.free[slab as usize];
        let buffer = free.pop()?;
        if free.is_empty() {
            self.partial[class].pop();
        }
        Some((slab, buffer))
    }

    fn put(&mut self, class: usize, slab: u32, buffer: u16) {
        let (free, partial) = (&mut self.free[slab as usize], &mut self.partial[class]);
        free.push(buffer);
        if free.len() == 1 {
            partial.push(slab);
        }
        // One slab stays with its class, so that a lone request does not cut one each time.
        if free.len() == usize::from(buffers(class)) && partial.len() > 1 {
            free.clear();
            partial.retain(|s| *s != slab);
            self.empty.push(slab);
        }
    }
}

fn buffers(class: usize) -> u16 {
    ((SLAB >> class) / UNIT) as u16
}

struct Pool {
    region: Option<Arc<Region>>,
    slabs: Mutex<Slabs>,
    heap: BufPool,
    unregistered: Counter,
}

/// The I/O memory of a node.
#[derive(Clone)]
pub(crate) struct Buffers(Arc<Pool>);

impl Buffers {
    /// Memory of `mib` MiB for rings to register; 0: the heap alone.
    pub fn new(mib: u32) -> io::Result<Buffers> {
        let region = if mib > 0 { Some(Arc::new(Region::map(mib as usize * SLAB)?)) } else { None };
        let slabs = Slabs {
            free: vec![Vec::new(); mib as usize],
            partial: Default::default(),
            empty: (0..mib).rev().collect(),
        };
        Ok(Buffers(Arc::new(Pool {
            region,
            slabs: Mutex::new(slabs),
            heap: BufPool::new(IDLE_BYTES),
            unregistered: stats::counter("pdisk_unregistered_buffers", &[]),
        })))
    }

    pub fn region(&self) -> Option<&Arc<Region>> {
        self.0.region.as_ref()
    }

    /// A buffer of `len` bytes, 4 KiB aligned, with arbitrary (initialised) contents.
    pub fn get(&self, len: usize) -> IoBuf {
        let capacity = len.max(1).next_multiple_of(UNIT).next_power_of_two();
        let class = (capacity / UNIT).ilog2() as usize;
        let lent = if class < CLASSES { self.0.slabs.lock().take(class) } else { None };
        if let (Some((slab, buffer)), Some(region)) = (lent, self.region()) {
            let at = slab as usize * SLAB + usize::from(buffer) * capacity;
            assert!(at + capacity <= region.len, "a buffer beyond the region");
            // SAFETY: `at` lies in the region.
            let start = unsafe { region.start.add(at) };
            return IoBuf(Memory::Lent(Lent { pool: self.clone(), start, len, class, slab, buffer }));
        }
        if self.region().is_some() {
            self.0.unregistered.inc();
        }
        IoBuf(Memory::Heap(self.0.heap.get(len)))
    }
}

/// A part of the region, with one owner.
struct Lent {
    pool: Buffers,
    start: NonNull<u8>,
    len: usize,
    class: usize,
    slab: u32,
    buffer: u16,
}

// SAFETY: a lent part has one owner, as a Box<[u8]> has.
unsafe impl Send for Lent {}
// SAFETY: shared access only reads.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.0.slabs.lock().put(self.class, self.slab, self.buffer);
    }
}

enum Memory {
    Heap(AlignedBuf),
    Lent(Lent),
}

/// A buffer for I/O: 4 KiB aligned, one owner; frozen it is shared and read-only.
pub(crate) struct IoBuf(Memory);

impl IoBuf {
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl From<AlignedBuf> for IoBuf {
    fn from(buf: AlignedBuf) -> IoBuf {
        IoBuf(Memory::Heap(buf))
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(buf) => buf,
            // SAFETY: initialised (mapped zeroed) memory of the region, which `pool` keeps mapped.
            Memory::Lent(l) => unsafe { std::slice::from_raw_parts(l.start.as_ptr(), l.len) },
        }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(buf) => buf,
            // SAFETY: as above, and &mut self makes the access exclusive.
            Memory::Lent(l) => unsafe { std::slice::from_raw_parts_mut(l.start.as_ptr(), l.len) },
        }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_disjoint_registered_while_there_is_room_and_come_back() {
        let buffers = Buffers::new(2).unwrap();
        let region = Arc::clone(buffers.region().unwrap());
        let registered = |b: &IoBuf| region.part_of(b.as_ptr(), b.len()).is_some();
        for round in 0..3u8 {
            let mut held: Vec<IoBuf> = (0..300).map(|_| buffers.get(4096)).collect();
            assert_eq!(held.iter().filter(|b| registered(b)).count(), 300);
            for (i, b) in held.iter_mut().enumerate() {
                b.fill(i as u8 ^ round);
            }
            assert!(held.iter().enumerate().all(|(i, b)| b.iter().all(|x| *x == i as u8 ^ round)));
            // Both slabs have a class now: a larger buffer comes from the heap.
            assert!(!registered(&buffers.get(SLAB)));
        }
        let large = buffers.get(SLAB - 5);
        assert!(registered(&large) && large.len() == SLAB - 5, "one slab came back");
        assert!(!registered(&buffers.get(SLAB + 1)));
        assert!((large.as_ptr() as usize).is_multiple_of(UNIT));
    }

    #[test]
    fn without_a_region_there_is_the_heap() {
        let buffers = Buffers::new(0).unwrap();
        assert!(buffers.region().is_none());
        assert_eq!(buffers.get(5000).freeze().len(), 5000);
    }
}
