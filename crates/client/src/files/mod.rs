//! Inodes and open files in memory, and what of them the manager is told.

mod commit;
pub(crate) mod handle;
pub(crate) mod inode;
pub(crate) mod privileges;
pub(crate) mod table;
