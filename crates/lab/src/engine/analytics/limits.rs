//! CPU and memory of each client node where several share this machine: a control group for each, of version 2 or 1, removed at the
//! end. The jobs of a node run in it; the mount that serves them does not.

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::ByteSize;

use crate::plan::Params;

/// Microseconds over which a share of CPUs is kept.
const PERIOD: u64 = 100_000;

/// The control groups of the nodes; none where nothing is limited.
#[derive(Default)]
pub(super) struct Limits {
    /// Of each node, one for each hierarchy.
    nodes: Vec<Vec<PathBuf>>,
    what: String,
}

/// One limit: the hierarchy's directory, the file, and what is written into it.
type Setting = (PathBuf, &'static str, String);

/// Where the controllers are, and how they are told: version 2, else version 1.
fn settings(cpus: Option<u64>, memory: Option<u64>) -> Vec<Setting> {
    let root = Path::new("/sys/fs/cgroup");
    let whole = root.join("cgroup.controllers").exists();
    let cpu = |cpus: u64| match whole {
        true => (root.to_owned(), "cpu.max", format!("{} {PERIOD}", cpus * PERIOD)),
        false => (root.join("cpu"), "cpu.cfs_quota_us", (cpus * PERIOD).to_string()),
    };
    let memory_of = |bytes: u64| match whole {
        true => (root.to_owned(), "memory.max", bytes.to_string()),
        false => (root.join("memory"), "memory.limit_in_bytes", bytes.to_string()),
    };
    cpus.map(cpu).into_iter().chain(memory.map(memory_of)).collect()
}

impl Limits {
    /// Makes what the parameters `cpus` and `memory` ask for.
    pub(super) fn make(params: &Params, nodes: u32) -> Result<Limits, String> {
        let cpus = params.get("cpus").and_then(|value| value.parse::<u64>().ok());
        let memory = params.get("memory").and_then(|value| value.parse::<ByteSize>().ok()).map(|size| size.0);
        let mut limits = Limits::default();
        if cpus.is_none() && memory.is_none() {
            return Ok(limits);
        }
        let says = [
            cpus.map(|cpus| format!("{cpus} CPUs")),
            memory.map(|bytes| format!("{} of memory", ByteSize(bytes))),
        ];
        limits.what = says.into_iter().flatten().collect::<Vec<_>>().join(" and ");
        for node in 1..=nodes {
            let mut groups: Vec<PathBuf> = Vec::new();
            for (dir, file, value) in settings(cpus, memory) {
                let group = dir.join(format!("ropewalk-lab-{}-n{node}", std::process::id()));
                let made = if groups.contains(&group) { Ok(()) } else { fs::create_dir(&group) };
                if made.is_ok() && !groups.contains(&group) {
                    groups.push(group.clone());
                }
                if let Err(e) = made.and_then(|()| fs::write(group.join(file), &value)) {
                    // What was made so far goes with `limits`.
                    limits.nodes.push(groups);
                    return Err(format!(
                        "a client node cannot be limited to {}: {}: {e}; limits need root and control groups, so leave them out \
                         elsewhere",
                        limits.what,
                        group.join(file).display()
                    ));
                }
            }
            limits.nodes.push(groups);
        }
        Ok(limits)
    }

    /// The groups of a node as the supervisor takes them.
    pub(super) fn groups(&self, node: u32) -> String {
        let own = self.nodes.get((node as usize).wrapping_sub(1)).map(Vec::as_slice).unwrap_or_default();
        match own {
            [] => "-".into(),
            own => own.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(","),
        }
    }

    /// What is limited, for the report.
    pub(super) fn note(&self) -> Option<String> {
        (!self.nodes.is_empty()).then(|| {
            format!(
                "the jobs of each client node have {} (control groups); its mount is not limited",
                self.what
            )
        })
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        // Empty by now: every job has been waited for.
        for group in self.nodes.iter().flatten() {
            let _ = fs::remove_dir(group);
        }
    }
}
