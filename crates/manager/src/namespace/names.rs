//! Names: create, link, unlink; and files made without one.

use base::{InodeNo, Version};
use libc::{EEXIST, EINVAL, EISDIR, EMLINK, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY, EPERM, ESTALE};
use wire::mgr::{FileKind, MgrReply, SYMLINK_LEN_MAX, Timestamp};

use super::{
    Editor, NLINK_MAX, Op,
    dir::{self, check_name, is_dot},
    errno, inode,
};
use crate::{
    keys::{self, Inode},
    last_names,
    store::Read,
};

const S_ISGID: u16 = 0o2000;

/// What [`Editor::create`] makes.
pub(super) struct NewInode {
    pub kind: FileKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub target: Vec<u8>,
    pub now: Timestamp,
}

impl NewInode {
    /// An empty file.
    pub fn file(mode: u16, uid: u32, gid: u32, now: Timestamp) -> NewInode {
        NewInode { kind: FileKind::File, mode, uid, gid, rdev: 0, target: Vec::new(), now }
    }

    /// The record of one that is made in a directory.
    fn record(&self, parent: InodeNo, dir: &Inode) -> Inode {
        let is_dir = self.kind == FileKind::Directory;
        let mut inode = Inode {
            kind: self.kind,
            mode: if self.kind == FileKind::Symlink { 0o777 } else { self.mode & 0o7777 },
            uid: self.uid,
            gid: self.gid,
            nlink: if is_dir { 2 } else { 1 },
            rdev: self.rdev,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            pool: dir.pool,
            block_size: dir.block_size,
            parent,
            ..Inode::default()
        };
        if dir.mode & S_ISGID != 0 {
            inode.gid = dir.gid;
            if is_dir {
                inode.mode |= S_ISGID;
            }
        }
        inode
    }
}

impl Editor<'_, '_> {
    /// Refuses (ESTALE) a change by a client that holds the tokens of other inodes than those the names lead
    /// to now. Number 0 stands for a name that leads nowhere.
    pub(super) fn expect_names(&self, names: &[(InodeNo, &[u8], Option<InodeNo>)]) -> Op<()> {
        for (parent, name, expected) in names {
            let Some(expected) = expected else { continue };
            let found = match is_dot(name) {
                true => None,
                false => dir::find(self.txn, &self.fs, *parent, name)?.map(|(_, entry)| entry.ino),
            };
            if found.unwrap_or_default() != *expected {
                return errno(ESTALE);
            }
        }
        Ok(())
    }

    /// A directory that still has a name: names are made and moved only there.
    pub(super) fn linked_dir(&self, ino: InodeNo) -> Op<Inode> {
        let dir = dir::get_dir(self.txn, &self.fs, ino)?;
        if dir.nlink == 0 { errno(ENOENT) } else { Ok(dir) }
    }

    pub(super) fn create(
        &mut self,
        parent: InodeNo,
        name: &[u8],
        new: NewInode,
        existing_ok: bool,
    ) -> Op<MgrReply> {
        check_name(name)?;
        let dir = self.linked_dir(parent)?;
        if is_dot(name) {
            return errno(if existing_ok { EISDIR } else { EEXIST });
        }
        if let Some((_, entry)) = dir::find(self.txn, &self.fs, parent, name)? {
            return match entry.kind {
                FileKind::File if existing_ok => {
                    let inode = self.get(entry.ino)?;
                    Ok(MgrReply::Created { attr: Box::new(inode::attr(entry.ino, &inode)), new: false })
                }
                FileKind::Directory if existing_ok => errno(EISDIR),
                _ => errno(EEXIST),
            };
        }
        if self.fs.full {
            return errno(ENOSPC);
        }
        let ino = self.new_ino()?;
        self.make(ino, parent, name, new, dir)
    }

    /// See [`wire::mgr::Change::CreateAs`].
    pub(super) fn create_as(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &[u8],
        new: NewInode,
    ) -> Op<MgrReply> {
        check_name(name)?;
        let dir = self.linked_dir(parent)?;
        if is_dot(name) {
            return errno(EEXIST);
        }
        if let Some((_, entry)) = dir::find(self.txn, &self.fs, parent, name)? {
            if entry.ino != ino {
                return errno(EEXIST);
            }
            let inode = self.get(ino)?;
            return Ok(MgrReply::Created { attr: Box::new(inode::attr(ino, &inode)), new: true });
        }
        self.use_number(ino)?;
        self.make(ino, parent, name, new, dir)
    }

    /// Makes an inode and its name, which does not exist.
    fn make(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &[u8],
        new: NewInode,
        mut dir: Inode,
    ) -> Op<MgrReply> {
        if new.kind == FileKind::Symlink {
            match new.target.len() {
                0 => return errno(ENOENT),
                len if len > SYMLINK_LEN_MAX => return errno(ENAMETOOLONG),
                _ if new.target.contains(&0) => return errno(EINVAL),
                _ => {}
            }
        }
        let is_dir = new.kind == FileKind::Directory;
        if is_dir && dir.nlink >= NLINK_MAX {
            return errno(EMLINK);
        }
        let mut inode = new.record(parent, &dir);
        if new.kind == FileKind::Symlink {
            inode.size = new.target.len() as u64;
            self.put_body(ino, &new.target);
        }
        self.put(ino, &inode);
        self.insert_entry(parent, name, ino, new.kind)?;
        dir.nlink += u32::from(is_dir);
        self.touch_dir(parent, dir, 1, new.now);
        Ok(MgrReply::Created { attr: Box::new(inode::attr(ino, &inode)), new: true })
    }

    /// See [`wire::mgr::Change::CreateUnnamed`].
    pub(super) fn create_unnamed(&mut self, parent: InodeNo, new: NewInode) -> Op<MgrReply> {
        let dir = self.linked_dir(parent)?;
        if self.fs.full {
            return errno(ENOSPC);
        }
        let ino = self.new_ino()?;
        let inode = Inode { nlink: 0, ..new.record(parent, &dir) };
        self.put(ino, &inode);
        keys::write(self.txn, self.own_orphan(ino), &keys::OrphanRecord {});
        Ok(MgrReply::Created { attr: Box::new(inode::attr(ino, &inode)), new: true })
    }

    /// Where it says that this session holds open what has no name.
    fn own_orphan(&self, ino: InodeNo) -> Vec<u8> {
        keys::orphan_key(self.actor.session, self.fs.fs, ino)
    }

    /// Stores a directory whose entries have changed.
    pub(super) fn touch_dir(&mut self, ino: InodeNo, mut dir: Inode, entries: i64, now: Timestamp) {
        dir.entries = dir.entries.saturating_add_signed(entries);
        dir.mtime = now;
        dir.ctime = now;
        self.put(ino, &dir);
    }

    /// Another name; `unnamed`: or the first one of what this session made without.
    pub(super) fn link(
        &mut self,
        ino: InodeNo,
        parent: InodeNo,
        name: &[u8],
        now: Timestamp,
        unnamed: bool,
    ) -> Op<MgrReply> {
        check_name(name)?;
        let dir = self.linked_dir(parent)?;
        let mut inode = self.get(ino)?;
        if is_dot(name) || dir::find(self.txn, &self.fs, parent, name)?.is_some() {
            return errno(EEXIST);
        }
        match inode.kind {
            FileKind::Directory => return errno(EPERM),
            _ if inode.nlink == 0 && !(unnamed && self.txn.get(&self.own_orphan(ino))?.is_some()) => {
                return errno(ENOENT);
            }
            _ if inode.nlink >= NLINK_MAX => return errno(EMLINK),
            _ if self.fs.full => return errno(ENOSPC),
            kind => self.insert_entry(parent, name, ino, kind)?,
        }
        if inode.nlink == 0 {
            self.txn.delete(self.own_orphan(ino));
        }
        inode.nlink += 1;
        inode.parent = parent;
        inode.ctime = now;
        self.put(ino, &inode);
        self.touch_dir(parent, dir, 1, now);
        Ok(MgrReply::Attr(Box::new(inode::attr(ino, &inode))))
    }

    pub(super) fn unlink(
        &mut self,
        parent: InodeNo,
        name: &[u8],
        directory: bool,
        open: bool,
        highest: Version,
        now: Timestamp,
    ) -> Op<MgrReply> {
        check_name(name)?;
        let mut dir = dir::get_dir(self.txn, &self.fs, parent)?;
        match name {
            b"." => return errno(if directory { EINVAL } else { EISDIR }),
            b".." => return errno(if directory { ENOTEMPTY } else { EISDIR }),
            _ => {}
        }
        let Some((cookie, entry)) = dir::find(self.txn, &self.fs, parent, name)? else {
            return errno(ENOENT);
        };
        match (entry.kind == FileKind::Directory, directory) {
            (true, false) => return errno(EISDIR),
            (false, true) => return errno(ENOTDIR),
            (true, true) if !dir::is_empty(self.txn, self.fs.fs, entry.ino)? => return errno(ENOTEMPTY),
            _ => {}
        }
        self.remove_entry(parent, cookie);
        dir.nlink = dir.nlink.saturating_sub(u32::from(directory));
        self.touch_dir(parent, dir, -1, now);
        last_names::note(self.fs.fs, entry.ino, parent, name);
        self.drop_link(entry.ino, open, highest, now)
    }
}
