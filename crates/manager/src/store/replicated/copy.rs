//! A table that is copied from the manager that leads, in parts, while that goes on. The parts are of different moments; the
//! journal's records say what stands under a key and not how it changes, so whoever applies all records behind the one that
//! the first part had comes to the table that the leader has. Until it has come to where the leader was at the last
//! part it must not serve: the mark beside it says so, as if all that had been acknowledged here.
//! All parts are of one life of one manager, whose commits follow each other: if etcd is put back to an older copy meanwhile and
//! goes on without some of them, another life serves there, and the record that the mark names is not in that journal.
//! It is made beside its place, and moved there when it is whole; what an interrupted copy left is made anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::super::{
    Changes, RedbStore, StoreError,
    files::{mark_path, refused},
    journaled::anew,
    mark::{self, Acked, MarkFile},
    redb::Mark,
};

/// Memory for the pages of a table that is made.
const CACHE_BYTES: usize = 64 << 20;

/// A part, as [`wire::mgr::MgrReply::TablePart`] brings it.
pub struct Part {
    /// The last record in it.
    pub mark: Mark,
    /// Which life of which manager sent it.
    pub life: u64,
    /// Keys with their values, by rising key.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// There are more behind.
    pub more: bool,
}

/// A copy that is being made.
pub struct TableCopy {
    table: RedbStore,
    path: PathBuf,
    /// Of the first part, and whose it was.
    first: Option<(Mark, u64)>,
    last_key: Vec<u8>,
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("copy")
}

impl TableCopy {
    /// Begins one that is to be the table at `path`.
    pub fn begin(path: &Path) -> Result<TableCopy, StoreError> {
        match fs::remove_file(beside(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(path, &error)),
            _ => {}
        }
        let table = RedbStore::create(&beside(path), CACHE_BYTES)?;
        Ok(TableCopy { table, path: path.to_owned(), first: None, last_key: Vec::new() })
    }

    /// The next part is asked for from behind this key on.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Takes a part; true: it is whole, and in its place.
    pub fn take(mut self, part: Part) -> Result<Option<TableCopy>, StoreError> {
        let (first, life) = *self.first.get_or_insert((part.mark, part.life));
        let bad = |reason: &str| StoreError::Engine { action: "copy the", reason: reason.to_owned() };
        if part.mark.journal != first.journal || part.mark.journal == 0 {
            return Err(bad("the journal is another one now: begin anew"));
        }
        if part.life != life {
            return Err(bad("another manager leads now: begin anew"));
        }
        let mut changes = Changes::new();
        for (key, value) in part.records {
            if key <= self.last_key {
                return Err(bad("what was sent does not rise"));
            }
            self.last_key.clone_from(&key);
            changes.insert(key, Some(value));
        }
        if part.more && changes.is_empty() {
            return Err(bad("what was sent does not go on"));
        }
        self.table.commit_marked(&changes, first, !part.more)?;
        if part.more {
            return Ok(Some(self));
        }
        drop(self.table);
        let Mark { journal, applied, etcd } = part.mark;
        let acked = Acked { journal, number: applied, crc: etcd.unwrap_or_default() };
        let mark = mark_path(&self.path);
        let made = anew(&mark, mark::BYTES).and_then(|file| MarkFile::create(Box::new(file), acked));
        made.map_err(|error| refused(&mark, &error))?;
        let moved = fs::rename(beside(&self.path), &self.path)
            .and_then(|()| fs::File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all());
        moved.map_err(|error| refused(&self.path, &error))?;
        Ok(None)
    }
}

/// Puts a table that is too far behind aside, to be copied anew. The last one that was put aside goes.
pub fn put_aside(path: &Path) -> Result<(), StoreError> {
    fs::rename(path, path.with_extension("behind")).map_err(|error| refused(path, &error))
}
