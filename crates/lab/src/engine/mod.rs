//! Engines: the programs that make the load. Each takes the parameters of a cell, says which it knows, and
//! gives figures. An engine that is not installed is named with its package.

mod analytics;
mod context;
mod fio;
mod iperf3;
mod kind;
mod metadata;
mod near_far;
mod netperf;
mod nvme;
mod params;
mod pdisk;
mod perf;
pub(crate) mod process;
mod writers;

use std::collections::BTreeMap;

use crate::{
    cell::{Cell, Figures},
    plan::Series,
    targets::Targets,
    workload::setup,
};
pub use analytics::bytes as workload_bytes;
pub use context::{Context, EngineError, Led};
pub use kind::EngineKind;
use process::find_program;
pub use writers::{LEVEL_GAIN, level, patience, per_client, quantile, together};

impl EngineKind {
    /// Whether the program is there.
    pub fn present(self) -> Result<(), EngineError> {
        match self.program() {
            Some((program, package)) if find_program(program).is_none() => {
                Err(EngineError::Missing { program: program.into(), package })
            }
            _ => Ok(()),
        }
    }

    /// Whether the cell's load writes to its devices.
    pub fn writes(self, params: &crate::plan::Params) -> bool {
        match self {
            EngineKind::Fio => fio::writes(params),
            EngineKind::Iperf3 | EngineKind::Netperf => false,
            EngineKind::Perf
            | EngineKind::Pdisk
            | EngineKind::Writers
            | EngineKind::Analytics
            | EngineKind::Metadata => true,
        }
    }

    /// Makes what the cell needs, before anything is observed.
    pub fn prepare(self, cell: &Cell, context: &Context<'_>) -> Result<(), EngineError> {
        match self {
            EngineKind::Perf => perf::prepare(cell, context),
            EngineKind::Writers => writers::prepare(cell, context),
            EngineKind::Analytics => analytics::prepare(cell, context),
            EngineKind::Metadata => metadata::prepare(cell, context),
            _ => Ok(()),
        }
    }

    /// Removes what cells left for the next ones.
    pub fn clean(self, context: &Context<'_>) {
        match self {
            EngineKind::Perf => perf::clean(context),
            EngineKind::Writers => writers::clean(context),
            EngineKind::Metadata => metadata::clean(context),
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
            EngineKind::Analytics => analytics::run(cell, context),
            EngineKind::Metadata => metadata::run(cell, context),
        }
    }
}

/// Whether what a series needs beside its program is there.
pub fn ready(series: &Series, targets: &Targets) -> Result<(), EngineError> {
    match series.engine {
        EngineKind::Analytics => analytics::ready(&series.set, targets),
        EngineKind::Fio => series.combinations().iter().try_for_each(|params| nvme::ready(params, targets)),
        _ => Ok(()),
    }
}

/// The programs of a series, for their versions.
pub fn programs(series: &Series) -> Vec<&'static str> {
    match series.engine {
        EngineKind::Analytics => analytics::programs(&series.set),
        engine => engine.program().map(|(program, _)| program).into_iter().collect(),
    }
}

/// Packages beside the distribution's that a series works with, and their versions.
pub fn packages(series: &Series, targets: &Targets) -> BTreeMap<String, String> {
    let with = series.engine == EngineKind::Analytics && targets.workload.env.is_some();
    let all = if with { setup::packages() } else { Vec::new() };
    all.into_iter().map(|package| (package.name, package.version)).collect()
}
