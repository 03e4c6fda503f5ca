//! The import of Storage Scale's settings.

use std::path::PathBuf;

use clap::{Args, ValueHint};

#[derive(Args)]
pub struct ImportScale {
    /// What mmlsconfig or `mmdiag --config` printed, or a text that holds it; - for standard input
    #[arg(value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub input: PathBuf,
    /// Names and reasons for scripts
    #[arg(long)]
    pub json: bool,
}
