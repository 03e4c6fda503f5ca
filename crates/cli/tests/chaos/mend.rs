//! What only an administrator can do after a fault: take back a pdisk at which a write failed, and replace one whose data
//! are cut off.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use super::plan::{Fault, Kind, Round};
use crate::common::{Cluster, ROPEWALK, ropewalk};

/// A pdisk: its name, and its directory in the cluster's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub name: String,
    pub dir: PathBuf,
}

/// The pdisks in the order in which a plan numbers them: node by node, oldest first.
pub fn places(cluster: &Cluster) -> Vec<Place> {
    let list = cluster.json(&["pdisk", "list"]);
    let name_of = |id: i64| {
        let found = list.as_array().into_iter().flatten().find(|p| p["id"] == id);
        found.and_then(|p| p["name"].as_str()).unwrap_or_default().to_owned()
    };
    let text = fs::read_to_string(cluster.dir().join("cluster.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    let of = |value: &toml::Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let nodes = file["nodes"].as_array().cloned().unwrap_or_default();
    let pdisks = nodes.iter().flat_map(|node| of(node, "pdisks"));
    let place = |pdisk: toml::Value| Place {
        name: name_of(pdisk["id"].as_integer().unwrap()),
        dir: PathBuf::from(pdisk["dir"].as_str().unwrap()),
    };
    pdisks.map(place).collect()
}

/// Names and states of all pdisks; empty if the manager does not say.
pub fn states(cluster: &Cluster) -> Vec<(String, String)> {
    let dir = cluster.dir();
    let output = ropewalk(&["pdisk", "list", "--json", "--dir", dir.to_str().unwrap()]);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let word = |p: &serde_json::Value, key: &str| p[key].as_str().unwrap_or_default().to_owned();
    list.as_array().into_iter().flatten().map(|p| (word(p, "name"), word(p, "state"))).collect()
}

/// The administrator after one round.
pub struct Mend<'a> {
    cluster: &'a Cluster,
    /// A write failed somewhere.
    keep: bool,
    /// Their data are cut off: to be replaced, and then to be taken out.
    cut: BTreeSet<&'a Place>,
    replaced: BTreeSet<&'a Place>,
}

impl<'a> Mend<'a> {
    pub fn new(cluster: &'a Cluster, round: &Round, places: &'a [Place]) -> Mend<'a> {
        let cut = round.faults.iter().filter(|f| f.kind == Kind::CutData);
        let cut = cut.flat_map(Fault::spoils).map(|pdisk| &places[pdisk as usize]).collect();
        Mend { cluster, keep: round.has(Kind::WriteError), cut, replaced: BTreeSet::new() }
    }

    /// Nothing is left to be replaced.
    pub fn is_done(&self) -> bool {
        self.cut.is_empty() && self.replaced.is_empty()
    }

    /// Does what these states call for. True: a pdisk was replaced or taken out.
    pub fn mend(&mut self, states: &[(String, String)]) -> Result<bool, String> {
        let mut done = false;
        for (name, state) in states {
            let of = |places: &BTreeSet<&'a Place>| places.iter().copied().find(|p| p.name == *name);
            if let Some(place) = of(&self.cut) {
                // Its server says first that it does not serve it.
                if state != "ok" {
                    self.command(&["replace", name])?;
                    self.cut.remove(place);
                    self.replaced.insert(place);
                    done = true;
                }
            } else if let Some(place) = of(&self.replaced) {
                if state == "replace" {
                    self.command(&["remove", name])?;
                    self.replaced.remove(place);
                    fs::remove_dir_all(self.cluster.dir().join(&place.dir)).map_err(|e| e.to_string())?;
                    done = true;
                }
            } else if self.keep && matches!(state.as_str(), "failed" | "replace") {
                let _ = self.command(&["keep", name]);
            }
        }
        Ok(done)
    }

    fn command(&self, words: &[&str]) -> Result<(), String> {
        let mut command = Command::new(ROPEWALK);
        // It starts the node's server again.
        command.arg("pdisk").args(words).arg("--dir").arg(self.cluster.dir()).envs(self.cluster.env());
        let output = command.output().map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("pdisk {words:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}
