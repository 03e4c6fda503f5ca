//! The results directory of a run:
//!
//! ```text
//! run.json      what is run, where, on what machine; written once
//! cells.jsonl   one record a line, appended as cells end; a cut last line is dropped when the run is resumed
//! work/         files of the run itself; gone when it is complete
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    calibrate::Machine,
    cell::Record,
    environment::Environment,
    plan::Plan,
    removal::{self, REMOVE_MAX},
    targets::Targets,
};

/// Version of both files.
pub const FORMAT: u32 = 1;
/// Longest file that is read.
const FILE_MAX: u64 = 1 << 30;

/// What is run; the content of `run.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Version of the files.
    pub format: u32,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Where it was made.
    pub environment: Environment,
    /// Where the agents run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, Environment>,
    /// What CPUs and memory give by themselves.
    pub machine: Machine,
    /// The plans with the targets of each.
    pub plans: Vec<PlannedRun>,
    /// Where one sees what the clusters under test did meanwhile; absent where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
}

/// A worksheet of analytics, in which the cells of a run are marks on the time axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Its name.
    pub worksheet: String,
    /// Directories of the clusters that have it.
    pub clusters: Vec<PathBuf>,
}

/// A plan with its targets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlannedRun {
    /// The plan.
    pub plan: Plan,
    /// What it may touch.
    pub targets: Targets,
}

/// Why a results directory cannot be used.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// It has something in it.
    #[error("{0} is not empty; name a new directory, or continue a run in it with `ropewalk lab resume {0}`")]
    NotEmpty(PathBuf),
    /// It is no results directory.
    #[error("{0} is no results directory: there is no run.json in it")]
    NoRun(PathBuf),
    /// Another process works on it.
    #[error("{0} is in use by another `ropewalk lab` process")]
    InUse(PathBuf),
    /// A file could not be read or written.
    #[error("cannot {what} {path}")]
    Io {
        /// Verb.
        what: &'static str,
        /// File.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file has bytes that make no sense.
    #[error("{path}, line {line}: {why}")]
    Bad {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResultsError {
    let path = path.to_owned();
    move |source| ResultsError::Io { what, path, source }
}

/// A results directory that this process may add to.
#[derive(Debug)]
pub struct Results {
    dir: PathBuf,
    /// What is run.
    pub run: Run,
    /// The records so far; the last of a name counts.
    pub records: Vec<Record>,
    cells: File,
}

impl Drop for Results {
    fn drop(&mut self) {
        // Closing it is not enough: a program that another thread forks just now has it too, until its exec.
        let _ = self.cells.unlock();
    }
}

impl Results {
    /// Makes the directory. Nothing is changed if it is there and not empty.
    pub fn create(dir: &Path, run: Run) -> Result<Results, ResultsError> {
        match fs::read_dir(dir) {
            Ok(entries) => {
                if entries.count() > 0 {
                    return Err(ResultsError::NotEmpty(dir.to_owned()));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(dir).map_err(failed("make", dir))?;
            }
            Err(e) => return Err(failed("read", dir)(e)),
        }
        let path = dir.join("run.json");
        let text = serde_json::to_vec_pretty(&run).map_err(|e| failed("write", &path)(e.into()))?;
        fs::write(&path, text).map_err(failed("write", &path))?;
        let cells = open(dir)?;
        Ok(Results { dir: dir.to_owned(), run, records: Vec::new(), cells })
    }

    /// Opens a run to continue it: a cut last line is taken off, failed cells are measured again.
    pub fn resume(dir: &Path) -> Result<Results, ResultsError> {
        let (run, records) = read(dir)?;
        let cells = open(dir)?;
        let path = dir.join("cells.jsonl");
        let text = fs::read(&path).map_err(failed("read", &path))?;
        let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        cells.set_len(whole as u64).map_err(failed("cut", &path))?;
        let records = records.into_iter().filter(|r| r.error.is_none()).collect();
        Ok(Results { dir: dir.to_owned(), run, records, cells })
    }

    /// Adds a record.
    pub fn add(&mut self, record: Record) -> Result<(), ResultsError> {
        let path = self.dir.join("cells.jsonl");
        let mut line = serde_json::to_vec(&record).map_err(|e| failed("write", &path)(e.into()))?;
        line.push(b'\n');
        self.cells.write_all(&line).map_err(failed("write", &path))?;
        self.records.push(record);
        Ok(())
    }

    /// The directory for files of the run itself, made if it is not there.
    pub fn work(&self) -> Result<PathBuf, ResultsError> {
        let work = self.dir.join("work");
        fs::create_dir_all(&work).map_err(failed("make", &work))?;
        Ok(work)
    }

    /// Removes the files of the run itself.
    pub fn clear_work(&self) {
        let _ = removal::tree(&self.dir.join("work"), REMOVE_MAX);
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Opens the list of cells for appending, and takes its lock.
fn open(dir: &Path) -> Result<File, ResultsError> {
    let path = dir.join("cells.jsonl");
    let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed("open", &path))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ResultsError::InUse(dir.to_owned())),
        Err(e) => Err(failed("lock", &path)(e.into())),
    }
}

fn text(path: &Path) -> Result<String, ResultsError> {
    let long = || io::Error::other("the file is too long");
    let meta = fs::metadata(path).map_err(failed("read", path))?;
    if meta.len() > FILE_MAX {
        return Err(failed("read", path)(long()));
    }
    let bytes = fs::read(path).map_err(failed("read", path))?;
    // A write that was cut may end within a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a run: what is run, and the records, each name once.
pub fn read(dir: &Path) -> Result<(Run, Vec<Record>), ResultsError> {
    let path = dir.join("run.json");
    if !path.exists() {
        return Err(ResultsError::NoRun(dir.to_owned()));
    }
    let bad = |path: &Path, line: usize, why: String| ResultsError::Bad { path: path.to_owned(), line, why };
    let run: Run = serde_json::from_str(&text(&path)?).map_err(|e| bad(&path, e.line(), e.to_string()))?;
    if run.format != FORMAT {
        return Err(bad(
            &path,
            1,
            format!("format {} is not {FORMAT}, the one this version reads", run.format),
        ));
    }
    let path = dir.join("cells.jsonl");
    let lines = if path.exists() { text(&path)? } else { String::new() };
    let mut records: Vec<Record> = Vec::new();
    let mut places = BTreeMap::new();
    for (i, line) in lines.split_inclusive('\n').enumerate() {
        let whole = line.ends_with('\n');
        let record: Record = match serde_json::from_str(line) {
            Ok(record) => record,
            Err(_) if !whole => break,
            Err(e) => return Err(bad(&path, i + 1, e.to_string())),
        };
        match places.get(&record.id) {
            Some(&at) => records[at] = record,
            None => {
                places.insert(record.id.clone(), records.len());
                records.push(record);
            }
        }
    }
    Ok((run, records))
}
