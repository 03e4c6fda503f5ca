//! What a manager and the machine that keeps a copy of its store say to each other, and the manager to servers about that copy. Sent as
//! calls of the manager ([`net::Service::Callback`]), encoded as all messages.
//!
//! Each life of a manager draws a number, and says it by [`Ask::Look`] or [`Ask::Make`]: from then on the keeper refuses what another
//! life sends, however late it comes.

use serde::{Deserialize, Serialize};

use super::super::Changes;

/// A question, or an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Can a copy be made?
    Ready,
    /// Which copy that counts is there? It takes what this life sends.
    Look { life: u64 },
    /// A new copy: of the state after a commit of a journal.
    Make { life: u64, journal: u64, last: u64 },
    /// What is in it, by rising key; of the state after which commit, as one that comes late must not get into another copy.
    Records { life: u64, last: u64, records: Vec<(Vec<u8>, Vec<u8>)> },
    /// That was all.
    Made { life: u64 },
    /// A part of the commit of this number, which follows.
    Part { life: u64, number: u64, changes: Changes },
    /// A commit, with the parts before. Saying it again is harmless.
    Commit { life: u64, number: u64, changes: Changes },
    /// The copy has all that was acknowledged; it is called so.
    Count { life: u64, id: u64 },
    /// Is it there, and not promoted?
    Beat { life: u64 },
    /// That copy does not count any more.
    Forget { id: u64 },
    /// To a server: is that copy promoted, or does it not count any more? What it hears first stands.
    Vote { id: u64, promoted: bool },
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is so, durably.
    Done,
    /// A copy that counts: its number, its journal, its last commit, and that one in full where it is known.
    Held { id: u64, journal: u64, last: u64, tail: Option<(u64, Changes)> },
    /// What stands at this server.
    Stands { promoted: bool },
    /// Not done, and why.
    Refused { why: String },
}
