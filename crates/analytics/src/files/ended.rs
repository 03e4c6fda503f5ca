//! The histories that lie in one directory, each in its own: who wrote it, and whether somebody still does. Those whose process
//! has ended stay readable; together they take no more room than one may, then the oldest go.

use std::{
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    record::{Entry, Origin, Records},
    tier::{self, Tier},
};

/// In each history: locked as long as it is written; holds its number.
const LOCK: &str = "lock";
/// Who looks whether a history is written has its lock for a moment.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
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

/// A history's lock, held.
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a program that another thread forks just now has it too, until its exec.
        let _ = self.0.unlock();
    }
}

/// A history's lock. None: somebody has it, or it went with its history. `make`: the history may begin here.
fn locked(dir: &Path, make: bool) -> io::Result<Option<Lock>> {
    let mut options = fs::OpenOptions::new();
    let file =
        options.read(true).write(true).create(make).truncate(false).mode(0o600).open(dir.join(LOCK))?;
    match file.try_lock() {
        // One that was opened before it was removed locks nothing.
        Ok(()) => {
            let lock = Lock(file);
            Ok((lock.0.metadata()?.nlink() > 0).then_some(lock))
        }
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Takes a history's directory, which is made, as long as what is returned lives.
pub fn claim(dir: &Path) -> io::Result<Lock> {
    let end = Instant::now() + CLAIM_PATIENCE;
    loop {
        match fs::create_dir_all(dir).and_then(|()| locked(dir, true)) {
            Ok(Some(mut lock)) => {
                if lock.0.metadata()?.len() == 0 {
                    let unique =
                        RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
                    lock.0.write_all(format!("{unique:016x}").as_bytes())?;
                }
                return Ok(lock);
            }
            // Who makes room takes the directory away meanwhile.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ if Instant::now() > end => {
                let text = format!("another process records its history in {}", dir.display());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Takes a history away whose lock is held. One that is begun in its place meanwhile has a lock of its own, and stays.
fn remove(dir: &Path) -> io::Result<()> {
    for tier in Tier::ALL {
        for file in tier::files(dir, tier)? {
            fs::remove_file(file.path)?;
        }
    }
    fs::remove_file(dir.join(LOCK))?;
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

/// Whose a history is, by the newest of its files that says so.
fn origin(dir: &Path) -> Option<Origin> {
    let newest_first = |tier: &Tier| tier::files(dir, *tier).unwrap_or_default().into_iter().rev();
    Tier::ALL.iter().flat_map(newest_first).find_map(|file| {
        let mut head = Vec::new();
        File::open(file.path).ok()?.take(64 << 10).read_to_end(&mut head).ok()?;
        Records::of(&head).find_map(|entry| match entry {
            Entry::Origin(origin) => Some(origin),
            _ => None,
        })
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
        let Ok(file) = File::open(dir.join(LOCK)) else { continue };
        if file.try_lock_shared().is_ok() {
            let (mut lock, mut id) = (Lock(file), String::new());
            if lock.0.read_to_string(&mut id).is_ok() {
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
        bytes -= of_it;
        // Otherwise it is written again, another takes it away, or somebody looks at it: then it goes the next time.
        if let Ok(Some(_held)) = locked(&dir, false) {
            remove(&dir)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_nobody_writes_goes_and_a_look_is_waited_for() {
        let all = tempfile::tempdir().unwrap();
        let history = |name: &str, begin: u64| {
            let dir = all.path().join(name);
            let held = claim(&dir).unwrap();
            fs::write(tier::path(&dir, Tier::Second, begin, 0), [0; 1000]).unwrap();
            (dir, held)
        };
        let (oldest, writes) = history("a", 1000);
        let (older, _) = history("b", 2000);
        let (newer, _) = history("c", 3000);
        let (own, _own) = history("own", 4000);
        keep_within(&own, 1500).unwrap();
        assert_eq!(
            [&oldest, &older, &newer].map(|dir| dir.exists()),
            [true, false, true],
            "b was the oldest idle one"
        );
        // As a program has it that is forked at this moment.
        let _forked = writes.0.try_clone().unwrap();
        drop(writes);
        keep_within(&own, 1500).unwrap();
        assert_eq!([&oldest, &newer].map(|dir| dir.exists()), [false, true]);

        let look = File::open(newer.join(LOCK)).unwrap();
        look.lock_shared().unwrap();
        let looked = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(look);
        });
        // On a busy machine it may be looked at for longer than a claim waits.
        let end = Instant::now() + Duration::from_secs(60);
        let held = loop {
            match claim(&newer) {
                Ok(held) => break held,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        looked.join().unwrap();
        assert!(locked(&newer, true).unwrap().is_none(), "one writes");
        drop(held);
    }
}
