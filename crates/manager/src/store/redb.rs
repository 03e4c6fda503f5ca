//! The table on one local disk: redb.
//!
//! A durable commit is made in two phases (a torn commit is never taken for a good one), and carries
//! the allocator state, so that opening after a crash does not walk the whole file. Commits that the
//! journal in front of it holds need not be durable here.

use std::{
    io,
    ops::{Bound, ControlFlow},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use redb::{
    BackendError, Builder, Database, DatabaseError, Durability, ReadOnlyTable, ReadableDatabase,
    ReadableTable, StorageBackend, StorageError, TableDefinition, TableError, WriteTransaction,
    backends::FileBackend,
};

use super::{
    Changes, Read, Snapshot, Store, StoreError, Visit,
    blocks::{Blocks, DAMAGED_MAX, Damage},
    unflushed::Unflushed,
};

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("ropewalk");
/// Under 0 the journal's identity, 0 before it has one; under 1 the number of the last change that the table holds; under 2,
/// if the journal is in etcd, the CRC in its record, 0 before there is one.
const MARK: TableDefinition<'static, u8, u64> = TableDefinition::new("journal");

/// Keys on one side of another that surely reach beyond its page: one takes at least 8 bytes of the 4096.
const BESIDE: usize = 600;
/// Times that a commit is tried which finds new damage.
const WRITES_MAX: usize = 8;

/// How far the table follows its journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    /// The journal's identity.
    pub journal: u64,
    /// Number of the last change applied.
    pub applied: u64,
    /// The journal is in etcd: the CRC in its record, 0 if there is none.
    pub etcd: Option<u32>,
}

/// Reads the file's blocks round the engine.
type Scrub = Box<dyn Fn(u64, u64) -> io::Result<Option<u64>> + Send + Sync>;

/// A store in a redb file.
pub struct RedbStore {
    database: Database,
    path: PathBuf,
    damage: Arc<Damage>,
    scrub: Scrub,
}

impl RedbStore {
    /// Makes a new store; the file must not exist.
    pub fn create(path: &Path, cache_bytes: usize) -> Result<RedbStore, StoreError> {
        let file = options().create_new(true).open(path).map_err(|error| failed_open(path, error))?;
        let blocks = backend(file, path).and_then(|file| create_on(file, path))?;
        RedbStore::on(blocks, path, cache_bytes)?.made()
    }

    /// Opens an existing store.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<RedbStore, StoreError> {
        RedbStore::open_as(path, cache_bytes, None)
    }

    /// The same, with a seed for a file that loses power.
    pub fn open_as(path: &Path, cache_bytes: usize, loses: Option<u64>) -> Result<RedbStore, StoreError> {
        let failed = |error: io::Error| failed_open(path, error);
        let file = backend(options().open(path).map_err(failed)?, path)?;
        match loses {
            None => RedbStore::on(Blocks::open(file).map_err(failed)?, path, cache_bytes),
            Some(seed) => {
                let blocks = Blocks::open(Unflushed::new(file, seed)).map_err(failed)?;
                RedbStore::on(blocks, path, cache_bytes)
            }
        }
    }

    /// Opens a store, of an earlier version too, and writes nothing to it, whatever is done.
    pub fn look(path: &Path, cache_bytes: usize) -> Result<RedbStore, StoreError> {
        let file = options().open(path).map_err(|error| failed_open(path, error))?;
        let blocks = Blocks::look(backend(file, path)?).map_err(|error| failed_open(path, error))?;
        RedbStore::on(blocks, path, cache_bytes)
    }

    /// A store on another medium, for tests.
    #[cfg(test)]
    pub(crate) fn on_backend(backend: impl StorageBackend) -> Result<RedbStore, StoreError> {
        let path = Path::new("volatile");
        if backend.len().unwrap() == 0 {
            return RedbStore::on(create_on(backend, path)?, path, 8 << 20)?.made();
        }
        let blocks = Blocks::open(backend).map_err(|error| failed_open(path, error))?;
        RedbStore::on(blocks, path, 8 << 20)
    }

    fn on<B: StorageBackend>(blocks: Blocks<B>, path: &Path, cache_bytes: usize) -> Result<Self, StoreError> {
        let blocks = Arc::new(blocks);
        let (damage, scrubbed) = (blocks.damage(), blocks.clone());
        let database = Builder::new().set_cache_size(cache_bytes).create_with_backend(Shared(blocks));
        let database = database.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: path.to_owned() },
            error => failed_open(path, error),
        })?;
        let scrub: Scrub = Box::new(move |first, count| scrubbed.scrub(first, count));
        Ok(RedbStore { database, path: path.to_owned(), damage, scrub })
    }

    /// With its tables, and no journal yet.
    fn made(self) -> Result<RedbStore, StoreError> {
        self.write(&Changes::new(), Some(Mark::default()), true)?;
        Ok(self)
    }

    /// Has the engine verify every page that is in use, by its own checksums; false: what it found was not as it should be.
    pub fn verify(&mut self) -> Result<bool, StoreError> {
        match self.database.check_integrity() {
            Ok(clean) => Ok(clean && self.damage.blocks().is_empty()),
            Err(DatabaseError::Storage(StorageError::Corrupted(_))) => Ok(false),
            Err(error) => Err(engine("verify", error)),
        }
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
        let etcd = get(2).map_err(|e| failed(&e))?.map(|crc| crc as u32);
        Ok(journal.zip(applied).map(|(journal, applied)| Mark { journal, applied, etcd }))
    }

    /// Commits `changes` with their mark; `durable`: they and all before them survive a power cut when this returns.
    pub fn commit_marked(&self, changes: &Changes, mark: Mark, durable: bool) -> Result<(), StoreError> {
        self.write(changes, Some(mark), durable)
    }

    /// Commits. The engine puts what a removal leaves of a page together with the page beside it, and would take a damaged
    /// one there for an empty one: such removals are refused, and so is what finds new damage while it writes.
    fn write(&self, changes: &Changes, mark: Option<Mark>, durable: bool) -> Result<(), StoreError> {
        for _ in 0..WRITES_MAX {
            let known = self.damage.count();
            if known >= DAMAGED_MAX {
                break; // more are not counted
            }
            if known > 0 {
                self.look_beside(changes)?;
            }
            let write = self.prepare(changes, mark, durable)?;
            if self.damage.count() == known {
                return write.commit().map_err(|error| engine("commit to", error));
            }
            // What is damaged is known now. Dropped, the changes have not been.
            write.abort().map_err(|error| engine("give up a commit to", error))?;
        }
        Err(StoreError::Damaged { reason: "too much of the table is damaged to commit to it".into() })
    }

    /// A commit that only has to be taken.
    fn prepare(
        &self,
        changes: &Changes,
        mark: Option<Mark>,
        durable: bool,
    ) -> Result<WriteTransaction, StoreError> {
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
            match mark.etcd {
                None => drop(table.remove(2).map_err(|e| failed(&e))?),
                Some(crc) => drop(table.insert(2, u64::from(crc)).map_err(|e| failed(&e))?),
            }
        }
        Ok(write)
    }

    /// Whether the pages beside every key that is removed can be read: all that a page can hold on both sides of it, and more.
    fn look_beside(&self, changes: &Changes) -> Result<(), StoreError> {
        let table = self.table()?;
        for (key, _) in changes.iter().filter(|(_, value)| value.is_none()) {
            let before = ReadableTable::range(&table, ..key.as_slice()).map_err(unread)?;
            before.rev().take(BESIDE).try_for_each(|item| item.map(drop)).map_err(unread)?;
            let after = ReadableTable::range(&table, key.as_slice()..).map_err(unread)?;
            { after }.take(BESIDE).try_for_each(|item| item.map(drop)).map_err(unread)?;
        }
        Ok(())
    }

    fn table(&self) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>, StoreError> {
        let read = self.database.begin_read().map_err(|error| engine("read", error))?;
        read.open_table(TABLE).map_err(|error| match error {
            TableError::Storage(error) => unread(error),
            error => engine("read", error),
        })
    }
}

/// The engine's handle on the blocks; the scrub has another.
#[derive(Debug)]
struct Shared<B>(Arc<Blocks<B>>);

impl<B: StorageBackend> StorageBackend for Shared<B> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }
}

fn options() -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn failed_open(path: &Path, error: impl std::fmt::Display) -> StoreError {
    StoreError::Open { path: path.to_owned(), reason: error.to_string() }
}

fn backend(file: std::fs::File, path: &Path) -> Result<FileBackend, StoreError> {
    FileBackend::new(file).map_err(|error| failed_open(path, error))
}

fn create_on<B: StorageBackend>(inner: B, path: &Path) -> Result<Blocks<B>, StoreError> {
    Blocks::create(inner).map_err(|error| failed_open(path, error))
}

/// Reading failed: the engine, or only the page that was needed.
fn unread(error: StorageError) -> StoreError {
    match error {
        StorageError::Corrupted(reason) => StoreError::Damaged { reason },
        error => engine("read", error),
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

    fn damage(&self) -> Vec<u64> {
        self.damage.blocks()
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
        (self.scrub)(first, count).map_err(|error| engine("scrub the", error))
    }
}

struct TableSnapshot(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Read for TableSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.0.get(key).map_err(unread)?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        if start >= end {
            return Ok(());
        }
        for item in ReadableTable::range(&self.0, start..end).map_err(unread)? {
            let (key, value) = item.map_err(unread)?;
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
