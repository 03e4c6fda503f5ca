//! Redundancy codes, layout tables and placement: pure computation, no I/O, no clock, no floating point
//! in anything that is stored.
//!
//! - [`Code`]: the redundancy codes a pool can have, and their arithmetic.
//! - [`Codec`]: encodes a block into strips and gets lost strips back.
//! - [`LayoutTable`]: which pdisks hold the strips of which group; [`LayoutTable::group_of`] says which
//!   group a stripe belongs to. Building one is in `build`, changing one in `change`.
//! - [`sim`]: simulates whole arrays, for `ropewalk lab array`.
//!
//! The matrix of the codes, the hash and the table's construction are an on-disk contract, written down
//! in `docs/format-layout.md` and held by golden vectors in the tests.
#![forbid(unsafe_code)]

mod array;
mod arrays;
mod balance;
mod build;
mod change;
mod code;
mod codec;
mod domains;
mod error;
mod hash;
mod parallel;
mod pick;
pub mod sim;
mod table;

pub use balance::Evenness;
pub use build::default_groups;
pub use change::{Change, Move};
pub use code::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, BadBlockSize, Code, UnknownCode};
pub use codec::{Codec, DecodePlan, TooFewStrips};
pub use error::{BadTable, LayoutError};
pub use hash::group_of;
pub use table::{ARRAY_PDISKS_MAX, LayoutTable, PdiskDesc};
