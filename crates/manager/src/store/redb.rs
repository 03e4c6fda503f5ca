//! The table on one local disk: redb.
//!
//! A durable commit is made in two phases (a torn commit is never taken for a good one), and carries
//! the allocator state, so that opening after a crash does not walk the whole file. Commits that the
//! journal in front of it holds need not be durable here.

use std::{
    ops::ControlFlow,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use redb::{
    Builder, Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable,
    TableDefinition, TableError,
};

use super::{Changes, Read, Snapshot, Store, StoreError, Visit};

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("ropewalk");
/// Under 0 the journal's identity, under 1 the number of the last change that the table holds.
const MARK: TableDefinition<'static, u8, u64> = TableDefinition::new("journal");

/// How far the table follows its journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// The journal's identity.
    pub journal: u64,
    /// Number of the last change applied.
    pub applied: u64,
}

/// A store in a redb file.
pub struct RedbStore {
    database: Database,
    path: PathBuf,
}

impl RedbStore {
    /// Makes a new store; the file must not exist.
    pub fn create(path: &Path, cache_bytes: usize) -> Result<RedbStore, StoreError> {
        let open = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| open(error.to_string()))?;
        let database = Builder::new().set_cache_size(cache_bytes).create_file(file);
        RedbStore::with_table(database.map_err(|error| open(error.to_string()))?, path)
    }

    /// Opens an existing store.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<RedbStore, StoreError> {
        let database =
            Builder::new().set_cache_size(cache_bytes).open(path).map_err(|error| match error {
                DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: path.to_owned() },
                error => StoreError::Open { path: path.to_owned(), reason: error.to_string() },
            })?;
        RedbStore::with_table(database, path)
    }

    /// A store on another medium, for tests of power cuts.
    #[cfg(test)]
    pub(crate) fn on_backend(backend: impl redb::StorageBackend) -> Result<RedbStore, StoreError> {
        let path = Path::new("volatile");
        let database = Builder::new()
            .set_cache_size(8 << 20)
            .create_with_backend(backend)
            .map_err(|error| StoreError::Open { path: path.to_owned(), reason: error.to_string() })?;
        RedbStore::with_table(database, path)
    }

    fn with_table(database: Database, path: &Path) -> Result<RedbStore, StoreError> {
        let store = RedbStore { database, path: path.to_owned() };
        if store.table().is_err() {
            store.commit(&Changes::new())?; // makes the table
        }
        store.table()?;
        Ok(store)
    }

    /// The mark; none while the table never had a journal.
    pub fn mark(&self) -> Result<Option<Mark>, StoreError> {
        let failed = |error: &dyn std::fmt::Display| engine("read", error);
        let read = self.database.begin_read().map_err(|e| failed(&e))?;
        let table = match read.open_table(MARK) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let get = |key: u8| table.get(key).map(|value| value.map(|value| value.value()));
        let (journal, applied) = (get(0).map_err(|e| failed(&e))?, get(1).map_err(|e| failed(&e))?);
        Ok(journal.zip(applied).map(|(journal, applied)| Mark { journal, applied }))
    }

    /// Commits `changes` with their mark; `durable`: they and all before them survive a power cut when this returns.
    pub fn commit_marked(&self, changes: &Changes, mark: Mark, durable: bool) -> Result<(), StoreError> {
        self.write(changes, Some(mark), durable)
    }

    fn write(&self, changes: &Changes, mark: Option<Mark>, durable: bool) -> Result<(), StoreError> {
        let failed = |error: &dyn std::fmt::Display| engine("commit to", error);
        let mut write = self.database.begin_write().map_err(|e| failed(&e))?;
        if durable {
            write.set_durability(Durability::Immediate).map_err(|e| failed(&e))?;
            write.set_two_phase_commit(true);
            write.set_quick_repair(true);
        } else {
            write.set_durability(Durability::None).map_err(|e| failed(&e))?;
        }
        {
            let mut table = write.open_table(TABLE).map_err(|e| failed(&e))?;
            for (key, value) in changes {
                match value {
                    Some(value) => {
                        drop(table.insert(key.as_slice(), value.as_slice()).map_err(|e| failed(&e))?)
                    }
                    None => drop(table.remove(key.as_slice()).map_err(|e| failed(&e))?),
                }
            }
        }
        if let Some(mark) = mark {
            let mut table = write.open_table(MARK).map_err(|e| failed(&e))?;
            table.insert(0, mark.journal).map_err(|e| failed(&e))?;
            table.insert(1, mark.applied).map_err(|e| failed(&e))?;
        }
        write.commit().map_err(|e| failed(&e))
    }

    fn table(&self) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>, StoreError> {
        let read = self.database.begin_read().map_err(|error| engine("read", error))?;
        read.open_table(TABLE).map_err(|error| engine("read", error))
    }
}

fn engine(action: &'static str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Engine { action, reason: error.to_string() }
}

impl Store for RedbStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(Arc::new(TableSnapshot(self.table()?)))
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        self.write(changes, None, true)
    }

    fn describe(&self) -> String {
        format!("{}, on one disk, not replicated", self.path.display())
    }
}

struct TableSnapshot(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Read for TableSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.0.get(key).map_err(|error| engine("read", error))?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if start >= end {
            return Ok(());
        }
        for item in ReadableTable::range(&self.0, start..end).map_err(|error| engine("read", error))? {
            let (key, value) = item.map_err(|error| engine("read", error))?;
            if let ControlFlow::Break(()) = visit(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> (Vec<u8>, Option<Vec<u8>>) {
        (key.into(), Some(value.into()))
    }

    #[test]
    fn commits_survive_reopening_and_snapshots_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let store = RedbStore::create(&path, 1 << 20).unwrap();
        store.commit(&[put("a", "1"), put("b", "2")].into()).unwrap();
        let before = store.snapshot().unwrap();
        store.commit(&[put("a", "3"), (b"b".to_vec(), None)].into()).unwrap();
        assert_eq!(before.get(b"a").unwrap().unwrap(), b"1");
        assert_eq!(before.get(b"b").unwrap().unwrap(), b"2");
        drop(before);
        assert!(matches!(RedbStore::open(&path, 1 << 20), Err(StoreError::InUse { .. })));
        drop(store);
        let store = RedbStore::open(&path, 1 << 20).unwrap();
        let now = store.snapshot().unwrap();
        assert_eq!(now.get(b"a").unwrap().unwrap(), b"3");
        assert_eq!(now.get(b"b").unwrap(), None);
        assert!(matches!(RedbStore::create(&path, 1 << 20), Err(StoreError::Open { .. })));
    }
}
