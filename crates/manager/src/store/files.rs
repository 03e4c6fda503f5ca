//! The files of a store: their names beside the table's, and why one is refused.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
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

/// A number that nobody else has, not 0.
pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// Puts a small file in place of another, durably: whatever ends this, the one or the other is there.
pub(super) fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    fs::rename(&new, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
