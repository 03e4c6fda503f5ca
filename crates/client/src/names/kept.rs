//! What is kept of the names of one directory under its token. Pure data; who may keep it, and when, is decided in
//! [`super::directory`].
//!
//! Invariant: a name leads where the manager said that it does, and no change of it by this client was under way in
//! between. While *all* names are kept (the directory was empty when the token came, or was listed to its end), any
//! other name leads nowhere.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use base::InodeNo;
use wire::mgr::{DirEntry, FileKind};

use super::hint::Hint;

/// Names kept in all directories together, some 100 bytes each.
const KEPT_MAX: usize = 1 << 18;
/// Questions about an inode after which its token is asked for: when the question is about its attributes, which come
/// with the token; when it is not; and when the token was recalled before, since somebody changes there.
const QUESTIONS: (u32, u32, u32) = (1, 2, 4);

/// Questions about names of a directory, put to the manager one by one, after which a page of it is listed, and names of
/// a page. Each time that a listing is lost (this client or others change the directory, or there is no room) it takes twice
/// as many, until a page costs a name for each question.
const QUESTIONS_A_PAGE: u32 = 16;
const PAGE: u32 = 1024;
/// Before, the same once: most directories are small, and a tree is gone through with some questions in each.
const FIRST_PAGE: (u32, u32) = (2, 64);
const LOSSES_MAX: u32 = (PAGE / QUESTIONS_A_PAGE).ilog2();

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

/// A question that was put about a name.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    number: u64,
    generation: u64,
}

/// What was known and changed when something was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    generation: u64,
    changes: u64,
}

/// See the file's head.
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
    under_way: u32,
    several: bool,
    /// Counts how often this was forgotten and begun anew.
    generation: u64,
    /// Counts beginnings and ends of changes.
    changes: u64,
    /// Number of the last question about a name.
    asked: u64,
    /// Questions since the token was there last.
    questions: u32,
    recalled: bool,
    /// Questions about names since a page was listed, whether any was, whether one is being listed, and how often what was listed was lost.
    since_page: u32,
    paged: bool,
    paging: bool,
    losses: u32,
    /// A change may be made of which this client will not hear.
    spoiled: bool,
    /// Names kept in all directories.
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
        self.generation += 1;
        self.lose_listing();
        (self.questions, self.complete) = Default::default();
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
    fn forget_name(&mut self, name: &[u8]) {
        self.counted(|names| match names.complete {
            true => _ = names.names.insert(name.to_vec(), Name::Unsure),
            false => _ = names.names.remove(name),
        });
    }

    /// Where a name leads, if that is known.
    pub fn known(&self, name: &[u8]) -> Option<Hint> {
        match self.names.get(name) {
            Some(Name::Leads(hint)) => Some(*hint),
            None if self.complete && name != b"." && name != b".." => Some(Hint::NOTHING),
            _ => None,
        }
    }

    /// Keeps what was listed from a cookie on. `end`: nothing follows.
    pub fn list(&mut self, total: &Arc<AtomicUsize>, from: u64, entries: &[DirEntry], end: bool) {
        if self.complete {
            return;
        }
        for entry in entries {
            if matches!(self.names.get(&entry.name), Some(Name::Changing { .. })) {
                continue;
            }
            if total.load(Relaxed) >= KEPT_MAX {
                self.lose_listing();
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

    /// A change of the inode by this client begins.
    pub fn begin_change(&mut self) {
        self.changed();
        self.under_way += 1;
        self.several |= self.under_way > 1;
    }

    /// A listing that goes on knows no more of what was listed before.
    fn changed(&mut self) {
        self.changes += 1;
        if !self.complete {
            self.lose_listing();
        }
    }

    /// What is listed next is not joined to what was.
    fn lose_listing(&mut self) {
        let lost = self.listed_to.take().is_some();
        self.losses = (self.losses + u32::from(lost)).min(LOSSES_MAX);
    }

    /// A change ends; whether it was the only one all the time.
    pub fn end_change(&mut self) -> bool {
        debug_assert!(self.under_way > 0, "none ends that did not begin");
        self.changed();
        self.under_way -= 1;
        let alone = !self.several;
        self.several &= self.under_way > 0;
        alone
    }

    /// Whether no change by this client is under way.
    pub fn is_still(&self) -> bool {
        self.under_way == 0
    }

    /// Where a listing stands, or a question for the token; see [`Names::is_at`].
    pub fn position(&self) -> Position {
        Position { generation: self.generation, changes: self.changes }
    }

    /// Whether nothing was forgotten or changed since.
    pub fn is_at(&self, position: Position) -> bool {
        self.position() == position
    }

    /// The token is there, asked for at `asked`: what is kept begins anew. `empty`: the directory had no names.
    pub fn begin(&mut self, empty: bool, asked: Position) {
        self.forget();
        self.complete = empty && self.changes == asked.changes && self.is_still();
    }

    /// The directory was made here.
    pub fn made_here(&mut self) {
        self.new = true;
    }

    /// Somebody asks the manager about the inode without its token; whether it is worth asking for now. `attr`: the
    /// question is for its attributes.
    pub fn wants_token(&mut self, attr: bool) -> bool {
        self.questions += 1;
        let (with, without, again) = QUESTIONS;
        let enough = match self.recalled {
            true => again,
            false if attr || std::mem::take(&mut self.new) => with,
            false => without,
        };
        self.questions >= enough
    }

    /// Somebody is about to ask the manager for one more name. The cookie from which a page is to be listed now, and how many names
    /// at most, if that is worth it: then [`Names::end_page`] follows.
    pub fn begin_page(&mut self, total: &AtomicUsize) -> Option<(u64, u32)> {
        self.since_page += 1;
        let (enough, names) = if self.paged { (QUESTIONS_A_PAGE << self.losses, PAGE) } else { FIRST_PAGE };
        let room = total.load(Relaxed) + PAGE as usize <= KEPT_MAX;
        if self.since_page < enough || self.paging || self.complete || !room {
            return None;
        }
        (self.since_page, self.paging, self.paged) = (0, true, true);
        Some((self.listed_to.unwrap_or(0), names))
    }

    /// The page from this cookie on is there and was kept, if it could be.
    pub fn end_page(&mut self, from: u64) {
        self.paging = false;
        if !self.complete && self.listed_to <= Some(from) {
            self.losses = (self.losses + 1).min(LOSSES_MAX);
        }
    }

    /// It is not known any more whether what is kept is true, or stays so.
    pub fn spoil(&mut self) {
        self.spoiled = true;
        self.forget();
    }

    /// Whether a change may be made of which this client will not hear.
    pub fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Somebody asks where a name leads; the answer is not kept if this client is changing it.
    pub fn ask(&mut self, total: &Arc<AtomicUsize>, name: &[u8]) -> Option<Asked> {
        if matches!(self.names.get(name), Some(Name::Changing { .. })) {
            return None;
        }
        self.asked += 1;
        self.set(total, name, Name::Asked(self.asked));
        Some(Asked { number: self.asked, generation: self.generation })
    }

    /// The answer: where the name leads, if that may be kept.
    pub fn answered(&mut self, name: &[u8], asked: Asked, hint: Option<Hint>) {
        let ours = matches!(self.names.get(name), Some(Name::Asked(number)) if *number == asked.number);
        if !ours || self.generation != asked.generation {
            return;
        }
        match hint {
            Some(hint) => _ = self.names.insert(name.to_vec(), Name::Leads(hint)),
            None => self.forget_name(name),
        }
    }

    /// A change of a name begins; returns the generation in which it does.
    pub fn begin_name_change(&mut self, total: &Arc<AtomicUsize>, name: &[u8]) -> u64 {
        let now = match self.names.get(name) {
            Some(Name::Changing { count, .. }) => Name::Changing { count: count + 1, several: true },
            _ => Name::Changing { count: 1, several: false },
        };
        self.set(total, name, now);
        self.generation
    }

    /// It ends: where the name leads by it, if that is known and may be kept.
    pub fn end_name_change(&mut self, name: &[u8], generation: u64, hint: Option<Hint>) {
        let hint = hint.filter(|_| self.generation == generation);
        match (self.names.get_mut(name), hint) {
            (Some(Name::Changing { count: count @ 2.., .. }), _) => *count -= 1,
            (Some(Name::Changing { several: false, .. }), Some(Hint { ino: InodeNo(0), .. }))
                if self.complete =>
            {
                self.counted(|names| _ = names.names.remove(name));
            }
            (Some(Name::Changing { several: false, .. }), Some(hint)) => {
                self.names.insert(name.to_vec(), Name::Leads(hint));
            }
            _ => self.forget_name(name),
        }
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
        names.forget_name(b"a");
        assert_eq!((leads(&names, "a"), leads(&names, "z")), (None, Some(0)));
        names.forget();
        assert_eq!((leads(&names, "b"), leads(&names, "z"), total.load(Relaxed)), (None, None, 0));
        names.list(&total, 5, &entries(&[(9, "c")]), true);
        assert_eq!(leads(&names, "z"), None, "what comes before was not listed");
    }

    #[test]
    fn who_asks_for_many_names_gets_pages() {
        let (mut names, total) = (Names::default(), Arc::default());
        let asked = |names: &mut Names| (1..).find_map(|n| names.begin_page(&total).map(|page| (n, page)));
        assert_eq!(asked(&mut names), Some((2, (0, 64))));
        assert_eq!((0..100).find_map(|_| names.begin_page(&total)), None, "one at a time");
        names.list(&total, 0, &entries(&[(3, "a"), (5, "b")]), false);
        names.end_page(0);
        assert_eq!(asked(&mut names).map(|(_, page)| page), Some((5, PAGE)), "it goes on where it was");
        names.list(&total, 5, &entries(&[(9, "c")]), true);
        names.end_page(5);
        assert_eq!((0..100).find_map(|_| names.begin_page(&total)), None, "all are known");
        names.forget();
        total.store(KEPT_MAX, Relaxed);
        assert_eq!((0..100).find_map(|_| names.begin_page(&total)), None, "no room");
    }

    #[test]
    fn pages_that_are_lost_become_rare() {
        let (mut names, total) = (Names::default(), Arc::default());
        let page = |names: &mut Names| (1..).find(|_| names.begin_page(&total).is_some()).unwrap();
        let mut after = Vec::new();
        for round in 0..9 {
            after.push(page(&mut names));
            if round % 2 == 0 {
                names.list(&total, 0, &entries(&[(3, "a")]), false);
                names.end_page(0);
                names.begin_change();
                names.end_change();
            } else {
                // It was changed while it was listed, or may not be listed.
                names.end_page(0);
            }
        }
        assert_eq!(after, [2, 32, 64, 128, 256, 512, PAGE, PAGE, PAGE]);
    }

    #[test]
    fn a_change_between_two_parts_of_a_listing_ends_it() {
        let (mut names, total) = (Names::default(), Arc::default());
        names.set(&total, b"x", Name::Changing { count: 1, several: false });
        names.begin_change();
        names.list(&total, 0, &entries(&[(3, "a")]), false);
        assert!(names.end_change(), "it was alone");
        names.forget_name(b"x");
        names.list(&total, 3, &entries(&[(9, "c")]), true);
        assert_eq!((leads(&names, "x"), leads(&names, "z")), (None, None));
    }

    #[test]
    fn of_changes_at_once_none_is_alone() {
        let mut names = Names::default();
        names.begin_change();
        names.begin_change();
        assert!(!names.end_change());
        assert!(!names.end_change());
        names.begin_change();
        assert!(names.end_change());
    }
}
