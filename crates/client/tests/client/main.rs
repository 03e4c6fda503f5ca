//! The client over parts in memory: one program, since each would hold all that is generic of the client once more.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../support/mod.rs"]
mod support;

mod ahead;
mod allocation;
mod cuts;
mod durable;
mod given_up;
mod giving_pages;
mod habits;
mod kernel_attr;
mod late_answers;
mod locking;
mod model;
mod mount;
mod name_pages;
mod recalled;
mod resolution;
mod session_end;
mod short_writes;
mod stored;
mod streams;
mod unanswered;
mod unnamed;
