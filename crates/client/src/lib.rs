//! Page pool, write-behind, prefetch, and POSIX calls over the network.
//!
//! [`Client`] is what FUSE and other users call. Underneath, from the application to the pdisks:
//! `write` and `read` work on blocks in memory (`block`, `inode`, `pool`), `load` brings bytes in,
//! `store` writes complete versions of blocks, `commit` makes them known to the manager, `background`
//! decides when. [`Manager`] and [`Blocks`] are what it stands on.
#![forbid(unsafe_code)]

mod allocate;
mod background;
mod block;
pub mod blocking;
mod calls;
mod changes;
mod client;
mod commit;
mod config;
mod core;
mod directory;
mod error;
mod extents;
mod handle;
mod inode;
mod load;
mod locks;
mod mount;
mod names;
mod parts;
mod pool;
mod prefetch;
mod privileges;
mod read;
mod resize;
mod share;
mod store;
mod streams;
mod table;
pub mod tokens;
mod usage;
mod waits;
mod write;

pub use client::{Client, Listing, StatFs};
pub use config::{MemoryBound, Tunables};
pub use core::SessionInfo;
pub use error::{BlockError, CallError, Errno, MountError};
pub use handle::{Handle, OpenFlags, ReadData};
pub use mount::{ClientConfig, resolve_unmounted};
pub use parts::{Blocks, BoxFuture, Geometry, Manager};
pub use privileges::Privileges;
pub use resize::Fallocate;
pub use share::KernelCache;
pub use streams::Access;
pub use stripe::{BlockMeta, BlockRead, WriteStripe};
pub use table::SetAttrs;
pub use usage::PoolUse;
pub use waits::Wait;
