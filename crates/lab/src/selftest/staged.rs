//! What a staging leaves for the lab to run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    disks::Disks,
    error::{SelfTestError, failed},
};
use crate::testbed::Scoped;

/// What is staged, ready to be run.
#[derive(Default)]
pub struct Staged {
    /// Words before the program.
    pub under: Vec<String>,
    /// The plan.
    pub plan: String,
    /// Options of `lab run`.
    pub options: Vec<String>,
    /// What the verdict must name; empty where the limit has no place.
    pub place: String,
    /// Devices that it needs while it runs.
    #[expect(dead_code, reason = "held, not read")]
    pub disks: Option<Disks>,
    /// Files in memory that it needs while it runs.
    #[expect(dead_code, reason = "held, not read")]
    pub files: Option<Scratch>,
    /// Links that it needs while it runs.
    #[expect(dead_code, reason = "held, not read")]
    pub bed: Option<Scoped>,
}

/// A directory that is gone with all that is in it when dropped. There is one at a time.
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes it below another.
    pub(super) fn below(dir: &Path) -> Result<Scratch, SelfTestError> {
        let path = dir.join(format!("ropewalk-self-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(failed(format!("make {}", path.display())))?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Something staged, or why it cannot be staged here.
pub(super) type Outcome = Result<Result<Staged, String>, SelfTestError>;

pub(super) fn head(step: &str, steps: &str) -> String {
    format!("name = 'staged'\ntitle = 'staged'\nstep = '{step}'\nsteps = {steps}\nseconds = 1.5\n")
}

pub(super) fn series(engine: &str, figure: &str, set: &str) -> String {
    format!("[[series]]\nname = 's'\nengine = '{engine}'\nfigure = '{figure}'\nset = {{ {set} }}\n")
}
