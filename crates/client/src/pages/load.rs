//! Bytes from the pdisks (or from the inode) into blocks.
//!
//! A load runs as a task of its own: who waits for it may go away without harm. Two readers that want
//! the same units share one load.

use std::sync::Arc;

use base::{BlockIndex, OpClass, start::Work, units::UNIT};
use bytes::Bytes;
use stripe::BlockMeta;
use tokio::sync::OwnedSemaphorePermit;
use wire::{
    mgr::{FileKind, MgrReply, MgrRequest},
    strip::Range,
};

use crate::{
    calls::unexpected,
    core::Core,
    error::{BlockError, Errno},
    files::inode::{EXTENT_BYTES, Inode, Locked},
    pages::{
        loading::LoadWait,
        pool::{Charge, charged},
    },
    waits,
};

/// Whoever waits for the load looks again: it only had nowhere to go (prefetch under memory pressure), or its block is not
/// the file's any more.
const LOOK_AGAIN: Errno = Errno(libc::EAGAIN);

/// Why bytes of a block could not be read.
pub(crate) enum Unread {
    /// They are in the inode, and the manager does not give them.
    Manager(Errno),
    /// They are on the pdisks.
    Block(BlockError),
}

pub(crate) type UnitRange = std::ops::Range<u32>;

pub(crate) fn to_range(units: &UnitRange) -> Range {
    Range { offset: units.start * UNIT as u32, len: (units.end - units.start) * UNIT as u32 }
}

impl Core {
    /// Learns which blocks are allocated of those that hold bytes `from..to`, where that is not known.
    pub async fn learn_blocks(&self, inode: &Arc<Inode>, from: u64, to: u64) -> Result<(), Errno> {
        if inode.home.get().is_none() {
            self.await_pool(inode).await?;
        }
        let unknown = || {
            let state = inode.lock();
            let block_size = state.block_size();
            state.recorded.first_unknown(from / block_size, to.div_ceil(block_size))
        };
        {
            let state = inode.lock();
            if state.knows(from, to) && !state.is_unsure(self.patience()) {
                return Ok(());
            }
        }
        // Nobody changes the record meanwhile.
        let _commit = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock()).await?;
        while let Some(block) = unknown() {
            // A window's extents fit into one answer: who goes through the file backwards asks no oftener.
            let limit = self.tunables.record_window.max(1);
            let window = block - block % u64::from(limit);
            let (first, doubts) = {
                let state = inode.lock();
                (window.max(state.recorded.known_before(block)), state.recorded.doubts())
            };
            let ask = MgrRequest::Extents { ino: inode.ino, from: BlockIndex(first), limit };
            let (extents, more) = match self.calls.ask(ask).await? {
                MgrReply::Extents { extents, more } => (extents, more),
                other => return Err(unexpected("Extents", &other)),
            };
            let end = match extents.last() {
                Some(last) if more => last.first.0.saturating_add(last.count),
                _ => u64::MAX,
            };
            if end <= first {
                return Err(unexpected("Extents", &MgrReply::Extents { extents, more }));
            }
            // As they are kept: each with as much as was not known before it.
            let charge = self.pool.charge(2 * EXTENT_BYTES * extents.len() as u64, self.patience()).await?;
            let mut state = inode.lock();
            if state.recorded.doubts() == doubts {
                state.recorded.learned(first, end, extents);
                state.charge_extents(Some(charge));
                waits::moved();
            }
        }
        Ok(())
    }

    /// The same for what a write at `offset`, or at the end, looks at: beyond the end of the file there may be anything.
    pub async fn learn_blocks_to_write(
        &self,
        inode: &Arc<Inode>,
        offset: Option<u64>,
        len: u64,
    ) -> Result<(), Errno> {
        let size = inode.lock().attr.size;
        let offset = offset.unwrap_or(size);
        let end = offset.saturating_add(len);
        let (from, to) = if end > size { (offset.min(size), u64::MAX) } else { (offset, end) };
        self.learn_blocks(inode, from, to).await
    }

    /// A new pool can be met in an inode before it is met in the map.
    async fn await_pool(&self, inode: &Arc<Inode>) -> Result<(), Errno> {
        let attr = inode.lock().attr.clone();
        self.patient("a map with the file's pool", Some(inode.ino), self.blocks.await_pool(attr.pool))
            .await?;
        self.set_geometry(inode, &attr);
        Ok(())
    }

    /// Begins loading what is absent of units `from..to` of a block that is on the pdisks; returns what
    /// to wait for. As a task of its own.
    pub fn start_load(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        state: &mut Locked<'_>,
        block: u64,
        units: UnitRange,
        class: OpClass,
    ) -> Vec<Arc<LoadWait>> {
        let (waits, load) = self.prepare_load(inode, state, block, units, class);
        if let Some(load) = load {
            self.runtime.spawn(load);
        }
        waits
    }

    /// What to wait for, and the load of what is absent and not yet on its way: to be begun when the file is no longer locked.
    pub fn prepare_load(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        state: &mut Locked<'_>,
        block: u64,
        units: UnitRange,
        class: OpClass,
    ) -> (Vec<Arc<LoadWait>>, Option<Work>) {
        state.edit(block, |b| {
            let (mut waits, gaps) = b.loading(units.start, units.end);
            if gaps.is_empty() {
                return (waits, None);
            }
            let (id, wait) = b.begin_load(gaps.clone());
            waits.push(wait.clone());
            let (core, inode, starts) = (self.clone(), inode.clone(), b.flush_starts);
            let load = async move { core.load(inode, block, id, gaps, class, wait, starts).await };
            (waits, Some(Box::pin(load) as Work))
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one task's whole job")]
    async fn load(
        self: Arc<Core>,
        inode: Arc<Inode>,
        block: u64,
        id: u64,
        units: Vec<UnitRange>,
        class: OpClass,
        wait: Arc<LoadWait>,
        flush_starts: u32,
    ) {
        let bytes = units.iter().map(|u| u64::from(u.end - u.start)).sum::<u64>() * UNIT as u64;
        let (permit, charge) = self.admit(inode.ino, bytes, class).await;
        // Who waits for it sees that it moves on.
        wait.notify.notify_waiters();
        if class == OpClass::Prefetch {
            self.pool.counts().ahead.add(bytes);
        }
        let result = match charge {
            Ok(charge) => match self.fetch(&inode, block, &units, class, charge).await {
                Ok(fetched) => Ok(fetched),
                Err(Unread::Manager(error)) => Err(error),
                Err(Unread::Block(BlockError::Unavailable(_)))
                    if !self.is_wanted(&inode, block, id).await =>
                {
                    Err(LOOK_AGAIN)
                }
                Err(Unread::Block(error)) => Err(self.block_error("read", &inode, block, &error)),
            },
            Err(error) => Err(error),
        };
        drop(permit);
        let (outcome, pieces, meta) = match result {
            Ok((pieces, meta)) => (Ok(()), Some(pieces), meta),
            Err(error) => (Err(error), None, None),
        };
        {
            let mut tagger = inode.tagger(block, class == OpClass::Prefetch);
            let mut state = inode.lock();
            state.edit_existing(block, |b| {
                // A block dropped and made again knows nothing of this load: what it says is old.
                let known = b.loaded(id, pieces, &mut tagger);
                if known && b.flush_starts == flush_starts && b.meta.is_none() {
                    b.meta = meta.filter(|m| m.is_complete(m.data.len()));
                }
            });
        }
        // A second outcome cannot come: the load ends once.
        let _ = wait.done.set(outcome);
        wait.notify.notify_waiters();
    }

    /// Whether load `id` is still of use. A cut or a hole takes a block's strips away before it is known here, so that a load
    /// under way may find nothing: it is not of use when that is over, and the block is dropped.
    async fn is_wanted(&self, inode: &Inode, block: u64, id: u64) -> bool {
        let Ok(_settled) = self.patient("an inode's commit", Some(inode.ino), inode.commit.lock()).await
        else {
            return true;
        };
        inode.lock().block(block).is_some_and(|b| b.awaits(id))
    }

    /// What a load needs before it begins: its turn, if an application waits for it, and memory.
    async fn admit(
        &self,
        ino: base::InodeNo,
        bytes: u64,
        class: OpClass,
    ) -> (Option<OwnedSemaphorePermit>, Result<Charge, Errno>) {
        if class == OpClass::Prefetch {
            return (None, self.pool.charge_evicting(bytes).ok_or(LOOK_AGAIN));
        }
        // Loads on behalf of writes free memory in the end: they do not wait for their turn.
        let turn = self.permits.load.clone().acquire_owned();
        let permit = match class {
            OpClass::Read => match self.patient("a turn to read", Some(ino), turn).await {
                Ok(permit) => permit.ok(),
                Err(error) => return (None, Err(error)),
            },
            _ => None,
        };
        (permit, self.pool.charge(bytes, self.patience()).await)
    }

    /// Reads units of a block. The charge travels with the bytes; what turns out to be zeros gives it back.
    pub async fn fetch(
        &self,
        inode: &Arc<Inode>,
        block: u64,
        units: &[UnitRange],
        class: OpClass,
        mut charge: Charge,
    ) -> Result<(Vec<(u32, Bytes)>, Option<BlockMeta>), Unread> {
        let (in_inode, pool, block_size) = {
            let state = inode.lock();
            (state.in_inode(block), state.attr.pool, state.attr.block_size)
        };
        if in_inode {
            let pieces = self.fetch_inline(inode, units, charge).await.map_err(Unread::Manager)?;
            return Ok((pieces, None));
        }
        let ranges = units.iter().map(to_range).collect();
        let stripe = self.stripe(inode.ino, block);
        let read = self.blocks.read(stripe, pool, block_size, ranges, class);
        let read = read.await.map_err(Unread::Block)?;
        let pieces = read.pieces.into_iter().filter(|(offset, bytes)| {
            // What does not fit the request would be a broken part below; it must not reach the cache.
            let fits = (*offset as usize).is_multiple_of(UNIT) && bytes.len().is_multiple_of(UNIT);
            debug_assert!(fits);
            fits && !bytes.is_empty()
        });
        let pieces = pieces
            .map(|(offset, bytes)| {
                let part = charge.split(bytes.len() as u64);
                (offset, charged(bytes, part))
            })
            .collect();
        Ok((pieces, Some(read.meta)))
    }

    async fn fetch_inline(
        &self,
        inode: &Arc<Inode>,
        units: &[UnitRange],
        mut charge: Charge,
    ) -> Result<Vec<(u32, Bytes)>, Errno> {
        let content = match self.calls.ask(MgrRequest::ReadInline { ino: inode.ino }).await? {
            MgrReply::Bytes(content) => content,
            other => return Err(unexpected("ReadInline", &other)),
        };
        let mut pieces = Vec::new();
        for range in units {
            let (from, to) = (range.start as usize * UNIT, (range.end as usize * UNIT).min(content.len()));
            if from < to {
                let len = (to - from).next_multiple_of(UNIT);
                let mut buf = self.pool.buffer(len);
                buf[..to - from].copy_from_slice(&content[from..to]);
                buf[to - from..].fill(0);
                pieces.push((from as u32, charged(buf, charge.split(len as u64))));
            }
        }
        Ok(pieces)
    }

    /// Logs a failed block operation and names it for the caller.
    pub fn block_error(&self, what: &'static str, inode: &Inode, block: u64, error: &BlockError) -> Errno {
        tracing::error!(inode = %inode.ino, block, %error, "{what} block");
        match error {
            BlockError::NoSpace => Errno::ENOSPC,
            BlockError::Fenced => {
                self.calls.set_dead();
                Errno::EIO
            }
            BlockError::Unavailable(_) => Errno::EIO,
        }
    }

    /// Waits for loads to end.
    pub async fn wait_loads(&self, waits: Vec<Arc<LoadWait>>) -> Result<(), Errno> {
        for wait in waits {
            loop {
                let notified = wait.notify.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                match wait.done.get() {
                    // The waiter looks again, and loads by itself.
                    Some(Err(LOOK_AGAIN)) | Some(Ok(())) => break,
                    Some(Err(error)) => return Err(*error),
                    None => {}
                }
                self.patient("a block to be read", None, notified).await?;
                waits::moved();
            }
        }
        Ok(())
    }

    /// Refuses what has no data.
    pub fn check_file(kind: FileKind) -> Result<(), Errno> {
        match kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }
}
