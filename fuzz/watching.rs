//! An allocator that notes the largest allocation: decoders allocate by what has come, not by what a length claims.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Notes the largest allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Watching = Watching;

#[allow(unsafe_code)]
// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Begins anew.
pub fn forget() {
    LARGEST.store(0, Ordering::Relaxed);
}

/// Nothing was allocated that a lying length may explain: serde reserves at most a megabyte ahead of what is there.
pub fn assert_little() {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= 2 << 20, "an allocation of {largest} bytes");
}
