//! What an engine works with, how it is told to stop, and why it gave no figures.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::Mutex;
use thiserror::Error;

use crate::{observe::LoadGroups, plan::Figure, targets::Targets};

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
    pub(super) fn note(&self, operations: u64) -> bool {
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
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
    /// What was busy before is not the load's.
    pub(super) fn load_begins(&self, at: Instant) {
        *self.began.lock() = Some(at);
    }
    pub(super) fn note_command(&self, line: String) {
        self.commands.lock().push(line);
    }
}
