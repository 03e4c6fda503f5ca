//! The running store: the state under one lock, and how it changes.
//! Every change is a log record, applied to the index at once and appended to the pending list; it is
//! answered when the committer has made it durable (`commit`). The lock is never held across I/O.
//!
//! Freed units wait in a generation until (1) the record that freed them is firm (`State::firm`) and (2) every read
//! or in-place write that may still use them has ended. In-place writes of small versions wait the same
//! way after the adoption, so that a reader of the old version never sees new bytes, and recovery finds what the last group names.
//! The first write or flush error latches the pdisk failed: every waiter is answered `Failed`. A write for which the
//! host's file system has no room is the exception: it is tried again (`is_short`), or its operation refused.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, atomic::AtomicBool},
};

use base::{
    BufPool, StripId,
    events::{self, Severity},
    units::{UNIT, human_size},
};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;
use wire::strip::StripRefusal;

use crate::{
    files::Files,
    io::{IoNode, Queues},
    marks::Marks,
    options::{INDEX_MEMORY_MIN, OpenOptions},
    record::Record,
    recover::Recovered,
    state::{Draining, Entry, Generation, Short, State, Waiter, give_back_log, log_cost, wake_space_waiters},
    stats::Stats,
    watch::CommitWatch,
};

/// Bytes are lent out of the data file; their units are not used again while it lives.
pub(crate) struct Lease {
    lent: Option<Arc<()>>,
    store: Arc<Store>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lent = None;
        self.store.after_io();
    }
}

pub(crate) struct Store {
    pub files: Files,
    pub node: IoNode,
    pub queues: Queues,
    pub options: OpenOptions,
    /// Units that only strips with an adopted version may take.
    pub reserve_units: u64,
    /// Bytes that the index may take.
    pub index_max: u64,
    /// Largest payload that goes to the log.
    pub fast_write_max: usize,
    /// Memory of small payloads that wait for their place.
    pub small: BufPool,
    pub stats: Stats,
    /// The data file is flushed together with the record that names its bytes, not before that is written.
    pub flush_together: AtomicBool,
    state: Mutex<State>,
    pub draining: Draining,
    /// Wakes the committer, the keeper.
    pub commit_wake: Condvar,
    pub keeper_wake: Condvar,
    /// A commit has ended.
    pub committed: Condvar,
    pub commit_watch: CommitWatch,
}

/// Told when less than this part of the pdisk is left for new strips: clients are refused a little later.
const FULL: u64 = 16;

/// Idle memory for small payloads.
const IDLE_SMALL: usize = 8 << 20;

impl Store {
    pub fn new(files: Files, node: IoNode, options: OpenOptions, recovered: Recovered) -> Store {
        let queues = node.assign(options.queues_per_pdisk as usize, &files.dir);
        let units = files.label.units;
        let reserve_units = options.reserve.map_or(units / 32, |r| r / UNIT as u64).min(units);
        let index_max = options.index_memory.unwrap_or((units * UNIT as u64 / 64).max(INDEX_MEMORY_MIN));
        let group_max = crate::log::group_max(files.label.log_bytes);
        let mut ready = BTreeMap::new();
        for (id, s) in recovered.index.iter_after(None) {
            if let Some(v) = s.adopted.as_ref().filter(|v| !v.pending.is_empty()) {
                ready.insert(id, v.rsn);
            }
        }
        let state = State {
            index: recovered.index,
            crcs: recovered.crcs,
            space: recovered.space,
            rsn: recovered.rsn,
            durable: recovered.rsn,
            // But for what the open does first, which waits for its own record: that proves the last group.
            firm: recovered.rsn,
            removed: recovered.rsn,
            inherited: recovered.rsn,
            left_prepared: HashMap::new(),
            head: recovered.head,
            tail: recovered.tail,
            pending: VecDeque::new(),
            pending_log: 0,
            reserved_log: 0,
            waiters: Vec::new(),
            room_waiters: Vec::new(),
            space_waiters: Vec::new(),
            generations: VecDeque::from([Generation::new()]),
            ready,
            deletes: recovered.deletes,
            checkpoint: recovered.checkpoint,
            marks: Marks::new(recovered.marks, options.marks_asked),
            unproved: false,
            short: None,
            failed: None,
            wake_committer_at: 0,
            full: false,
            stopping: false,
        };
        let stats = Stats::new(files.label.pdisk);
        stats.failed.set(0);
        stats.short.set(0);
        Store {
            stats,
            fast_write_max: (options.fast_write_limit as usize).min(group_max / 4),
            files,
            node,
            queues,
            reserve_units,
            index_max,
            small: BufPool::new(IDLE_SMALL),
            commit_watch: CommitWatch::default(),
            flush_together: AtomicBool::new(options.flush_together),
            options,
            state: Mutex::new(state),
            draining: Draining::default(),
            commit_wake: Condvar::new(),
            keeper_wake: Condvar::new(),
            committed: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The queue of a strip: always the same one.
    pub fn queue_of(&self, strip: StripId) -> usize {
        let s = strip.stripe;
        let h = (s.inode.0.wrapping_mul(31) ^ s.block.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ u64::from(strip.index.0);
        self.queues[(h >> 32) as usize % self.queues.len()]
    }

    /// Applies a record and queues it for the log. The caller has checked the rules, so a misfit is a bug
    /// of ours: the pdisk is latched failed before it can spread.
    pub fn append(
        &self,
        state: &mut State,
        record: &Record,
        payload: Bytes,
        data: bool,
    ) -> Result<(u64, u64), StripRefusal> {
        if state.failed.is_some() || state.stopping {
            return Err(StripRefusal::Failed);
        }
        let rsn = state.rsn + 1;
        let State { index, crcs, .. } = &mut *state;
        let strips = index.len();
        let effects = match index.apply(rsn, record, &payload, crcs) {
            Ok(effects) => effects,
            Err(misfit) => {
                self.fail(state, format!("internal error: record {record:?} does not fit: {}", misfit.0));
                return Err(StripRefusal::Failed);
            }
        };
        state.rsn = rsn;
        if state.index.len() < strips {
            state.removed = rsn;
        }
        if let Some(current) = state.generations.back_mut() {
            current.freed.extend(effects.freed);
            current.to_clean.extend(effects.to_clean);
        }
        let mut meta = Vec::with_capacity(128);
        record.encode(&mut meta);
        let counted = log_cost(meta.len(), payload.len());
        state.pending_log += counted;
        state.pending.push_back(Entry { rsn, meta, payload, data, counted });
        if state.wake_committer_at > 0 && state.pending.len() >= state.wake_committer_at {
            state.wake_committer_at = 0;
            self.commit_wake.notify_one();
        }
        Ok((rsn, effects.deleted))
    }

    /// Calls `waiter` when record `rsn` is durable; at once if it is.
    pub fn when_durable(&self, mut state: MutexGuard<'_, State>, rsn: u64, waiter: Waiter) {
        if state.failed.is_some() || rsn <= state.durable {
            let ok = state.failed.is_none();
            drop(state);
            waiter(ok);
        } else {
            state.waiters.push((rsn, waiter));
        }
    }

    /// Resolves when record `rsn` is durable.
    pub fn durable(&self, state: MutexGuard<'_, State>, rsn: u64) -> oneshot::Receiver<bool> {
        let (tx, rx) = oneshot::channel();
        // Who waited may be gone: the record stays.
        let waiter = move |ok| {
            let _ = tx.send(ok);
        };
        self.when_durable(state, rsn, Box::new(waiter));
        rx
    }

    /// Latches the pdisk failed, once.
    pub fn fail(&self, state: &mut State, reason: String) {
        if state.failed.is_some() {
            return;
        }
        tracing::error!(pdisk = %self.files.label.pdisk, dir = %self.files.dir.display(), %reason, "pdisk failed");
        let subject = self.files.label.pdisk.to_string();
        let remedy = "nothing is written to it any more; its data is rebuilt from the other pdisks";
        let text = format!("{} in {}: {reason}; {remedy}", subject, self.files.dir.display());
        events::raise(Severity::Error, "pdisk_failed", &subject, &text);
        self.stats.failed.set(1);
        self.stats.failures.inc();
        state.failed = Some(reason);
        for (_, waiter) in state.waiters.drain(..) {
            // Waiters only send on channels.
            waiter(false);
        }
        state.room_waiters.clear();
        state.space_waiters.clear();
        state.pending.clear();
        self.wake_all();
    }

    /// Tells, once each time it fills, that little is left for new strips.
    pub fn look_at_room(&self, state: &mut State) {
        self.stats.index_bytes.set(state.index.memory() as _);
        let units = self.files.label.units;
        let left = state.space.free_units().saturating_sub(self.reserve_units);
        if state.full {
            state.full = left < units / FULL * 2;
        } else if left < units / FULL {
            state.full = true;
            let (subject, dir) = (self.files.label.pdisk.to_string(), self.files.dir.display());
            let bytes = human_size(left * UNIT as u64);
            let remedy = "delete files, or add pdisks (`ropewalk pdisk add`)";
            let text = format!("{subject} in {dir} is nearly full: {bytes} left for new strips; {remedy}");
            tracing::warn!("{text}");
            events::raise(Severity::Warning, "pdisk_full", &subject, &text);
        }
    }

    pub fn wake_all(&self) {
        self.commit_wake.notify_all();
        self.keeper_wake.notify_all();
        self.committed.notify_all();
    }

    /// Closes the current generation if it holds anything, and lets go of those that are over.
    pub fn turn_generations(&self, state: &mut State) {
        let rsn = state.rsn;
        if let Some(current) = state.generations.back_mut()
            && !(current.freed.is_empty() && current.to_clean.is_empty())
        {
            current.last_rsn = rsn;
            state.generations.push_back(Generation::new());
        }
        self.release(state);
    }

    /// Frees what the generations that are over hold.
    pub fn release(&self, state: &mut State) {
        let mut released = false;
        self.draining.look(state.generations.len() > 1, || {
            while state.generations.len() > 1
                && state.generations.front().is_some_and(|g| g.last_rsn <= state.firm && g.is_unused())
            {
                let Some(over) = state.generations.pop_front() else { break };
                for e in over.freed {
                    state.space.release(e);
                    released = true;
                }
                for (strip, rsn) in over.to_clean {
                    let upto = state.ready.entry(strip).or_default();
                    *upto = rsn.max(*upto);
                }
            }
            state.generations.len() > 1
        });
        if released {
            wake_space_waiters(state);
        }
    }

    /// A read or in-place write has ended; its token is dropped.
    pub fn after_io(&self) {
        if self.draining.asks() {
            self.release(&mut self.lock());
        }
    }

    /// Whether reads or writes are under way.
    pub fn is_busy(&self) -> bool {
        self.lock().generations.iter().any(|g| Arc::strong_count(&g.token) > 1)
    }

    /// The token of the current generation.
    pub fn token(state: &State) -> Arc<()> {
        Arc::clone(&state.generations.back().expect("there always is a current generation").token)
    }

    /// The same for bytes that are lent.
    pub fn lease(self: &Arc<Store>, state: &State) -> Lease {
        Lease { lent: state.generations.back().map(|g| Arc::clone(&g.lent)), store: Arc::clone(self) }
    }

    /// Whether freed units will come back without anyone's doing.
    pub fn frees_pending(state: &State) -> bool {
        state.generations.iter().any(|g| !g.freed.is_empty())
    }

    /// Promises `bytes` of the log, if there is room. A quarter of the ring stays for what was promised
    /// too little and for checkpoints to end.
    pub fn try_reserve_log(&self, state: &mut State, bytes: u64) -> bool {
        let ring = self.files.label.log_bytes;
        let used = state.head.position - state.tail + state.pending_log + state.reserved_log;
        let room = used + bytes <= ring - ring / 4;
        if room {
            state.reserved_log += bytes;
        }
        room
    }

    /// Whether the log has room for a group that proves the one before.
    pub fn has_room_for_proof(&self, state: &State) -> bool {
        let ring = self.files.label.log_bytes;
        state.head.position - state.tail + state.reserved_log + log_cost(0, 0) <= ring - ring / 4
    }

    /// Waits for room in the log.
    pub async fn reserve_log(&self, bytes: u64) -> Result<LogReserve<'_>, StripRefusal> {
        let bytes = bytes.min(self.files.label.log_bytes / 8);
        loop {
            let waiting = {
                let mut state = self.lock();
                if state.failed.is_some() || state.stopping {
                    return Err(StripRefusal::Failed);
                }
                let short = state.short.as_ref().map(|short| short.0);
                if short != Some(Short::Log) && self.try_reserve_log(&mut state, bytes) {
                    return Ok(LogReserve { store: self, bytes });
                }
                if short.is_some() {
                    return Err(StripRefusal::NoSpace);
                }
                let (tx, rx) = oneshot::channel();
                state.room_waiters.push(tx);
                self.keeper_wake.notify_one();
                rx
            };
            // An error means that the pdisk failed: the next round says so.
            let _ = waiting.await;
        }
    }
}

/// A promise of log bytes, given back when the operation has appended its records (or not).
pub(crate) struct LogReserve<'a> {
    store: &'a Store,
    bytes: u64,
}

impl LogReserve<'_> {
    /// The promise goes over to an operation that gives it back itself.
    pub fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for LogReserve<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            give_back_log(&mut self.store.lock(), self.bytes);
        }
    }
}
