//! Storing versions: prepare and install.
//! Small payloads go into the log with their record (fast write). Larger ones are written to new units
//! of the data file first; when the last of these writes has ended the rules are asked again, the record
//! is appended, and its group's commit flushes the data before the record. An operation under way owns
//! its units: refused in the end, it gives them back.
//! Once started an operation runs to its end whether or not anyone still waits for it.

use std::sync::Arc;

use base::{Version, units::UNIT};
use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use wire::{
    crc::unit_crcs,
    strip::{PrepareStrip, StripRefusal, StripState},
};

use crate::{
    deletes::DeletesSeen,
    extent::{Extent, pieces, replace},
    io::{Errors, Op, Request},
    record::{Put, Record, UnitRun},
    report::new_strips_below,
    rules::{self, Action, PrepareAction, PrepareDecision},
    short::lacks_room,
    state::{State, give_back_log, log_cost, wake_space_waiters},
    store::Store,
};

type Outcome = Result<(), StripRefusal>;

/// Bytes to store.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// As they lie in memory.
    pub bytes: Bytes,
    /// CRC-32C of each 4 KiB of them, by who received them here; empty: they are computed.
    pub unit_crcs: Vec<u32>,
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload { bytes, unit_crcs: Vec::new() }
    }
}

/// A request with its place in the caller's batch.
pub(crate) struct Item {
    pub place: usize,
    pub request: PrepareStrip,
    pub payload: Bytes,
    /// An install, and what it was begun after.
    pub install: Option<DeletesSeen>,
}

/// What became of an item under the first hold of the lock.
enum Step {
    /// Answered when this record is durable.
    Logged(u64, Outcome),
    /// Its bytes go to these units first. Its record takes so much more of the log than was promised.
    Write(Vec<(u32, Extent)>, u64),
    /// No space now, but units are about to come back.
    Retry,
}

/// Tries before `NoSpace` is believed while freed units are still on their way back.
const SPACE_RETRIES: usize = 100;

/// Prepares or installs a batch; results in request order.
pub(crate) async fn put(
    store: &Arc<Store>,
    batch: Vec<(PrepareStrip, Payload)>,
    install: Option<DeletesSeen>,
) -> Vec<Outcome> {
    let mut results: Vec<Outcome> = vec![Err(StripRefusal::Failed); batch.len()];
    let mut items = Vec::with_capacity(batch.len());
    for (place, (request, payload)) in batch.into_iter().enumerate() {
        match check(&request, &payload, install.is_some()) {
            Ok(()) => items.push(Item { place, request, payload: payload.bytes, install }),
            Err(refusal) => results[place] = Err(refusal),
        }
    }
    for round in 0..SPACE_RETRIES {
        let mut retry = Vec::new();
        let mut answers = Vec::new();
        let mut rest = items.into_iter().peekable();
        while rest.peek().is_some() {
            let (part, bytes) = next_part(store, &mut rest);
            match store.reserve_log(bytes).await {
                Ok(reserve) => {
                    let (started, again) = start(store, part, reserve.keep(), round + 1 == SPACE_RETRIES);
                    answers.push(started);
                    retry.extend(again);
                }
                Err(refusal) => {
                    for item in part.into_iter().chain(rest.by_ref()) {
                        results[item.place] = Err(refusal.clone());
                    }
                }
            }
        }
        let freed = (!retry.is_empty()).then(|| next_release(store));
        for answer in answers {
            if let Ok(list) = answer.await {
                list.into_iter().for_each(|(place, outcome)| results[place] = outcome);
            }
        }
        items = retry;
        match freed {
            // An error means that the pdisk failed: the next round says so.
            Some(freed) => drop(freed.await),
            None => break,
        }
    }
    results
}

fn check(request: &PrepareStrip, payload: &Payload, install: bool) -> Outcome {
    rules::well_formed(request, payload.bytes.len())?;
    if install && (request.base.is_some() || request.adopt.is_some()) {
        return Err(StripRefusal::Malformed);
    }
    let stored = request.crcs.iter();
    let bad = if payload.unit_crcs.is_empty() {
        unit_crcs(&payload.bytes).zip(stored).position(|(crc, stored)| crc != *stored)
    } else if payload.unit_crcs.len() == request.crcs.len() {
        payload.unit_crcs.iter().zip(stored).position(|(crc, stored)| crc != stored)
    } else {
        Some(0)
    };
    bad.map_or(Ok(()), |unit| Err(StripRefusal::BadCrc { unit: unit as u32 }))
}

/// Items whose records together take a part of the log that can be waited for.
fn next_part(store: &Store, rest: &mut std::iter::Peekable<impl Iterator<Item = Item>>) -> (Vec<Item>, u64) {
    let max = store.files.label.log_bytes / 8;
    let (mut part, mut bytes) = (Vec::new(), 0);
    while let Some(item) = rest.next_if(|item| part.is_empty() || bytes + cost(store, item) <= max) {
        bytes += cost(store, &item);
        part.push(item);
    }
    (part, bytes)
}

/// What is promised before it is known where the version will lie. More pieces are promised when they are known; those of a small
/// version, which is appended at once, are covered by the log's spare quarter.
fn cost(store: &Store, item: &Item) -> u64 {
    cost_in(store, item, 32)
}

/// Bytes of the log for the record of a version in so many pieces, at most.
fn cost_in(store: &Store, item: &Item, extents: usize) -> u64 {
    let r = &item.request;
    let meta = 256 + 17 * r.info.covers.len() + 4 * r.crcs.len() + 12 * r.ranges.len() + 8 * extents;
    let inline = if item.payload.len() <= store.fast_write_max { item.payload.len() } else { 0 };
    log_cost(meta, inline)
}

fn next_release(store: &Store) -> oneshot::Receiver<()> {
    let (tx, rx) = oneshot::channel();
    let mut state = store.lock();
    if state.failed.is_none() && Store::frees_pending(&state) {
        state.space_waiters.push(tx);
        if state.wants_proof() {
            store.commit_wake.notify_one();
        }
    }
    rx
}

type Answer = oneshot::Receiver<Vec<(usize, Outcome)>>;

fn start(store: &Arc<Store>, part: Vec<Item>, mut reserved: u64, last_try: bool) -> (Answer, Vec<Item>) {
    let (tx, rx) = oneshot::channel();
    let (mut logged, mut writes, mut retry) = (Vec::new(), Vec::new(), Vec::new());
    let mut state = store.lock();
    for item in part {
        match first_step(store, &mut state, &item) {
            Step::Logged(rsn, outcome) => logged.push((item.place, rsn, outcome)),
            Step::Write(places, more) => {
                // Without asking for room: who comes next waits until there is some.
                state.reserved_log += more;
                reserved += more;
                writes.push((item, places));
            }
            Step::Retry if last_try => logged.push((item.place, 0, Err(StripRefusal::NoSpace))),
            Step::Retry => retry.push(item),
        }
    }
    if writes.is_empty() {
        give_back_log(&mut state, reserved);
        answer(store, state, logged, tx);
        return (rx, retry);
    }
    let token = Store::token(&state);
    drop(state);
    let requests = writes.iter().enumerate().flat_map(|(i, w)| data_writes(store, i as u32, w)).collect();
    let owner = Arc::clone(store);
    store.node.submit_queues(requests, move |errors| {
        finish(&owner, writes, logged, reserved, errors, tx);
        drop(token);
        owner.after_io();
    });
    (rx, retry)
}

/// Answers when all records are durable.
fn answer(
    store: &Store,
    state: MutexGuard<'_, State>,
    logged: Vec<(usize, u64, Outcome)>,
    tx: oneshot::Sender<Vec<(usize, Outcome)>>,
) {
    let last = logged.iter().map(|(_, rsn, _)| *rsn).max().unwrap_or(0);
    let waiter = move |durable: bool| {
        let outcome = |o| if durable { o } else { Err(StripRefusal::Failed) };
        // Who waited may be gone.
        let _ = tx.send(logged.into_iter().map(|(place, _, o)| (place, outcome(o))).collect());
    };
    store.when_durable(state, last, Box::new(waiter));
}

enum Decision {
    Store { adopt: Option<Version> },
    Answer(u64, Outcome),
}

/// Asks the rules. An adoption that comes with a refused prepare is done here.
fn decide(store: &Store, state: &mut State, item: &Item) -> Decision {
    let id = item.request.strip;
    let strip = state.index.get(id);
    let now = strip.map_or_else(|| StripState { strip: id, ..StripState::default() }, |s| s.state(id));
    let rsn = strip.map_or(0, |s| s.rsn);
    if let Some(since) = item.install {
        let version = item.request.info.version;
        if let Some(present) = state.deletes.refuses(id, version, since) {
            return Decision::Answer(0, Err(StripRefusal::NotNewer { present }));
        }
        return match rules::install(&now, version) {
            Ok(Action::Apply) => Decision::Store { adopt: None },
            Ok(Action::AlreadyDone) => Decision::Answer(rsn, Ok(())),
            Err(refusal) => Decision::Answer(0, Err(refusal)),
        };
    }
    let PrepareDecision { adopt, mut then } = rules::prepare(&now, &item.request);
    // Late, and its block was deleted meanwhile.
    let deleted = state.deletes.refuses(id, item.request.info.version, DeletesSeen::UNKNOWN);
    if let (Ok(PrepareAction::Store), Some(present)) = (&then, deleted) {
        then = Err(StripRefusal::NotNewer { present });
    }
    if then == Ok(PrepareAction::Store) {
        return Decision::Store { adopt };
    }
    let repeated = then == Ok(PrepareAction::AlreadyHere) && state.is_inherited(id, rsn);
    let adopted = match adopt {
        Some(version) => {
            store.append(state, &Record::Adopt { strip: id, version }, Bytes::new(), false).map(|r| r.0)
        }
        // Asked for again in this life: no longer a leftover of an earlier one, which a record must say.
        None if repeated => {
            let below = now.sealed_below;
            store.append(state, &Record::Seal { strip: id, below }, Bytes::new(), false).map(|r| r.0)
        }
        None => Ok(rsn),
    };
    match (adopted, then) {
        (Err(refusal), _) | (Ok(_), Err(refusal)) => Decision::Answer(0, Err(refusal)),
        (Ok(rsn), Ok(_)) => Decision::Answer(rsn, Ok(())),
    }
}

fn first_step(store: &Store, state: &mut State, item: &Item) -> Step {
    if state.failed.is_some() || state.stopping {
        return Step::Logged(0, Err(StripRefusal::Failed));
    }
    let adopt = match decide(store, state, item) {
        Decision::Store { adopt } => adopt,
        Decision::Answer(rsn, outcome) => return Step::Logged(rsn, outcome),
    };
    let known = state.index.get(item.request.strip).is_some();
    if state.index.memory() as u64 >= if known { store.index_max } else { new_strips_below(store.index_max) }
    {
        return Step::Logged(0, Err(StripRefusal::NoSpace));
    }
    let base = base_map(state, item, adopt);
    let runs = runs_of(&item.request);
    let pending_max = store.options.fast_write_memory / 2;
    let fast = item.payload.is_empty()
        || item.payload.len() <= store.fast_write_max && (state.index.pending_bytes() as u64) < pending_max;
    let new_runs = if fast { unmapped(&base, &runs) } else { runs.clone() };
    let Some(extents) = allocate(store, state, item, &base, &new_runs) else {
        let later = Store::frees_pending(state);
        return if later { Step::Retry } else { Step::Logged(0, Err(StripRefusal::NoSpace)) };
    };
    let places = lay(&extents, &new_runs);
    if !fast {
        let extents = replace(&base, item.request.info.len / UNIT as u32, &places).len();
        let more = cost_in(store, item, extents).saturating_sub(cost(store, item));
        return Step::Write(places, more);
    }
    let mut copy = store.small.get(item.payload.len());
    copy.copy_from_slice(&item.payload);
    // The caller's memory is not kept: it may be a small part of a large buffer.
    let payload = if item.payload.is_empty() { Bytes::new() } else { copy.freeze() };
    let put = record(item, adopt, &base, places, runs, true);
    match store.append(state, &Record::Put(put), payload, false) {
        Ok((rsn, _)) => Step::Logged(rsn, Ok(())),
        Err(refusal) => Step::Logged(0, Err(refusal)),
    }
}

/// The map that the new version starts from: that of the version adopted by then.
fn base_map(state: &State, item: &Item, adopt: Option<Version>) -> Vec<Extent> {
    if item.request.base.is_none() {
        return Vec::new();
    }
    let strip = state.index.get(item.request.strip);
    let version = strip.and_then(|s| if adopt.is_some() { s.prepared.as_ref() } else { s.adopted.as_ref() });
    version.map(|v| v.map.to_vec()).unwrap_or_default()
}

fn runs_of(request: &PrepareStrip) -> Vec<UnitRun> {
    let unit = UNIT as u32;
    request.ranges.iter().map(|r| UnitRun { first: r.offset / unit, count: r.len / unit }).collect()
}

/// The parts of `runs` that have no place in `base`.
fn unmapped(base: &[Extent], runs: &[UnitRun]) -> Vec<UnitRun> {
    let mut missing = Vec::new();
    for run in runs {
        let mut at = run.first;
        for (first, e) in pieces(base, run.first..run.end()).filter(|(_, e)| !e.is_hole()) {
            if first > at {
                missing.push(UnitRun { first: at, count: first - at });
            }
            at = first + e.count();
        }
        if at < run.end() {
            missing.push(UnitRun { first: at, count: run.end() - at });
        }
    }
    missing
}

fn allocate(
    store: &Store,
    state: &mut State,
    item: &Item,
    base: &[Extent],
    runs: &[UnitRun],
) -> Option<Vec<Extent>> {
    let count: u32 = runs.iter().map(|r| r.count).sum();
    if count == 0 {
        return Some(Vec::new());
    }
    let exists = state.index.get(item.request.strip).is_some_and(|s| s.adopted.is_some());
    // What is made again exists elsewhere already: refused, it would stay in danger until somebody deletes files.
    let kept = match (exists, item.install.is_some()) {
        (true, _) => 0,
        (false, true) => store.reserve_units / 2,
        (false, false) => store.reserve_units,
    };
    if u64::from(count) + kept > state.space.free_units() {
        return None;
    }
    let goal = base.last().filter(|e| !e.is_hole()).map(|e| e.end());
    state.space.allocate(count, goal)
}

/// Lays extents over runs of units of the strip, both in order and of the same total length.
fn lay(extents: &[Extent], runs: &[UnitRun]) -> Vec<(u32, Extent)> {
    let mut places = Vec::new();
    let mut skip = 0;
    for run in runs {
        let mut first = run.first;
        for (_, e) in pieces(extents, skip..skip + run.count) {
            places.push((first, e));
            first += e.count();
        }
        skip += run.count;
    }
    places
}

fn record(
    item: &Item,
    adopt: Option<Version>,
    base: &[Extent],
    places: Vec<(u32, Extent)>,
    runs: Vec<UnitRun>,
    inline: bool,
) -> Put {
    let r = &item.request;
    Put {
        install: item.install.is_some(),
        strip: r.strip,
        pool: r.pool,
        group: r.group,
        info: r.info.clone(),
        base: r.base,
        adopt,
        map: replace(base, r.info.len / UNIT as u32, &places),
        runs,
        crcs: r.crcs.clone(),
        inline,
    }
}

/// The writes of one item: its payload, in order, to its places.
fn data_writes(
    store: &Store,
    tag: u32,
    (item, places): &(Item, Vec<(u32, Extent)>),
) -> Vec<(usize, Request)> {
    let queue = store.queue_of(item.request.strip);
    let aligned = (item.payload.as_ptr() as usize).is_multiple_of(UNIT);
    let payload = if aligned {
        item.payload.clone()
    } else {
        let mut copy = store.node.buffer(item.payload.len());
        copy.copy_from_slice(&item.payload);
        copy.freeze()
    };
    let mut at = 0;
    let request = |&(_, e): &(u32, Extent)| {
        let bytes = payload.slice(at..at + e.count() as usize * UNIT);
        at += bytes.len();
        let file = Arc::clone(&store.files.data);
        (queue, Request { file, op: Op::Write(bytes), offset: e.start() * UNIT as u64, tag })
    };
    places.iter().map(request).collect()
}

/// The data writes of a part have ended: ask the rules again, now for good.
fn finish(
    store: &Store,
    writes: Vec<(Item, Vec<(u32, Extent)>)>,
    mut logged: Vec<(usize, u64, Outcome)>,
    reserved: u64,
    errors: Errors,
    tx: oneshot::Sender<Vec<(usize, Outcome)>>,
) {
    let mut state = store.lock();
    give_back_log(&mut state, reserved);
    let (no_room, failed): (Errors, Errors) = errors.into_iter().partition(|(_, e)| lacks_room(e));
    if let Some((_, e)) = failed.first() {
        store.fail(&mut state, format!("write data: {e}"));
    }
    for (tag, (item, places)) in (0u32..).zip(writes) {
        let (rsn, outcome) = match no_room.iter().find(|(of, _)| *of == tag) {
            // The units are new: nothing refers to what is in them.
            Some((_, e)) => {
                tracing::warn!(dir = %store.files.dir.display(), error = %e, "no room for a write: refused");
                (0, give_up(&mut state, places, Err(StripRefusal::NoSpace)))
            }
            None => second_step(store, &mut state, &item, places),
        };
        logged.push((item.place, rsn, outcome));
    }
    answer(store, state, logged, tx);
}

fn second_step(store: &Store, state: &mut State, item: &Item, places: Vec<(u32, Extent)>) -> (u64, Outcome) {
    if state.failed.is_some() {
        return (0, Err(StripRefusal::Failed));
    }
    match decide(store, state, item) {
        Decision::Store { adopt } => {
            let base = base_map(state, item, adopt);
            let put = record(item, adopt, &base, places, runs_of(&item.request), false);
            match store.append(state, &Record::Put(put), Bytes::new(), true) {
                Ok((rsn, _)) => (rsn, Ok(())),
                Err(refusal) => (0, Err(refusal)),
            }
        }
        Decision::Answer(rsn, outcome) => (rsn, give_up(state, places, outcome)),
    }
}

/// Gives back the units of an item that is not stored.
fn give_up(state: &mut State, places: Vec<(u32, Extent)>, outcome: Outcome) -> Outcome {
    for (_, e) in places {
        state.space.release(e);
    }
    wake_space_waiters(state);
    outcome
}

#[cfg(test)]
#[path = "put_tests.rs"]
mod tests;
