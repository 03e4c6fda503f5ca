//! What this session holds of the file system as a whole, and what happens to that while questions are under way.
//!
//! An answer of the manager says what was so when it was given. Until it is taken in, tokens may be claimed, recalled
//! or given back here, and names be changed. Who asks takes a [`Moment`] before, and looks afterwards whether anything
//! happened that makes the answer too old:
//!
//! | since the question | what is not believed |
//! |---|---|
//! | a claim | a token: the claim did not name it |
//! | a recall | a token of an inode that was not known here: it may have been recalled |
//! | a token given back | attributes of a file: what was known here may have been newer |
//! | a change of a file answered, and what was known of it here dropped | the same |
//! | a change of names begun or ended | attributes of what is no file |
//! | a name made in a directory that is not followed | that a new directory is empty |
//!
//! Invariant: what happens is counted before the manager, or anybody else, can act on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use base::Grant;

/// See the file's head.
pub(crate) struct Sharing {
    /// The grant under which all tokens are held; 0: they are asked for one by one.
    whole: AtomicU64,
    claims: AtomicU64,
    recalls: AtomicU64,
    given_back: AtomicU64,
    /// Changes of files that the manager has answered.
    told: AtomicU64,
    /// The last of them of which nothing is known here any more.
    dropped: AtomicU64,
    /// Beginnings and ends of changes of names, and of attributes of what is no file.
    changes: AtomicU64,
    names_elsewhere: AtomicU64,
    /// The resolution under way, plus 1.
    resolving: AtomicU64,
    /// What is held is being claimed: nothing is done ahead of the manager.
    claiming: AtomicBool,
}

/// When a question was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    claims: u64,
    recalls: u64,
    given_back: u64,
    told: u64,
    changes: u64,
    names_elsewhere: u64,
}

/// A change of names that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangeBegun(u64);

/// A change that was answered while no other was under way: its answer tells the newest attributes, as long as none
/// has begun since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangeAlone(u64);

impl Sharing {
    /// The whole file system is held under `grant`.
    pub fn whole(grant: Grant) -> Sharing {
        let [claims, recalls, given_back, told, dropped, changes, names_elsewhere, resolving] =
            Default::default();
        let whole = AtomicU64::new(grant.0);
        let claiming = AtomicBool::new(false);
        Sharing {
            whole,
            claims,
            recalls,
            given_back,
            told,
            dropped,
            changes,
            names_elsewhere,
            resolving,
            claiming,
        }
    }

    /// The grant under which everything is held, while nobody else is there.
    pub fn whole_grant(&self) -> Option<Grant> {
        Some(Grant(self.whole.load(SeqCst))).filter(|grant| grant.0 > 0)
    }

    /// Everything is held under `grant`.
    pub fn set_whole(&self, grant: Grant) {
        self.whole.store(grant.0, SeqCst);
        self.claiming.store(false, SeqCst);
    }

    /// The session holds only what it asks for.
    pub fn set_split(&self) {
        self.whole.store(0, SeqCst);
    }

    /// The session holds only what it claims now, and asks for afterwards.
    pub fn begin_claim(&self) {
        self.claiming.store(true, SeqCst);
        self.set_split();
    }

    /// All that is held is claimed.
    pub fn end_claim(&self) {
        self.claiming.store(false, SeqCst);
    }

    /// Whether what is held is being claimed.
    pub fn is_claiming(&self) -> bool {
        self.claiming.load(SeqCst)
    }

    /// To be taken before a question is put.
    pub fn now(&self) -> Moment {
        Moment {
            claims: self.claims.load(SeqCst),
            recalls: self.recalls.load(SeqCst),
            given_back: self.given_back.load(SeqCst),
            told: self.told.load(SeqCst),
            changes: self.changes.load(SeqCst),
            names_elsewhere: self.names_elsewhere.load(SeqCst),
        }
    }

    /// The manager is about to be told all tokens that are held.
    pub fn note_claim(&self) {
        self.claims.fetch_add(1, SeqCst);
    }
    /// A token is recalled: before it is looked whether its inode is known.
    pub fn note_recall(&self) {
        self.recalls.fetch_add(1, SeqCst);
    }
    /// Tokens of files were given back.
    pub fn note_given_back(&self) {
        self.given_back.fetch_add(1, SeqCst);
    }
    /// A change of a file was answered; its number.
    pub fn note_told(&self) -> u64 {
        self.told.fetch_add(1, SeqCst) + 1
    }
    /// What is known here of a file is dropped; its last change had this number, 0: none. Before it can be asked for again.
    pub fn note_dropped(&self, told: u64) {
        self.dropped.fetch_max(told, SeqCst);
    }
    /// A name will be made in a directory of which not all names are known.
    pub fn note_name_elsewhere(&self) {
        self.names_elsewhere.fetch_add(1, SeqCst);
    }

    /// Whether tokens were claimed: one that was asked for before is not among them.
    pub fn claimed_since(&self, asked: Moment) -> bool {
        self.claims.load(SeqCst) != asked.claims
    }
    /// Whether tokens were claimed or recalled.
    pub fn claimed_or_recalled_since(&self, asked: Moment) -> bool {
        self.claimed_since(asked) || self.recalls.load(SeqCst) != asked.recalls
    }
    /// Whether tokens of files were given back.
    pub fn gave_back_since(&self, asked: Moment) -> bool {
        self.given_back.load(SeqCst) != asked.given_back
    }
    /// Whether a change of some file was answered of which nothing is known here any more.
    pub fn dropped_since(&self, asked: Moment) -> bool {
        self.dropped.load(SeqCst) > asked.told
    }
    /// Whether a change of names began or ended.
    pub fn changed_since(&self, asked: Moment) -> bool {
        self.changes.load(SeqCst) != asked.changes
    }
    /// Whether names were made in directories that are not followed.
    pub fn named_elsewhere_since(&self, asked: Moment) -> bool {
        self.names_elsewhere.load(SeqCst) != asked.names_elsewhere
    }
    /// Whether no tokens were claimed since this claim.
    pub fn same_claim(&self, claim: Claim) -> bool {
        self.claims.load(SeqCst) == claim.0
    }

    /// A change of names begins.
    pub fn begin_change(&self) -> ChangeBegun {
        ChangeBegun(self.changes.fetch_add(1, SeqCst) + 1)
    }
    /// Whether no other is under way, or was since this one began.
    pub fn is_alone(&self, change: ChangeBegun) -> bool {
        self.changes.load(SeqCst) == change.0
    }
    /// A change ends; whether it was alone all the time.
    pub fn end_change(&self, change: ChangeBegun) -> Option<ChangeAlone> {
        let before = self.changes.fetch_add(1, SeqCst);
        debug_assert!(before >= change.0, "it began before it ends");
        (before == change.0).then_some(ChangeAlone(before + 1))
    }
    /// Whether none has begun since.
    pub fn is_newest(&self, change: ChangeAlone) -> bool {
        self.changes.load(SeqCst) == change.0
    }

    /// A resolution of what ended sessions left begins; false if this one is under way.
    pub fn begin_resolution(&self, pass: u64) -> bool {
        self.resolving.swap(pass + 1, SeqCst) != pass + 1
    }
    /// It failed: it may begin again.
    pub fn resolution_failed(&self) {
        self.resolving.store(0, SeqCst);
    }
}

/// The claim of all tokens under which something began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim(u64);

impl Moment {
    /// The last claim before it.
    pub fn claim(self) -> Claim {
        Claim(self.claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_makes_old_what_it_should_and_nothing_else() {
        let sharing = Sharing::whole(Grant(3));
        let happened = |event: &dyn Fn()| {
            let asked = sharing.now();
            event();
            [
                sharing.claimed_since(asked),
                sharing.claimed_or_recalled_since(asked),
                sharing.gave_back_since(asked),
                sharing.dropped_since(asked),
                sharing.changed_since(asked),
                sharing.named_elsewhere_since(asked),
            ]
        };
        assert_eq!(happened(&|| ()), [false; 6]);
        assert_eq!(happened(&|| sharing.note_claim()), [true, true, false, false, false, false]);
        assert_eq!(happened(&|| sharing.note_recall()), [false, true, false, false, false, false]);
        assert_eq!(happened(&|| sharing.note_given_back()), [false, false, true, false, false, false]);
        assert_eq!(happened(&|| _ = sharing.begin_change()), [false, false, false, false, true, false]);
        assert_eq!(happened(&|| sharing.note_name_elsewhere()), [false, false, false, false, false, true]);
    }

    #[test]
    fn what_is_dropped_makes_old_what_was_asked_before_its_last_change() {
        let sharing = Sharing::whole(Grant(3));
        let asked = sharing.now();
        let told = sharing.note_told();
        assert!(!sharing.dropped_since(asked), "it is known here");
        sharing.note_dropped(0);
        assert!(!sharing.dropped_since(asked), "another file, which nobody has changed");
        let later = sharing.now();
        sharing.note_dropped(told);
        assert!(sharing.dropped_since(asked) && !sharing.dropped_since(later));
    }

    #[test]
    fn what_began_under_a_claim_ends_with_the_next() {
        let sharing = Sharing::whole(Grant(3));
        let claim = sharing.now().claim();
        sharing.note_recall();
        assert!(sharing.same_claim(claim));
        sharing.note_claim();
        assert!(!sharing.same_claim(claim) && sharing.same_claim(sharing.now().claim()));
    }

    #[test]
    fn of_changes_at_once_none_tells_the_newest() {
        let sharing = Sharing::whole(Grant(3));
        let (first, second) = (sharing.begin_change(), sharing.begin_change());
        assert!(!sharing.is_alone(first) && sharing.is_alone(second));
        assert_eq!(sharing.end_change(first), None);
        assert_eq!(sharing.end_change(second), None, "another ended meanwhile");
        let third = sharing.begin_change();
        let alone = sharing.end_change(third).unwrap();
        assert!(sharing.is_newest(alone));
        sharing.begin_change();
        assert!(!sharing.is_newest(alone));
    }

    #[test]
    fn a_file_system_is_held_whole_or_by_tokens() {
        let sharing = Sharing::whole(Grant(3));
        assert_eq!(sharing.whole_grant(), Some(Grant(3)));
        sharing.begin_claim();
        assert_eq!((sharing.whole_grant(), sharing.is_claiming()), (None, true));
        sharing.set_whole(Grant(5));
        assert_eq!((sharing.whole_grant(), sharing.is_claiming()), (Some(Grant(5)), false));
    }

    #[test]
    fn a_resolution_runs_once_until_it_fails() {
        let sharing = Sharing::whole(Grant(3));
        assert!(sharing.begin_resolution(0) && !sharing.begin_resolution(0));
        sharing.resolution_failed();
        assert!(sharing.begin_resolution(0) && sharing.begin_resolution(1));
    }
}
