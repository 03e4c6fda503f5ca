//! SIGINT and SIGTERM for tests that begin others, and clean up after them.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// From now on these signals end nothing.
pub fn watch() {
    extern "C" fn note(signal: i32) {
        INTERRUPTED.store(signal, SeqCst);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler = note as extern "C" fn(i32);
        // SAFETY: the handler only stores into an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// The one that came.
pub fn signal() -> Option<i32> {
    Some(INTERRUPTED.load(SeqCst)).filter(|signal| *signal != 0)
}
