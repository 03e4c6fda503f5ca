//! Dirty blocks to the pdisks.
//!
//! One version of a block is in flight at a time; many blocks are. A flush runs as a task of its own:
//! who waits for it may go away. What is written while it runs makes the next version.
//! On failure the block is dirty again and is tried again later; the error reaches who waits now, and
//! fsync and close of every handle once.

use std::{collections::VecDeque, sync::Arc};

use base::{OpClass, start::Work, units::UNIT};
use bytes::Bytes;
use stripe::{BlockMeta, WriteStripe};
use tokio::sync::OwnedSemaphorePermit;
use wire::strip::Range;

use crate::{
    core::Core,
    error::Errno,
    files::inode::Inode,
    pages::{
        block::Frozen,
        load::{UnitRange, Unread},
    },
    waits,
};

/// A block whose data up to `seq` must be stored.
struct Target {
    block: u64,
    seq: u64,
    failures: u64,
}

/// All a flush needs, taken under the lock.
struct Job {
    frozen: Frozen,
    /// Clean units that parity needs.
    clean: Vec<(u32, Bytes)>,
    /// Units that parity needs and that are not here.
    absent: Vec<UnitRange>,
    on_disk: bool,
    /// Not allocated, and yet something of it may be on the pdisks.
    may_be_left: bool,
    whole: bool,
    /// Bytes of the block that count, of the file's size at this time.
    stored_to: u32,
    strip_units: u32,
    meta: Option<BlockMeta>,
    data_strips: u8,
    pool: base::PoolId,
}

impl Core {
    /// Stores everything that is dirty now in blocks `first..end`: on the pdisks, or in the inode where
    /// the file fits there.
    pub async fn store(self: &Arc<Core>, inode: &Arc<Inode>, first: u64, end: u64) -> Result<(), Errno> {
        self.store_but(inode, first, end, None).await
    }

    /// The same without one block (that is being filled in sequence).
    pub async fn store_but(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        first: u64,
        end: u64,
        but: Option<u64>,
    ) -> Result<(), Errno> {
        let mut targets: VecDeque<Target> = {
            let state = inode.lock();
            let unstored = state.blocks_from(first).take_while(|(n, _)| *n < end);
            let unstored = unstored.filter(|(n, b)| b.stored_seq < b.dirty_seq && Some(*n) != but);
            unstored.map(|(block, b)| Target { block, seq: b.dirty_seq, failures: b.failures }).collect()
        };
        let window = self.live().flushes_max as usize * 2;
        while !targets.is_empty() {
            let step = self.wait_inode(inode, "dirty blocks to be written", || {
                self.store_step(inode, &mut targets, window)
            });
            if step.await?? {
                self.commit(inode).await?;
            }
        }
        Ok(())
    }

    /// Removes what is stored from the front, starts what can start. `Some(true)`: a commit is needed,
    /// `Some(false)`: all stored.
    fn store_step(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        targets: &mut VecDeque<Target>,
        window: usize,
    ) -> Option<Result<bool, Errno>> {
        if self.calls.dead() {
            return Some(Err(Errno::EIO));
        }
        let before = targets.len();
        let mut state = inode.lock();
        if state.is_forsaken() {
            targets.clear();
        }
        let mut commit = false;
        let mut failed = None;
        let mut kept = VecDeque::new();
        let mut begun: Vec<Work> = Vec::new();
        while kept.len() < window {
            let Some(target) = targets.pop_front() else { break };
            let Some(block) = state.block(target.block) else { continue };
            if block.stored_seq >= target.seq || !block.flushing() && !block.has_dirty() {
                continue;
            }
            if block.failures > target.failures {
                failed = Some(state.failures.last());
            } else if !block.flushing() && !state.flushes.are_held() {
                if state.fits_inode(self.tunables.inline_data_max) {
                    commit = true;
                } else {
                    let ticket = state.edit(target.block, |b| b.begin_flush());
                    let (core, inode, block) = (self.clone(), inode.clone(), target.block);
                    begun.push(Box::pin(async move { core.store_block(inode, block, ticket).await }));
                }
            }
            kept.push_back(target);
        }
        drop(state);
        match <[Work; 1]>::try_from(begun) {
            // Who waits for one block sends it himself.
            Ok([one]) => self.begin(one),
            Err(several) => several.into_iter().for_each(|work| drop(self.runtime.spawn(work))),
        }
        kept.append(targets);
        *targets = kept;
        if targets.len() < before {
            waits::moved();
        }
        match failed {
            Some(error) => Some(Err(error)),
            None if commit => Some(Ok(true)),
            None => targets.is_empty().then_some(Ok(false)),
        }
    }

    /// Starts writing a block, without waiting for it.
    pub fn kick_block(self: &Arc<Core>, inode: &Arc<Inode>, block: u64) {
        let ticket = {
            let mut state = inode.lock();
            let waits = state.block(block).is_some_and(|b| b.has_dirty() && !b.flushing());
            if !waits || state.flushes.are_held() || state.fits_inode(self.tunables.inline_data_max) {
                return;
            }
            state.edit(block, |b| b.begin_flush())
        };
        let (core, inode) = (self.clone(), inode.clone());
        self.runtime.spawn(async move { core.store_block(inode, block, ticket).await });
    }

    /// Writes one block, which was claimed with this ticket.
    async fn store_block(self: Arc<Core>, inode: Arc<Inode>, block: u64, ticket: u64) {
        // Nothing is on pdisks of an inode that the manager does not know. Who waits for that holds up nobody else.
        let told = self.calls.inode_told(inode.ino).await;
        let permit = self.flush_turn(&inode).await;
        let job = self.take_job(&inode, block, ticket);
        let Some(job) = job else {
            inode.changed.notify_waiters();
            return;
        };
        let (seq, stored_to, whole) = (job.frozen.seq, job.stored_to, job.whole);
        let result = match told {
            Ok(()) => self.write_job(&inode, block, job).await,
            Err(error) => Err(error),
        };
        drop(permit);
        let mut tagger = inode.tagger(block, false);
        let mut state = inode.lock();
        state.flushes.end();
        match result {
            Ok(meta) => {
                state.failures.over();
                let mut stored = 0;
                let known = state.edit_existing(block, |b| {
                    b.end_flush(ticket);
                    stored = b.written(seq, &mut tagger);
                    b.meta = Some(meta).filter(|m| m.is_complete(m.data.len()));
                    b.stored_to = b.stored_to.max(stored_to);
                });
                self.spend_room(&inode, stored);
                if whole && state.attr.size > self.live().seq_discard_threshold {
                    let tags = state.block(block).map(|b| b.tags()).unwrap_or_default();
                    self.pool.give_up_first(tags);
                }
                if known.is_some() && !state.recorded.contains(block) {
                    state.pending.insert(block, block + 1);
                    state.due.note_commit();
                }
            }
            Err(error) => {
                state.edit_existing(block, |b| {
                    b.end_flush(ticket);
                    b.not_written();
                    b.failures += 1;
                });
                state.failures.add(error);
            }
        }
        drop(state);
        inode.changed.notify_waiters();
    }

    /// A turn to write. Each of those who have one ends by its deadline; who waits for the block has his own.
    async fn flush_turn(&self, inode: &Inode) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.flush.clone().try_acquire_owned() {
            return Some(permit);
        }
        let _entered = self.pool.waits().enter("a turn to write", Some(inode.ino));
        self.permits.flush.clone().acquire_owned().await.ok()
    }

    /// Freezes a block for its next version.
    fn take_job(&self, inode: &Inode, block: u64, ticket: u64) -> Option<Job> {
        let mut state = inode.lock();
        // A block that was dropped meanwhile may be one of which nothing is known any more.
        if !state.block(block).is_some_and(|b| b.flush_is(ticket)) {
            return None;
        }
        let (pool, block_size) = (state.attr.pool, state.attr.block_size);
        let on_disk = state.on_disk(block);
        let may_be_left = (!on_disk || state.in_inode(block)) && state.may_be_left(block);
        let strip_units = state.strip_units;
        let data_strips = self.blocks.geometry(pool).map_or(1, |g| g.data_strips);
        let hold = state.flushes.are_held();
        let block_start = block * u64::from(block_size);
        let stored_to = state.attr.size.saturating_sub(block_start).min(block_size.into()) as u32;
        let job = state.edit_existing(block, |b| {
            if hold || !b.has_dirty() {
                b.end_flush(ticket);
                return None;
            }
            b.flush_starts += 1;
            let frozen = b.freeze();
            let whole = frozen.dirty.len() == 1 && frozen.dirty[0] == Range { offset: 0, len: block_size };
            let (mut clean, mut absent) = (Vec::new(), Vec::new());
            if !whole {
                let needed = self.blocks.parity_ranges(pool, block_size, &frozen.dirty);
                absent = b.clean_within(&needed, &mut clean);
            }
            if !on_disk {
                absent.clear();
            }
            let meta = if whole || !on_disk { None } else { b.meta.clone() };
            Some(Job {
                frozen,
                clean,
                absent,
                on_disk,
                whole,
                stored_to,
                meta,
                data_strips,
                pool,
                may_be_left,
                strip_units,
            })
        });
        let job = job.flatten()?;
        state.flushes.begin();
        Some(job)
    }

    async fn write_job(&self, inode: &Arc<Inode>, block: u64, job: Job) -> Result<BlockMeta, Errno> {
        let mut pieces = job.frozen.pieces;
        pieces.extend(job.clean);
        let mut previous = job.meta;
        if job.on_disk && !job.whole && !inode.lock().in_inode(block) {
            // What is not known of the block's versions the stripe's writer asks for.
            previous.get_or_insert_with(|| BlockMeta::unknown(usize::from(job.data_strips)));
        }
        if previous.is_some() && !job.absent.is_empty() {
            let bytes = job.absent.iter().map(|u| u64::from(u.end - u.start)).sum::<u64>() * UNIT as u64;
            // Above the pool's bound if need be: this memory is what frees memory.
            let charge = self.pool.charge_over(bytes);
            let fetched = self.fetch(inode, block, &job.absent, OpClass::Write, charge).await;
            let (read, meta) = fetched.map_err(|error| match error {
                Unread::Manager(error) => error,
                Unread::Block(error) => self.block_error("read", inode, block, &error),
            })?;
            pieces.extend(read);
            if let (Some(previous), Some(meta)) = (&mut previous, &meta) {
                previous.merge(meta);
            }
        }
        pieces.sort_by_key(|(offset, _)| *offset);
        let mut dirty = job.frozen.dirty;
        if job.may_be_left && !job.whole {
            let left = self.blocks.leftover(self.stripe(inode.ino, block), job.pool).await;
            let left = left.map_err(|error| self.block_error("look for", inode, block, &error))?;
            if left > 0 {
                // Everything there is replaced, with zeros where nothing is written.
                let end = left.max(dirty.last().map_or(0, |r| r.end()));
                pieces = fill_gaps(pieces, end, job.strip_units * UNIT as u32);
                dirty = vec![Range { offset: 0, len: end }];
            }
        }
        let dirty_end = dirty.last().map_or(0, |r| r.end());
        let from_begin = dirty.first().is_some_and(|r| r.offset == 0) && dirty.len() == 1;
        let write = WriteStripe {
            stripe: self.stripe(inode.ino, block),
            pool: job.pool,
            version: self.next_version(inode),
            // Never shorter than before: strips that this version does not touch keep their length.
            len: dirty_end.max(previous.as_ref().map_or(0, |m| m.len)),
            dirty,
            pieces,
            previous,
            replaces: from_begin && dirty_end >= job.stored_to,
        };
        let next = || self.next_version(inode);
        self.blocks.write(write, &next).await.map_err(|error| self.block_error("write", inode, block, &error))
    }

    /// Stops new flushes of the inode and waits until none is in flight.
    pub async fn hold_flushes(self: &Arc<Core>, inode: &Arc<Inode>) -> Result<Hold, Errno> {
        inode.lock().flushes.hold();
        let hold = Hold(inode.clone());
        self.wait_inode(inode, "blocks in flight", || (!inode.lock().flushes.in_flight()).then_some(()))
            .await?;
        Ok(hold)
    }
}

/// Sorted pieces with zeros between them, up to `end`; none crosses a strip boundary.
fn fill_gaps(pieces: Vec<(u32, Bytes)>, end: u32, strip: u32) -> Vec<(u32, Bytes)> {
    let mut filled = Vec::with_capacity(pieces.len() * 2);
    let mut at = 0;
    let fill = |filled: &mut Vec<(u32, Bytes)>, from: u32, to: u32| {
        let mut at = from;
        while at < to {
            let stop = to.min((at / strip + 1) * strip);
            let mut slices = Vec::new();
            crate::pages::piece::zeros((stop - at) as usize, &mut slices);
            for slice in slices {
                let len = slice.len() as u32;
                filled.push((at, slice));
                at += len;
            }
        }
    };
    for (offset, bytes) in pieces {
        fill(&mut filled, at, offset);
        at = offset + bytes.len() as u32;
        filled.push((offset, bytes));
    }
    fill(&mut filled, at, end);
    filled
}

/// While it lives no flush of the inode begins.
pub(crate) struct Hold(Arc<Inode>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.lock().flushes.resume();
        self.0.changed.notify_waiters();
    }
}
