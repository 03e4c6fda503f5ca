//! Writing: bytes into blocks in memory. Room on the pdisks and memory are held before a page is
//! dirtied, so that an error comes to the writer and not to whoever closes the file.

use std::sync::Arc;

use base::{OpClass, start::Work, units::UNIT};
use wire::mgr::FILE_SIZE_MAX;

use crate::{
    core::{Core, now},
    error::Errno,
    files::{
        handle::{OpenFile, WriteFlags},
        inode::{Inode, Locked},
        state::FileState,
    },
    pages::{
        loading::LoadWait,
        piece::{Content, OwnBuf},
        pool::Charge,
        room::RoomHold,
    },
    waits,
};

/// Bytes copied under one hold of the file's lock, at most; and at most this share of the page pool.
const STEP_MAX: usize = 4 << 20;
const STEP_SHARE: u64 = 16;

/// Units that come in at once for who writes parts of them one after the other, at most; and at most this share of the page pool.
const EDGES_MAX: u64 = 256;
const EDGES_SHARE: u64 = 1024;

const UNIT64: u64 = UNIT as u64;

/// Who is in the file beside us.
enum IoGuard<'a> {
    Shared { _guard: tokio::sync::RwLockReadGuard<'a, ()> },
    Exclusive { _guard: tokio::sync::RwLockWriteGuard<'a, ()> },
}

/// What came of an attempt to write into one block.
enum PartStep {
    /// Done; `complete`: the block was filled in sequence.
    Written { complete: bool },
    /// Units that are written in part come in first.
    Load(Edges),
    /// The file outgrows its inode.
    LeaveInode,
}

/// Units that must come in first: what to wait for, and the loads to begin when the file is no longer locked.
#[derive(Default)]
struct Edges {
    waits: Vec<Arc<LoadWait>>,
    loads: Vec<Work>,
    /// Units that this write does not need come with them.
    others: bool,
}

impl Core {
    /// Writes at `offset`, or at the end. The write token is held.
    pub async fn write_at(
        self: &Arc<Core>,
        file: &OpenFile,
        offset: Option<u64>,
        data: Content<'_>,
        flags: WriteFlags,
    ) -> Result<usize, Errno> {
        let inode = &file.inode;
        debug_assert!(inode.lock().token.users() > 0, "the write token is held");
        let mut done = 0;
        let (mut first, mut last) = (u64::MAX, 0);
        let share = (self.live().pagepool / STEP_SHARE) as usize;
        let step_max = STEP_MAX.min(share / UNIT * UNIT).max(UNIT);
        while done < data.len() {
            let step = data.part(done..data.len().min(done + step_max));
            let at = offset.map(|offset| offset + done as u64);
            match self.write_step(inode, at, step).await {
                Ok(at) => {
                    (first, last) = (first.min(at), last.max(at + step.len() as u64));
                    done += step.len();
                    waits::moved();
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if flags.sync || flags.dsync {
            // Its name is durable with it, also one that it was given since.
            self.calls.told().await?;
            self.make_durable(inode, first, last, !flags.sync).await?;
        }
        Ok(done)
    }

    /// Whether the end of the file is found here. A caller that does so itself cannot while others write.
    pub fn appends(&self, file: &OpenFile, flags: WriteFlags) -> bool {
        flags.append && (!file.flags.caller_appends || file.shared || self.whole().is_none())
    }

    /// One step; returns where it went.
    async fn write_step(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        offset: Option<u64>,
        data: Content<'_>,
    ) -> Result<u64, Errno> {
        if self.calls.dead() {
            return Err(Errno::EIO);
        }
        self.learn_blocks_to_write(inode, offset, data.len() as u64).await?;
        let memory = (data.len() as u64).next_multiple_of(UNIT64) + 2 * UNIT64;
        self.pool.throttle(memory, self.patience()).await?;
        self.throttle_files(inode).await?;
        // Buffers come in powers of two: of each piece up to twice of it.
        let copied = if data.keep(0).is_some() { memory } else { 2 * memory };
        let mut charge = self.pool.charge(copied, self.patience()).await?;
        let _io = self.io_for_write(inode, offset, data.len() as u64).await?;
        let offset = offset.unwrap_or_else(|| inode.lock().attr.size);
        self.write_held(inode, offset, data, &mut charge).await?;
        if self.pool.pressure() {
            self.unsettled.wake.notify_one();
        }
        Ok(offset)
    }

    /// The same with memory taken and the file's lock held, exclusively if the size will change.
    pub async fn write_held(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        offset: u64,
        data: Content<'_>,
        charge: &mut Charge,
    ) -> Result<(), Errno> {
        let size = inode.lock().attr.size;
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= FILE_SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        self.leave_inode_if_above(inode, end.max(size)).await?;
        let (pool, raw) = self.raw_needed(inode, offset, end)?;
        let mut room = self.take_room(pool, raw).await?;
        if offset > size {
            self.zero_bytes(inode, size, offset).await?;
        }
        let block_size = inode.lock().block_size();
        let mut pos = offset;
        while pos < end {
            let block = pos / block_size;
            let stop = end.min((block + 1) * block_size);
            let part = data.part((pos - offset) as usize..(stop - offset) as usize);
            let complete = self.write_part(inode, pos, part, charge, &mut room).await?;
            if complete && end.max(size) >= self.live().writebehind_threshold {
                self.kick_block(inode, block);
            }
            pos = stop;
        }
        Ok(())
    }

    /// The file's lock: exclusive if the size will change.
    async fn io_for_write<'a>(
        &self,
        inode: &'a Inode,
        offset: Option<u64>,
        len: u64,
    ) -> Result<IoGuard<'a>, Errno> {
        let extends = |state: &FileState| offset.is_none_or(|o| o.saturating_add(len) > state.attr.size);
        if !extends(&inode.lock()) {
            let guard = self.patient("a file's lock", Some(inode.ino), inode.io.read()).await?;
            if !extends(&inode.lock()) {
                return Ok(IoGuard::Shared { _guard: guard });
            }
        }
        let guard = self.patient("a file's lock", Some(inode.ino), inode.io.write()).await?;
        Ok(IoGuard::Exclusive { _guard: guard })
    }

    /// Raw room that writing `offset..end` may newly occupy, and in which pool.
    fn raw_needed(&self, inode: &Inode, offset: u64, end: u64) -> Result<(base::PoolId, u64), Errno> {
        let (bytes, pool) = {
            let state = inode.lock();
            let block_size = state.block_size();
            let mut units = 0;
            for block in offset / block_size..end.div_ceil(block_size) {
                units += new_units(&state, block, offset, end);
            }
            (units * UNIT64, state.attr.pool)
        };
        Ok((pool, if bytes == 0 { 0 } else { self.raw_bytes(pool, bytes)? }))
    }

    /// Writes into one block. True if the block is complete now, having been filled in sequence.
    async fn write_part(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        pos: u64,
        data: Content<'_>,
        charge: &mut Charge,
        room: &mut RoomHold,
    ) -> Result<bool, Errno> {
        loop {
            match self.try_write_part(inode, pos, data, charge, room)? {
                PartStep::Written { complete } => {
                    self.note_unsettled(inode);
                    return Ok(complete);
                }
                PartStep::Load(edges) => self.wait_edges(edges).await?,
                PartStep::LeaveInode => self.leave_inode_if_above(inode, pos + data.len() as u64).await?,
            }
        }
    }

    /// The part of it that waits for nothing.
    fn try_write_part(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        pos: u64,
        data: Content<'_>,
        charge: &mut Charge,
        room: &mut RoomHold,
    ) -> Result<PartStep, Errno> {
        let mut state = inode.lock();
        let block_size = state.block_size();
        let (block, start) = (pos / block_size, (pos % block_size) as u32);
        let end = pos + data.len() as u64;
        if end > u64::from(self.tunables.inline_data_max) && state.must_leave_inode() {
            // An inline commit came in between.
            return Ok(PartStep::LeaveInode);
        }
        let edges = self.load_edges(inode, &mut state, block, start, start + data.len() as u32);
        if !edges.waits.is_empty() {
            return Ok(PartStep::Load(edges));
        }
        let raw = room.take(self.raw_bytes(state.attr.pool, new_units(&state, block, pos, end) * UNIT64)?);
        let (seq, grow) = (state.writes.next(), state.writes.grow_units(pos, data.len() as u64));
        let pool = self.pool.clone();
        let whole = (block_size / UNIT64) as u32;
        let complete = state.edit(block, |b| {
            match data.keep(start) {
                Some(data) => b.write_shared(start, data, seq, charge),
                None => b.write(start, data.bytes(), seq, grow, &mut |exact, wanted| {
                    own_buf(&pool, charge, exact, wanted)
                }),
            }
            b.reserved += raw;
            end.is_multiple_of(block_size) && b.dirty_up_to(whole)
        });
        if end > state.attr.size {
            state.attr.size = end;
        }
        state.touch(now());
        state.due.note_data();
        Ok(PartStep::Written { complete })
    }

    /// What is absent of the units that `from..to` covers in part and that hold bytes of the file.
    fn load_edges(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        state: &mut Locked<'_>,
        block: u64,
        from: u32,
        to: u32,
    ) -> Edges {
        let mut missing = Edges::default();
        if !state.on_disk(block) {
            return missing;
        }
        let block_start = block * state.block_size();
        // Units of it that count.
        let end = state.attr.size.saturating_sub(block_start).min(state.block_size()).div_ceil(UNIT64) as u32;
        let several = (self.live().pagepool / EDGES_SHARE / UNIT64).min(EDGES_MAX) as u32;
        let edges = [(from, from / UNIT as u32), (to, to / UNIT as u32)];
        let mut comes = 0..0;
        for (edge, unit) in edges {
            let inside = !edge.is_multiple_of(UNIT as u32) && !comes.contains(&unit);
            let absent = state.block(block).is_none_or(|b| !b.missing(unit, unit + 1).is_empty());
            if inside && unit < end && absent {
                comes = state.edit(block, |b| b.edge(unit, several, end));
                missing.others |= comes.len() > 1;
                let (waits, load) = self.prepare_load(inode, state, block, comes.clone(), OpClass::Read);
                missing.waits.extend(waits);
                missing.loads.extend(load);
            }
        }
        missing
    }

    /// Begins the loads here, as a read does, and waits for them.
    async fn wait_edges(self: &Arc<Core>, edges: Edges) -> Result<(), Errno> {
        edges.loads.into_iter().for_each(|load| self.begin(load));
        match self.wait_loads(edges.waits).await {
            // It may be of one of the others. Asked for again each comes alone, and says itself what is wrong.
            Err(_) if edges.others => Ok(()),
            done => done,
        }
    }

    /// Makes bytes `from..to` read as zeros, in memory and in what will be stored. Only what the pdisks
    /// may hold otherwise becomes dirty. The caller has the file for itself.
    pub async fn zero_bytes(self: &Arc<Core>, inode: &Arc<Inode>, from: u64, to: u64) -> Result<(), Errno> {
        let block_size = inode.lock().block_size();
        let mut pos = from;
        while pos < to {
            // Beyond the block of `from`, blocks that are neither here nor on the pdisks are skipped at once.
            let next = {
                let state = inode.lock();
                let block = pos / block_size;
                let touched = |b: u64| state.on_disk(b) || state.block(b).is_some();
                if touched(block) { Some(block) } else { self.next_touched(&state, block) }
            };
            let Some(block) = next else { break };
            pos = pos.max(block * block_size);
            if pos >= to {
                break;
            }
            let stop = to.min((block + 1) * block_size);
            self.zero_part(inode, block, (pos % block_size) as u32, (stop - block * block_size) as u32)
                .await?;
            pos = stop;
        }
        Ok(())
    }

    fn next_touched(&self, state: &FileState, block: u64) -> Option<u64> {
        let here = state.blocks_from(block).next().map(|(n, _)| n);
        let first = if state.inline.is_held() && block == 0 { Some(0) } else { None };
        [here, state.recorded.allocated().next_in(block), state.pending.next_in(block), first]
            .into_iter()
            .flatten()
            .min()
    }

    async fn zero_part(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        block: u64,
        from: u32,
        to: u32,
    ) -> Result<(), Errno> {
        let unit = UNIT as u32;
        let mut charge = self.pool.charge(2 * UNIT64, self.patience()).await?;
        loop {
            let edges = {
                let mut state = inode.lock();
                let edges = self.load_edges(inode, &mut state, block, from, to);
                if edges.waits.is_empty() {
                    let on_disk = state.on_disk(block);
                    let seq = state.writes.next();
                    let (pool, home) = (self.pool.clone(), state.attr.pool);
                    // What a failed write left may be longer than what is stored, and become the content after a crash.
                    let abandoned = self.blocks.is_abandoned(self.stripe(inode.ino, block));
                    let room = state.edit(block, |b| {
                        let (first, last) = (from.div_ceil(unit), to / unit);
                        let mut partial = |b: &mut crate::pages::block::Block, from: u32, to: u32| {
                            // Absent here means that it is zeros already, or beyond the end of the file.
                            if from < to && b.missing(from / unit, from / unit + 1).is_empty() {
                                b.write(
                                    from,
                                    &ZEROS[..(to - from) as usize],
                                    seq,
                                    1,
                                    &mut |exact, wanted| own_buf(&pool, &mut charge, exact, wanted),
                                );
                            }
                        };
                        if first > last {
                            partial(b, from, to);
                            return 0;
                        }
                        partial(b, from, first * unit);
                        partial(b, last * unit, to);
                        let stored = match &b.meta {
                            _ if b.flushing() => u32::MAX,
                            _ if !on_disk => 0,
                            Some(meta) if !abandoned => meta.len / unit,
                            _ => u32::MAX,
                        };
                        b.drop_units(first, last);
                        b.zero_units(first, last.min(stored), seq);
                        self.room_unused(b, home)
                    });
                    state.due.note_data();
                    drop(state);
                    self.return_room(inode, room);
                    self.note_unsettled(inode);
                    return Ok(());
                }
                edges
            };
            self.wait_edges(edges).await?;
            waits::moved();
        }
    }

    /// A file that will be longer than fits into its inode moves out of it: its content becomes dirty.
    pub async fn leave_inode_if_above(self: &Arc<Core>, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        if size <= u64::from(self.tunables.inline_data_max) {
            return Ok(());
        }
        loop {
            let waits = {
                let mut state = inode.lock();
                if !state.must_leave_inode() {
                    return Ok(());
                }
                let units = state.inode_units();
                let absent = state.block(0).is_none_or(|b| !b.missing(0, units).is_empty());
                if !absent || units == 0 {
                    state.leave_inode();
                    drop(state);
                    self.note_unsettled(inode);
                    return Ok(());
                }
                self.start_load(inode, &mut state, 0, 0..units, OpClass::Read)
            };
            self.wait_loads(waits).await?;
        }
    }
}

static ZEROS: [u8; UNIT] = [0; UNIT];

/// Memory for a piece: exactly what is needed from the writer's charge; room for more only if there is
/// memory to spare.
fn own_buf(pool: &crate::pages::pool::Pool, charge: &mut Charge, exact: u32, wanted: u32) -> OwnBuf {
    let wanted_bytes = (wanted as usize).next_power_of_two() * UNIT;
    if wanted > exact
        && let Some(extra) = pool.charge_now(wanted_bytes as u64)
    {
        return OwnBuf { buf: pool.buffer(wanted_bytes), charge: extra };
    }
    let buf = pool.buffer(exact as usize * UNIT);
    let bytes = buf.capacity() as u64;
    // What was charged is enough, but for a unit or two at the edges.
    let mut own = charge.split(bytes);
    if own.bytes() < bytes {
        own = pool.charge_over_now(bytes);
    }
    OwnBuf { buf, charge: own }
}

/// Units of `offset..end` in a block that the pdisks do not hold yet.
fn new_units(state: &FileState, block: u64, offset: u64, end: u64) -> u64 {
    let block_size = state.block_size();
    let start = block * block_size;
    let mut from = offset.max(start);
    let to = end.min(start + block_size);
    if state.pending.contains(block) || state.recorded.contains(block) {
        from = from.max(state.attr.size);
    }
    if from >= to {
        return 0;
    }
    let units = ((from - start) / UNIT64) as u32..(to - start).div_ceil(UNIT64) as u32;
    let Some(b) = state.block(block) else { return u64::from(units.end - units.start) };
    b.missing(units.start, units.end).iter().map(|gap| u64::from(gap.end - gap.start)).sum()
}
