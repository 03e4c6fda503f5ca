//! The changes that clients ask for, each handed to the function that makes it.

use libc::EINVAL;
use wire::mgr::{Change, MgrReply};

use super::{Actor, Editor, FsContext, Op, errno, extents, inode, names, rename};
use crate::store::Txn;

/// Applies a change in the transaction's running operation.
pub fn apply(txn: &mut Txn<'_>, fs: FsContext, actor: Actor<'_>, mut change: Change) -> Op<MgrReply> {
    let mut ns = Editor { txn, fs, actor };
    ns.check_rights(&mut change)?;
    match change {
        Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, existing_ok } => {
            let new = names::NewInode { kind, mode, uid, gid, rdev, target, now };
            ns.create(parent, &name, new, existing_ok)
        }
        Change::CreateAs { ino, parent, name, kind, mode, uid, gid, rdev, target, now } => {
            let new = names::NewInode { kind, mode, uid, gid, rdev, target, now };
            ns.create_as(ino, parent, &name, new)
        }
        Change::Numbers { count } => ns.grant_numbers(count),
        Change::CreateUnnamed { parent, mode, uid, gid, now } => {
            ns.create_unnamed(parent, names::NewInode::file(mode, uid, gid, now))
        }
        Change::Link { ino, parent, name, now } => ns.link(ino, parent, &name, now, false),
        Change::LinkUnnamed { ino, parent, name, now } => ns.link(ino, parent, &name, now, true),
        Change::Unlink { parent, name, directory, open, highest, expect, now } => {
            ns.expect_names(&[(parent, &name, expect)])?;
            ns.unlink(parent, &name, directory, open, highest, now)
        }
        Change::Rename {
            parent,
            name,
            new_parent,
            new_name,
            no_replace,
            exchange,
            open,
            highest,
            expect,
            now,
        } => {
            let from = rename::Place { dir: parent, name: &name };
            let to = rename::Place { dir: new_parent, name: &new_name };
            ns.expect_names(&[
                (parent, &name, expect.map(|(from, _)| from)),
                (new_parent, &new_name, expect.map(|(_, to)| to)),
            ])?;
            match (no_replace, exchange) {
                (true, true) => errno(EINVAL),
                (false, true) => ns.exchange(from, to, now),
                (no_replace, false) => ns.rename(from, to, no_replace, open, highest, now),
            }
        }
        Change::SetAttr { ino, mode, uid, gid, size, atime, mtime, ctime, highest } => {
            let new = inode::NewAttr { mode, uid, gid, size, atime, mtime, ctime };
            ns.set_attr(ino, new, highest)
        }
        Change::CommitWrite { ino, size, allocated, inline, mtime, ctime, mode, uid, gid, atime, shared } => {
            let set = inode::NewAttr { mode, uid, gid, size: None, atime, mtime: Some(mtime), ctime };
            let written = extents::Written { size, allocated, inline, set, shared };
            ns.commit_write(ino, written)
        }
        Change::Deallocate { ino, blocks, highest, now } => ns.deallocate(ino, blocks, highest, now),
        Change::SetXattr { ino, name, value, create, replace, now } => {
            ns.set_xattr(ino, &name, &value, create, replace, now)
        }
        Change::RemoveXattr { ino, name, now } => ns.remove_xattr(ino, &name, now),
        Change::Forget { ino, highest } => ns.forget(ino, highest),
    }
}
