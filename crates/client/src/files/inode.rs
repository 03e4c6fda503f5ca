//! What the client holds of one inode: attributes, allocation, and cached blocks.
//!
//! Owns: the local truth of a file. Attributes here overlay the manager's until they are committed.
//! Invariants: `pending` are blocks stored on pdisks that the manager does not know of yet; the size
//! committed never covers bytes that are not stored.
//! All of it counts only under the inode's token ([`crate::sharing::hold`]): without one, attributes here mean nothing.
//!
//! Locks, in the order they are taken: `io`, `commit`, state. `io` is exclusive for what changes the
//! size or drops data (extending writes, truncate, punch), shared for other writes; reads, loads and
//! flushes do not take it. `commit` serialises changes of this inode at the manager. The state's lock is
//! a plain mutex and never held across a wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use base::{InodeNo, PoolId, units::UNIT};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use wire::{
    mgr::{Attr, INLINE_LEN_MAX, Timestamp, without_privileges},
    token::{Need, Span, TokenMode, Use},
};

use crate::{
    error::Errno,
    files::set_attrs::SetAttrs,
    names::{kept::Names, made::NewNames},
    pages::{
        block::Block,
        extents::BlockSet,
        pool::{BlockEntry, Charge, PageOwner, Pool, Tag},
    },
    sharing::tokens::Cell,
};

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
    state: Mutex<FileState>,
    pool: Pool,
}

/// A run of writes, each beginning where the last ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Run {
    pub end: u64,
    pub bytes: u64,
}

/// The state of an inode.
pub(crate) struct FileState {
    /// Attributes as callers see them (`stored` is computed when asked for).
    pub attr: Attr,
    pub attr_known: bool,
    /// Counts invalidations of `attr`: an answer asked for before one must not be kept.
    pub attr_generation: u64,
    /// The size the manager has.
    pub size_committed: u64,
    /// The manager keeps the content in the inode.
    pub inline: bool,
    /// Bytes of it.
    pub inline_len: u64,
    /// Made in this session: nothing of it can be on the pdisks that is not known here.
    pub born_here: bool,
    /// It is known to be no file.
    pub special: bool,
    /// Where names of this directory lead.
    pub names_kept: Names,
    /// All names of a directory made here.
    pub names: Option<NewNames>,
    /// Blocks cut off or punched in this session: their strips are deleted some time later.
    pub dropped: BlockSet,
    /// What the manager keeps in the inode is dirty here, on its way to the pdisks.
    pub leaving: bool,
    pub alloc_known: bool,
    /// Blocks in the manager's record.
    pub committed: BlockSet,
    /// Blocks stored, not yet in the record.
    pub pending: BlockSet,
    /// What `committed` takes of the page pool, where it is long.
    extents: Option<BlockEntry>,
    blocks: BTreeMap<u64, Block>,
    /// This inode, as the page pool knows it.
    owner: Weak<dyn PageOwner>,
    /// Blocks with something not stored and not being written.
    pub dirty: BTreeSet<u64>,
    /// The right to all of this.
    pub token: Cell,
    /// While the kernel's pages are being dropped: ranges (offset, length) let in meanwhile.
    pub dropping: Option<Vec<(u64, u64)>>,
    /// Handles on it.
    pub opens: u32,
    /// Of these, those by which the kernel may change pages before it asks: mappings, buffered writes.
    pub wide_opens: u32,
    /// No name leads to it any more.
    pub gone: bool,
    /// Times (or what is `unsent`) are newer here than at the manager.
    pub times_dirty: bool,
    /// Mode, owner, group and access time as set here, of which the manager has not been told.
    pub unsent: SetAttrs,
    /// Counts changes of times and of `unsent`, so that a commit knows whether it carried the newest.
    pub times_count: u64,
    /// Number of the last write.
    pub seq: u64,
    pub dirty_since: Option<Instant>,
    pub meta_since: Option<Instant>,
    /// Write out and commit without waiting for age (last close).
    pub soon: bool,
    /// A background write-out of this inode is under way.
    pub storing: bool,
    /// Failures of writing so far, and the last.
    pub failures: u64,
    pub error: Option<Errno>,
    /// After a failure: not before this time in the background.
    pub retry_at: Option<Instant>,
    pub run: Run,
    /// While above 0 no flush begins.
    pub hold: u32,
    /// Blocks being written now.
    pub flights: u32,
    /// Since when a change of the record is under way that takes blocks away ([`crate::changes`]).
    pub changing: Option<Instant>,
    pub strip_units: u32,
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
    pub fn new(ino: InodeNo, pool: Pool, token: Cell) -> Arc<Inode> {
        Arc::new_cyclic(|this: &Weak<Inode>| Inode {
            ino,
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
        self.state.seq += 1;
        let seq = self.state.seq;
        self.edit(0, |b| {
            if b.is_empty() {
                b.zero_units(0, 1, seq);
            }
            b.make_dirty(seq);
        });
        self.state.leaving = true;
        self.state.dirty_since.get_or_insert_with(Instant::now);
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
                room += block.reserved;
            }
            self.state.dirty.remove(&key);
        }
        room
    }

    /// Forgets all content and what is known of it; the raw room that was set aside is returned. Nothing is
    /// dirty or in flight.
    pub fn forget_content(&mut self) -> u64 {
        let room = self.drop_blocks(0, u64::MAX);
        let state = &mut *self.state;
        state.attr_known = false;
        state.attr_generation += 1;
        state.alloc_known = false;
        (state.committed, state.pending, state.dropped) = Default::default();
        (state.inline, state.inline_len, state.leaving, state.born_here) = Default::default();
        state.size_committed = state.attr.size;
        (state.times_dirty, state.unsent, state.dirty_since, state.meta_since) = Default::default();
        state.run = Run::default();
        self.charge_extents(None);
        room
    }

    /// Forgets blocks that somebody else may change from now on; the raw room that was set aside is returned.
    /// Nothing of them is dirty or in flight.
    pub fn forget_blocks(&mut self, span: Span) -> u64 {
        let room = self.drop_blocks(span.first, span.end);
        self.state.committed.remove(span.first, span.end);
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
        let runs = self.state.committed.runs();
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
        let state = &mut *self.state;
        if !state.extents.as_ref().is_some_and(|entry| Arc::ptr_eq(&entry.tag, tag)) {
            return;
        }
        // Whoever uses them holds the token, or has something unsettled.
        if state.token.users() > 0 || state.hold > 0 || state.unsettled() {
            self.pool.enter(tag.clone());
            return;
        }
        state.attr.stored = state.visible().stored;
        state.alloc_known = false;
        (state.committed, state.extents) = Default::default();
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

/// Pause of background work on an inode after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// What an extent takes, about; so many count as part of the inode.
pub(crate) const EXTENT_BYTES: u64 = 32;
const EXTENTS_FREE: usize = 16;
/// In place of a block's number: the extents.
const EXTENTS: u64 = u64::MAX;
/// Runs of blocks that were cut off or punched, kept apart.
const DROPPED_MAX: usize = 1024;
/// Blocks of one inode kept without data, for their versions.
const BLOCKS_IDLE_MAX: usize = 1024;

impl FileState {
    fn new(ino: InodeNo, token: Cell, owner: Weak<Inode>) -> FileState {
        let owner: Weak<dyn PageOwner> = owner;
        FileState {
            attr: Attr { ino, ..Attr::default() },
            attr_known: false,
            attr_generation: 0,
            size_committed: 0,
            inline: false,
            inline_len: 0,
            born_here: false,
            special: false,
            names_kept: Names::default(),
            names: None,
            dropped: BlockSet::default(),
            leaving: false,
            alloc_known: false,
            committed: BlockSet::default(),
            pending: BlockSet::default(),
            blocks: BTreeMap::new(),
            owner,
            extents: None,
            dirty: BTreeSet::new(),
            token,
            dropping: None,
            opens: 0,
            wide_opens: 0,
            gone: false,
            times_dirty: false,
            unsent: SetAttrs::default(),
            times_count: 0,
            seq: 0,
            dirty_since: None,
            meta_since: None,
            soon: false,
            storing: false,
            failures: 0,
            error: None,
            retry_at: None,
            run: Run::default(),
            hold: 0,
            flights: 0,
            changing: None,
            strip_units: 1,
        }
    }

    pub fn block(&self, block: u64) -> Option<&Block> {
        self.blocks.get(&block)
    }
    pub fn blocks_from(&self, first: u64) -> impl Iterator<Item = (u64, &Block)> {
        self.blocks.range(first..).map(|(&n, b)| (n, b))
    }
    pub fn block_size(&self) -> u64 {
        u64::from(self.attr.block_size.max(UNIT as u32))
    }

    /// Whether it is not known which blocks there are, since a change of the record has had no answer for so long that
    /// who asked for it was told `EIO`.
    pub fn is_unsure(&self, patience: Duration) -> bool {
        self.changing.is_some_and(|since| since.elapsed() >= patience)
    }

    /// Whether pdisks or manager hold bytes of this block: what is absent here must be loaded.
    pub fn on_disk(&self, block: u64) -> bool {
        self.committed.contains(block) || self.pending.contains(block) || self.in_inode(block)
    }
    /// Whether the manager holds bytes of this block in the inode.
    pub fn in_inode(&self, block: u64) -> bool {
        self.inline && block == 0 && self.inline_len > 0 && !self.pending.contains(0)
    }

    /// Takes over whether and how much the manager keeps in the inode.
    pub fn set_inline(&mut self, attr: &Attr) {
        self.inline = attr.inline;
        self.inline_len = if attr.inline { attr.stored } else { 0 };
    }

    /// Whether the pdisks may hold something of a block that is not allocated.
    pub fn may_be_left(&self, block: u64) -> bool {
        !self.born_here || self.dropped.contains(block)
    }

    /// Units that content in the inode can have.
    pub fn inode_units(&self) -> u32 {
        let bytes = self.attr.size.min(self.inline_len).min(INLINE_LEN_MAX as u64);
        (bytes as u32).div_ceil(UNIT as u32)
    }

    /// Whether the content must be made dirty before the file may grow out of its inode.
    pub fn must_leave_inode(&self) -> bool {
        self.in_inode(0) && !self.leaving
    }

    /// Whether the whole content can go into the inode.
    pub fn fits_inode(&self, inline_max: u32) -> bool {
        self.attr.size <= u64::from(inline_max)
            && self.committed.is_empty()
            && self.pending.is_empty()
            && self.dirty.range(1..).next().is_none()
            && self.flights == 0
    }

    /// Something could not be written or committed.
    pub fn failed(&mut self, error: Errno) {
        self.failures += 1;
        self.error = Some(error);
        self.retry_at = Some(Instant::now() + RETRY);
    }

    /// A write or truncate happened: times move.
    pub fn touch(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
        self.note_meta();
    }

    /// Attributes are set, under the write token; returns them as they are then.
    pub fn set(&mut self, new: &SetAttrs, ctime: Timestamp) -> Attr {
        let owned = new.uid.is_some() || new.gid.is_some() || new.drop_privileges;
        // Who gives a program away must not give away its rights, unless it says so.
        let mode =
            new.mode.unwrap_or(if owned { without_privileges(self.attr.mode) } else { self.attr.mode });
        let new = SetAttrs { mode: (owned || mode != self.attr.mode).then_some(mode), ..*new };
        new.overlay(&mut self.attr);
        self.unsent = SetAttrs {
            mode: new.mode.or(self.unsent.mode),
            uid: new.uid.or(self.unsent.uid),
            gid: new.gid.or(self.unsent.gid),
            atime: new.atime.or(self.unsent.atime),
            ..SetAttrs::default()
        };
        self.attr.mtime = new.mtime.unwrap_or(self.attr.mtime);
        self.attr.ctime = ctime;
        self.note_meta();
        self.visible()
    }

    /// Something the manager must learn of.
    pub fn note_meta(&mut self) {
        self.times_dirty = true;
        self.times_count += 1;
        self.meta_since.get_or_insert_with(Instant::now);
    }

    /// Largest size that covers no byte that is not stored.
    pub fn size_stored(&self) -> u64 {
        if self.attr.size <= self.size_committed {
            return self.attr.size;
        }
        let block_size = self.block_size();
        let first = self.size_committed / block_size;
        for (number, block) in self.blocks_from(first) {
            let start = number * block_size;
            if start >= self.attr.size {
                break;
            }
            let end = (start + block_size).min(self.attr.size);
            let stored_to = start + u64::from(block.stored_to);
            let from = if number == first { self.size_committed % block_size } else { 0 };
            if stored_to < end
                && let Some(unstored) = block.first_unstored(from as u32)
            {
                let unstored = start + u64::from(unstored);
                return unstored.max(stored_to).max(self.size_committed).min(self.attr.size);
            }
        }
        self.attr.size
    }

    /// Whether anything here is newer than at the manager or on the pdisks.
    pub fn unsettled(&self) -> bool {
        !self.dirty.is_empty()
            || self.flights > 0
            || self.changing.is_some()
            || !self.pending.is_empty()
            || self.times_dirty
            || self.attr.size != self.size_committed
    }

    /// Attributes as the manager gave them, under the inode's token. While it is held nobody else changes a
    /// file's content: what is known of it here is newer than any answer, which may have been given before
    /// a commit whose own answer came first.
    pub fn merge(&mut self, new: Attr) {
        let ours = self.attr_known && self.attr.kind == wire::mgr::FileKind::File;
        if !ours {
            self.size_committed = new.size;
            self.set_inline(&new);
            if new.inline || new.stored == 0 && !self.alloc_known {
                self.alloc_known = true;
            }
        }
        let old = std::mem::replace(&mut self.attr, new);
        if ours {
            self.attr.size = old.size;
            self.attr.stored = old.stored;
            self.attr.inline = old.inline;
            // An answer from before the first extended attribute may come after it was set.
            self.attr.plain &= old.plain;
            if self.times_dirty {
                self.attr.mtime = old.mtime;
                self.attr.ctime = self.attr.ctime.max(old.ctime);
                self.unsent.overlay(&mut self.attr);
            }
        }
        self.gone |= self.attr.nlink == 0;
        self.attr_known = true;
    }

    /// The same while others write other blocks: their times and ours count.
    pub fn merge_shared(&mut self, new: Attr) {
        let times = (self.attr.mtime.max(new.mtime), self.attr.ctime.max(new.ctime));
        let stored = new.stored;
        self.merge(new);
        (self.attr.mtime, self.attr.ctime, self.attr.stored) = (times.0, times.1, stored);
    }

    /// What a read needs. Pages that can be mapped for writing are changed without a question.
    pub fn read_need(&self, offset: u64, len: u64) -> Need {
        let end = offset.saturating_add(len);
        let end = if self.attr_known { end.min(self.attr.size) } else { end };
        if self.wide_opens > 0 {
            Need::Write
        } else if self.attr.block_size == 0 || offset >= end {
            Need::Size
        } else {
            Need::Blocks(Span::of_bytes(offset, end - offset, self.block_size()), Use::Read)
        }
    }

    /// What a write needs, at `offset` or at the end. Where the size is known and stays, some blocks are enough.
    pub fn write_need(&self, offset: Option<u64>, len: u64) -> Need {
        let Some(offset) = offset.filter(|_| self.wide_opens == 0) else { return Need::Write };
        let grows = offset.saturating_add(len) > self.attr.size;
        if self.attr.block_size == 0 {
            Need::Size
        } else if self.attr_known && (grows || self.inline || self.attr.size <= INLINE_LEN_MAX as u64) {
            Need::Write
        } else {
            Need::Blocks(Span::of_bytes(offset, len, self.block_size()), Use::Write)
        }
    }

    /// Attributes as callers see them.
    pub fn visible(&self) -> Attr {
        let mut attr = self.attr.clone();
        let all = self.token.mode() != TokenMode::Part;
        if all && self.alloc_known && attr.kind == wire::mgr::FileKind::File {
            attr.stored = self.stored_bytes();
            attr.inline = self.inline;
        }
        attr
    }

    /// Bytes of storage: allocated and dirty blocks, cut at the size.
    fn stored_bytes(&self) -> u64 {
        let block_size = self.block_size();
        let size = self.attr.size;
        let mut all = self.committed.clone();
        self.pending.extents(usize::MAX).into_iter().for_each(|e| all.insert_extent(e));
        if all.is_empty() && self.dirty.is_empty() && self.flights == 0 {
            // A file may be longer than the bytes its inode holds: the rest is a hole.
            return if self.inline { size.min(wire::mgr::INLINE_LEN_MAX as u64) } else { 0 };
        }
        self.dirty.iter().for_each(|&b| all.insert(b, b + 1));
        let whole = all.count_in(0, size / block_size) * block_size;
        whole + if all.contains(size / block_size) { size % block_size } else { 0 }
    }
}
