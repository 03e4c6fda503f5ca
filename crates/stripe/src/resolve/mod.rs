//! What becomes of the writes that a session left half done: decided in [`decide`] for one stripe, carried out for an inode or a
//! file system.

mod decisions;
mod fs;
mod stripe;

pub use decisions::{Decision, Member, Moved, Undecided, decide, decide_moved};
pub use fs::{ResolveProgress, resolve_fs, resolve_inode, unresolved_inodes};
pub use stripe::ResolveReport;
