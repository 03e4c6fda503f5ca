//! Which question an answer is for.

/// The number of a question that is waited for. Who asks chooses it; the tables hand it back with the answer.
pub type Ticket = u64;
