//! FUSE over io_uring: one queue for every CPU the machine can have, each with its thread, its ring and
//! its entries. The kernel puts a request into an entry of the queue of the CPU it was made on; the
//! answer goes back in the same entry, by the same system call that fetches the next request.
//!
//! Order at a mount: rings are built ([`Rings::prepare`]); only then the capability is advertised; then
//! entries are registered ([`Rings::start`]). From the answer to INIT until all queues are registered
//! the kernel holds requests back; a refused registration makes it use the classic way, and so do we.
//! Beside the rings a classic reader goes on: FORGET and INTERRUPT come only there, and notifications
//! go only there.

mod answered;
mod entry;
mod queue;

use std::{
    fs::File,
    io,
    sync::{Arc, mpsc},
    thread,
};

use tokio::runtime;

use crate::{abi, calls::Calls, device::LastOut, session::Session, tune};

use queue::{Queue, Ring};

/// Memory of all entries of a mount together, unless each queue then had less than `DEPTH_MIN`. It is
/// backed only where requests were that large, and the kernel uses the latest answered entry first; but what was
/// backed once stays so.
const MEMORY_MAX: usize = 256 << 20;
/// Entries of a queue: as many requests of one CPU are with us at once, those that wait included; more
/// stay in the kernel, whatever they ask for.
const DEPTH_MIN: usize = 16;
/// The same, at most.
pub const DEPTH_MAX: usize = 256;

/// The queues of a mount, with their rings built, not yet known to the kernel's FUSE.
pub struct Rings {
    starts: Vec<mpsc::SyncSender<Start>>,
    started: mpsc::Receiver<io::Result<()>>,
}

type Start = Box<dyn FnOnce(Ring) + Send>;

/// The most memory that requests of a mount take with rings, for requests with up to `max_write` bytes.
pub fn memory_max(max_write: u32) -> u64 {
    let queues = tune::possible_cpus().unwrap_or(1);
    let payload_len = payload_len(max_write);
    (queues * depth_by_memory(queues, payload_len) * (payload_len + 4096)) as u64
}

/// The kernel wants room for all pages that a request may have, though it never fills the last.
fn payload_len(max_write: u32) -> usize {
    (tune::pages_for(max_write) as usize * 4096).max(abi::URING_PAYLOAD_MIN)
}

/// Entries of each queue for requests of this size.
fn depth_by_memory(queues: usize, payload_len: usize) -> usize {
    (MEMORY_MAX / (queues.max(1) * payload_len.max(1))).clamp(DEPTH_MIN, DEPTH_MAX)
}

impl Rings {
    /// Builds the rings, each on its own thread, for requests with up to `max_write` bytes, with `depth`
    /// entries a queue (`None`: by memory). Fails where io_uring or FUSE over it is not allowed.
    pub fn prepare(device: &File, max_write: u32, depth: Option<usize>) -> io::Result<Rings> {
        if !tune::allow_uring() {
            let why = "FUSE over io_uring is off: echo Y > /sys/module/fuse/parameters/enable_uring";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let queues = tune::possible_cpus().ok_or(io::Error::other("the number of CPUs is not known"))?;
        let payload_len = payload_len(max_write);
        let depth = depth.unwrap_or_else(|| depth_by_memory(queues, payload_len));
        let (built, is_built) = mpsc::channel();
        let (tell, started) = mpsc::channel();
        let mut starts = Vec::new();
        for number in 0..queues {
            let (start, to_start) = mpsc::sync_channel::<Start>(1);
            let (device, built, tell) = (device.try_clone()?, built.clone(), tell.clone());
            thread::Builder::new().name(format!("fuse-ring-{number}")).spawn(move || {
                // Made on this thread: the kernel binds a single-issuer ring to it.
                match Ring::build(number as u16, device, depth, payload_len, tell) {
                    Ok(ring) => {
                        let _ = built.send(Ok(()));
                        // A closed channel: the mount came to nothing.
                        if let Ok(start) = to_start.recv() {
                            start(ring);
                        }
                    }
                    Err(error) => drop(built.send(Err(error))),
                }
            })?;
            starts.push(start);
        }
        for _ in 0..queues {
            is_built.recv().map_err(|_| io::Error::other("a ring's thread ended"))??;
        }
        Ok(Rings { starts, started })
    }

    /// Registers all entries and begins to serve; an error if the kernel refuses, which then uses the
    /// classic way.
    pub fn start<C: Calls>(
        self,
        session: &Arc<Session<C>>,
        runtime: &runtime::Handle,
        last: &Arc<LastOut>,
    ) -> io::Result<()> {
        let queues = self.starts.len();
        for start in self.starts {
            let (session, runtime, last) = (session.clone(), runtime.clone(), last.clone());
            let run: Start = Box::new(move |ring| {
                let _inside = runtime.enter();
                Queue::new(ring, session).run(last);
            });
            start.send(run).map_err(|_| io::Error::other("a ring's thread ended"))?;
        }
        let mut outcome = Ok(());
        for _ in 0..queues {
            let one = self.started.recv().map_err(|_| io::Error::other("a ring's thread ended"));
            outcome = outcome.and(one.and_then(|registered| registered));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_every_queue_has_some_entries() {
        assert_eq!(depth_by_memory(1, 1 << 20), 256);
        assert_eq!(depth_by_memory(4, 1 << 20), 64);
        assert_eq!(depth_by_memory(512, 4 << 20), 16);
        assert_eq!(depth_by_memory(2, 4 << 20), 32);
    }
}
