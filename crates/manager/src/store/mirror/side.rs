//! The copy as the store and the copy's thread see it: how it stands, what is sent to it, how it is given up and made anew.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::{
    super::{Changes, JournaledStore, Store as _, StoreError},
    job::{Job, in_time},
    place::{Copied, Held, Place},
    until_end::UntilEnd,
};

/// Before it is tried to make a copy anew; after each time in vain twice as long, up to [`RETRY_MAX`].
const RETRY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };
/// See [`RETRY`].
const RETRY_MAX: Duration = if cfg!(test) { RETRY } else { Duration::from_secs(10) };
/// So many of the commits that were kept while one was made are taken while no commit goes on.
const LAST_MAX: usize = 8;

/// How the copy stands.
pub(super) enum Side {
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
pub(super) enum Stand {
    Behind(String),
    Made,
    Whole,
}

/// A copy with what is sent to it.
pub(super) type Taken = (Box<dyn Copied>, mpsc::Receiver<Job>);

pub(super) struct Shared {
    pub(super) place: Arc<dyn Place>,
    pub(super) side: Mutex<Side>,
    pub(super) stand: Mutex<Stand>,
    pub(super) changed: Condvar,
    /// Since when a commit waits for the copy, or would.
    pub(super) waits: Mutex<Option<Instant>>,
    /// Records of a copy that is being made.
    pub(super) seen: AtomicU64,
    /// A copy that is being made does not come nearer.
    pub(super) slower: AtomicBool,
    /// The copy's thread ends.
    pub(super) ending: AtomicBool,
    /// Nobody waits for others any more.
    pub(super) impatient: AtomicBool,
    /// What goes wrong with the copy, in tests.
    #[cfg(test)]
    pub(super) trouble: Mutex<Option<Trouble>>,
}

/// See [`Shared`].
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// EIO.
    Fails,
    /// The disk does not answer.
    Hangs,
}

/// Says, as long as it lives, that whoever commits waits for the copy.
pub(super) struct Waiting<'a>(&'a Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.waits.lock() = None;
    }
}

impl Shared {
    /// Of a copy that is about to be opened.
    pub(super) fn new(place: Arc<dyn Place>) -> Shared {
        let opening = "it is being opened";
        Shared {
            place,
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
        }
    }

    pub(super) fn waiting(&self) -> Waiting<'_> {
        self.waits.lock().get_or_insert_with(Instant::now);
        Waiting(self)
    }

    fn ends(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// The copy stands otherwise from now on.
    pub(super) fn turn(&self, side: &mut Side, to: Side) {
        *self.stand.lock() = match &to {
            Side::Behind(why) => Stand::Behind(why.clone()),
            Side::Unknown(error) => Stand::Behind(error.to_string()),
            Side::Made(..) => Stand::Made,
            Side::Whole(_) => Stand::Whole,
        };
        *side = to;
    }

    /// The copy does not count from now on. When this returns that is durable; if it fails nothing is committed any more.
    pub(super) fn leave(
        &self,
        side: &mut Side,
        why: String,
        store: &JournaledStore,
    ) -> Result<(), StoreError> {
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
    pub(super) fn begin(
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
    pub(super) fn run(&self, of: &Weak<JournaledStore>, first: Option<Taken>) {
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
            std::thread::sleep(Duration::from_millis(1));
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

#[cfg(test)]
fn eio() -> StoreError {
    StoreError::Engine { action: "commit to the copy of the", reason: "EIO".into() }
}
