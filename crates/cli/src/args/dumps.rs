//! `advise` on dumps of other machines, and the import of Storage Scale's settings.

use std::path::PathBuf;

use clap::{Args, ValueHint};

#[derive(Args)]
pub struct AdviseInputs {
    /// Outputs of commands, configuration files, articles with such, directories of them, or - for standard input: these
    /// are read instead of this machine. Each is recognised by what it says
    #[arg(value_name = "FILE|DIR|-", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,
    /// Print everything: listings, evidence, what is in order, whole run books, lines that were not understood
    #[arg(long, requires = "inputs")]
    pub all: bool,
}

#[derive(Args)]
pub struct ImportScale {
    /// What mmlsconfig or `mmdiag --config` printed, or a text that holds it; - for standard input
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub input: PathBuf,
    /// Print names and reasons for scripts
    #[arg(long)]
    pub json: bool,
}
