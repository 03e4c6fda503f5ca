//! The client's side of one inode's token, as a plain state machine (docs/tokens.md).
//!
//! Invariants: nobody is let in while the token is being given up or resolution is under way, but those the
//! giving up itself depends on; a grant that was recalled before it came is never used; what is said to be
//! left after a recall is all that is left.

use base::{Grant, InodeNo};
use wire::token::{Blocks, Need, Token, TokenMode, Use};

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recalled {
    /// This is answered at once.
    Answer(Token),
    /// It is being given up already; the answer follows.
    UnderWay,
    /// Users end, kernel and pages are cleaned, then [`Cell::gave`].
    Begin,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Giving {
    to: Token,
    serial: Grant,
    /// Nobody is let in to write any more.
    barred: bool,
    /// What goes of the blocks is clean, and may only be read; whether the manager is to hear of it.
    lowered: bool,
    untold: bool,
}

/// What a token that is being given up takes with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Losing {
    /// What stays.
    pub to: TokenMode,
    /// Blocks of which nothing may be kept.
    pub gone: Blocks,
    /// Blocks that may have been changed and may not be any more.
    pub written: Blocks,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    /// Its inode number means nothing here.
    held: Token,
    /// Grants up to this one were recalled: they mean nothing when they come.
    recalled_to: Grant,
    giving: Option<Giving>,
    resolving: bool,
    /// A question is out, on behalf of somebody who means to do this.
    asking: Option<Use>,
    /// A question is out on behalf of somebody whom the giving up waits for, perhaps beside another one.
    asking_late: bool,
    /// Attributes were given up while a grant was asked for: what comes with that may be older than they were.
    outdated: bool,
    /// It is of what was made here ahead of the manager, which has not said yet that it is held.
    provisional: bool,
    /// Nobody else has it open: `Write` was got when nobody could, and is held since. Whoever uses it elsewhere takes that away.
    exclusive: bool,
    users: u32,
    /// Those of them who may write.
    writers: u32,
}

impl Cell {
    /// With a token of the whole file system's.
    pub fn whole(grant: Grant) -> Cell {
        Cell { held: Token::new(InodeNo(0), TokenMode::Write, grant), exclusive: true, ..Cell::default() }
    }
    /// What is made here ahead of the manager, under a directory's token of this grant, is held from then on: nobody else can
    /// know it.
    pub fn made(&mut self, serial: Grant) {
        if self.held.mode == TokenMode::None {
            self.held = Token::new(InodeNo(0), TokenMode::Write, serial);
            (self.provisional, self.exclusive) = (true, true);
        }
    }
    /// Whether it surely is open nowhere else.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive && self.held.mode == TokenMode::Write && self.giving.is_none()
    }
    /// The manager knows what was made here, and that it is held under this token. What to tell it, if it is not any more.
    pub fn told(&mut self, token: &Token) -> Option<Token> {
        let provisional = std::mem::take(&mut self.provisional);
        if token.serial <= self.held.serial.max(self.recalled_to) {
            return None; // it was recalled meanwhile, and that is or will be answered
        }
        if let Some(giving) = &mut self.giving {
            giving.serial = giving.serial.max(token.serial);
            return None;
        }
        self.held.serial = token.serial;
        (!provisional).then(|| self.known(token.ino))
    }
    /// The manager knows what was made here, and does not say that it is held. Whether it is not to be relied on.
    pub fn told_without(&mut self) -> bool {
        std::mem::take(&mut self.provisional)
    }
    /// What is held; true also while it is being given up.
    pub fn mode(&self) -> TokenMode {
        self.held.mode
    }
    /// Whether what is held is enough; true also while it is being given up.
    pub fn allows(&self, need: Need) -> bool {
        self.held.allows(need)
    }
    /// Whether blocks may be used beyond those that `other` allows.
    pub fn has_more_than(&self, other: &Token) -> bool {
        !self.held.usable().without(&other.usable()).is_empty()
    }
    /// The grant of what is written.
    pub fn serial(&self) -> Grant {
        self.held.serial
    }
    /// How many use it now.
    pub fn users(&self) -> u32 {
        self.users
    }
    /// How many of them may write.
    pub fn writers(&self) -> u32 {
        self.writers
    }
    /// Whether it is being given up.
    pub fn is_giving(&self) -> bool {
        self.giving.is_some()
    }
    /// What goes when it is given up.
    pub fn losing(&self) -> Losing {
        let Some(giving) = &self.giving else { return Losing { to: self.held.mode, ..Losing::default() } };
        let kept = self.held.meet(&giving.to);
        let (before, after) = (self.held.usable(), kept.usable());
        let mut written = Blocks::default();
        for run in before.runs().iter().filter(|run| run.what == Use::Write) {
            written = written.with(run.span, Use::Write);
        }
        for run in after.runs().iter().filter(|run| run.what == Use::Write) {
            written = written.limited(run.span, Use::None);
        }
        Losing { to: kept.mode, gone: before.without(&after), written }
    }
    /// As the manager knows it.
    pub fn known(&self, ino: InodeNo) -> Token {
        Token { ino, ..self.held.clone() }
    }
    /// The same, if anything is held.
    pub fn token(&self, ino: InodeNo) -> Option<Token> {
        (self.held.mode > TokenMode::None).then(|| self.known(ino))
    }

    /// Lets somebody in if that needs neither waiting nor asking.
    pub fn enter_now(&mut self, need: Need) -> bool {
        let may = self.giving.is_none() && !self.resolving && self.held.allows(need);
        if may {
            self.let_in(what_for(need));
        }
        may
    }

    /// Somebody wants to use the inode.
    pub fn enter(&mut self, need: Need) -> Enter {
        if self.enter_now(need) {
            Enter::In
        } else if self.giving.is_some() || self.resolving || self.asking.is_some() || self.asking_late {
            Enter::Wait
        } else {
            (self.asking, self.outdated) = (Some(what_for(need)), false);
            Enter::Ask
        }
    }

    /// Begins to ask for a token without waiting for anything; ends as [`Enter::Ask`] does, for who writes nothing. False if somebody
    /// asks already, or it is being given up.
    pub fn begin_asking(&mut self) -> bool {
        let may = self.giving.is_none() && !self.resolving && self.asking.is_none() && !self.asking_late;
        if may {
            (self.asking, self.outdated) = (Some(Use::Read), false);
        }
        may
    }

    /// Lets somebody in whom the giving up waits for (through pages that the kernel has locked).
    pub fn enter_late(&mut self, need: Need) -> bool {
        let barred = |giving: &Giving| giving.barred && writes(need);
        let may = self.giving.as_ref().is_some_and(|giving| !barred(giving))
            && !self.resolving
            && self.held.allows(need);
        if may {
            self.let_in(what_for(need));
        }
        may
    }

    /// Begins to ask on behalf of somebody whom the giving up waits for and who needs more than is held; its answer is taken within
    /// [`Cell::end_late`]. Only for reading: the manager lets it go before whoever that is given up for. Another question may be out, for
    /// writing, that stands behind that one at the manager: both are answered with what this one gets.
    pub fn ask_late(&mut self, need: Need) -> bool {
        let may = !writes(need) && self.giving.is_some() && !self.resolving && !self.asking_late;
        if may {
            self.asking_late = true;
            // What was given up since the other question may be newer than what this one brings too.
            self.outdated &= self.asking.is_some();
        }
        may
    }

    /// Takes the answer to the question of [`Cell::ask_late`]: `answer` is [`Cell::granted`], [`Cell::refused`] or [`Cell::unused`]. The other
    /// question stays.
    pub fn end_late<R>(&mut self, answer: impl FnOnce(&mut Cell) -> R) -> R {
        let asking = self.asking.replace(Use::Read);
        let done = answer(self);
        (self.asking, self.asking_late) = (asking, false);
        done
    }

    /// Somebody who is in to write lets another in who does, and may stay longer.
    pub fn enter_beside(&mut self) {
        debug_assert!(self.writers > 0, "nobody writes");
        self.let_in(Use::Write);
    }

    fn let_in(&mut self, what: Use) {
        self.users += 1;
        self.writers += u32::from(what == Use::Write);
    }

    /// A use for this need ends.
    pub fn leave(&mut self, need: Need) {
        let writer = u32::from(writes(need));
        debug_assert!(
            self.users > self.writers.saturating_sub(writer) && self.writers >= writer,
            "nobody uses it so"
        );
        self.users = self.users.saturating_sub(1);
        self.writers = self.writers.saturating_sub(writer);
    }

    /// The manager did not grant.
    pub fn refused(&mut self) {
        self.asking = None;
    }

    /// It is open here before any grant came: that much stays when one is not used.
    pub fn opened(&mut self) {
        self.held.mode = self.held.mode.max(TokenMode::Open);
    }

    /// Whether what was given up meanwhile may be newer than what a grant that comes now says.
    pub fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// A grant came that is not used, though nobody has recalled it; what to tell the manager.
    pub fn unused(&mut self, token: &Token) -> Token {
        self.asking = None;
        self.held.serial = self.held.serial.max(token.serial);
        self.known(token.ino)
    }

    /// A grant came; the asker is in. False if it was recalled meanwhile: it is as if it had not come. While
    /// the token is being given up only somebody may take it whom that waits for (`let_in`).
    pub fn granted(&mut self, token: &Token, resolve: bool, let_in: bool) -> bool {
        let asked = self.asking.take();
        if token.serial <= self.recalled_to
            || token.serial <= self.held.serial
            || self.giving.is_some() && !let_in
        {
            return false;
        }
        self.exclusive &= self.held.mode == TokenMode::Write;
        (self.held, self.resolving, self.provisional) = (token.clone(), resolve, false);
        if self.giving.as_ref().is_some_and(|giving| giving.lowered) {
            self.lower();
        }
        self.let_in(asked.unwrap_or(Use::Read));
        true
    }

    /// What an unclean end left of the inode is resolved.
    pub fn resolved(&mut self) {
        self.resolving = false;
    }

    /// All tokens of the file system are held (again).
    pub fn take_whole(&mut self, grant: Grant) {
        if self.giving.is_none() && self.held.mode < TokenMode::Write {
            self.held = Token::new(InodeNo(0), TokenMode::Write, self.held.serial.max(grant));
        }
        self.exclusive = self.giving.is_none();
    }

    /// The manager wants the token back down to `wanted`, or at most `keep`. `open`: there are handles.
    pub fn recalled(&mut self, wanted: &Token, keep: TokenMode, open: bool) -> Recalled {
        if let Some(giving) = &mut self.giving {
            // Answered when that is done: until then whom it waits for may still use a grant that this one is about.
            giving.serial = giving.serial.max(wanted.serial);
            return Recalled::UnderWay;
        }
        self.recalled_to = self.recalled_to.max(wanted.serial);
        let to =
            if wanted.mode > keep { Token::new(wanted.ino, keep, wanted.serial) } else { wanted.clone() };
        if self.held.is_within(&to) {
            self.held.serial = self.held.serial.max(wanted.serial);
            let least = if open { TokenMode::Open } else { TokenMode::None };
            self.held.mode = with_handles(self.held.mode.max(least), open);
            return Recalled::Answer(self.known(wanted.ino));
        }
        let serial = wanted.serial.max(self.held.serial);
        self.giving = Some(Giving { to, serial, barred: false, lowered: false, untold: false });
        (self.provisional, self.exclusive) = (false, false);
        Recalled::Begin
    }

    /// The giving up waits for somebody who asks for more, whom others may answer only when they have what goes here: of a part
    /// nothing is written any more, so that it can be made clean for [`Cell::lower`]. False: there is nothing to do, or no more.
    pub fn stop_writing(&mut self) -> bool {
        let part = self.held.mode == TokenMode::Part;
        let Some(giving) = self.giving.as_mut().filter(|_| part) else { return false };
        giving.barred |= self.asking_late;
        if giving.lowered { giving.untold } else { giving.barred }
    }

    /// What goes of a part is clean since [`Cell::stop_writing`], and nobody is in to write. It may only be read from now on, also under what
    /// is granted until it goes: that excludes nobody who reads, here or elsewhere, so those who are in stay.
    pub fn lower(&mut self) {
        let written = self.losing().written;
        let part = self.held.mode == TokenMode::Part;
        let Some(giving) = self.giving.as_mut().filter(|_| part) else { return };
        (giving.barred, giving.lowered) = (true, true);
        giving.untold |= !written.is_empty();
        for run in written.runs() {
            self.held.blocks = self.held.blocks.limited(run.span, Use::Read);
        }
    }

    /// What to tell the manager of [`Cell::lower`], once.
    pub fn take_lowered(&mut self, ino: InodeNo) -> Option<Token> {
        let untold = self.giving.as_mut().is_some_and(|giving| std::mem::take(&mut giving.untold));
        untold.then(|| self.known(ino))
    }

    /// Everything is clean: it is given up.
    pub fn gave(&mut self, ino: InodeNo, open: bool) -> Token {
        debug_assert!(self.users == 0, "it is given up while it is used");
        if let Some(giving) = self.giving.take() {
            self.held = self.held.meet(&giving.to);
            self.held.serial = self.held.serial.max(giving.serial);
            self.recalled_to = self.recalled_to.max(giving.serial);
            self.held.mode = with_handles(self.held.mode, open);
            self.outdated |= self.held.mode < TokenMode::Part;
        }
        self.resolving = false;
        self.known(ino)
    }

    /// The last handle is closed; what to tell the manager, if anything.
    pub fn closed(&mut self, ino: InodeNo) -> Option<Token> {
        let idle = self.held.mode == TokenMode::Open && self.giving.is_none();
        idle.then(|| self.forget(ino))
    }

    /// Everything goes, without anything to clean.
    pub fn forget(&mut self, ino: InodeNo) -> Token {
        self.held = Token::new(InodeNo(0), TokenMode::None, self.held.serial);
        (self.provisional, self.exclusive) = (false, false);
        self.known(ino)
    }
}

/// Whether that is needed to change something.
pub(super) fn writes(need: Need) -> bool {
    matches!(need, Need::Write | Need::Blocks(_, Use::Write))
}

fn what_for(need: Need) -> Use {
    if writes(need) { Use::Write } else { Use::Read }
}

/// Below `Read` only open handles leave anything.
fn with_handles(mode: TokenMode, open: bool) -> TokenMode {
    match (mode, open) {
        (TokenMode::Open | TokenMode::None, true) => TokenMode::Open,
        (TokenMode::Open, false) => TokenMode::None,
        (mode, _) => mode,
    }
}

#[cfg(test)]
#[path = "late_tests.rs"]
mod late_tests;
#[cfg(test)]
#[path = "made_tests.rs"]
mod made_tests;
#[cfg(test)]
#[path = "tokens_tests.rs"]
mod tests;
