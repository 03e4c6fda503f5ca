//! The managers that this machine knows, in `cluster.toml`: where there can be several it has the whole list, as the map named
//! them last, and says which of them this machine runs. So whoever starts here finds the active one, whichever that is by then.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use stripe::Managers;
use wire::map::ManagerEntry;

use super::{
    ClusterDir, ClusterFile,
    manager_file::{FIRST, ManagerFile, OwnManager},
};

impl ClusterFile {
    /// All that are known, those of this machine first.
    pub fn all_managers(&self) -> Vec<ManagerFile> {
        if self.managers.is_empty() {
            let local = self.manager_here.then(|| FIRST.to_owned());
            return vec![ManagerFile { name: FIRST.to_owned(), addr: self.manager.clone(), local }];
        }
        let (mut all, others): (Vec<_>, Vec<_>) =
            self.managers.iter().cloned().partition(|one| one.local.is_some());
        all.sort_by_key(|one| one.local.clone());
        all.extend(others);
        all
    }

    /// Those of this machine.
    pub fn own_managers(&self) -> Vec<OwnManager> {
        let own = |entry: ManagerFile| Some(OwnManager { local: entry.local.clone()?, entry });
        self.all_managers().into_iter().filter_map(own).collect()
    }

    /// What the files of one more of this machine's would be named by.
    pub fn local_name(&self, name: &str) -> String {
        let taken = self.own_managers().iter().any(|own| own.local == FIRST);
        if taken { format!("{FIRST}@{name}") } else { FIRST.to_owned() }
    }

    /// The whole list is this from now on.
    pub fn set_managers(&mut self, managers: Vec<ManagerFile>) {
        let own = managers.iter().filter(|one| one.local.is_some()).min_by_key(|one| one.local.clone());
        let main = own.or(managers.first());
        if let Some(main) = main {
            (self.manager, self.manager_here) = (main.addr.clone(), main.local.is_some());
        }
        self.managers = managers;
    }

    /// How the processes here find the active one.
    pub(super) fn known_managers(&self) -> Managers {
        Managers::new(self.all_managers().iter().map(ManagerFile::entry).collect())
    }
}

impl ClusterDir {
    /// Where one of this machine's managers has its data.
    pub fn data_of(&self, own: &OwnManager) -> PathBuf {
        self.path.join(&own.local)
    }

    /// Where the manager of this name is that keeps a copy; nowhere, if there is none.
    pub fn keeper_addrs(&self, name: &str) -> Vec<SocketAddr> {
        let all = self.file.all_managers();
        all.iter().find(|one| one.name == name).map(|one| one.addr.to_vec()).unwrap_or_default()
    }

    /// The list is as a map names them. One of this machine stays that is not in it: it may be about to be added.
    pub fn learn_managers(path: &Path, known: &[ManagerEntry]) -> Result<()> {
        ClusterDir::change_managers(path, |there| {
            let local =
                |name: &str| there.iter().find(|own| own.name == name).and_then(|own| own.local.clone());
            let new = known.iter().filter_map(|entry| ManagerFile::of(entry, local(&entry.name)));
            let mut all: Vec<ManagerFile> = new.collect();
            let own =
                |one: &&ManagerFile| one.local.is_some() && all.iter().all(|other| other.name != one.name);
            let absent: Vec<ManagerFile> = there.iter().filter(own).cloned().collect();
            all.extend(absent);
            all
        })
    }

    /// Changes the list, durably, if `change` does.
    pub fn change_managers(
        path: &Path,
        change: impl FnOnce(&[ManagerFile]) -> Vec<ManagerFile>,
    ) -> Result<()> {
        ClusterDir::change(path, |file| {
            let before = file.all_managers();
            let after = change(&before);
            let changed = after != before || file.managers.is_empty();
            if changed {
                file.set_managers(after);
            }
            changed
        })
        .context("keep the list of managers in cluster.toml")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn entry(name: &str, port: u16) -> ManagerEntry {
        ManagerEntry { name: name.into(), addrs: vec![format!("127.0.0.1:{port}")] }
    }

    #[test]
    fn what_a_map_names_is_kept_and_who_has_read_the_file_before_changes_nothing_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let text = "format = 1\nname = 'c'\nid = '7'\nmanager = '127.0.0.1:1'\nnodes = []\n";
        fs::write(path.join("cluster.toml"), text).unwrap();
        let mut before = ClusterDir::open(path).unwrap();
        assert_eq!(before.file.own_managers()[0].local, "manager");
        ClusterDir::learn_managers(path, &[entry("b", 2), entry("manager", 1)]).unwrap();
        before.keep(|file| file.name = "d".into()).unwrap();
        let dir = ClusterDir::open(path).unwrap();
        let names: Vec<_> = dir.managers.known().into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["manager", "b"], "that of this machine first");
        // One more here, which the map does not have yet; then it is the only one here.
        let own = ManagerFile::of(&entry("m2", 3), Some(dir.file.local_name("m2"))).unwrap();
        ClusterDir::change_managers(path, |there| [there, std::slice::from_ref(&own)].concat()).unwrap();
        ClusterDir::learn_managers(path, &[entry("b", 2), entry("manager", 1)]).unwrap();
        let locals = || -> Vec<String> {
            ClusterDir::open(path).unwrap().file.own_managers().into_iter().map(|own| own.local).collect()
        };
        assert_eq!(locals(), ["manager", "manager@m2"]);
        let others = |there: &[ManagerFile]| there.iter().filter(|one| one.name == "b").cloned().collect();
        ClusterDir::change_managers(path, others).unwrap();
        ClusterDir::learn_managers(path, &[entry("b", 4)]).unwrap();
        let file = ClusterDir::open(path).unwrap().file;
        assert!(!file.manager_here && file.manager.texts() == ["127.0.0.1:4"] && locals().is_empty());
    }
}
