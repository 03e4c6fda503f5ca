//! Allocated blocks of files: runs, merged where they touch, keyed by their end so that "what ends
//! after block n" is one forward scan. And the two operations that change them from the client's side:
//! the commit of written data, and the punching of holes.
//!
//! Invariant: runs of an inode are disjoint and do not touch; `Inode::blocks` is their total, and who has one has no inline
//! content. In debug builds this is looked at around each change of a file with few runs: where it held before, it holds after.

use std::ops::ControlFlow;

use base::{BlockIndex, FsId, InodeNo, Version};
use libc::{EFBIG, EINVAL, EISDIR};
use wire::mgr::{Extent, FILE_SIZE_MAX, FileKind, INLINE_LEN_MAX, MgrReply, Timestamp};

use super::{Editor, Op, errno, inode};
use crate::{
    keys::{self, ExtentRecord, Inode, extent_key, extent_prefix, last_u64},
    store::{BadRecord, Read, open_record, prefix_end},
};

/// Most extents of one answer.
pub const LIST_MAX: u32 = 4096;

/// Files of more runs are not looked at in debug builds.
const CHECKED_MAX: usize = 64;

/// What [`Editor::commit_write`] records.
pub(super) struct Written {
    pub size: u64,
    pub allocated: Vec<Extent>,
    pub inline: Option<Vec<u8>>,
    pub set: inode::NewAttr,
    pub shared: bool,
}

/// A run of blocks `first..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: u64,
    end: u64,
}

/// Runs that end at `from` or later, rising, until `take` says no.
fn scan_runs(
    reader: &dyn Read,
    fs: FsId,
    ino: InodeNo,
    from: u64,
    mut take: impl FnMut(Run) -> ControlFlow<()>,
) -> Op<()> {
    let mut bad: Option<BadRecord> = None;
    let (start, stop) = (extent_key(fs, ino, from), prefix_end(&extent_prefix(fs, ino)));
    reader.scan(&start, &stop, &mut |key, value| match open_record::<ExtentRecord>(key, value) {
        Ok(record) => take(Run { first: record.first, end: last_u64(key) }),
        Err(error) => {
            bad = Some(error);
            ControlFlow::Break(())
        }
    })?;
    bad.map_or(Ok(()), |error| Err(error.into()))
}

/// Allocated extents that end after `from`, and whether there are more.
pub fn list(
    reader: &dyn Read,
    fs: FsId,
    ino: InodeNo,
    from: BlockIndex,
    limit: u32,
) -> Op<(Vec<Extent>, bool)> {
    let limit = limit.clamp(1, LIST_MAX) as usize;
    let (mut extents, mut more) = (Vec::new(), false);
    scan_runs(reader, fs, ino, from.0.saturating_add(1), |run| {
        if extents.len() == limit {
            more = true;
            return ControlFlow::Break(());
        }
        extents.push(Extent { first: BlockIndex(run.first), count: run.end - run.first });
        ControlFlow::Continue(())
    })?;
    Ok((extents, more))
}

impl Editor<'_, '_> {
    /// Whether the invariant holds for a file whose record is `inode`; `None` where its runs are too many to look at, cannot be
    /// read, or are not looked at. What is wrong in the store stays wrong, and is [`crate::check`]'s to tell.
    pub(super) fn runs_are_sound(&self, ino: InodeNo, inode: &Inode) -> Option<bool> {
        if !cfg!(debug_assertions) {
            return None;
        }
        let mut runs = Vec::new();
        scan_runs(self.txn, self.fs.fs, ino, 0, |run| {
            runs.push(run);
            if runs.len() <= CHECKED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .ok()?;
        let has_body = !inode::body(self.txn, self.fs.fs, ino).ok()?.is_empty();
        let apart = runs.windows(2).all(|two| two[0].end < two[1].first);
        let whole = runs.iter().all(|run| run.first < run.end);
        let total = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.end.saturating_sub(run.first)));
        let sound = apart && whole && total == inode.blocks && (inode.blocks == 0 || !has_body);
        (runs.len() <= CHECKED_MAX).then_some(sound)
    }

    fn put_run(&mut self, ino: InodeNo, run: Run) {
        let key = extent_key(self.fs.fs, ino, run.end);
        keys::write(self.txn, key, &ExtentRecord { first: run.first });
    }

    /// Runs that overlap or touch `first..end`.
    fn runs_around(&self, ino: InodeNo, first: u64, end: u64) -> Op<Vec<Run>> {
        let mut runs = Vec::new();
        scan_runs(self.txn, self.fs.fs, ino, first, |run| {
            if run.first > end {
                return ControlFlow::Break(());
            }
            runs.push(run);
            ControlFlow::Continue(())
        })?;
        Ok(runs)
    }

    /// Marks blocks allocated; how many were not before.
    fn add_run(&mut self, ino: InodeNo, new: Run) -> Op<u64> {
        let (mut merged, mut known) = (new, 0);
        for run in self.runs_around(ino, new.first, new.end)? {
            known += run.end.min(new.end).saturating_sub(run.first.max(new.first));
            merged = Run { first: merged.first.min(run.first), end: merged.end.max(run.end) };
            self.txn.delete(extent_key(self.fs.fs, ino, run.end));
        }
        self.put_run(ino, merged);
        Ok(new.end - new.first - known)
    }

    /// Marks blocks `first..end` not allocated; how many were.
    fn remove_runs(&mut self, ino: InodeNo, first: u64, end: u64) -> Op<u64> {
        let mut removed = 0;
        for run in self.runs_around(ino, first, end)? {
            let overlap = run.end.min(end).saturating_sub(run.first.max(first));
            if overlap == 0 {
                continue;
            }
            removed += overlap;
            self.txn.delete(extent_key(self.fs.fs, ino, run.end));
            if run.first < first {
                self.put_run(ino, Run { first: run.first, end: first });
            }
            if run.end > end {
                self.put_run(ino, Run { first: end, end: run.end });
            }
        }
        Ok(removed)
    }

    /// Removes blocks `first..end` from the record and queues their deletion.
    pub(super) fn drop_blocks(
        &mut self,
        ino: InodeNo,
        inode: &mut Inode,
        first: u64,
        end: u64,
        highest: Version,
    ) -> Op<()> {
        let highest = self.actor.highest(highest);
        if inode.had_blocks || highest.seq > 0 {
            self.queue_delete(ino, inode, first, end.saturating_sub(1), highest)?;
        }
        if inode.blocks > 0 {
            inode.blocks = inode.blocks.saturating_sub(self.remove_runs(ino, first, end)?);
        }
        Ok(())
    }

    /// Sets `stored` from size, blocks and inline content.
    pub(super) fn recount(&mut self, ino: InodeNo, inode: &mut Inode) -> Op<()> {
        let block_size = u64::from(inode.block_size);
        if inode.blocks == 0 {
            inode.stored = inode::body(self.txn, self.fs.fs, ino)?.len() as u64;
            return Ok(());
        }
        inode.stored = inode.blocks.saturating_mul(block_size);
        let in_last = inode.size % block_size;
        if in_last > 0 && self.is_allocated(ino, inode.size / block_size)? {
            inode.stored -= block_size - in_last;
        }
        Ok(())
    }

    fn is_allocated(&self, ino: InodeNo, block: u64) -> Op<bool> {
        let mut allocated = false;
        scan_runs(self.txn, self.fs.fs, ino, block + 1, |run| {
            allocated = run.first <= block;
            ControlFlow::Break(())
        })?;
        Ok(allocated)
    }

    fn check_run(&self, inode: &Inode, extent: Extent) -> Op<Run> {
        let limit = FILE_SIZE_MAX.div_ceil(u64::from(inode.block_size.max(1)));
        match extent.first.0.checked_add(extent.count) {
            _ if extent.count == 0 => errno(EINVAL),
            Some(end) if end <= limit => Ok(Run { first: extent.first.0, end }),
            _ => errno(EFBIG),
        }
    }

    fn get_file(&self, ino: InodeNo) -> Op<Inode> {
        let inode = self.get(ino)?;
        match inode.kind {
            FileKind::File => Ok(inode),
            FileKind::Directory => errno(EISDIR),
            _ => errno(EINVAL),
        }
    }

    pub(super) fn commit_write(&mut self, ino: InodeNo, mut written: Written) -> Op<MgrReply> {
        let mut inode = self.get_file(ino)?;
        let was_sound = self.runs_are_sound(ino, &inode) == Some(true);
        if written.shared {
            written.size = written.size.max(inode.size);
            written.set.mtime = written.set.mtime.max(Some(inode.mtime));
        }
        // A name of it may have been moved or made since the client said this.
        written.set.ctime = written.set.ctime.max(inode.ctime);
        if written.size > FILE_SIZE_MAX {
            return errno(EFBIG);
        }
        match &written.inline {
            Some(content) => {
                let fits = content.len() <= INLINE_LEN_MAX && content.len() as u64 <= written.size;
                if !fits || inode.blocks > 0 || !written.allocated.is_empty() {
                    return errno(EINVAL);
                }
                self.put_body(ino, content);
            }
            None if !written.allocated.is_empty() => {
                if inode.blocks == 0 {
                    self.put_body(ino, &[]);
                }
                for &extent in &written.allocated {
                    let run = self.check_run(&inode, extent)?;
                    inode.blocks += self.add_run(ino, run)?;
                }
                inode.had_blocks = true;
            }
            None if inode.blocks == 0 && written.size < inode.size => {
                // Inline content is cut by SetAttr, which says what may be deleted.
                return errno(EINVAL);
            }
            None => {}
        }
        inode.size = written.size;
        written.set.apply(&mut inode);
        self.recount(ino, &mut inode)?;
        debug_assert!(!was_sound || self.runs_are_sound(ino, &inode) != Some(false), "{ino}: a commit");
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }

    pub(super) fn deallocate(
        &mut self,
        ino: InodeNo,
        blocks: Extent,
        highest: Version,
        now: Timestamp,
    ) -> Op<MgrReply> {
        let mut inode = self.get_file(ino)?;
        let run = self.check_run(&inode, blocks)?;
        let was_sound = self.runs_are_sound(ino, &inode) == Some(true);
        self.drop_blocks(ino, &mut inode, run.first, run.end, highest)?;
        inode.mtime = now;
        inode.ctime = now;
        self.recount(ino, &mut inode)?;
        debug_assert!(!was_sound || self.runs_are_sound(ino, &inode) != Some(false), "{ino}: a hole {run:?}");
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }
}
