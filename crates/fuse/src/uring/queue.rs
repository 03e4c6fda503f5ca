//! One queue: a ring and the thread that owns it.
//! Requests are started on this thread; what must wait goes on in the runtime and is answered from there:
//! answers are entered into a list, and this thread commits them, woken through an eventfd if it sleeps.
//! The eventfd is polled, never read: the kernel gets no memory for it.
//! An entry whose command fails has left the queue; the thread ends when all have, which is when the
//! mount is gone and the last request is answered.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use zerocopy::IntoBytes;

use super::{answered::Answered, entry::Entry};
use crate::{
    abi::{self, UringCmdReq},
    calls::Calls,
    device::LastOut,
    reply::Sink,
    session::Session,
    sys,
};

/// `user_data` of the eventfd's poll; entries have their numbers.
const WAKE: u64 = u64::MAX;
/// Where `len` stands in a submission entry (`struct io_uring_sqe`).
const SQE_LEN_AT: usize = 24;
/// Parts of an entry's memory that a registration names: headers, payload.
const IOVECS: u32 = 2;
/// Entries that a queue gets at a time where locks are waited for, and the most that it has with them.
const MORE: usize = 32;
const ENTRIES_MAX: usize = 1023;

/// A ring with its entries, before it serves.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    number: u16,
    device: File,
    payload_len: usize,
    entries: Vec<Arc<Entry>>,
    shared: Arc<Answered>,
    registered: mpsc::Sender<io::Result<()>>,
}

impl Ring {
    /// On the thread that will run it.
    pub fn build(
        number: u16,
        device: File,
        depth: usize,
        payload_len: usize,
        registered: mpsc::Sender<io::Result<()>>,
    ) -> io::Result<Ring> {
        // One more for the eventfd. SQE and CQE of an entry take 160 bytes.
        let size = (ENTRIES_MAX as u32 + 1).next_power_of_two();
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(size)?;
        let shared = Arc::new(Answered::new(depth)?);
        let entries = (0..depth as u32).map(|i| Entry::new(i, payload_len, shared.clone()));
        let entries = entries.collect::<io::Result<_>>()?;
        Ok(Ring { ring, number, device, payload_len, entries, shared, registered })
    }
}

/// A ring that serves.
pub struct Queue<C> {
    ring: Ring,
    session: Arc<Session<C>>,
    sinks: Vec<Arc<dyn Sink>>,
    /// Entries that have not left.
    left: usize,
    wake_armed: bool,
}

impl<C: Calls> Queue<C> {
    /// Serves `session`.
    pub fn new(ring: Ring, session: Arc<Session<C>>) -> Queue<C> {
        let sinks = ring.entries.iter().map(|e| e.clone() as Arc<dyn Sink>).collect();
        let left = ring.entries.len();
        Queue { ring, session, sinks, left, wake_armed: false }
    }

    /// Until every entry has left. `last` is given up as soon as the mount is gone.
    pub fn run(mut self, last: Arc<LastOut>) {
        // Requests of a CPU come to its queue: there the asker has just gone to sleep.
        if let Err(error) = sys::pin_to_cpu(usize::from(self.ring.number)) {
            tracing::debug!(queue = self.ring.number, %error, "a queue's thread is not kept on its CPU");
        }
        let registered = self.register();
        if let Err(error) = &registered {
            tracing::debug!(queue = self.ring.number, %error, "a queue is refused");
        }
        let _ = self.ring.registered.send(registered);
        let mut last = Some(last);
        let (mut ready, mut done, mut in_vain) = (Vec::new(), Vec::new(), InVain::default());
        while self.left > 0 {
            self.ring.shared.take(&mut ready);
            for number in ready.drain(..) {
                self.commit(number);
            }
            self.arm_wake();
            let idle = self.ring.shared.sleeps();
            if !idle {
                continue;
            }
            let waited = self.submit_and_wait();
            self.ring.shared.woke();
            if let Err(error) = waited
                && let Err(error) = in_vain.another(error)
            {
                // The ring itself fails: what it has would never be answered.
                if let Some(last) = &last {
                    last.failed(error);
                }
                return self.abandon();
            }
            done.extend(self.ring.ring.completion().map(|c| (c.user_data(), c.result(), c.flags())));
            if !done.is_empty() {
                in_vain = InVain::default();
            }
            for (data, result, flags) in done.drain(..) {
                if data == WAKE {
                    self.wake_armed = cqueue::more(flags);
                } else if result < 0 {
                    self.left -= 1;
                    self.leave(data, result, &mut last);
                } else {
                    self.serve(data as usize);
                    self.make_room_for_waits();
                }
            }
        }
    }

    /// Hands over what is prepared and sleeps until there is a request or an answer.
    fn submit_and_wait(&mut self) -> io::Result<usize> {
        let ring = &mut self.ring.ring;
        let prepared = ring.submission().len() as u32;
        let flags = wait_flags(ring.params().is_feature_no_iowait());
        // SAFETY: no argument is passed; what the entries point to lives until the thread ends (`push`).
        unsafe { ring.submitter().enter::<libc::sigset_t>(prepared, 1, flags.bits(), None) }
    }

    /// Gives all entries to the kernel; a refusal comes at once.
    fn register(&mut self) -> io::Result<()> {
        for number in 0..self.ring.entries.len() as u32 {
            self.push(number, abi::URING_CMD_REGISTER, 0);
        }
        self.ring.ring.submit()?;
        let refused: Vec<(u64, i32)> = self
            .ring
            .ring
            .completion()
            .filter(|c| c.result() < 0)
            .map(|c| (c.user_data(), c.result()))
            .collect();
        self.left -= refused.len();
        refused.first().map_or(Ok(()), |&(_, result)| Err(io::Error::from_raw_os_error(-result)))
    }

    /// Who waits for a lock holds an entry, whatever that takes, and half of them must stay for those who unlock. The payload of such a
    /// request is empty, so that an entry more costs its headers, one page.
    fn make_room_for_waits(&mut self) {
        let begin = self.ring.entries.len();
        if self.ring.shared.waits.available_permits() > 0 || begin + MORE > ENTRIES_MAX {
            return;
        }
        for number in begin..begin + MORE {
            let entry = match Entry::new(number as u32, self.ring.payload_len, self.ring.shared.clone()) {
                Ok(entry) => entry,
                Err(error) => {
                    tracing::warn!(queue = self.ring.number, %error, "no more room for those who wait for locks");
                    return;
                }
            };
            self.sinks.push(entry.clone());
            self.ring.entries.push(entry);
            self.left += 1;
            self.push(number as u32, abi::URING_CMD_REGISTER, 0);
            self.ring.shared.waits.add_permits(1);
        }
    }

    fn commit(&mut self, number: u32) {
        let id = self.ring.entries[number as usize].commit_id();
        self.push(number, abi::URING_CMD_COMMIT_AND_FETCH, id);
    }

    fn push(&mut self, number: u32, command: u32, commit_id: u64) {
        let request = UringCmdReq { commit_id, qid: self.ring.number, ..UringCmdReq::default() };
        let mut area = [0; 80];
        area[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        let device = types::Fd(self.ring.device.as_raw_fd());
        let entry = &self.ring.entries[number as usize];
        let mut sqe = opcode::UringCmd80::new(device, command)
            .cmd(area)
            .addr(Some(entry.iovecs()))
            .build()
            .user_data(u64::from(number));
        // The library has no setter for the number of iovecs.
        // SAFETY: `Entry128` is `repr(C)` over `struct io_uring_sqe`, whose `len` is a u32 at this place.
        unsafe { (&raw mut sqe).cast::<u8>().add(SQE_LEN_AT).cast::<u32>().write(IOVECS) };
        // SAFETY: the entry's memory lives until the thread ends, after all commands have; the device too.
        // There is a place for each entry and one more, so that the queue cannot be full.
        let pushed = unsafe { self.ring.ring.submission().push(&sqe) };
        assert!(pushed.is_ok(), "more commands than entries");
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let event = types::Fd(self.ring.shared.event());
        // Every write to it completes once more, until a completion says that no more follow.
        let poll = opcode::PollAdd::new(event, libc::POLLIN as u32).multi(true).build().user_data(WAKE);
        // SAFETY: a poll is given no memory; the ring's own reference keeps the file.
        self.wake_armed = unsafe { self.ring.ring.submission().push(&poll.into()) }.is_ok();
    }

    fn serve(&self, number: usize) {
        match self.ring.entries[number].take_request() {
            Ok((request, payload)) => self.session.handle(request, payload, &self.sinks[number]),
            Err(bad) => {
                tracing::error!(%bad, "request refused");
                // The kernel looks the request up by the entry, not by this number.
                drop(self.sinks[number].send(bad.unique.unwrap_or(u64::MAX), libc::EIO, &[]));
            }
        }
    }

    fn leave(&self, entry: u64, result: i32, last: &mut Option<Arc<LastOut>>) {
        let gone = matches!(-result, libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED);
        if gone {
            // The directory is free, whatever requests still do here.
            *last = None;
            return;
        }
        let error = io::Error::from_raw_os_error(-result);
        tracing::error!(queue = self.ring.number, entry, left = self.left, %error, "a ring entry is lost");
    }

    /// Keeps the memory that the kernel may still know of.
    fn abandon(self) {
        self.ring.entries.iter().cloned().for_each(std::mem::forget);
    }
}

/// Times in a row that the kernel could not take the ring's call. It is made again after a pause that doubles, from
/// 1 ms to half a second; after a minute of that it counts as failed.
#[derive(Default)]
struct InVain(u32);

impl InVain {
    const MAX: u32 = 128;

    /// Pauses, or gives the error that ends it.
    fn another(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR) => return Ok(()),
            Some(libc::EAGAIN | libc::EBUSY) if self.0 < InVain::MAX => {}
            Some(libc::EAGAIN | libc::EBUSY) => {
                let what = format!("the ring was entered {} times in vain: {error}", self.0);
                return Err(io::Error::other(what));
            }
            _ => return Err(error),
        }
        thread::sleep(Duration::from_millis(1 << self.0.min(9)));
        self.0 += 1;
        Ok(())
    }
}

/// A queue without requests waits for no disk. The kernel counts that as iowait unless told not to, which it must be
/// able to take (Linux 6.15).
fn wait_flags(can_be_told: bool) -> EnterFlags {
    let told = if can_be_told { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
    EnterFlags::GETEVENTS | told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_cannot_be_entered_fails_after_a_while() {
        let again = || io::Error::from_raw_os_error(libc::EAGAIN);
        let mut in_vain = InVain::default();
        assert!(in_vain.another(again()).is_ok());
        assert!(in_vain.another(io::Error::from_raw_os_error(libc::EINTR)).is_ok());
        assert_eq!(
            in_vain.another(io::Error::from_raw_os_error(libc::ENXIO)).unwrap_err().raw_os_error(),
            Some(libc::ENXIO)
        );
        let error = InVain(InVain::MAX).another(again()).unwrap_err();
        assert!(error.to_string().contains("128 times in vain"), "{error}");
    }

    #[test]
    fn waiting_for_requests_is_no_iowait_where_the_kernel_can_be_told() {
        assert_eq!(wait_flags(true).bits(), 1 | 1 << 7);
        assert_eq!(wait_flags(false).bits(), 1, "an older kernel refuses flags that it does not know");
    }
}
