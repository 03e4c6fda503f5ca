//! Which engines there are, what their programs are, and which parameters they know.

use serde::{Deserialize, Serialize};

use super::params;

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
    /// The mixed analytics workload: jobs on real engines.
    Analytics,
    /// Threads of our own that make, look up, list and remove names.
    Metadata,
}

impl EngineKind {
    /// Whether a parameter is known, and its value allowed.
    pub fn check(self, key: &str, value: &str) -> Result<(), String> {
        params::check(self.params(), key, value)
    }

    fn params(self) -> params::Known {
        match self {
            EngineKind::Fio => params::FIO,
            EngineKind::Iperf3 => params::IPERF3,
            EngineKind::Netperf => params::NETPERF,
            EngineKind::Perf => params::PERF,
            EngineKind::Pdisk => params::PDISK,
            EngineKind::Writers => params::WRITERS,
            EngineKind::Analytics => params::ANALYTICS,
            EngineKind::Metadata => params::METADATA,
        }
    }

    /// Its program and the package that has it; `None` where it is in this one.
    pub fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            EngineKind::Fio => Some(("fio", "fio")),
            EngineKind::Iperf3 => Some(("iperf3", "iperf3")),
            EngineKind::Analytics => Some(("python3", "python3")),
            EngineKind::Netperf
            | EngineKind::Perf
            | EngineKind::Pdisk
            | EngineKind::Writers
            | EngineKind::Metadata => None,
        }
    }

    /// Whether it needs pairs of addresses.
    pub fn uses_pairs(self) -> bool {
        matches!(self, EngineKind::Iperf3 | EngineKind::Netperf)
    }
}
