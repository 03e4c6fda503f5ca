//! What a testbed is: as it was asked for, its hosts, and the process that it ends with.

use std::{ffi::OsStr, fs, net::SocketAddr, process::Command};

use serde::{Deserialize, Serialize};

use super::{
    error::TestbedError,
    host::Host,
    spec::{self, Spec},
    tree,
};

/// A testbed that stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Testbed {
    /// What was asked for.
    pub spec: Spec,
    /// `h1`, `h2`, ...
    pub hosts: Vec<Host>,
    /// The process that it ends with; `None`: it stays until `down`.
    pub owner: Option<Owner>,
}

impl Testbed {
    /// The host with this name.
    pub fn host(&self, name: &str) -> Result<&Host, TestbedError> {
        self.hosts.iter().find(|h| h.name == name).ok_or_else(|| TestbedError::NoHost {
            name: name.to_owned(),
            hosts: self.hosts.iter().map(|h| h.name.clone()).collect(),
        })
    }

    /// A command that runs on a host, in its view of files if it has one. The process started is the program itself.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, TestbedError> {
        let host = self.host(host)?;
        if !self.spec.trees {
            return Ok(host.command(program));
        }
        let mut command = Command::new("nsenter");
        command.args(tree::enter(&self.spec.name, host)).arg(program);
        Ok(command)
    }

    /// All addresses of a host (counted from 0) with a port: what a peer of it is told. The index is this
    /// testbed's own; one beyond the last host is a mistake of the caller and panics.
    pub fn addrs(&self, host: usize, port: u16) -> Vec<SocketAddr> {
        self.hosts[host].addrs.iter().map(|&ip| SocketAddr::from((ip, port))).collect()
    }

    pub(super) fn netns(&self, part: &str) -> String {
        spec::netns(&self.spec.name, part)
    }
}

/// A process, told from a later one with the same number by when it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub started: u64,
}

impl Owner {
    /// The calling process.
    pub fn this_process() -> Owner {
        let pid = std::process::id();
        Owner { pid, started: started(pid).unwrap_or(0) }
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// Field 22 of /proc/PID/stat; the name before it may hold spaces and brackets.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(19)?.parse().ok()
}
