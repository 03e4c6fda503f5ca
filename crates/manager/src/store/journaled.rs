//! The manager's store: the table in redb, with a journal in front of it.
//!
//! A commit goes to the journal and is flushed there, then stays in memory ([`Recent`]) above the table. The table
//! takes what has gathered there in one commit of its own, without a flush: a commit rewrites the tree's paths to what it
//! changes, and those of many are largely the same. When the journal is full the table takes everything
//! durably and the journal begins anew. Opening brings the table up to the journal's end. What a snapshot shows is durable.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    Changes, RedbStore, Snapshot, Store, StoreError,
    journal::{Journal, Medium},
    recent::Recent,
    redb::Mark,
};

/// Size of the journal's file, bytes. Some 2,000 commits of small operations; reading it takes a few
/// milliseconds at open.
const JOURNAL_BYTES: u64 = 8 << 20;

/// Changes held in memory above the table, at most, about: those of some 200 small operations; few in tests, so that
/// the table follows often there.
const RECENT_MAX: usize = if cfg!(test) { 24 } else { 1024 };

/// A redb store with its journal.
pub struct JournaledStore {
    table: RedbStore,
    state: Mutex<State>,
}

struct State {
    journal: Journal,
    /// What the journal holds and the table does not.
    recent: Recent,
    /// The table after its last commit; none before the first.
    base: Option<Snapshot>,
}

/// The journal's path for a store at `path`.
pub fn journal_path(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

impl JournaledStore {
    /// Opens the existing store at `path`, with its journal beside it; a store that never had one gets one.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<JournaledStore, StoreError> {
        let table = RedbStore::open(path, cache_bytes)?;
        let path = journal_path(path);
        let failed = |error: io::Error| StoreError::Open { path: path.clone(), reason: error.to_string() };
        if table.mark()?.is_none() {
            // A file from an attempt that ended before the table knew of it is made anew.
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).mode(0o600);
            let file = options.open(&path);
            let file = file.map_err(failed)?;
            file.set_len(JOURNAL_BYTES).map_err(failed)?;
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let store = JournaledStore::start(table, Box::new(file)).map_err(failed)?;
            let synced = File::open(directory.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all());
            synced.map_err(failed)?;
            return store.marked();
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
            let reason = format!(
                "{error}; acknowledged changes may stand only there: bring it back, or restore a dump"
            );
            StoreError::Open { path: path.clone(), reason }
        })?;
        JournaledStore::resume(table, Box::new(file)).map_err(failed)
    }

    /// On two media, for tests of power cuts.
    #[cfg(test)]
    pub(crate) fn on_media(table: RedbStore, medium: Box<dyn Medium>) -> Result<JournaledStore, StoreError> {
        let failed =
            |error: io::Error| StoreError::Open { path: "journal".into(), reason: error.to_string() };
        match table.mark()? {
            None => JournaledStore::start(table, medium).map_err(failed)?.marked(),
            Some(_) => JournaledStore::resume(table, medium).map_err(failed),
        }
    }

    /// With a new journal, of which the table does not know yet.
    fn start(table: RedbStore, medium: Box<dyn Medium>) -> io::Result<JournaledStore> {
        let mut id = [0; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
        let journal = Journal::create(medium, u64::from_le_bytes(id), 0)?;
        Ok(JournaledStore::with(table, journal))
    }

    fn with(table: RedbStore, journal: Journal) -> JournaledStore {
        let state = State { journal, recent: Recent::default(), base: None };
        JournaledStore { table, state: Mutex::new(state) }
    }

    /// Writes the new journal's identity into the table: from now on the table is nothing without it.
    fn marked(self) -> Result<JournaledStore, StoreError> {
        {
            let state = &mut *self.state();
            self.settle(state, state.journal.next(), true)?;
        }
        Ok(self)
    }

    fn resume(table: RedbStore, medium: Box<dyn Medium>) -> io::Result<JournaledStore> {
        let mark = table.mark().map_err(io::Error::other)?.unwrap_or_default();
        let found = Journal::open(medium, mark.journal, mark.applied)?;
        let store = JournaledStore::with(table, found.journal);
        {
            let state = &mut *store.state();
            found.changes.into_iter().for_each(|changes| state.recent.push(changes));
            store.settle(state, state.journal.last(), true).map_err(io::Error::other)?;
        }
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in a commit stops the manager; the state is whole between its steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table takes what is held in memory, which is everything up to the number `applied`. Durably: the journal
    /// begins anew.
    fn settle(&self, state: &mut State, applied: u64, durable: bool) -> Result<(), StoreError> {
        let mark = Mark { journal: state.journal.id(), applied };
        // Before the commit, so that the pages it replaces can be used again.
        state.base = None;
        self.table.commit_marked(&state.recent.merged(), mark, durable)?;
        state.base = Some(self.table.snapshot()?);
        state.recent = Recent::default();
        if durable {
            state.journal.restart(applied);
        }
        Ok(())
    }
}

impl Store for JournaledStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let state = self.state();
        // None only after a failed commit.
        let base = state.base.clone().map_or_else(|| self.table.snapshot(), Ok)?;
        Ok(state.recent.above(base))
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let written = state.journal.append(changes).map_err(|error| StoreError::Engine {
            action: "commit to the journal of the",
            reason: error.to_string(),
        })?;
        state.recent.push(changes.clone());
        match (written, state.recent.len()) {
            (false, _) => self.settle(state, state.journal.next(), true),
            (true, RECENT_MAX..) => self.settle(state, state.journal.last(), false),
            (true, _) => Ok(()),
        }
    }

    fn describe(&self) -> String {
        self.table.describe()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::ControlFlow};

    use super::{super::volatile::Volatile, *};

    fn put(key: &str, value: &str) -> Changes {
        [(key.into(), Some(value.into()))].into()
    }

    fn get(store: &impl Store, key: &str) -> Option<Vec<u8>> {
        store.snapshot().unwrap().get(key.as_bytes()).unwrap()
    }

    #[test]
    fn snapshots_show_what_is_in_the_table_and_what_is_not_yet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        drop(RedbStore::create(&path, 1 << 20).unwrap());
        let store = JournaledStore::open(&path, 1 << 20).unwrap();
        let (mut model, mut seen) = (BTreeMap::new(), Vec::new());
        let mut settled = 0;
        for n in 0..200u32 {
            let (new, old) = (n.to_be_bytes().to_vec(), (n / 2).to_be_bytes().to_vec());
            model.insert(new.clone(), n.to_le_bytes().to_vec());
            model.remove(&old);
            store.commit(&[(new, Some(n.to_le_bytes().to_vec())), (old, None)].into()).unwrap();
            settled += u32::from(store.state().recent.len() == 0);
            assert!(store.state().recent.len() < RECENT_MAX);
            seen.push((store.snapshot().unwrap(), model.clone()));
        }
        assert!(settled > 10, "the table took part {settled} times");
        for (snapshot, model) in seen {
            let mut found = BTreeMap::new();
            let all = snapshot.scan(&[], &[u8::MAX], &mut |key, value| {
                found.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            });
            all.unwrap();
            assert_eq!(found, model);
        }
    }

    #[test]
    fn a_table_from_before_the_journals_round_is_refused() {
        let (table, journal) = (Volatile::new(true), Volatile::new(true));
        redb::StorageBackend::set_len(&journal, 12 * 4096).unwrap();
        let open = |table: &Volatile, journal: &Volatile| {
            let table = RedbStore::on_backend(table.clone()).unwrap();
            JournaledStore::on_media(table, Box::new(journal.clone()))
        };
        let store = open(&table, &journal).unwrap();
        store.commit(&put("first", "1")).unwrap();
        let former = table.power_cut(|| true);
        (0..30).for_each(|n| store.commit(&put("later", &n.to_string())).unwrap());
        let error = open(&former, &journal.power_cut(|| true)).err().unwrap().to_string();
        assert!(error.contains("is missing before"), "{error}");
        drop(store);
        assert_eq!(get(&open(&table, &journal).unwrap(), "later"), Some(b"29".to_vec()));
    }

    /// The table as it is while the store is open: what only the journal holds durably may be missing there.
    fn copy_of(from: &Path, to: &Path) {
        std::fs::copy(from, to).unwrap();
        std::fs::copy(journal_path(from), journal_path(to)).unwrap();
    }

    #[test]
    fn a_crash_is_replayed_and_a_store_without_its_journal_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        drop(RedbStore::create(&path, 1 << 20).unwrap());
        let store = JournaledStore::open(&path, 1 << 20).unwrap();
        store.commit(&put("a", "1")).unwrap();
        store.commit(&put("b", "2")).unwrap();
        store.commit(&[(b"a".to_vec(), None)].into()).unwrap();
        // As the disk has it after a crash now.
        let crashed = dir.path().join("crashed.redb");
        copy_of(&path, &crashed);
        drop(store);

        let table = RedbStore::open(&crashed, 1 << 20).unwrap();
        assert_eq!(get(&table, "b"), None, "the table alone does not have it");
        drop(table);
        for round in ["3", "4"] {
            let store = JournaledStore::open(&crashed, 1 << 20).unwrap();
            assert_eq!((get(&store, "a"), get(&store, "b")), (None, Some(b"2".to_vec())));
            store.commit(&put(round, "more")).unwrap();
        }
        let store = JournaledStore::open(&crashed, 1 << 20).unwrap();
        assert_eq!((get(&store, "3"), get(&store, "4")), (Some(b"more".to_vec()), Some(b"more".to_vec())));
        drop(store);

        let away = dir.path().join("away");
        std::fs::rename(journal_path(&crashed), &away).unwrap();
        for _ in 0..2 {
            let error = JournaledStore::open(&crashed, 1 << 20).err().unwrap().to_string();
            assert!(error.contains("crashed.journal") && error.contains("acknowledged changes"), "{error}");
            assert!(!journal_path(&crashed).exists(), "nothing is made in its place");
        }
        let other = dir.path().join("other.redb");
        drop(RedbStore::create(&other, 1 << 20).unwrap());
        drop(JournaledStore::open(&other, 1 << 20).unwrap());
        std::fs::rename(journal_path(&other), journal_path(&crashed)).unwrap();
        let error = JournaledStore::open(&crashed, 1 << 20).err().unwrap().to_string();
        assert!(error.contains("not the journal of this store"), "{error}");
        std::fs::rename(&away, journal_path(&crashed)).unwrap();
        assert_eq!(get(&JournaledStore::open(&crashed, 1 << 20).unwrap(), "b"), Some(b"2".to_vec()));
    }
}
