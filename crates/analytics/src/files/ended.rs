//! The histories that lie in one directory, each in its own: who wrote it, and whether somebody still does. Those whose process
//! has ended stay readable; together they take no more room than one may, then the oldest go.

use std::{
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    record::{Entry, Origin, Records},
    tier::{self, Tier},
};

/// In each history: locked as long as it is written; holds its number.
const LOCK: &str = "lock";
/// Histories of one directory that are looked at.
const HISTORIES_MAX: usize = 256;

/// A history that nobody writes any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// The name of its directory.
    pub dir: String,
    /// Like no other's anywhere.
    pub id: String,
    /// Whose it was.
    pub origin: Origin,
}

/// Takes a history's directory, as long as what is returned is open.
pub fn claim(dir: &Path) -> io::Result<File> {
    let path = dir.join(LOCK);
    let mut file =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.try_lock().map_err(|_| {
        let text = format!("another process records its history in {}", dir.display());
        io::Error::new(io::ErrorKind::WouldBlock, text)
    })?;
    if file.metadata()?.len() == 0 {
        let unique = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
        file.write_all(format!("{unique:016x}").as_bytes())?;
    }
    Ok(file)
}

/// Whose a history is, by its newest file.
fn origin(dir: &Path) -> Option<Origin> {
    let newest = Tier::ALL.iter().find_map(|tier| tier::files(dir, *tier).ok()?.pop())?;
    let mut head = Vec::new();
    File::open(newest.path).ok()?.take(64 << 10).read_to_end(&mut head).ok()?;
    Records::of(&head).find_map(|entry| match entry {
        Entry::Origin(origin) => Some(origin),
        _ => None,
    })
}

/// The directories below `all` that are histories and that nobody writes.
fn idle(all: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let entries = match fs::read_dir(all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries.take(HISTORIES_MAX) {
        let dir = entry?.path();
        let Ok(mut lock) = File::open(dir.join(LOCK)) else { continue };
        if lock.try_lock_shared().is_ok() {
            let mut id = String::new();
            if lock.read_to_string(&mut id).is_ok() {
                found.push((dir, id));
            }
        }
    }
    Ok(found)
}

/// The histories below `all` that nobody writes any more.
pub fn histories(all: &Path) -> io::Result<Vec<Ended>> {
    let found = idle(all)?.into_iter().filter_map(|(dir, id)| {
        let name = dir.file_name()?.to_str()?.to_owned();
        Some(Ended { dir: name, id, origin: origin(&dir)? })
    });
    let mut found: Vec<Ended> = found.collect();
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(found)
}

/// Bytes of a history.
pub fn bytes(dir: &Path) -> u64 {
    let files = Tier::ALL.iter().filter_map(|tier| tier::files(dir, *tier).ok()).flatten();
    files.map(|file| file.bytes).sum()
}

/// Removes the oldest of the ended histories beside `own` until those that stay take no more than `max` bytes.
pub fn keep_within(own: &Path, max: u64) -> io::Result<()> {
    let Some(all) = own.parent() else { return Ok(()) };
    let newest = |dir: &Path| {
        let ends = Tier::ALL.iter().filter_map(|tier| tier::files(dir, *tier).ok()?.pop());
        ends.map(|file| file.begin).max().unwrap_or(0)
    };
    let ended = idle(all)?.into_iter().map(|(dir, _)| (newest(&dir), bytes(&dir), dir));
    let mut ended: Vec<(u64, u64, PathBuf)> = ended.filter(|(.., dir)| dir != own).collect();
    ended.sort();
    let mut bytes: u64 = ended.iter().map(|ended| ended.1).sum();
    for (_, of_it, dir) in ended {
        if bytes <= max {
            break;
        }
        fs::remove_dir_all(&dir)?;
        bytes -= of_it;
    }
    Ok(())
}
