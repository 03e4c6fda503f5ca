//! The copy's tests: whatever ends the process, and whatever its disk does, what was acknowledged is in both, or the witness says
//! that the copy is behind.

use std::{collections::BTreeMap, fs, ops::ControlFlow, time::Instant};

use super::{super::RedbStore, side::Trouble, witness::Said, *};

pub(super) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

struct Machine {
    _dir: tempfile::TempDir,
    /// The manager's directory, and its table.
    own: PathBuf,
    table: PathBuf,
    mirror: Mirror,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let (own, copy) = (dir.path().join("manager"), dir.path().join("copy"));
        [&own, &copy].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let table = own.join("store.redb");
        drop(RedbStore::create(&table, 1 << 20).unwrap());
        let mirror = Mirror::new(&copy, &dir.path().join("mirror"));
        Machine { own, table, mirror, _dir: dir }
    }

    fn open(&self) -> MirroredStore {
        MirroredStore::open(&self.table, 1 << 20, Arc::new(self.mirror.clone()), None).unwrap()
    }

    fn promote(&self) -> Result<u64, String> {
        self.mirror.promote(&self.own).map_err(|error| error.to_string())
    }
}

pub(super) fn put(n: u32) -> Changes {
    [
        (n.to_be_bytes().to_vec(), Some(vec![n as u8; n as usize % 900])),
        ((n / 2).to_be_bytes().to_vec(), None),
    ]
    .into()
}

pub(super) fn commit(store: &dyn Store, model: &mut Map, numbers: std::ops::Range<u32>) {
    for n in numbers {
        store.commit(&put(n)).unwrap();
        super::super::memory::apply(model, put(n));
    }
}

pub(super) fn all(store: &dyn Store) -> Map {
    let mut map = Map::new();
    let read = store.snapshot().unwrap().scan(&[], &[u8::MAX; 16], &mut |key, value| {
        map.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    read.unwrap();
    map
}

fn until(store: &MirroredStore, holds: impl Fn(&[Remark]) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds(&store.remarks()) {
        assert!(Instant::now() < until, "{:?}", store.remarks());
        thread::sleep(Duration::from_millis(5));
    }
}

fn whole(store: &MirroredStore) {
    until(store, <[Remark]>::is_empty);
}

#[test]
fn a_copy_is_made_while_commits_go_on_and_is_the_store_when_that_is_lost() {
    let (place, mut model) = (Machine::new(), Map::new());
    let in_the_way = place.mirror.dir.join("new.redb");
    fs::create_dir(&in_the_way).unwrap();
    let store = place.open();
    assert!(place.promote().unwrap_err().contains("lacks what was committed last"));
    fs::remove_dir(&in_the_way).unwrap();
    let mut n = 0;
    while !store.remarks().is_empty() {
        commit(&store, &mut model, n..n + 1);
        n += 1;
    }
    // More than a journal's round.
    commit(&store, &mut model, n..n + 2500);
    assert!(store.describe().contains("with a copy in"), "{}", store.describe());
    drop(store);
    let error = place.promote().unwrap_err();
    assert!(error.contains("is whole, and has all that the copy has"), "{error}");
    fs::remove_dir_all(&place.own).unwrap();
    place.promote().unwrap();
    let store = place.open();
    assert!(all(&store) == model && store.remarks().is_empty());
    commit(&store, &mut model, n + 3000..n + 3100);
    drop(store);
    // Damaged, not lost: it is moved away.
    fs::write(&place.table, "damaged").unwrap();
    place.promote().unwrap();
    assert!(all(&place.open()) == model && place.own.with_extension("lost.1").exists());
}

#[test]
fn how_the_copy_stands_is_told_while_a_commit_takes_long() {
    let place = Machine::new();
    fs::remove_dir(&place.mirror.dir).unwrap();
    let store = place.open();
    until(&store, |remarks| !remarks.is_empty());
    let commit = store.shared.side.lock();
    assert!(store.describe().ends_with("is behind") && !store.remarks().is_empty(), "{}", store.describe());
    drop(commit);
    fs::create_dir(&place.mirror.dir).unwrap();
    whole(&store);
    let commit = store.shared.side.lock();
    assert!(
        store.describe().contains("with a copy in") && store.remarks().is_empty(),
        "{}",
        store.describe()
    );
    drop(commit);
}

/// A crash in the middle of a commit leaves one of the two with it. Whichever, both have it afterwards.
#[test]
fn the_one_that_lacks_the_last_commit_gets_it_and_more_is_not_made_up() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    commit(&store, &mut model, 0..5);
    whole(&store);
    commit(&store, &mut model, 5..40);
    drop(store);
    let tables = [place.table.clone(), place.mirror.table()];
    for n in 50..60 {
        let one = JournaledStore::open(&tables[n as usize % 2], 1 << 20).unwrap();
        commit(&one, &mut model, n..n + 1);
        drop(one);
        let store = place.open();
        assert!(store.remarks().is_empty() && all(&store) == model, "{n}");
        drop(store);
        tables.iter().for_each(|table| assert!(all(&JournaledStore::open(table, 1 << 20).unwrap()) == model));
    }
    // Another one under the same number, and two more, are an older store: refused. Two less: the copy is made anew.
    for (own, copied, older) in [(70..71, 71..72, true), (80..82, 0..0, false), (0..0, 90..92, true)] {
        let before = model.clone();
        let copy = JournaledStore::open(&tables[1], 1 << 20).unwrap();
        commit(&copy, &mut before.clone(), copied);
        drop(copy);
        let one = JournaledStore::open(&tables[0], 1 << 20).unwrap();
        commit(&one, &mut model, own);
        drop(one);
        if older {
            let error = MirroredStore::open(&place.table, 1 << 20, Arc::new(place.mirror.clone()), None)
                .map(drop)
                .unwrap_err();
            assert!(error.to_string().contains("promote --from-mirror"), "{error}");
            assert!(matches!(place.mirror.said().unwrap(), Said::Whole(_)), "the copy counts still");
            place.mirror.say(Said::Behind).unwrap(); // it is given up
        }
        // No other copy is made before it was looked whether the one that was there counts.
        let in_the_way = place.mirror.dir.join("new.redb");
        fs::create_dir(&in_the_way).unwrap();
        let store = place.open();
        assert!(all(&store) == model && place.mirror.said().unwrap() == Said::Behind);
        fs::remove_dir(&in_the_way).unwrap();
        whole(&store);
        commit(&store, &mut model, 95..96);
        drop(store);
        assert!(all(&JournaledStore::open(&tables[1], 1 << 20).unwrap()) == model);
    }
}

#[test]
fn a_commit_with_which_a_journals_round_begins_is_brought_to_the_other_as_any() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    let large = |n: u8, bytes: usize| Changes::from([(vec![n], Some(vec![n; bytes]))]);
    whole(&store);
    store.commit(&large(1, 2 << 20)).unwrap();
    super::super::memory::apply(&mut model, large(1, 2 << 20));
    drop(store);
    for (n, of) in [(2, place.mirror.table()), (3, place.table.clone())] {
        let one = JournaledStore::open(&of, 1 << 20).unwrap();
        let fills = large(n, 3 << 20);
        for _ in 0..3 {
            one.commit(&fills).unwrap();
        }
        drop(one);
        let other = JournaledStore::open([&place.table, &place.mirror.table()][usize::from(n == 3)], 1 << 20);
        let other = other.unwrap();
        (0..2).for_each(|_| other.commit(&fills).unwrap());
        super::super::memory::apply(&mut model, fills);
        drop(other);
        let store = place.open();
        assert!(store.remarks().is_empty() && all(&store) == model, "{n}");
    }
}

/// Two managers on one store: the second is told so, and is not sent to the copy, which is the first one's.
#[test]
fn a_store_that_another_process_has_open_is_in_use_whatever_its_copy_has() {
    let place = Machine::new();
    let store = place.open();
    whole(&store);
    let again = MirroredStore::open(&place.table, 1 << 20, Arc::new(place.mirror.clone()), None).map(drop);
    assert!(matches!(again, Err(StoreError::InUse { .. })), "{again:?}");
    drop(store);
    assert!(place.open().remarks().is_empty());
}

#[test]
fn a_copy_that_fails_hangs_or_is_another_does_not_count_until_it_is_made_anew() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    whole(&store);
    for (n, trouble, why) in [(0, Trouble::Fails, "EIO"), (100, Trouble::Hangs, "did not answer within")] {
        commit(&store, &mut model, n..n + 10);
        *store.shared.trouble.lock() = Some(trouble);
        commit(&store, &mut model, n + 10..n + 11);
        // What was just acknowledged is only in the store, and that is durable.
        assert_eq!(place.mirror.said().unwrap(), Said::Behind);
        let error = place.promote().unwrap_err();
        assert!(error.contains("lacks what was committed last"), "{error}");
        let text = store.remarks().remove(0).text;
        assert!(text.contains(why), "{text}");
        commit(&store, &mut model, n + 11..n + 30);
        assert!(store.describe().contains("is behind"), "{}", store.describe());
        *store.shared.trouble.lock() = None;
        whole(&store);
    }
    // The disk does not answer when the store is opened: a file of it that nobody answers for. The start goes on without.
    drop(store);
    let number = place.mirror.dir.join("store.mirror");
    let said = fs::read_to_string(&number).unwrap();
    fs::remove_file(&number).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&number).status().unwrap().success());
    assert!(matches!(place.mirror.said().unwrap(), Said::Whole(_)));
    let store = place.open();
    assert_eq!(place.mirror.said().unwrap(), Said::Behind);
    assert!(store.remarks()[0].text.contains("did not answer within"), "{:?}", store.remarks());
    commit(&store, &mut model, 150..160);
    // It answers late: what was opened then does not count, and is made anew.
    fs::write(&number, said).unwrap();
    whole(&store);
    commit(&store, &mut model, 160..161);
    assert!(all(&store) == model);
    // The disk is not there: nothing is made in its place.
    drop(store);
    assert!(all(&JournaledStore::open(&place.mirror.table(), 1 << 20).unwrap()) == model);
    let away = place.mirror.dir.with_extension("away");
    fs::rename(&place.mirror.dir, &away).unwrap();
    let store = place.open();
    commit(&store, &mut model, 200..210);
    until(&store, |remarks| remarks[0].text.contains("No such file"));
    // An older copy comes back: its number is not the one that counted last.
    fs::create_dir(&place.mirror.dir).unwrap();
    whole(&store);
    drop(store);
    fs::rename(&place.mirror.dir, place.mirror.dir.with_extension("newer")).unwrap();
    fs::rename(&away, &place.mirror.dir).unwrap();
    fs::remove_dir_all(&place.own).unwrap();
    let error = place.promote().unwrap_err();
    assert!(error.contains("not the copy that was kept last"), "{error}");
    assert!(!place.own.exists());
}

/// The cluster's directory comes back from yesterday, when the copy had all.
#[test]
fn a_copy_that_was_given_up_is_none_to_an_older_witness() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    whole(&store);
    commit(&store, &mut model, 0..10);
    let earlier = fs::read(&place.mirror.witness).unwrap();
    // It is behind, and cannot be made anew.
    let in_the_way = place.mirror.dir.join("new.redb");
    fs::create_dir(&in_the_way).unwrap();
    *store.shared.trouble.lock() = Some(Trouble::Fails);
    commit(&store, &mut model, 10..20);
    *store.shared.trouble.lock() = None;
    until(&store, |remarks| remarks[0].text.contains("new.redb"));
    drop(store);
    fs::write(&place.mirror.witness, earlier).unwrap();
    fs::remove_dir_all(&place.own).unwrap();
    let error = place.promote().unwrap_err();
    assert!(error.contains("not the copy that was kept last"), "{error}");
}

/// Only the copy has the last commit, and the manager is killed again each time before the store has it.
#[test]
fn starts_that_are_killed_before_the_store_has_the_last_commit_are_begun_anew() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    whole(&store);
    commit(&store, &mut model, 0..40);
    drop(store);
    let one = JournaledStore::open(&place.mirror.table(), 1 << 20).unwrap();
    commit(&one, &mut model, 50..51);
    drop(one);
    for _ in 0..2 {
        let copy = Place::open(&place.mirror, None).unwrap();
        assert_eq!(copy.holds().1.map(|(_, changes)| changes), Some(put(50)));
    }
    let store = place.open();
    assert!(store.remarks().is_empty() && all(&store) == model);
    drop(store);
    assert!(all(&JournaledStore::open(&place.mirror.table(), 1 << 20).unwrap()) == model);
}

/// What a block holds that is damaged.
const RECORD: &[u8] = b"here stands what nobody reads at the start";

/// Flips a bit of it, wherever it stands: the engine leaves former copies of a page behind.
fn damage(table: &Path) {
    let whole = fs::read(table).unwrap();
    let mut bytes = whole.clone();
    let found = whole.windows(RECORD.len()).enumerate().filter(|(_, found)| *found == RECORD);
    found.for_each(|(at, _)| bytes[at] ^= 4);
    assert!(bytes != whole);
    fs::write(table, bytes).unwrap();
}

#[test]
fn a_whole_copy_is_taken_for_a_store_with_a_damaged_block_and_a_damaged_one_for_none() {
    let (place, mut model) = (Machine::new(), Map::new());
    let store = place.open();
    whole(&store);
    commit(&store, &mut model, 0..1000);
    let record = Changes::from([(b"record".to_vec(), Some(RECORD.to_vec()))]);
    store.commit(&record).unwrap();
    super::super::memory::apply(&mut model, record);
    drop(store);
    for table in [&place.table, &place.mirror.table()] {
        drop(JournaledStore::open(table, 1 << 20).unwrap()); // all is in the table
    }
    let error = place.promote().unwrap_err();
    assert!(error.contains("is whole, and has all that the copy has"), "{error}");
    let copied = fs::read(place.mirror.table()).unwrap();
    damage(&place.mirror.table());
    damage(&place.table);
    let error = place.promote().unwrap_err();
    assert!(error.contains("the copy is damaged as well"), "{error}");
    fs::write(place.mirror.table(), copied).unwrap();
    place.promote().unwrap();
    assert!(all(&place.open()) == model && place.own.with_extension("lost.1").exists());
}

/// The store was restored from a dump, or what was lost of it was given up: its numbers are others.
#[test]
fn a_copy_of_another_store_is_neither_given_up_nor_overwritten_unasked() {
    let (place, mut model) = (Machine::new(), Map::new());
    let another = || {
        fs::remove_dir_all(&place.own).unwrap();
        fs::create_dir(&place.own).unwrap();
        drop(RedbStore::create(&place.table, 1 << 20).unwrap());
    };
    let copy = |name: &str| all(&JournaledStore::open(&place.mirror.dir.join(name), 1 << 20).unwrap()) as Map;
    let store = place.open();
    whole(&store);
    commit(&store, &mut model, 0..50);
    drop(store);
    another();
    for _ in 0..2 {
        let opened = MirroredStore::open(&place.table, 1 << 20, Arc::new(place.mirror.clone()), None);
        let error = opened.map(drop).unwrap_err().to_string();
        assert!(error.contains("of another store") && error.contains("promote --from-mirror"), "{error}");
        assert!(matches!(place.mirror.said().unwrap(), Said::Whole(_)), "the copy counts still");
    }
    assert!(copy("store.redb") == model);
    // The other one is whole, and not what was asked for.
    place.promote().unwrap();
    let store = place.open();
    assert!(all(&store) == model);
    whole(&store);
    drop(store);
    // Given up it is not the copy any more, and its files stay.
    another();
    place.mirror.say(Said::Behind).unwrap();
    let (store, mut others) = (place.open(), Map::new());
    whole(&store);
    commit(&store, &mut others, 60..70);
    drop(store);
    assert!(copy("store.redb") == others && copy("store.former.1.redb") == model);
    // Those of a copy of this store, which is made anew, do not.
    place.mirror.say(Said::Behind).unwrap();
    whole(&place.open());
    assert!(!place.mirror.dir.join("store.former.2.redb").exists());
}
