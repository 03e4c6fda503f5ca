//! The requests that wait for their answer: who waits, for what, how long; and what an INTERRUPT does.
//! A signal is no reason to fail an ordinary file operation (programs do not expect EINTR from a disk),
//! so an interrupt takes effect only when the asking thread is being killed, and only on operations
//! that change nothing or whose outcome the dead will not miss: these are answered EINTR at once, while
//! the work below goes on to its own end. Everything else ends by its own deadline. But a wait for a lock
//! ends with any signal, as its caller expects.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use base::InodeNo;
use parking_lot::{Mutex, MutexGuard};

use crate::{abi::opcode, reply::Cell};

const PARTS: usize = 16;
/// Interrupts kept for requests that have not come yet.
const EARLY_MAX: usize = 256;
/// How often a thread that waits with a signal pending is looked at again: the kernel tells only of the
/// first signal, and a kill may be the second.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A request in flight, for listings.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// What is asked.
    pub operation: &'static str,
    /// Of which inode.
    pub ino: InodeNo,
    /// By which thread; 0 is the kernel itself.
    pub pid: u32,
    /// For how long.
    pub age: Duration,
}

/// The table. One lock a part, never two at once, never across an await.
pub struct Waiting {
    parts: Vec<Mutex<HashMap<u64, Arc<Cell>>>>,
    early: Mutex<VecDeque<u64>>,
    early_count: AtomicUsize,
}

impl Default for Waiting {
    fn default() -> Waiting {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Waiting { parts, early: Mutex::default(), early_count: AtomicUsize::new(0) }
    }
}

impl Waiting {
    fn part(&self, unique: u64) -> MutexGuard<'_, HashMap<u64, Arc<Cell>>> {
        // The kernel counts in steps of two: the low bit marks interrupts.
        self.parts[(unique >> 1) as usize % PARTS].lock()
    }

    /// A request begins to wait. True if its interrupt came before it.
    pub fn enter(&self, unique: u64, cell: Arc<Cell>) -> bool {
        self.part(unique).insert(unique, cell);
        if self.early_count.load(SeqCst) == 0 {
            return false;
        }
        let mut early = self.early();
        let before = early.len();
        early.retain(|&u| u != unique);
        self.early_count.store(early.len(), SeqCst);
        early.len() < before
    }

    /// An interrupt came for a request that is not in the table: it is on its way through another queue,
    /// or answered. Kept for it, among the latest of such. If it has just come, it is given.
    pub fn note_early(&self, unique: u64) -> Option<Arc<Cell>> {
        {
            let mut early = self.early();
            if early.len() >= EARLY_MAX {
                early.pop_front();
            }
            early.push_back(unique);
            self.early_count.store(early.len(), SeqCst);
        }
        self.find(unique)
    }

    fn early(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.early.lock()
    }

    /// It waits no more.
    pub fn leave(&self, unique: u64) {
        self.part(unique).remove(&unique);
    }

    /// The request, while it waits.
    pub fn find(&self, unique: u64) -> Option<Arc<Cell>> {
        self.part(unique).get(&unique).cloned()
    }

    /// Nobody waits for a lock any more.
    pub fn end_lock_waits(&self) {
        for part in &self.parts {
            let part = part.lock();
            let waits = part.values().filter(|cell| cell.header().opcode == opcode::SETLKW);
            waits.for_each(|cell| cell.interrupted().notify_one());
        }
    }

    /// Answers requests that the kernel has pages locked for with an error. What is done for them goes on.
    pub fn cut_pages(&self, error: i32) {
        for part in &self.parts {
            let of_pages = |cell: &&Arc<Cell>| matches!(cell.header().opcode, opcode::READ | opcode::WRITE);
            let cells: Vec<_> = part.lock().values().filter(of_pages).cloned().collect();
            cells.iter().for_each(|cell| cell.cut(error));
        }
    }

    /// All requests in flight, longest first.
    pub fn list(&self) -> Vec<InFlight> {
        let mut list = Vec::new();
        for part in &self.parts {
            let part = part.lock();
            list.extend(part.values().map(|cell| cell.in_flight()));
        }
        list.sort_by_key(|r| std::cmp::Reverse(r.age));
        list
    }
}

/// Waits until the request is answered or its asker is being killed; answers EINTR then.
pub async fn interrupted(cell: Arc<Cell>) {
    if cell.header().opcode == opcode::SETLKW {
        return cell.interrupted().notify_one();
    }
    if !may_be_cut(cell.header().opcode) {
        return;
    }
    while !cell.is_answered() {
        if is_being_killed(cell.header().pid) {
            cell.cut(libc::EINTR);
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn may_be_cut(operation: u32) -> bool {
    matches!(
        operation,
        opcode::LOOKUP
            | opcode::GETATTR
            | opcode::STATX
            | opcode::READLINK
            | opcode::READ
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::STATFS
            | opcode::GETXATTR
            | opcode::LISTXATTR
            | opcode::LSEEK
            | opcode::FSYNC
            | opcode::FSYNCDIR
    )
}

/// Whether SIGKILL is pending for a thread; a thread that is gone counts as killed.
fn is_being_killed(thread: u32) -> bool {
    if thread == 0 {
        return false;
    }
    match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => has_sigkill_pending(&status),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn has_sigkill_pending(status: &str) -> bool {
    let kill_bit = 1u64 << (libc::SIGKILL - 1);
    status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")))
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & kill_bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_kills_are_seen_in_either_mask() {
        assert!(has_sigkill_pending("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_sigkill_pending("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(!has_sigkill_pending("SigPnd:\t0000000000002000\nShdPnd:\t0000000000000000\n"));
        assert!(!is_being_killed(std::process::id()));
        assert!(!is_being_killed(0));
    }
}
