//! The state of one inode: attributes, allocation, and what is cached of it. Each part keeps its own rules.
//!
//! Invariants: `pending` are blocks stored on pdisks that the manager does not know of yet; the size
//! committed never covers bytes that are not stored.
//! All of it counts only under the inode's token ([`crate::sharing`]): without one, attributes here mean nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Weak,
    time::{Duration, Instant},
};

use base::{InodeNo, units::UNIT};
use wire::{
    mgr::{Attr, FileKind, INLINE_LEN_MAX, Timestamp, without_privileges},
    token::{Need, Span, TokenMode, Use},
};

use super::{
    inline::Inline,
    opens::Opens,
    set_attrs::SetAttrs,
    unsent::Unsent,
    write_behind::{Due, Failures, Flushes},
    writes::Writes,
};
use crate::{
    names::{all::AllNames, kept::Names, worth::Worth},
    pages::{
        block::Block,
        extents::{BlockSet, Recorded},
        pool::BlockEntry,
        queues::PageOwner,
    },
    sharing::{linger::Linger, page_drop::PageDrop, tokens::Cell},
};

/// The state of an inode.
pub(crate) struct FileState {
    /// Attributes as callers see them (`stored` is computed when asked for).
    pub attr: Attr,
    pub attr_known: bool,
    /// Counts invalidations of `attr`: an answer asked for before one must not be kept.
    pub attr_generation: u64,
    /// The size the manager has.
    pub size_committed: u64,
    /// The number of its last change that the manager has answered; 0: none.
    pub told: u64,
    /// Times and attributes of which the manager has not been told.
    pub unsent: Unsent,
    /// It is known to be no file.
    pub special: bool,
    /// It is known whether it is a file.
    kind_known: bool,
    /// No name leads to it any more.
    pub gone: bool,
    /// Since then nobody else has it open, as is surely known, or has any use for what is changed of it here.
    pub unshared: bool,
    /// It was made here without a name, and may get its first one.
    pub unnamed: bool,
    /// Several changes of its names were under way at once: which answer tells how many it has is not known.
    pub links_unsure: bool,
    /// The right to all of this.
    pub token: Cell,
    /// How long it stays when others want it.
    pub linger: Linger,
    /// The kernel's pages, while they are dropped.
    pub page_drop: PageDrop,
    /// The kernel may keep its attributes ([`crate::sharing::kernel_attr`]).
    pub kernel_attr: bool,
    /// Handles on it.
    pub opens: Opens,
    /// Names in it, of a directory.
    pub names: DirectoryNames,
    /// What the manager keeps in the inode.
    pub inline: Inline,

    // Which blocks there are.
    /// Blocks in the manager's record, as far as it is known.
    pub recorded: Recorded,
    /// Blocks stored, not yet in the record.
    pub pending: BlockSet,
    /// Blocks cut off or punched in this session: their strips are deleted some time later.
    pub dropped: BlockSet,
    /// Made in this session: nothing of it can be on the pdisks that is not known here.
    pub born_here: bool,
    /// Since when a change of the record is under way that takes blocks away ([`crate::changes`]).
    pub changing: Option<Instant>,
    /// What `recorded` takes of the page pool, where it is long.
    pub(super) extents: Option<BlockEntry>,

    // Blocks in memory.
    pub(super) blocks: BTreeMap<u64, Block>,
    /// Blocks with something not stored and not being written.
    pub dirty: BTreeSet<u64>,
    pub strip_units: u32,
    /// This inode, as the page pool knows it.
    pub(super) owner: Weak<dyn PageOwner>,
    pub writes: Writes,
    pub flushes: Flushes,
    pub due: Due,
    pub failures: Failures,
}

/// What is known of the names in a directory.
#[derive(Default)]
pub(crate) struct DirectoryNames {
    /// Where they lead.
    pub kept: Names,
    /// All there are, while nobody else can change them.
    pub all: Option<AllNames>,
    /// Whether it pays to make names ahead of the manager beside others.
    pub worth: Worth,
}

impl DirectoryNames {
    /// Others may change them from now on, or have seen them.
    pub fn lose_all(&mut self) {
        self.all = None;
        self.worth.lost();
    }
}

impl FileState {
    pub(super) fn new(ino: InodeNo, token: Cell, owner: Weak<dyn PageOwner>) -> FileState {
        FileState {
            attr: Attr { ino, ..Attr::default() },
            attr_known: false,
            attr_generation: 0,
            size_committed: 0,
            told: 0,
            unsent: Unsent::default(),
            special: false,
            kind_known: false,
            gone: false,
            unshared: false,
            unnamed: false,
            links_unsure: false,
            token,
            linger: Linger::default(),
            page_drop: PageDrop::default(),
            kernel_attr: false,
            opens: Opens::default(),
            names: DirectoryNames::default(),
            inline: Inline::default(),
            recorded: Recorded::default(),
            pending: BlockSet::default(),
            dropped: BlockSet::default(),
            born_here: false,
            changing: None,
            extents: None,
            blocks: BTreeMap::new(),
            dirty: BTreeSet::new(),
            strip_units: 1,
            owner,
            writes: Writes::default(),
            flushes: Flushes::default(),
            due: Due::default(),
            failures: Failures::default(),
        }
    }

    /// Somebody has said of what kind it is; that never changes.
    pub fn learn_kind(&mut self, kind: FileKind) {
        (self.special, self.kind_known) = (kind != FileKind::File, true);
    }

    /// It was made without a name, and is about to be opened; `linkable`: it may get one. Nobody else knows it.
    pub fn made_unnamed(&mut self, linkable: bool) {
        (self.gone, self.unshared, self.unnamed) = (true, true, linkable);
        self.token.opened();
    }

    /// It has got its first name.
    pub fn named(&mut self) {
        (self.gone, self.unshared, self.unnamed) = (false, false, false);
    }

    /// Whether what is changed of it is of no use to anybody: it has neither a name nor a handle, here or elsewhere.
    pub fn is_forsaken(&self) -> bool {
        self.gone && self.unshared && !self.opens.any()
    }

    /// Whether it surely is a file.
    pub fn is_file(&self) -> bool {
        self.kind_known && !self.special
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

    /// Whether there surely is no block of it in the record: content is in the inode only while there is none.
    pub fn has_no_blocks(&self) -> bool {
        self.recorded.allocated().is_empty() && (self.inline.is_held() || self.recorded.is_whole())
    }

    /// Whether it is known which blocks of bytes `from..to` are in the record.
    pub fn knows(&self, from: u64, to: u64) -> bool {
        let block_size = self.block_size();
        self.recorded.first_unknown(from / block_size, to.div_ceil(block_size)).is_none()
    }

    /// Whether pdisks or manager hold bytes of this block: what is absent here must be loaded. What the record says of it
    /// has been learned.
    pub fn on_disk(&self, block: u64) -> bool {
        self.pending.contains(block) || self.in_inode(block) || self.recorded.contains(block)
    }
    /// Whether the pdisks may hold blocks of `first..end` that the manager knows of, or will know of.
    pub fn may_have(&self, first: u64, end: u64) -> bool {
        self.recorded.may_have(first, end) || self.pending.any_in(first, end)
    }
    /// Whether the manager holds bytes of this block in the inode.
    pub fn in_inode(&self, block: u64) -> bool {
        self.inline.is_held() && block == 0 && self.inline.len() > 0 && !self.pending.contains(0)
    }

    /// Whether the pdisks may hold something of a block that is not allocated.
    pub fn may_be_left(&self, block: u64) -> bool {
        !self.born_here || self.dropped.contains(block)
    }

    /// Units that content in the inode can have.
    pub fn inode_units(&self) -> u32 {
        let bytes = self.attr.size.min(self.inline.len()).min(INLINE_LEN_MAX as u64);
        (bytes as u32).div_ceil(UNIT as u32)
    }

    /// Whether the content must be made dirty before the file may grow out of its inode.
    pub fn must_leave_inode(&self) -> bool {
        self.in_inode(0) && !self.inline.is_leaving()
    }

    /// Whether the whole content can go into the inode.
    pub fn fits_inode(&self, inline_max: u32) -> bool {
        self.attr.size <= u64::from(inline_max)
            && self.has_no_blocks()
            && self.pending.is_empty()
            && self.dirty.range(1..).next().is_none()
            && !self.flushes.in_flight()
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
        self.unsent.add(&new);
        self.attr.mtime = new.mtime.unwrap_or(self.attr.mtime);
        self.attr.ctime = ctime;
        self.due.note_commit();
        self.visible()
    }

    /// Something the manager must learn of.
    pub fn note_meta(&mut self) {
        self.unsent.note();
        self.due.note_commit();
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
        self.content_unsettled() || self.unsent.is_any()
    }

    /// The same of its content and size.
    pub fn content_unsettled(&self) -> bool {
        !self.dirty.is_empty()
            || self.flushes.in_flight()
            || self.changing.is_some()
            || !self.pending.is_empty()
            || self.attr.size != self.size_committed
    }

    /// Attributes as the manager gave them, under the inode's token. While it is held nobody else changes a
    /// file but its names: what is known of it here is newer than any answer, which may have been given before
    /// a commit whose own answer came first.
    pub fn merge(&mut self, new: Attr) {
        if self.attr_known && self.attr.kind == wire::mgr::FileKind::File {
            self.attr.nlink = new.nlink;
            self.attr.ctime = self.attr.ctime.max(new.ctime);
            // From before the first extended attribute, it may come after that was set.
            self.attr.plain &= new.plain;
        } else {
            self.size_committed = new.size;
            self.inline.set(&new);
            if new.inline || new.stored == 0 && self.recorded.runs() == 0 {
                self.recorded.learned(0, u64::MAX, []);
            }
            self.attr = new;
        }
        self.gone |= self.attr.nlink == 0;
        if self.gone {
            // Whatever an answer from before that says.
            self.attr.nlink = 0;
        }
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
        if self.opens.any_wide() {
            Need::Write
        } else if self.attr.block_size == 0 || offset >= end {
            Need::Size
        } else {
            Need::Blocks(Span::of_bytes(offset, end - offset, self.block_size()), Use::Read)
        }
    }

    /// What a write needs, at `offset` or at the end. Where the size is known and stays, some blocks are enough.
    pub fn write_need(&self, offset: Option<u64>, len: u64) -> Need {
        let Some(offset) = offset.filter(|_| !self.opens.any_wide()) else { return Need::Write };
        let grows = offset.saturating_add(len) > self.attr.size;
        if self.attr.block_size == 0 {
            Need::Size
        } else if self.attr_known
            && (grows || self.inline.is_held() || self.attr.size <= INLINE_LEN_MAX as u64)
        {
            Need::Write
        } else {
            Need::Blocks(Span::of_bytes(offset, len, self.block_size()), Use::Write)
        }
    }

    /// Attributes as callers see them.
    pub fn visible(&self) -> Attr {
        let mut attr = self.attr.clone();
        if attr.kind != wire::mgr::FileKind::File || attr.block_size == 0 {
            return attr;
        }
        let all = self.token.mode() != TokenMode::Part;
        if all && (self.recorded.is_whole() || self.has_no_blocks()) {
            attr.stored = self.stored_bytes();
            attr.inline = self.inline.is_held();
        } else {
            // What the manager has not been told of yet is there all the same.
            attr.stored = attr.stored.max(self.stored_bytes());
        }
        attr
    }

    /// Bytes of storage: allocated and dirty blocks and those on their way, cut at the size. Never nothing where this mount has data
    /// of it: `tar -S` would not read the file.
    fn stored_bytes(&self) -> u64 {
        let block_size = self.block_size();
        let size = self.attr.size;
        let mut all = self.recorded.allocated().clone();
        self.pending.extents(usize::MAX).into_iter().for_each(|e| all.insert_extent(e));
        if all.is_empty() && self.dirty.is_empty() && !self.flushes.in_flight() {
            // A file may be longer than the bytes its inode holds: the rest is a hole.
            return if self.inline.is_held() { size.min(wire::mgr::INLINE_LEN_MAX as u64) } else { 0 };
        }
        self.dirty.iter().for_each(|&b| all.insert(b, b + 1));
        if self.flushes.in_flight() {
            let written = self.blocks.iter().filter(|(_, block)| block.flushing());
            written.for_each(|(&b, _)| all.insert(b, b + 1));
        }
        let whole = all.count_in(0, size / block_size) * block_size;
        whole + if all.contains(size / block_size) { size % block_size } else { 0 }
    }
}
