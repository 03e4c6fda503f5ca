//! The manager's store: the table in redb, with a journal in front of it.
//!
//! A commit goes to the journal and is flushed there, then to the table without a flush. When the journal is
//! full the table is made durable and the journal begins anew. Opening brings the table up to the
//! journal's end. What a snapshot shows is durable: the table follows the journal.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    Changes, RedbStore, Snapshot, Store, StoreError,
    journal::{Journal, Medium},
    redb::Mark,
};

/// Size of the journal's file, bytes. Some 2,000 commits of small operations; reading it takes a few
/// milliseconds at open.
const JOURNAL_BYTES: u64 = 8 << 20;

/// A redb store with its journal.
pub struct JournaledStore {
    table: RedbStore,
    journal: Mutex<Journal>,
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
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
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
        Ok(JournaledStore { table, journal: Mutex::new(journal) })
    }

    /// Writes the new journal's identity into the table: from now on the table is nothing without it.
    fn marked(self) -> Result<JournaledStore, StoreError> {
        self.checkpoint(&mut self.journal(), &Changes::new())?;
        Ok(self)
    }

    fn resume(table: RedbStore, medium: Box<dyn Medium>) -> io::Result<JournaledStore> {
        let mark = table.mark().map_err(io::Error::other)?.unwrap_or_default();
        let found = Journal::open(medium, mark.journal, mark.applied)?;
        let mut changes = Changes::new();
        found.changes.into_iter().for_each(|later| changes.extend(later));
        let store = JournaledStore { table, journal: Mutex::new(found.journal) };
        store.replay(&changes).map_err(io::Error::other)?;
        Ok(store)
    }

    fn replay(&self, changes: &Changes) -> Result<(), StoreError> {
        let mut journal = self.journal();
        let mark = Mark { journal: journal.id(), applied: journal.last() };
        self.table.commit_marked(changes, mark, true)?;
        journal.restart(mark.applied);
        Ok(())
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // A panic in a commit stops the manager; the journal itself is whole between its calls.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits `changes` durably to the table under the next number, and begins the journal anew.
    fn checkpoint(&self, journal: &mut Journal, changes: &Changes) -> Result<(), StoreError> {
        let mark = Mark { journal: journal.id(), applied: journal.next() };
        self.table.commit_marked(changes, mark, true)?;
        journal.restart(mark.applied);
        Ok(())
    }
}

impl Store for JournaledStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.table.snapshot()
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let mut journal = self.journal();
        let written = journal.append(changes).map_err(|error| StoreError::Engine {
            action: "commit to the journal of the",
            reason: error.to_string(),
        })?;
        if !written {
            return self.checkpoint(&mut journal, changes);
        }
        let mark = Mark { journal: journal.id(), applied: journal.last() };
        self.table.commit_marked(changes, mark, false)
    }

    fn describe(&self) -> String {
        self.table.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Changes {
        [(key.into(), Some(value.into()))].into()
    }

    fn get(store: &impl Store, key: &str) -> Option<Vec<u8>> {
        store.snapshot().unwrap().get(key.as_bytes()).unwrap()
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
