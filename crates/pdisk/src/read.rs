//! Reading: what each range consists of (places in the data file, bytes still in memory, holes) is found
//! under the lock; the disk fills aligned buffers; bytes from memory go over them.
//! What lies in one piece of a file in memory is not even read, but lent.
//! CRCs are returned as the writer made them. They are compared here only if asked: the reader at the
//! other end compares them anyway. A disk error counts as a lost strip.

use std::sync::Arc;

use base::units::UNIT;
use bytes::Bytes;
use tokio::sync::oneshot;
use wire::{
    crc::crc32c,
    strip::{Range, ReadStrip, ReadVersion, STRIP_LEN_MAX, StripRead, StripRefusal},
};

use crate::{
    crcmap::{CrcMap, Salt},
    extent::pieces,
    index::Index,
    io::{Errors, IoBuf, Op, Request, split},
    store::Store,
    strip::Ver,
};

/// Answer to one strip's read.
pub(crate) type ReadResult = Result<(StripRead, Bytes), StripRefusal>;

/// What to do for one strip.
struct Plan {
    answer: StripRead,
    bytes: usize,
    /// Offset in the buffer, place in the data file, units.
    disk: Vec<(usize, u64, u32)>,
    /// Offset in the buffer, bytes from memory.
    memory: Vec<(usize, Bytes)>,
    /// Parts of the buffer that are zeros.
    zeros: Vec<std::ops::Range<usize>>,
}

/// Reads a batch; results in request order. The queue's thread only says that all is read: what is left to
/// do is done here, by who asked.
pub(crate) async fn read(store: &Arc<Store>, batch: Vec<ReadStrip>, verify: bool) -> Vec<ReadResult> {
    if let ([one], false) = (&batch[..], verify)
        && let Some(lent) = lend(store, one)
    {
        return vec![Ok(lent)];
    }
    let mut plans = Vec::with_capacity(batch.len());
    let token = {
        let state = store.lock();
        let failed = state.failed.is_some();
        for r in &batch {
            plans.push(if failed { Err(StripRefusal::Failed) } else { plan(&state.index, &state.crcs, r) });
        }
        Store::token(&state)
    };
    let mut requests = Vec::new();
    let mut buffers = Vec::with_capacity(batch.len());
    for (tag, (r, plan)) in batch.iter().zip(plans).enumerate() {
        buffers.push(plan.map(|plan| {
            let queue = store.queue_of(r.strip);
            let buf = store.node.buffer(plan.bytes);
            let spans = plan.disk.iter().map(|(at, _, units)| *at..*at + *units as usize * UNIT);
            let (holder, windows) = split(buf, spans);
            requests.extend(windows.into_iter().zip(&plan.disk).map(|(window, (_, place, _))| {
                let file = Arc::clone(&store.files.data);
                let offset = place * UNIT as u64;
                (queue, Request { file, op: Op::Read(window), offset, tag: tag as u32 })
            }));
            (plan, holder)
        }));
    }
    let errors = match store.node.try_now(&mut requests) {
        Some(errors) => {
            drop(token);
            store.after_io();
            errors
        }
        None => {
            let (tx, rx) = oneshot::channel();
            let owner = Arc::clone(store);
            store.node.submit_queues(requests, move |errors| {
                drop(token);
                owner.after_io();
                // Who waited may be gone.
                let _ = tx.send(errors);
            });
            // The queues answer every batch; their end answers those that are left.
            let Ok(errors) = rx.await else { return vec![Err(StripRefusal::Failed); batch.len()] };
            errors
        }
    };
    let results = buffers.into_iter().enumerate().map(|(tag, entry)| {
        let (plan, holder) = entry?;
        let buf = holder.take().ok_or(StripRefusal::Lost)?;
        finish(store, plan, buf, tag as u32, &errors, verify)
    });
    results.collect()
}

/// The answer without a read, if all of it can be lent.
fn lend(store: &Arc<Store>, r: &ReadStrip) -> Option<(StripRead, Bytes)> {
    let wanted = r.ranges.iter().map(|range| range.len as usize).sum();
    if !store.node.lends(&store.files.data, wanted) {
        return None;
    }
    let (plan, lease) = {
        let state = store.lock();
        if state.failed.is_some() {
            return None;
        }
        (plan(&state.index, &state.crcs, r).ok()?, store.lease(&state))
    };
    let ([(_, place, _)], [], []) = (&plan.disk[..], &plan.memory[..], &plan.zeros[..]) else { return None };
    let bytes = store.node.lend(&store.files.data, place * UNIT as u64, plan.bytes, lease)?;
    Some((plan.answer, bytes))
}

fn plan(index: &Index, crcs: &CrcMap, r: &ReadStrip) -> Result<Plan, StripRefusal> {
    let strip = index.get(r.strip).ok_or(StripRefusal::Absent)?;
    let v = match r.version {
        ReadVersion::Adopted => strip.adopted.as_ref(),
        ReadVersion::Exactly(version) => strip.version(version),
    };
    let v = v.ok_or(StripRefusal::Absent)?;
    if v.damaged {
        return Err(StripRefusal::Lost);
    }
    let mut plan = Plan {
        answer: StripRead { info: v.info(), ranges: Vec::new(), crcs: Vec::new() },
        bytes: 0,
        disk: Vec::new(),
        memory: Vec::new(),
        zeros: Vec::new(),
    };
    let salt = Salt::of(r.strip);
    for range in &r.ranges {
        add_range(&mut plan, v, crcs, salt, *range)?;
    }
    Ok(plan)
}

fn add_range(plan: &mut Plan, v: &Ver, crcs: &CrcMap, salt: Salt, range: Range) -> Result<(), StripRefusal> {
    let unit = UNIT as u32;
    if !range.offset.is_multiple_of(unit) || !range.len.is_multiple_of(unit) {
        return Err(StripRefusal::Malformed);
    }
    let end = range.end().min(v.len);
    if range.offset >= end {
        return Ok(());
    }
    let cut = Range { offset: range.offset, len: end - range.offset };
    if plan.bytes + cut.len as usize > STRIP_LEN_MAX as usize {
        return Err(StripRefusal::Malformed);
    }
    let (first, last) = (cut.offset / unit, end / unit);
    let at = |u: u32| plan.bytes + (u - first) as usize * UNIT;
    for (u, e) in pieces(&v.map, first..last) {
        if e.is_hole() {
            plan.zeros.push(at(u)..at(u + e.count()));
            let zero = zero_crc();
            plan.answer.crcs.extend((0..e.count()).map(|_| zero));
        } else {
            plan.disk.push((at(u), e.start(), e.count()));
            plan.answer.crcs.extend((0..e.count()).map(|i| crcs.get(salt, u + i, e.start() + u64::from(i))));
        }
    }
    let crcs_before = plan.answer.crcs.len() - cut.units();
    let from = v.pending.partition_point(|p| p.unit < first);
    for p in v.pending[from..].iter().take_while(|p| p.unit < last) {
        plan.memory.push((at(p.unit), p.bytes.clone()));
        plan.answer.crcs[crcs_before + (p.unit - first) as usize] = p.crc;
    }
    // Units of which every one comes from memory need no disk.
    let memory = &plan.memory;
    plan.disk.retain(|(at, _, units)| {
        let covered =
            (0..*units as usize).all(|i| memory.binary_search_by_key(&(at + i * UNIT), |m| m.0).is_ok());
        !covered
    });
    plan.bytes += cut.len as usize;
    plan.answer.ranges.push(cut);
    Ok(())
}

/// CRC-32C of 4096 zero bytes.
pub(crate) fn zero_crc() -> u32 {
    static ZERO: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *ZERO.get_or_init(|| crc32c(&[0; UNIT]))
}

fn finish(store: &Store, plan: Plan, mut buf: IoBuf, tag: u32, errors: &Errors, verify: bool) -> ReadResult {
    if let Some((_, error)) = errors.iter().find(|(t, _)| *t == tag) {
        tracing::warn!(dir = %store.files.dir.display(), %error, "read error: the strip counts as lost");
        store.stats.lost.inc();
        return Err(StripRefusal::Lost);
    }
    for span in plan.zeros {
        buf[span].fill(0);
    }
    for (at, bytes) in plan.memory {
        buf[at..at + UNIT].copy_from_slice(&bytes);
    }
    if verify && buf.chunks_exact(UNIT).zip(&plan.answer.crcs).any(|(unit, crc)| crc32c(unit) != *crc) {
        store.stats.lost.inc();
        return Err(StripRefusal::Lost);
    }
    Ok((plan.answer, buf.freeze()))
}
