//! The rings of a node: `num_io_queues` queues, each with its thread (io_uring) or threads (psync).
//!
//! [`IoNode`] (`node`) takes requests (`request`) on files (`file`) and puts them into a queue's `inbox`, from where its
//! engine (`uring`, `psync`) takes them, each pdisk's up to its share (`lanes`), counted by `counts`. Reads fill `window`s of `buffers`; files in
//! memory are `mapped`. `fault` spoils requests on their way.

mod again;
mod buffers;
mod counts;
pub(crate) mod fault;
mod file;
mod inbox;
mod lanes;
mod mapped;
mod node;
mod numa;
mod psync;
mod request;
mod settings;
mod uring;
mod window;

pub(crate) use buffers::IoBuf;
pub use file::FileKind;
pub(crate) use file::{IoFile, Lane};
pub(crate) use node::Queues;
pub use node::{Engine, IoNode, QueueStats};
pub(crate) use request::{Errors, Op, Request};
pub(crate) use window::split;
