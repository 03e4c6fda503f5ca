//! The right to make a cluster in a directory, which one process at a time has. What an interrupted one left there is marked, and
//! removed by the next.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    access,
    directory::{ClusterDir, MARKER},
};

/// The right to make a cluster in a directory: its marker file, locked. One process at a time has it.
pub struct Claim {
    /// The directory, absolute.
    pub path: PathBuf,
    marker: fs::File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Closing it is not enough: a program that another thread forks just now has it too, until its exec.
        let _ = self.marker.unlock();
    }
}

impl Claim {
    fn take(path: &Path) -> Result<Claim> {
        let place = path.join(MARKER);
        let busy = || {
            format!(
                "another `ropewalk up` is making a cluster in {}; wait for it, then try again",
                path.display()
            )
        };
        let mut marker = access::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&place)
            .with_context(|| format!("write into {}", path.display()))?;
        marker.try_lock().with_context(busy)?;
        // The one before may have ended just now, and taken the marker away.
        let same =
            fs::metadata(&place).is_ok_and(|m| marker.metadata().is_ok_and(|own| own.ino() == m.ino()));
        if !same {
            bail!(busy());
        }
        marker
            .write_all(b"an interrupted `ropewalk up` leaves this; the next one clears the directory\n")
            .with_context(|| format!("write into {}", path.display()))?;
        let path = path.canonicalize().with_context(|| format!("resolve {}", path.display()))?;
        Ok(Claim { path, marker })
    }
}

impl ClusterDir {
    /// Claims an absent or empty directory for a new cluster, as long as the claim lives. What an interrupted
    /// `up` left is removed.
    pub fn claim(path: &Path) -> Result<Claim> {
        if path.join("cluster.toml").exists() {
            bail!(
                "{0} holds a cluster already; `ropewalk up --dir {0}` starts what this machine runs of it",
                path.display()
            );
        }
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if !path.join(MARKER).exists() && entries.next().is_some() {
                    bail!(
                        "{} is not empty and holds no cluster; name an empty or new directory",
                        path.display()
                    );
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // What is above it is as everywhere.
                if let Some(parent) = path.parent() {
                    access::make_parents(parent).with_context(|| format!("create {}", parent.display()))?;
                }
                access::make_dir(path).with_context(|| format!("create {}", path.display()))?;
            }
            Err(e) => {
                return Err(e).with_context(|| format!("{} cannot be a cluster's directory", path.display()));
            }
        }
        access::close(path)?;
        let claim = Claim::take(path)?;
        // Somebody may have made one between the first look and the claim.
        if path.join("cluster.toml").exists() {
            let _ = fs::remove_file(path.join(MARKER));
            bail!("{} holds a cluster already: it was made in this moment", path.display());
        }
        clear(&claim.path)?;
        Ok(claim)
    }

    /// Undoes [`ClusterDir::claim`] after a failure: everything below is removed.
    pub fn abandon(path: &Path) {
        if path.join(MARKER).exists() && !path.join("cluster.toml").exists() {
            let _ = clear(path);
            let _ = fs::remove_file(path.join(MARKER));
            let _ = fs::remove_dir(path);
        }
    }
}

/// Removes everything in a claimed directory but the marker.
fn clear(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.with_context(|| format!("remove {}", entry.path().display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_dir::ClusterFile;

    #[test]
    fn a_directory_with_other_things_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        let error = ClusterDir::claim(dir.path()).err().unwrap().to_string();
        assert!(error.contains("not empty"), "{error}");
        ClusterDir::abandon(dir.path());
        assert_eq!(fs::read_to_string(dir.path().join("thesis.txt")).unwrap(), "years of work");
    }

    #[test]
    fn a_made_cluster_is_never_cleared_as_a_half_made_one() {
        let dir = tempfile::tempdir().unwrap();
        let claim = ClusterDir::claim(dir.path()).unwrap();
        let file = ClusterFile {
            format: ClusterDir::format(),
            name: "c".into(),
            id: "7".into(),
            code: None,
            block_size: None,
            manager: "127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap().into(),
            manager_here: true,
            mirror: None,
            mirror_on: None,
            keeps_copy: false,
            metrics: None,
            analytics: None,
            etcd: None,
            managers: Vec::new(),
            mount: None,
            nodes: Vec::new(),
            secret: None,
            former_secret: None,
            secret_changes: 0,
            cipher_list: Default::default(),
        };
        ClusterDir::save(&claim.path, &file).unwrap();
        // As if it had ended before the last step.
        fs::write(dir.path().join(MARKER), "").unwrap();
        fs::write(dir.path().join("data"), "years of work").unwrap();
        ClusterDir::open(dir.path()).unwrap();
        fs::remove_file(dir.path().join("cluster.toml")).unwrap();
        assert!(ClusterDir::claim(dir.path()).is_err());
        assert!(dir.path().join("data").exists());
    }

    #[test]
    fn an_interrupted_claim_is_cleared_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let first = ClusterDir::claim(dir.path()).unwrap();
        fs::create_dir_all(dir.path().join("nodes/n1")).unwrap();
        let error = ClusterDir::claim(dir.path()).err().unwrap().to_string();
        assert!(error.contains("another `ropewalk up`"), "{error}");
        assert!(dir.path().join("nodes/n1").exists(), "the one at work keeps what it made");
        // As a program has it that is forked at this moment.
        let _forked = first.marker.try_clone().unwrap();
        drop(first);
        ClusterDir::claim(dir.path()).unwrap();
        assert!(!dir.path().join("nodes").exists());
    }
}
