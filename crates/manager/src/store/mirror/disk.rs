//! A copy in a directory on another disk of the manager's machine.

use std::{fs, io, path::Path, sync::atomic::AtomicBool};

use super::{
    super::{
        Changes, JournaledStore, Look, Read, RedbStore, Store as _, StoreError,
        files::{journal_path, mark_path, random, refused, write_durably},
        look,
    },
    place::{Copied, Held, Place},
    room::new_table,
    until_end::UntilEnd,
    witness::{CACHE_BYTES, Mirror, Said, number_file},
};

/// Former stores that stay beside a copy are fewer.
const FORMER_MAX: u32 = 100;

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

/// What is to be replaced by a copy of a store up to a commit, and is of another store, or has more, may be all that is left of that: it stays
/// as `store.former.N.redb`, with its journal and mark. So does what cannot be told.
fn keep_other(table: &Path, (journal, last): (u64, u64)) -> Result<(), StoreError> {
    if !table.try_exists().map_err(|error| refused(table, &error))? {
        return Ok(());
    }
    match Look::open(table, CACHE_BYTES) {
        Ok(look) if look.journal == journal && look.last <= last => return Ok(()),
        Err(error @ StoreError::InUse { .. }) => return Err(error),
        _ => {}
    }
    let free = (1..FORMER_MAX).map(|n| table.with_file_name(format!("store.former.{n}.redb")));
    let Some(former) = free.into_iter().find(|former| !former.exists()) else {
        let reason = format!("there are {} former stores beside it already (store.former.*)", FORMER_MAX - 1);
        return Err(StoreError::Open { path: table.to_owned(), reason });
    };
    tracing::warn!("what was at {} is of another store, and stays as {}", table.display(), former.display());
    // The table last: whatever ends this, the next time goes on with it.
    for (from, to) in [
        (journal_path(table), journal_path(&former)),
        (mark_path(table), mark_path(&former)),
        (table.to_owned(), former.clone()),
    ] {
        match fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&to, &error)),
            _ => {}
        }
    }
    Ok(())
}

/// A table that has all, made at [`new_table`], gets its journal and mark; all three their places.
pub(super) fn place_files(
    made: RedbStore,
    table: &Path,
    (journal, last): (u64, u64),
) -> Result<(), StoreError> {
    let new = new_table(table.parent().unwrap_or(Path::new("")));
    JournaledStore::continue_as(made, &new, journal, last)?;
    keep_other(table, (journal, last))?;
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
