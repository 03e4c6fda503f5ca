//! Attributes of what is no file, as changes by this client leave them; when they may be kept is told in
//! [`crate::names::directory`].

use wire::{
    mgr::{Attr, FileKind, Timestamp},
    token::TokenMode,
};

use super::state::FileState;
use crate::names::all::AllNames;

/// What a change that was made did to the attributes of each directory it names.
#[derive(Clone, Copy)]
pub(crate) enum Touched {
    /// Names were made or taken away at this time, of so many more directories.
    At(Timestamp, i32),
    /// Nothing.
    Nothing,
    /// To be asked for.
    Unknown,
}

/// Who still uses what has lost its last name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unused {
    /// It is open.
    Open,
    /// Nobody, and something of it may be under way.
    Unsettled,
    /// Nobody, and nothing is.
    Settled,
}

impl FileState {
    /// Takes its last name away: of a directory, if it is certainly empty. None: it is not known that the name is the last, or
    /// that it may go. `alone`: nobody else is there.
    pub fn lose_last_name(&mut self, directory: bool, now: Timestamp, alone: bool) -> Option<Unused> {
        let is_dir = self.attr.kind == FileKind::Directory;
        let names = &self.names;
        let still = names.kept.is_still() && !names.kept.is_spoiled();
        let last = match is_dir {
            true => names.all.as_ref().is_some_and(AllNames::is_empty),
            // Its token is held, so this is the newest.
            false => self.attr.nlink == 1 && !self.links_unsure && self.token.mode() >= TokenMode::Read,
        };
        let ours = alone || self.token.is_exclusive();
        if !self.attr_known || self.gone || !still || !last || !ours || is_dir != directory {
            return None;
        }
        (self.attr.nlink, self.attr.ctime) = (0, now);
        // Nobody else has it open.
        (self.gone, self.unshared) = (true, true);
        self.names.all = None;
        self.attr_generation += 1;
        Some(match self.opens.any() {
            true => Unused::Open,
            false if self.unsettled() || self.token.users() > 0 => Unused::Unsettled,
            false => Unused::Settled,
        })
    }

    /// Whether one of its names may be moved without a question: of a directory only within the one it is in (elsewhere it could come
    /// below itself), and to a name that is not there. What is replaced has its content whole until this one's is. `alone`: nobody else
    /// is there.
    pub fn may_move(&self, within: bool, replaces: bool, alone: bool) -> bool {
        let names = &self.names;
        let still = names.kept.is_still() && !names.kept.is_spoiled();
        let may = match self.attr.kind {
            FileKind::Directory => within && !replaces,
            FileKind::File => self.token.mode() >= TokenMode::Read && !(replaces && self.content_unsettled()),
            _ => true,
        };
        let ours = alone || self.token.mode() == TokenMode::Write && !self.token.is_giving();
        may && ours && still && self.attr_known && !self.gone && self.attr.nlink > 0
    }

    /// One of its names was moved; whether it is a file.
    pub fn moved(&mut self, now: Timestamp) -> bool {
        self.attr.ctime = now;
        self.attr_generation += 1;
        self.attr.kind == FileKind::File
    }

    /// Whether answers about it may be kept: for what is no file, while others are there.
    pub fn keeps(&self) -> bool {
        self.token.mode() >= TokenMode::Read && !self.token.is_giving() && !self.names.kept.is_spoiled()
    }

    /// The same for attributes, also while nobody else is there (`alone`).
    pub fn keeps_attr(&self, alone: bool) -> bool {
        if alone { !self.names.kept.is_spoiled() } else { self.keeps() }
    }

    /// Whether its token is worth asking for now, and is: then it is being asked for. `attr`: the question is for
    /// its attributes.
    pub fn wants_token(&mut self, attr: bool) -> bool {
        if !self.special || self.token.mode() >= TokenMode::Read || self.names.kept.is_spoiled() {
            return false;
        }
        self.names.kept.wants_token(attr) && self.token.begin_asking()
    }

    /// Whether a directory is worth asking for now to make names in it ahead of the manager, and is: then it is being asked for.
    pub fn wants_making(&mut self) -> bool {
        let may = self.special && self.token.mode() < TokenMode::Write && !self.names.kept.is_spoiled();
        may && self.names.worth.is_due() && self.token.begin_asking()
    }

    /// Whether a file's token is worth asking for now, for its attributes alone: then it is being asked for. After a recall
    /// somebody else works with the file.
    pub fn wants_file_token(&mut self) -> bool {
        let none = self.token.mode() == TokenMode::None;
        self.is_file() && none && self.names.kept.wants_token(true) && self.token.begin_asking()
    }

    /// Whether attributes may be kept that were asked for at this generation: no change by this client can have made
    /// them old.
    pub fn settled_since(&self, generation: u64) -> bool {
        self.attr_generation == generation && self.names.kept.is_still()
    }

    /// A change by this client that was alone has done this to its attributes.
    pub fn touched(&mut self, touched: Touched, alone: bool) {
        match touched {
            Touched::At(now, directories) if self.attr_known && self.keeps_attr(alone) => {
                (self.attr.mtime, self.attr.ctime) = (now, now);
                self.attr.nlink = self.attr.nlink.saturating_add_signed(directories);
                self.attr_generation += 1;
            }
            Touched::Nothing => {}
            _ => self.outdate_attr(),
        }
    }

    /// Attributes that came with the answer to a change of what is no file. `newest`: no other change was under way.
    pub fn take_changed(&mut self, attr: &Attr, newest: bool, alone: bool) {
        self.outdate_attr();
        if self.keeps_attr(alone) && self.names.kept.is_still() && newest {
            self.merge(attr.clone());
        }
        self.gone |= attr.nlink == 0;
    }

    /// What is known is forgotten, and what is asked for now is not kept.
    pub fn outdate_attr(&mut self) {
        self.attr_known = false;
        self.attr_generation += 1;
    }
}
