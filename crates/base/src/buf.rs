//! Aligned buffers: memory that sockets receive into and O_DIRECT disks write from, without a copy.
//! An [`AlignedBuf`] has one owner and is mutable; frozen, it becomes [`bytes::Bytes`], shared and
//! read-only. When the last reference goes, pooled memory returns to its [`BufPool`].
//! The only unsafe code of this crate is here and in one line of `presence`.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    collections::VecDeque,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::units::UNIT;

/// A 4 KiB aligned allocation of fixed capacity, initialised with zeros once.
struct Block {
    memory: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Block owns its memory alone, like a Box<[u8]>.
unsafe impl Send for Block {}
// SAFETY: shared access is read-only.
unsafe impl Sync for Block {}

/// Blocks of at least this size are mappings of their own: the system gives them zeroed, and backs them in
/// one call instead of a fault for each page.
const MAP_MIN: usize = 256 << 10;
/// Size and alignment from which huge pages can back a block.
const HUGE: usize = 2 << 20;

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, UNIT).expect("capacity is below isize::MAX")
    }

    fn new(capacity: usize) -> Block {
        assert!(capacity > 0 && capacity.is_multiple_of(UNIT));
        if capacity >= MAP_MIN {
            return Block::map(capacity);
        }
        let layout = Block::layout(capacity);
        // SAFETY: the layout has a size above 0.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: `memory` is valid for `capacity` bytes. Rust needs initialised bytes for a &[u8].
        unsafe { memory.as_ptr().write_bytes(0, capacity) };
        Block { memory, capacity }
    }

    fn map(capacity: usize) -> Block {
        let slack = if capacity >= HUGE { HUGE } else { 0 };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, anywhere.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), capacity + slack, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            handle_alloc_error(Block::layout(capacity));
        }
        let start = start.cast::<u8>();
        let before = if slack > 0 { start.align_offset(HUGE) } else { 0 };
        // SAFETY: `before` is at most `slack`, so this is within the mapping.
        let memory = unsafe { start.add(before) };
        for (at, len) in [(0, before), (before + capacity, slack - before)] {
            if len > 0 {
                // SAFETY: the parts of the mapping before and behind the block, which nobody knows of.
                unsafe { libc::munmap(start.add(at).cast(), len) };
            }
        }
        // Neither is needed: without them it is only slower.
        if slack > 0 {
            // SAFETY: within the mapping; advice does not change its contents.
            unsafe { libc::madvise(memory.cast(), capacity, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: the same.
        unsafe { libc::madvise(memory.cast(), capacity, libc::MADV_POPULATE_WRITE) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(Block::layout(capacity)) };
        Block { memory, capacity }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.capacity >= MAP_MIN {
            // SAFETY: mapped in `map`, with this length left of it.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.capacity) };
            return;
        }
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.memory.as_ptr(), Block::layout(self.capacity)) }
    }
}

/// A mutable buffer, 4 KiB aligned, with one owner. `len` bytes are visible of a capacity that is a
/// multiple of 4 KiB. Contents are whatever the memory held before (initialised, never undefined).
pub struct AlignedBuf {
    block: Option<Block>,
    len: usize,
    pool: Weak<PoolInner>,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes that belongs to no pool.
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf { block: Some(Block::new(round_up(len))), len, pool: Weak::new() }
    }

    /// Bytes that fit, a multiple of 4 KiB.
    pub fn capacity(&self) -> usize {
        self.block().capacity
    }

    /// Sets the visible length, at most the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit into {}", self.capacity());
        self.len = len;
    }

    /// Makes it shared and read-only, without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("taken only in drop")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialised over its whole capacity, and len <= capacity.
        unsafe { std::slice::from_raw_parts(self.block().memory.as_ptr(), self.len) }
    }
}
impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and &mut self makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.block().memory.as_ptr(), self.len) }
    }
}
impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {})", self.len, self.capacity())
    }
}
impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let (Some(pool), Some(block)) = (self.pool.upgrade(), self.block.take()) {
            pool.put(block);
        }
    }
}

/// Keeps freed buffers for the next user, by power-of-two size class: the one freed last is taken first, since it may
/// be in the CPU's cache. It bounds what is kept idle (`idle_bytes_max`), not what is lent out: the bound on lending is
/// the caller's queue bound. When it is full, what was freed longest ago goes: sizes that nobody asks for any more make
/// room for those that come now.
#[derive(Clone)]
pub struct BufPool(Arc<PoolInner>);

struct PoolInner {
    idle: Mutex<Idle>,
    idle_bytes_max: AtomicUsize,
}

/// Size classes: 4 KiB to 128 MiB.
const CLASSES: usize = 16;

#[derive(Default)]
struct Idle {
    /// Index = log2(capacity / 4 KiB). Each with the number of its return, rising.
    classes: [VecDeque<(u64, Block)>; CLASSES],
    bytes: usize,
    returns: u64,
}

impl Idle {
    fn put(&mut self, block: Block) {
        self.bytes += block.capacity;
        self.returns += 1;
        self.classes[class_of(block.capacity)].push_back((self.returns, block));
    }

    /// Takes out what was freed longest ago, until at most `bytes` are left.
    fn shrink(&mut self, bytes: usize) -> Vec<Block> {
        let mut gone = Vec::new();
        while self.bytes > bytes {
            let filled = self.classes.iter_mut().filter(|class| !class.is_empty());
            let oldest = filled.min_by_key(|class| class.front().map(|(number, _)| *number));
            let Some((_, block)) = oldest.and_then(VecDeque::pop_front) else { break };
            self.bytes -= block.capacity;
            gone.push(block);
        }
        gone
    }
}

impl PoolInner {
    fn put(&self, block: Block) {
        let max = self.idle_bytes_max.load(Relaxed);
        if class_of(block.capacity) >= CLASSES || block.capacity > max {
            return;
        }
        let gone = {
            let mut idle = self.lock();
            idle.put(block);
            idle.shrink(max)
        };
        // Giving memory back to the system takes long: not with the lock held.
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock()
    }
}

impl BufPool {
    /// A pool that keeps at most `idle_bytes_max` bytes of unused buffers.
    pub fn new(idle_bytes_max: usize) -> BufPool {
        BufPool(Arc::new(PoolInner {
            idle: Mutex::default(),
            idle_bytes_max: AtomicUsize::new(idle_bytes_max),
        }))
    }

    /// A buffer of `len` bytes with arbitrary (initialised) contents.
    pub fn get(&self, len: usize) -> AlignedBuf {
        let capacity = round_up(len).next_power_of_two();
        let class = class_of(capacity);
        let reused = {
            let mut idle = self.0.lock();
            let block = idle.classes.get_mut(class).and_then(VecDeque::pop_back).map(|(_, block)| block);
            if let Some(block) = &block {
                idle.bytes -= block.capacity;
            }
            block
        };
        let block = reused.unwrap_or_else(|| Block::new(capacity));
        AlignedBuf { block: Some(block), len, pool: Arc::downgrade(&self.0) }
    }

    /// Changes how much is kept idle; what is more than that is freed.
    pub fn set_idle_max(&self, bytes: usize) {
        self.0.idle_bytes_max.store(bytes, Relaxed);
        let gone = self.0.lock().shrink(bytes);
        drop(gone);
    }

    /// Bytes kept idle now.
    pub fn idle_bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

fn round_up(len: usize) -> usize {
    len.max(1).next_multiple_of(UNIT)
}

fn class_of(capacity: usize) -> usize {
    (capacity / UNIT).ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_zeroed_aligned_and_come_and_go() {
        let mut kept = Vec::new();
        for round in 0..3 {
            for len in [MAP_MIN, MAP_MIN + 1, 1 << 20, HUGE, 2 * HUGE + 4096] {
                let mut buf = AlignedBuf::zeroed(len);
                assert!(buf.iter().all(|b| *b == 0));
                assert_eq!(buf.as_ptr() as usize % if len >= HUGE { HUGE } else { UNIT }, 0);
                buf.fill(round);
                kept.push(buf);
            }
            kept.retain(|buf| buf[0] == round);
        }
        assert!(kept.iter().all(|buf| buf.iter().all(|b| *b == 2)));
    }

    #[test]
    fn frozen_memory_returns_to_its_pool() {
        let pool = BufPool::new(1 << 20);
        let mut buf = pool.get(5000);
        assert_eq!((buf.len(), buf.capacity(), buf.as_ptr() as usize % UNIT), (5000, 8192, 0));
        buf[4999] = 7;
        let bytes = buf.freeze();
        let tail = bytes.slice(4999..);
        drop(bytes);
        assert_eq!((tail[0], pool.idle_bytes()), (7, 0));
        drop(tail);
        assert_eq!(pool.idle_bytes(), 8192);
    }

    #[test]
    fn what_is_asked_for_now_pushes_out_other_sizes() {
        let pool = BufPool::new(64 << 10);
        let get = |len, count| (0..count).map(|_| pool.get(len)).collect::<Vec<_>>();
        drop(get(4096, 16));
        drop(get(16384, 3));
        let counts: Vec<usize> = pool.0.lock().classes.iter().map(VecDeque::len).collect();
        assert_eq!((counts[0], counts[2], pool.idle_bytes()), (4, 3, 64 << 10));
        let last = pool.get(16384).as_ptr();
        assert_eq!(pool.get(16384).as_ptr(), last, "the one freed last comes first");
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = BufPool::new(8192);
        let buffers: Vec<_> = (0..4).map(|_| pool.get(4096)).collect();
        drop(buffers);
        assert_eq!(pool.idle_bytes(), 8192);
        drop(pool.get(16384));
        assert_eq!(pool.idle_bytes(), 8192, "larger than all that may be kept");
        let outlives = pool.get(4096);
        drop(pool);
        drop(outlives);
    }
}
