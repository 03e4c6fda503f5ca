//! Attributes and names kept under the tokens of directories (and attributes of all that is no file): docs/tokens.md.
//!
//! Invariants: an answer is kept only if the token was held from before the question until it came, and no change of
//! that name, or for attributes of that inode, by this client was under way in between. Changes are noted before the
//! manager hears of them, token or not: a token may come while they are under way. A change that was the only one of
//! its directory brings the attributes known before it up to date; after several at once they are asked for, since
//! nobody here knows which was the last. The manager recalls nothing from who changes; so after a change of which it
//! is not known whether it was made, or will be by a late copy, nothing is kept of its inodes any more.
//!
//! While *all* names of a directory are kept (it was empty when the token came, or was listed to its end), any other
//! name leads nowhere.
//!
//! Names made ahead of the manager ([`super::ahead`]) are told before what they were made under is given up.

use std::sync::Arc;

use base::InodeNo;
use wire::{
    mgr::{Attr, DirEntry, MgrReply, MgrRequest},
    token::Need,
};

use super::{
    hint::Hint,
    kept::{Asked, Position},
};
use crate::{calls::unexpected, core::Core, error::Errno, files::inode::Inode, sharing::guards::Asking};

/// A question about a name whose answer may be kept.
pub(crate) struct Question {
    inode: Arc<Inode>,
    name: Vec<u8>,
    asked: Asked,
}

/// A listing whose entries may be kept.
pub(crate) struct Listed {
    inode: Arc<Inode>,
    from: u64,
    position: Position,
}

impl Core {
    /// Whether what is kept may be used: under tokens, or while nobody else is there.
    pub(super) fn uses_names(&self) -> bool {
        self.calls.lease_valid() && !self.calls.dead()
    }

    /// Whether tokens are asked for one by one, and may be.
    pub(crate) fn asks_tokens(&self) -> bool {
        self.whole().is_none() && self.uses_names()
    }

    /// Where a name leads, if that is known.
    pub fn known_name(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        state.names.kept.known(name).filter(|_| state.keeps())
    }

    /// A directory was made here: all its names will be known.
    pub fn made_directory(self: &Arc<Core>, dir: InodeNo) {
        self.inode(dir).lock().names.kept.made_here();
    }

    /// Somebody is about to ask where a name leads: gets the directory's token, if it is worth it.
    pub async fn want_names(self: &Arc<Core>, dir: InodeNo) {
        let Some(inode) = self.inode_known(dir).filter(|_| self.asks_tokens()) else { return };
        let wants = inode.lock().wants_token(false);
        if wants {
            // Without it the question is put all the same.
            let _ = self.ask_names(&inode, Need::Names).await;
        }
    }

    /// Somebody asks where a name leads; the answer is kept if it may be.
    pub fn question(&self, dir: InodeNo, name: &[u8]) -> Option<Question> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names() && name != b"." && name != b"..")?;
        let mut state = inode.lock();
        let asked = state.keeps().then(|| state.names.kept.ask(&self.names.kept, name))??;
        drop(state);
        Some(Question { inode, name: name.to_vec(), asked })
    }

    /// Somebody lists a directory, from this cookie on.
    pub fn before_listing(&self, dir: InodeNo, from: u64) -> Option<Listed> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        let (position, keeps) = (state.names.kept.position(), state.keeps());
        drop(state);
        keeps.then_some(Listed { inode, from, position })
    }

    /// What was listed is kept, if there is room. `end`: nothing follows.
    pub fn listed(&self, listed: Listed, entries: &[DirEntry], end: bool, parent: InodeNo) {
        if listed.from == 0 && end {
            self.names.recent.note(&listed.inode, listed.position, entries, parent);
        }
        let mut state = listed.inode.lock();
        if state.names.kept.is_at(listed.position) && state.keeps() {
            state.names.kept.list(&self.names.kept, listed.from, entries, end);
        }
    }

    /// Attributes of what is no file, and its token if it is to be had at once.
    pub async fn attr_with_token(self: &Arc<Core>, inode: &Arc<Inode>) -> Option<Result<Attr, Errno>> {
        let wants = self.asks_tokens() && inode.lock().wants_token(true);
        if !wants {
            return None;
        }
        self.ask_names(inode, Need::Names).await.transpose()
    }

    /// Asks for the token, as was begun; none if there was no answer.
    pub(super) async fn ask_names(
        self: &Arc<Core>,
        inode: &Arc<Inode>,
        need: Need,
    ) -> Result<Option<Attr>, Errno> {
        let asking = Asking { inode, late: false };
        let (asked, generation, position) = {
            let state = inode.lock();
            (self.sharing.now(), state.attr_generation, state.names.kept.position())
        };
        let question = MgrRequest::Acquire { ino: inode.ino, need };
        let (token, attr, empty) = match self.calls.ask(question).await {
            Ok(MgrReply::Token { token, attr, empty, .. }) => (token, attr, empty),
            Ok(other) => return Err(unexpected("Acquire", &other)),
            Err(Errno::ENOENT) => return Err(Errno::ENOENT),
            // Somebody goes on changing it: the question is put without it.
            Err(_) => return Ok(None),
        };
        if let Some(attr) = &attr {
            self.set_geometry(inode, attr);
        }
        let left = {
            let mut state = inode.lock();
            // What is kept already under a lesser token goes on to count.
            let kept = state.keeps();
            if self.sharing.claimed_since(asked) || state.token.is_outdated() {
                Some(state.token.unused(&token))
            } else if !state.token.granted(&token, false, false) {
                None
            } else {
                state.token.leave(Need::Names);
                let undisturbed = state.settled_since(generation);
                state.outdate_attr();
                if !kept {
                    state.names.kept.begin(empty, position);
                }
                match &attr {
                    Some(attr) if undisturbed => state.merge(Attr::clone(attr)),
                    _ => {}
                }
                let gone = attr.is_none() || state.names.kept.is_spoiled();
                gone.then(|| state.token.forget(inode.ino))
            }
        };
        asking.answered();
        self.release_soon(left.into_iter().collect());
        attr.map(|attr| Some(*attr)).ok_or(Errno::ENOENT)
    }
}

impl Question {
    /// The answer.
    pub fn answered(self, hint: Option<Hint>) {
        let mut state = self.inode.lock();
        let hint = hint.filter(|_| state.keeps());
        state.names.kept.answered(&self.name, self.asked, hint);
    }
}
