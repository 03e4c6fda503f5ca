//! What a keeper is asked twice, late, or after its disk failed.

use std::{fs, path::Path, sync::atomic::Ordering::SeqCst};

use wire::frame;

use super::{
    super::{Changes, JournaledStore, RedbStore},
    Keeper,
    message::{Answer, Ask, Life},
    tests::{Map, all},
};

struct Kept {
    room: tempfile::TempDir,
    keeper: Keeper,
}

impl Kept {
    fn new() -> Kept {
        let room = tempfile::tempdir().unwrap();
        Kept { keeper: Keeper::new(room.path()), room }
    }

    fn ask(&self, ask: Ask) -> Answer {
        frame::decode(&self.keeper.answer(&frame::encode(&ask))).unwrap()
    }

    fn done(&self, ask: Ask) {
        assert_eq!(self.ask(ask.clone()), Answer::Done, "{ask:?}");
    }

    fn refused(&self, ask: Ask, why: &str) {
        match self.ask(ask.clone()) {
            Answer::Refused { why: said } => assert!(said.contains(why), "{ask:?}: {said}"),
            other => panic!("{ask:?}: {other:?}"),
        }
    }

    /// A copy without anything in it, after commit 4.
    fn make(&self, life: Life) {
        self.done(Ask::Make { life, journal: 3, last: 4 });
        self.done(Ask::Made { life });
    }

    fn last(&self, life: Life) -> u64 {
        match self.ask(Ask::Look { life }) {
            Answer::Held { last, .. } => last,
            other => panic!("{other:?}"),
        }
    }

    fn holds(self) -> Map {
        drop(self.keeper);
        all(&JournaledStore::open(&self.room.path().join("store.redb"), 1 << 20).unwrap())
    }
}

fn value(key: u8, value: u8) -> Changes {
    Changes::from([(vec![key], Some(vec![value]))])
}

fn life(copy: u64) -> Life {
    Life::new(1, copy)
}

#[test]
fn what_comes_twice_and_late_gets_into_no_other_commit_and_into_no_other_copy() {
    let (kept, life) = (Kept::new(), life(1));
    let part = || Ask::Part { life, number: 5, changes: value(9, 1) };
    kept.done(Ask::Make { life, journal: 3, last: 4 });
    kept.refused(Ask::Records { life, last: 2, records: vec![(vec![8], vec![0])] }, "not after 2");
    for ask in [
        Ask::Records { life, last: 4, records: vec![(vec![7], vec![0])] },
        Ask::Made { life },
        part(),
        part(),
        Ask::Commit { life, number: 5, changes: Changes::new() },
        Ask::Commit { life, number: 6, changes: value(9, 2) },
        part(),
        Ask::Commit { life, number: 7, changes: value(6, 0) },
    ] {
        kept.done(ask);
    }
    assert_eq!(kept.holds(), Map::from([(vec![6], vec![0]), (vec![7], vec![0]), (vec![9], vec![2])]));
}

/// A question is asked again on another connection; the first one comes when an answer to the second was heard.
#[test]
fn a_late_look_takes_no_part_of_a_commit_away() {
    let (kept, life) = (Kept::new(), life(1));
    kept.make(life);
    kept.done(Ask::Count { life, id: 9 });
    kept.done(Ask::Part { life, number: 5, changes: value(1, 1) });
    assert_eq!(kept.last(life), 4);
    kept.done(Ask::Commit { life, number: 5, changes: value(2, 2) });
    assert_eq!(kept.holds(), Map::from([(vec![1], vec![1]), (vec![2], vec![2])]));
}

#[test]
fn what_an_earlier_copy_or_manager_sends_late_undoes_nothing() {
    let kept = Kept::new();
    for (copy, id) in [(1, 11), (2, 12)] {
        kept.make(life(copy));
        kept.done(Ask::Count { life: life(copy), id });
    }
    for late in [
        Ask::Make { life: life(1), journal: 3, last: 4 },
        Ask::Look { life: life(1) },
        Ask::Commit { life: life(1), number: 5, changes: value(1, 1) },
        Ask::Made { life: life(1) },
        Ask::Count { life: life(1), id: 11 },
        Ask::Forget { id: 11 },
    ] {
        let _ = kept.ask(late); // nobody hears the answer
        kept.done(Ask::Beat { life: life(2) });
    }
    // The one that counts is made once.
    kept.done(Ask::Make { life: life(2), journal: 3, last: 4 });
    kept.done(Ask::Beat { life: life(2) });
    // Another process of the manager takes it over; what the one before it sent is over.
    let new = Life::new(2, 1);
    assert_eq!(kept.last(new), 4);
    kept.done(Ask::Commit { life: new, number: 5, changes: value(2, 2) });
    for late in [Ask::Look { life: life(3) }, Ask::Make { life: life(3), journal: 3, last: 4 }] {
        kept.refused(late, "is over");
        kept.done(Ask::Beat { life: new });
    }
    // Under the number of a commit another one stands.
    kept.refused(Ask::Commit { life: new, number: 5, changes: value(2, 3) }, "is another one here");
    kept.done(Ask::Commit { life: new, number: 5, changes: value(2, 2) });
    kept.done(Ask::Forget { id: 12 });
    kept.done(Ask::Forget { id: 12 });
    kept.refused(Ask::Make { life: new, journal: 3, last: 4 }, "is no more");
    kept.make(new.next());
    assert_eq!(kept.holds(), Map::new());
}

/// What a failed flush leaves in memory reads as if it were on the disk.
#[test]
fn a_copy_whose_disk_failed_is_not_opened_again() {
    let (kept, life) = (Kept::new(), life(1));
    kept.make(life);
    kept.done(Ask::Count { life, id: 9 });
    kept.keeper.flush_fails.store(true, SeqCst);
    let commit = || Ask::Commit { life, number: 5, changes: value(1, 1) };
    kept.refused(commit(), "EIO");
    kept.keeper.flush_fails.store(false, SeqCst);
    kept.refused(Ask::Look { life }, "EIO");
    kept.refused(commit(), "no copy is open");
    kept.refused(Ask::Beat { life }, "no copy that counts");
    kept.done(Ask::Forget { id: 9 });
    kept.make(life.next());
    kept.done(Ask::Count { life: life.next(), id: 10 });
    assert_eq!(kept.last(life.next()), 4);
}

/// A crash between any two of the renames by which a copy takes the place of the one before.
#[test]
fn half_of_a_copys_files_in_their_places_are_no_copy_and_in_no_ones_way() {
    for renamed in 0..=3 {
        let kept = Kept::new();
        kept.make(life(1));
        kept.done(Ask::Commit { life: life(1), number: 5, changes: value(1, 1) });
        kept.done(Ask::Count { life: life(1), id: 9 });
        kept.done(Ask::Make { life: life(2), journal: 3, last: 5 });
        let Kept { room, keeper } = kept;
        drop(keeper);
        let (new, table) = (room.path().join("new.redb"), room.path().join("store.redb"));
        fs::remove_file(&new).unwrap();
        JournaledStore::continue_as(RedbStore::create(&new, 1 << 20).unwrap(), &new, 3, 5).unwrap();
        let file = |of: &Path, extension: &str| of.with_extension(extension);
        for extension in ["journal", "mark", "redb"].into_iter().take(renamed) {
            fs::rename(file(&new, extension), file(&table, extension)).unwrap();
        }
        let kept = Kept { keeper: Keeper::new(room.path()), room };
        assert_eq!(kept.keeper.commits(), None);
        kept.refused(Ask::Look { life: life(3) }, "no copy there has all");
        kept.done(Ask::Ready);
        kept.make(life(3));
        kept.done(Ask::Commit { life: life(3), number: 5, changes: value(2, 2) });
        assert!(["redb", "journal", "mark"].iter().all(|left| !file(&new, left).exists()));
        assert_eq!(kept.holds(), Map::from([(vec![2], vec![2])]), "{renamed}");
    }
}
