//! What a thread gets from the operating system: processes, the time, sleep, random bytes. A thread that has entered a
//! simulated world has a clock that stands while it works and jumps when all would sleep, and random bytes from a seed;
//! so whatever it runs, the same seed gives the same again. All other threads get the true ones.
//!
//! A process is a runtime of its own: it can be killed, and all its tasks are gone; and it can be stopped, and neither its
//! tasks nor its timers run until it goes on, while the clock does. Processes run in turns, each until it would sleep.
//!
//! The functions of this file take the place of the C library's, as the linker prefers them; so nothing in the product
//! has to know. They hold for one thread: what is simulated must not start others.
#![allow(unsafe_code)]

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::poll_fn,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    task::{Poll, Waker},
    time::Duration,
};

use libc::{c_int, c_uint, c_void, clockid_t, epoll_event, pollfd, size_t, ssize_t, timespec};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};

use crate::common::Random;

const SECOND: u64 = 1_000_000_000;

thread_local! {
    /// The simulated time, nanoseconds since 1970; 0: the true one.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    static BODIES: RefCell<BTreeMap<u64, Body>> = const { RefCell::new(BTreeMap::new()) };
    /// Killed, and not yet gone.
    static KILLED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// The process whose turn it is would sleep: on what, and for how many milliseconds.
    static PARKED: Cell<Option<(c_int, c_int)>> = const { Cell::new(None) };
    static TURN_ENDS: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Threads that runtimes have started: there must be none.
static THREADS: AtomicU64 = AtomicU64::new(0);
static PROCESSES: AtomicU64 = AtomicU64::new(0);

/// What is behind a [`Process`].
struct Body {
    runtime: Runtime,
    /// Where it sleeps, and until when at most; not known before its first turn.
    sleeps: Option<(c_int, Option<u64>)>,
    /// Stopped until then.
    stopped: u64,
}

/// A process of the simulated world.
#[derive(Clone)]
pub struct Process {
    number: u64,
    handle: Handle,
}

impl Process {
    /// A new one, without tasks.
    pub fn begin() -> Process {
        let mut builder = Builder::new_current_thread();
        let builder = builder.enable_io().enable_time().on_thread_start(|| _ = THREADS.fetch_add(1, SeqCst));
        let runtime = builder.build().unwrap();
        let process = Process { number: PROCESSES.fetch_add(1, SeqCst), handle: runtime.handle().clone() };
        let body = Body { runtime, sleeps: None, stopped: 0 };
        BODIES.with_borrow_mut(|bodies| bodies.insert(process.number, body));
        process
    }

    /// Where its tasks run.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A task of it. It ends without a result if the process is killed.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// SIGKILL: nothing of it runs any more.
    pub fn kill(&self) {
        KILLED.with_borrow_mut(|killed| killed.push(self.number));
    }

    /// SIGSTOP, and SIGCONT after `time`.
    pub fn stop(&self, time: Duration) {
        let until = NOW.get() + time.as_nanos() as u64;
        BODIES.with_borrow_mut(|bodies| {
            if let Some(body) = bodies.get_mut(&self.number) {
                body.stopped = body.stopped.max(until);
            }
        });
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        BODIES.with_borrow(|bodies| bodies.get(&self.number).is_some_and(|body| body.stopped > NOW.get()))
    }
}

/// From now on this thread lives in a world of its own, and this process at most for `limit` of the true time: a thread
/// that goes round and round never lets its own clock go on.
pub fn enter(seed: u64, limit: Duration) {
    // SAFETY: alarm(2) touches no memory.
    unsafe { libc::alarm(limit.as_secs() as c_uint) };
    RANDOM.set(seed);
    NOW.set(1_000_000_000 * SECOND);
}

/// Runs a process until its first task ends, and with it all others that are begun meanwhile. Then the world ends.
pub fn run<T: Send + 'static>(first: impl Future<Output = T> + Send + 'static) -> T {
    let first = Process::begin().spawn(first);
    while !first.is_finished() {
        for number in due() {
            turn(number);
            bury();
        }
    }
    let end = Builder::new_current_thread().build().unwrap().block_on(first);
    KILLED.with_borrow_mut(|killed| BODIES.with_borrow(|bodies| killed.extend(bodies.keys())));
    bury();
    assert_eq!(THREADS.load(SeqCst), 0, "something ran in another thread, at a time of its own");
    end.expect("the first task has ended")
}

fn bury() {
    while let Some(number) = KILLED.with_borrow_mut(Vec::pop) {
        let body = BODIES.with_borrow_mut(|bodies| bodies.remove(&number));
        drop(body); // after the borrow: what ends with a process looks around
    }
}

/// Lets a process run until it would sleep.
fn turn(number: u64) {
    let Some(mut body) = BODIES.with_borrow_mut(|bodies| bodies.remove(&number)) else { return };
    PARKED.set(None);
    body.runtime.block_on(poll_fn(|context| {
        if PARKED.get().is_some() {
            return Poll::Ready(());
        }
        TURN_ENDS.set(Some(context.waker().clone()));
        Poll::Pending
    }));
    let sleeps = |(on, millis)| (on, (millis >= 0).then(|| NOW.get() + millis as u64 * SECOND / 1000));
    body.sleeps = PARKED.take().map(sleeps);
    BODIES.with_borrow_mut(|bodies| bodies.insert(number, body));
}

/// The processes that have something to do. If there are none the clock jumps to when there is one.
fn due() -> Vec<u64> {
    loop {
        let now = NOW.get();
        let (mut due, mut next) = (Vec::new(), None::<u64>);
        BODIES.with_borrow(|bodies| {
            for (&number, body) in bodies {
                let wakes = match body.sleeps {
                    _ if body.stopped > now => Some(body.stopped),
                    Some((on, until)) if !has_events(on) => until,
                    _ => Some(now),
                };
                if wakes.is_some_and(|wakes| wakes <= now) {
                    due.push(number);
                }
                next = next.into_iter().chain(wakes).min();
            }
        });
        if !due.is_empty() {
            return due;
        }
        NOW.set(next.expect("nobody will ever do anything again"));
    }
}

/// Whether somebody woke the process that sleeps there.
fn has_events(epoll: c_int) -> bool {
    let mut asked = pollfd { fd: epoll, events: libc::POLLIN, revents: 0 };
    // SAFETY: the one entry that is named lives until the call returns.
    unsafe { libc::poll(&mut asked, 1, 0) > 0 }
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
    if millis != 0 {
        // It would sleep, so its turn ends. The wake is an event here, which is over with this look.
        PARKED.set(Some((epoll, millis)));
        TURN_ENDS.take().into_iter().for_each(Waker::wake);
    }
    ask(0)
}
