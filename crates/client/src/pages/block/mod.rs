//! One block of a file in memory: which of its 4 KiB units are here, and which are not yet stored.
//!
//! A block is a set of pieces that do not overlap ([`kept`]), which writes change ([`write`]), reads take bytes from
//! ([`read`]), versions are frozen from ([`flush`]), loads add to ([`load`]) and replacement drops ([`evict`]). A piece is
//! - `Own`: memory of ours being filled by writes; always dirty, of one strip, may have room behind its last unit;
//! - `Shared`: read-only bytes, as received from a pdisk or frozen for a write;
//! - `Zeros`: known to be zeros, without memory but the block's own.
//!
//! Invariants: a clean unit equals what the pdisks hold, also beyond the end of the file. A frozen
//! piece is never changed: writing to it makes a new one. Pure data: no I/O, no locks, no waiting.

mod evict;
mod flush;
mod kept;
mod load;
mod read;
mod write;

pub(crate) use flush::Frozen;
pub(crate) use kept::Block;

#[cfg(test)]
mod tests;
