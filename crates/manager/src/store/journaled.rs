//! The manager's store: the table in redb, with a journal in front of it.
//!
//! A commit goes to the journal and is flushed there, then stays in memory ([`Recent`]) above the table. The table
//! takes what has gathered there in one commit of its own, without a flush: a commit rewrites the tree's paths to what it
//! changes, and those of many are largely the same. When the journal is full the table takes everything
//! durably and the journal begins anew. Opening brings the table up to the journal's end. What a snapshot shows is durable.
//! The mark says beside both which commit was acknowledged last: a journal or a table that does not have it is refused.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use redb::backends::FileBackend;

use super::{
    Changes, RedbStore, Snapshot, Store, StoreError, blocks,
    files::{invalid, journal_path, mark_path, needed, refused},
    journal::{Found, Journal},
    look,
    mark::{self, Acked, MarkFile},
    medium::Medium,
    recent::Recent,
    redb::Mark,
    unflushed::Unflushed,
};
use crate::statistics;

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
    /// The journal's last record when it was opened, with its number, if the table did not have it.
    tail: Mutex<Option<(u64, Changes)>>,
}

struct State {
    journal: Journal,
    mark: MarkFile,
    /// What the journal holds and the table does not.
    recent: Recent,
    /// The table after its last commit; none before the first.
    base: Option<Snapshot>,
}

/// A file of so many bytes, whatever was there before.
pub(super) fn anew(path: &Path, bytes: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_len(bytes)?;
    Ok(file)
}

/// A file as it is, or as one that loses power.
fn medium(file: File, loses: Option<u64>) -> io::Result<Box<dyn Medium>> {
    let Some(seed) = loses else { return Ok(Box::new(file)) };
    let file = FileBackend::new(file).map_err(io::Error::other)?;
    Ok(Box::new(Unflushed::new(file, seed)))
}

impl JournaledStore {
    /// Opens the existing store at `path`, with its journal and mark beside it; one that never had them gets them. A
    /// store of an earlier version is rewritten.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<JournaledStore, StoreError> {
        JournaledStore::open_as(path, cache_bytes, None)
    }

    /// The same, with a seed for files that lose power: for tests.
    pub fn open_as(
        path: &Path,
        cache_bytes: usize,
        loses: Option<u64>,
    ) -> Result<JournaledStore, StoreError> {
        let store = JournaledStore::open_unsettled(path, cache_bytes, loses)?;
        store.settle_all().map_err(|error| refused(&journal_path(path), &io::Error::other(error)))?;
        Ok(store)
    }

    /// The same of a store that has, or is, a copy ([`super::mirror`]): its journal stays as it is before the first commit, or
    /// [`JournaledStore::settle_all`]. So the last record, which the other one may lack, is found again however often this is cut short.
    pub(super) fn open_unsettled(
        path: &Path,
        cache_bytes: usize,
        loses: Option<u64>,
    ) -> Result<JournaledStore, StoreError> {
        if blocks::kind_of(path).map_err(|error| refused(path, &error))? == blocks::Kind::Former {
            look::renew(path, cache_bytes)?;
        }
        let damaged = |error: StoreError| match error {
            StoreError::Open { path, reason } => refused(&path, &invalid(reason)),
            error @ StoreError::InUse { .. } => error,
            error => refused(path, &invalid(error.to_string())),
        };
        let table = RedbStore::open_as(path, cache_bytes, loses).map_err(damaged)?;
        let (journal, mark) = (journal_path(path), mark_path(path));
        match table.mark().map_err(damaged)? {
            None => Err(refused(path, &invalid("does not say which journal belongs to it"))),
            Some(of) if of.journal == 0 => JournaledStore::begin(table, of.applied, path, loses),
            Some(Mark { etcd: Some(_), .. }) => {
                let text = "has its journal in etcd: `ropewalk manager migrate`, given again as it was begun, says where";
                Err(refused(path, &io::Error::other(text)))
            }
            Some(of) => {
                let acked = needed(&mark).and_then(|file| Ok((mark::read(&file)?, medium(file, loses)?)));
                let (acked, mark_file) = acked.map_err(|error| refused(&mark, &error))?;
                let Some(acked) = acked.filter(|acked| acked.journal == of.journal) else {
                    let error = invalid("does not say which commit of this store was acknowledged last");
                    return Err(refused(&mark, &error));
                };
                let failed = |error: io::Error| refused(&journal, &error);
                let file = needed(&journal).and_then(|file| medium(file, loses)).map_err(failed)?;
                let store = JournaledStore::resume(table, file, mark_file, of, acked);
                let store = store.map_err(failed)?;
                // It was cut, behind everything that counted.
                let file = OpenOptions::new().write(true).open(&journal).map_err(failed)?;
                if file.metadata().map_err(failed)?.len() < JOURNAL_BYTES {
                    file.set_len(JOURNAL_BYTES).map_err(failed)?;
                    store.state().journal.grown(JOURNAL_BYTES);
                }
                Ok(store)
            }
        }
    }

    /// The first journal and mark of a table, or those after one that it has taken whole, up to a number.
    fn begin(
        table: RedbStore,
        applied: u64,
        path: &Path,
        loses: Option<u64>,
    ) -> Result<JournaledStore, StoreError> {
        let (journal, mark) = (journal_path(path), mark_path(path));
        let acked = match File::open(&mark) {
            Ok(file) => mark::read(&file).map_err(|error| refused(&mark, &error))?,
            Err(_) => None,
        };
        if let Some(acked) = acked.filter(|acked| acked.number > applied) {
            let text = format!(
                "is as it was {}, and {} says that {} commits followed",
                if applied == 0 { "made" } else { "when its last journal ended" },
                mark.display(),
                acked.number - applied
            );
            return Err(refused(path, &invalid(text)));
        }
        let anew = |path: &Path, bytes| {
            anew(path, bytes).and_then(|file| medium(file, loses)).map_err(|error| refused(path, &error))
        };
        let (journal_file, mark_file) = (anew(&journal, JOURNAL_BYTES)?, anew(&mark, mark::BYTES)?);
        let store = JournaledStore::start(table, applied, journal_file, mark_file);
        let store = store.map_err(|error| refused(&journal, &error))?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let synced = File::open(directory.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all());
        synced.map_err(|error| refused(path, &error))?;
        store.marked()
    }

    /// On three media, for tests.
    #[cfg(test)]
    pub(crate) fn on_media(
        table: RedbStore,
        journal: Box<dyn Medium>,
        mark: Box<dyn Medium>,
    ) -> Result<JournaledStore, StoreError> {
        let failed = |error: io::Error| refused(Path::new("journal"), &error);
        match table.mark()?.ok_or_else(|| failed(invalid("no mark")))? {
            Mark { journal: 0, applied, .. } => {
                JournaledStore::start(table, applied, journal, mark).map_err(failed)?.marked()
            }
            of => {
                let acked = mark::read(&*mark).map_err(failed)?.filter(|acked| acked.journal == of.journal);
                let acked = acked.ok_or_else(|| failed(invalid("no acknowledged commit")))?;
                let store = JournaledStore::resume(table, journal, mark, of, acked).map_err(failed)?;
                store.settle_all()?;
                Ok(store)
            }
        }
    }

    /// With a new journal, of which the table does not know yet.
    fn start(
        table: RedbStore,
        applied: u64,
        journal: Box<dyn Medium>,
        mark: Box<dyn Medium>,
    ) -> io::Result<JournaledStore> {
        let mut id = [0; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
        // 0 is that of no journal.
        let journal = Journal::create(journal, u64::from_le_bytes(id).max(1), applied)?;
        let mark = MarkFile::create(mark, journal.acked())?;
        Ok(JournaledStore::with(table, journal, mark))
    }

    fn with(table: RedbStore, journal: Journal, mark: MarkFile) -> JournaledStore {
        let state = State { journal, mark, recent: Recent::default(), base: None };
        JournaledStore { table, state: Mutex::new(state), tail: Mutex::default() }
    }

    /// Writes the new journal's identity into the table: from now on the table is nothing without it.
    fn marked(self) -> Result<JournaledStore, StoreError> {
        {
            let state = &mut *self.state();
            self.settle(state, state.journal.next(), true)?;
        }
        Ok(self)
    }

    fn resume(
        table: RedbStore,
        journal: Box<dyn Medium>,
        mark: Box<dyn Medium>,
        of: Mark,
        acked: Acked,
    ) -> io::Result<JournaledStore> {
        let Found { journal, changes } = Journal::open(journal, of.journal, of.applied, Some(acked))?;
        // A record that was written and not acknowledged counts as well: it is read again after a power cut.
        let last = Acked { number: journal.last(), crc: 0, ..acked };
        let mark = MarkFile::create(mark, if last.number > acked.number { last } else { acked })?;
        let store = JournaledStore::with(table, journal, mark);
        {
            let state = &mut *store.state();
            *store.tail.lock() = changes.last().map(|changes| (state.journal.last(), changes.clone()));
            changes.into_iter().for_each(|changes| state.recent.push(changes));
        }
        Ok(store)
    }

    /// The table takes all that the journal has, which begins anew.
    pub(super) fn settle_all(&self) -> Result<(), StoreError> {
        let state = &mut *self.state();
        self.settle(state, state.journal.last(), true)
    }

    /// Gives a table that is a copy of another store's, up to a number, the journal and mark to go on with beside that one's.
    pub(super) fn continue_as(table: RedbStore, path: &Path, id: u64, last: u64) -> Result<(), StoreError> {
        table.commit_marked(&Changes::new(), Mark { journal: id, applied: last, etcd: None }, true)?;
        let (journal, mark) = (journal_path(path), mark_path(path));
        let file = anew(&journal, JOURNAL_BYTES).and_then(|file| Journal::create(Box::new(file), id, last));
        let acked = file.map_err(|error| refused(&journal, &error))?.acked();
        let file = anew(&mark, mark::BYTES).and_then(|file| MarkFile::create(Box::new(file), acked));
        file.map(drop).map_err(|error| refused(&mark, &error))
    }

    /// Which journal it has, and the number of the last commit.
    pub(super) fn position(&self) -> (u64, u64) {
        let state = self.state();
        (state.journal.id(), state.journal.last())
    }

    /// A snapshot, and the number of the last commit in it.
    pub(super) fn snapshot_at(&self) -> Result<(Snapshot, u64), StoreError> {
        let state = self.state();
        // None only after a failed commit.
        let base = state.base.clone().map_or_else(|| self.table.snapshot(), Ok)?;
        Ok((state.recent.above(base), state.journal.last()))
    }

    /// See [`JournaledStore::tail`]; once.
    pub(super) fn take_tail(&self) -> Option<(u64, Changes)> {
        self.tail.lock().take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in a commit stops the manager; the state is whole between its steps.
        self.state.lock()
    }

    /// The table takes what is held in memory, which is everything up to the number `applied`. Durably: the journal
    /// begins anew.
    fn settle(&self, state: &mut State, applied: u64, durable: bool) -> Result<(), StoreError> {
        let mark = Mark { journal: state.journal.id(), applied, etcd: None };
        // Before the commit, so that the pages it replaces can be used again.
        state.base = None;
        self.table.commit_marked(&state.recent.merged(), mark, durable)?;
        state.base = Some(self.table.snapshot()?);
        state.recent = Recent::default();
        if durable {
            state.journal.restart(applied);
            self.acknowledge(state)?;
        }
        Ok(())
    }

    /// What the journal and the table hold now is about to be acknowledged.
    fn acknowledge(&self, state: &mut State) -> Result<(), StoreError> {
        state.mark.set(state.journal.acked()).map_err(|error| StoreError::Engine {
            action: "write the mark of the",
            reason: error.to_string(),
        })
    }
}

impl Drop for JournaledStore {
    fn drop(&mut self) {
        // A store that ends in good order is known to the last commit, even if the power goes right after. Failing
        // loses nothing but that.
        let _ = self.state().mark.flush();
    }
}

impl Store for JournaledStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.snapshot_at()?.0)
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let state = &mut *self.state();
        let begun = Instant::now();
        let append = |journal: &mut Journal| {
            journal.append(changes).map_err(|error| StoreError::Engine {
                action: "commit to the journal of the",
                reason: error.to_string(),
            })
        };
        let mut written = append(&mut state.journal)?;
        if !written {
            // The table takes what there is; in the new round this one has a record as well: a copy of the store ([`super::mirror`]) may
            // have to get it from there.
            self.settle(state, state.journal.last(), true)?;
            written = append(&mut state.journal)?;
        }
        // Whatever fails from here on: a table that says that it has this one gets it.
        state.recent.push(changes.clone());
        if written {
            self.acknowledge(state)?;
            statistics::committed(begun.elapsed());
        }
        match (written, state.recent.len()) {
            // It is larger than a journal.
            (false, _) => self.settle(state, state.journal.next(), true),
            (true, RECENT_MAX..) => self.settle(state, state.journal.last(), false),
            (true, _) => Ok(()),
        }
    }

    fn describe(&self) -> String {
        self.table.describe()
    }

    fn damage(&self) -> Vec<u64> {
        self.table.damage()
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
        self.table.scrub(first, count)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ops::ControlFlow};

    use super::{super::volatile::Volatile, look::Look, *};

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
        let (table, journal, mark) = (Volatile::new(true), Volatile::new(true), Volatile::new(true));
        redb::StorageBackend::set_len(&journal, 12 * 4096).unwrap();
        redb::StorageBackend::set_len(&mark, mark::BYTES).unwrap();
        let open = |table: &Volatile, journal: &Volatile| {
            let table = RedbStore::on_backend(table.clone()).unwrap();
            JournaledStore::on_media(table, Box::new(journal.clone()), Box::new(mark.clone()))
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

    #[test]
    fn a_power_cut_while_the_store_is_opened_after_another() {
        let media = [Volatile::new(true), Volatile::new(true), Volatile::new(true)];
        redb::StorageBackend::set_len(&media[1], 12 * 4096).unwrap();
        redb::StorageBackend::set_len(&media[2], mark::BYTES).unwrap();
        let open = |[table, journal, mark]: &[Volatile; 3], fails: bool| {
            let store = RedbStore::on_backend(table.clone()).unwrap();
            if fails {
                table.fail(super::super::volatile::Fails::Writes, 0);
            }
            JournaledStore::on_media(store, Box::new(journal.clone()), Box::new(mark.clone()))
        };
        let store = open(&media, false).unwrap();
        store.commit(&put("first", "1")).unwrap();
        store.state().mark.flush().unwrap();
        store.commit(&put("second", "2")).unwrap();
        // The journal has both, the mark names the first.
        let [table, journal, mark] = media.each_ref();
        let cut = [table.power_cut(|| true), journal.power_cut(|| true), mark.power_cut(|| false)];
        // It is opened, as far as the mark, which is flushed; then the power goes again.
        assert!(open(&cut, true).is_err());
        let again = cut.each_ref().map(|medium| medium.power_cut(|| false));
        let store = open(&again, false).unwrap();
        assert_eq!((get(&store, "first"), get(&store, "second")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
    }

    /// It was killed between the writing of a record and its flush; then the power goes while it is opened again.
    #[test]
    fn a_power_cut_while_a_record_is_found_that_was_not_flushed() {
        let media = [Volatile::new(true), Volatile::new(true), Volatile::new(true)];
        redb::StorageBackend::set_len(&media[1], 12 * 4096).unwrap();
        redb::StorageBackend::set_len(&media[2], mark::BYTES).unwrap();
        let open = |[table, journal, mark]: &[Volatile; 3], fails: bool| {
            let store = RedbStore::on_backend(table.clone()).unwrap();
            if fails {
                table.fail(super::super::volatile::Fails::Writes, 0);
            }
            JournaledStore::on_media(store, Box::new(journal.clone()), Box::new(mark.clone()))
        };
        let store = open(&media, false).unwrap();
        store.commit(&put("first", "1")).unwrap();
        let killed = media.each_ref().map(|medium| medium.power_cut(|| true));
        store.commit(&put("second", "2")).unwrap();
        Medium::write_at(&killed[1], 0, &media[1].bytes()).unwrap();
        // Its mark is flushed, and its table is not; so the record has to be.
        assert!(open(&killed, true).is_err());
        let again = killed.each_ref().map(|medium| medium.power_cut(|| false));
        let store = open(&again, false).unwrap();
        assert_eq!((get(&store, "first"), get(&store, "second")), (Some(b"1".to_vec()), Some(b"2".to_vec())));
    }

    /// The table as it is while the store is open: what only the journal holds durably may be missing there.
    fn copy_of(from: &Path, to: &Path) {
        std::fs::copy(from, to).unwrap();
        std::fs::copy(journal_path(from), journal_path(to)).unwrap();
        std::fs::copy(mark_path(from), mark_path(to)).unwrap();
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

        assert_eq!(Look::open(&crashed, 1 << 20).unwrap().flaw().unwrap(), None);
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
            assert!(error.contains("crashed.journal") && error.contains("accept-loss"), "{error}");
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

    /// Commits more, and leaves the files as a crash does: the table behind, the rest in the journal.
    fn crash_after(path: &Path, commits: std::ops::Range<u32>) {
        let store = JournaledStore::open(path, 1 << 20).unwrap();
        commits.for_each(|n| store.commit(&put(&format!("name{n}"), "1")).unwrap());
        let left = path.with_file_name("left.redb");
        copy_of(path, &left);
        drop(store);
        copy_of(&left, path);
    }

    fn refused_for(path: &Path, why: &str) {
        let files = [path.to_owned(), journal_path(path), mark_path(path)];
        let before = files.each_ref().map(|file| std::fs::read(file).ok());
        let error =
            JournaledStore::open(path, 1 << 20).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(why) && error.contains("accept-loss"), "{why}: {error:?}");
        let look = Look::open(path, 1 << 20).unwrap();
        assert!(look.problems.iter().any(|problem| problem.contains(why)), "{why}: {:?}", look.problems);
        drop(look);
        let after = files.each_ref().map(|file| std::fs::read(file).ok());
        assert!(before[1..] == after[1..], "{why}: something was changed");
    }

    #[test]
    fn a_journal_that_does_not_hold_what_was_acknowledged_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        drop(RedbStore::create(&path, 1 << 20).unwrap());
        crash_after(&path, 0..100);
        let (journal, mark) = (journal_path(&path), mark_path(&path));
        let (whole, whole_mark) = (std::fs::read(&journal).unwrap(), std::fs::read(&mark).unwrap());
        // It holds commits 2 to 101 at 4096 and on; the table had 1 when it was made.
        let end = 4096 * 101;
        let told = |bytes: Vec<u8>, why: &str| {
            std::fs::write(&journal, bytes).unwrap();
            refused_for(&path, why);
        };
        told(whole[..end - 40 * 4096].to_vec(), "commit 101 was acknowledged: 40 are lost");
        told(whole[..4096].to_vec(), "commit 101 was acknowledged: 100 are lost");
        told([&whole[..4096], &vec![0; whole.len() - 4096][..]].concat(), "100 are lost");
        told(vec![0; whole.len()], "is not the journal of this store");
        let mut flipped = whole.clone();
        flipped[end - 4096 + 25] ^= 1;
        told(flipped, "commit 101 was acknowledged: 1 are lost");
        std::fs::write(&journal, &whole).unwrap();
        std::fs::remove_file(&mark).unwrap();
        refused_for(&path, "is not there");
        std::fs::write(&mark, [0; 10]).unwrap();
        refused_for(&path, "does not say which commit");
        // As it was it is opened; then an older copy of it, and one of the table, are refused.
        std::fs::write(&mark, &whole_mark).unwrap();
        let old_table = std::fs::read(&path).unwrap();
        crash_after(&path, 100..150);
        let (newer, table) = (std::fs::read(&journal).unwrap(), std::fs::read(&path).unwrap());
        told(whole.clone(), "commit 151 was acknowledged: 50 are lost");
        std::fs::write(&journal, &newer).unwrap();
        std::fs::write(&path, &old_table).unwrap();
        refused_for(&path, "is missing before");
        // Both older, and the mark of today.
        std::fs::write(&journal, &whole).unwrap();
        refused_for(&path, "commit 151 was acknowledged: 50 are lost");
        // Cut behind everything that counts it is mended.
        std::fs::write(&path, &table).unwrap();
        std::fs::write(&journal, &newer[..51 * 4096]).unwrap();
        let store = JournaledStore::open(&path, 1 << 20).unwrap();
        assert!((0..150).all(|n| get(&store, &format!("name{n}")).is_some()));
        drop(store);
        assert_eq!(std::fs::metadata(&journal).unwrap().len(), JOURNAL_BYTES);
    }

    #[test]
    fn a_store_of_an_earlier_version_is_rewritten_with_all_it_has() {
        use redb::{Database, TableDefinition};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        {
            let database = Database::create(&path).unwrap();
            let write = database.begin_write().unwrap();
            let mut table = write.open_table(TableDefinition::<&[u8], &[u8]>::new("ropewalk")).unwrap();
            (0..500u32).for_each(|n| drop(table.insert(&n.to_be_bytes()[..], &b"old"[..]).unwrap()));
            drop(table);
            let mut table = write.open_table(TableDefinition::<u8, u64>::new("journal")).unwrap();
            table.insert(0, 7).unwrap();
            table.insert(1, 4).unwrap();
            drop(table);
            write.commit().unwrap();
        }
        let file = anew(&journal_path(&path), 64 * 4096).unwrap();
        let mut journal = Journal::create(Box::new(file), 7, 4).unwrap();
        assert!(journal.append(&put("late", "5")).unwrap());
        let former = std::fs::read(&path).unwrap();
        // A bit of a page in use: the store stays as it is.
        let at = former.windows(3).position(|bytes| bytes == b"old").unwrap();
        let mut flipped = former.clone();
        flipped[at] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let error = JournaledStore::open(&path, 1 << 20).err().unwrap().to_string();
        assert!(error.contains("pages of the table are damaged"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), flipped);
        std::fs::write(&path, &former).unwrap();
        for round in 0..2 {
            let store = JournaledStore::open(&path, 1 << 20).unwrap();
            assert_eq!(get(&store, "late"), Some(b"5".to_vec()), "{round}");
            let mut count = 0;
            let all = store.snapshot().unwrap();
            all.scan(&[], &[u8::MAX], &mut |_, _| {
                count += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(count, 501);
        }
        assert_eq!(blocks::kind_of(&path).unwrap(), blocks::Kind::Blocks);
    }
}
