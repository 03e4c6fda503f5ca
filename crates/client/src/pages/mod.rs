//! Bytes: blocks in memory, the page pool, and the ways between them, the pdisks and who reads and writes.

mod allocate;
pub(crate) mod block;
pub(crate) mod extents;
pub(crate) mod load;
pub(crate) mod pool;
pub(crate) mod prefetch;
mod read;
pub(crate) mod resize;
mod store;
pub(crate) mod streams;
pub(crate) mod usage;
mod write;
