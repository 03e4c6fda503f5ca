//! One figure of the transport and its runs; what is measured for it, and why it could not be.

use std::{iter, path::PathBuf};

use serde::Serialize;

use crate::{ceiling::CeilingError, draw::Draw, netperf::NetperfError, testbed::TestbedError};

/// What shall be measured and how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This program: it is started as server and client.
    pub program: PathBuf,
    /// Runs of each row over links.
    pub runs: u32,
    /// Seconds of one run; the first and last tenth are not counted.
    pub seconds: f64,
    /// What the first run of a group is drawn from, as that shows it; the others follow from it.
    pub seed: u64,
}

impl Settings {
    /// A seed for each run.
    pub(super) fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let mut draw = Draw::new(self.seed);
        iter::once(self.seed).chain(iter::repeat_with(move || draw.word()))
    }
}

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The group's name.
    pub group: &'static str,
    /// What was measured.
    pub case: String,
    /// What it shall be.
    pub wanted: String,
    /// What was seen.
    pub seen: String,
    /// The raw figure of the same run.
    pub raw: String,
    /// Whether it is as wanted; absent: there is nothing to reach.
    pub reached: Option<bool>,
    /// The single runs.
    pub runs: Vec<Run>,
}

/// One run of a figure.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// What was drawn.
    pub drawn: String,
    /// Ours.
    pub seen: f64,
    /// Raw.
    pub raw: f64,
    /// Links that carried at least half of an equal share of what was sent.
    pub links_used: usize,
    /// Messages that failed.
    pub errors: u64,
    /// CPU time of the machine that its hypervisor gave to others meanwhile, percent.
    pub stolen_percent: f64,
    /// What the transport says of its placement.
    pub says: String,
}

/// Why a figure could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// The testbed.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A test.
    #[error(transparent)]
    Netperf(#[from] NetperfError),
    /// A raw figure.
    #[error(transparent)]
    Ceiling(#[from] CeilingError),
    /// A process that was started.
    #[error("{what}: {reason}")]
    Process {
        /// Its command.
        what: String,
        /// What it said, or how it ended.
        reason: String,
    },
}
