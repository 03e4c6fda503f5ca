//! The store over a real etcd, which each test starts for itself.

mod migrate;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use etcd_client::{Client, GetOptions};

use super::{
    super::{
        Changes, Look, Read, RedbStore, Store, StoreError, journal_path,
        mark::{self, Acked, MarkFile},
        mark_path, memory,
        redb::Mark,
        volatile::{Fails, Volatile},
    },
    Following, Place, ReplicatedStore, Standing,
    member::Member,
    part::PART_BYTES,
    store::HELD_FOR,
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

impl Member {
    fn with<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { work(Client::connect([&self.address], None).await.unwrap()).await })
    }

    fn place(&self, prefix: &str) -> Place {
        format!("etcd://{}/{prefix}", self.address).parse().unwrap()
    }

    /// Numbers of the records there.
    fn records(&self, prefix: &str) -> Vec<u64> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        self.with(async |mut client| {
            let got = client.get(format!("{prefix}/j/"), Some(options)).await.unwrap();
            let number =
                |key: &[u8]| u64::from_str_radix(&String::from_utf8_lossy(&key[key.len() - 16..]), 16);
            got.kvs().iter().map(|kv| number(kv.key()).unwrap()).collect()
        })
    }

    /// Whether each of the records there is packed.
    fn packed(&self, prefix: &str) -> Vec<bool> {
        let options = GetOptions::new().with_prefix();
        self.with(async |mut client| {
            let got = client.get(format!("{prefix}/j/"), Some(options)).await.unwrap();
            got.kvs().iter().map(|kv| kv.value().starts_with(b"RRWP")).collect()
        })
    }

    /// The lease of the leader's key, seconds.
    fn lease(&self, prefix: &str) -> i64 {
        self.with(async |mut client| {
            let leader = client.get(format!("{prefix}/leader"), None).await.unwrap();
            let lease = client.lease_time_to_live(leader.kvs()[0].lease(), None).await.unwrap();
            lease.granted_ttl()
        })
    }

    fn put(&self, key: &str, value: &str) {
        self.with(async |mut client| drop(client.put(key, value, None).await.unwrap()));
    }

    fn delete(&self, key: &str) {
        self.with(async |mut client| drop(client.delete(key, None).await.unwrap()));
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn open(path: &Path, place: &Place) -> Result<ReplicatedStore, String> {
    ReplicatedStore::open(path, 1 << 20, place, "a test", false).map_err(|error| error.to_string())
}

fn new_table(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name).with_extension("redb");
    drop(RedbStore::create(&path, 1 << 20).unwrap());
    path
}

/// The table and its mark as a crash would leave them now; whose directory it is then, if `as_same`.
fn crashed(from: &Path, to: &Path, as_same: bool) {
    std::fs::copy(from, to).unwrap();
    std::fs::copy(mark_path(from), mark_path(to)).unwrap();
    if as_same {
        std::fs::copy(from.with_extension("member"), to.with_extension("member")).unwrap();
    }
}

fn all(store: &dyn Store) -> Map {
    all_of(&*store.snapshot().unwrap())
}

fn all_of(snapshot: &dyn Read) -> Map {
    let mut map = Map::new();
    let read = snapshot.scan(&[], &[u8::MAX], &mut |key, value| {
        map.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    read.unwrap();
    map
}

fn clear(etcd: &Member, prefix: &str) {
    let all = etcd_client::DeleteOptions::new().with_prefix();
    etcd.with(async |mut client| drop(client.delete(prefix, Some(all)).await.unwrap()));
}

/// Puts, removals, and now and then one that takes several records.
fn commit(store: &ReplicatedStore, model: &mut Map, numbers: std::ops::Range<u32>) {
    for n in numbers {
        let len = if n % 20 == 7 { 3 * PART_BYTES } else { n as usize % 900 };
        let changes: Changes =
            [(n.to_be_bytes().to_vec(), Some(vec![n as u8; len])), ((n / 2).to_be_bytes().to_vec(), None)]
                .into();
        store.commit(&changes).unwrap();
        memory::apply(model, changes);
    }
}

#[test]
fn what_was_committed_is_there_after_a_crash_an_orderly_end_and_trimming() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    let mut end = 300;
    commit(&store, &mut model, 0..end);
    assert!(all(&store) == model);
    // What is removed lies behind the last rounds, and some of it was. If an etcd on a busy disk took too long over it, with the next.
    while etcd.records("rope")[0] <= 100 && end < 1200 {
        commit(&store, &mut model, end..end + 60);
        end += 60;
    }
    let records = etcd.records("rope");
    assert!(records[0] > 100 && records.len() > 50, "{} records from {}", records.len(), records[0]);
    assert!(records.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    // As the disk has it after a crash; the life before leads still, and is deposed.
    let copy = etcd.dir.path().join("copy.redb");
    crashed(&path, &copy, true);
    crashed(&path, &etcd.dir.path().join("copied.redb"), false);
    let again = open(&copy, &place).unwrap();
    assert!(all(&again) == model);
    let error = store.commit(&Changes::new()).unwrap_err().to_string();
    assert!(error.contains("another manager has taken over"), "{error}");
    assert_eq!(store.tend().unwrap_err().to_string(), error);
    drop(store);
    commit(&again, &mut model, end..end + 100);
    drop(again);
    // In good order: nothing is waited for, and the table has it all. One that is behind says so.
    let look = |path: &Path| Look::open(path, 1 << 20).unwrap();
    assert_eq!(look(&copy).problems, [""; 0]);
    assert!(all_of(&*look(&copy).snapshot().unwrap()) == model);
    let behind = look(&etcd.dir.path().join("copied.redb")).problems;
    assert!(behind.len() == 1 && behind[0].contains("stand only in etcd"), "{behind:?}");
    let again = open(&copy, &place).unwrap();
    assert!(all(&again) == model);
    assert!(again.describe().contains("etcd://127.0.0.1:"), "{}", again.describe());
}

/// A disk that does not take the mark of what etcd has: no table claims a commit that it lacks.
#[test]
fn a_commit_whose_mark_is_not_written_is_there_when_the_store_is_opened_again() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    commit(&store, &mut model, 0..10);
    let medium = Volatile::new(true);
    redb::StorageBackend::set_len(&medium, mark::BYTES).unwrap();
    store.mark_on(
        MarkFile::create(Box::new(medium.clone()), Acked { journal: 1, number: 0, crc: 0 }).unwrap(),
    );
    medium.fail(Fails::Writes, 0);
    let last: Changes = [(b"last".to_vec(), Some(b"1".to_vec()))].into();
    let error = store.commit(&last).unwrap_err().to_string();
    assert!(error.contains("write the mark"), "{error}");
    medium.mend();
    assert_eq!(store.commit(&Changes::new()).unwrap_err().to_string(), error, "it does not go on");
    drop(store);
    memory::apply(&mut model, last);
    assert!(all(&open(&path, &place).unwrap()) == model);
}

#[test]
fn records_are_removed_however_short_each_manager_leads() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let mut kept = Vec::new();
    for life in 0..12 {
        let store = open(&path, &place).unwrap();
        assert!(all(&store) == model);
        // Somewhat more than a round.
        commit(&store, &mut model, life * 60..(life + 1) * 60);
        drop(store);
        kept.push(etcd.records("rope").len());
    }
    assert!(kept.iter().all(|kept| *kept < 500), "{kept:?} of {}", 12 * 60);
}

#[test]
fn another_manager_takes_over_and_one_that_lost_its_key_goes_on_if_nobody_did() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    commit(&store, &mut model, 0..30);
    for round in 0..2 {
        etcd.delete("rope/leader");
        if round == 0 { store.tend().unwrap() } else { commit(&store, &mut model, 30..40) }
    }
    let other = etcd.dir.path().join("other.redb");
    crashed(&path, &other, false);
    // It waits for the leader, whose key goes now: one of the two has it then, and the other one stops.
    let second = std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(&other, &place));
        while !opening.is_finished() {
            etcd.delete("rope/leader");
            std::thread::sleep(Duration::from_millis(20));
        }
        opening.join().unwrap()
    });
    let second = second.unwrap();
    assert!(all(&second) == model);
    let error = store.commit(&Changes::new()).unwrap_err().to_string();
    assert!(error.contains("another manager has taken over"), "{error}");
    commit(&second, &mut model, 40..50);
    let confirmed = [store.confirmed().unwrap(), second.confirmed().unwrap()];
    wait_for("the second may answer, and the first not", || !confirmed[0].holds() && confirmed[1].holds());
    drop(store);
    assert!(all(&second) == model);
}

#[test]
fn an_etcd_that_does_not_answer_is_waited_for() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    let confirmed = store.confirmed().unwrap();
    wait_for("it may answer", || confirmed.holds());
    etcd.signal("-STOP");
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            commit(&store, &mut model, 0..10);
            model
        });
        // Longer than a request waits, and than the lease.
        std::thread::sleep(Duration::from_secs(4));
        assert!(!committing.is_finished());
        assert!(!confirmed.holds(), "nothing is answered meanwhile");
        etcd.signal("-CONT");
        let model = committing.join().unwrap();
        assert!(all(&store) == model);
        wait_for("it may answer again", || confirmed.holds());
    });
    // Who is told to stop waits no more.
    etcd.signal("-STOP");
    store.end_waits();
    let error = store.commit(&Changes::new()).unwrap_err().to_string();
    assert!(error.contains("reach the journal") && error.contains("no answer within 2 s"), "{error}");
    etcd.signal("-CONT");
}

#[test]
fn a_place_that_is_not_the_tables_is_refused() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let refused = |path: &Path, place: &Place, why: &str| {
        let error = open(path, place).err().unwrap_or_default();
        assert!(error.contains(why), "{why}: {error:?}");
    };
    let store = open(&path, &place).unwrap();
    commit(&store, &mut Map::new(), 0..5);
    let old = etcd.dir.path().join("old.redb");
    crashed(&path, &old, true);
    commit(&store, &mut Map::new(), 5..300);
    drop(store);
    refused(&new_table(etcd.dir.path(), "foreign"), &place, "the journal of another store");
    refused(&path, &etcd.place("elsewhere"), "the place in etcd is empty");
    refused(&old, &place, "it is too far behind");
    std::fs::write(journal_path(&path), "").unwrap();
    refused(&path, &place, "is the journal of this store");
    std::fs::remove_file(journal_path(&path)).unwrap();
    // The last record is another one: an older copy of etcd that went on.
    let last = *etcd.records("rope").last().unwrap();
    etcd.delete(&format!("rope/j/{last:016x}"));
    refused(&path, &place, "is known here: it was restored from an older copy");
}

/// Somebody else fills etcd: it is said before, new names are refused, and when etcd takes nothing more the manager waits, gives
/// back what history left there, and goes on.
#[test]
fn an_etcd_that_fills_up_is_said_to_and_has_room_again_when_others_let_go() {
    const QUOTA: u64 = 4 << 20;
    let etcd = Member::start(&["--quota-backend-bytes", &QUOTA.to_string()]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let place = Place { quota: Some(QUOTA), ..place };
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    commit(&store, &mut model, 0..100);
    store.tend().unwrap();
    assert!(store.remarks().is_empty() && !store.is_full());
    let tended = |what: &str, holds: &dyn Fn() -> bool| {
        wait_for(what, || {
            store.tend().unwrap();
            holds()
        });
    };
    // On a busy machine it may fail once though there is room.
    let put = |n: usize| {
        (0..3).any(|_| {
            etcd.with(async move |mut client| {
                client.put(format!("other/{n}"), vec![7; 64 << 10], None).await.is_ok()
            })
        })
    };
    let mut others = 0;
    while store.remarks().is_empty() {
        assert!((others..others + 5).all(&put), "it is said before etcd refuses");
        others += 5;
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            store.tend().unwrap();
        }
        // However long those took: this one looks, or one has looked since.
        store.tend().unwrap();
    }
    let text = store.remarks().remove(0).text;
    assert!(text.contains("--quota-backend-bytes") && text.contains("quota of 4"), "{text}");
    // Full: etcd itself says so, and raises its alarm, also when what could be given back was.
    let next = std::cell::Cell::new(others);
    tended("no new names are made", &|| {
        while put(next.get()) {
            next.set(next.get() + 1);
        }
        store.is_full()
    });
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| {
            commit(&store, &mut model, 100..140);
            model
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!committing.is_finished(), "etcd takes nothing");
        clear(&etcd, "other/");
        let model = committing.join().unwrap();
        assert!(all(&store) == model);
    });
    tended("there is room", &|| !store.is_full() && store.remarks().is_empty());
    drop(store);
    open(&path, &place).unwrap();
}

#[test]
fn records_stay_for_a_table_that_is_being_copied_and_not_for_longer() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let (mut model, mut n) = (Map::new(), 0);
    let store = open(&path, &place).unwrap();
    let mut more = |count| {
        commit(&store, &mut model, n..n + count);
        n += count;
        etcd.records("rope")[0]
    };
    // How much room there is must be known.
    store.tend().unwrap();
    more(10);
    let here = || store.marked().unwrap().unwrap().mark.applied;
    let (mut from, mut heard) = (here(), Instant::now());
    store.copied(Some(from));
    let end = Instant::now() + 2 * HELD_FOR;
    while Instant::now() < end {
        let before = std::mem::replace(&mut heard, Instant::now());
        store.copied(None);
        let oldest = more(40);
        // On a machine that stood still meanwhile it may have been given up: it begins anew.
        if before.elapsed() > HELD_FOR {
            (from, heard) = (here(), Instant::now());
            store.copied(Some(from));
        } else {
            assert!(oldest <= from);
        }
    }
    // Nobody asks any more.
    wait_for("they go", || more(40) > from);
}

#[test]
fn a_standby_follows_and_takes_over_what_was_committed_meanwhile() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let lease = |table: &dyn Read| {
        let stored = table.get(b"lease").unwrap().map(|millis| millis.try_into().unwrap());
        Duration::from_millis(stored.map_or(60_000, u64::from_be_bytes))
    };
    // Its level as well, in a way.
    let packs = Some((|table| table.get(b"lease").unwrap().is_some()) as fn(&dyn Read) -> bool);
    let first = Standing { lease: Some(lease), packs, ..Standing::default() };
    let store = ReplicatedStore::open_as(&path, 1 << 20, &place, &first).unwrap();
    commit(&store, &mut model, 0..10);
    let other = etcd.dir.path().join("other.redb");
    crashed(&path, &other, false);
    assert!(!etcd.packed("rope").contains(&true));
    std::thread::scope(|scope| {
        let following = Following::default();
        let follows = following.clone();
        let standing =
            Standing { standby: true, lease: Some(lease), packs, following, ..Standing::default() };
        let standby = scope.spawn(move || ReplicatedStore::open_as(&other, 1 << 20, &place, &standing));
        // It leads by what the other one stored while it followed.
        let changes: Changes = [(b"lease".to_vec(), Some(90_200u64.to_be_bytes().to_vec()))].into();
        store.commit(&changes).unwrap();
        memory::apply(&mut model, changes);
        // So much that its records are removed: who had not followed would be too far behind.
        for n in 0..20 {
            commit(&store, &mut model, 10 + n * 20..30 + n * 20);
            let last = *etcd.records("rope").last().unwrap();
            wait_for("it has read all", || follows.last() >= last);
        }
        assert!(etcd.records("rope")[0] > 100 && !standby.is_finished());
        // What gets no smaller stays as it is.
        assert!(etcd.packed("rope").iter().filter(|packed| **packed).count() > 50);
        assert_eq!(etcd.lease("rope"), 60);
        drop(store);
        let standby = standby.join().unwrap().unwrap();
        assert_eq!(etcd.lease("rope"), 91);
        assert!(all(&standby) == model);
        commit(&standby, &mut model, 500..510);
        assert!(all(&standby) == model);
    });
}

/// What it has read is in its memory only, and the mark beside its table names more than that has.
#[test]
fn one_that_follows_and_ends_in_good_order_has_what_it_has_read_in_its_table() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let store = open(&path, &place).unwrap();
    commit(&store, &mut model, 0..4);
    let other = etcd.dir.path().join("other.redb");
    crashed(&path, &other, false);
    let look = |path: &Path| Look::open(path, 1 << 20).unwrap();
    assert!(look(&other).problems[0].contains("stand only in etcd"), "{:?}", look(&other).problems);
    let following = Following::default();
    let standing = Standing { standby: true, following: following.clone(), ..Standing::default() };
    std::thread::scope(|scope| {
        let standby = scope.spawn(|| ReplicatedStore::open_as(&other, 1 << 20, &place, &standing).map(drop));
        // The last one is of several records, one of which is read alone.
        commit(&store, &mut model, 4..8);
        let last = *etcd.records("rope").last().unwrap();
        wait_for("it has read all", || following.last() == last);
        following.end();
        let error = standby.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("another manager leads"), "{error}");
    });
    assert_eq!(look(&other).problems, [""; 0]);
    assert!(all_of(&*look(&other).snapshot().unwrap()) == model);
    // It goes on from there.
    commit(&store, &mut model, 8..12);
    drop(store);
    assert!(all(&open(&other, &place).unwrap()) == model);
}

/// A disk that gets full in the middle, or a crash: whatever the mark is written over by, it says what it said or what is new.
#[test]
fn a_mark_that_is_made_anew_is_never_without_what_it_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.mark");
    let acked = |number| Acked { journal: 7, number, crc: 3 };
    let make = |number| MarkFile::create(Box::new(mark::place(&path).unwrap()), acked(number)).map(drop);
    make(4).unwrap();
    // The file is there for the new one, and nothing is written yet.
    let file = mark::place(&path).unwrap();
    assert_eq!(mark::read(&file).unwrap(), Some(acked(4)));
    make(9).unwrap();
    assert_eq!(mark::read(&file).unwrap(), Some(acked(9)));
}
