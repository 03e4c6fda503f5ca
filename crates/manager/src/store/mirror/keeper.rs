//! On the machine that keeps the copy of another one's store: answers what that one's manager asks. The files are those of a copy on a
//! disk; `store.mirror` is there, with the copy's number, as long as it counts. Afterwards it is called `store.former`: the manager may
//! not have heard that it does not count any more, and asks again.
//!
//! A disk that gets full: a commit is refused, and the copy is given up ([`super::room`] for the next one). So it is when the disk
//! fails: what was not taken once is not read again from there, as if it were on the disk.
//!
//! What comes late, or twice, undoes nothing newer ([`super::message`]).

use std::{
    collections::VecDeque,
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
    disk::place_files,
    message::{Answer, Ask, Life},
    room::Room,
    witness::{CACHE_BYTES, number_file, number_in, number_of},
};

/// So many processes are known again. What they sent is under way for seconds.
const FORMER_MAX: usize = 100;
/// How long a request waits for the one before, whose disk may hang.
const TURN: Duration = Duration::from_secs(5);

/// See the module.
pub struct Keeper {
    dir: PathBuf,
    room: Room,
    state: Mutex<State>,
    /// In tests: what is written is not flushed, EIO.
    #[cfg(test)]
    pub(super) flush_fails: std::sync::atomic::AtomicBool,
}

struct State {
    lives: Lives,
    at: At,
    /// Parts of the next commit.
    parts: Changes,
}

/// Whose orders are followed.
#[derive(Default)]
struct Lives {
    /// None: nobody's yet.
    heard: Option<Life>,
    /// Managers' processes before that one.
    former: VecDeque<u64>,
}

impl Lives {
    /// This one's are from now on; whether another one's were. An error: it is over.
    fn hear(&mut self, life: Life) -> Result<bool, String> {
        let over = match self.heard {
            Some(heard) if heard.process() == life.process() => life < heard,
            _ => self.former.contains(&life.process()),
        };
        if over {
            return Err("what that one began is over".to_owned());
        }
        let before = self.heard.replace(life);
        if let Some(before) = before.filter(|before| before.process() != life.process()) {
            self.former.truncate(FORMER_MAX - 1);
            self.former.push_front(before.process());
        }
        Ok(before != Some(life))
    }

    fn follow(&self, life: Life) -> Result<(), String> {
        match self.heard == Some(life) {
            true => Ok(()),
            false => Err("another life of the manager is listened to, or none yet".to_owned()),
        }
    }
}

enum At {
    /// Nothing is open.
    Rest,
    /// A commit failed: the copy does not count, and is not opened again.
    Failed(String),
    /// A table is being filled.
    Filled { table: RedbStore, of: (u64, u64) },
    /// A copy, with its last commit.
    Open { copy: Box<JournaledStore>, tail: Option<(u64, Changes)> },
}

type Outcome = Result<Answer, String>;

impl Keeper {
    /// Keeps a copy in this directory, which is there.
    pub fn new(dir: &Path) -> Keeper {
        let state = State { lives: Lives::default(), at: At::Rest, parts: Changes::new() };
        Keeper {
            dir: dir.to_owned(),
            room: Room::of(dir),
            state: Mutex::new(state),
            #[cfg(test)]
            flush_fails: false.into(),
        }
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
        match ask {
            Ask::Ready => self.room.ready().map(|()| Answer::Done).map_err(text),
            Ask::Look { life } => {
                let held = self.look(state)?;
                // Heard again it takes nothing away that this one has sent since.
                if state.lives.hear(life)? {
                    state.parts = Changes::new();
                }
                Ok(held)
            }
            Ask::Make { life, journal, last } => {
                if !state.lives.hear(life)? {
                    return match state.at {
                        At::Filled { .. } | At::Open { .. } => Ok(Answer::Done), // it was said twice
                        _ => Err("that copy is no more".to_owned()),
                    };
                }
                (state.at, state.parts) = (At::Rest, Changes::new());
                self.forget().map_err(text)?;
                let new = self.room.clear().map_err(text)?;
                let made = RedbStore::create(&new, CACHE_BYTES);
                let table = made.map_err(|error| self.does_not_fit(state, error))?;
                state.at = At::Filled { table, of: (journal, last) };
                Ok(Answer::Done)
            }
            Ask::Records { life, last, records } => {
                state.lives.follow(life)?;
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
                state.lives.follow(life)?;
                match std::mem::replace(&mut state.at, At::Rest) {
                    At::Filled { table, of } => {
                        let placed = place_files(table, &self.table(), of)
                            .and_then(|()| JournaledStore::open(&self.table(), CACHE_BYTES));
                        let copy = placed.map_err(|error| self.does_not_fit(state, error))?;
                        self.room.sufficed();
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
                state.lives.follow(life)?;
                let At::Open { copy, .. } = &state.at else { return Err("no copy is open".into()) };
                // Of one that is done it was said twice, and this came late.
                if copy.position().1 + 1 == number {
                    state.parts.extend(changes);
                }
                Ok(Answer::Done)
            }
            Ask::Commit { life, number, mut changes } => {
                state.lives.follow(life)?;
                let parts = std::mem::take(&mut state.parts);
                let At::Open { copy, tail } = &mut state.at else { return Err("no copy is open".into()) };
                match copy.position().1 {
                    last if last == number => {
                        let there = tail.as_ref().filter(|there| there.0 == number);
                        // Of one in parts this is the last.
                        let same = there.is_none_or(|(_, there)| {
                            changes.iter().all(|(key, value)| there.get(key) == Some(value))
                        });
                        return if same {
                            Ok(Answer::Done)
                        } else {
                            Err(format!("commit {number} is another one here"))
                        };
                    }
                    last if last + 1 == number => {}
                    last => return Err(format!("its last commit is {last}, and {number} was sent")),
                }
                if !parts.is_empty() {
                    changes = parts.into_iter().chain(changes).collect();
                }
                let committed = copy.commit(&changes);
                #[cfg(test)]
                let committed = committed.and_then(|()| self.flushed());
                if let Err(error) = committed {
                    let why = error.to_string();
                    state.at = At::Failed(why.clone());
                    return Err(why);
                }
                *tail = Some((number, changes));
                Ok(Answer::Done)
            }
            Ask::Count { life, id } => {
                state.lives.follow(life)?;
                let At::Open { .. } = &state.at else { return Err("no copy is open".into()) };
                let written = write_durably(&number_file(&self.dir), &format!("{id:016x}\n"));
                written.map_err(|error| refused(&self.dir, &error).to_string())?;
                Ok(Answer::Done)
            }
            Ask::Beat { life } => {
                state.lives.follow(life)?;
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
        if let At::Failed(why) = &state.at {
            return Err(why.clone());
        }
        if !matches!(state.at, At::Open { .. }) {
            state.at = At::Rest;
            let copy = JournaledStore::open_unsettled(&self.table(), CACHE_BYTES, None);
            let copy = copy.map_err(|error| error.to_string())?;
            let tail = copy.take_tail();
            state.at = At::Open { copy: Box::new(copy), tail };
        }
        let At::Open { copy, tail } = &state.at else { return Err("no copy is open".into()) };
        let (journal, last) = copy.position();
        Ok(Answer::Held { id, journal, last, tail: tail.clone() })
    }

    /// No copy here counts from now on.
    fn forget(&self) -> Result<(), StoreError> {
        let renamed = match fs::rename(number_file(&self.dir), self.former()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        };
        let synced = renamed.and_then(|()| fs::File::open(&self.dir)?.sync_all());
        synced.map_err(|error| refused(&self.dir, &error))
    }

    fn former(&self) -> PathBuf {
        self.dir.join("store.former")
    }

    #[cfg(test)]
    fn flushed(&self) -> Result<(), StoreError> {
        match self.flush_fails.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(StoreError::Engine { action: "commit to the", reason: "EIO".into() }),
            false => Ok(()),
        }
    }

    /// What was made of a copy that failed takes no room.
    fn does_not_fit(&self, state: &mut State, error: StoreError) -> String {
        self.room.failed(std::mem::replace(&mut state.at, At::Rest), error).to_string()
    }
}
