//! The client's side of one inode's token, as a plain state machine (docs/tokens.md).
//!
//! Invariants: nobody is let in while the token is being given up or resolution is under way, but those the
//! giving up itself depends on; a grant that was recalled before it came is never used; what is said to be
//! left after a recall is all that is left.

use base::{Grant, InodeNo};
use wire::token::{Token, TokenMode};

/// What becomes of somebody who wants to use the inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enter {
    /// May; [`Cell::leave`] ends it.
    In,
    /// Looks again when something changes.
    Wait,
    /// Must ask the manager: ends with [`Cell::granted`] or [`Cell::refused`].
    Ask,
}

/// What a recall leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalled {
    /// This is answered at once.
    Answer(Token),
    /// It is being given up already; the answer follows.
    UnderWay,
    /// Users end, kernel and pages are cleaned, then [`Cell::gave`].
    Begin,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Giving {
    to: TokenMode,
    serial: Grant,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    mode: TokenMode,
    serial: Grant,
    /// Grants up to this one were recalled: they mean nothing when they come.
    void: Grant,
    giving: Option<Giving>,
    resolving: bool,
    asking: bool,
    users: u32,
}

impl Cell {
    /// With a token of the whole file system's.
    pub fn whole(grant: Grant) -> Cell {
        Cell { mode: TokenMode::Write, serial: grant, ..Cell::default() }
    }
    /// What is held; true also while it is being given up.
    pub fn mode(&self) -> TokenMode {
        self.mode
    }
    /// The grant of what is written.
    pub fn serial(&self) -> Grant {
        self.serial
    }
    /// How many use it now.
    pub fn users(&self) -> u32 {
        self.users
    }
    /// Whether it is being given up.
    pub fn is_giving(&self) -> bool {
        self.giving.is_some()
    }
    /// What it is given up to.
    pub fn giving_to(&self) -> Option<TokenMode> {
        self.giving.map(|giving| giving.to)
    }
    /// As the manager knows it, if anything is held.
    pub fn token(&self, ino: InodeNo) -> Option<Token> {
        (self.mode > TokenMode::None).then_some(Token { ino, mode: self.mode, serial: self.serial })
    }

    /// Lets somebody in if that needs neither waiting nor asking.
    pub fn enter_now(&mut self, need: TokenMode) -> bool {
        let may = self.giving.is_none() && !self.resolving && self.mode >= need;
        self.users += u32::from(may);
        may
    }

    /// Somebody wants to use the inode.
    pub fn enter(&mut self, need: TokenMode) -> Enter {
        if self.enter_now(need) {
            Enter::In
        } else if self.giving.is_some() || self.resolving || self.asking {
            Enter::Wait
        } else {
            self.asking = true;
            Enter::Ask
        }
    }

    /// Lets somebody in whom the giving up waits for (through pages that the kernel has locked).
    pub fn enter_late(&mut self, need: TokenMode) -> bool {
        let may = self.giving.is_some() && !self.resolving && self.mode >= need;
        self.users += u32::from(may);
        may
    }

    /// A use ends.
    pub fn leave(&mut self) {
        self.users = self.users.saturating_sub(1);
    }

    /// The manager did not grant.
    pub fn refused(&mut self) {
        self.asking = false;
    }

    /// A grant came; the asker is in. False if it was recalled meanwhile: it is as if it had not come. Not
    /// to be called while the token is being given up.
    pub fn granted(&mut self, token: Token, resolve: bool) -> bool {
        self.asking = false;
        if token.serial <= self.void || token.serial <= self.serial || self.giving.is_some() {
            return false;
        }
        (self.mode, self.serial, self.resolving) = (token.mode, token.serial, resolve);
        self.users += 1;
        true
    }

    /// What an unclean end left of the inode is resolved.
    pub fn resolved(&mut self) {
        self.resolving = false;
    }

    /// All tokens of the file system are held (again).
    pub fn take_whole(&mut self, grant: Grant) {
        if self.giving.is_none() && self.mode < TokenMode::Write {
            (self.mode, self.serial) = (TokenMode::Write, self.serial.max(grant));
        }
    }

    /// The manager wants the token back down to `wanted.mode`, or at most `keep`. `open`: there are handles.
    pub fn recalled(&mut self, wanted: Token, keep: TokenMode, open: bool) -> Recalled {
        self.void = self.void.max(wanted.serial);
        if let Some(giving) = &mut self.giving {
            giving.serial = giving.serial.max(wanted.serial);
            return Recalled::UnderWay;
        }
        let to = wanted.mode.min(keep);
        if self.mode <= to {
            self.serial = self.serial.max(wanted.serial);
            self.mode = left(self.mode.max(if open { TokenMode::Open } else { TokenMode::None }), open);
            return Recalled::Answer(Token { ino: wanted.ino, mode: self.mode, serial: self.serial });
        }
        self.giving = Some(Giving { to, serial: wanted.serial.max(self.serial) });
        Recalled::Begin
    }

    /// Everything is clean: it is given up.
    pub fn gave(&mut self, ino: InodeNo, open: bool) -> Token {
        if let Some(giving) = self.giving.take() {
            self.serial = self.serial.max(giving.serial);
            self.mode = left(self.mode.min(giving.to), open);
        }
        self.resolving = false;
        Token { ino, mode: self.mode, serial: self.serial }
    }

    /// The last handle is closed; what to tell the manager, if anything.
    pub fn closed(&mut self, ino: InodeNo) -> Option<Token> {
        let idle = self.mode == TokenMode::Open && self.giving.is_none();
        idle.then(|| self.forget(ino))
    }

    /// Everything goes, without anything to clean.
    pub fn forget(&mut self, ino: InodeNo) -> Token {
        self.mode = TokenMode::None;
        Token { ino, mode: TokenMode::None, serial: self.serial }
    }
}

/// Below `Read` only open handles leave anything.
fn left(mode: TokenMode, open: bool) -> TokenMode {
    match (mode, open) {
        (TokenMode::Open | TokenMode::None, true) => TokenMode::Open,
        (TokenMode::Open, false) => TokenMode::None,
        (mode, _) => mode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeNo = InodeNo(7);

    fn token(mode: TokenMode, serial: u64) -> Token {
        Token { ino: INO, mode, serial: Grant(serial) }
    }

    #[test]
    fn a_grant_that_comes_after_its_recall_is_not_used() {
        let mut cell = Cell::default();
        assert_eq!(cell.enter(TokenMode::Write), Enter::Ask);
        let answer = cell.recalled(token(TokenMode::Open, 5), TokenMode::Write, false);
        assert_eq!(answer, Recalled::Answer(token(TokenMode::None, 5)));
        assert!(!cell.granted(token(TokenMode::Write, 5), false));
        assert_eq!((cell.mode(), cell.users()), (TokenMode::None, 0));
        assert_eq!(cell.enter(TokenMode::Read), Enter::Ask, "it asks anew");
        assert!(cell.granted(token(TokenMode::Read, 6), false));
    }

    #[test]
    fn while_it_is_given_up_only_those_enter_it_waits_for() {
        let mut cell = Cell::whole(Grant(3));
        assert_eq!(cell.enter(TokenMode::Write), Enter::In);
        let recall = cell.recalled(token(TokenMode::Open, 3), TokenMode::Write, true);
        assert_eq!(recall, Recalled::Begin);
        assert_eq!(cell.enter(TokenMode::Read), Enter::Wait);
        assert!(cell.enter_late(TokenMode::Read));
        cell.leave();
        cell.leave();
        assert_eq!(cell.users(), 0);
        assert_eq!(cell.gave(INO, true), token(TokenMode::Open, 3));
        assert!(!cell.enter_late(TokenMode::Read));
        assert_eq!(cell.closed(INO), Some(token(TokenMode::None, 3)));
    }

    #[test]
    fn a_recall_of_a_newer_grant_ends_the_older_one_too() {
        let mut cell = Cell::default();
        cell.enter(TokenMode::Read);
        cell.granted(token(TokenMode::Read, 5), false);
        cell.leave();
        assert_eq!(cell.enter(TokenMode::Write), Enter::Ask);
        // Grant 9 is on its way, its recall came first.
        let recall = cell.recalled(token(TokenMode::Open, 9), TokenMode::Write, false);
        assert_eq!(recall, Recalled::Begin);
        assert_eq!(cell.gave(INO, false), token(TokenMode::None, 9));
        assert!(!cell.granted(token(TokenMode::Write, 9), false));
    }

    #[test]
    fn nobody_enters_before_resolution_is_over() {
        let mut cell = Cell::default();
        cell.enter(TokenMode::Read);
        assert!(cell.granted(token(TokenMode::Write, 4), true));
        assert_eq!(cell.enter(TokenMode::Read), Enter::Wait);
        cell.resolved();
        assert_eq!(cell.enter(TokenMode::Read), Enter::In);
    }
}
