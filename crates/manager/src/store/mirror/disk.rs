//! A copy in a directory on another disk of the manager's machine.

use std::{fs, io, path::Path, sync::atomic::AtomicBool};

use super::{
    super::{
        Changes, JournaledStore, Read, RedbStore, Store as _, StoreError,
        files::{journal_path, mark_path, random, refused, write_durably},
        look,
    },
    place::{Copied, Held, Place},
    until_end::UntilEnd,
    witness::{CACHE_BYTES, Mirror, Said},
};

struct OnDisk {
    store: JournaledStore,
    mirror: Mirror,
    /// Its number; none: it counts already.
    id: Option<u64>,
}

impl Copied for OnDisk {
    fn holds(&self) -> Held {
        (self.store.position(), self.store.take_tail())
    }
    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.store.commit(changes)
    }
    fn count(&mut self) -> Result<(), StoreError> {
        self.id.take().map_or(Ok(()), |id| self.mirror.say(Said::Whole(id)))
    }
}

/// Makes the table, journal and mark of a copy beside `table`, and moves them there. False: nobody wants it any more.
fn make_files(table: &Path, of: (u64, u64), from: &UntilEnd<'_>) -> Result<bool, StoreError> {
    let new = clear_new(table)?;
    let made = RedbStore::create(&new, CACHE_BYTES)?;
    let (_, gaps) = look::copy(from, &made)?;
    if let Some(gap) = gaps.first() {
        return Err(StoreError::Damaged { reason: gap.clone() });
    }
    if from.ended() {
        return Ok(false);
    }
    place_files(made, table, of)?;
    Ok(true)
}

/// Where the files of a new copy for `table` begin; what an interrupted one left is removed.
pub(super) fn clear_new(table: &Path) -> Result<std::path::PathBuf, StoreError> {
    let new = table.with_file_name("new.redb");
    for file in [new.clone(), journal_path(&new), mark_path(&new)] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&file, &error)),
            _ => {}
        }
    }
    Ok(new)
}

/// A table that has all, made by [`clear_new`], gets its journal and mark; all three their places.
pub(super) fn place_files(
    made: RedbStore,
    table: &Path,
    (journal, last): (u64, u64),
) -> Result<(), StoreError> {
    let new = table.with_file_name("new.redb");
    JournaledStore::continue_as(made, &new, journal, last)?;
    for (from, to) in [
        (journal_path(&new), journal_path(table)),
        (mark_path(&new), mark_path(table)),
        (new.clone(), table.to_owned()),
    ] {
        fs::rename(from, &to).map_err(|error| refused(&to, &error))?;
    }
    Ok(())
}

impl Place for Mirror {
    fn name(&self) -> String {
        format!("in {}", self.dir.display())
    }

    fn whole(&self) -> Result<(), String> {
        self.has_all()
    }

    fn open(&self, loses: Option<u64>) -> Result<Box<dyn Copied>, String> {
        self.has_all()?;
        let store = JournaledStore::open_as(&self.table(), CACHE_BYTES, loses.map(|seed| seed ^ 1));
        let store = store.map_err(|error| error.to_string())?;
        Ok(Box::new(OnDisk { store, mirror: self.clone(), id: None }))
    }

    fn ready(&self) -> Result<(), StoreError> {
        // A disk that is not mounted has no directory; one is not made in its place.
        fs::read_dir(&self.dir).map(drop).map_err(|error| refused(&self.dir, &error))
    }

    fn make(&self, of: (u64, u64), from: &UntilEnd<'_>) -> Result<Option<Box<dyn Copied>>, StoreError> {
        match make_files(&self.table(), of, from) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                // The disk may be full: what was begun is to take no room.
                let _ = clear_new(&self.table()); // the next one does it, too
                return Err(error);
            }
        }
        let failed = |error: io::Error| refused(&self.dir, &error);
        let id = random().map_err(failed)?;
        write_durably(&self.dir.join("store.mirror"), &format!("{id:016x}\n")).map_err(failed)?;
        let store = JournaledStore::open(&self.table(), CACHE_BYTES)?;
        Ok(Some(Box::new(OnDisk { store, mirror: self.clone(), id: Some(id) })))
    }

    fn dismiss(&self, _: &dyn Read, _: &AtomicBool) -> Result<(), StoreError> {
        self.say(Said::Behind)
    }

    fn instead(&self, path: &Path, why: &str) -> StoreError {
        let dir = self.dir.display();
        let reason = format!(
            "{why}. Nothing was changed. `ropewalk manager promote --from-mirror {dir}` takes the copy; `ropewalk manager mirror --off` \
             gives it up"
        );
        StoreError::Open { path: path.to_owned(), reason }
    }

    fn remedy(&self) -> &'static str {
        "that directory can be written"
    }
}
