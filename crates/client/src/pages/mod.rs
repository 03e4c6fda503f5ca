//! Bytes: blocks in memory, the page pool, and the ways between them, the pdisks and who reads and writes.

mod allocate;
pub(crate) mod block;
mod durable;
pub(crate) mod extents;
pub(crate) mod gone;
pub(crate) mod load;
pub(crate) mod load_meter;
pub(crate) mod loading;
pub(crate) mod piece;
pub(crate) mod pool;
mod prefetch;
pub(crate) mod queues;
mod read;
mod reserve;
pub(crate) mod resize;
pub(crate) mod room;
mod store;
pub(crate) mod streams;
pub(crate) mod usage;
mod write;
