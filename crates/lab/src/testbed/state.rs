//! What testbeds there are: their files, their owners, and removing them.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use super::{
    description::Testbed,
    error::TestbedError,
    host,
    run::run,
    spec::{self, PREFIX},
    tree,
};

const DIR: &str = "/run/ropewalk/testbed";
/// How long processes in a testbed have to end by themselves, and then after SIGKILL: on a busy machine one that was killed may wait for a
/// CPU, and for what its disk does.
const END_WITHIN: [(Signal, Duration); 2] =
    [(Signal::TERM, Duration::from_secs(2)), (Signal::KILL, Duration::from_secs(30))];
/// How long one waits for another who removes the same testbed.
const REMOVAL_WITHIN: Duration = Duration::from_secs(60);

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!("{name}.json"))
}

fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> TestbedError {
    let action = action.into();
    move |source| TestbedError::System { action, source }
}

/// Writes the file of a new testbed; its name is taken from then on.
pub(super) fn save_new(testbed: &Testbed) -> Result<(), TestbedError> {
    let name = &testbed.spec.name;
    let path = path(name);
    fs::create_dir_all(DIR).map_err(system(format!("make {DIR} (testbeds need root)")))?;
    let text = serde_json::to_vec_pretty(testbed).map_err(|source| TestbedError::BadState {
        path: path.clone(),
        name: name.clone(),
        source,
    })?;
    // Whole under another name first: a reader never sees half a file. `link` refuses a name that is taken.
    let new = Path::new(DIR).join(format!(".{name}.{}", std::process::id()));
    let write = || {
        fs::File::create(&new)?.write_all(&text)?;
        fs::hard_link(&new, &path)
    };
    let written = write();
    let _ = fs::remove_file(&new);
    match written {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Err(TestbedError::Exists { name: name.clone() })
        }
        other => other.map_err(system(format!("write {}", path.display()))),
    }
}

/// All testbeds, by name. One whose file cannot be read is an error that says how to remove it.
pub fn list() -> Result<Vec<Testbed>, TestbedError> {
    let mut all = Vec::new();
    for name in names()? {
        let path = path(&name);
        match fs::read(&path) {
            Ok(text) => all.push(serde_json::from_slice(&text).map_err(|source| TestbedError::BadState {
                path,
                name,
                source,
            })?),
            // Removed meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(system(format!("read {}", path.display()))(e)),
        }
    }
    Ok(all)
}

fn names() -> Result<BTreeSet<String>, TestbedError> {
    let entries = match fs::read_dir(DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other.map_err(system(format!("read {DIR}")))?,
    };
    let name = |e: fs::DirEntry| Some(e.file_name().to_str()?.strip_suffix(".json")?.to_owned());
    Ok(entries.flatten().filter_map(name).filter(|n| spec::check_name(n).is_ok()).collect())
}

/// Removes the testbeds whose owners have ended; their names.
pub fn sweep() -> Result<Vec<String>, TestbedError> {
    let mut removed = Vec::new();
    for testbed in list()? {
        if testbed.owner.is_some_and(|o| !o.lives()) {
            match down(&testbed.spec.name) {
                Ok(()) => removed.push(testbed.spec.name),
                // Somebody else was faster.
                Err(TestbedError::NoTestbed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(removed)
}

/// A testbed's file, held by who removes the testbed: two at once would meet what the other has removed by half. It ends with its holder.
struct Held(fs::File);

impl Held {
    /// Waits until nobody else has it, no longer than so; none if there is no such file.
    fn take(path: &Path, name: &str, within: Duration) -> Result<Option<Held>, TestbedError> {
        match fs::File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            other => {
                let file = other.map_err(system(format!("open {}", path.display())))?;
                Held::wait(file, path, name, within).map(Some)
            }
        }
    }

    /// An error if who had it has removed it: what has its name now is another testbed.
    fn wait(file: fs::File, path: &Path, name: &str, within: Duration) -> Result<Held, TestbedError> {
        let action = || system(format!("lock {}", path.display()));
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if begun.elapsed() < within => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(TestbedError::BeingRemoved { name: name.to_owned(), waited: within });
                }
                Err(e) => return Err(action()(e.into())),
            }
        }
        let same = fs::metadata(path).and_then(|now| Ok(now.ino() == file.metadata()?.ino()));
        match same.unwrap_or(false) {
            true => Ok(Held(file)),
            false => Err(TestbedError::NoTestbed { name: name.to_owned() }),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Not only closed: a program that another thread is just starting may have it, too, for a moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Removes a testbed, whole or half made: ends the processes in its namespaces (SIGTERM, then SIGKILL),
/// deletes these, then its file. One of which nothing is there is an error. One at a time removes the same one; the others wait.
pub fn down(name: &str) -> Result<(), TestbedError> {
    spec::check_name(name)?;
    let path = path(name);
    let held = Held::take(&path, name, REMOVAL_WITHIN)?;
    let spaces = spaces(name)?;
    // Without a file they are what is left of one; where a file has come since they are those of a new one.
    if held.is_none() && (spaces.is_empty() || path.exists()) {
        return Err(TestbedError::NoTestbed { name: name.to_owned() });
    }
    end_processes(name, &spaces)?;
    for space in &spaces {
        if let Err(e) = run("remove a namespace", "ip", &["netns", "del", space])
            && Path::new("/run/netns").join(space).exists()
        {
            return Err(e);
        }
    }
    tree::remove(name)?;
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(system(format!("remove {}", path.display()))(e)),
        _ => Ok(()),
    }
}

fn spaces(name: &str) -> Result<Vec<String>, TestbedError> {
    let prefix = format!("{PREFIX}{name}-");
    let entries = match fs::read_dir("/run/netns") {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(system("list namespaces"))?,
    };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    Ok(names.filter(|n| n.starts_with(&prefix)).collect())
}

/// Processes in a namespace: not this one, which may have threads there that it is about to end. One that is just being made or removed
/// has none.
pub(super) fn pids(space: &str) -> Result<Vec<u32>, TestbedError> {
    let list = || run("list the processes of a namespace", "ip", &["netns", "pids", space]);
    let text = match list() {
        Err(_) if !host::is_there(space) => return Ok(Vec::new()),
        // It may have been made between the two looks.
        Err(_) => list()?,
        Ok(text) => text,
    };
    let me = std::process::id();
    Ok(text.lines().filter_map(|l| l.trim().parse().ok()).filter(|&pid| pid != me).collect())
}

fn end_processes(name: &str, spaces: &[String]) -> Result<(), TestbedError> {
    let all = || -> Result<Vec<u32>, TestbedError> {
        let mut all = Vec::new();
        for space in spaces {
            all.extend(pids(space)?);
        }
        Ok(all)
    };
    let send = |left: &[u32], signal| {
        for pid in left.iter().filter_map(|&p| Pid::from_raw(p as i32)) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
    };
    let mut left = Vec::new();
    for (signal, within) in END_WITHIN {
        left = all()?;
        send(&left, signal);
        let begun = Instant::now();
        while !left.is_empty() && begun.elapsed() < within {
            std::thread::sleep(Duration::from_millis(20));
            left = all()?;
            // What was started meanwhile as well. SIGTERM is told once: some take a second one for haste.
            if signal == Signal::KILL {
                send(&left, signal);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
    }
    Err(TestbedError::Busy { name: name.to_owned(), pids: left })
}

impl Testbed {
    /// Processes that run in its namespaces.
    pub fn pids(&self) -> Result<Vec<u32>, TestbedError> {
        let mut all = Vec::new();
        for space in spaces(&self.spec.name)? {
            all.extend(pids(&space)?);
        }
        Ok(all)
    }

    /// Whether all its namespaces are there.
    pub fn stands(&self) -> bool {
        self.hosts.iter().all(|h| host::is_there(&h.netns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_removes_a_testbed_and_who_waits_in_vain_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bed.json");
        let take = |millis| Held::take(&path, "bed", Duration::from_millis(millis));
        assert!(take(0).unwrap().is_none(), "there is none");
        fs::write(&path, "{}").unwrap();
        let held = take(0).unwrap().unwrap();
        let error = take(30).err().unwrap().to_string();
        assert!(error.contains("testbed bed is being removed by another process"), "{error}");
        std::thread::scope(|scope| {
            let file = fs::File::open(&path).unwrap();
            let waits = scope.spawn(|| Held::wait(file, &path, "bed", Duration::from_secs(60)));
            // Its file goes, and then who held it.
            fs::remove_file(&path).unwrap();
            drop(held);
            let removed = waits.join().unwrap();
            assert!(matches!(removed, Err(TestbedError::NoTestbed { .. })), "it is removed");
        });
        // Another of the same name is not the one that was waited for.
        fs::write(&path, "{}").unwrap();
        let held = take(0).unwrap().unwrap();
        drop(held);
        assert!(take(0).unwrap().is_some(), "who has it no more is not waited for");
    }
}
