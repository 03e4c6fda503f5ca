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
    mgr::{Attr, DirEntry, FileKind, MgrReply, MgrRequest, Timestamp},
    token::{Need, Token, TokenMode},
};

use crate::{
    calls::unexpected,
    core::Core,
    error::Errno,
    files::inode::{FileState, Inode},
    names::made::Hint,
    sharing::hold::Asking,
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
    /// It is to be asked for, though all names are kept.
    Unsure,
}

/// What is kept of one directory beside its attributes.
#[derive(Default)]
pub(crate) struct Names {
    names: HashMap<Vec<u8>, Name>,
    /// All names there are, are among them.
    complete: bool,
    /// It was listed from its start to this cookie, and what was listed is kept.
    listed_to: Option<u64>,
    /// Made here and not yet asked about.
    new: bool,
    /// Own changes of the inode that are under way, and whether ever several at once.
    changes: u32,
    several: bool,
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
        (self.questions, self.complete, self.listed_to) = Default::default();
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

    /// It is not known where the name leads.
    fn unknow(&mut self, name: &[u8]) {
        self.counted(|names| match names.complete {
            true => _ = names.names.insert(name.to_vec(), Name::Unsure),
            false => _ = names.names.remove(name),
        });
    }

    /// Where a name leads, if that is known.
    fn known(&self, name: &[u8]) -> Option<Hint> {
        match self.names.get(name) {
            Some(Name::Leads(hint)) => Some(*hint),
            None if self.complete && name != b"." && name != b".." => Some(Hint::NOTHING),
            _ => None,
        }
    }

    /// Keeps what was listed from a cookie on.
    fn list(&mut self, total: &Arc<AtomicUsize>, from: u64, entries: &[DirEntry], end: bool) {
        for entry in entries {
            if matches!(self.names.get(&entry.name), Some(Name::Changing { .. })) {
                continue;
            }
            if total.load(Relaxed) >= KEPT_MAX {
                self.listed_to = None;
                return;
            }
            let hint = Hint { ino: entry.ino, is_file: entry.kind == FileKind::File };
            self.set(total, &entry.name, Name::Leads(hint));
        }
        if from == 0 || self.listed_to.is_some_and(|to| from <= to) {
            let last = entries.last().map_or(from, |entry| entry.cookie);
            self.listed_to = self.listed_to.max(Some(last));
            self.complete = end;
        }
    }

    fn change_begins(&mut self) {
        self.moved();
        self.changes += 1;
        self.several |= self.changes > 1;
    }

    /// A listing that goes on knows no more of what was listed before.
    fn moved(&mut self) {
        self.moves += 1;
        self.listed_to = None;
    }

    /// Whether it was the only one all the time.
    fn change_ends(&mut self) -> bool {
        self.moved();
        self.changes -= 1;
        let alone = !self.several;
        self.several &= self.changes > 0;
        alone
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
    from: u64,
    tenure: u64,
    moves: u64,
}

/// A change of names and attributes that is under way; dropped without an end it is not known whether it was made.
pub(crate) struct Changing {
    core: Arc<Core>,
    names: Vec<(Arc<Inode>, Vec<u8>, u64)>,
    /// All that are changed, each once.
    inodes: Vec<Arc<Inode>>,
    /// [`Core::moves`] at its beginning.
    begun: u64,
    ended: bool,
}

/// A change was answered, and no other was under way since it began: so its answer tells the newest attributes, as long
/// as none has begun since. Holds [`Core::moves`].
#[derive(Clone, Copy)]
pub(crate) struct Newest(Option<u64>);

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

impl FileState {
    /// Whether answers about it may be kept: for what is no file, while others are there.
    pub fn keeps(&self) -> bool {
        self.token.mode() >= TokenMode::Read && !self.token.is_giving() && !self.names_kept.spoiled
    }

    /// The same for attributes, also while nobody else is there.
    pub fn keeps_attr(&self, core: &Core) -> bool {
        if core.whole().is_some() { !self.names_kept.spoiled } else { self.keeps() }
    }

    /// Whether its token is worth asking for now. `attr`: the question is for its attributes.
    fn wants_token(&mut self, attr: bool) -> bool {
        let names = &mut self.names_kept;
        if !self.special || self.token.mode() >= TokenMode::Read || names.spoiled {
            return false;
        }
        names.questions += 1;
        let (with, without, again) = QUESTIONS;
        let enough = match names.recalled {
            true => again,
            false if attr || std::mem::take(&mut names.new) => with,
            false => without,
        };
        names.questions >= enough && self.token.begin_asking()
    }

    /// Whether attributes may be kept that were asked for at this generation: no change by this client can have made
    /// them old.
    pub fn settled_since(&self, generation: u64) -> bool {
        self.attr_generation == generation && self.names_kept.changes == 0
    }

    /// A change by this client that was alone has done this to its attributes.
    fn touched(&mut self, touched: Touched, core: &Core) {
        match touched {
            Touched::At(now, directories) if self.attr_known && self.keeps_attr(core) => {
                (self.attr.mtime, self.attr.ctime) = (now, now);
                self.attr.nlink = self.attr.nlink.saturating_add_signed(directories);
                self.attr_generation += 1;
            }
            Touched::Nothing => {}
            _ => self.outdate_attr(),
        }
    }

    /// Attributes that came with the answer to a change of what is no file.
    pub fn take_changed(&mut self, attr: &Attr, newest: Newest, core: &Core) {
        self.outdate_attr();
        if self.keeps_attr(core) && self.names_kept.changes == 0 && newest.0 == Some(core.moves.load(SeqCst))
        {
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

impl Core {
    fn uses_names(&self) -> bool {
        self.whole().is_none() && self.calls.lease_valid() && !self.calls.dead()
    }

    /// Where a name leads, if that is known.
    pub fn known_name(&self, dir: InodeNo, name: &[u8]) -> Option<Hint> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        state.names_kept.known(name).filter(|_| state.keeps())
    }

    /// A directory was made here: all its names will be known.
    pub fn made_directory(self: &Arc<Core>, dir: InodeNo) {
        self.inode(dir).lock().names_kept.new = true;
    }

    /// Somebody is about to ask where a name leads: gets the directory's token, if it is worth it.
    pub async fn want_names(self: &Arc<Core>, dir: InodeNo) {
        let Some(inode) = self.inode_known(dir).filter(|_| self.uses_names()) else { return };
        let wants = inode.lock().wants_token(false);
        if wants {
            // Without it the question is put all the same.
            let _ = self.ask_names(&inode).await;
        }
    }

    /// Somebody asks where a name leads; the answer is kept if it may be.
    pub fn question(&self, dir: InodeNo, name: &[u8]) -> Option<Question> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names() && name != b"." && name != b"..")?;
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

    /// Somebody lists a directory, from this cookie on.
    pub fn before_listing(&self, dir: InodeNo, from: u64) -> Option<Listed> {
        let inode = self.inode_known(dir).filter(|_| self.uses_names())?;
        let state = inode.lock();
        let (tenure, moves) = (state.names_kept.tenure, state.names_kept.moves);
        let keeps = state.keeps();
        drop(state);
        keeps.then_some(Listed { inode, from, tenure, moves })
    }

    /// What was listed is kept, if there is room. `end`: nothing follows.
    pub fn listed(&self, listed: Listed, entries: &[DirEntry], end: bool) {
        let mut state = listed.inode.lock();
        let same = (listed.tenure, listed.moves) == (state.names_kept.tenure, state.names_kept.moves);
        if !same || !state.keeps() || state.names_kept.complete {
            return;
        }
        state.names_kept.list(&self.names_kept, listed.from, entries, end);
    }

    /// A change of names, and of the attributes of their directories and of `others`, begins.
    pub fn change(self: &Arc<Core>, names: &[(InodeNo, &[u8])], others: &[InodeNo]) -> Changing {
        let begun = self.moves.fetch_add(1, SeqCst) + 1;
        let mut inodes: Vec<Arc<Inode>> = names.iter().map(|(dir, _)| self.inode(*dir)).collect();
        let names = names.iter().zip(inodes.clone()).map(|((_, name), inode)| {
            let mut state = inode.lock();
            let now = match state.names_kept.names.get(*name) {
                Some(Name::Changing { count, .. }) => Name::Changing { count: count + 1, several: true },
                _ => Name::Changing { count: 1, several: false },
            };
            state.names_kept.set(&self.names_kept, name, now);
            let tenure = state.names_kept.tenure;
            drop(state);
            (inode, name.to_vec(), tenure)
        });
        let names = names.collect();
        inodes.extend(others.iter().filter_map(|ino| self.inode_known(*ino)));
        inodes.sort_unstable_by_key(|inode| inode.ino);
        inodes.dedup_by_key(|inode| inode.ino);
        inodes.iter().for_each(|inode| inode.lock().names_kept.change_begins());
        Changing { core: self.clone(), names, inodes, begun, ended: false }
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
        let (claims, (generation, moves)) = {
            let state = inode.lock();
            (self.claims.load(SeqCst), (state.attr_generation, state.names_kept.moves))
        };
        let ask = MgrRequest::Acquire { ino: inode.ino, need: Need::Names };
        let (token, attr, empty) = match self.calls.ask(ask).await {
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
            if claims != self.claims.load(SeqCst) || state.token.is_outdated() {
                Some(state.token.unused(&token))
            } else if !state.token.granted(&token, false, false) {
                None
            } else {
                state.token.leave();
                let undisturbed = state.settled_since(generation);
                state.outdate_attr();
                state.names_kept.forget();
                state.names_kept.complete =
                    empty && (state.names_kept.moves, state.names_kept.changes) == (moves, 0);
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
            None => state.names_kept.unknow(&self.name),
        }
    }
}

impl Changing {
    /// Whether no other change of this client is under way, or was since this one began.
    pub fn is_alone(&self) -> bool {
        self.core.moves.load(SeqCst) == self.begun
    }

    /// The change was answered: `leads` says where the names lead by it, as far as that is known, and `touched` what it
    /// did to the attributes of the directories.
    pub fn end(
        mut self,
        reply: &Result<MgrReply, Errno>,
        leads: &[Option<Hint>],
        touched: Touched,
    ) -> Newest {
        if matches!(reply, Err(Errno(libc::EIO | libc::ETIMEDOUT))) {
            return Newest(None); // nobody knows
        }
        self.ended = true;
        for (at, (inode, name, tenure)) in self.names.iter().enumerate() {
            let mut state = inode.lock();
            let hint = leads.get(at).copied().flatten().filter(|_| reply.is_ok());
            let hint = hint.filter(|_| state.keeps() && state.names_kept.tenure == *tenure);
            let names = &mut state.names_kept;
            match (names.names.get(name), hint) {
                (Some(Name::Changing { count: 2.., .. }), _) => {
                    if let Some(Name::Changing { count, .. }) = names.names.get_mut(name) {
                        *count -= 1;
                    }
                }
                (Some(Name::Changing { several: false, .. }), Some(Hint { ino: InodeNo(0), .. }))
                    if names.complete =>
                {
                    names.counted(|names| _ = names.names.remove(name));
                }
                (Some(Name::Changing { several: false, .. }), Some(hint)) => {
                    names.names.insert(name.clone(), Name::Leads(hint));
                }
                _ => names.unknow(name),
            }
        }
        for inode in &self.inodes {
            let mut state = inode.lock();
            let alone = state.names_kept.change_ends();
            let named = self.names.iter().any(|(dir, ..)| dir.ino == inode.ino);
            if named && alone && reply.is_ok() {
                state.touched(touched, &self.core);
            } else if named || state.special {
                state.outdate_attr();
            }
        }
        let moves = self.core.moves.fetch_add(1, SeqCst);
        Newest((moves == self.begun).then_some(moves + 1))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        for inode in &self.inodes {
            _ = inode.lock().names_kept.change_ends();
            self.core.spoil(inode);
        }
        self.core.moves.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[(u64, &str)]) -> Vec<DirEntry> {
        let entry = |(cookie, name): &(u64, &str)| DirEntry {
            name: name.as_bytes().to_vec(),
            ino: InodeNo(*cookie),
            kind: FileKind::File,
            cookie: *cookie,
            attr: None,
        };
        names.iter().map(entry).collect()
    }

    fn leads(names: &Names, name: &str) -> Option<u64> {
        names.known(name.as_bytes()).map(|hint| hint.ino.0)
    }

    #[test]
    fn names_are_absent_only_where_all_were_listed() {
        let (mut names, total) = (Names::default(), Arc::default());
        names.list(&total, 0, &entries(&[(3, "a"), (5, "b")]), false);
        assert_eq!((leads(&names, "a"), leads(&names, "z")), (Some(3), None));
        names.list(&total, 5, &entries(&[(9, "c")]), true);
        assert_eq!((leads(&names, "c"), leads(&names, "z")), (Some(9), Some(0)));
        assert_eq!((leads(&names, "."), leads(&names, "..")), (None, None));
        names.unknow(b"a");
        assert_eq!((leads(&names, "a"), leads(&names, "z")), (None, Some(0)));
        names.forget();
        assert_eq!((leads(&names, "b"), leads(&names, "z"), total.load(Relaxed)), (None, None, 0));
        names.list(&total, 5, &entries(&[(9, "c")]), true);
        assert_eq!(leads(&names, "z"), None, "what comes before was not listed");
    }

    #[test]
    fn a_change_between_two_parts_of_a_listing_ends_it() {
        let (mut names, total) = (Names::default(), Arc::default());
        names.set(&total, b"x", Name::Changing { count: 1, several: false });
        names.change_begins();
        names.list(&total, 0, &entries(&[(3, "a")]), false);
        assert!(names.change_ends(), "it was alone");
        names.unknow(b"x");
        names.list(&total, 3, &entries(&[(9, "c")]), true);
        assert_eq!((leads(&names, "x"), leads(&names, "z")), (None, None));
    }

    #[test]
    fn of_changes_at_once_none_is_alone() {
        let mut names = Names::default();
        names.change_begins();
        names.change_begins();
        assert!(!names.change_ends());
        assert!(!names.change_ends());
        names.change_begins();
        assert!(names.change_ends());
    }
}
