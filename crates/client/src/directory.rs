//! Attributes and names kept under the tokens of directories (and attributes of all that is no file): docs/tokens.md.
//!
//! Invariants: an answer is kept only if the token was held from before the question until it came, and no change of
//! that name by this client was under way in between. Changes are noted before the manager hears of them, token or
//! not: a token may come while they are under way. The manager recalls nothing from who changes; so after a change of
//! which it is not known whether it was made, or will be by a late copy, nothing is kept of its inodes any more.
//!
//! Next: making names under a token for writing, ahead of the manager. They would be `Name`s that lead somewhere
//! without its knowing yet, to be told before the token is given back.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
};

use base::InodeNo;
use wire::{
    mgr::{Attr, DirEntry, FileKind, MgrReply, MgrRequest},
    token::{Need, Token, TokenMode},
};

use crate::{
    calls::unexpected,
    core::Core,
    error::Errno,
    inode::{FileState, Inode},
    names::Hint,
    share::Asking,
};

/// Names kept in all directories together, some 100 bytes each.
const KEPT_MAX: usize = 1 << 18;
/// Questions about an inode after which its token is asked for: when the question is about its attributes, which come
/// with the token; when it is not; and when the token was recalled before, since somebody changes there.
const QUESTIONS: (u32, u32, u32) = (1, 2, 4);

#[derive(Clone, Copy)]
enum Name {
    /// The question of this number is under way.
    Asked(u64),
    /// Changes by this client are under way, and whether ever several at once.
    Changing { count: u32, several: bool },
    /// Where the manager said that it leads.
    Leads(Hint),
}

/// What is kept of one directory beside its attributes.
#[derive(Default)]
pub(crate) struct Names {
    names: HashMap<Vec<u8>, Name>,
    /// Counts how often this was forgotten and begun anew.
    tenure: u64,
    /// Counts beginnings and ends of changes.
    moves: u64,
    asked: u64,
    /// Questions since the token was there last.
    questions: u32,
    recalled: bool,
    /// A change may be made of which this client will not hear.
    pub spoiled: bool,
    total: Option<Arc<AtomicUsize>>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.counted(|names| names.names.clear());
    }
}

impl Names {
    /// Nothing that is kept counts any more.
    pub fn forget(&mut self) {
        self.tenure += 1;
        self.questions = 0;
        self.counted(|names| names.names.retain(|_, name| matches!(name, Name::Changing { .. })));
    }

    /// The same because others change there.
    pub fn recalled(&mut self) {
        self.forget();
        self.recalled = true;
    }

    fn counted(&mut self, change: impl FnOnce(&mut Names)) {
        let before = self.names.len();
        change(self);
        if let Some(total) = &self.total {
            total.fetch_add(self.names.len(), Relaxed);
            total.fetch_sub(before, Relaxed);
        }
    }

    fn set(&mut self, total: &Arc<AtomicUsize>, name: &[u8], state: Name) {
        self.total.get_or_insert_with(|| total.clone());
        if total.load(Relaxed) >= KEPT_MAX && !self.names.contains_key(name) {
            self.forget();
        }
        self.counted(|names| _ = names.names.insert(name.to_vec(), state));
    }

    fn remove(&mut self, name: &[u8]) {
        self.counted(|names| _ = names.names.remove(name));
    }
}

/// A question about a name whose answer may be kept.
pub(crate) struct Question {
    inode: Arc<Inode>,
    name: Vec<u8>,
    number: u64,
    tenure: u64,
}

/// A listing whose entries may be kept.
pub(crate) struct Listed {
    inode: Arc<Inode>,
    tenure: u64,
    moves: u64,
}

/// A change of names and attributes that is under way; dropped without an end it is not known whether it was made.
pub(crate) struct Changing {
    core: Arc<Core>,
    names: Vec<(Arc<Inode>, Vec<u8>, u64)>,
    others: Vec<Arc<Inode>>,
    ended: bool,
}

impl FileState {
    /// Whether answers about it may be kept: for what is no file, while others are there.
    pub fn keeps(&self) -> bool {
        self.token.mode() >= TokenMode::Read && !self.token.is_giving() && !self.names_kept.spoiled
    }

    /// Whether its token is worth asking for now. `attr`: the question is for its attributes.
    fn wants_token(&mut self, attr: bool) -> bool {
        let names = &mut self.names_kept;
        if !self.special || self.token.mode() >= TokenMode::Read || names.spoiled {
            return false;
        }
        names.questions += 1;
        let (with, without, again) = QUESTIONS;
        names.questions >= if names.recalled { again } else { [without, with][usize::from(attr)] }
            && self.token.begin_asking()
    }

    /// What is known is forgotten, and what is asked for now is not kept.
    pub fn outdate_attr(&mut self) {
        self.attr_known = false;
        self.attr_generation += 1;
    }
}

impl Core {
    fn uses_names(&self) -> bool {
        self.whole().is_none() && self.calls.lease_valid() && !self.calls.dead()
    }

    /// Where a name leads, if that is known.
    pub fn known_name(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        match state.names_kept.names.get(name) {
            Some(Name::Leads(hint)) if state.keeps() => Some(*hint),
            _ => None,
        }
    }

    /// Somebody asks where a name leads; the answer is kept if it may be.
    pub async fn question(self: &Arc<Core>, dir: InodeNo, name: &[u8]) -> Option<Question> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names() && name != b"." && name != b"..")?;
        let wants = inode.lock().wants_token(false);
        if wants {
            // Without it the question is put all the same.
            let _ = self.ask_names(&inode).await;
        }
        let mut state = inode.lock();
        if !state.keeps() || matches!(state.names_kept.names.get(name), Some(Name::Changing { .. })) {
            return None;
        }
        state.names_kept.asked += 1;
        let number = state.names_kept.asked;
        state.names_kept.set(&self.names_kept, name, Name::Asked(number));
        let tenure = state.names_kept.tenure;
        drop(state);
        Some(Question { inode, name: name.to_vec(), number, tenure })
    }

    /// Somebody lists a directory.
    pub fn before_listing(&self, dir: InodeNo) -> Option<Listed> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        let (tenure, moves) = (state.names_kept.tenure, state.names_kept.moves);
        let keeps = state.keeps();
        drop(state);
        keeps.then_some(Listed { inode, tenure, moves })
    }

    /// What was listed is kept, if there is room.
    pub fn listed(&self, listed: Listed, entries: &[DirEntry]) {
        let mut state = listed.inode.lock();
        let same = (listed.tenure, listed.moves) == (state.names_kept.tenure, state.names_kept.moves);
        if !same || !state.keeps() {
            return;
        }
        for entry in entries {
            let known = state.names_kept.names.get(&entry.name);
            if matches!(known, Some(Name::Changing { .. })) || self.names_kept.load(Relaxed) >= KEPT_MAX {
                continue;
            }
            let hint = Hint { ino: entry.ino, is_file: entry.kind == FileKind::File };
            state.names_kept.set(&self.names_kept, &entry.name, Name::Leads(hint));
        }
    }

    /// A change of names, and of the attributes of their directories and of `others`, begins.
    pub fn change(self: &Arc<Core>, names: &[(InodeNo, &[u8])], others: &[InodeNo]) -> Changing {
        let begin = |(dir, name): &(InodeNo, &[u8])| {
            let inode = self.inode(*dir);
            let mut state = inode.lock();
            state.names_kept.moves += 1;
            let now = match state.names_kept.names.get(*name) {
                Some(Name::Changing { count, .. }) => Name::Changing { count: count + 1, several: true },
                _ => Name::Changing { count: 1, several: false },
            };
            state.names_kept.set(&self.names_kept, name, now);
            let tenure = state.names_kept.tenure;
            drop(state);
            (inode, name.to_vec(), tenure)
        };
        let names = names.iter().map(begin).collect();
        let others = others.iter().filter_map(|ino| self.inode_known(*ino)).collect();
        Changing { core: self.clone(), names, others, ended: false }
    }

    /// Attributes of what is no file, and its token if it is to be had at once.
    pub async fn attr_with_token(self: &Arc<Core>, inode: &Arc<Inode>) -> Option<Result<Attr, Errno>> {
        let wants = self.uses_names() && inode.lock().wants_token(true);
        if !wants {
            return None;
        }
        self.ask_names(inode).await.transpose()
    }

    /// Asks for the token, as was begun; none if there was no answer.
    async fn ask_names(self: &Arc<Core>, inode: &Arc<Inode>) -> Result<Option<Attr>, Errno> {
        let _asking = Asking(inode);
        let (claims, generation) = (self.claims.load(SeqCst), inode.lock().attr_generation);
        let ask = MgrRequest::Acquire { ino: inode.ino, need: Need::Names };
        let (token, attr) = match self.calls.ask(ask).await {
            Ok(MgrReply::Token { token, attr, .. }) => (token, attr),
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
            if claims != self.claims.load(SeqCst) || state.token.is_outdated() {
                Some(state.token.unused(&token))
            } else if !state.token.granted(&token, false, false) {
                None
            } else {
                state.token.leave();
                let undisturbed = state.attr_generation == generation;
                state.outdate_attr();
                state.names_kept.forget();
                match &attr {
                    Some(attr) if undisturbed => state.merge(Attr::clone(attr)),
                    _ => {}
                }
                let gone = attr.is_none() || state.names_kept.spoiled;
                gone.then(|| state.token.forget(inode.ino))
            }
        };
        self.release_soon(left.into_iter().collect());
        attr.map(|attr| Some(*attr)).ok_or(Errno::ENOENT)
    }

    /// It is not known any more whether what is kept is true, or stays so.
    fn spoil(self: &Arc<Core>, inode: &Arc<Inode>) {
        let mut state = inode.lock();
        if state.special {
            state.names_kept.spoiled = true;
            state.names_kept.forget();
            state.outdate_attr();
            let token = Token::new(inode.ino, TokenMode::None, state.token.serial());
            if state.token.mode() > TokenMode::None && self.whole().is_none() {
                self.runtime.spawn(self.clone().give_back(token));
            }
        }
    }
}

impl Question {
    /// The answer.
    pub fn answered(self, hint: Option<Hint>) {
        let mut state = self.inode.lock();
        let current = state.names_kept.names.get(&self.name);
        let ours = matches!(current, Some(Name::Asked(number)) if *number == self.number);
        if !ours || state.names_kept.tenure != self.tenure {
            return;
        }
        match hint.filter(|_| state.keeps()) {
            Some(hint) => _ = state.names_kept.names.insert(self.name, Name::Leads(hint)),
            None => state.names_kept.remove(&self.name),
        }
    }
}

impl Changing {
    /// The change was answered: `leads` says where the names lead by it, as far as that is known.
    pub fn end(mut self, reply: &Result<MgrReply, Errno>, leads: &[Option<Hint>]) {
        if matches!(reply, Err(Errno(libc::EIO | libc::ETIMEDOUT))) {
            return; // nobody knows
        }
        self.ended = true;
        for (at, (inode, name, tenure)) in self.names.iter().enumerate() {
            let mut state = inode.lock();
            let hint = leads.get(at).copied().flatten().filter(|_| reply.is_ok());
            let hint = hint.filter(|_| state.keeps() && state.names_kept.tenure == *tenure);
            state.outdate_attr();
            let names = &mut state.names_kept;
            names.moves += 1;
            match (names.names.get(name), hint) {
                (Some(Name::Changing { count: 2.., .. }), _) => {
                    if let Some(Name::Changing { count, .. }) = names.names.get_mut(name) {
                        *count -= 1;
                    }
                }
                (Some(Name::Changing { several: false, .. }), Some(hint)) => {
                    names.names.insert(name.clone(), Name::Leads(hint));
                }
                _ => names.remove(name),
            }
        }
        self.others.iter().for_each(|inode| {
            let mut state = inode.lock();
            if state.special {
                state.outdate_attr();
            }
        });
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if !self.ended {
            self.names.iter().map(|(inode, ..)| inode).chain(&self.others).for_each(|i| self.core.spoil(i));
        }
    }
}
