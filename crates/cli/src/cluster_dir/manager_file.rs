//! One manager as `cluster.toml` names it.

use serde::{Deserialize, Serialize};
use wire::map::ManagerEntry;

use super::addrs::Addrs;

/// What the first manager is called, and its process on each machine.
pub const FIRST: &str = "manager";

/// One manager in `cluster.toml`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ManagerFile {
    /// What the cluster calls it.
    pub name: String,
    /// Where it answers.
    pub addr: Addrs,
    /// Of one that this machine runs: what its files here are named by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
}

impl ManagerFile {
    /// As the map has it.
    pub fn entry(&self) -> ManagerEntry {
        ManagerEntry { name: self.name.clone(), addrs: self.addr.texts() }
    }

    /// From the map; none if its addresses are none.
    pub fn of(entry: &ManagerEntry, local: Option<String>) -> Option<ManagerFile> {
        Some(ManagerFile { name: entry.name.clone(), addr: Addrs::new(entry.sockets()).ok()?, local })
    }
}

/// A manager that this machine runs.
#[derive(Clone, Debug)]
pub struct OwnManager {
    /// What its files here are named by (`run/`, `log/`, its data), and `serve --name` takes.
    pub local: String,
    /// What the cluster calls it, and where it listens.
    pub entry: ManagerFile,
}
