//! Engines: the programs that make the load. Each takes the parameters of a cell, says which it knows, and
//! gives figures. An engine that is not installed is named with its package.

mod fio;
mod iperf3;
mod netperf;
mod params;
mod pdisk;
mod perf;
pub(crate) mod process;
mod writers;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    cell::{Cell, Figures},
    observe::LoadGroups,
    plan::Figure,
    targets::Targets,
};
pub use writers::{LEVEL_GAIN, level, patience, per_client, quantile, together};

/// Which engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// fio on devices, files or mounts.
    Fio,
    /// iperf3: raw TCP.
    Iperf3,
    /// `ropewalk netperf`: our own transport.
    Netperf,
    /// `ropewalk perf`: files through mounts.
    Perf,
    /// `ropewalk pdisk bench`: the strip store's queues.
    Pdisk,
    /// Threads of our own that write synchronously, one more each second.
    Writers,
}

/// Why an engine gave no figures.
#[derive(Debug, Error)]
pub enum EngineError {
    /// It is not installed.
    #[error("{program} is not here; install the package {package}")]
    Missing {
        /// The program.
        program: String,
        /// The distribution's package.
        package: &'static str,
    },
    /// It could not be started, or ended badly.
    #[error("{program} failed: {why}")]
    Failed {
        /// The program.
        program: String,
        /// What it said.
        why: String,
    },
    /// It did not end in time and was ended.
    #[error("{program} did not end within {seconds:.0} s")]
    Late {
        /// The program.
        program: String,
        /// How long it had.
        seconds: f64,
    },
    /// What it printed could not be read.
    #[error("the output of {program} could not be read: {why}")]
    Output {
        /// The program.
        program: String,
        /// What is wrong with it.
        why: String,
    },
    /// The plan's targets do not fit.
    #[error("{0}")]
    Target(String),
    /// The run was stopped.
    #[error("stopped")]
    Stopped,
}

/// What an engine works with.
pub struct Context<'a> {
    /// What may be touched.
    pub targets: &'a Targets,
    /// A directory of the run to work in.
    pub work: &'a Path,
    /// Which of several nodes this is: keeps their files apart in a directory that they share.
    pub part: u32,
    /// Seconds the load lasts.
    pub seconds: f64,
    /// What is counted.
    pub figure: Figure,
    /// Becomes true when the run is to stop.
    pub stop: &'a AtomicBool,
    /// Where load generators are made known.
    pub groups: &'a LoadGroups,
    /// The program `ropewalk`, for engines that are its own commands.
    pub ropewalk: Option<&'a Path>,
    /// Command lines as they were run.
    pub commands: Arc<Mutex<Vec<String>>>,
    /// When the load itself began, where preparation came first.
    pub began: Arc<Mutex<Option<Instant>>>,
    /// Where another node leads a load that grows while it runs.
    pub led: Option<&'a Led>,
}

/// What the leader of several nodes sees of a load that grows, and how it ends it.
#[derive(Default)]
pub struct Led {
    operations: Mutex<Vec<u64>>,
    enough: AtomicBool,
}

impl Led {
    /// Operations of one more period; gives whether the leader has seen enough.
    fn note(&self, operations: u64) -> bool {
        self.operations.lock().push(operations);
        self.enough.load(Relaxed)
    }
    /// Operations of each period so far.
    pub fn operations(&self) -> Vec<u64> {
        self.operations.lock().clone()
    }
    /// The load may end.
    pub fn enough(&self) {
        self.enough.store(true, Relaxed);
    }
}

impl Context<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
    /// What was busy before is not the load's.
    fn load_begins(&self, at: Instant) {
        *self.began.lock() = Some(at);
    }
    fn note_command(&self, line: String) {
        self.commands.lock().push(line);
    }
}

impl EngineKind {
    /// Whether a parameter is known, and its value allowed.
    pub fn check(self, key: &str, value: &str) -> Result<(), String> {
        params::check(self.params(), key, value)
    }

    fn params(self) -> params::Known {
        match self {
            EngineKind::Fio => fio::PARAMS,
            EngineKind::Iperf3 => iperf3::PARAMS,
            EngineKind::Netperf => netperf::PARAMS,
            EngineKind::Perf => perf::PARAMS,
            EngineKind::Pdisk => pdisk::PARAMS,
            EngineKind::Writers => writers::PARAMS,
        }
    }

    /// Its program and the package that has it; `None` where it is in this one.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            EngineKind::Fio => Some(("fio", "fio")),
            EngineKind::Iperf3 => Some(("iperf3", "iperf3")),
            EngineKind::Netperf | EngineKind::Perf | EngineKind::Pdisk | EngineKind::Writers => None,
        }
    }

    /// Whether the program is there.
    pub fn present(self) -> Result<(), EngineError> {
        match self.program() {
            Some((program, package)) if find_program(program).is_none() => {
                Err(EngineError::Missing { program: program.into(), package })
            }
            _ => Ok(()),
        }
    }

    /// Whether it needs pairs of addresses.
    pub fn uses_pairs(self) -> bool {
        matches!(self, EngineKind::Iperf3 | EngineKind::Netperf)
    }

    /// Whether the cell's load writes to its devices.
    pub fn writes(self, params: &crate::plan::Params) -> bool {
        match self {
            EngineKind::Fio => fio::writes(params),
            EngineKind::Iperf3 | EngineKind::Netperf => false,
            EngineKind::Perf | EngineKind::Pdisk | EngineKind::Writers => true,
        }
    }

    /// Makes what the cell needs, before anything is observed.
    pub fn prepare(self, cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
        match self {
            EngineKind::Perf => perf::prepare(cell, context),
            EngineKind::Writers => writers::prepare(cell, context),
            _ => Ok(()),
        }
    }

    /// Removes what cells left for the next ones.
    pub fn clean(self, context: &Context<'_>) {
        match self {
            EngineKind::Perf => perf::clean(context),
            EngineKind::Writers => writers::clean(context),
            _ => {}
        }
    }

    /// Runs one cell.
    pub fn run(self, cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
        match self {
            EngineKind::Fio => fio::run(cell, context),
            EngineKind::Iperf3 => iperf3::run(cell, context),
            EngineKind::Netperf => netperf::run(cell, context),
            EngineKind::Perf => perf::run(cell, context),
            EngineKind::Pdisk => pdisk::run(cell, context),
            EngineKind::Writers => writers::run(cell, context),
        }
    }
}

/// A program on the search path.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
