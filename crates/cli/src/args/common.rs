//! Options that many commands take.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use base::{
    CipherList,
    name::{self, BadName},
};
use clap::{
    Args, ValueHint,
    builder::{PossibleValuesParser, TypedValueParser},
};

/// The name of something new, by the one rule for names.
pub fn new_name(
    of: &'static str,
) -> impl Fn(&str) -> Result<String, BadName> + Clone + Send + Sync + 'static {
    move |name| name::check_name(of, name).map(|()| name.to_owned())
}

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

/// Where something is to listen from now on, which is remembered; none: nowhere any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenAt(pub Option<SocketAddr>);

impl FromStr for ListenAt {
    type Err = String;
    fn from_str(text: &str) -> Result<ListenAt, String> {
        if text == "off" {
            return Ok(ListenAt(None));
        }
        let port = || text.parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).ok();
        match text.parse().ok().or_else(port) {
            Some(addr) if addr.port() == 0 => {
                Err("name a port: it is remembered, and what listens there is there the next time as well"
                    .to_owned())
            }
            Some(addr) => Ok(ListenAt(Some(addr))),
            None => Err("write it as 127.0.0.1:PORT, PORT (on loopback), [::1]:PORT, or off".to_owned()),
        }
    }
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
