//! On the machine that keeps the copy of another one's store: answers what that one's manager asks. The files are those of a copy on a
//! disk; `store.mirror` is there, with the copy's number, as long as it counts. Afterwards it is called `store.former`: the manager may
//! not have heard that it does not count any more, and asks again.
//!
//! A disk that gets full: a commit is refused, and the copy is given up. A new one that does not fit is removed, and none is begun before
//! there is more room than that had.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;
use wire::frame;

use super::{
    super::{
        Changes, JournaledStore, RedbStore, Store as _, StoreError,
        files::{refused, write_durably},
    },
    disk::{clear_new, place_files},
    message::{Answer, Ask},
    witness::{CACHE_BYTES, number_in, number_of},
};

/// A disk with less room is full.
const FULL: u64 = 1 << 20;
/// More than a copy had that did not fit.
const MORE: u64 = 8 << 20;
/// How long a request waits for the one before, whose disk may hang.
const TURN: Duration = Duration::from_secs(5);

/// See the module.
pub struct Keeper {
    dir: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// Whose orders are followed.
    life: u64,
    at: At,
    /// Parts of the next commit.
    parts: Changes,
    /// A copy did not fit into so much room.
    too_little: Option<u64>,
}

enum At {
    /// Nothing is open.
    Rest,
    /// A table is being filled.
    Filled { table: RedbStore, of: (u64, u64) },
    /// A copy, with its last commit.
    Open { copy: Box<JournaledStore>, tail: Option<(u64, Changes)> },
}

type Outcome = Result<Answer, String>;

impl Keeper {
    /// Keeps a copy in this directory, which is there.
    pub fn new(dir: &Path) -> Keeper {
        let state = State { life: 0, at: At::Rest, parts: Changes::new(), too_little: None };
        Keeper { dir: dir.to_owned(), state: Mutex::new(state) }
    }

    /// Answers a manager. Waits for a disk.
    pub fn answer(&self, body: &[u8]) -> Vec<u8> {
        let outcome = match frame::decode(body) {
            Ok(ask) => self.take(ask),
            Err(error) => Err(error.to_string()),
        };
        frame::encode(&outcome.unwrap_or_else(|why| Answer::Refused { why }))
    }

    /// For people: how many commits the copy has, if it counts.
    pub fn commits(&self) -> Option<u64> {
        let state = self.state.try_lock()?;
        match &state.at {
            At::Open { copy, .. } if number_of(&self.dir).is_some() => Some(copy.position().1),
            _ => None,
        }
    }

    fn table(&self) -> PathBuf {
        self.dir.join("store.redb")
    }

    fn take(&self, ask: Ask) -> Outcome {
        let busy = || "it is still at what it was asked before: its disk does not answer".to_owned();
        let mut turn = self.state.try_lock_for(TURN).ok_or_else(busy)?;
        let state = &mut *turn;
        let text = |error: StoreError| error.to_string();
        let life = state.life;
        let of_life = |said: u64| match said == life && life != 0 {
            true => Ok(()),
            false => Err("another life of the manager is listened to, or none yet".to_owned()),
        };
        match ask {
            Ask::Ready => self.ready(state),
            Ask::Look { life } => {
                let held = self.look(state)?;
                (state.life, state.parts) = (life, Changes::new());
                Ok(held)
            }
            Ask::Make { life, journal, last } => {
                state.at = At::Rest;
                self.forget().map_err(text)?;
                let new = clear_new(&self.table()).map_err(text)?;
                (state.life, state.parts) = (life, Changes::new());
                let made = RedbStore::create(&new, CACHE_BYTES);
                let table = made.map_err(|error| self.does_not_fit(state, error))?;
                state.at = At::Filled { table, of: (journal, last) };
                Ok(Answer::Done)
            }
            Ask::Records { life, last, records } => {
                of_life(life)?;
                let At::Filled { table, of } = &state.at else { return Err("no copy is being made".into()) };
                if of.1 != last {
                    return Err(format!("a copy after commit {} is being made, not after {last}", of.1));
                }
                let changes = records.into_iter().map(|(key, value)| (key, Some(value))).collect();
                match table.commit(&changes) {
                    Ok(()) => Ok(Answer::Done),
                    Err(error) => Err(self.does_not_fit(state, error)),
                }
            }
            Ask::Made { life } => {
                of_life(life)?;
                match std::mem::replace(&mut state.at, At::Rest) {
                    At::Filled { table, of } => {
                        let placed = place_files(table, &self.table(), of)
                            .and_then(|()| JournaledStore::open(&self.table(), CACHE_BYTES));
                        let copy = placed.map_err(|error| self.does_not_fit(state, error))?;
                        state.too_little = None;
                        state.at = At::Open { copy: Box::new(copy), tail: None };
                        Ok(Answer::Done)
                    }
                    other => {
                        state.at = other;
                        Err("no copy is being made".into())
                    }
                }
            }
            Ask::Part { life, number, changes } => {
                of_life(life)?;
                let At::Open { copy, .. } = &state.at else { return Err("no copy is open".into()) };
                // Of one that is done it was said twice, and this came late.
                if copy.position().1 + 1 == number {
                    state.parts.extend(changes);
                }
                Ok(Answer::Done)
            }
            Ask::Commit { life, number, mut changes } => {
                of_life(life)?;
                let parts = std::mem::take(&mut state.parts);
                let At::Open { copy, tail } = &mut state.at else { return Err("no copy is open".into()) };
                match copy.position().1 {
                    last if last == number => return Ok(Answer::Done),
                    last if last + 1 == number => {}
                    last => return Err(format!("its last commit is {last}, and {number} was sent")),
                }
                if !parts.is_empty() {
                    changes = parts.into_iter().chain(changes).collect();
                }
                if let Err(error) = copy.commit(&changes) {
                    // What is on the disk is not known any more.
                    state.at = At::Rest;
                    return Err(error.to_string());
                }
                *tail = Some((number, changes));
                Ok(Answer::Done)
            }
            Ask::Count { life, id } => {
                of_life(life)?;
                let At::Open { .. } = &state.at else { return Err("no copy is open".into()) };
                let written = write_durably(&self.dir.join("store.mirror"), &format!("{id:016x}\n"));
                written.map_err(|error| refused(&self.dir, &error).to_string())?;
                Ok(Answer::Done)
            }
            Ask::Beat { life } => {
                of_life(life)?;
                match &state.at {
                    At::Open { .. } if number_of(&self.dir).is_some() => Ok(Answer::Done),
                    _ => Err("no copy that counts is open".into()),
                }
            }
            Ask::Forget { id } => {
                if number_of(&self.dir) != Some(id) {
                    if number_in(&self.former()) == Some(id) {
                        return Ok(Answer::Done);
                    }
                    // It may be on a disk that is not mounted.
                    return Err("that copy is not here".into());
                }
                state.at = At::Rest;
                self.forget().map_err(text)?;
                Ok(Answer::Done)
            }
            Ask::Vote { .. } => Err("this is no server".into()),
        }
    }

    /// The copy that counts, opened if it is not yet.
    fn look(&self, state: &mut State) -> Outcome {
        let Some(id) = number_of(&self.dir) else { return Err("no copy there has all".into()) };
        if !matches!(state.at, At::Open { .. }) {
            state.at = At::Rest;
            let copy = JournaledStore::open(&self.table(), CACHE_BYTES).map_err(|error| error.to_string())?;
            let tail = copy.take_tail();
            state.at = At::Open { copy: Box::new(copy), tail };
        }
        let At::Open { copy, tail } = &state.at else { return Err("no copy is open".into()) };
        let (journal, last) = copy.position();
        Ok(Answer::Held { id, journal, last, tail: tail.clone() })
    }

    /// No copy here counts from now on.
    fn forget(&self) -> Result<(), StoreError> {
        let renamed = match fs::rename(self.dir.join("store.mirror"), self.former()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        };
        let synced = renamed.and_then(|()| fs::File::open(&self.dir)?.sync_all());
        synced.map_err(|error| refused(&self.dir, &error))
    }

    fn former(&self) -> PathBuf {
        self.dir.join("store.former")
    }

    fn room(&self) -> Result<u64, StoreError> {
        let stat = rustix::fs::statvfs(&self.dir).map_err(|error| refused(&self.dir, &error.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Whether a copy can be made here.
    fn ready(&self, state: &State) -> Outcome {
        // A disk that is not mounted has no directory.
        let read = fs::read_dir(&self.dir).map_err(|error| refused(&self.dir, &error));
        let room = read.and_then(|_| self.room()).map_err(|error| error.to_string())?;
        match state.too_little {
            Some(had) if room < had.saturating_add(MORE) => Err(format!(
                "the disk of {} is full: {} MiB are free, and a copy did not fit into {} MiB",
                self.dir.display(),
                room >> 20,
                had >> 20
            )),
            _ => Ok(Answer::Done),
        }
    }

    /// What was made of a copy that failed takes no room.
    fn does_not_fit(&self, state: &mut State, error: StoreError) -> String {
        let full = self.room().is_ok_and(|room| room < FULL);
        state.at = At::Rest;
        let cleared = clear_new(&self.table()).and_then(|_| self.room());
        state.too_little = cleared.ok().filter(|_| full);
        error.to_string()
    }
}
