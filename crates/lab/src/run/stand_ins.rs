//! What stands in while a series is measured: made when a series needs it, kept while the next one needs the same.

use std::path::{Path, PathBuf};

use super::error::RunError;
use crate::{
    observe::{Serving, Watched},
    plan::{Plan, Series, Step},
    results::Results,
    standin::{self, Bed, BedSpec, Cluster, ClusterSpec},
    targets::Targets,
};

/// Files that stand in for devices where none is named: as many as the steps say, at most so many.
const FILES_MAX: u32 = 16;
/// And so many where the steps say no number.
const FILES: u32 = 4;
/// What statfs(2) says of a mount whose file system is a process.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// A load that writes gets only what was named as writable.
pub(super) fn for_series(targets: &Targets, series: &Series) -> Targets {
    let writes = series.combinations().iter().any(|params| series.engine.writes(params));
    let mut targets = targets.clone();
    targets.devices.retain(|device| device.writable || !writes);
    targets
}

/// What stands in for a series while it is measured.
#[derive(Default)]
pub(super) struct StandIns {
    /// The cluster that stands now.
    cluster: Option<Cluster>,
    /// The testbed that stands now.
    bed: Option<Bed>,
}

impl StandIns {
    /// The cluster that stands now, if its processes can be asked what they did.
    pub(super) fn watched(&self) -> Option<&Watched> {
        self.cluster.as_ref()?.watched.as_ref()
    }

    /// Which of Ropewalk's processes serve a load on these targets.
    pub(super) fn serving(&self, targets: &Targets) -> Serving {
        if let Some(cluster) = &self.cluster {
            // Its processes name it without links.
            let dir = cluster.dir();
            return Serving::Below(dir.canonicalize().unwrap_or_else(|_| dir.to_owned()));
        }
        let devices = targets.devices.iter().map(|device| device.path.as_path());
        let mut all = targets.dirs.iter().map(PathBuf::as_path).chain(devices);
        let mounted = |path| rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type == FUSE);
        if all.any(mounted) { Serving::Any } else { Serving::Nobody }
    }

    /// The targets of a series; where it needs some and none is named, others stand in.
    pub(super) fn targets(
        &mut self,
        plan: &Plan,
        series: &Series,
        named: &Targets,
        results: &Results,
        ropewalk: Option<&Path>,
    ) -> Result<Targets, RunError> {
        let mut targets = for_series(named, series);
        if targets.agents.addrs.is_empty() {
            standin::fill_files(&results.work()?, &targets.devices)?;
        }
        let root = rustix::process::geteuid().is_root();
        let wanted = series.engine.uses_pairs() && targets.pairs_stand_in && root;
        let spec = wanted.then(|| BedSpec::of(&series.set)).flatten();
        // What the series does not need must not stand beside it.
        if self.bed.as_ref().map(|bed| &bed.spec) != spec.as_ref() {
            self.bed = None;
            self.bed = spec.map(Bed::up).transpose()?;
        }
        if let Some(bed) = &self.bed {
            targets.pairs.clone_from(&bed.pairs);
            targets.links.clone_from(&bed.links);
        }
        let wanted = targets.dirs.is_empty() && targets.agents.addrs.is_empty();
        let spec = wanted.then(|| ClusterSpec::of(plan, series)).flatten();
        if self.cluster.as_ref().map(|cluster| &cluster.spec) != spec.as_ref() {
            self.cluster = None;
            if let Some(spec) = spec {
                let program = ropewalk
                    .ok_or_else(|| RunError::Nothing("the program ropewalk cannot be found".into()))?;
                self.cluster = Some(Cluster::up(program, &results.work()?, spec)?);
            }
        }
        targets.nodes = self.cluster.as_ref().map(Cluster::nodes).unwrap_or_default();
        targets.dirs.extend(self.cluster.iter().flat_map(|cluster| cluster.mounts.iter().cloned()));
        Ok(targets)
    }
}

/// How many files stand in for devices.
pub(super) fn files(plan: &Plan) -> u32 {
    if plan.step != Step::Devices {
        return 1;
    }
    plan.steps.most().unwrap_or(FILES).min(FILES_MAX)
}
