//! Inodes and open files in memory, and what of them the manager is told.

mod attr_token;
mod attributes;
mod commit;
mod forsake;
pub(crate) mod handle;
mod inline;
pub(crate) mod inode;
mod io;
mod open;
mod opens;
pub(crate) mod privileges;
pub(crate) mod set_attrs;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod touch;
mod unsent;
pub(crate) mod unsettled;
mod write_behind;
mod writes;
mod xattr;
