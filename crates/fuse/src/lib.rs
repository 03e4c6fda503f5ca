//! The mount: FUSE requests to client calls.
//!
//! A transport ([`device`]: `/dev/fuse`; [`uring`]: FUSE over io_uring) reads requests; [`request`] decodes them; [`session`] starts
//! each on the thread that read it and lets it go on in the runtime if it must wait; [`names`] and
//! [`files`] turn it into [`calls`] to the file system below; [`reply`] lays the answer out and sees to
//! it that there is exactly one. What the kernel may cache stands in [`caching`]. A transport implements
//! [`reply::Sink`] and calls [`session::Session::handle`].
//!
//! Copies: file data written is read from the device straight into the buffer that the client is given
//! (small writes are copied once more); file data read goes from the client's pages to the device by
//! one writev. Over io_uring data written is handed on where the kernel put it; data read is copied once
//! more, into the entry. The kernel itself copies once each way.
//!
//! Limits that are the kernel's: sync(2) and syncfs(2) never reach a FUSE file system (only virtiofs
//! and block-device mounts), nor do they wait for pages that the kernel is writing; [`write_out`] does, and [`SYNC_ATTRIBUTE`] stands for them. An unmount from
//! outside does not wait for us: what is not yet written when a file is closed is made durable by fsync, by
//! [`Mount::unmount`], or within the client's own write-behind time. POSIX ACLs are refused with EOPNOTSUPP. Locks are asked for below
//! ([`locks`]), or are the kernel's if nothing below keeps them.

mod abi;
mod buffers;
mod caching;
pub mod calls;
mod checks;
mod client_calls;
mod device;
mod error;
mod files;
mod handshake;
mod inodes;
mod locks;
mod mount;
mod mountinfo;
mod mountpoint;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod names;
mod options;
mod page_writes;
mod reply;
mod request;
mod rights;
mod session;
mod statistics;
mod sync;
mod sys;
mod tune;
mod unread;
mod uring;
mod waiting;
mod write_out;

pub use caching::Caching;
pub use calls::SYNC_ATTRIBUTE;
pub use error::MountError;
pub use handshake::Agreed;
pub use mount::{Mount, MountEnd, MountStatus};
pub use mountinfo::{Holder, Mounted, has_connection, held_elsewhere, mounted_at, mounted_for, mounts};
pub use mountpoint::{KIND, detach, is_dead, unmount};
pub use options::{MountOptions, Transport};
pub use statistics::NAMES;
pub use waiting::InFlight;
