//! What this machine tells of its network ports, of the cards that they are on, and of the disks under its pdisks, for who
//! looks at the cluster: from sysfs and `ethtool`. What it does not tell is left out.

mod cards;
mod disks;
mod files;
mod ports;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// The machine's name, its ports, and the disks under these directories of pdisks.
pub fn told(pdisks: &[(String, PathBuf)]) -> Value {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (sys, ports) = (Path::new("/sys"), ports::told(Path::new("/sys/class/net")));
    json!({ "name": name.trim(), "ports": ports, "disks": disks::told(sys, pdisks) })
}
