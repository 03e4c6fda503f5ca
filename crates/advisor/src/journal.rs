//! The journal of `advise apply`: one JSON record a line in `var/lib/ropewalk/advise/journal`, appended and flushed to
//! disk before what it says is done. A run that has begun and has no end was cut off by a crash. A cut last line is a
//! record that was never acknowledged and counts for nothing; any other bad line is an error that names it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::crash;

const DIR: &str = "var/lib/ropewalk/advise";
/// How long another command, or a child of it that has not begun yet, may hold the lock.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refused.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A line that is none of ours.
    #[error("{path}, line {line}, is none of ropewalk advise: move the file away: {source}")]
    Line {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Another one works with it.
    #[error("another `ropewalk advise apply` or `revert` runs on this machine (lock {0}): wait for it")]
    Busy(PathBuf),
}

/// One value that was changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The rule that asked for it.
    pub rule: String,
    /// The fact.
    pub fact: String,
    /// Its value before.
    pub before: String,
    /// The value it was given.
    pub after: String,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// These values will be changed.
    Begin {
        /// The number of the run.
        run: u64,
        /// Seconds since 1970.
        time: u64,
        /// In this order.
        changes: Vec<Changed>,
    },
    /// The run is taken back at that time, unless it is confirmed: it may have cut the connection.
    Guarded {
        /// The number of the run.
        run: u64,
        /// Seconds since 1970.
        until: u64,
    },
    /// All of them were, and are permanent.
    Done {
        /// The number of the run.
        run: u64,
    },
    /// These facts of the run are no longer ours.
    Released {
        /// The number of the run.
        run: u64,
        /// Seconds since 1970.
        time: u64,
        /// Their names.
        facts: Vec<String>,
        /// Why: `reverted`, `undone` after a crash or a failure, or `changed by others`.
        why: String,
    },
}

/// The state of one run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    /// Its number.
    pub run: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// Whether it came to its end.
    pub done: bool,
    /// Until when it can be confirmed, in seconds since 1970; none if it needs no confirmation.
    pub until: Option<u64>,
    /// What it changed, with what became of it: none if it is still in force.
    pub changes: Vec<(Changed, Option<String>)>,
}

impl Run {
    /// Whether it is in force and can still be confirmed at this time.
    pub fn waits(&self, now: u64) -> bool {
        self.is_unconfirmed() && self.until.is_some_and(|until| now < until)
    }
    /// Whether it is in force and was to be confirmed, in time or not.
    pub fn is_unconfirmed(&self) -> bool {
        !self.done && self.until.is_some() && self.in_force().next().is_some()
    }
    /// The changes that are still ours.
    pub fn in_force(&self) -> impl DoubleEndedIterator<Item = &Changed> {
        self.changes.iter().filter(|(_, released)| released.is_none()).map(|(change, _)| change)
    }
}

/// The journal, open and locked.
pub struct Journal {
    path: PathBuf,
    file: File,
    runs: BTreeMap<u64, Run>,
    /// Held until the journal is dropped.
    _lock: File,
}

fn io_at<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> JournalError + 'a {
    move |source| JournalError::Io { what, path: path.to_owned(), source }
}

/// The runs in the journal below a root, oldest first; none if there is no journal.
///
/// # Errors
/// It cannot be read.
pub fn history(root: &Path) -> Result<Vec<Run>, JournalError> {
    let path = root.join(DIR).join("journal");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(read(&text, &path)?.0.into_values().collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(io_at("read", &path)(e)),
    }
}

/// The runs, and how many bytes whole lines take.
fn read(text: &str, path: &Path) -> Result<(BTreeMap<u64, Run>, usize), JournalError> {
    let mut runs: BTreeMap<u64, Run> = BTreeMap::new();
    let mut whole = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        whole += line.len();
        let record = serde_json::from_str(line).map_err(|source| JournalError::Line {
            path: path.to_owned(),
            line: i + 1,
            source,
        })?;
        take(&mut runs, record);
    }
    Ok((runs, whole))
}

fn take(runs: &mut BTreeMap<u64, Run>, record: Record) {
    match record {
        Record::Begin { run, time, changes } => {
            let changes = changes.into_iter().map(|change| (change, None)).collect();
            runs.insert(run, Run { run, time, done: false, until: None, changes });
        }
        Record::Guarded { run, until } => {
            if let Some(run) = runs.get_mut(&run) {
                run.until = Some(until);
            }
        }
        Record::Done { run } => {
            if let Some(run) = runs.get_mut(&run) {
                run.done = true;
            }
        }
        Record::Released { run, facts, why, .. } => {
            let Some(run) = runs.get_mut(&run) else { return };
            for (change, released) in &mut run.changes {
                if released.is_none() && facts.contains(&change.fact) {
                    *released = Some(why.clone());
                }
            }
        }
    }
}

impl Journal {
    /// Opens the journal below a root, makes it if there is none, and locks it.
    ///
    /// # Errors
    /// The disk refuses, a line is none of ours, or another process holds it.
    pub fn open(root: &Path) -> Result<Journal, JournalError> {
        let dir = root.join(DIR);
        fs::create_dir_all(&dir).map_err(io_at("make", &dir))?;
        let lock_path = dir.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&lock_path)
            .map_err(io_at("open", &lock_path))?;
        let until = Instant::now() + PATIENCE;
        while rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            return Err(JournalError::Busy(lock_path));
        }
        let path = dir.join("journal");
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(io_at("open", &path))?;
        let text = fs::read_to_string(&path).map_err(io_at("read", &path))?;
        let (runs, whole) = read(&text, &path)?;
        // What follows must begin on a line of its own.
        file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(io_at("repair", &path))?;
        File::open(&dir).and_then(|d| d.sync_all()).map_err(io_at("flush", &dir))?;
        Ok(Journal { path, file, runs, _lock: lock })
    }
    /// The runs, oldest first.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.values()
    }
    /// The number of the next run.
    pub fn next_run(&self) -> u64 {
        self.runs.keys().next_back().map_or(1, |last| last + 1)
    }
    /// Appends a record and flushes it to disk.
    ///
    /// # Errors
    /// The disk refuses: what the record says must then not be done.
    pub fn append(&mut self, record: Record) -> Result<(), JournalError> {
        let fail = io_at("write", &self.path);
        let mut line = serde_json::to_string(&record).map_err(|e| fail(e.into()))?;
        line.push('\n');
        crash::point();
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_all()).map_err(fail)?;
        crash::point();
        take(&mut self.runs, record);
        Ok(())
    }
}
