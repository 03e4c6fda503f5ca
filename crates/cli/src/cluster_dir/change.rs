//! Changing `cluster.toml` of a cluster that is there: read, changed and written under its lock. Processes of the machine and other
//! commands change other parts of it at the same time, and nothing of theirs is lost.

use std::path::Path;

use anyhow::Result;

use super::{ClusterDir, ClusterFile, directory::lock};

impl ClusterDir {
    /// Changes the file as it is now, durably; not if `change` says that nothing has changed.
    pub fn change(path: &Path, change: impl FnOnce(&mut ClusterFile) -> bool) -> Result<()> {
        let _lock = lock(path)?;
        let mut file = ClusterDir::open(path)?.file;
        if change(&mut file) { ClusterDir::write(path, &file) } else { Ok(()) }
    }

    /// The same with this one, which is as the file from then on.
    pub fn keep(&mut self, change: impl FnOnce(&mut ClusterFile)) -> Result<()> {
        self.try_keep(|file| {
            change(file);
            Ok(())
        })
    }

    /// The same. If `change` fails, the file stays as it is.
    pub fn try_keep<T>(&mut self, change: impl FnOnce(&mut ClusterFile) -> Result<T>) -> Result<T> {
        let _lock = lock(&self.path)?;
        let mut file = ClusterDir::open(&self.path)?.file;
        let done = change(&mut file)?;
        ClusterDir::write(&self.path, &file)?;
        self.file = file;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_something_leaves_what_others_have_changed() {
        let place = tempfile::tempdir().unwrap();
        let text =
            "format = 1\nname = 'c'\nid = '7'\nmanager = '127.0.0.1:1'\nmount = '/mnt/c'\nnodes = []\n";
        std::fs::write(place.path().join("cluster.toml"), text).unwrap();
        let open = || ClusterDir::open(place.path()).unwrap();
        let [mut one, mut other] = [open(), open()];
        assert!(ClusterDir::save(place.path(), &one.file).is_err(), "that would be all of it");
        one.keep(|file| file.mount = None).unwrap();
        other.keep(|file| file.metrics = Some(([127, 0, 0, 1], 9400).into())).unwrap();
        let now = open().file;
        assert!(now.mount.is_none() && now.metrics.is_some());
        assert!(other.file.mount.is_none() && one.file.metrics.is_none());
        let failed: Result<()> = one.try_keep(|file| {
            file.metrics = None;
            anyhow::bail!("no")
        });
        assert!(failed.is_err() && open().file.metrics.is_some());
    }
}
