//! What a staging leaves for the lab to run.

use super::{disks::Disks, error::SelfTestError};
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
    /// Links that it needs while it runs.
    #[expect(dead_code, reason = "held, not read")]
    pub bed: Option<Scoped>,
}

/// Something staged, or why it cannot be staged here.
pub(super) type Outcome = Result<Result<Staged, String>, SelfTestError>;

pub(super) fn head(step: &str, steps: &str) -> String {
    format!("name = 'staged'\ntitle = 'staged'\nstep = '{step}'\nsteps = {steps}\nseconds = 1.5\n")
}

pub(super) fn series(engine: &str, figure: &str, set: &str) -> String {
    format!("[[series]]\nname = 's'\nengine = '{engine}'\nfigure = '{figure}'\nset = {{ {set} }}\n")
}
