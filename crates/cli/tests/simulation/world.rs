//! What a thread gets from the operating system: the time, sleep, random bytes. A thread that has entered a simulated
//! world has a clock that stands while it works and jumps when it would sleep, and random bytes from a seed; so
//! whatever it runs, the same seed gives the same again. All other threads get the true ones.
//!
//! The functions of this file take the place of the C library's, as the linker prefers them; so nothing in the product
//! has to know. They hold for one thread: what is simulated must not start others.
#![allow(unsafe_code)]

use std::{cell::Cell, time::Duration};

use libc::{c_int, c_uint, c_void, clockid_t, epoll_event, size_t, ssize_t, timespec};

use crate::common::Random;

const SECOND: u64 = 1_000_000_000;

thread_local! {
    /// The simulated time, nanoseconds since 1970; 0: the true one.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// From now on this thread lives in a world of its own, and this process at most for `limit` of the true time: a thread
/// that goes round and round never lets its own clock go on.
pub fn enter(seed: u64, limit: Duration) {
    // SAFETY: alarm(2) touches no memory.
    unsafe { libc::alarm(limit.as_secs() as c_uint) };
    RANDOM.set(seed);
    NOW.set(1_000_000_000 * SECOND);
}

/// The simulated time, nanoseconds.
pub fn now() -> u64 {
    NOW.get()
}

/// The machine sleeps, and all that runs on it: what would have happened meanwhile happens at once when it wakes.
pub fn oversleep(time: Duration) {
    NOW.set(NOW.get() + time.as_nanos() as u64);
}

#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let now = NOW.get();
    if now == 0 {
        // SAFETY: the caller's arguments, to the system call of the same name.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    let simulated = timespec { tv_sec: (now / SECOND) as i64, tv_nsec: (now % SECOND) as i64 };
    // SAFETY: by clock_gettime(2) the caller gives room for a timespec.
    unsafe { time.write(simulated) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn getrandom(bytes: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if NOW.get() == 0 {
        // SAFETY: the caller's arguments, to the system call of the same name.
        return unsafe { libc::syscall(libc::SYS_getrandom, bytes, len, flags) } as ssize_t;
    }
    let mut random = Random(RANDOM.get());
    // SAFETY: by getrandom(2) the caller gives room for `len` bytes; it is written before it is read.
    let room = unsafe {
        bytes.cast::<u8>().write_bytes(0, len);
        std::slice::from_raw_parts_mut(bytes.cast::<u8>(), len)
    };
    random.fill(room);
    RANDOM.set(random.0);
    len as ssize_t
}

#[unsafe(no_mangle)]
extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, millis: c_int) -> c_int {
    let ask = |millis: c_int| {
        let mask = std::ptr::null::<c_void>();
        // SAFETY: the caller's arguments, to the system call of which this one is the form without a mask.
        unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, room, millis, mask, 0) as c_int }
    };
    if NOW.get() == 0 {
        return ask(millis);
    }
    // Nothing happens in this world but what it has set itself a time for.
    let ready = ask(0);
    if ready == 0 {
        assert!(millis >= 0, "nobody will ever do anything again");
        NOW.set(NOW.get() + millis as u64 * SECOND / 1000);
    }
    ready
}
