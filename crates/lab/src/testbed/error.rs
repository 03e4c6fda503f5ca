//! What can go wrong with a testbed.

use std::{io, path::PathBuf, time::Duration};

use thiserror::Error;

/// Why a testbed could not be made, used or removed.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// A field of the specification is out of its bounds.
    #[error("cannot make a testbed with {name} {value}: allowed are {allowed}")]
    BadSpec {
        /// Which.
        name: &'static str,
        /// As given.
        value: String,
        /// Its bounds.
        allowed: String,
    },
    /// The name is taken.
    #[error(
        "testbed {name} is there already; remove it with `ropewalk lab testbed down {name}` or take another --name"
    )]
    Exists {
        /// Its name.
        name: String,
    },
    /// No testbed has the name.
    #[error("there is no testbed {name}; `ropewalk lab testbed status` lists them")]
    NoTestbed {
        /// The name asked for.
        name: String,
    },
    /// No name was given, and there is none or several.
    #[error("{}", which(.names))]
    WhichTestbed {
        /// Those that are there.
        names: Vec<String>,
    },
    /// No host has the name.
    #[error("there is no host {name} in this testbed; there are {}", .hosts.join(", "))]
    NoHost {
        /// The name asked for.
        name: String,
        /// Those that are there.
        hosts: Vec<String>,
    },
    /// A host has no such link.
    #[error("{host} has no link {link}; it has 1 to {links}")]
    NoLink {
        /// The host.
        host: String,
        /// The link asked for.
        link: u8,
        /// How many it has.
        links: u8,
    },
    /// A command of the system failed.
    #[error("cannot {action}: `{command}`: {message}{}", hint(*.missing))]
    Command {
        /// What it was for.
        action: String,
        /// The command line.
        command: String,
        /// What it said.
        message: String,
        /// The program is not there.
        missing: bool,
    },
    /// A call of the system failed.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A state file says what no state file of this version says.
    #[error("{path} cannot be read as a testbed; remove the testbed with `ropewalk lab testbed down {name}`")]
    BadState {
        /// The file.
        path: PathBuf,
        /// The testbed's name.
        name: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Somebody else removes it, and does not come to an end.
    #[error(
        "testbed {name} is being removed by another process, which was not done within {} s; try again when that has ended",
        .waited.as_secs()
    )]
    BeingRemoved {
        /// The testbed.
        name: String,
        /// So long it was waited for.
        waited: Duration,
    },
    /// Processes in it do not end.
    #[error("processes {pids:?} in testbed {name} do not end; its namespaces are left")]
    Busy {
        /// The testbed.
        name: String,
        /// They.
        pids: Vec<u32>,
    },
}

fn which(names: &[String]) -> String {
    if names.is_empty() {
        "there is no testbed; make one with `ropewalk lab testbed up`".to_owned()
    } else {
        format!("there are several testbeds ({}): say which with --name", names.join(", "))
    }
}

fn hint(missing: bool) -> &'static str {
    match missing {
        true => " (install iproute2)",
        false if !rustix::process::geteuid().is_root() => " (testbeds need root)",
        false => "",
    }
}
