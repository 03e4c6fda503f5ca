//! uperf's profiles: read, run by netperf's stream and rr, written.
//!
//! A [`Profile`] is what the file says: groups of strands, transactions, flowops with their options, variables replaced.
//! [`Profile::test`] says which test of our own engine that is, or why there is none; [`Profile::of`] is the way back.
//! Ours differs: a strand is a connection; a group of several peers is one test over all of them; a message of a stream
//! counts once its receiver has it; `count` is how many messages are under way on a connection.

mod profile;
mod read;
mod test;
mod write;
mod xml;

pub use self::{
    profile::{Flowop, Group, Profile, Transaction, Until, UperfError},
    test::Test,
};

/// Bytes of a file that are read at most.
pub const FILE_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
