//! The keeper: one thread a pdisk for what happens behind the operations. It writes the bytes of small
//! versions from memory to their place (`clean`), and makes checkpoints so that the log has room and
//! recovery stays short. On a write or flush error the pdisk is latched failed; where the host's file system has no
//! room for a write, nothing has changed: it is tried again every second.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{AlignedBuf, StripId, units::UNIT};
use bytes::Bytes;

use crate::{
    checkpoint::{Head, PAGE_USED, PageCrcs, encode_page, page_offset},
    extent::unit_at,
    files,
    io::{IoBuf, IoFile, Op, Request},
    short::lacks_room,
    state::{Short, State, wake_room_waiters},
    store::Store,
};

/// How often it looks around when nobody wakes it.
const ROUND: Duration = Duration::from_millis(200);
/// The same after a round in which nothing came and nothing was left to do.
const REST: Duration = Duration::from_secs(2);
/// How long it waits when there was no room.
const NO_ROOM_WAIT: Duration = Duration::from_secs(1);
/// Bytes brought to their place between two flushes.
const CLEAN_BYTES: usize = 8 << 20;
/// What is under way at once while they are: a commit that comes meanwhile waits for no more than this in the disk's queue.
const PORTION: (usize, usize) = (32, 1 << 20);
/// Bytes of a checkpoint gathered under one hold of the lock.
const WALK_BYTES: usize = PAGE_USED;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Clean,
    Checkpoint,
    Stop,
}

/// Runs until the store stops or the pdisk fails.
pub(crate) fn run(store: &Store) {
    let mut seen = 0;
    loop {
        let (what, result) = match next_work(store, &mut seen) {
            Work::Stop => return,
            Work::Clean => (Short::Place, clean(store).map(drop)),
            Work::Checkpoint => (Short::Checkpoint, checkpoint(store)),
        };
        let mut state = store.lock();
        match result {
            Ok(()) => store.is_short_no_more(&mut state, what),
            Err(e) if lacks_room(&e) => {
                store.is_short(&mut state, what, &e);
                let until = Instant::now() + NO_ROOM_WAIT;
                while !state.stopping && state.failed.is_none() && Instant::now() < until {
                    store.keeper_wake.wait_for(&mut state, ROUND);
                }
            }
            Err(e) => {
                store.fail(&mut state, format!("background write: {e}"));
                return;
            }
        }
    }
}

fn next_work(store: &Store, seen: &mut u64) -> Work {
    let mut state = store.lock();
    let mut pause = ROUND;
    loop {
        if state.failed.is_some() || state.stopping {
            return Work::Stop;
        }
        // What had no room is tried again, whether or not anybody waits for it now.
        let short = state.short.as_ref().map(|short| short.0);
        if checkpoint_due(store, &mut state) || short == Some(Short::Checkpoint) {
            return Work::Checkpoint;
        }
        if clean_due(store, &state) || short == Some(Short::Place) {
            return Work::Clean;
        }
        let waited = store.keeper_wake.wait_for(&mut state, pause);
        store.commit_watch.look(&store.files.dir);
        store.look_at_room(&mut state);
        // A quiet round: nothing was appended since the last one.
        let quiet = waited.timed_out() && *seen == state.rsn;
        *seen = state.rsn;
        if quiet && !state.ready.is_empty() && !state.stopping {
            return Work::Clean;
        }
        pause = if quiet { REST } else { ROUND };
    }
}

/// Whether enough has gathered to be brought to its place: a quarter of the memory for it, or of what the log takes
/// between two checkpoints. For a checkpoint holds all that is pending, and with a small log there are many.
pub(crate) fn clean_due(store: &Store, state: &State) -> bool {
    let high = (store.options.fast_write_memory / 4).min(store.files.label.log_bytes / 16);
    state.index.pending_bytes() as u64 > high && !state.ready.is_empty()
}

fn checkpoint_due(store: &Store, state: &mut State) -> bool {
    let newest = state.checkpoint.1.log.position;
    let ring = store.files.label.log_bytes;
    // With so much in the log room counts for more than what the manager may ask for.
    let held = state.marks.must_stay() && state.head.position - state.tail < ring / 2;
    if state.head.position - newest > ring / 4 {
        return !held;
    }
    state.room_waiters.retain(|w| !w.is_closed());
    let tight = state.head.position - state.tail + state.pending_log > ring / 2;
    let proof = state.wants_proof() && !store.has_room_for_proof(state);
    tight
        && (proof || !state.room_waiters.is_empty())
        && (state.tail < newest || state.head.position > newest)
}

/// Brings pending units that may go to their place there. Returns how many.
pub(crate) fn clean(store: &Store) -> io::Result<usize> {
    let (token, mut units, done) = {
        let mut state = store.lock();
        collect(&mut state)
    };
    units.sort_unstable_by_key(|(place, _)| *place);
    let count = units.len();
    let written = if count > 0 {
        write_units(store, units).and_then(|()| flush(store, &store.files.data))
    } else {
        Ok(())
    };
    let mut state = store.lock();
    if let Err(e) = written {
        // They still are where they were: in memory, and in the log or a checkpoint.
        for (strip, units) in done {
            if let Some(upto) = units.iter().map(|(_, rsn)| *rsn).max() {
                let ready = state.ready.entry(strip).or_default();
                *ready = upto.max(*ready);
            }
        }
        drop(state);
        drop(token);
        store.after_io();
        return Err(e);
    }
    let State { index, crcs, .. } = &mut *state;
    for (strip, units) in &done {
        index.clean(*strip, units, crcs);
    }
    drop(state);
    drop(token);
    store.after_io();
    Ok(count)
}

type Cleaned = Vec<(StripId, Vec<(u32, u64)>)>;

fn collect(state: &mut State) -> (Arc<()>, Vec<(u64, Bytes)>, Cleaned) {
    let token = Store::token(state);
    let (mut units, mut done) = (Vec::new(), Vec::new());
    while units.len() * UNIT < CLEAN_BYTES {
        let Some((strip, upto)) = state.ready.pop_first() else { break };
        let Some(v) = state.index.get(strip).and_then(|s| s.adopted.as_ref()) else { continue };
        let mut cleaned = Vec::new();
        for p in v.pending.iter().filter(|p| p.rsn <= upto) {
            if let Some(place) = unit_at(&v.map, p.unit) {
                units.push((place, p.bytes.clone()));
                cleaned.push((p.unit, p.rsn));
            }
        }
        done.push((strip, cleaned));
    }
    (token, units, done)
}

/// Neighbours go in one write, and no more than a portion at once.
fn write_units(store: &Store, units: Vec<(u64, Bytes)>) -> io::Result<()> {
    let (writes_max, bytes_max) = PORTION;
    let mut rest = units.as_slice();
    while !rest.is_empty() {
        let (mut requests, mut left) = (Vec::new(), bytes_max / UNIT);
        while let Some((first, _)) = rest.first().filter(|_| requests.len() < writes_max && left > 0) {
            let places = rest.iter().take(left).zip(*first..);
            let run = places.take_while(|((place, _), expected)| place == expected).count();
            let mut buf = store.node.buffer(run * UNIT);
            for (i, (_, bytes)) in rest[..run].iter().enumerate() {
                buf[i * UNIT..(i + 1) * UNIT].copy_from_slice(bytes);
            }
            requests.push(write(&store.files.data, first * UNIT as u64, buf));
            (rest, left) = (&rest[run..], left - run);
        }
        store.node.submit_and_wait(store.queues[0], requests)?;
    }
    Ok(())
}

fn write(file: &Arc<IoFile>, offset: u64, buf: impl Into<IoBuf>) -> Request {
    Request { file: Arc::clone(file), op: Op::Write(buf.into().freeze()), offset, tag: 0 }
}

fn flush(store: &Store, file: &Arc<IoFile>) -> io::Result<()> {
    let request = Request { file: Arc::clone(file), op: Op::Flush, offset: 0, tag: 0 };
    let done = store.node.submit_and_wait(store.queues[0], vec![request]);
    // Whatever it says, what was written may be lost: no reason to try again.
    done.map_err(|e| io::Error::other(format!("flush {}: {e}", file.path.display())))
}

/// Writes the state of now to the slot that does not hold the newest checkpoint. If that comes to nothing for lack
/// of room, everything is as before, but for that slot, which may be empty.
pub(crate) fn checkpoint(store: &Store) -> io::Result<()> {
    let written = write_checkpoint(store);
    if written.is_err() {
        store.lock().index.walk_stop();
    }
    written
}

fn write_checkpoint(store: &Store) -> io::Result<()> {
    let start = Instant::now();
    let queue = store.queues[0];
    // Room first: the slot's old header is still there if there is none.
    let (slot, strips, bytes) = {
        let state = store.lock();
        (1 - state.checkpoint.0, state.index.len(), state.index.checkpoint_bytes())
    };
    let spare = bytes / 8 + (strips as u64 + 64) * 16;
    store.files.make_room(slot, files::index_bytes(bytes + spare))?;
    let (mut head, marks) = {
        let mut state = store.lock();
        let newest = state.checkpoint.1;
        state.index.walk_start();
        let head = Head {
            number: newest.number + 1,
            pages: 0,
            strips: 0,
            rsn: state.rsn,
            log: state.head,
            pages_crc: 0,
            incarnation: state.index.incarnation,
        };
        let marks = state.marks.newest(head.log.mark());
        (head, marks)
    };
    let mut crcs = PageCrcs::default();
    let file = &store.files.index[slot];
    // While pages are written over the old ones no header may vouch for them.
    store.node.submit_and_wait(queue, vec![write(file, 0, AlignedBuf::zeroed(UNIT))])?;
    flush(store, file)?;
    let mut bytes = Vec::with_capacity(2 * WALK_BYTES);
    let mut more = true;
    while more || !bytes.is_empty() {
        if more {
            more = store.lock().index.walk_on(&mut bytes, WALK_BYTES, &mut head.strips);
        }
        while bytes.len() >= PAGE_USED || !more && !bytes.is_empty() {
            let used = bytes.len().min(PAGE_USED);
            let page = encode_page(head.number, head.pages, &bytes[..used]);
            crcs.add(&page);
            bytes.drain(..used);
            store.node.submit_and_wait(queue, vec![write(file, page_offset(head.pages), page)])?;
            head.pages += 1;
        }
    }
    let mut from = 0;
    loop {
        let Some((first, entries)) = store.lock().crcs.take_dirty(from, 256) else { break };
        from = first + entries.len() / UNIT;
        let mut buf = store.node.buffer(entries.len());
        buf.copy_from_slice(&entries);
        let wrote =
            store.node.submit_and_wait(queue, vec![write(&store.files.crc, (first * UNIT) as u64, buf)]);
        if let Err(e) = wrote {
            store.lock().crcs.keep_dirty(first, entries.len() / UNIT);
            return Err(e);
        }
    }
    head.pages_crc = crcs.sum();
    flush(store, &store.files.crc)?;
    flush(store, file)?;
    // The header says that all records up to `rsn` have happened: they must not be lost after that.
    let mut state = store.lock();
    while state.durable < head.rsn {
        if state.failed.is_some() {
            return Ok(());
        }
        store.committed.wait_for(&mut state, Duration::from_secs(1));
    }
    drop(state);
    store.node.submit_and_wait(queue, vec![write(file, 0, head.encode(&store.files.label.uuid, &marks))])?;
    flush(store, file)?;
    let mut state = store.lock();
    let older = state.checkpoint.1;
    assert!(state.tail <= older.log.position && older.log.position <= head.log.position, "the log goes on");
    state.tail = older.log.position;
    state.checkpoint = (slot, head);
    store.stats.checkpoint.record(start.elapsed());
    wake_room_waiters(&mut state);
    if state.wants_proof() {
        store.commit_wake.notify_one(); // There is room for it now.
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::{ClusterId, PdiskId};

    use super::*;
    use crate::{CreateOptions, IoConfig, IoNode, OpenOptions, Pdisk};

    /// Who waits for units waits for a proof, that for room in the log, and room comes by a checkpoint only.
    #[test]
    fn a_proof_that_the_log_has_no_room_for_makes_a_checkpoint_due() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, number) = (ClusterId(1), PdiskId(1));
        Pdisk::create(dir.path(), CreateOptions::new(cluster, number, 16 << 20)).unwrap();
        let node = IoNode::start(IoConfig::default()).unwrap();
        let options = OpenOptions { prove_after: None, ..OpenOptions::new(cluster, number) };
        let (pdisk, _) = Pdisk::open(dir.path(), options, &node).unwrap();
        let store = pdisk.store();
        let ring = store.files.label.log_bytes;
        let mut state = store.lock();
        let before = (state.head, state.tail, state.checkpoint, state.firm);
        state.head.position = state.tail + ring / 4 * 3;
        state.checkpoint.1.log.position = state.head.position - ring / 4;
        state.firm = state.durable - 1;
        let no_room = !store.has_room_for_proof(&state);
        let due_for_nobody = checkpoint_due(store, &mut state);
        let (waiter, _waits) = tokio::sync::oneshot::channel();
        state.space_waiters.push(waiter);
        let due = checkpoint_due(store, &mut state);
        // Of what is left it has room for the proof.
        state.tail = state.checkpoint.1.log.position;
        let room_after = store.has_room_for_proof(&state);
        state.space_waiters.clear();
        (state.head, state.tail, state.checkpoint, state.firm) = before;
        drop(state);
        assert_eq!((no_room, due_for_nobody, due, room_after), (true, false, true, true));
    }
}
