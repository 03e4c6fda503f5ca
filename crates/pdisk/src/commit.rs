//! The committer: one thread a pdisk that makes pending records durable, a group at a time.
//! Order: bytes in the data file are flushed, then the group is written, then the log is flushed, then
//! the waiters are answered. While one group is on its way the next gathers: that is the group commit.
//! On an error of any of these steps the pdisk is latched failed; no flush is tried twice.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    files::LOG_RING,
    io::{Op, Request, lock},
    log::{encode_group, group_len, group_max},
    store::{Entry, Store, wake_room_waiters},
};

/// Runs until the store stops and nothing is pending, or the pdisk fails.
pub(crate) fn run(store: &Store) {
    while let Some(entries) = next_group(store) {
        if let Err((what, e)) = commit(store, entries) {
            let mut state = store.lock();
            store.fail(&mut state, format!("{what}: {e}"));
            return;
        }
    }
}

/// Since when a commit is under way: a disk that hangs is told of while it hangs. There is nothing else to
/// do than to wait, for the kernel owns the buffers.
#[derive(Default)]
pub(crate) struct CommitWatch(Mutex<Option<(Instant, Duration)>>);

/// Ends the watch of one commit.
struct Watched<'a>(&'a CommitWatch);

const SLOW: Duration = Duration::from_secs(10);

impl CommitWatch {
    fn start(&self, now: Instant) -> Watched<'_> {
        *lock(&self.0) = Some((now, SLOW));
        Watched(self)
    }

    /// Warns every [`SLOW`] of a commit that does not end.
    pub fn look(&self, dir: &Path) {
        if let Some((since, next)) = &mut *lock(&self.0)
            && since.elapsed() >= *next
        {
            *next += SLOW;
            tracing::warn!(dir = %dir.display(), seconds = since.elapsed().as_secs(), "disk I/O is outstanding");
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

fn next_group(store: &Store) -> Option<Vec<Entry>> {
    let mut state = store.lock();
    loop {
        if state.failed.is_some() {
            return None;
        }
        if !state.pending.is_empty() {
            break;
        }
        if state.stopping {
            return None;
        }
        state.committer_rests = true;
        state = store.commit_wake.wait(state).unwrap_or_else(|e| e.into_inner());
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

fn commit(store: &Store, entries: Vec<Entry>) -> Result<(), (&'static str, std::io::Error)> {
    let start = Instant::now();
    let _watched = store.commit_watch.start(start);
    let queue = store.queues[0];
    if entries.iter().any(|e| e.data) {
        let flush = Request { file: Arc::clone(&store.files.data), op: Op::Flush, offset: 0, tag: 0 };
        store.node.submit_and_wait(queue, vec![flush]).map_err(|e| ("flush data", e))?;
    }
    let head = store.lock().head;
    let meta: Vec<u8> = entries.iter().flat_map(|e| e.meta.iter().copied()).collect();
    let payload: Vec<Bytes> = entries.iter().map(|e| e.payload.clone()).collect();
    let (first, last) = (entries[0].rsn, entries[entries.len() - 1].rsn);
    let (group, after) =
        encode_group(head, &store.files.label.uuid, first, entries.len() as u32, &meta, &payload);
    let writes = ring_writes(store, head.position, group.freeze());
    store.node.submit_and_wait(queue, writes).map_err(|e| ("write log", e))?;
    let flush = Request { file: Arc::clone(&store.files.log), op: Op::Flush, offset: 0, tag: 0 };
    store.node.submit_and_wait(queue, vec![flush]).map_err(|e| ("flush log", e))?;

    let mut state = store.lock();
    if state.failed.is_some() {
        return Ok(());
    }
    state.head = after;
    state.durable = last;
    state.pending_log -= entries.iter().map(|e| e.counted).sum::<u64>();
    store.turn_generations(&mut state);
    let (ready, rest): (Vec<_>, Vec<_>) = state.waiters.drain(..).partition(|(rsn, _)| *rsn <= last);
    state.waiters = rest;
    wake_room_waiters(&mut state);
    let checkpoint_due =
        state.head.position - state.checkpoint.1.log.position > store.files.label.log_bytes / 4;
    drop(state);
    store.committed.notify_all();
    if checkpoint_due {
        store.keeper_wake.notify_one();
    }
    for (_, waiter) in ready {
        waiter(true);
    }
    store.stats.commit.record(start.elapsed());
    store.stats.commit_records.add(entries.len() as u64);
    store.stats.commit_bytes.add(after.position - head.position);
    Ok(())
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
