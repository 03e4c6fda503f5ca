//! The embedded store with a copy of itself on another disk: a second table, journal and mark, which take the same commits under the
//! same numbers. Each is whole for itself, whatever ends the process.
//!
//! A commit is acknowledged when both have it, or when it is recorded durably that the copy does not count any more. The record, the
//! *witness*, is a file beside the cluster's own (`cluster.toml`), so that it outlives the store's disk: no copy is taken for whole that
//! is not named there. A copy that fails, or does not answer in time, is made anew in the background: from a snapshot, then from
//! what was committed meanwhile. Opening brings the one up to the other that lacks the commit in whose middle a crash came; whatever
//! else differs makes the copy one that is made anew.

use std::{
    fs, io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use super::{
    Changes, JournaledStore, Look, Read, RedbStore, Remark, Snapshot, Store, StoreError, Visit,
    files::{journal_path, mark_path, random, refused, write_durably},
    look,
};

/// How long a commit waits for the copy's disk.
const DEADLINE: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };
/// How long who asks how the copy stands waits for a commit.
const SIGHT: Duration = Duration::from_millis(100);
/// How often it is tried to make a copy anew.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(10) };
/// Bytes of commits that are kept while one is made; with more it is begun again.
const LATE_MAX: usize = 64 << 20;
/// So many of them are taken while no commit goes on.
const LAST_MAX: usize = 8;
/// Memory for the copy's pages.
const CACHE_BYTES: usize = 32 << 20;
/// How long an end waits for the copy's disk.
const END_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);

/// Where a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Its directory, on another disk; nothing else is there.
    pub dir: PathBuf,
    /// The witness: a file that survives what the copy is for.
    pub witness: PathBuf,
}

/// What the witness says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// The copy of this number has all that was acknowledged.
    Whole(u64),
    /// None has.
    Behind,
}

impl Mirror {
    fn table(&self) -> PathBuf {
        self.dir.join("store.redb")
    }

    /// The copy's number, which it got when it was made.
    fn id(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join("store.mirror")).ok()?;
        u64::from_str_radix(text.trim(), 16).ok()
    }

    fn said(&self) -> Result<Said, StoreError> {
        let text = match fs::read_to_string(&self.witness) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Said::Behind),
            Err(error) => return Err(refused(&self.witness, &error)),
        };
        let id = text.trim().strip_prefix("whole ").map(|id| u64::from_str_radix(id, 16));
        Ok(id.and_then(Result::ok).map_or(Said::Behind, Said::Whole))
    }

    fn say(&self, said: Said) -> Result<(), StoreError> {
        let text = match said {
            Said::Whole(id) => format!("whole {id:016x}\n"),
            Said::Behind => "behind\n".to_owned(),
        };
        write_durably(&self.witness, &text).map_err(|error| refused(&self.witness, &error))
    }

    /// From now on no copy counts, until one was made anew.
    pub fn reset(&self) -> Result<(), StoreError> {
        self.say(Said::Behind)
    }

    /// Whether the copy has all that was acknowledged; else why not.
    fn whole(&self) -> Result<(), String> {
        match (self.said().map_err(|error| error.to_string())?, self.id()) {
            (Said::Whole(said), Some(id)) if said == id => Ok(()),
            (Said::Whole(_), _) => Err("it is not the copy that was kept last".into()),
            (Said::Behind, _) => Err("it lacks what was committed last".into()),
        }
    }

    /// The store at `path` does not do, and the copy does.
    fn instead(&self, path: &Path, why: &str) -> StoreError {
        let dir = self.dir.display();
        let reason = format!(
            "{why}. Nothing was changed. `ropewalk manager promote --from-mirror {dir}` takes the copy; `ropewalk manager mirror --off` \
             gives it up"
        );
        StoreError::Open { path: path.to_owned(), reason }
    }

    /// Makes the copy the manager's store in `dir`, whose former files are moved away; how many commits it has. Refused, and nothing is
    /// changed, if it may lack one that was acknowledged.
    pub fn promote(&self, dir: &Path) -> Result<u64, StoreError> {
        let refuse = |why: String| StoreError::Open {
            path: self.dir.clone(),
            reason: format!(
                "{why} (as {} has it); nothing was changed. Bring back the store's own disk, or restore a dump (`ropewalk manager restore`)",
                self.witness.display()
            ),
        };
        self.whole().map_err(refuse)?;
        let copy = Look::open(&self.table(), CACHE_BYTES)?;
        if let Some(problem) = copy.problems.first() {
            return Err(refuse(problem.clone()));
        }
        let own = dir.join("store.redb");
        if let Ok(own) = Look::open(&own, CACHE_BYTES)
            && own.problems.is_empty()
            && own.last >= copy.last
        {
            return Err(refuse(format!(
                "the store in {} is whole, and has all that the copy has: start it",
                dir.display()
            )));
        }
        let last = copy.last;
        drop(copy);
        let moved = (|| -> io::Result<()> {
            if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
                let lost = (1..).map(|n| dir.with_extension(format!("lost.{n}")));
                let lost = lost.take(1000).find(|lost| !lost.exists());
                fs::rename(dir, lost.ok_or_else(|| io::Error::other("too many former stores beside it"))?)?;
            }
            fs::create_dir_all(dir)?;
            let new = dir.join("new.redb");
            let files = [
                (journal_path(&self.table()), journal_path(&own)),
                (mark_path(&self.table()), mark_path(&own)),
                (self.table(), new.clone()),
            ];
            for (from, to) in files {
                fs::copy(&from, &to)?;
                fs::File::open(&to)?.sync_all()?;
            }
            // With its name it is a store.
            fs::rename(&new, &own)?;
            fs::File::open(dir)?.sync_all()?;
            fs::File::open(dir.parent().unwrap_or(Path::new("/")))?.sync_all()
        })();
        moved.map_err(|error| refused(dir, &error))?;
        Ok(last)
    }
}

/// A commit for the copy, and where its end is told.
struct Job {
    changes: Changes,
    done: mpsc::SyncSender<Result<(), StoreError>>,
}

/// How the copy stands.
enum Side {
    /// It does not count: why.
    Behind(String),
    /// One is being made: commits since its snapshot, and their bytes.
    Made(Vec<Changes>, usize),
    /// It has all.
    Whole(mpsc::Sender<Job>),
}

struct Shared {
    mirror: Mirror,
    side: Mutex<Side>,
    changed: Condvar,
    ending: AtomicBool,
    /// What goes wrong with the copy, in tests.
    #[cfg(test)]
    trouble: Mutex<Option<Trouble>>,
}

/// See [`Shared`].
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// EIO.
    Fails,
    /// The disk does not answer.
    Hangs,
}

/// See the module.
pub struct MirroredStore {
    store: Arc<JournaledStore>,
    path: PathBuf,
    shared: Arc<Shared>,
    ended: Mutex<mpsc::Receiver<()>>,
}

impl MirroredStore {
    /// Opens the store at `path` with its copy. A copy that cannot be opened does not count any more.
    pub fn open(
        path: &Path,
        cache_bytes: usize,
        mirror: &Mirror,
        loses: Option<u64>,
    ) -> Result<MirroredStore, StoreError> {
        let store =
            JournaledStore::open_as(path, cache_bytes, loses).map_err(|error| match mirror.whole() {
                Ok(()) => {
                    mirror.instead(path, &format!("{error}; its copy in {} has all", mirror.dir.display()))
                }
                Err(_) => error,
            })?;
        let copy = match mirror.whole() {
            Ok(()) => {
                match JournaledStore::open_as(&mirror.table(), CACHE_BYTES, loses.map(|seed| seed ^ 1)) {
                    Ok(copy) => match level(&store, &copy) {
                        Ok(()) => Ok(copy),
                        Err(Apart::Copy(why)) => Err(why),
                        // What was acknowledged is only in the copy: it is not made anew from what lacks it.
                        Err(Apart::Store(why)) => return Err(mirror.instead(path, &why)),
                    },
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(why) => Err(why),
        };
        let (side, first) = match copy {
            Ok(copy) => {
                let (to, jobs) = mpsc::channel();
                (Side::Whole(to), Some((copy, jobs)))
            }
            Err(why) => {
                // Before anything is acknowledged without it.
                mirror.say(Said::Behind)?;
                (Side::Behind(why), None)
            }
        };
        let shared = Arc::new(Shared {
            mirror: mirror.clone(),
            side: Mutex::new(side),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
            #[cfg(test)]
            trouble: Mutex::default(),
        });
        let store = Arc::new(store);
        let (end, ended) = mpsc::channel();
        let (works, of) = (shared.clone(), Arc::downgrade(&store));
        let run = move || {
            works.run(&of, first);
            drop(end);
        };
        let started = thread::Builder::new().name("manager-mirror".into()).spawn(run);
        started.map_err(|error| refused(&mirror.dir, &error))?;
        Ok(MirroredStore { store, path: path.to_owned(), shared, ended: Mutex::new(ended) })
    }

    /// The copy does not count from now on. When this returns that is durable.
    fn leave(&self, side: &mut Side, why: String) -> Result<(), StoreError> {
        self.shared.mirror.say(Said::Behind)?;
        tracing::warn!("the copy of the manager's store does not count any more: {why}");
        *side = Side::Behind(why);
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// Which of the two is not what it should be, and why.
enum Apart {
    Copy(String),
    Store(String),
}

/// Each gets the commit that only the other one has; an error if that is not all that differs. A copy that counted has never more
/// than one commit that the store lacks: where it has, the store is an older one.
fn level(store: &JournaledStore, copy: &JournaledStore) -> Result<(), Apart> {
    let ((journal, last), (of, copied)) = (store.position(), copy.position());
    if journal != of {
        return Err(Apart::Copy("it is the copy of another store".into()));
    }
    let (tail, copied_tail) = (store.take_tail(), copy.take_tail());
    let outcome = match (tail, copied_tail) {
        (Some(one), Some(other)) if last == copied && one.0 == other.0 && one.1 != other.1 => {
            return Err(Apart::Store(format!("commit {last} is another one in the copy that counts")));
        }
        _ if last == copied => Ok(()),
        (Some((number, changes)), _) if number == last && last == copied + 1 => copy.commit(&changes),
        (_, Some((number, changes))) if number == copied && copied == last + 1 => store.commit(&changes),
        _ if copied > last => {
            let more = copied - last;
            return Err(Apart::Store(format!("the copy that counts has {more} commits that it lacks")));
        }
        _ => return Err(Apart::Copy(format!("it has {copied} commits, and the store {last}"))),
    };
    outcome.map_err(|error| Apart::Copy(error.to_string()))
}

/// Reads no more once the store ends.
struct UntilEnd<'a>(&'a dyn Read, &'a AtomicBool);

impl Read for UntilEnd<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(key)
    }
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        self.0.scan(start, end, &mut |key, value| match self.1.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => visit(key, value),
        })
    }
}

impl Shared {
    fn ends(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The copy's thread.
    fn run(&self, of: &Weak<JournaledStore>, first: Option<(JournaledStore, mpsc::Receiver<Job>)>) {
        let mut at = first;
        while !self.ends() {
            match at.take() {
                Some((copy, jobs)) => self.serve(&copy, &jobs),
                None => {
                    let mut side = self.side.lock();
                    self.changed.wait_for(&mut side, RETRY);
                    drop(side);
                    let Some(store) = of.upgrade().filter(|_| !self.ends()) else { return };
                    match self.make(&store) {
                        Ok(made) => at = made,
                        Err(error) => *self.side.lock() = Side::Behind(error.to_string()),
                    }
                }
            }
        }
    }

    /// Takes commits until one fails, or nobody sends them any more.
    fn serve(&self, copy: &JournaledStore, jobs: &mpsc::Receiver<Job>) {
        while let Ok(Job { changes, done }) = jobs.recv() {
            #[cfg(test)]
            let trouble = *self.trouble.lock();
            #[cfg(test)]
            match trouble {
                Some(Trouble::Fails) => {
                    let _ = done.send(Err(refused(&self.mirror.dir, &io::Error::other("EIO"))));
                    return;
                }
                Some(Trouble::Hangs) => self.hang(),
                None => {}
            }
            let outcome = copy.commit(&changes);
            let failed = outcome.is_err();
            let _ = done.send(outcome); // who waited may have gone on without
            if failed {
                return;
            }
        }
    }

    #[cfg(test)]
    fn hang(&self) {
        while self.trouble.lock().is_some() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes a copy that has all, and is sent what follows; none if it would not end, or the store does.
    fn make(
        &self,
        store: &JournaledStore,
    ) -> Result<Option<(JournaledStore, mpsc::Receiver<Job>)>, StoreError> {
        #[cfg(test)]
        if self.trouble.lock().is_some() {
            return Err(refused(&self.mirror.dir, &io::Error::other("EIO")));
        }
        let dir = &self.mirror.dir;
        let failed = |error: io::Error| refused(dir, &error);
        // A disk that is not mounted has no directory; one is not made in its place.
        fs::read_dir(dir).map_err(failed)?;
        let new = dir.join("new.redb");
        for file in [new.clone(), journal_path(&new), mark_path(&new)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&file, &error)),
                _ => {}
            }
        }
        let (snapshot, number) = {
            let mut side = self.side.lock();
            *side = Side::Made(Vec::new(), 0);
            store.snapshot_at()?
        };
        let table = RedbStore::create(&new, CACHE_BYTES)?;
        let (_, gaps) = look::copy(&UntilEnd(&*snapshot, &self.ending), &table)?;
        drop(snapshot);
        if let Some(gap) = gaps.first() {
            return Err(StoreError::Damaged { reason: gap.clone() });
        }
        if self.ends() {
            return Ok(None);
        }
        JournaledStore::continue_as(table, &new, store.position().0, number)?;
        for (from, to) in [
            (journal_path(&new), journal_path(&self.mirror.table())),
            (mark_path(&new), mark_path(&self.mirror.table())),
            (new.clone(), self.mirror.table()),
        ] {
            fs::rename(from, to).map_err(failed)?;
        }
        let id = random().map_err(failed)?;
        write_durably(&dir.join("store.mirror"), &format!("{id:016x}\n")).map_err(failed)?;
        let copy = JournaledStore::open(&self.mirror.table(), CACHE_BYTES)?;
        loop {
            let mut side = self.side.lock();
            let Side::Made(late, bytes) = &mut *side else { return Ok(None) };
            *bytes = 0;
            let late = std::mem::take(late);
            if late.len() > LAST_MAX {
                drop(side);
                late.iter().try_for_each(|changes| copy.commit(changes))?;
                continue;
            }
            // The store waits for these, and for no disk that does not answer.
            let (done, outcome) = mpsc::channel();
            let last = move || {
                let committed = late.iter().try_for_each(|changes| copy.commit(changes));
                let _ = done.send(committed.map(|()| copy)); // who waited may have gone on without
            };
            thread::Builder::new().name("manager-mirror".into()).spawn(last).map_err(failed)?;
            let Ok(committed) = outcome.recv_timeout(DEADLINE) else {
                *side = Side::Behind(format!("its disk did not answer within {} s", DEADLINE.as_secs()));
                return Ok(None);
            };
            let copy = committed?;
            if let Err(error) = self.mirror.say(Said::Whole(id)) {
                // It may stand there all the same.
                self.mirror.say(Said::Behind)?;
                return Err(error);
            }
            let (to, jobs) = mpsc::channel();
            *side = Side::Whole(to);
            tracing::info!("the copy of the manager's store in {} has all", dir.display());
            return Ok(Some((copy, jobs)));
        }
    }
}

impl Drop for MirroredStore {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        // The witness stays as it is: nothing is acknowledged any more.
        *self.shared.side.lock() = Side::Behind("it ends".into());
        self.shared.changed.notify_all();
        let _ = self.ended.lock().recv_timeout(END_MAX); // a disk that does not answer is not waited for
    }
}

impl Store for MirroredStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.store.snapshot()
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let side = &mut *self.shared.side.lock();
        match side {
            Side::Behind(_) => self.store.commit(changes),
            Side::Made(late, bytes) => {
                self.store.commit(changes)?;
                let len = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
                    key.len() + value.as_ref().map_or(0, Vec::len)
                };
                *bytes += changes.iter().map(len).sum::<usize>();
                late.push(changes.clone());
                if *bytes > LATE_MAX {
                    *side = Side::Behind("more was committed than its disk could take meanwhile".into());
                }
                Ok(())
            }
            Side::Whole(to) => {
                // Both at once.
                let (done, outcome) = mpsc::sync_channel(1);
                let sent = to.send(Job { changes: changes.clone(), done });
                self.store.commit(changes)?;
                let copied = match sent.map(|()| outcome.recv_timeout(DEADLINE)) {
                    Ok(Ok(outcome)) => outcome.map_err(|error| error.to_string()),
                    Ok(Err(mpsc::RecvTimeoutError::Timeout)) => {
                        Err(format!("its disk did not answer within {} s", DEADLINE.as_secs()))
                    }
                    Ok(Err(mpsc::RecvTimeoutError::Disconnected)) | Err(_) => {
                        Err("its thread has ended".into())
                    }
                };
                copied.or_else(|why| self.leave(side, why))
            }
        }
    }

    fn describe(&self) -> String {
        let (path, dir) = (self.path.display(), self.shared.mirror.dir.display());
        // Nobody who asks waits for a disk.
        let Some(side) = self.shared.side.try_lock_for(SIGHT) else {
            return format!("{path}, with a copy in {dir} that is waited for");
        };
        match &*side {
            Side::Whole(_) => format!("{path}, with a copy in {dir}"),
            Side::Made(..) => format!("{path}, on one disk; a copy is being made in {dir}"),
            Side::Behind(_) => format!("{path}, on one disk; the copy in {dir} is behind"),
        }
    }

    fn tends(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn remarks(&self) -> Vec<Remark> {
        let Some(side) = self.shared.side.try_lock_for(SIGHT) else { return Vec::new() };
        let why = match &*side {
            Side::Whole(_) => return Vec::new(),
            Side::Made(..) => "it is being made anew".to_owned(),
            Side::Behind(why) => why.clone(),
        };
        let text = format!(
            "the manager's store stands on one disk only, its copy in {} is behind: {why}; it is made anew by itself as soon as that \
             directory can be written (`ropewalk manager mirror` names another one)",
            self.shared.mirror.dir.display()
        );
        vec![Remark { what: "the copy of the manager's store is behind", text }]
    }

    fn damage(&self) -> Vec<u64> {
        self.store.damage()
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
        self.store.scrub(first, count)
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
