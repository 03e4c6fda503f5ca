//! The files of a store: their names beside the table's, and why one is refused.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::StoreError;

/// The journal's path for a store at `path`.
pub fn journal_path(path: &Path) -> PathBuf {
    path.with_extension("journal")
}

/// The path of the mark for a store at `path`.
pub fn mark_path(path: &Path) -> PathBuf {
    path.with_extension("mark")
}

/// What is refused is not changed, and this can be done about it.
const REMEDY: &str = "nothing was changed, and nothing is served; bring the file back as it was, or restore a dump (`ropewalk \
    manager restore`), or give up what is lost, after a look at it (`ropewalk manager check`, then `ropewalk manager accept-loss`)";

pub(super) fn refused(path: &Path, error: &io::Error) -> StoreError {
    let remedy =
        if error.kind() == io::ErrorKind::InvalidData { format!("; {REMEDY}") } else { String::new() };
    StoreError::Open { path: path.to_owned(), reason: format!("{error}{remedy}") }
}

pub(super) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// A file that must be there: acknowledged changes depend on it.
pub(super) fn needed(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            invalid("is not there, and what was acknowledged last may stand only there")
        }
        _ => error,
    })
}
