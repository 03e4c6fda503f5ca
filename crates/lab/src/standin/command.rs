//! Commands by which things are made that stand in, and why something cannot.

use std::{
    io,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use thiserror::Error;

use crate::testbed::TestbedError;

/// Why nothing can stand in.
#[derive(Debug, Error)]
pub enum StandInError {
    /// A file could not be made.
    #[error("cannot fill {path}")]
    Fill {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A testbed could not be made.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A client node could not be limited.
    #[error("{0}")]
    Limits(String),
    /// A command failed.
    #[error("{command}: {why}")]
    Command {
        /// As typed.
        command: String,
        /// What it said.
        why: String,
    },
}

/// Runs one to its end.
pub(super) fn run(command: &mut Command) -> Result<Output, StandInError> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let failed = |why: String| StandInError::Command { command: shown.clone(), why };
    let output = command.stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    Ok(output)
}
