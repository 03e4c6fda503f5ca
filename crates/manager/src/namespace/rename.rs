//! Rename: replace, no-replace, exchange, with the check that no directory becomes its own ancestor.

use base::{InodeNo, Version};
use libc::{EEXIST, EINVAL, EIO, EISDIR, EMLINK, ENOENT, ENOTDIR, ENOTEMPTY};
use wire::mgr::{FileKind, MgrReply, Timestamp};

use super::{
    Editor, NLINK_MAX, Op,
    dir::{self, check_name, is_dot},
    errno,
};
use crate::{keys::EntryRecord, last_names};

/// Deepest directory. Bounds the walk to the root; a longer one is a damaged tree.
const DEPTH_MAX: u32 = 1 << 20;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub dir: InodeNo,
    pub name: &'a [u8],
}

impl Editor<'_, '_> {
    /// Whether `ancestor` is `dir` or above it.
    fn is_at_or_above(&self, ancestor: InodeNo, dir: InodeNo) -> Op<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Ok(true);
            }
            if at == InodeNo::ROOT {
                return Ok(false);
            }
            at = self.get(at)?.parent;
        }
        errno(EIO)
    }

    fn entry(&self, place: Place<'_>) -> Op<Option<(u64, EntryRecord)>> {
        dir::find(self.txn, &self.fs, place.dir, place.name)
    }

    fn check_places(&self, from: Place<'_>, to: Place<'_>) -> Op<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        dir::get_dir(self.txn, &self.fs, from.dir)?;
        self.linked_dir(to.dir)?;
        if is_dot(from.name) || is_dot(to.name) { errno(EINVAL) } else { Ok(()) }
    }

    pub(super) fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        no_replace: bool,
        open: bool,
        highest: Version,
        now: Timestamp,
    ) -> Op<MgrReply> {
        self.check_places(from, to)?;
        let Some((cookie, moved)) = self.entry(from)? else { return errno(ENOENT) };
        let is_dir = moved.kind == FileKind::Directory;
        if is_dir && from.dir != to.dir && self.is_at_or_above(moved.ino, to.dir)? {
            return errno(EINVAL);
        }
        let target = self.entry(to)?;
        let mut lost = None;
        match &target {
            Some(_) if no_replace => return errno(EEXIST),
            Some((_, old)) if old.ino == moved.ino => return Ok(MgrReply::Unlinked { attr: None }),
            Some((_, old)) => {
                match (is_dir, old.kind == FileKind::Directory) {
                    (true, false) => return errno(ENOTDIR),
                    (false, true) => return errno(EISDIR),
                    (true, true) if !dir::is_empty(self.txn, self.fs.fs, old.ino)? => {
                        return errno(ENOTEMPTY);
                    }
                    _ => {}
                }
                lost = Some(old.ino);
            }
            None => {}
        }
        self.remove_entry(from.dir, cookie);
        match target {
            Some((cookie, old)) => {
                let entry = EntryRecord { name: old.name, ino: moved.ino, kind: moved.kind };
                self.replace_entry(to.dir, cookie, &entry);
            }
            None => self.insert_entry(to.dir, to.name, moved.ino, moved.kind)?,
        }
        self.moved_dir_links(is_dir, from.dir, to.dir, lost.is_some())?;
        let source = self.get(from.dir)?;
        self.touch_dir(from.dir, source, -1, now);
        let destination = self.get(to.dir)?;
        self.touch_dir(to.dir, destination, i64::from(lost.is_none()), now);
        self.moved_inode(moved.ino, to.dir, now)?;
        match lost {
            Some(ino) => {
                last_names::note(self.fs.fs, ino, to.dir, to.name);
                self.drop_link(ino, open, highest, now)
            }
            None => Ok(MgrReply::Unlinked { attr: None }),
        }
    }

    /// Link counts of the parents when a directory moves, perhaps over an empty one.
    fn moved_dir_links(&mut self, is_dir: bool, from: InodeNo, to: InodeNo, replaced: bool) -> Op<()> {
        if !is_dir {
            return Ok(());
        }
        let mut source = self.get(from)?;
        source.nlink = source.nlink.saturating_sub(1);
        self.put(from, &source);
        if !replaced {
            self.add_dir_link(to)?;
        }
        Ok(())
    }

    fn add_dir_link(&mut self, ino: InodeNo) -> Op<()> {
        let mut dir = self.get(ino)?;
        if dir.nlink >= NLINK_MAX {
            return errno(EMLINK);
        }
        dir.nlink += 1;
        self.put(ino, &dir);
        Ok(())
    }

    fn moved_inode(&mut self, ino: InodeNo, parent: InodeNo, now: Timestamp) -> Op<()> {
        let mut inode = self.get(ino)?;
        inode.ctime = now;
        inode.parent = parent;
        self.put(ino, &inode);
        Ok(())
    }

    pub(super) fn exchange(&mut self, a: Place<'_>, b: Place<'_>, now: Timestamp) -> Op<MgrReply> {
        self.check_places(a, b)?;
        let (Some((cookie_a, entry_a)), Some((cookie_b, entry_b))) = (self.entry(a)?, self.entry(b)?) else {
            return errno(ENOENT);
        };
        if entry_a.ino == entry_b.ino {
            return Ok(MgrReply::Unlinked { attr: None });
        }
        let (dir_a, dir_b) = (entry_a.kind == FileKind::Directory, entry_b.kind == FileKind::Directory);
        if a.dir != b.dir
            && (dir_a && self.is_at_or_above(entry_a.ino, b.dir)?
                || dir_b && self.is_at_or_above(entry_b.ino, a.dir)?)
        {
            return errno(EINVAL);
        }
        let new_a = EntryRecord { name: entry_a.name, ino: entry_b.ino, kind: entry_b.kind };
        let new_b = EntryRecord { name: entry_b.name, ino: entry_a.ino, kind: entry_a.kind };
        self.replace_entry(a.dir, cookie_a, &new_a);
        self.replace_entry(b.dir, cookie_b, &new_b);
        if dir_a != dir_b {
            let (loses, gains) = if dir_a { (a.dir, b.dir) } else { (b.dir, a.dir) };
            self.moved_dir_links(true, loses, gains, false)?;
        }
        for dir in [a.dir, b.dir] {
            let inode = self.get(dir)?;
            self.touch_dir(dir, inode, 0, now);
        }
        self.moved_inode(new_b.ino, b.dir, now)?;
        self.moved_inode(new_a.ino, a.dir, now)?;
        Ok(MgrReply::Unlinked { attr: None })
    }
}
