//! What a queue shares with those who answer: which entries hold their answers, and how its thread is woken for them.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::sys;

/// See the file's head.
pub struct Answered {
    ready: Mutex<Vec<u32>>,
    sleeping: AtomicBool,
    event: File,
    thread: ThreadId,
    /// Half of the entries may be held by those who wait for locks; when they are, more are made.
    pub waits: Arc<Semaphore>,
}

impl Answered {
    /// Of a queue with so many entries, whose thread this is.
    pub fn new(entries: usize) -> io::Result<Answered> {
        Ok(Answered {
            ready: Mutex::default(),
            sleeping: AtomicBool::new(false),
            event: sys::event()?,
            thread: thread::current().id(),
            waits: Arc::new(Semaphore::new((entries / 2).max(1))),
        })
    }

    /// The eventfd that [`Answered::ready`] writes to while the thread sleeps.
    pub fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The thread is about to sleep; false: an answer is there, and it must not.
    pub fn sleeps(&self) -> bool {
        self.sleeping.store(true, SeqCst);
        self.ready.lock().is_empty()
    }

    /// The thread is awake.
    pub fn woke(&self) {
        self.sleeping.store(false, SeqCst);
    }

    /// Entry `number` holds its answer.
    pub fn ready(&self, number: u32) {
        self.ready.lock().push(number);
        let own = thread::current().id() == self.thread;
        // The thread sets the flag and then looks at the list again; the order is the other way round here.
        if !own && self.sleeping.swap(false, SeqCst) {
            // Fails only if the counter is full: then it is awake.
            let _ = (&self.event).write(&1u64.to_ne_bytes());
        }
    }

    /// Swaps the numbers of the entries that hold answers into `into`, which is empty.
    pub fn take(&self, into: &mut Vec<u32>) {
        std::mem::swap(&mut *self.ready.lock(), into);
    }
}
