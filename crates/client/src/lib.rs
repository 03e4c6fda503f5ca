//! Page pool, write-behind, prefetch, and POSIX calls over the network.
//!
//! [`Client`] is what FUSE and other users call; `core` names what all its calls share. Underneath:
//!
//! - `files`: inodes, open files, attributes; `commit` tells the manager what was stored;
//! - `names`: what is known of directories, changes of names;
//! - `sharing`: tokens, how they are got and given back;
//! - `pages`: `write` and `read` work on blocks in memory (`block`, `pool`), `load` brings bytes in, `store` writes
//!   complete versions of blocks; `background` decides when;
//! - `locks`: locks of programs.
//!
//! In each the types that keep state and its rules stand below `core` and know nothing of it; what asks the manager or
//! the pdisks stands above, as methods of `Core`. [`Manager`] and [`Blocks`] are what it all stands on.
#![forbid(unsafe_code)]

mod ahead;
mod background;
pub mod blocking;
mod caller;
mod calls;
mod changes;
mod client;
mod config;
mod core;
mod error;
mod files;
mod locks;
mod mount;
mod names;
mod pages;
mod parts;
mod permits;
mod session_end;
mod sharing;
mod waits;

pub use ahead::untold;
pub use caller::on_behalf;
pub use client::{Client, StatFs};
pub use config::{MemoryBound, Tunables};
pub use core::SessionInfo;
pub use error::{BlockError, CallError, Errno, MountError};
pub use files::{
    handle::{Handle, OpenFlags, ReadData, WriteFlags},
    privileges::Privileges,
    set_attrs::SetAttrs,
};
pub use mount::{ClientConfig, resolve_unmounted};
pub use names::lookup::Listing;
pub use pages::{resize::Fallocate, streams::Access, usage::PoolUse};
pub use parts::{Blocks, BoxFuture, Geometry, Manager};
pub use sharing::{kernel::KernelCache, tokens};
pub use stripe::{BlockMeta, BlockRead, WriteStripe};
pub use waits::Wait;
