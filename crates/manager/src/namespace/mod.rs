//! The namespace: inodes, names, attributes, allocation, as functions over a transaction.
//!
//! No I/O of its own, no clock, no locks: each function reads through [`Read`](crate::store::Read) and writes into the
//! running operation of a [`Txn`](crate::store::Txn). A function that fails may have written; the caller discards the
//! operation then, so nothing of it remains. Errors are POSIX numbers ([`Fault::Errno`]); a damaged
//! record is EIO for the operation that needs it and for nothing else.

mod change;
mod dir;
mod editor;
mod extents;
mod fault;
mod hash;
mod inode;
#[cfg(test)]
mod model;
mod names;
mod query;
mod removed;
mod rename;
mod rights;
mod session;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unnamed_tests;
mod xattr;

pub use self::{
    change::apply,
    dir::is_empty,
    editor::{Actor, FsContext, NLINK_MAX},
    fault::{Fault, Op},
    hash::DirHash,
    inode::new_root,
    query::query,
    removed::empty_removed,
    rights::{may_ask, may_use},
    session::{collect_orphans, drop_orphan, end_session, mutate},
};
use self::{editor::Editor, fault::errno};
