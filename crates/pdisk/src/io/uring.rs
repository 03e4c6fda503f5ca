//! The io_uring engine: one ring and one thread a queue.
//! A slot owns the job (buffer, file) from submission to its last completion; short transfers are
//! submitted again for the rest. What the kernel cannot take now (EAGAIN) is submitted again after a pause that
//! doubles, [`AGAIN_MAX`] times; then the request ends with an error that says so. Buffers of the node's region and files go by their registered numbers.
//! A thread that has nothing to do sleeps in the kernel, where completions and an eventfd wake it; at a fast
//! pace it first waits actively for a moment, because being woken costs more than that (`settings`).
//! The unsafe code: pushing entries whose memory the slots keep alive, registering the region.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
    sync::{Arc, atomic::Ordering, mpsc},
    time::Instant,
};

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};

use super::{
    again::{AGAIN_MAX, Next, PAUSES, next},
    buffers::{Buffers, Region},
    file::IoFile,
    inbox::{Inbox, Queue},
    lanes::Lanes,
    request::{Job, Op},
    settings::{Pace, Settings},
};
use crate::options::{IoConfig, QUEUE_DEPTH_MAX};

const WAKE: u64 = u64::MAX;
/// In the number of a slot: the pause before it is submitted again is over.
const PAUSED: u64 = 1 << 32;
/// Entries handed to the kernel at once; more go in several calls.
const SUBMIT_MAX: u32 = 256;
/// Files in a ring's table; further ones go unregistered.
const FILES: u32 = 256;
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 16;

/// Starts the queues. `Err` at the first that cannot be had. The text: why memory or files are not
/// registered, if they are not.
pub(super) fn start(
    config: &IoConfig,
    settings: &Arc<Settings>,
    buffers: &Buffers,
) -> io::Result<(Vec<Queue>, Option<String>)> {
    let mut queues = Vec::new();
    let mut unregistered = None;
    for q in 0..config.num_io_queues {
        let (queue, why) = start_queue(q, Arc::clone(settings), buffers.region().cloned())?;
        queues.push(queue);
        unregistered = unregistered.or(why);
    }
    Ok((queues, unregistered))
}

fn start_queue(
    number: u32,
    settings: Arc<Settings>,
    region: Option<Arc<Region>>,
) -> io::Result<(Queue, Option<String>)> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fd is new and nobody else owns it.
    let eventfd = unsafe { File::from_raw_fd(fd) };
    let inbox = Inbox::new(number, Some(eventfd));
    let (tx, rx) = mpsc::channel();
    let thread = {
        let inbox = Arc::clone(&inbox);
        std::thread::Builder::new().name(format!("io{number}")).spawn(move || {
            // Made on this thread: the kernel binds a single-issuer ring to it.
            match Loop::new(inbox, settings, region) {
                Ok((ring, why)) => {
                    // SAFETY: gettid takes no arguments.
                    let tid = unsafe { libc::gettid() };
                    let _ = tx.send(Ok((tid, why)));
                    ring.run();
                }
                Err(e) => {
                    let _ = tx.send(Err(e));
                }
            }
        })?
    };
    let (tid, why) = rx.recv().unwrap_or_else(|_| Err(io::Error::other("the I/O thread ended")))?;
    inbox.jobs.lock().threads.push(thread);
    Ok((Queue { inbox, tid }, why))
}

fn build() -> io::Result<IoUring> {
    // A place for every completion that can come: all slots and the wake-up.
    let completions = (QUEUE_DEPTH_MAX + 1).next_power_of_two();
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(completions)
        .build(SUBMIT_MAX)
        // Before Linux 6.1.
        .or_else(|_| IoUring::builder().setup_cqsize(completions).build(SUBMIT_MAX))?;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Fsync::CODE,
        opcode::PollAdd::CODE,
        opcode::Timeout::CODE,
    ];
    for code in needed {
        if !probe.is_supported(code) {
            return Err(io::Error::other(format!("io_uring lacks opcode {code}")));
        }
    }
    Ok(ring)
}

/// The ring's table of files.
#[derive(Default)]
struct Files {
    places: HashMap<u64, u32>,
    free: Vec<u32>,
}

struct Slot {
    job: Job,
    done: usize,
    /// Times that it was submitted again without anything done.
    again: u32,
}

/// What the kernel has. If the thread panics, what is in flight stays where it is.
struct Slots(Vec<Option<Slot>>);

impl Drop for Slots {
    fn drop(&mut self) {
        // The ring is closed by then, but its requests may end later.
        self.0.drain(..).flatten().for_each(std::mem::forget);
    }
}

struct Loop {
    ring: IoUring,
    inbox: Arc<Inbox>,
    settings: Arc<Settings>,
    /// Registered; kept until the ring is gone.
    region: Option<Arc<Region>>,
    files: Files,
    slots: Slots,
    free: Vec<usize>,
    waiting: Lanes<Job>,
    wake_armed: bool,
    pace: Pace,
}

impl Loop {
    fn new(
        inbox: Arc<Inbox>,
        settings: Arc<Settings>,
        region: Option<Arc<Region>>,
    ) -> io::Result<(Loop, Option<String>)> {
        let ring = build()?;
        let mut why = None;
        let mut refused = |what: &str, e: io::Error| why = Some(format!("{what}: {e}"));
        let region = region.filter(|region| {
            // SAFETY: the region stays mapped until after the ring is gone (`run`).
            let registered = unsafe { ring.submitter().register_buffers(&region.parts()) };
            registered.map_err(|e| refused("register I/O memory", e)).is_ok()
        });
        let table = ring.submitter().register_files_sparse(FILES);
        let places = if table.map_err(|e| refused("register files", e)).is_ok() { FILES } else { 0 };
        let ring = Loop {
            ring,
            inbox,
            settings,
            region,
            files: Files { places: HashMap::new(), free: (0..places).rev().collect() },
            slots: Slots(Vec::new()),
            free: Vec::new(),
            waiting: Lanes::default(),
            wake_armed: false,
            pace: Pace::new(Instant::now()),
        };
        Ok((ring, why))
    }

    fn in_flight(&self) -> usize {
        self.slots.0.len() - self.free.len()
    }

    fn run(mut self) {
        let mut in_vain = 0u32;
        loop {
            let came = self.take_jobs();
            let stopping = self.inbox.stop.load(Ordering::SeqCst);
            if stopping && self.waiting.waiting() == 0 && self.in_flight() == 0 {
                break;
            }
            self.forget_closed();
            self.arm_wake();
            let turned = self.turn();
            let completed = self.reap();
            match turned.map_err(|e| (e.raw_os_error(), e)) {
                Ok(()) | Err((Some(libc::EINTR | libc::ETIME), _)) => in_vain = 0,
                // The kernel owns the buffers of what is in flight, and nothing is known of it: they must stay
                // where they are, and the ring is entered again, ever more seldom.
                Err((number, error)) => {
                    let passing = matches!(number, Some(libc::EAGAIN | libc::EBUSY));
                    if !passing || in_vain == AGAIN_MAX {
                        tracing::error!(%error, "io_uring_enter");
                    }
                    in_vain = if completed > 0 { 0 } else { in_vain + 1 };
                    std::thread::sleep(std::time::Duration::from_millis(1 << in_vain.min(AGAIN_MAX)));
                }
            }
            self.pace.add(came + completed, Instant::now());
        }
        // The region goes when the ring is gone.
        let Loop { ring, region, .. } = self;
        drop(ring);
        drop(region);
    }

    /// Puts what has come into slots, each pdisk's up to its share of the depth. Returns how many came.
    fn take_jobs(&mut self) -> u32 {
        let mut came = 0;
        if self.inbox.queued.load(Ordering::SeqCst) > 0 {
            let mut jobs = self.inbox.jobs.lock();
            came = jobs.list.len() as u32;
            jobs.list.drain(..).for_each(|job| self.waiting.push(job.lane(), job));
            self.inbox.queued.store(0, Ordering::SeqCst);
        }
        let share = self.inbox.share(self.settings.depth());
        while let Some(job) = self.waiting.next(share) {
            if job.request.file.in_memory {
                self.copy(job);
                continue;
            }
            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.0.push(None);
                self.slots.0.len() - 1
            });
            self.slots.0[slot] = Some(Slot { job, done: 0, again: 0 });
            self.push_slot(slot);
        }
        self.inbox.deepest.fetch_max(self.in_flight(), Ordering::Relaxed);
        came
    }

    /// Does a request of a file in memory here and now: the ring would hand it to a worker thread of the kernel,
    /// and being woken twice costs more than the copy.
    fn copy(&mut self, mut job: Job) {
        let result = job.request.perform();
        self.waiting.end(job.lane());
        self.inbox.end(job, result);
    }

    /// Hands over what is prepared, and waits until something can be done.
    fn turn(&mut self) -> io::Result<()> {
        let pdisks = self.inbox.pdisks.load(Ordering::Relaxed).max(1);
        if self.in_flight() >= pdisks * self.inbox.share(self.settings.depth()) {
            // No room for any: only a completion helps, new requests need not wake us.
            return self.wait();
        }
        let spin = self.settings.spin();
        if self.pace.expects_within(spin) && self.settings.start_spinning() {
            let seen = self.ring.submit().map(|_| self.look_for(spin));
            self.settings.stop_spinning();
            if seen? {
                return Ok(());
            }
        }
        self.inbox.sleeping.store(true, Ordering::SeqCst);
        // Told to stop it still waits for what is in flight.
        let idle = self.inbox.queued.load(Ordering::SeqCst) == 0
            && (!self.inbox.stop.load(Ordering::SeqCst) || self.in_flight() > 0)
            && self.inbox.closed.lock().is_empty();
        let result = if idle { self.wait() } else { self.ring.submit().map(drop) };
        self.inbox.sleeping.store(false, Ordering::SeqCst);
        result
    }

    /// Waits actively, for `time` at most. True: there is something to do.
    fn look_for(&mut self, time: std::time::Duration) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if !self.ring.completion().is_empty() || self.inbox.queued.load(Ordering::Relaxed) > 0 {
                    return true;
                }
                if self.ring.submission().taskrun() {
                    // Completions that the kernel hands over when it is entered.
                    return self.ring.submit().is_ok();
                }
                std::hint::spin_loop();
            }
            // No yield: whoever got the CPU could keep it for a whole slice, a hundred times `time`.
            if start.elapsed() >= time {
                return false;
            }
        }
    }

    fn push_slot(&mut self, index: usize) {
        let Some(slot) = &mut self.slots.0[index] else { return };
        let request = &mut slot.job.request;
        let place = place_of(&mut self.files, &self.ring, &request.file);
        let offset = request.offset + slot.done as u64;
        let region = self.region.as_deref();
        let (file, op, done) = (&request.file.file, &mut request.op, slot.done);
        let entry = match place {
            Some(place) => entry(place as i32, op, done, offset, region).flags(squeue::Flags::FIXED_FILE),
            None => entry(file.as_raw_fd(), op, done, offset, region),
        };
        if let Err(error) = self.push(entry.user_data(index as u64)) {
            self.end(index, Err(error));
        }
    }

    /// An error: the kernel takes nothing, and the entry is not in the queue.
    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        for again in 0.. {
            // SAFETY: buffer and file of the entry are owned by a slot (or are the eventfd, or a constant), which
            // lives until its completion has been reaped.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            // The submission queue is full: hand it to the kernel.
            let Err(error) = self.ring.submit() else { continue };
            tracing::debug!(%error, "io_uring submit");
            if again == AGAIN_MAX {
                let what = format!("the ring takes no request, asked {again} times: {error}");
                return Err(io::Error::other(what));
            }
            std::thread::sleep(std::time::Duration::from_millis(1 << again));
        }
        Ok(())
    }

    /// One poll of the eventfd reports every write to it; its counter is never read.
    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        if let Some(fd) = &self.inbox.eventfd {
            let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32);
            self.wake_armed = self.push(entry.multi(true).build().user_data(WAKE)).is_ok();
        }
    }

    /// Closed files leave the table, or the kernel would keep them open.
    fn forget_closed(&mut self) {
        for number in std::mem::take(&mut *self.inbox.closed.lock()) {
            let Some(place) = self.files.places.remove(&number) else { continue };
            match self.ring.submitter().register_files_update(place, &[-1]) {
                Ok(_) => self.files.free.push(place),
                Err(error) => tracing::warn!(%error, "take a closed file out of the ring's table"),
            }
        }
    }

    /// Submits what is queued and waits for completions, gathered by count and by time.
    fn wait(&mut self) -> io::Result<()> {
        let (count, time) = self.settings.coalesce();
        let want = count.min(self.in_flight()).max(1);
        if want > 1 {
            let time = types::Timespec::from(time);
            let args = types::SubmitArgs::new().timespec(&time);
            match self.ring.submitter().submit_with_args(want, &args) {
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => {}
                other => return other.map(drop),
            }
            if !self.ring.completion().is_empty() {
                return Ok(());
            }
        }
        let can_be_told = self.ring.params().is_feature_no_iowait();
        let flags = wait_flags(can_be_told, self.in_flight() > 0);
        let prepared = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed; what the entries point to is owned by slots (`push`).
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(prepared, 1, flags.bits(), None) }.map(drop)
    }

    /// Ends what is complete. Returns how many completions there were.
    fn reap(&mut self) -> u32 {
        let mut count = 0;
        loop {
            let Some(c) = self.ring.completion().next() else { break };
            if c.user_data() == WAKE {
                self.wake_armed = cqueue::more(c.flags());
                continue;
            }
            // Counted before it is answered: who has the answer finds it counted.
            self.inbox.rounds.fetch_add(u64::from(count == 0), Ordering::Relaxed);
            count += 1;
            match c.user_data() {
                data if data & PAUSED != 0 => self.push_slot((data & !PAUSED) as usize),
                data => self.finish(data as usize, c.result()),
            }
        }
        count
    }

    fn finish(&mut self, index: usize, result: i32) {
        let Some(slot) = &mut self.slots.0[index] else { return };
        let len = slot.job.request.op.len();
        match next(result, slot.done, len, slot.again) {
            Next::End(outcome) => self.end(index, outcome),
            Next::Rest => {
                slot.done += result as usize;
                slot.again = 0;
                self.push_slot(index);
            }
            Next::Again(pause) => {
                slot.again += 1;
                // Memory that lives for ever.
                let pause = opcode::Timeout::new(&PAUSES[pause as usize]).build();
                if let Err(error) = self.push(pause.user_data(index as u64 | PAUSED)) {
                    self.end(index, Err(error));
                }
            }
        }
    }

    fn end(&mut self, index: usize, outcome: io::Result<()>) {
        if let Some(slot) = self.slots.0[index].take() {
            self.free.push(index);
            self.waiting.end(slot.job.lane());
            self.inbox.end(slot.job, outcome);
        }
    }
}

/// The place of a file in the ring's table; at its first request it gets one.
fn place_of(files: &mut Files, ring: &IoUring, file: &IoFile) -> Option<u32> {
    if let Some(place) = files.places.get(&file.number) {
        return Some(*place);
    }
    let place = files.free.pop()?;
    match ring.submitter().register_files_update(place, &[file.file.as_raw_fd()]) {
        Ok(_) => {
            files.places.insert(file.number, place);
            Some(place)
        }
        Err(error) => {
            // Without the table it goes as well. The place is not tried again.
            tracing::debug!(%error, "register a file");
            None
        }
    }
}

/// The entry for what of `op` is not `done` yet. Its memory is the caller's to keep.
fn entry(fd: i32, op: &mut Op, done: usize, offset: u64, region: Option<&Region>) -> squeue::Entry {
    let fd = types::Fd(fd);
    match op {
        Op::Read(window) => {
            let rest = &mut window.as_mut()[done..];
            let (start, len) = (rest.as_mut_ptr(), rest.len() as u32);
            match region.and_then(|r| r.part_of(start, rest.len())) {
                Some(part) => opcode::ReadFixed::new(fd, start, len, part).offset(offset).build(),
                None => opcode::Read::new(fd, start, len).offset(offset).build(),
            }
        }
        Op::Write(bytes) => {
            let rest = &bytes[done..];
            let (start, len) = (rest.as_ptr(), rest.len() as u32);
            match region.and_then(|r| r.part_of(start, rest.len())) {
                Some(part) => opcode::WriteFixed::new(fd, start, len, part).offset(offset).build(),
                None => opcode::Write::new(fd, start, len).offset(offset).build(),
            }
        }
        Op::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    }
}

/// A thread that waits for work alone waits for no disk. The kernel counts that as iowait unless told not to, which it
/// must be able to take (Linux 6.15).
fn wait_flags(can_be_told: bool, disk_works: bool) -> EnterFlags {
    let told = if can_be_told && !disk_works { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
    EnterFlags::GETEVENTS | told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_for_the_disk_is_iowait_where_the_kernel_can_be_told() {
        assert_eq!(wait_flags(true, false).bits(), 1 | 1 << 7);
        assert_eq!(wait_flags(true, true).bits(), 1);
        assert_eq!(wait_flags(false, false).bits(), 1, "an older kernel refuses flags that it does not know");
    }
}
