//! Which cluster a command is about: that of `--dir`, else of `ROPEWALK_DIR`, else the only one of this machine.
//!
//! Found are the clusters of which a process runs here, servers or mounts, by the pid files that they hold open. Only this
//! user's own processes are asked: nobody leads another user, or root, to a directory by a process that looks like ours.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    args::Dir,
    cluster_dir::{ClusterDir, DEFAULT_DIR},
    process::pid_file,
};

impl Dir {
    /// Opens the cluster that is meant.
    pub fn open(&self) -> Result<ClusterDir> {
        ClusterDir::open(&self.path()?)
    }

    /// The directory that is meant.
    pub fn path(&self) -> Result<PathBuf> {
        match &self.dir {
            Some(dir) => Ok(dir.clone()),
            None => match clusters_here()? {
                // What `init` and `join` make, unless told otherwise.
                found if found.is_empty() && Path::new(DEFAULT_DIR).join("cluster.toml").exists() => {
                    Ok(DEFAULT_DIR.into())
                }
                found => only(found),
            },
        }
    }
}

/// The only one of those found.
fn only(found: BTreeSet<PathBuf>) -> Result<PathBuf> {
    let mut all = found.iter();
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(one.clone()),
        (None, _) => bail!(
            "which cluster? None of yours runs on this machine. Name its directory: --dir DIR, or ROPEWALK_DIR=DIR \
             in the environment (`ropewalk up --dir DIR` makes or starts one)"
        ),
        _ => {
            let found: Vec<String> = found.iter().map(|dir| format!("\n  --dir {}", dir.display())).collect();
            bail!("which cluster? {} run on this machine; name one:{}", found.len(), found.concat())
        }
    }
}

/// The directories of the clusters of which this user has a process here.
fn clusters_here() -> Result<BTreeSet<PathBuf>> {
    let user = rustix::process::geteuid().as_raw();
    let own = fs::read("/proc/self/comm").context("read /proc")?;
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let place = entry.path();
        // Processes come and go meanwhile: one that cannot be looked at is not asked.
        if fs::metadata(&place).is_ok_and(|m| m.uid() == user)
            && fs::read(place.join("comm")).is_ok_and(|name| name == own)
        {
            found.extend(cluster_of(&place, pid));
        }
    }
    Ok(found)
}

/// The cluster of a process: it holds `DIR/run/NAME.pid` open, and that names it.
fn cluster_of(process: &Path, pid: u32) -> Option<PathBuf> {
    let files = fs::read_dir(process.join("fd")).ok()?.flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).find_map(|file| {
        let dir = file.parent().filter(|run| run.ends_with("run"))?.parent()?;
        let is = file.extension().is_some_and(|e| e == "pid")
            && pid_file::live_pid(&file) == Some(pid)
            && dir.join("cluster.toml").exists();
        is.then(|| dir.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_one_is_meant_and_several_are_listed() {
        let found = |all: &[&str]| only(all.iter().map(PathBuf::from).collect());
        assert_eq!(found(&["/a"]).unwrap(), Path::new("/a"));
        let several = found(&["/b", "/a"]).unwrap_err().to_string();
        assert!(several.ends_with("\n  --dir /a\n  --dir /b"), "{several}");
        let none = found(&[]).unwrap_err().to_string();
        assert!(none.contains("ROPEWALK_DIR") && none.contains("ropewalk up --dir"), "{none}");
    }

    #[test]
    fn a_process_is_known_by_the_pid_file_that_it_holds() {
        let _one = pid_file::ONE_HELD.lock();
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (own, pid) = (Path::new("/proc/self"), std::process::id());
        let held = pid_file::claim_pid_file(&dir.join("run/n1.pid"), pid_file::HELD_PATIENCE, || ()).unwrap();
        let found = || clusters_here().unwrap().contains(&dir);
        assert!(!found(), "no cluster.toml");
        fs::write(dir.join("cluster.toml"), "").unwrap();
        assert!(found());
        fs::write(dir.join("run/n1.pid"), "1\n1\n").unwrap();
        assert!(!found(), "it names somebody else");
        assert!(held.is_some() && cluster_of(own, pid).is_none_or(|other| other != dir));
    }
}
