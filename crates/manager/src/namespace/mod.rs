//! The namespace: inodes, names, attributes, allocation, as functions over a transaction.
//!
//! No I/O of its own, no clock, no locks: each function reads through [`Read`] and writes into the
//! running operation of a [`Txn`]. A function that fails may have written; the caller discards the
//! operation then, so nothing of it remains. Errors are POSIX numbers ([`Fault::Errno`]); a damaged
//! record is EIO for the operation that needs it and for nothing else.

mod dir;
mod extents;
mod hash;
mod inode;
#[cfg(test)]
mod model;
mod names;
mod query;
mod removed;
mod rename;
mod session;
#[cfg(test)]
mod tests;
mod xattr;

use base::{FsId, Grant, InodeNo, SessionId, Version};
use libc::{EINVAL, EIO};
use thiserror::Error;
use wire::mgr::{Change, MgrError, MgrReply};

pub use self::{
    dir::is_empty,
    hash::DirHash,
    inode::new_root,
    query::query,
    removed::empty_removed,
    session::{collect_orphans, drop_orphan, end_session, mutate},
};
use crate::{
    keys::ReadError,
    store::{BadRecord, StoreError, Txn},
};

/// Most links of an inode.
pub const NLINK_MAX: u32 = i32::MAX as u32;

/// What a change needs to know beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct FsContext {
    /// The file system.
    pub fs: FsId,
    /// Hash of directory entries.
    pub hash: DirHash,
}

/// Who changes something.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// The session.
    pub session: SessionId,
    /// The grant it began with.
    pub grant: Grant,
    /// Who has inodes open that lose a name by the change.
    pub openers: &'a [(InodeNo, SessionId)],
}

impl Actor<'_> {
    /// Lifts a `highest` that came with a change above all grants before the session's.
    fn highest(self, highest: Version) -> Version {
        highest.max(crate::keys::floor_version(self.grant))
    }
}

/// Why an operation is not done.
#[derive(Debug, Clone, Error)]
pub enum Fault {
    /// As POSIX names it.
    #[error("{}", base::errno::text(*.0))]
    Errno(i32),
    /// A damaged record: EIO.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// The store failed: the manager stops. Only a part of it is damaged: EIO.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Fault {
        match error {
            ReadError::Store(error) => Fault::Store(error),
            ReadError::Record(error) => Fault::Record(error),
        }
    }
}

impl Fault {
    /// As the client sees it. Damaged records are logged here, once.
    pub fn into_reply(self) -> Result<MgrError, StoreError> {
        match self {
            Fault::Errno(errno) => Ok(MgrError::Errno(errno)),
            Fault::Record(record) => {
                tracing::error!(%record, "damaged record");
                Ok(MgrError::Errno(EIO))
            }
            Fault::Store(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "what is needed cannot be read");
                Ok(MgrError::Errno(EIO))
            }
            Fault::Store(error) => Err(error),
        }
    }
}

/// Outcome of an operation.
pub type Op<T> = Result<T, Fault>;

fn errno<T>(number: i32) -> Op<T> {
    Err(Fault::Errno(number))
}

/// One file system, in one transaction, changed by one actor.
struct Editor<'t, 'b> {
    txn: &'t mut Txn<'b>,
    fs: FsContext,
    actor: Actor<'t>,
}

/// Applies a change in the transaction's running operation.
pub fn apply(txn: &mut Txn<'_>, fs: FsContext, actor: Actor<'_>, change: Change) -> Op<MgrReply> {
    let mut ns = Editor { txn, fs, actor };
    match change {
        Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, existing_ok } => {
            let new = names::NewInode { kind, mode, uid, gid, rdev, target, now };
            ns.create(parent, &name, new, existing_ok)
        }
        Change::Link { ino, parent, name, now } => ns.link(ino, parent, &name, now),
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
