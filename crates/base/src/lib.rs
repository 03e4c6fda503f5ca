//! Units, ids, buffers, tunables, statistics and time: what every part shares. No I/O.

pub mod beat;
pub mod buf;
mod cipher;
pub mod errno;
pub mod events;
pub mod fence;
pub mod ids;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
pub mod name;
pub mod presence;
pub mod proc_stat;
pub mod start;
pub mod stats;
pub mod tunables;
pub mod units;
pub mod when;

pub use buf::{AlignedBuf, BufPool};
pub use cipher::CipherList;
pub use ids::*;
pub use units::ByteSize;
