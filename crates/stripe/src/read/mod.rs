//! A block, or a strip of it, from the strips in reach: what to ask next is decided in [`plan`], without I/O.

mod attempt;
mod block;
mod latency;
mod plan;
mod rebuild;
mod strip;

pub use block::BlockRead;
pub(crate) use latency::Latency;
pub(crate) use strip::read_one;
