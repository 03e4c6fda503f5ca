//! The committer: one thread a pdisk that makes pending records durable, a group at a time.
//! Order: the group is written, then data file and log are flushed at once, then the waiters are answered; recovery takes
//! the last group for one that never happened if its bytes in the data file are not there. (As long as an older program may have to
//! open the pdisk the data file is flushed before the group is written: `OpenOptions::flush_together`.) While one group is on its way the next gathers, and for a moment after it (see
//! `GATHER_PART`): that is the group commit.
//! On an error of any of these steps the pdisk is latched failed; no flush is tried twice. A write of the log for which
//! the host's file system has no room is made again until there is: nobody has had an answer yet.
//!
//! When nothing has come for a while (`prove_after`) the last group is followed by one without records: from then
//! on it is known that it was whole, and what happens to it later is damage, not a torn write.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use base::start::lend_thread;
use bytes::Bytes;
use parking_lot::MutexGuard;

use crate::{
    io::{IoFile, Op, Request},
    keeper,
    log::{LOG_RING, encode_group, group_len, group_max},
    short::lacks_room,
    state::{Entry, Short, State, wake_room_waiters},
    store::Store,
};

/// Runs until the store stops and nothing is pending, or the pdisk fails.
pub(crate) fn run(store: &Store) {
    let (mut expected, mut patience) = (0, Duration::ZERO);
    while let Some(entries) = next_group(store, expected, patience) {
        // No records: it proves the group before.
        let start = Instant::now();
        let answered = entries.len();
        match commit(store, entries) {
            Ok(waiting) => expected = answered + waiting,
            Err((what, e)) => {
                let mut state = store.lock();
                store.fail(&mut state, format!("{what}: {e}"));
                return;
            }
        }
        patience = (start.elapsed() / GATHER_PART).min(GATHER_MAX);
    }
}

/// Who was answered mostly comes again soon. Taking whoever is first at once makes two halves that wait for
/// each other's flush; so the next group waits for all, for this part of a commit's time at most.
const GATHER_PART: u32 = 4;
const GATHER_MAX: Duration = Duration::from_millis(2);
/// Between two tries where the file system has no room.
const NO_ROOM_WAIT: Duration = Duration::from_millis(200);

/// The next group; it waits up to `patience` for `expected` records, if these are more than a lone writer's one.
fn next_group(store: &Store, expected: usize, patience: Duration) -> Option<Vec<Entry>> {
    let mut state = store.lock();
    if expected > 1 {
        gather(store, &mut state, expected, Some(patience));
    }
    while state.pending.is_empty() && state.failed.is_none() {
        let room = store.has_room_for_proof(&state);
        if state.stopping {
            return (room && state.firm < state.durable).then(Vec::new);
        }
        if room && state.wants_proof() {
            return Some(Vec::new());
        }
        let idle = store.options.prove_after.filter(|_| state.unproved && room);
        if !gather(store, &mut state, 1, idle) && idle.is_some() {
            return Some(Vec::new());
        }
    }
    if state.failed.is_some() {
        return None;
    }
    let max = group_max(store.files.label.log_bytes);
    let mut entries = Vec::new();
    let (mut meta, mut payload) = (0, 0);
    while let Some(e) = state.pending.front() {
        meta += e.meta.len();
        payload += e.payload.len();
        if !entries.is_empty() && group_len(meta, payload) > max {
            break;
        }
        entries.extend(state.pending.pop_front());
    }
    Some(entries)
}

/// Waits until `count` records are pending, for `time` at most, or until the store stops or fails, or somebody wants a
/// proof. False: the time is over.
fn gather(store: &Store, state: &mut MutexGuard<'_, State>, count: usize, time: Option<Duration>) -> bool {
    let start = Instant::now();
    let proof =
        |state: &State| state.pending.is_empty() && state.wants_proof() && store.has_room_for_proof(state);
    let mut in_time = true;
    while state.pending.len() < count && state.failed.is_none() && !state.stopping && !proof(state) {
        state.wake_committer_at = count;
        match time.map(|time| time.saturating_sub(start.elapsed())) {
            Some(Duration::ZERO) => {
                in_time = false;
                break;
            }
            Some(left) => {
                store.commit_wake.wait_for(state, left);
            }
            // A proof is wanted, and the log has no room for it: that comes with no record, but by a checkpoint.
            None if state.wants_proof() => {
                store.keeper_wake.notify_one();
                store.commit_wake.wait_for(state, NO_ROOM_WAIT);
            }
            None => store.commit_wake.wait(state),
        }
    }
    state.wake_committer_at = 0;
    in_time
}

/// Makes a group durable and answers; returns the records that came meanwhile, none of them from who is answered here.
fn commit(store: &Store, entries: Vec<Entry>) -> Result<usize, (&'static str, std::io::Error)> {
    let start = Instant::now();
    let watched = store.commit_watch.start(start);
    let queue = store.queues[0];
    let flush = |file: &Arc<IoFile>| Request { file: Arc::clone(file), op: Op::Flush, offset: 0, tag: 0 };
    let data = entries.iter().any(|e| e.data);
    let together = data && store.flush_together.load(Ordering::Relaxed);
    if data && !together {
        let flush = flush(&store.files.data);
        store.node.submit_and_wait(queue, vec![flush]).map_err(|e| ("flush data", e))?;
    }
    let (head, durable, tail) = {
        let state = store.lock();
        (state.head, state.durable, state.tail)
    };
    let meta = entries.iter().map(|e| &e.meta[..]).collect::<Vec<_>>().concat();
    let payload: Vec<Bytes> = entries.iter().map(|e| e.payload.clone()).collect();
    let (first, last) = (durable + 1, durable + entries.len() as u64);
    assert!(
        entries.iter().map(|e| e.rsn).eq(first..=last),
        "records are committed in their order, each once"
    );
    let len = group_len(meta.len(), payload.iter().map(Bytes::len).sum());
    let used = head.position + len as u64 - tail;
    assert!(used <= store.files.label.log_bytes, "the log would go over what recovery needs");
    // Registered memory: in few pieces for the disk, and mapped already.
    let mut group = store.node.buffer(len);
    let uuid = &store.files.label.uuid;
    let after = encode_group(head, uuid, first, entries.len() as u32, &meta, &payload, &mut group);
    let group = group.freeze();
    loop {
        let writes = ring_writes(store, head.position, group.clone());
        match store.node.submit_and_wait(queue, writes) {
            Ok(()) => break,
            Err(e) if lacks_room(&e) && wait_for_room(store, &e) => {}
            Err(e) => return Err(("write log", e)),
        }
    }
    let mut flushes = vec![flush(&store.files.log)];
    if together {
        flushes.push(flush(&store.files.data));
    }
    let what = if together { "flush log and data" } else { "flush log" };
    store.node.submit_and_wait(queue, flushes).map_err(|e| (what, e))?;

    let mut state = store.lock();
    if state.failed.is_some() {
        return Ok(0);
    }
    assert_eq!(state.head, head, "there is one committer");
    state.head = after;
    store.is_short_no_more(&mut state, Short::Log);
    state.unproved = !entries.is_empty();
    state.durable = last;
    // In either order of the flushes: recovery, which is not told the order, compares the last group's bytes.
    state.firm = if data { first - 1 } else { last };
    let counted = entries.iter().map(|e| e.counted).sum();
    state.pending_log = state.pending_log.checked_sub(counted).expect("each entry was counted once");
    store.turn_generations(&mut state);
    let (ready, rest): (Vec<_>, Vec<_>) = state.waiters.drain(..).partition(|(rsn, _)| *rsn <= last);
    state.waiters = rest;
    wake_room_waiters(&mut state);
    let keeper_due = state.head.position - state.checkpoint.1.log.position > store.files.label.log_bytes / 4
        || keeper::clean_due(store, &state);
    let waiting = state.pending.len();
    drop(state);
    store.committed.notify_all();
    if keeper_due {
        store.keeper_wake.notify_one();
    }
    store.stats.commit.record(start.elapsed());
    store.stats.commit_records.add(entries.len() as u64);
    store.stats.commit_bytes.add(after.position - head.position);
    drop(watched);
    match <[_; 1]>::try_from(ready) {
        // Nobody waits for this thread: it sends the one answer itself, rather than wake another for it.
        Ok([(_, waiter)]) if waiting == 0 => lend_thread(|| waiter(true)),
        Ok([(_, waiter)]) => waiter(true),
        Err(ready) => ready.into_iter().for_each(|(_, waiter)| waiter(true)),
    }
    Ok(waiting)
}

/// Waits before a write of the log is made again. False: the pdisk is to stop.
fn wait_for_room(store: &Store, error: &std::io::Error) -> bool {
    let mut state = store.lock();
    store.is_short(&mut state, Short::Log, error);
    let until = Instant::now() + NO_ROOM_WAIT;
    while Instant::now() < until && !state.stopping && state.failed.is_none() {
        store.commit_wake.wait_until(&mut state, until);
    }
    !state.stopping && state.failed.is_none()
}

/// The group's bytes at `position` of the ring: two writes where it goes round.
fn ring_writes(store: &Store, position: u64, group: Bytes) -> Vec<Request> {
    let ring = store.files.label.log_bytes;
    let place = position % ring;
    let first = (ring - place).min(group.len() as u64) as usize;
    let mut parts = vec![(place, group.slice(..first))];
    if first < group.len() {
        parts.push((0, group.slice(first..)));
    }
    parts
        .into_iter()
        .map(|(place, bytes)| Request {
            file: Arc::clone(&store.files.log),
            op: Op::Write(bytes),
            offset: LOG_RING + place,
            tag: 0,
        })
        .collect()
}
