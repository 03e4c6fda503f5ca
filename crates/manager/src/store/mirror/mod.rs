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
mod side;
mod until_end;
mod votes;
mod way;
mod witness;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use self::{
    job::{in_time, late, send, wait},
    level::{Apart, level},
    order::Order,
    place::DEADLINE,
    side::{Shared, Side, Stand},
};
pub use self::{
    keeper::Keeper,
    node::{Node, Voters},
    place::Place,
    promote::promote_kept,
    votes::{Ballots, Voter},
    way::{NetWay, Way},
    witness::{Mirror, Witness},
};
use super::{Changes, Confirmed, JournaledStore, Remark, Snapshot, Store, StoreError};

/// How long who looks after the store waits for a commit; one that takes longer is said to wait for the copy.
const SIGHT: Duration = Duration::from_millis(100);
/// Bytes of commits that are kept while one is made; with more it is begun again.
const LATE_MAX: usize = 64 << 20;
/// For each that a copy lacks which does not come nearer by itself a commit takes longer by so much, up to [`SLOWER_MAX`].
const SLOWER: Duration = Duration::from_millis(4);
/// See [`SLOWER`].
const SLOWER_MAX: Duration = Duration::from_millis(100);
/// How long an end waits for the copy's disk. Tests look at the copy then, whose disk may be slow on a busy machine.
const END_MAX: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(1);

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
        let store = JournaledStore::open_unsettled(path, cache_bytes, loses);
        let store = store.map_err(|error| instead_of(path, &place, error))?;
        let shared = Arc::new(Shared::new(Arc::clone(&place)));
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
        // Both have the same now.
        opened.store.settle_all().map_err(|error| instead_of(path, &place, error))?;
        Ok(opened)
    }
}

/// What is told of a store that does not do: of its copy as well, if that has all.
pub fn instead_of(path: &Path, place: &Arc<dyn Place>, error: StoreError) -> StoreError {
    // Who has it open has the copy as well.
    if matches!(error, StoreError::InUse { .. }) {
        return error;
    }
    let looked = Arc::clone(place);
    match in_time(move || looked.whole()) {
        Ok(Ok(())) => place.instead(path, &format!("{error}; its copy {} has all", place.name())),
        _ => error,
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
mod keeper_tests;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod tests;
