//! Tokens: the rights of client sessions to cache, as manager and clients name them.
//!
//! The manager's side is `manager::tokens`, the client's `client::tokens`; docs/tokens.md has the protocol.

use base::{Grant, InodeNo};
use serde::{Deserialize, Serialize};

/// Most tokens in one message.
pub const TOKENS_MAX: usize = 4096;

/// What a session may do with an inode's data and attributes. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum TokenMode {
    /// Nothing.
    #[default]
    None,
    /// Nothing but to have it open: an unlinked inode lives on. Excludes nobody.
    Open,
    /// To keep its bytes and attributes. Excludes writers.
    Read,
    /// To change them. Excludes all others.
    Write,
}

impl TokenMode {
    /// What another session may keep when one wants `self`.
    pub fn leaves(self) -> TokenMode {
        match self {
            TokenMode::Write => TokenMode::Open,
            TokenMode::Read => TokenMode::Read,
            TokenMode::None | TokenMode::Open => TokenMode::Write,
        }
    }
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            TokenMode::None => "none",
            TokenMode::Open => "open",
            TokenMode::Read => "read",
            TokenMode::Write => "write",
        }
    }
}

/// A token of one session. The serial is the grant's number: of two messages about the same inode the one
/// with the higher serial is about the later grant; versions written under a write token carry it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Token {
    /// The inode.
    pub ino: InodeNo,
    /// What for.
    pub mode: TokenMode,
    /// Number of the grant.
    pub serial: Grant,
}

/// What the manager wants of a session, or gives it, unasked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Recall {
    /// The token of this serial, and those before it, is to be given up down to `mode`. Repeated until released.
    Token(Token),
    /// Others come: no right is held any more but by tokens that are claimed now. Repeated until claimed.
    Share,
    /// Nobody else is here: every token of the file system is held, writes are under this grant.
    Whole(Grant),
    /// What sessions that ended uncleanly left is to be resolved; `ResolvePassDone` with this number.
    Resolve(u64),
    /// Every lock held is to be claimed under this number: the manager has begun anew. Repeated until claimed.
    Locks(u64),
}
