//! All names of a directory, while nobody else is there: a directory made here has none at first, one that was there before is listed. A
//! name that is not among them is absent, and nobody need be asked. Copying a tree looks for every name before it makes it.
//!
//! Invariants: the table holds (hashes of) at least the names that the directory has, of those that come before where its
//! listing stands. Where an inode stands with a hash, exactly one name has that hash, and leads there. While a name is changed at the
//! manager it is not known where it leads. It counts only under the claim of all tokens it began under. Two names of one hash cost a
//! question, nothing else; nobody can choose them so, since each table hashes by a key of its own.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use base::InodeNo;
use wire::mgr::{DirEntry, FileKind};

use super::hint::Hint;
use crate::sharing::state::Claim;

/// Names kept in all directories together, some 40 bytes each.
const NAMES_MAX: usize = 1 << 20;
/// Names of a directory that are listed.
const LISTED_MAX: usize = 1 << 17;

/// It is not known which names have this hash.
const UNSURE: u64 = 0;
/// One name of this hash is being changed at the manager. Beside it stands where it led before; 0: nothing had the hash.
const CHANGING: u64 = 1 << 63;
/// It leads to what is certainly no directory.
const NO_DIRECTORY: u64 = 1 << 62;

/// What stands with the hash of a name that leads to an inode. Numbers that would not fit are not known.
fn lead(ino: InodeNo, no_directory: bool) -> u64 {
    match (1..NO_DIRECTORY).contains(&ino.0) {
        true => ino.0 | if no_directory { NO_DIRECTORY } else { 0 },
        false => UNSURE,
    }
}

/// The inode of it.
fn ino_of(lead: u64) -> InodeNo {
    InodeNo(lead & !(CHANGING | NO_DIRECTORY))
}

/// Which names are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    All,
    /// Those up to this cookie, and what was changed since that listing began.
    To(u64),
    /// They are too many.
    None,
}

/// All names that a directory has.
pub(crate) struct AllNames {
    claim: Claim,
    number: u64,
    hasher: RandomState,
    known: Known,
    inodes: HashMap<u64, u64>,
    total: Arc<AtomicUsize>,
}

impl Drop for AllNames {
    fn drop(&mut self) {
        self.total.fetch_sub(self.inodes.len(), Relaxed);
    }
}

impl AllNames {
    /// Of a directory made under `claim`; `total` counts the names of all.
    pub fn of_new(claim: Claim, total: Arc<AtomicUsize>) -> AllNames {
        AllNames::begin(claim, total, Known::All)
    }

    /// Of a directory that will be listed from its start. No change of its names is under way.
    pub fn of_old(claim: Claim, total: Arc<AtomicUsize>) -> AllNames {
        AllNames::begin(claim, total, Known::To(0))
    }

    fn begin(claim: Claim, total: Arc<AtomicUsize>, known: Known) -> AllNames {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        AllNames { claim, number, hasher: RandomState::new(), known, inodes: HashMap::new(), total }
    }

    /// The claim that it counts under.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// Its own: what was listed for another table of the same directory says nothing of this one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The cookie from which the listing goes on, if it is to.
    pub fn goes_on(&self) -> Option<u64> {
        match self.known {
            Known::To(cookie) => Some(cookie),
            _ => None,
        }
    }

    /// What was listed from a cookie on, asked for since the table began. `end`: nothing follows.
    pub fn list(&mut self, from: u64, entries: &[DirEntry], end: bool) {
        if self.known != Known::To(from) {
            return; // somebody else has listed it
        }
        for DirEntry { name, ino, kind, .. } in entries {
            match self.inodes.entry(self.hash(name)) {
                // Changed meanwhile, or of two names.
                Entry::Occupied(mut entry) => _ = entry.insert(UNSURE),
                Entry::Vacant(entry) => {
                    entry.insert(lead(*ino, *kind != FileKind::Directory));
                    self.count();
                }
            }
            if self.known == Known::None {
                return;
            }
        }
        self.known = match entries.last() {
            _ if end => Known::All,
            Some(last) if last.cookie > from && self.inodes.len() < LISTED_MAX => Known::To(last.cookie),
            _ => return self.give_up(),
        };
    }

    /// A name will be changed at the manager.
    pub fn doubt(&mut self, name: &[u8]) {
        if self.known == Known::None {
            return;
        }
        match self.inodes.entry(self.hash(name)) {
            Entry::Occupied(mut entry) => {
                let before = *entry.get();
                let alone = before & CHANGING == 0 && before != UNSURE;
                entry.insert(if alone { before | CHANGING } else { UNSURE });
            }
            Entry::Vacant(entry) => {
                entry.insert(CHANGING);
                self.count();
            }
        }
    }

    /// That change was answered: where the name leads now, if it is known; `changed` unless it was refused.
    pub fn settle(&mut self, name: &[u8], changed: bool, leads: Option<Hint>) {
        let Entry::Occupied(mut entry) = self.inodes.entry(self.hash(name)) else { return };
        if entry.get() & CHANGING == 0 {
            return;
        }
        let before = entry.get() & !CHANGING;
        // None: no name has the hash.
        let now = match leads {
            // What is listed later may be older.
            _ if self.known != Known::All => Some(UNSURE),
            _ if !changed => (before != 0).then_some(before),
            Some(Hint { ino: InodeNo(0), .. }) => None,
            // If there was one, the name may be another of its hash.
            Some(Hint { ino, is_file }) if before == 0 || ino_of(before) == ino => Some(lead(ino, is_file)),
            _ => Some(UNSURE),
        };
        match now {
            Some(now) => _ = entry.insert(now),
            None => {
                entry.remove();
                self.total.fetch_sub(1, Relaxed);
            }
        }
    }

    /// A name is made that was certainly absent. False: it may be there, or there are too many.
    pub fn make(&mut self, name: &[u8], ino: InodeNo, no_directory: bool) -> bool {
        if self.may_hold(name) {
            return false;
        }
        self.inodes.insert(self.hash(name), lead(ino, no_directory));
        self.count();
        self.known == Known::All
    }

    /// A name that leads to this inode is removed.
    pub fn remove(&mut self, name: &[u8], ino: InodeNo) {
        let hash = self.hash(name);
        if self.inodes.get(&hash).is_some_and(|lead| *lead & CHANGING == 0 && ino_of(*lead) == ino) {
            self.inodes.remove(&hash);
            self.total.fetch_sub(1, Relaxed);
        }
    }

    /// A name that leads to one inode leads to another one, which is no directory.
    pub fn replace(&mut self, name: &[u8], old: InodeNo, new: InodeNo) {
        let there = self.inodes.get_mut(&self.hasher.hash_one(name));
        if let Some(there) = there.filter(|there| **there & CHANGING == 0 && ino_of(**there) == old) {
            *there = lead(new, true);
        }
    }

    /// Where a name leads, if that is certain.
    pub fn leads(&self, name: &[u8]) -> Option<InodeNo> {
        self.certain(name).map(ino_of)
    }

    /// Whether that is certainly no directory.
    pub fn leads_to_no_directory(&self, name: &[u8]) -> bool {
        self.certain(name).is_some_and(|lead| lead & NO_DIRECTORY != 0)
    }

    fn certain(&self, name: &[u8]) -> Option<u64> {
        let lead = *self.inodes.get(&self.hash(name)).filter(|_| self.known == Known::All)?;
        (lead != UNSURE && lead & CHANGING == 0).then_some(lead)
    }

    /// Whether a name is perhaps there.
    pub fn may_hold(&self, name: &[u8]) -> bool {
        self.known != Known::All || self.inodes.contains_key(&self.hash(name))
    }

    /// Whether there is certainly no name.
    pub fn is_empty(&self) -> bool {
        self.known == Known::All && self.inodes.is_empty()
    }

    /// One more; if that are too many nothing is known of the directory any more.
    fn count(&mut self) {
        if self.total.fetch_add(1, Relaxed) >= NAMES_MAX {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.known = Known::None;
        self.total.fetch_sub(self.inodes.len(), Relaxed);
        self.inodes = HashMap::new();
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::state::Sharing;

    fn claim() -> Claim {
        Sharing::whole(base::Grant(1)).now().claim()
    }

    fn entry(cookie: u64) -> DirEntry {
        let name = format!("n{cookie}").into_bytes();
        DirEntry { name, ino: InodeNo(100 + cookie), kind: FileKind::File, cookie, attr: None }
    }

    fn leads(ino: u64) -> Option<Hint> {
        Some(Hint { ino: InodeNo(ino), is_file: ino != 7 })
    }

    #[test]
    fn an_old_directory_is_known_when_it_is_listed_to_its_end() {
        let total: Arc<AtomicUsize> = Arc::default();
        let mut names = AllNames::of_old(claim(), total.clone());
        assert_eq!((names.goes_on(), names.may_hold(b"z"), names.is_empty()), (Some(0), true, false));
        names.list(0, &[entry(3), entry(5)], false);
        assert_eq!((names.goes_on(), names.leads(b"n3"), names.may_hold(b"z")), (Some(5), None, true));
        names.list(0, &[entry(3)], true);
        assert_eq!(names.goes_on(), Some(5), "a listing that comes late");
        names.list(5, &[entry(9)], true);
        assert_eq!((names.leads(b"n3"), names.may_hold(b"z")), (Some(InodeNo(103)), false));
        drop(names);
        assert_eq!(total.load(Relaxed), 0);
    }

    #[test]
    fn what_is_changed_while_it_is_listed_is_not_believed() {
        let mut names = AllNames::of_old(claim(), Arc::default());
        // Each is answered before the listing is, which may have been read before or after.
        for (name, ino) in [(b"n3", 0), (b"n5", 105), (b"n7", 0)] {
            names.doubt(name);
            names.settle(name, true, leads(ino));
        }
        names.doubt(b"n9");
        names.list(0, &[entry(3), entry(5)], true);
        names.settle(b"n9", true, leads(0));
        for name in [b"n3", b"n5", b"n7"] {
            assert_eq!((names.leads(name), names.may_hold(name)), (None, true));
        }
        assert!(!names.may_hold(b"n9"), "its change was answered when all was listed");
    }

    #[test]
    fn a_change_at_the_manager_is_learned_if_it_was_alone() {
        let total: Arc<AtomicUsize> = Arc::default();
        let mut names = AllNames::of_new(claim(), total.clone());
        let change = |names: &mut AllNames, changed, ino: u64| {
            names.doubt(b"n");
            assert_eq!((names.leads(b"n"), names.may_hold(b"n")), (None, true));
            names.settle(b"n", changed, leads(ino));
            names.leads(b"n").map(|ino| ino.0)
        };
        assert_eq!(change(&mut names, true, 7), Some(7), "made");
        assert_eq!(change(&mut names, false, 0), Some(7), "refused");
        assert_eq!(change(&mut names, true, 0), None, "removed");
        assert!(names.is_empty() && total.load(Relaxed) == 0);
        assert_eq!(change(&mut names, false, 0), None, "refused");
        assert!(names.is_empty());
        assert_eq!(change(&mut names, true, 7), Some(7));
        assert_eq!(change(&mut names, true, 8), None, "it may be a second name of this hash");
        let mut names = AllNames::of_new(claim(), total);
        names.doubt(b"n");
        names.doubt(b"n");
        names.settle(b"n", true, leads(0));
        names.settle(b"n", true, leads(7));
        assert_eq!((names.leads(b"n"), names.may_hold(b"n")), (None, true), "two at once");
    }

    #[test]
    fn of_some_names_it_is_known_that_they_lead_to_no_directory() {
        let mut names = AllNames::of_old(claim(), Arc::default());
        let directory = DirEntry { kind: FileKind::Directory, ..entry(4) };
        names.list(0, &[entry(3), directory], true);
        let is = |names: &AllNames, name: &str| names.leads_to_no_directory(name.as_bytes());
        assert_eq!((is(&names, "n3"), is(&names, "n4"), is(&names, "n5")), (true, false, false));
        assert!(names.make(b"file", InodeNo(20), true) && names.make(b"dir", InodeNo(21), false));
        assert_eq!((is(&names, "file"), is(&names, "dir")), (true, false));
        assert_eq!((names.leads(b"file"), names.leads(b"dir")), (Some(InodeNo(20)), Some(InodeNo(21))));
        names.replace(b"file", InodeNo(20), InodeNo(22));
        assert_eq!((names.leads(b"file"), is(&names, "file")), (Some(InodeNo(22)), true));
        names.doubt(b"file");
        assert!(!is(&names, "file"), "it is being changed");
        names.settle(b"file", false, None);
        assert!(is(&names, "file"), "that was refused");
        for (ino, known) in [(8, true), (7, false)] {
            names.doubt(b"new");
            names.settle(b"new", true, leads(ino));
            assert_eq!((names.leads(b"new"), is(&names, "new")), (Some(InodeNo(ino)), known));
            names.remove(b"new", InodeNo(ino));
        }
        names.remove(b"file", InodeNo(22));
        names.remove(b"dir", InodeNo(21));
        assert!(!names.may_hold(b"file") && !names.may_hold(b"dir") && !names.may_hold(b"new"));
    }

    #[test]
    fn too_many_names_are_not_known() {
        let total = Arc::new(AtomicUsize::new(NAMES_MAX - 1));
        let mut names = AllNames::of_old(claim(), total.clone());
        names.list(0, &[entry(3), entry(5)], true);
        assert_eq!((names.goes_on(), names.may_hold(b"z"), names.is_empty()), (None, true, false));
        names.doubt(b"n");
        names.settle(b"n", true, leads(0));
        assert!(names.may_hold(b"n"));
        assert_eq!(total.load(Relaxed), NAMES_MAX - 1);
        let mut names = AllNames::of_old(claim(), Arc::default());
        names.list(0, &[], false);
        assert_eq!(names.goes_on(), None, "a listing that does not move on");
    }
}
