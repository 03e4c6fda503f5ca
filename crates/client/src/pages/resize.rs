//! Truncate, fallocate, holes, and where data is.
//!
//! Shrinking: flushes stop, the manager first (it removes the strips), then pages are dropped. The part
//! of the last block behind the new end is left as it is on the pdisks: what lies beyond the end of a
//! file is arbitrary, and every growth writes zeros over the part it uncovers.
//! What the manager refuses has changed nothing. What it does not answer is under way until it does, and what it may
//! have taken away is not believed in meanwhile ([`crate::changes`]). Whoever waits for a cut or a hole may go: the token stays
//! until it is done, so nothing of it reaches a file that is another's by then.

use std::{sync::Arc, time::Instant};

use base::{BlockIndex, units::UNIT};
use tokio::sync::OwnedRwLockWriteGuard;
use wire::mgr::{Attr, Change, Extent, FILE_SIZE_MAX, MgrReply};

use crate::{
    calls::unexpected,
    core::{Core, now},
    error::Errno,
    files::{inode::Inode, state::FileState},
    sharing::guards::TokenHold,
    waits,
};

/// How [`crate::Client::fallocate`] changes a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// The range is stored, so that no write into it can fail for lack of room; the file grows to its end.
    /// With `keep_size` a range beyond the end is refused (`EOPNOTSUPP`).
    Allocate {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// The range becomes a hole; the size stays.
    PunchHole,
    /// The range reads as zeros; the file grows to its end unless `keep_size`.
    ZeroRange {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
}

const UNIT64: u64 = UNIT as u64;

impl Core {
    /// Sets the size.
    pub async fn truncate(self: &Arc<Core>, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        // Here, where nobody waits for us: with the lock there is nothing to ask then, as a rule.
        self.learn_blocks_to_resize(inode, size).await?;
        let io = self.alone_in(inode).await?;
        let old = inode.lock().attr.size;
        if size < old {
            return self.shrink(inode, size, io).await;
        }
        self.learn_blocks_to_resize(inode, size).await?;
        self.grow(inode, size).await
    }

    /// The file's lock, exclusively.
    pub async fn alone_in(&self, inode: &Inode) -> Result<OwnedRwLockWriteGuard<()>, Errno> {
        self.patient("a file's lock", Some(inode.ino), inode.io.clone().write_owned()).await
    }

    /// To a size that is not smaller; `io` is held exclusively, and which blocks there are from the old size on has been learned.
    pub async fn grow(self: &Arc<Core>, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        let old = inode.lock().attr.size;
        let round = |n: u64| n.next_multiple_of(UNIT64);
        if size > old {
            self.zero_bytes(inode, old, round(size)).await?;
        }
        loop {
            self.leave_inode_if_above(inode, size).await?;
            let mut state = inode.lock();
            if size > u64::from(self.tunables.inline_data_max) && state.must_leave_inode() {
                continue;
            }
            state.attr.size = size;
            state.touch(now());
            break;
        }
        self.note_unsettled(inode);
        Ok(())
    }

    /// To a size that is smaller, or the same: what lies beyond it goes.
    pub async fn shrink(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        size: u64,
        io: OwnedRwLockWriteGuard<()>,
    ) -> Result<(), Errno> {
        let (core, file, token) = (self.clone(), inode.clone(), TokenHold::another(inode));
        let work = async move {
            let _held = (io, token);
            core.cut(&file, size).await
        };
        self.see_through(inode, "the end of a file to be cut off", work).await
    }

    async fn cut(self: &Arc<Core>, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        let hold = self.hold_flushes(inode).await?;
        // From there on everything is known afterwards, also of the block that the new end is in.
        self.learn_blocks_to_resize(inode, size).await?;
        let commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock()).await?;
        let block_size = inode.lock().block_size();
        let first_gone = size.div_ceil(block_size);
        if inode.lock().pending.any_in(first_gone, u64::MAX) {
            // The manager removes only strips that it knows of.
            self.commit_locked(inode).await?;
        }
        let now = now();
        let (only_here, size_there) = {
            let state = inode.lock();
            // Content that stays in the inode goes with the next commit as a whole.
            let inode_only = state.inline.is_held() && state.has_no_blocks() && state.pending.is_empty();
            let fits = state.attr.size <= u64::from(self.tunables.inline_data_max);
            (inode_only && fits, state.size_committed)
        };
        let mut manager_knows = false;
        if !only_here && size < size_there {
            let change = Change::SetAttr {
                ino: inode.ino,
                mode: None,
                uid: None,
                gid: None,
                size: Some(size),
                atime: None,
                mtime: Some(now),
                ctime: now,
                highest: self.next_version(inode),
            };
            let attr = self.take_away(inode, change).await?;
            inode.lock().size_committed = attr.size;
            manager_knows = true;
        } else {
            let end = FILE_SIZE_MAX.div_ceil(block_size);
            if inode.lock().may_have(first_gone, end) {
                let beyond = Extent { first: BlockIndex(first_gone), count: end - first_gone };
                self.deallocate(inode, beyond).await?;
            }
        }
        let room = {
            let mut state = inode.lock();
            let (mut room, pool) = (state.drop_blocks(first_gone, u64::MAX), state.attr.pool);
            let inside = (size % block_size) as u32;
            let unused = state.edit_existing(size / block_size, |b| {
                let units = (block_size / UNIT64) as u32;
                b.drop_units(inside.div_ceil(UNIT as u32), units);
                b.stored_to = b.stored_to.min(inside);
                self.room_unused(b, pool)
            });
            room += unused.unwrap_or(0);
            state.forget_idle(size / block_size);
            state.note_dropped(first_gone, u64::MAX);
            state.recorded.taken_out(first_gone, u64::MAX);
            state.pending.remove(first_gone, u64::MAX);
            state.attr.size = size;
            state.writes.end_run();
            if manager_knows && !state.unsent.is_any() {
                state.attr.mtime = now;
                state.attr.ctime = now;
            } else {
                state.touch(now);
            }
            room
        };
        self.return_room(inode, room);
        drop(commit);
        drop(hold);
        self.note_unsettled(inode);
        Ok(())
    }

    async fn deallocate(self: &Arc<Core>, inode: &Inode, blocks: Extent) -> Result<(), Errno> {
        let highest = self.next_version(inode);
        let change = Change::Deallocate { ino: inode.ino, blocks, highest, now: now() };
        self.take_away(inode, change).await.map(drop)
    }

    /// A change that takes blocks out of the record. It runs in a task that ends with what follows from its answer.
    async fn take_away(self: &Arc<Core>, inode: &Inode, change: Change) -> Result<Box<Attr>, Errno> {
        inode.lock().changing = Some(Instant::now());
        let reply = self.calls.mutate(change).await;
        let mut state = inode.lock();
        if state.is_unsure(self.patience()) {
            // After an error the kernel goes on with the size and the pages that it knew before.
            let (core, ino) = (self.clone(), inode.ino);
            let forget = async move { core.kernel.tell(move |kernel| kernel.drop_pages(ino, 0, 0)).await };
            self.runtime.spawn(forget);
        }
        state.changing = None;
        match reply? {
            MgrReply::Attr(attr) => {
                state.inline.set(&attr);
                state.told = self.sharing.note_told();
                Ok(attr)
            }
            other => Err(unexpected("a change of a file's record", &other)),
        }
    }

    /// See [`Fallocate`].
    pub async fn fallocate(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(len).filter(|&e| e <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        if let Fallocate::Allocate { keep_size } = mode {
            self.learn_blocks_to_write(inode, Some(offset), len).await?;
            return self.allocate(inode, offset, end, keep_size).await;
        }
        let grows = matches!(mode, Fallocate::ZeroRange { keep_size: false });
        if grows {
            self.learn_blocks_to_resize(inode, end).await?;
        }
        self.learn_edges(inode, offset, end).await?;
        let io = self.alone_in(inode).await?;
        let (core, file, token) = (self.clone(), inode.clone(), TokenHold::another(inode));
        let work = async move {
            let _held = (io, token);
            let size = file.lock().attr.size;
            core.punch(&file, offset, end.min(size)).await?;
            if end > size && grows {
                // While flushes are held nobody forgets what has been learned, not even if who waits has gone.
                let _hold = core.hold_flushes(&file).await?;
                core.learn_blocks_to_resize(&file, end).await?;
                core.grow(&file, end).await?;
            }
            Ok(())
        };
        self.see_through(inode, "a hole to be punched", work).await
    }

    /// Learns what is to be known of a file before its size becomes `size`: of a shorter one the block with the new end.
    async fn learn_blocks_to_resize(&self, inode: &Arc<Inode>, size: u64) -> Result<(), Errno> {
        let old = inode.lock().attr.size;
        let to = if size < old { size.saturating_add(1) } else { u64::MAX };
        self.learn_blocks(inode, size.min(old), to).await
    }

    /// Learns what is to be known before bytes `from..to` become zeros: what stays is in the blocks at the edges.
    async fn learn_edges(&self, inode: &Arc<Inode>, from: u64, to: u64) -> Result<(), Errno> {
        self.learn_blocks(inode, from, from + 1).await?;
        self.learn_blocks(inode, to - 1, to).await
    }

    /// Bytes `from..to` become zeros; whole blocks give their space back. `io` is held exclusively.
    async fn punch(self: &Arc<Core>, inode: &Arc<Inode>, from: u64, to: u64) -> Result<(), Errno> {
        if from >= to {
            return Ok(());
        }
        let hold = self.hold_flushes(inode).await?;
        self.learn_edges(inode, from, to).await?;
        let (block_size, size) = {
            let state = inode.lock();
            (state.block_size(), state.attr.size)
        };
        let first = from.div_ceil(block_size);
        // The last block counts as whole if the hole reaches the end of the file.
        let end = if to == size { to.div_ceil(block_size) } else { to / block_size };
        if first < end {
            self.zero_bytes(inode, from, first * block_size).await?;
            self.punch_blocks(inode, first, end).await?;
            if end * block_size < to {
                self.zero_bytes(inode, end * block_size, to).await?;
            }
        } else {
            self.zero_bytes(inode, from, to).await?;
        }
        inode.lock().touch(now());
        drop(hold);
        self.note_unsettled(inode);
        Ok(())
    }

    async fn punch_blocks(self: &Arc<Core>, inode: &Arc<Inode>, first: u64, end: u64) -> Result<(), Errno> {
        let _commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock()).await?;
        if inode.lock().pending.any_in(first, end) {
            self.commit_locked(inode).await?;
        }
        if inode.lock().may_have(first, end) {
            self.deallocate(inode, Extent { first: BlockIndex(first), count: end - first }).await?;
        }
        let room = {
            let mut state = inode.lock();
            let inline = state.in_inode(0) && first == 0;
            let room = state.drop_blocks(first, end);
            state.note_dropped(first, end);
            state.recorded.taken_out(first, end);
            state.pending.remove(first, end);
            if inline {
                // The content in the inode goes with the next commit.
                let seq = state.writes.next();
                let units = state.inode_units().max(1);
                state.edit(0, |b| b.zero_units(0, units, seq));
                state.due.note_data();
            }
            room
        };
        self.return_room(inode, room);
        Ok(())
    }

    /// First position at or after `offset` that may hold data.
    pub async fn seek_data(&self, inode: &Arc<Inode>, offset: u64) -> Result<u64, Errno> {
        self.seek(inode, offset, find_data).await
    }

    /// First position at or after `offset` in a hole; the end of the file is one.
    pub async fn seek_hole(&self, inode: &Arc<Inode>, offset: u64) -> Result<u64, Errno> {
        self.seek(inode, offset, find_hole).await
    }

    async fn seek(&self, inode: &Arc<Inode>, offset: u64, find: Find) -> Result<u64, Errno> {
        let mut from = offset;
        loop {
            self.learn_blocks(inode, from, from.saturating_add(1)).await?;
            match find(&inode.lock(), from)? {
                Found::At(at) => return Ok(at),
                Found::UnknownFrom(block_start) => from = block_start,
            }
            waits::moved();
        }
    }
}

type Find = fn(&FileState, u64) -> Result<Found, Errno>;

/// What a look for data or a hole came to.
enum Found {
    At(u64),
    /// Neither before this position, the start of a block of which the record is not known.
    UnknownFrom(u64),
}

fn find_data(state: &FileState, offset: u64) -> Result<Found, Errno> {
    let (size, block_size) = (state.attr.size, state.block_size());
    if offset >= size {
        return Err(Errno::ENXIO);
    }
    let mut best = u64::MAX;
    let inline = state.in_inode(0).then_some(0);
    let block = offset / block_size;
    let stored = [state.recorded.allocated().next_in(block), state.pending.next_in(block), inline];
    for found in stored.into_iter().flatten().filter(|&b| b >= block) {
        best = best.min(offset.max(found * block_size));
    }
    for (number, cached) in state.blocks_from(block) {
        if number * block_size >= best {
            break;
        }
        let start = number * block_size;
        let data = cached.data_units().find(|u| start + u64::from(u.end) * UNIT64 > offset);
        if let Some(units) = data {
            best = best.min(offset.max(start + u64::from(units.start) * UNIT64));
        }
    }
    let end = best.min(size);
    match state.recorded.first_unknown(block, end.div_ceil(block_size)) {
        Some(unknown) if unknown * block_size < end => {
            Ok(Found::UnknownFrom(offset.max(unknown * block_size)))
        }
        _ if best < size => Ok(Found::At(best)),
        _ => Err(Errno::ENXIO),
    }
}

fn find_hole(state: &FileState, offset: u64) -> Result<Found, Errno> {
    let (size, block_size) = (state.attr.size, state.block_size());
    if offset >= size {
        return Err(Errno::ENXIO);
    }
    let mut pos = offset;
    while pos < size {
        let block = pos / block_size;
        if state.recorded.first_unknown(block, block + 1).is_some() {
            return Ok(Found::UnknownFrom(pos));
        }
        if state.on_disk(block) {
            pos = (block + 1) * block_size;
            continue;
        }
        let unit = (pos % block_size / UNIT64) as u32;
        let here = state.block(block);
        let data = here.and_then(|b| b.data_units().find(|u| u.contains(&unit)));
        match data {
            Some(units) => pos = block * block_size + u64::from(units.end) * UNIT64,
            None => break,
        }
    }
    Ok(Found::At(pos.min(size)))
}
