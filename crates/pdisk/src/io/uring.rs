//! The io_uring engine: one ring and one thread a queue.
//! A slot owns the job (buffer, file) from submission to its last completion; short transfers are
//! submitted again for the rest. New jobs wake the thread through an eventfd that the ring reads.
//! The unsafe code: pushing entries whose memory the slots keep alive.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
    sync::{Arc, atomic::Ordering, mpsc},
};

use io_uring::{IoUring, opcode, squeue, types};

use super::{Coalesce, Inbox, Job, Op, Queue, lock};
use crate::options::IoConfig;

const WAKE: u64 = u64::MAX;

pub(super) fn start(config: &IoConfig, coalesce: &Arc<Coalesce>) -> io::Result<Vec<Queue>> {
    (0..config.num_io_queues).map(|q| start_queue(q, config.queue_depth, Arc::clone(coalesce))).collect()
}

fn start_queue(number: u32, depth: u32, coalesce: Arc<Coalesce>) -> io::Result<Queue> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fd is new and nobody else owns it.
    let eventfd = unsafe { File::from_raw_fd(fd) };
    let inbox = Inbox::new(Some(eventfd));
    let (tx, rx) = mpsc::channel();
    let thread = {
        let inbox = Arc::clone(&inbox);
        std::thread::Builder::new().name(format!("io{number}")).spawn(move || {
            // Made on this thread: the kernel binds a single-issuer ring to it.
            match build(depth) {
                Ok(ring) => {
                    let _ = tx.send(Ok(()));
                    Loop::new(ring, inbox, coalesce, depth).run();
                }
                Err(e) => {
                    let _ = tx.send(Err(e));
                }
            }
        })?
    };
    rx.recv().unwrap_or_else(|_| Err(io::Error::other("the I/O thread ended")))?;
    Ok(Queue { inbox, threads: vec![thread] })
}

fn build(depth: u32) -> io::Result<IoUring> {
    // One entry more than the depth: the read of the eventfd.
    let entries = (depth + 1).next_power_of_two();
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .build(entries)
        .or_else(|_| IoUring::builder().build(entries))?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    for code in [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE] {
        if !probe.is_supported(code) {
            return Err(io::Error::other(format!("io_uring lacks opcode {code}")));
        }
    }
    Ok(ring)
}

struct Slot {
    job: Job,
    done: usize,
}

struct Loop {
    ring: IoUring,
    inbox: Arc<Inbox>,
    coalesce: Arc<Coalesce>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    waiting: VecDeque<Job>,
    wake_armed: bool,
    wake_value: Box<[u8; 8]>,
}

impl Loop {
    fn new(ring: IoUring, inbox: Arc<Inbox>, coalesce: Arc<Coalesce>, depth: u32) -> Loop {
        let depth = depth as usize;
        Loop {
            ring,
            inbox,
            coalesce,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            wake_armed: false,
            wake_value: Box::new([0; 8]),
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn run(mut self) {
        loop {
            self.take_jobs();
            if self.waiting.is_empty() && self.in_flight() == 0 && self.inbox.stop.load(Ordering::SeqCst) {
                break;
            }
            self.arm_wake();
            self.inbox.sleeping.store(true, Ordering::SeqCst);
            let idle = lock(&self.inbox.jobs).is_empty() && !self.inbox.stop.load(Ordering::SeqCst);
            let result = if idle || self.in_flight() > 0 && self.free.is_empty() {
                self.wait()
            } else {
                self.ring.submit().map(drop)
            };
            self.inbox.sleeping.store(false, Ordering::SeqCst);
            if let Err(e) = result {
                let passing = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME]
                    .map(Some)
                    .contains(&e.raw_os_error());
                if !passing {
                    // Nothing is known of what is in flight: the buffers must stay where they are.
                    tracing::error!(error = %e, "io_uring_enter");
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
            self.reap();
        }
        // The wake-up read still points to `wake_value`: the ring goes first, then the memory.
        let Loop { ring, wake_value, .. } = self;
        drop(ring);
        drop(wake_value);
    }

    fn take_jobs(&mut self) {
        self.waiting.append(&mut lock(&self.inbox.jobs));
        while let Some(&slot) = self.free.last() {
            let Some(job) = self.waiting.pop_front() else { break };
            self.free.pop();
            self.slots[slot] = Some(Slot { job, done: 0 });
            self.push_slot(slot);
        }
    }

    fn push_slot(&mut self, index: usize) {
        let Some(slot) = &mut self.slots[index] else { return };
        let request = &mut slot.job.request;
        let fd = types::Fd(request.file.file.as_raw_fd());
        let offset = request.offset + slot.done as u64;
        let entry = match &mut request.op {
            Op::Read(window) => {
                let rest = &mut window.as_mut()[slot.done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32).offset(offset).build()
            }
            Op::Write(bytes) => {
                let rest = &bytes[slot.done..];
                opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32).offset(offset).build()
            }
            Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        self.push(entry.user_data(index as u64));
    }

    fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: buffer and file of the entry are owned by a slot (or are `wake_value` and the
            // eventfd), which lives until its completion has been reaped.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            // The submission queue is full: hand it to the kernel.
            if let Err(e) = self.ring.submit() {
                tracing::debug!(error = %e, "io_uring submit");
            }
        }
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        if let Some(fd) = &self.inbox.eventfd {
            let fd = types::Fd(fd.as_raw_fd());
            let entry = opcode::Read::new(fd, self.wake_value.as_mut_ptr(), 8).build();
            self.push(entry.user_data(WAKE));
            self.wake_armed = true;
        }
    }

    /// Submits what is queued and waits for completions, gathered by count and by time.
    fn wait(&mut self) -> io::Result<()> {
        let count = self.coalesce.count.load(Ordering::Relaxed) as usize;
        let want = count.min(self.in_flight()).max(1);
        if want > 1 {
            let us = self.coalesce.us.load(Ordering::Relaxed);
            let time = types::Timespec::from(std::time::Duration::from_micros(us.into()));
            let args = types::SubmitArgs::new().timespec(&time);
            match self.ring.submitter().submit_with_args(want, &args) {
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => {}
                other => return other.map(drop),
            }
            if !self.ring.completion().is_empty() {
                return Ok(());
            }
        }
        self.ring.submit_and_wait(1).map(drop)
    }

    fn reap(&mut self) {
        loop {
            let Some((index, result)) = self.ring.completion().next().map(|c| (c.user_data(), c.result()))
            else {
                return;
            };
            if index == WAKE {
                self.wake_armed = false;
                continue;
            }
            self.finish(index as usize, result);
        }
    }

    fn finish(&mut self, index: usize, result: i32) {
        let Some(slot) = &mut self.slots[index] else { return };
        let len = match &slot.job.request.op {
            Op::Read(window) => window.len(),
            Op::Write(bytes) => bytes.len(),
            Op::Flush => 0,
        };
        let outcome = if result == -libc::EINTR || result == -libc::EAGAIN {
            None
        } else if result < 0 {
            Some(Err(io::Error::from_raw_os_error(-result)))
        } else {
            slot.done += result as usize;
            match (slot.done >= len, result) {
                (true, _) => Some(Ok(())),
                (false, 0) => Some(Err(io::ErrorKind::UnexpectedEof.into())),
                (false, _) => None,
            }
        };
        match outcome {
            None => self.push_slot(index),
            Some(outcome) => {
                if let Some(slot) = self.slots[index].take() {
                    self.free.push(index);
                    self.inbox.done.fetch_add(1, Ordering::Relaxed);
                    slot.job.complete(outcome);
                }
            }
        }
    }
}
