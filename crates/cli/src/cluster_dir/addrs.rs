//! Where a process listens: an address, or one in each of its networks (rails). In `cluster.toml` one stands as a text, several
//! as a list. Never none.

use std::{fmt, net::SocketAddr, ops::Deref};

use serde::{Deserialize, Serialize};
use wire::mgr::NODE_ADDRS_MAX;

/// 1 to [`NODE_ADDRS_MAX`] addresses, each once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "OneOrMore", into = "OneOrMore")]
pub struct Addrs(Vec<SocketAddr>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(SocketAddr),
    More(Vec<SocketAddr>),
}

/// Addresses that are none, too many, or not each once.
#[derive(Debug, thiserror::Error)]
pub enum BadAddrs {
    /// So many.
    #[error("{0} addresses: 1 to {NODE_ADDRS_MAX} are possible")]
    Number(usize),
    /// This one.
    #[error("{0} is named twice")]
    Twice(SocketAddr),
}

impl Addrs {
    /// Checks them.
    pub fn new(addrs: Vec<SocketAddr>) -> Result<Addrs, BadAddrs> {
        if !(1..=NODE_ADDRS_MAX).contains(&addrs.len()) {
            return Err(BadAddrs::Number(addrs.len()));
        }
        match addrs.iter().enumerate().find(|(at, addr)| addrs[..*at].contains(addr)) {
            Some((_, twice)) => Err(BadAddrs::Twice(*twice)),
            None => Ok(Addrs(addrs)),
        }
    }

    /// The first, by which it is called where one must do.
    pub fn main(&self) -> SocketAddr {
        self.0[0]
    }

    /// As the map has them.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(SocketAddr::to_string).collect()
    }
}

impl From<SocketAddr> for Addrs {
    fn from(addr: SocketAddr) -> Addrs {
        Addrs(vec![addr])
    }
}

impl TryFrom<OneOrMore> for Addrs {
    type Error = BadAddrs;
    fn try_from(addrs: OneOrMore) -> Result<Addrs, BadAddrs> {
        match addrs {
            OneOrMore::One(addr) => Ok(addr.into()),
            OneOrMore::More(addrs) => Addrs::new(addrs),
        }
    }
}

impl From<Addrs> for OneOrMore {
    fn from(addrs: Addrs) -> OneOrMore {
        match addrs.0[..] {
            [addr] => OneOrMore::One(addr),
            _ => OneOrMore::More(addrs.0),
        }
    }
}

impl Deref for Addrs {
    type Target = [SocketAddr];
    fn deref(&self) -> &[SocketAddr] {
        &self.0
    }
}

impl fmt::Display for Addrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(", "))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a helper that fails is a test that fails
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct File {
        addr: Addrs,
    }

    #[test]
    fn one_is_a_text_and_several_are_a_list() {
        for text in ["addr = \"10.0.0.1:7451\"\n", "addr = [\"10.0.0.1:7451\", \"[fd00::1]:7451\"]\n"] {
            let file: File = toml::from_str(text).unwrap();
            assert_eq!(toml::to_string(&file).unwrap(), text);
        }
        for (wrong, why) in [("[]", "0 addresses"), ("[\"[::1]:1\", \"[::1]:1\"]", "[::1]:1 is named twice")]
        {
            let error = toml::from_str::<File>(&format!("addr = {wrong}")).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
