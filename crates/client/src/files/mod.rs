//! Inodes and open files in memory, and what of them the manager is told.

mod attributes;
mod commit;
pub(crate) mod handle;
pub(crate) mod inode;
mod io;
mod open;
pub(crate) mod privileges;
pub(crate) mod set_attrs;
pub(crate) mod table;
pub(crate) mod touch;
pub(crate) mod unsettled;
mod xattr;
