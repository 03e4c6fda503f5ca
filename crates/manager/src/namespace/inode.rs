//! Inodes: their records, attributes, and their end.
//!
//! Invariant: an inode with `nlink` 0 exists only while an orphan record of a session names it that is live or not fenced yet.
//! A file without an allocated block is inline.

use std::ops::ControlFlow;

use base::{BlockIndex, FsId, InodeNo, PoolId, SessionId, Version};
use libc::{EFBIG, EINVAL, EISDIR, ENOENT, ENOSPC};
use wire::{
    mgr::{Attr, FILE_SIZE_MAX, FileKind, MgrReply, NUMBERS_MAX, Timestamp, without_privileges},
    strip::DeleteStrips,
};

use super::{Editor, Op, errno};
use crate::{
    delete_queue,
    keys::{
        self, BYTES_VERSION, DeleteRecord, EndingRecord, FsRecord, Inode, NumbersRecord, SessionRecord,
        body_key, inode_key, numbers_key,
    },
    store::{Read, open_bytes, prefix_end, seal_bytes},
};

/// What a directory shows as its size, bytes.
const DIRECTORY_SIZE: u64 = 4096;

/// The inode; ENOENT if there is none.
pub fn get(from: &dyn Read, fs: FsId, ino: InodeNo) -> Op<Inode> {
    match keys::read(from, &inode_key(fs, ino))? {
        Some(inode) => Ok(inode),
        None => errno(ENOENT),
    }
}

/// Attributes as they are told.
pub fn attr(ino: InodeNo, inode: &Inode) -> Attr {
    Attr {
        ino,
        kind: inode.kind,
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        nlink: inode.nlink,
        size: if inode.kind == FileKind::Directory { DIRECTORY_SIZE } else { inode.size },
        stored: inode.stored,
        rdev: inode.rdev,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        btime: inode.btime,
        pool: inode.pool,
        block_size: inode.block_size,
        inline: inode.kind == FileKind::File && inode.blocks == 0,
        plain: inode.xattr_names == 0,
    }
}

/// Inline content or symlink target; empty if there is none.
pub fn body(from: &dyn Read, fs: FsId, ino: InodeNo) -> Op<Vec<u8>> {
    let key = body_key(fs, ino);
    match from.get(&key)? {
        Some(value) => Ok(open_bytes("body", &key, BYTES_VERSION, &value)?.to_vec()),
        None => Ok(Vec::new()),
    }
}

/// The root directory and the counts of a new file system.
pub fn new_root(pool: PoolId, block_size: u32, now: Timestamp) -> (Inode, FsRecord) {
    let root = Inode {
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        pool,
        block_size,
        parent: InodeNo::ROOT,
        ..Inode::default()
    };
    (root, FsRecord { last_ino: InodeNo::ROOT, inodes: 1 })
}

/// What [`Editor::set_attr`] sets.
pub(super) struct NewAttr {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
    pub ctime: Timestamp,
}

impl NewAttr {
    /// Everything but the size.
    pub fn apply(&self, inode: &mut Inode) {
        if let Some(mode) = self.mode {
            inode.mode = mode & 0o7777;
        } else if (self.uid.is_some() || self.gid.is_some()) && inode.kind != FileKind::Directory {
            inode.mode = without_privileges(inode.mode);
        }
        inode.uid = self.uid.unwrap_or(inode.uid);
        inode.gid = self.gid.unwrap_or(inode.gid);
        inode.atime = self.atime.unwrap_or(inode.atime);
        inode.mtime = self.mtime.unwrap_or(inode.mtime);
        inode.ctime = self.ctime;
    }
}

impl Editor<'_, '_> {
    pub(super) fn get(&self, ino: InodeNo) -> Op<Inode> {
        get(self.txn, self.fs.fs, ino)
    }

    pub(super) fn put(&mut self, ino: InodeNo, inode: &Inode) {
        keys::write(self.txn, inode_key(self.fs.fs, ino), inode);
    }

    pub(super) fn put_body(&mut self, ino: InodeNo, bytes: &[u8]) {
        let key = body_key(self.fs.fs, ino);
        if bytes.is_empty() {
            self.txn.delete(key);
        } else {
            let value = seal_bytes(&key, BYTES_VERSION, bytes);
            self.txn.put(key, value);
        }
    }

    /// Counts of the file system, changed.
    pub(super) fn count(&mut self, change: impl FnOnce(&mut FsRecord)) -> Op<()> {
        let key = keys::fs_key(self.fs.fs);
        let Some(mut record) = keys::read::<FsRecord>(self.txn, &key)? else { return errno(ENOENT) };
        change(&mut record);
        keys::write(self.txn, key, &record);
        Ok(())
    }

    /// A new inode number.
    pub(super) fn new_ino(&mut self) -> Op<InodeNo> {
        let mut ino = InodeNo(0);
        self.count(|record| {
            record.last_ino.0 += 1;
            record.inodes += 1;
            ino = record.last_ino;
        })?;
        Ok(ino)
    }

    /// Grants inode numbers to the session, above all that were ever given: the record that says so is as durable as the answer.
    pub(super) fn grant_numbers(&mut self, count: u32) -> Op<MgrReply> {
        if !(1..=NUMBERS_MAX).contains(&count) {
            return errno(EINVAL);
        }
        // What is made ahead is not refused later: there is room for those whose numbers were granted before.
        if self.fs.full {
            return errno(ENOSPC);
        }
        let mut first = InodeNo(0);
        self.count(|record| {
            first = InodeNo(record.last_ino.0 + 1);
            record.last_ino.0 += u64::from(count);
        })?;
        let numbers = NumbersRecord { next: first, end: InodeNo(first.0 + u64::from(count)) };
        keys::write(self.txn, numbers_key(self.actor.session), &numbers);
        Ok(MgrReply::Numbers { first, count })
    }

    /// A number that was granted is used: it, and those below it, never are again.
    pub(super) fn use_number(&mut self, ino: InodeNo) -> Op<()> {
        let key = numbers_key(self.actor.session);
        let numbers = keys::read::<NumbersRecord>(self.txn, &key)?.unwrap_or_default();
        if !(numbers.next..numbers.end).contains(&ino) {
            return errno(EINVAL);
        }
        keys::write(self.txn, key, &NumbersRecord { next: InodeNo(ino.0 + 1), ..numbers });
        self.count(|record| record.inodes += 1)
    }

    pub(super) fn set_attr(&mut self, ino: InodeNo, new: NewAttr, highest: Version) -> Op<MgrReply> {
        let mut inode = self.get(ino)?;
        if let Some(size) = new.size {
            self.resize(ino, &mut inode, size, highest)?;
            inode.mtime = new.ctime;
        }
        new.apply(&mut inode);
        self.put(ino, &inode);
        Ok(MgrReply::Attr(Box::new(attr(ino, &inode))))
    }

    /// Changes the size: the record of the blocks beyond is cleared first, in this transaction; their
    /// strips are deleted later.
    fn resize(&mut self, ino: InodeNo, inode: &mut Inode, size: u64, highest: Version) -> Op<()> {
        match inode.kind {
            FileKind::File => {}
            FileKind::Directory => return errno(EISDIR),
            _ => return errno(EINVAL),
        }
        if size > FILE_SIZE_MAX {
            return errno(EFBIG);
        }
        let was_sound = self.runs_are_sound(ino, inode) == Some(true);
        if size < inode.size {
            let keep = size.div_ceil(u64::from(inode.block_size));
            self.drop_blocks(ino, inode, keep, u64::MAX, highest)?;
            let content = body(self.txn, self.fs.fs, ino)?;
            if content.len() as u64 > size {
                self.put_body(ino, &content[..size as usize]);
            }
        }
        inode.size = size;
        self.recount(ino, inode)?;
        debug_assert!(!was_sound || self.runs_are_sound(ino, inode) != Some(false), "{ino} cut to {size}");
        Ok(())
    }

    /// Takes a link away; the inode goes with the last one, unless it is held open.
    pub(super) fn drop_link(
        &mut self,
        ino: InodeNo,
        open: bool,
        highest: Version,
        now: Timestamp,
    ) -> Op<MgrReply> {
        let mut inode = self.get(ino)?;
        inode.nlink = match inode.kind {
            FileKind::Directory => 0,
            _ => inode.nlink.saturating_sub(1),
        };
        inode.ctime = now;
        let attr = Box::new(attr(ino, &inode));
        let (own, openers) = (self.actor.session, self.actor.openers);
        let of_others = |(opened, session): &&(InodeNo, SessionId)| *opened == ino && *session != own;
        let others = openers.iter().filter(of_others).map(|(_, session)| *session);
        let in_use = others.clone().next().is_some();
        if inode.nlink > 0 {
            // Where the other names are is not known.
            inode.parent = InodeNo(0);
            self.put(ino, &inode);
        } else if open || in_use {
            self.put(ino, &inode);
            let mut holders = 0;
            for session in open.then_some(own).into_iter().chain(others) {
                let key = keys::orphan_key(session, self.fs.fs, ino);
                keys::write(self.txn, key, &keys::OrphanRecord {});
                holders += 1;
            }
            debug_assert!(holders > 0, "{ino} has no name, and no orphan record says who holds it");
        } else {
            self.remove_inode(ino, &inode, highest)?;
        }
        Ok(match in_use && attr.nlink == 0 {
            true => MgrReply::UnlinkedInUse(attr),
            false => MgrReply::Unlinked { attr: Some(attr) },
        })
    }

    pub(super) fn forget(&mut self, ino: InodeNo, highest: Version) -> Op<MgrReply> {
        self.txn.delete(keys::orphan_key(self.actor.session, self.fs.fs, ino));
        if let Some(inode) = keys::read::<Inode>(self.txn, &inode_key(self.fs.fs, ino))?
            && inode.nlink == 0
            && !self.is_orphan_of_others(ino)?
        {
            self.remove_inode(ino, &inode, highest)?;
        }
        Ok(MgrReply::Done)
    }

    /// Whether another session than the actor's has the nameless inode open that is live, or has ended and may not be fenced yet: what
    /// that one writes could still arrive after the inode's strips are deleted.
    pub(super) fn is_orphan_of_others(&self, ino: InodeNo) -> Op<bool> {
        let ending = keys::read::<EndingRecord>(self.txn, &keys::ending_key(self.fs.fs))?.unwrap_or_default();
        let mut next = Some(SessionId(0));
        while let Some(from) = next {
            // The next session that has any open.
            let mut found = None;
            let start = keys::orphan_key(from, FsId(0), InodeNo(0));
            self.txn.scan(&start, &prefix_end(b"o"), &mut |key, _| {
                found = key
                    .get(1..9)
                    .and_then(|id| id.first_chunk())
                    .map(|id| SessionId(u64::from_be_bytes(*id)));
                ControlFlow::Break(())
            })?;
            let Some(session) = found else { break };
            if session != self.actor.session
                && self.txn.get(&keys::orphan_key(session, self.fs.fs, ino))?.is_some()
                && (ending.fence.is_some()
                    || keys::read::<SessionRecord>(self.txn, &keys::session_key(session))?.is_some())
            {
                return Ok(true);
            }
            next = session.0.checked_add(1).map(SessionId);
        }
        Ok(false)
    }

    /// Removes an inode with all that hangs on it. Its number is never used again, so every version of
    /// its strips can be deleted.
    pub(super) fn remove_inode(&mut self, ino: InodeNo, inode: &Inode, highest: Version) -> Op<()> {
        let highest = self.actor.highest(highest);
        let fs = self.fs.fs;
        self.txn.delete(inode_key(fs, ino));
        if matches!(inode.kind, FileKind::File | FileKind::Symlink) {
            self.txn.delete(body_key(fs, ino));
        }
        if inode.xattr_names > 0 {
            self.delete_prefix(&keys::xattr_key(fs, ino, b""))?;
        }
        if inode.blocks > 0 {
            self.delete_prefix(&keys::extent_prefix(fs, ino))?;
        }
        if inode.had_blocks || highest.seq > 0 {
            self.queue_delete(ino, inode, 0, u64::MAX, Version::MAX)?;
        }
        self.count(|record| record.inodes = record.inodes.saturating_sub(1))
    }

    fn delete_prefix(&mut self, prefix: &[u8]) -> Op<()> {
        let mut found = Vec::new();
        self.txn.scan(prefix, &prefix_end(prefix), &mut |key, _| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        found.into_iter().for_each(|key| self.txn.delete(key));
        Ok(())
    }

    /// Queues the deletion of the strips of blocks `first..=last`.
    pub(super) fn queue_delete(
        &mut self,
        ino: InodeNo,
        inode: &Inode,
        first: u64,
        last: u64,
        highest: Version,
    ) -> Op<()> {
        let size_blocks = inode.size.div_ceil(u64::from(inode.block_size.max(1)));
        let blocks = last.saturating_sub(first).saturating_add(1).min(inode.blocks.max(size_blocks));
        let strips = DeleteStrips {
            fs: self.fs.fs,
            inode: ino,
            first: BlockIndex(first),
            last: BlockIndex(last),
            highest,
        };
        let record = DeleteRecord { pool: inode.pool, strips, blocks };
        Ok(delete_queue::push(self.txn, &record)?)
    }
}
