//! The embedded store with a copy of itself on another disk: a second table, journal and mark, which take the same commits under the
//! same numbers. Each is whole for itself, whatever ends the process.
//!
//! A commit is acknowledged when both have it, or when it is recorded durably that the copy does not count any more (see
//! [`witness`](super::witness)). A copy that fails, or does not answer in time, is made anew in the background: from a snapshot, then from
//! what was committed meanwhile. Opening brings the one up to the other that lacks the commit in whose middle a crash came; whatever
//! else differs makes the copy one that is made anew.
//!
//! One thread alone touches the copy's disk, from its opening on: whoever waits for it does so with a deadline, and nothing is begun there
//! anew before what hangs has ended.

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
    Changes, JournaledStore, Mirror, Read, RedbStore, Remark, Snapshot, Store, StoreError, Visit,
    files::{journal_path, mark_path, random, refused, write_durably},
    look,
    witness::{CACHE_BYTES, Said},
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
/// How long an end waits for the copy's disk.
const END_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);

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
    /// Opens the store at `path` with its copy. A copy that cannot be opened, or whose disk does not answer in time, does not count
    /// any more.
    pub fn open(
        path: &Path,
        cache_bytes: usize,
        mirror: &Mirror,
        loses: Option<u64>,
    ) -> Result<MirroredStore, StoreError> {
        let store = JournaledStore::open_as(path, cache_bytes, loses).map_err(|error| {
            let looked = mirror.clone();
            match in_time(move || looked.whole()) {
                Ok(Ok(())) => {
                    mirror.instead(path, &format!("{error}; its copy in {} has all", mirror.dir.display()))
                }
                _ => error,
            }
        })?;
        let shared = Arc::new(Shared {
            mirror: mirror.clone(),
            side: Mutex::new(Side::Behind("it is being opened".into())),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
            #[cfg(test)]
            trouble: Mutex::default(),
        });
        let store = Arc::new(store);
        let (end, ended) = mpsc::channel();
        let (tells, told) = mpsc::channel();
        let (takes, taken) = mpsc::channel();
        let (works, of) = (shared.clone(), Arc::downgrade(&store));
        let run = move || {
            let first = works.begin(loses, &tells, &taken);
            works.run(&of, first);
            drop(end);
        };
        let started = thread::Builder::new().name("manager-mirror".into()).spawn(run);
        started.map_err(|error| refused(&mirror.dir, &error))?;
        let opened = MirroredStore { store, path: path.to_owned(), shared, ended: Mutex::new(ended) };
        let found = told.recv_timeout(DEADLINE).unwrap_or_else(|_| Err(late()));
        let whole = found.map_err(Apart::Copy).and_then(|copied| {
            let lacks = level(&opened.store, copied)?;
            let (to, jobs) = mpsc::channel();
            let lost = |_| Apart::Copy("its thread has ended".into());
            takes.send(jobs).map_err(lost)?;
            if let Some(changes) = lacks {
                wait(&send(&to, &changes)).map_err(Apart::Copy)?;
            }
            Ok(to)
        });
        match whole {
            Ok(to) => *opened.shared.side.lock() = Side::Whole(to),
            // Before anything is acknowledged without it.
            Err(Apart::Copy(why)) => opened.leave(&mut opened.shared.side.lock(), why)?,
            // What was acknowledged is only in the copy: it is not made anew from what lacks it.
            Err(Apart::Store(why)) => {
                opened.shared.ending.store(true, Ordering::Relaxed);
                drop(takes);
                return Err(mirror.instead(path, &why));
            }
        }
        Ok(opened)
    }

    /// The copy does not count from now on. When this returns that is durable.
    fn leave(&self, side: &mut Side, why: String) -> Result<(), StoreError> {
        self.shared.mirror.say(Said::Behind)?;
        tracing::warn!("the copy of the manager's store does not count: {why}");
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

/// What a copy that was opened holds: its journal and the number of its last commit, and that commit.
type Copied = ((u64, u64), Option<(u64, Changes)>);

/// The store gets the commit that only the copy has; or the commit that only the store has, for the copy. An error if that is not all
/// that differs. A copy that counted has never more than one commit that the store lacks: where it has, the store is an older one.
fn level(store: &JournaledStore, ((of, copied), copied_tail): Copied) -> Result<Option<Changes>, Apart> {
    let (journal, last) = store.position();
    if journal != of {
        return Err(Apart::Copy("it is the copy of another store".into()));
    }
    match (store.take_tail(), copied_tail) {
        (Some(one), Some(other)) if last == copied && one.0 == other.0 && one.1 != other.1 => {
            Err(Apart::Store(format!("commit {last} is another one in the copy that counts")))
        }
        _ if last == copied => Ok(None),
        (Some((number, changes)), _) if number == last && last == copied + 1 => Ok(Some(changes)),
        (_, Some((number, changes))) if number == copied && copied == last + 1 => {
            store.commit(&changes).map(|()| None).map_err(|error| Apart::Copy(error.to_string()))
        }
        _ if copied > last => {
            let more = copied - last;
            Err(Apart::Store(format!("the copy that counts has {more} commits that it lacks")))
        }
        _ => Err(Apart::Copy(format!("it has {copied} commits, and the store {last}"))),
    }
}

fn late() -> String {
    format!("its disk did not answer within {} s", DEADLINE.as_secs())
}

/// Has the copy's disk asked by a thread of its own; why not, if it does not answer in time.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (tell, told) = mpsc::channel();
    let work = move || {
        let _ = tell.send(work()); // who waited may have gone on without
    };
    let started = thread::Builder::new().name("manager-mirror".into()).spawn(work);
    started.map_err(|error| error.to_string())?;
    told.recv_timeout(DEADLINE).map_err(|_| late())
}

/// Gives the copy a commit; where its end is told.
fn send(to: &mpsc::Sender<Job>, changes: &Changes) -> mpsc::Receiver<Result<(), StoreError>> {
    let (done, outcome) = mpsc::sync_channel(1);
    let _ = to.send(Job { changes: changes.clone(), done }); // a thread that has ended tells nothing, which is heard
    outcome
}

/// Waits until the copy has a commit; why it has not.
fn wait(outcome: &mpsc::Receiver<Result<(), StoreError>>) -> Result<(), String> {
    match outcome.recv_timeout(DEADLINE) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(late()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("its thread has ended".into()),
    }
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

    /// Opens the copy, tells what it holds, and takes commits for it if whoever heard that in time wants it to.
    fn begin(
        &self,
        loses: Option<u64>,
        tells: &mpsc::Sender<Result<Copied, String>>,
        taken: &mpsc::Receiver<mpsc::Receiver<Job>>,
    ) -> Option<(JournaledStore, mpsc::Receiver<Job>)> {
        let opened = self.mirror.whole().and_then(|()| {
            JournaledStore::open_as(&self.mirror.table(), CACHE_BYTES, loses.map(|seed| seed ^ 1))
                .map_err(|error| error.to_string())
        });
        let (copy, found) = match opened {
            Ok(copy) => {
                let holds = (copy.position(), copy.take_tail());
                (Some(copy), Ok(holds))
            }
            Err(why) => (None, Err(why)),
        };
        let _ = tells.send(found); // who waited may have gone on without
        Some((copy?, taken.recv().ok()?))
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
            let last = move || late.iter().try_for_each(|changes| copy.commit(changes)).map(|()| copy);
            let committed = match in_time(last) {
                Ok(committed) => committed,
                Err(why) => {
                    *side = Side::Behind(why);
                    return Ok(None);
                }
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
                let outcome = send(to, changes);
                self.store.commit(changes)?;
                wait(&outcome).or_else(|why| self.leave(side, why))
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
