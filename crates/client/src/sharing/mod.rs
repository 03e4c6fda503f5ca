//! Sharing a file system with other sessions: the tokens held here, how they are got and given back.

pub(crate) mod hold;
pub mod tokens;
