//! A copy in a directory on another disk of the manager's machine.

use std::{fs, io, path::Path, sync::atomic::AtomicBool};

use super::{
    super::{
        Changes, JournaledStore, Read, RedbStore, Store as _, StoreError,
        files::{journal_path, mark_path, random, refused, write_durably},
        look,
    },
    place::{Copied, Held, Place},
    room::new_table,
    until_end::UntilEnd,
    witness::{CACHE_BYTES, Mirror, Said, number_file},
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

/// Fills the table of a copy. False: nobody wants it any more.
fn fill(made: &RedbStore, from: &UntilEnd<'_>) -> Result<bool, StoreError> {
    let (_, gaps) = look::copy(from, made)?;
    match gaps.into_iter().next() {
        Some(gap) => Err(StoreError::Damaged { reason: gap }),
        None => Ok(!from.ended()),
    }
}

/// A table that has all, made at [`new_table`], gets its journal and mark; all three their places.
pub(super) fn place_files(
    made: RedbStore,
    table: &Path,
    (journal, last): (u64, u64),
) -> Result<(), StoreError> {
    let new = new_table(table.parent().unwrap_or(Path::new("")));
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

impl Mirror {
    /// The copy that was given up, if its files are there, has no number any more.
    fn unnamed(&self) -> io::Result<()> {
        match fs::remove_file(number_file(&self.dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| fs::File::open(&self.dir)?.sync_all()),
        }
    }

    /// The copy that was just made, under a number of its own.
    fn named(&self) -> Result<OnDisk, StoreError> {
        let failed = |error: io::Error| refused(&self.dir, &error);
        let id = random().map_err(failed)?;
        write_durably(&number_file(&self.dir), &format!("{id:016x}\n")).map_err(failed)?;
        let store = JournaledStore::open(&self.table(), CACHE_BYTES)?;
        Ok(OnDisk { store, mirror: self.clone(), id: Some(id) })
    }
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
        let loses = loses.map(|seed| seed ^ 1);
        let store = JournaledStore::open_unsettled(&self.table(), CACHE_BYTES, loses);
        let store = store.map_err(|error| error.to_string())?;
        Ok(Box::new(OnDisk { store, mirror: self.clone(), id: None }))
    }

    fn ready(&self) -> Result<(), StoreError> {
        self.room.ready()
    }

    fn make(&self, of: (u64, u64), from: &UntilEnd<'_>) -> Result<Option<Box<dyn Copied>>, StoreError> {
        // A witness from the time when the former one counted, brought back later, is to find it no more.
        self.unnamed().map_err(|error| refused(&self.dir, &error))?;
        let made = RedbStore::create(&self.room.clear()?, CACHE_BYTES);
        let made = made.map_err(|error| self.room.failed((), error))?;
        match fill(&made, from) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.room.failed(made, error)),
        }
        let copy = place_files(made, &self.table(), of).and_then(|()| self.named());
        let copy = copy.map_err(|error| self.room.failed((), error))?;
        self.room.sufficed();
        Ok(Some(Box::new(copy)))
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
        "that directory can be written, and has room"
    }
}
