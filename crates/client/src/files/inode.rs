//! One inode in memory, its locks, and its blocks as the page pool counts them.
//!
//! Owns: the local truth of a file ([`FileState`]). Attributes here overlay the manager's until they are committed.
//! Invariant: the page pool's count of dirty bytes is that of all blocks.
//!
//! Locks, in the order they are taken: `io`, `commit`, state. `io` is exclusive for what changes the
//! size or drops data (extending writes, truncate, punch), shared for other writes; reads, loads and
//! flushes do not take it. `commit` serialises changes of this inode at the manager. The state's lock is
//! a plain mutex and never held across a wait.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock, Weak, atomic::AtomicBool},
};

use base::{InodeNo, PoolId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use wire::token::Span;

use super::state::FileState;
use crate::{
    pages::{
        block::Block,
        gone::Why,
        pool::{BlockEntry, Charge, Pool},
        queues::{PageOwner, Tag},
    },
    sharing::tokens::Cell,
};

/// What an extent takes, about; so many count as part of the inode.
pub(crate) const EXTENT_BYTES: u64 = 32;
const EXTENTS_FREE: usize = 16;
/// In place of a block's number: the extents.
const EXTENTS: u64 = u64::MAX;
/// Runs of blocks that were cut off or punched, kept apart.
const DROPPED_MAX: usize = 1024;
/// Blocks of one inode kept without data, for their versions.
const BLOCKS_IDLE_MAX: usize = 1024;

/// See the file's head.
pub(crate) struct Inode {
    pub ino: InodeNo,
    pub io: Arc<tokio::sync::RwLock<()>>,
    pub commit: Arc<tokio::sync::Mutex<()>>,
    /// A flush ended, a hold was lifted.
    pub changed: Notify,
    /// Since the last look for idle inodes.
    pub used: AtomicBool,
    /// The pool of its blocks, once the map here has it; never another one.
    pub home: OnceLock<PoolId>,
    /// Runs of its record that are kept where nobody uses them.
    pub record_runs_max: usize,
    state: Mutex<FileState>,
    pool: Pool,
}

/// The locked state; keeps the pool's count of dirty bytes true.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, FileState>,
    pool: &'a Pool,
}

impl Deref for Locked<'_> {
    type Target = FileState;
    fn deref(&self) -> &FileState {
        &self.state
    }
}
impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

impl Inode {
    pub fn new(ino: InodeNo, pool: Pool, token: Cell, record_runs_max: u32) -> Arc<Inode> {
        Arc::new_cyclic(|this: &Weak<Inode>| Inode {
            ino,
            record_runs_max: record_runs_max as usize,
            io: Arc::new(tokio::sync::RwLock::new(())),
            commit: Arc::new(tokio::sync::Mutex::new(())),
            changed: Notify::new(),
            used: AtomicBool::new(true),
            home: OnceLock::new(),
            state: Mutex::new(FileState::new(ino, token, this.clone())),
            pool,
        })
    }

    pub fn lock(&self) -> Locked<'_> {
        let state = self.state.lock();
        Locked { state, pool: &self.pool }
    }

    /// Makes replacement entries for pieces of `block` and enters them into the pool's queues. `ahead`:
    /// nobody has asked for them yet.
    pub fn tagger(
        self: &Arc<Inode>,
        block: u64,
        ahead: bool,
    ) -> impl FnMut(std::ops::Range<u32>, u64) -> Arc<Tag> {
        let owner: Weak<dyn PageOwner> = Arc::downgrade(&(self.clone() as Arc<dyn PageOwner>));
        let pool = self.pool.clone();
        move |units, bytes| {
            let tag = Tag::new(owner.clone(), block, units, bytes, ahead);
            pool.enter(tag.clone());
            tag
        }
    }
}

impl PageOwner for Inode {
    fn evict(&self, block: u64, tag: &Arc<Tag>) {
        let mut state = self.lock();
        if tag.units.is_empty() {
            return match block {
                EXTENTS => state.evict_extents(tag),
                block => state.evict_entry(block, tag),
            };
        }
        state.edit_existing(block, |b| b.evict(tag));
        self.pool.gone().note(self.ino, block, Why::Evicted);
        state.forget_idle(block);
    }
}

impl Locked<'_> {
    /// Changes a block, made if it is not there.
    pub fn edit<R>(&mut self, block: u64, change: impl FnOnce(&mut Block) -> R) -> R {
        let state = &mut *self.state;
        let entry = state.blocks.entry(block).or_insert_with(|| {
            let mut new = Block::new(state.strip_units);
            new.entry = Some(self.pool.enter_block(state.owner.clone(), block));
            new
        });
        let before = entry.dirty_bytes();
        let result = change(entry);
        let after = entry.dirty_bytes();
        if entry.has_dirty() {
            state.dirty.insert(block);
        } else {
            state.dirty.remove(&block);
        }
        self.pool.dirty_changed(after as i64 - before as i64);
        result
    }

    /// All content is in memory and the file will not fit into its inode: it goes to the pdisks.
    pub fn leave_inode(&mut self) {
        let seq = self.state.writes.next();
        self.edit(0, |b| {
            if b.is_empty() {
                b.zero_units(0, 1, seq);
            }
            b.make_dirty(seq);
        });
        self.state.inline.set_leaving(true);
        self.state.due.note_data();
    }

    /// Changes a block if it is there.
    pub fn edit_existing<R>(&mut self, block: u64, change: impl FnOnce(&mut Block) -> R) -> Option<R> {
        self.state.blocks.contains_key(&block).then(|| self.edit(block, change))
    }

    /// Drops blocks `from..to` with everything in them; the raw room they had set aside is returned.
    pub fn drop_blocks(&mut self, from: u64, to: u64) -> u64 {
        let keys: Vec<u64> = self.state.blocks.range(from..to).map(|(&b, _)| b).collect();
        let mut room = 0;
        for key in keys {
            if let Some(block) = self.state.blocks.remove(&key) {
                self.pool.dirty_changed(-(block.dirty_bytes() as i64));
                room += block.reserved + block.reserved_writing;
            }
            self.state.dirty.remove(&key);
        }
        room
    }

    /// The blocks of a span of which something is in memory.
    pub fn blocks_here(&self, span: Span) -> impl Iterator<Item = u64> {
        let here = self.state.blocks.range(span.first..span.end).filter(|(_, block)| !block.is_idle());
        here.map(|(&number, _)| number)
    }

    /// Forgets all content and what is known of it; the raw room that was set aside is returned. Nothing is
    /// dirty or in flight.
    pub fn forget_content(&mut self) -> u64 {
        let room = self.drop_blocks(0, u64::MAX);
        let state = &mut *self.state;
        state.attr_known = false;
        state.attr_generation += 1;
        state.recorded.forget_all();
        (state.pending, state.dropped) = Default::default();
        (state.inline, state.born_here) = Default::default();
        state.size_committed = state.attr.size;
        state.unsent.forget();
        state.due.forget();
        state.writes.end_run();
        self.charge_extents(None);
        room
    }

    /// Forgets blocks that somebody else may change from now on; the raw room that was set aside is returned.
    /// Nothing of them is dirty or in flight.
    pub fn forget_blocks(&mut self, span: Span) -> u64 {
        let room = self.drop_blocks(span.first, span.end);
        self.state.recorded.forget(span.first, span.end);
        self.state.pending.remove(span.first, span.end);
        self.state.born_here = false;
        room
    }

    /// Drops the clean pages of all blocks; returns their bytes.
    pub fn drop_clean(&mut self) -> u64 {
        let numbers: Vec<u64> = self.state.blocks.keys().copied().collect();
        let mut bytes = 0;
        for number in numbers {
            bytes += self.edit_existing(number, Block::drop_clean).unwrap_or(0);
            if self.state.blocks.get(&number).is_some_and(Block::is_idle) {
                self.drop_blocks(number, number + 1);
            }
        }
        bytes
    }

    /// Brings what the page pool knows of the file's extents up to date; `charge` stands for them.
    pub fn charge_extents(&mut self, charge: Option<Charge>) {
        let runs = self.state.recorded.runs();
        let bytes = if runs > EXTENTS_FREE { runs as u64 * EXTENT_BYTES } else { 0 };
        let held = self.state.extents.as_ref().map_or(0, BlockEntry::bytes);
        // Not at every change.
        if (held / 2..=held).contains(&bytes) {
            return;
        }
        self.state.extents = None;
        if bytes > 0 {
            let bytes = bytes + bytes / 8;
            let charge = charge.filter(|charge| charge.bytes() >= bytes);
            let charge = charge.unwrap_or_else(|| self.pool.charge_over_now(bytes));
            self.state.extents = Some(self.pool.enter_entry(self.state.owner.clone(), EXTENTS, charge));
        }
    }

    /// The page pool wants the room of the file's extents: they are asked for again when they are wanted.
    fn evict_extents(&mut self, tag: &Arc<Tag>) {
        if !self.state.extents.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.tag, tag)) {
            return;
        }
        if !self.forget_record() {
            self.pool.enter(tag.clone());
        }
    }

    /// A record of which more is known than is worth its memory is learned again, if nobody uses it.
    pub fn forget_long_record(&mut self, runs_max: usize) {
        if self.state.recorded.runs() > runs_max {
            self.forget_record();
        }
    }

    /// Forgets which blocks there are, unless somebody uses that: whoever does holds the token or the flushes, or has
    /// something unsettled.
    fn forget_record(&mut self) -> bool {
        let state = &mut *self.state;
        if state.token.users() > 0 || state.flushes.are_held() || state.unsettled() {
            return false;
        }
        state.attr.stored = state.visible().stored;
        state.recorded.forget_all();
        state.extents = None;
        true
    }

    /// Blocks were cut off or punched: their strips are deleted some time later.
    pub fn note_dropped(&mut self, from: u64, to: u64) {
        self.state.dropped.insert(from, to);
        if self.state.dropped.runs() > DROPPED_MAX {
            // Of too many it is not known which.
            self.state.dropped.insert(0, u64::MAX);
        }
    }

    /// The page pool wants the room of what is kept of a block beside its data.
    fn evict_entry(&mut self, block: u64, tag: &Arc<Tag>) {
        let own = self.edit_existing(block, |b| b.evict_zeros(tag)).unwrap_or(false);
        if own && self.state.blocks.get(&block).is_some_and(Block::is_idle) {
            self.drop_blocks(block, block + 1);
        } else if own {
            // In use still: it has its turn again.
            self.pool.enter(tag.clone());
        }
    }

    /// Forgets an empty block, if too many are kept for their versions alone.
    pub fn forget_idle(&mut self, block: u64) {
        if self.state.blocks.len() > BLOCKS_IDLE_MAX
            && self.state.blocks.get(&block).is_some_and(Block::is_idle)
        {
            self.drop_blocks(block, block + 1);
        }
    }
}
