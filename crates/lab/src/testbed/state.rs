//! What testbeds there are: their files, their owners, and removing them.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    description::Testbed,
    error::TestbedError,
    host,
    run::run,
    spec::{self, PREFIX},
    tree,
};

const DIR: &str = "/run/ropewalk/testbed";
/// How long processes in a testbed have to end by themselves, and then after SIGKILL.
const END_WITHIN: Duration = Duration::from_secs(2);

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
            down(&testbed.spec.name)?;
            removed.push(testbed.spec.name);
        }
    }
    Ok(removed)
}

/// Removes a testbed, whole or half made: ends the processes in its namespaces (SIGTERM, then SIGKILL),
/// deletes these, then its file. One of which nothing is there is an error.
pub fn down(name: &str) -> Result<(), TestbedError> {
    spec::check_name(name)?;
    let spaces = spaces(name)?;
    let path = path(name);
    if spaces.is_empty() && !path.exists() {
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

/// Processes in a namespace: not this one, which may have threads there that it is about to end.
pub(super) fn pids(space: &str) -> Result<Vec<u32>, TestbedError> {
    let text = run("list the processes of a namespace", "ip", &["netns", "pids", space])?;
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
    let mut left = Vec::new();
    for signal in [Signal::TERM, Signal::KILL] {
        left = all()?;
        for pid in left.iter().filter_map(|&p| Pid::from_raw(p as i32)) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
        let begun = Instant::now();
        while !left.is_empty() && begun.elapsed() < END_WITHIN {
            std::thread::sleep(Duration::from_millis(20));
            left = all()?;
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
