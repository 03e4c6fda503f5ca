//! Options that many commands take.

use std::path::PathBuf;

use base::CipherList;
use clap::{
    Args, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};

/// How what follows a handshake is protected.
pub fn cipher_list() -> impl TypedValueParser<Value = CipherList> {
    let names = PossibleValuesParser::new(CipherList::NAMES.map(|(name, _)| name));
    names.try_map(|name| name.parse::<CipherList>())
}

#[derive(Args)]
pub struct Dir {
    /// The cluster's directory [default: that of the only cluster of yours that runs on this machine]
    #[arg(long, env = "ROPEWALK_DIR", hide_env_values = true, value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct Listing {
    #[command(flatten)]
    pub dir: Dir,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Removal {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
    /// It is to go, with everything in it
    #[arg(long)]
    pub yes: bool,
}
