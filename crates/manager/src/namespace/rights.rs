//! What who acts may change: by owner, group and mode, as the kernel of an honest machine would see it.
//!
//! Invariant: what is made belongs to who made it, whatever the change says, and what is not its own is changed only as modes let it.
//! It is looked at in the change's own transaction. Root, and whoever's machine is not squashed, may do everything here: that
//! machine's kernel has checked, and what it said of its users could not be proved.

use base::InodeNo;
use libc::{EACCES, EPERM};
use wire::{
    credentials::{Owned, READ, SEARCH, WRITE, Who},
    mgr::{Change, FileKind, MgrRequest, POOL_XATTR},
};

use super::{Editor, FsContext, Op, dir, errno, inode};
use crate::{keys::Inode, store::Read};

const S_ISVTX: u16 = 0o1000;
const S_ISGID: u16 = 0o2000;
const CAPABILITIES: &[u8] = b"security.capability";

fn owned(inode: &Inode) -> Owned {
    Owned { uid: inode.uid, gid: inode.gid, mode: inode.mode }
}

fn granted(may: bool, refusal: i32) -> Op<()> {
    if may { Ok(()) } else { errno(refusal) }
}

/// Whether who asks may see the answer to a question.
pub fn may_ask(from: &dyn Read, fs: &FsContext, who: &Who, asked: &MgrRequest) -> Op<()> {
    if *who == Who::Root {
        return Ok(());
    }
    let of = |ino: &InodeNo| -> Op<Owned> { Ok(owned(&inode::get(from, fs.fs, *ino)?)) };
    let may = match asked {
        MgrRequest::Lookup { parent, .. } => who.may(of(parent)?, SEARCH),
        MgrRequest::ReadDir { ino, .. } => who.may(of(ino)?, READ),
        MgrRequest::ReadInline { ino } => who.may_read(of(ino)?),
        MgrRequest::GetXattr { ino, name } if name.starts_with(b"user.") => who.may(of(ino)?, READ),
        MgrRequest::GetXattr { name, .. } if name.starts_with(b"trusted.") => return errno(EPERM),
        _ => true,
    };
    granted(may, EACCES)
}

/// Whether who asks may write or read the content of a file.
pub fn may_use(inode: &Inode, who: &Who, write: bool) -> bool {
    if write { who.may_write(owned(inode)) } else { who.may_read(owned(inode)) }
}

impl Editor<'_, '_> {
    /// Refuses what who acts may not do; makes what he makes his own.
    pub(super) fn check_rights(&self, change: &mut Change) -> Op<()> {
        let who = self.actor.who;
        if *who == Who::Root {
            return Ok(());
        }
        match change {
            Change::Create { parent, name, kind, mode, uid, gid, existing_ok, .. } => {
                let dir = self.get(*parent)?;
                if *existing_ok && self.named(*parent, name)?.is_some() {
                    return granted(who.may(owned(&dir), SEARCH), EACCES);
                }
                self.may_make(&dir, *kind, mode, (uid, gid))
            }
            Change::CreateUnnamed { parent, mode, uid, gid, .. } => {
                self.may_make(&self.get(*parent)?, FileKind::File, mode, (uid, gid))
            }
            // What a squashed machine's programs may do is asked before it is done.
            Change::CreateAs { .. } | Change::Numbers { .. } => errno(EPERM),
            Change::Link { parent, .. } | Change::LinkUnnamed { parent, .. } => self.may_name(*parent, &[]),
            Change::Unlink { parent, name, .. } => self.may_name(*parent, &[name]),
            Change::Rename { parent, name, new_parent, new_name, .. } => {
                self.may_name(*parent, &[name])?;
                self.may_name(*new_parent, &[new_name])?;
                if parent == new_parent {
                    return Ok(());
                }
                // Its ".." leads elsewhere.
                for moved in [self.named(*parent, name)?, self.named(*new_parent, new_name)?].iter().flatten()
                {
                    if moved.kind == FileKind::Directory {
                        granted(who.may(owned(moved), WRITE), EACCES)?;
                    }
                }
                Ok(())
            }
            Change::SetAttr { ino, mode, uid, gid, size, atime, mtime, .. } => {
                let inode = self.get(*ino)?;
                let owner = who.is_user(inode.uid);
                granted(owner || mode.is_none() && uid.is_none() && gid.is_none(), EPERM)?;
                self.may_give(&inode, *uid, *gid)?;
                // A directory keeps the bit that it has: others set it for all who work there.
                let kept = inode.kind == FileKind::Directory && inode.mode & S_ISGID != 0;
                if let Some(mode) = mode.as_mut().filter(|_| !kept && !who.is_in(gid.unwrap_or(inode.gid))) {
                    *mode &= !S_ISGID;
                }
                granted(size.is_none() || may_use(&inode, who, true), EACCES)?;
                let times = atime.is_some() || mtime.is_some();
                granted(!times || owner || who.may(owned(&inode), WRITE), EACCES)
            }
            // Of a file in use, whose attributes were set before by changes that said who did it.
            Change::CommitWrite { ino, size, allocated, inline, mode, uid, gid, .. } => {
                let inode = self.get(*ino)?;
                let content = *size != inode.size || inline.is_some() || !allocated.is_empty();
                granted(!content || may_use(&inode, who, true), EACCES)?;
                let owner = who.is_user(inode.uid);
                granted(owner || who.may(owned(&inode), WRITE), EACCES)?;
                self.may_give(&inode, *uid, *gid)?;
                granted(owner || mode.is_none_or(|mode| mode == inode.mode), EPERM)?;
                let kept = *mode == Some(inode.mode);
                if let Some(mode) = mode.as_mut().filter(|_| !kept && !who.is_in(inode.gid)) {
                    *mode &= !S_ISGID;
                }
                Ok(())
            }
            Change::Deallocate { ino, .. } => granted(may_use(&self.get(*ino)?, who, true), EACCES),
            // Who writes a program takes what it may do: its capabilities are an attribute.
            Change::RemoveXattr { ino, name, .. } if name == CAPABILITIES => {
                granted(may_use(&self.get(*ino)?, who, true), EACCES)
            }
            Change::SetXattr { ino, name, .. } | Change::RemoveXattr { ino, name, .. } => {
                granted(name.starts_with(b"user.") || name == POOL_XATTR, EPERM)?;
                granted(who.may(owned(&self.get(*ino)?), WRITE), EACCES)
            }
            // An open inode without a name is the session's own.
            Change::Forget { .. } => Ok(()),
        }
    }

    /// Whether it may be made in a directory; it belongs to who makes it.
    fn may_make(
        &self,
        dir: &Inode,
        kind: FileKind,
        mode: &mut u16,
        (uid, gid): (&mut u32, &mut u32),
    ) -> Op<()> {
        let who = self.actor.who;
        granted(who.may(owned(dir), WRITE | SEARCH), EACCES)?;
        let Who::Program(by) = who else { return errno(EPERM) };
        granted(!matches!(kind, FileKind::CharDevice | FileKind::BlockDevice), EPERM)?;
        (*uid, *gid) = (by.uid, by.gid);
        if kind != FileKind::Directory && dir.mode & S_ISGID != 0 && !who.is_in(dir.gid) {
            *mode &= !S_ISGID;
        }
        Ok(())
    }

    /// Only root gives a file away; its owner may give it to a group of his.
    fn may_give(&self, inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> Op<()> {
        let who = self.actor.who;
        granted(uid.is_none_or(|uid| uid == inode.uid), EPERM)?;
        let to_group = |gid| gid == inode.gid || who.is_user(inode.uid) && who.is_in(gid);
        granted(gid.is_none_or(to_group), EPERM)
    }

    fn named(&self, parent: InodeNo, name: &[u8]) -> Op<Option<Inode>> {
        match dir::find(self.txn, &self.fs, parent, name)? {
            Some((_, entry)) => self.get(entry.ino).map(Some),
            None => Ok(None),
        }
    }

    /// Whether names may be made in a directory, and these be taken away: in a sticky one by the owner of either.
    fn may_name(&self, parent: InodeNo, lost: &[&Vec<u8>]) -> Op<()> {
        let (dir, who) = (self.get(parent)?, self.actor.who);
        granted(who.may(owned(&dir), WRITE | SEARCH), EACCES)?;
        if dir.mode & S_ISVTX == 0 || who.is_user(dir.uid) {
            return Ok(());
        }
        for name in lost {
            if let Some(inode) = self.named(parent, name)? {
                granted(who.is_user(inode.uid), EPERM)?;
            }
        }
        Ok(())
    }
}
