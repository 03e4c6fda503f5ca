//! The state of a running pdisk: what one lock guards (`store`), and who waits for it to change.
//!
//! In order of the log: `tail <= checkpoint's log position <= head`; the log bytes from `tail` to `head`, those that are pending
//! and those that are promised never exceed the ring. In order of records: `durable <= rsn`, and `pending` holds what is between
//! them, but for the group that is being written.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use base::StripId;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    checkpoint::Head, crcmap::CrcMap, deletes::RecentDeletes, extent::Extent, index::Index, log::LogPoint,
    marks::Marks, space::Space,
};

/// Called once, with whether the record has become durable (false: the pdisk failed).
pub(crate) type Waiter = Box<dyn FnOnce(bool) + Send>;

/// A record that is applied but not in the log yet.
pub(crate) struct Entry {
    pub rsn: u64,
    pub meta: Vec<u8>,
    pub payload: Bytes,
    /// Bytes of it were written to the data file: flush that first.
    pub data: bool,
    /// What was counted into `State::pending_log`.
    pub counted: u64,
}

/// Units freed, and strips whose pending units may go to their place, since the generation before.
pub(crate) struct Generation {
    /// Cloned by every read and in-place write that starts in it.
    pub token: Arc<()>,
    /// The same of bytes that were lent where they lie. Nobody waits for these when the pdisk is closed: a reader that
    /// is slow to take its reply finds wrong CRCs then.
    pub lent: Arc<()>,
    /// The last record of it, once it is closed.
    pub last_rsn: u64,
    pub freed: Vec<Extent>,
    pub to_clean: Vec<(StripId, u64)>,
}

impl Generation {
    pub fn new() -> Generation {
        Generation {
            token: Arc::new(()),
            lent: Arc::new(()),
            last_rsn: u64::MAX,
            freed: Vec::new(),
            to_clean: Vec::new(),
        }
    }

    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.token) == 1 && Arc::strong_count(&self.lent) == 1
    }
}

/// Closed generations wait for readers. Who has ended a read asks this without the lock, and lets go what is over if so.
#[derive(Default)]
pub(crate) struct Draining(AtomicBool);

impl Draining {
    /// Lets go what is over, under the lock, by `let_go`, which says whether anything has to wait. `waits`: before that, anything does.
    pub fn look(&self, waits: bool, let_go: impl FnOnce() -> bool) {
        // Before it is looked who still reads: who ends after that look finds it.
        self.0.store(waits, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !let_go() {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    /// Whether there is anything to let go; asked after the token was dropped.
    pub fn asks(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}

/// What there is no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Short {
    /// A group of the log.
    Log,
    /// Small versions, to go to their place.
    Place,
    /// A checkpoint.
    Checkpoint,
}

/// Everything that changes.
pub(crate) struct State {
    pub index: Index,
    pub crcs: CrcMap,
    pub space: Space,
    /// The last record applied.
    pub rsn: u64,
    /// The last record that is durable.
    pub durable: u64,
    /// The last record that no crash takes back: one behind its group proves that, or its group names no bytes in the data
    /// file. What is durable and not firm is durable by these bytes: they must stay until then (`log`, "The last group").
    pub firm: u64,
    /// The last record that took a strip out of the index.
    pub removed: u64,
    /// The last record of the life before this one ([`Pdisk::begin_life`](crate::Pdisk::begin_life)).
    pub inherited: u64,
    /// Strips of that life with a prepared version that a delete of this life has left, and the record of it.
    pub left_prepared: HashMap<StripId, u64>,
    /// Where the next group goes (the one in flight, while there is one).
    pub head: LogPoint,
    /// The log is needed from here on.
    pub tail: u64,
    pub pending: VecDeque<Entry>,
    /// Log bytes of `pending` and of the group in flight, an upper bound.
    pub pending_log: u64,
    /// Log bytes promised to operations that have not appended yet.
    pub reserved_log: u64,
    pub waiters: Vec<(u64, Waiter)>,
    /// Operations that wait for room in the log.
    pub room_waiters: Vec<oneshot::Sender<()>>,
    /// Operations that wait for units to come back.
    pub space_waiters: Vec<oneshot::Sender<()>>,
    pub generations: VecDeque<Generation>,
    /// Strips whose pending units up to this record may go to their place.
    pub ready: BTreeMap<StripId, u64>,
    pub deletes: RecentDeletes,
    /// Slot and head of the newest checkpoint.
    pub checkpoint: (usize, Head),
    /// Points of the log that may be asked for.
    pub marks: Marks,
    /// The last group holds records, and nothing behind it proves that it was whole.
    pub unproved: bool,
    /// The host's file system has no room for something that must be written: what, and what it said.
    pub short: Option<(Short, String)>,
    pub failed: Option<String>,
    /// The committer waits for so many pending records; 0: it does not wait. Waking it costs a system call.
    pub wake_committer_at: usize,
    /// Said to be full, and not emptied since.
    pub full: bool,
    pub stopping: bool,
}

impl State {
    /// The record that says what is known of a strip: its last one; of a strip that is not here, the last that took any away.
    pub fn known_by(&self, strip: StripId) -> u64 {
        self.index.get(strip).map_or(self.removed, |s| s.rsn)
    }

    /// Whether somebody waits for units that only a group behind the last one gives back.
    pub fn wants_proof(&self) -> bool {
        self.firm < self.durable && !self.space_waiters.is_empty()
    }

    /// Whether nothing has asked in this life for what is prepared on a strip whose last record is `rsn`.
    pub fn is_inherited(&self, strip: StripId, rsn: u64) -> bool {
        rsn <= self.inherited || self.left_prepared.get(&strip) == Some(&rsn)
    }
}

/// Log bytes an entry takes at most, alone in its group.
pub(crate) fn log_cost(meta: usize, payload: usize) -> u64 {
    crate::log::group_len(meta, payload) as u64
}

pub(crate) fn wake_room_waiters(state: &mut State) {
    for waiter in state.room_waiters.drain(..) {
        // Whoever waited may be gone.
        let _ = waiter.send(());
    }
}

/// Units have come back. Nothing else wakes these: two that wait would wake each other until they give up.
pub(crate) fn wake_space_waiters(state: &mut State) {
    for waiter in state.space_waiters.drain(..) {
        // Whoever waited may be gone.
        let _ = waiter.send(());
    }
}

/// Takes back a promise of log bytes: what they were for is appended by now, or never will be.
pub(crate) fn give_back_log(state: &mut State, bytes: u64) {
    state.reserved_log = state.reserved_log.checked_sub(bytes).expect("a promise is given back once");
    wake_room_waiters(state);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read ends just after it was seen under way: one of the two must find the other.
    #[test]
    fn who_ends_after_the_look_lets_go() {
        let draining = Draining::default();
        let token = Arc::new(());
        let reader = Arc::clone(&token);
        let mut asked = false;
        draining.look(true, || {
            let used = Arc::strong_count(&token) > 1;
            drop(reader);
            asked = draining.asks();
            used
        });
        assert!(asked, "what it had kept is let go by nobody");
        draining.look(true, || Arc::strong_count(&token) > 1);
        assert!(!draining.asks());
    }
}
