//! Tokens: the rights of client sessions to cache, as manager and clients name them.
//!
//! The manager's side is `manager::tokens`, the client's `client::tokens`; docs/tokens.md has the protocol.

use base::{Grant, InodeNo};
use serde::{Deserialize, Serialize};

pub use crate::blocks::{Blocks, Run, Span, Use};

/// Most tokens in one message, their runs of blocks counted as tokens.
pub const TOKENS_MAX: usize = 4096;
/// Most runs of blocks in one token: whose token would need more gets the whole file.
pub const RUNS_MAX: usize = 1024;

/// What a session may do with an inode. Each includes those before it, but for `Part`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum TokenMode {
    /// Nothing.
    #[default]
    None,
    /// Nothing but to have it open: an unlinked inode lives on. Excludes nobody.
    Open,
    /// To use some of its blocks, while others use the rest. The size stays as it is; times move with writes,
    /// and who wants to know them asks all who hold this.
    Part,
    /// To keep its bytes and attributes. Excludes writers.
    Read,
    /// To change them. Excludes all others.
    Write,
}

impl TokenMode {
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            TokenMode::None => "none",
            TokenMode::Open => "open",
            TokenMode::Part => "part",
            TokenMode::Read => "read",
            TokenMode::Write => "write",
        }
    }
}

/// What somebody wants of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Need {
    /// Its size, and that it stays so.
    Size,
    /// All its attributes as they are at some time after the question.
    Attr,
    /// To use some blocks; for writing only within the file's size.
    Blocks(Span, Use),
    /// All of it, unchanging.
    Read,
    /// To change anything.
    Write,
    /// Of what is no file: its attributes, and of a directory its names, unchanging. Gives `Read`; changes are the
    /// manager's, which recalls it from all but who changes.
    Names,
    /// Of a directory: to make, move and remove names in it ahead of the manager. Gives `Write` where nobody else keeps
    /// anything of it or waits for it, and otherwise what `Names` gives: asking takes no more from anybody than that does.
    Make,
}

impl Need {
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            Need::Size => "size",
            Need::Attr => "attributes",
            Need::Blocks(_, Use::Write) => "write blocks",
            Need::Blocks(..) => "read blocks",
            Need::Read => "read",
            Need::Write => "write",
            Need::Names => "names",
            Need::Make => "make names",
        }
    }
    /// Whether one of the two has to wait for the other.
    pub fn excludes(self, other: Need) -> bool {
        match (self, other) {
            (Need::Write, _) | (_, Need::Write) => true,
            (Need::Blocks(a, a_use), Need::Blocks(b, b_use)) => a.meets(b) && a_use.max(b_use) == Use::Write,
            (Need::Read, Need::Blocks(_, what)) | (Need::Blocks(_, what), Need::Read) => what == Use::Write,
            _ => false,
        }
    }
}

/// A token of one session. The serial is the grant's number: of two messages about the same inode the one
/// with the higher serial is about the later grant; versions written under a write token carry it. It is
/// always told in full: who hears of it forgets what was told with a lower serial.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Token {
    /// The inode.
    pub ino: InodeNo,
    /// What for.
    pub mode: TokenMode,
    /// Number of the grant.
    pub serial: Grant,
    /// With `Part`: which blocks, at most [`RUNS_MAX`] runs. Otherwise empty.
    pub blocks: Blocks,
}

impl Token {
    /// Of all blocks, or of none.
    pub fn new(ino: InodeNo, mode: TokenMode, serial: Grant) -> Token {
        Token { ino, mode, serial, blocks: Blocks::default() }
    }
    /// The blocks that may be used, whatever the mode.
    pub fn usable(&self) -> Blocks {
        match self.mode {
            TokenMode::None | TokenMode::Open => Blocks::default(),
            TokenMode::Part => self.blocks.clone(),
            TokenMode::Read => Blocks::of(Span::ALL, Use::Read),
            TokenMode::Write => Blocks::of(Span::ALL, Use::Write),
        }
    }
    /// What this and `other` both allow, under this number.
    pub fn meet(&self, other: &Token) -> Token {
        let mode = self.mode.min(other.mode);
        let blocks = match mode {
            TokenMode::Part => self.usable().meet(&other.usable()),
            _ => Blocks::default(),
        };
        Token { mode, blocks, ..*self }
    }
    /// Whether it allows nothing that `other` does not.
    pub fn is_within(&self, other: &Token) -> bool {
        let met = self.meet(other);
        met.mode == self.mode && met.blocks == self.blocks
    }
    /// Whether it is enough.
    pub fn allows(&self, need: Need) -> bool {
        match need {
            Need::Size => self.mode >= TokenMode::Part,
            Need::Attr | Need::Read | Need::Names => self.mode >= TokenMode::Read,
            Need::Blocks(span, what) => match self.mode {
                TokenMode::Part => self.blocks.covers(span, what),
                TokenMode::Read => what <= Use::Read,
                mode => mode == TokenMode::Write,
            },
            Need::Write | Need::Make => self.mode == TokenMode::Write,
        }
    }
    /// Whether it keeps the rules that a message must keep.
    pub fn is_valid(&self) -> bool {
        let runs = self.blocks.runs().len();
        self.blocks.is_valid() && runs <= RUNS_MAX && (runs == 0 || self.mode == TokenMode::Part)
    }
}

/// What the manager wants of a session, or gives it, unasked.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Recall {
    /// The token of this serial, and those before it, is to be given up down to what this names. Repeated until
    /// released.
    Token(Token),
    /// Others come: no right is held any more but by tokens that are claimed now. Repeated until claimed.
    Share,
    /// Nobody else is here: every token of the file system is held, writes are under this grant.
    Whole(Grant),
    /// What sessions that ended uncleanly left is to be resolved; `ResolvePassDone` with this number.
    Resolve(u64),
    /// Every lock held is to be claimed under this number: the manager has begun anew. Repeated until claimed.
    Locks(u64),
    /// Somebody asks for the times of an inode held in part: they are to be committed; then `Published` with this
    /// number. Repeated until then.
    Publish(InodeNo, Grant),
}
