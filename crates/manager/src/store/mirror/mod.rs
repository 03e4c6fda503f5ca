//! The embedded store with a copy of itself elsewhere ([`place`]): a second table, journal and mark, which take the same commits under
//! the same numbers. Each is whole for itself, whatever ends the process.
//!
//! A commit is acknowledged when both have it, or when it is recorded durably that the copy does not count any more
//! ([`Place::dismiss`]). A copy that fails, or does not answer in time, is made anew in the background: from a snapshot, then from
//! what was committed meanwhile. Opening brings the one up to the other that lacks the commit in whose middle a crash came; whatever
//! else differs makes the copy one that is made anew.
//!
//! One thread alone touches the copy, from its opening on: whoever waits for it does so with a deadline, and nothing is begun there
//! anew before what hangs has ended.

mod disk;
mod job;
mod keeper;
mod level;
mod message;
mod node;
mod order;
mod place;
mod promote;
mod room;
mod until_end;
mod votes;
mod way;
mod witness;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use self::{
    job::{Job, in_time, late, send, wait},
    level::{Apart, level},
    order::Order,
    place::{Copied, DEADLINE, Held},
    until_end::UntilEnd,
};
pub use self::{
    keeper::Keeper,
    node::{Node, Voters},
    place::Place,
    promote::promote_kept,
    votes::{Ballots, Voter},
    way::{NetWay, Way},
    witness::Mirror,
};
use super::{Changes, Confirmed, JournaledStore, Remark, Snapshot, Store, StoreError};

/// How long who looks after the store waits for a commit; one that takes longer is said to wait for the copy.
const SIGHT: Duration = Duration::from_millis(100);
/// Before it is tried to make a copy anew; after each time in vain twice as long, up to [`RETRY_MAX`].
const RETRY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };
/// See [`RETRY`].
const RETRY_MAX: Duration = if cfg!(test) { RETRY } else { Duration::from_secs(10) };
/// Bytes of commits that are kept while one is made; with more it is begun again.
const LATE_MAX: usize = 64 << 20;
/// So many of them are taken while no commit goes on.
const LAST_MAX: usize = 8;
/// For each that a copy lacks which does not come nearer by itself a commit takes longer by so much, up to [`SLOWER_MAX`].
const SLOWER: Duration = Duration::from_millis(4);
/// See [`SLOWER`].
const SLOWER_MAX: Duration = Duration::from_millis(100);
/// How long an end waits for the copy's disk.
const END_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);

/// How the copy stands.
enum Side {
    /// It does not count: why.
    Behind(String),
    /// Whether it counts is not known: nothing is committed any more.
    Unknown(StoreError),
    /// One is being made: commits since its snapshot, and their bytes.
    Made(Vec<Changes>, usize),
    /// It has all.
    Whole(mpsc::Sender<Job>),
}

/// See [`Side`], for who asks: the side itself is held through a commit.
#[derive(Clone)]
enum Stand {
    Behind(String),
    Made,
    Whole,
}

/// A copy with what is sent to it.
type Taken = (Box<dyn Copied>, mpsc::Receiver<Job>);

struct Shared {
    place: Arc<dyn Place>,
    side: Mutex<Side>,
    stand: Mutex<Stand>,
    changed: Condvar,
    /// Since when a commit waits for the copy, or would.
    waits: Mutex<Option<Instant>>,
    /// Records of a copy that is being made.
    seen: AtomicU64,
    /// A copy that is being made does not come nearer.
    slower: AtomicBool,
    /// The copy's thread ends.
    ending: AtomicBool,
    /// Nobody waits for others any more.
    impatient: AtomicBool,
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
    /// Opens the store at `path` with its copy. A copy that cannot be opened, or does not answer in time, does not count any more.
    pub fn open(
        path: &Path,
        cache_bytes: usize,
        place: Arc<dyn Place>,
        loses: Option<u64>,
    ) -> Result<MirroredStore, StoreError> {
        let store = JournaledStore::open_as(path, cache_bytes, loses).map_err(|error| {
            // Who has it open has the copy as well.
            if matches!(error, StoreError::InUse { .. }) {
                return error;
            }
            let looked = Arc::clone(&place);
            match in_time(move || looked.whole()) {
                Ok(Ok(())) => place.instead(path, &format!("{error}; its copy {} has all", place.name())),
                _ => error,
            }
        })?;
        let opening = "it is being opened";
        let shared = Arc::new(Shared {
            place: Arc::clone(&place),
            side: Mutex::new(Side::Behind(opening.into())),
            stand: Mutex::new(Stand::Behind(opening.into())),
            changed: Condvar::new(),
            waits: Mutex::new(None),
            seen: AtomicU64::new(0),
            slower: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            impatient: AtomicBool::new(false),
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
        let failed = |error: std::io::Error| StoreError::Engine {
            action: "start the thread of the copy of the",
            reason: error.to_string(),
        };
        started.map_err(failed)?;
        let opened = MirroredStore { store, path: path.to_owned(), shared, ended: Mutex::new(ended) };
        let found = told.recv_timeout(DEADLINE).unwrap_or_else(|_| Err(late()));
        let whole = found.map_err(Apart::Copy).and_then(|held| {
            let lacks = level(&opened.store, held)?;
            let (to, jobs) = mpsc::channel();
            let lost = |_| Apart::Copy("its thread has ended".into());
            takes.send(jobs).map_err(lost)?;
            if let Some(changes) = lacks {
                wait(&send(&to, &changes)).map_err(Apart::Copy)?;
            }
            Ok(to)
        });
        match whole {
            Ok(to) => opened.shared.turn(&mut opened.shared.side.lock(), Side::Whole(to)),
            // Before anything is acknowledged without it.
            Err(Apart::Copy(why)) => {
                opened.shared.leave(&mut opened.shared.side.lock(), why, &opened.store)?;
            }
            // What was acknowledged is only in the copy: it is not made anew from what lacks it.
            Err(Apart::Store(why)) => {
                opened.shared.ending.store(true, Ordering::Relaxed);
                drop(takes);
                return Err(place.instead(path, &why));
            }
        }
        Ok(opened)
    }
}

/// Says, as long as it lives, that whoever commits waits for the copy.
struct Waiting<'a>(&'a Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.waits.lock() = None;
    }
}

impl Shared {
    fn waiting(&self) -> Waiting<'_> {
        self.waits.lock().get_or_insert_with(Instant::now);
        Waiting(self)
    }

    fn ends(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The copy stands otherwise from now on.
    fn turn(&self, side: &mut Side, to: Side) {
        *self.stand.lock() = match &to {
            Side::Behind(why) => Stand::Behind(why.clone()),
            Side::Unknown(error) => Stand::Behind(error.to_string()),
            Side::Made(..) => Stand::Made,
            Side::Whole(_) => Stand::Whole,
        };
        *side = to;
    }

    /// The copy does not count from now on. When this returns that is durable; if it fails nothing is committed any more.
    fn leave(&self, side: &mut Side, why: String, store: &JournaledStore) -> Result<(), StoreError> {
        tracing::warn!("the copy of the manager's store is given up: {why}");
        let _waiting = self.waiting();
        let dismissed = store.snapshot().and_then(|state| self.place.dismiss(&*state, &self.impatient));
        if let Err(error) = dismissed {
            self.turn(side, Side::Unknown(error.clone()));
            return Err(error);
        }
        tracing::warn!("the copy of the manager's store does not count: {why}");
        self.turn(side, Side::Behind(why));
        self.changed.notify_all();
        Ok(())
    }

    /// Opens the copy, tells what it holds, and takes commits for it if whoever heard that in time wants it to.
    fn begin(
        &self,
        loses: Option<u64>,
        tells: &mpsc::Sender<Result<Held, String>>,
        taken: &mpsc::Receiver<mpsc::Receiver<Job>>,
    ) -> Option<Taken> {
        let (copy, found) = match self.place.open(loses) {
            Ok(copy) => {
                let holds = copy.holds();
                (Some(copy), Ok(holds))
            }
            Err(why) => (None, Err(why)),
        };
        let _ = tells.send(found); // who waited may have gone on without
        Some((copy?, taken.recv().ok()?))
    }

    /// The copy's thread.
    fn run(&self, of: &Weak<JournaledStore>, first: Option<Taken>) {
        let (mut at, mut pause) = (first, RETRY);
        while !self.ends() {
            let longer = (2 * pause).min(RETRY_MAX);
            match at.take() {
                Some((copy, jobs)) => {
                    let begun = Instant::now();
                    self.serve(copy, &jobs, of);
                    pause = if begun.elapsed() > RETRY_MAX { RETRY } else { longer };
                }
                None => {
                    let mut side = self.side.lock();
                    if matches!(*side, Side::Unknown(_)) {
                        return;
                    }
                    self.changed.wait_for(&mut side, pause);
                    drop(side);
                    pause = longer;
                    let Some(store) = of.upgrade().filter(|_| !self.ends()) else { return };
                    match self.make(&store) {
                        Ok(made) => at = made,
                        Err(error) => {
                            let side = &mut *self.side.lock();
                            if !matches!(side, Side::Unknown(_)) {
                                self.turn(side, Side::Behind(error.to_string()));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Takes commits until one fails, or nobody sends them any more.
    fn serve(&self, mut copy: Box<dyn Copied>, jobs: &mpsc::Receiver<Job>, of: &Weak<JournaledStore>) {
        loop {
            let Job { changes, done } = match jobs.recv_timeout(self.place.beats()) {
                Ok(job) => job,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let Err(error) = copy.beat() else { continue };
                    // Whoever commits meanwhile finds out as well.
                    let Some(store) = of.upgrade().filter(|_| !self.ends()) else { return };
                    let side = &mut *self.side.lock();
                    if matches!(side, Side::Whole(_)) {
                        let _ = self.leave(side, error.to_string(), &store); // it is said by the next commit
                    }
                    return;
                }
            };
            #[cfg(test)]
            let trouble = *self.trouble.lock();
            #[cfg(test)]
            match trouble {
                Some(Trouble::Fails) => {
                    let _ = done.send(Err(eio()));
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
    fn make(&self, store: &JournaledStore) -> Result<Option<Taken>, StoreError> {
        #[cfg(test)]
        if self.trouble.lock().is_some() {
            return Err(eio());
        }
        self.place.ready()?;
        let (snapshot, number) = {
            let mut side = self.side.lock();
            self.turn(&mut side, Side::Made(Vec::new(), 0));
            self.slower.store(false, Ordering::Relaxed);
            self.seen.store(0, Ordering::Relaxed);
            store.snapshot_at()?
        };
        let from = UntilEnd { read: &*snapshot, ends: &self.ending, seen: &self.seen };
        let made = self.place.make((store.position().0, number), &from)?;
        drop(snapshot);
        let Some(mut copy) = made else { return Ok(None) };
        let mut before = usize::MAX;
        loop {
            let mut side = self.side.lock();
            let Side::Made(late, bytes) = &mut *side else { return Ok(None) };
            *bytes = 0;
            let late = std::mem::take(late);
            if late.len() > LAST_MAX {
                // Taking them costs as much as making them, or more: each round has to leave fewer.
                self.slower.store(late.len() > before / 2, Ordering::Relaxed);
                before = late.len();
                drop(side);
                late.iter().try_for_each(|changes| copy.commit(changes))?;
                continue;
            }
            // The store waits for these, and for nothing that does not answer.
            let _waiting = self.waiting();
            let last = move || late.iter().try_for_each(|changes| copy.commit(changes)).map(|()| copy);
            let committed = match in_time(last) {
                Ok(committed) => committed,
                Err(why) => {
                    self.turn(&mut side, Side::Behind(why));
                    return Ok(None);
                }
            };
            let mut copy = committed?;
            if let Err(error) = copy.count() {
                // It may count all the same.
                self.leave(&mut side, error.to_string(), store)?;
                return Ok(None);
            }
            let (to, jobs) = mpsc::channel();
            self.turn(&mut side, Side::Whole(to));
            tracing::info!("the copy of the manager's store {} has all", self.place.name());
            return Ok(Some((copy, jobs)));
        }
    }
}

impl Drop for MirroredStore {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.shared.impatient.store(true, Ordering::Relaxed);
        // The witness stays as it is: nothing is acknowledged any more.
        self.shared.turn(&mut self.shared.side.lock(), Side::Behind("it ends".into()));
        self.shared.changed.notify_all();
        let _ = self.ended.lock().recv_timeout(END_MAX); // a disk that does not answer is not waited for
    }
}

impl Store for MirroredStore {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.store.snapshot()
    }

    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let mut turn = self.shared.side.lock();
        let side = &mut *turn;
        match side {
            Side::Behind(_) => self.store.commit(changes),
            Side::Unknown(error) => Err(error.clone()),
            Side::Made(late, bytes) => {
                self.store.commit(changes)?;
                let len = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
                    key.len() + value.as_ref().map_or(0, Vec::len)
                };
                *bytes += changes.iter().map(len).sum::<usize>();
                late.push(changes.clone());
                let lacks = u32::try_from(late.len()).unwrap_or(u32::MAX);
                if *bytes > LATE_MAX {
                    self.shared
                        .turn(side, Side::Behind("more was committed than it could take meanwhile".into()));
                }
                drop(turn);
                if self.shared.slower.load(Ordering::Relaxed) {
                    thread::sleep(SLOWER.saturating_mul(lacks).min(SLOWER_MAX));
                }
                Ok(())
            }
            Side::Whole(to) => {
                let order = self.shared.place.order(&self.store, changes)?;
                if order == Order::Alone {
                    let why = "the servers change, and it would not know by whom it is given up".to_owned();
                    self.shared.leave(side, why, &self.store)?;
                    return self.store.commit(changes);
                }
                if order == Order::Store {
                    self.store.commit(changes)?;
                }
                let outcome = send(to, changes);
                if order == Order::Any {
                    // Both at once.
                    self.store.commit(changes)?;
                }
                let waiting = self.shared.waiting();
                wait(&outcome).or_else(|why| self.shared.leave(side, why, &self.store))?;
                drop(waiting);
                if order == Order::Copy {
                    self.store.commit(changes)?;
                }
                Ok(())
            }
        }
    }

    fn describe(&self) -> String {
        let (path, copy) = (self.path.display(), self.shared.place.name());
        let stand = self.shared.stand.lock().clone();
        match stand {
            Stand::Whole if self.waits_for().is_some() => {
                format!("{path}, with a copy {copy} that is waited for")
            }
            Stand::Whole => format!("{path}, with a copy {copy}"),
            Stand::Made => format!("{path}, on one disk; a copy is being made {copy}"),
            Stand::Behind(_) => format!("{path}, on one disk; the copy {copy} is behind"),
        }
    }

    fn tends(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn tend(&self) -> Result<(), StoreError> {
        match self.shared.side.try_lock_for(SIGHT).as_deref() {
            Some(Side::Unknown(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn confirmed(&self) -> Option<Confirmed> {
        self.shared.place.confirmed()
    }

    fn waits_for(&self) -> Option<(Duration, String)> {
        let since = (*self.shared.waits.lock())?.elapsed();
        let place = &self.shared.place;
        let what = || format!("the copy of the manager's store {} to answer", place.name());
        (since > SIGHT).then(|| (since, place.waits_for().unwrap_or_else(what)))
    }

    fn end_waits(&self) {
        self.shared.impatient.store(true, Ordering::Relaxed);
    }

    fn remarks(&self) -> Vec<Remark> {
        let (place, what) = (&self.shared.place, "the copy of the manager's store is behind");
        let stand = self.shared.stand.lock().clone();
        let why = match stand {
            Stand::Whole => {
                let waits = place.waits_for().map(|text| Remark { what: "the manager's store waits", text });
                return waits.into_iter().collect();
            }
            Stand::Made => {
                format!("it is being made anew, {} records so far", self.shared.seen.load(Ordering::Relaxed))
            }
            Stand::Behind(why) => why,
        };
        let text = format!(
            "the manager's store stands on one disk only, its copy {} is behind: {why}; it is made anew by itself as soon as {} \
             (`ropewalk manager mirror` names another one)",
            place.name(),
            place.remedy()
        );
        vec![Remark { what, text }]
    }

    fn damage(&self) -> Vec<u64> {
        self.store.damage()
    }

    fn scrub(&self, first: u64, count: u64) -> Result<Option<u64>, StoreError> {
        self.store.scrub(first, count)
    }
}

#[cfg(test)]
fn eio() -> StoreError {
    StoreError::Engine { action: "commit to the copy of the", reason: "EIO".into() }
}

#[cfg(test)]
mod keeper_tests;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
