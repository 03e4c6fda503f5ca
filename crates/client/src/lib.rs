//! Page pool, write-behind, prefetch, and POSIX calls over the network.
#![forbid(unsafe_code)]

mod block;
mod config;
mod error;
mod extents;
mod parts;
mod pool;
pub use config::Tunables;
pub use error::*;
pub use parts::*;
pub use pool::PoolUse;
