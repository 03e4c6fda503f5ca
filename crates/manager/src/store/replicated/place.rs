//! Where in which etcd a journal is: `etcd://HOST:PORT,HOST:PORT/PREFIX`, `etcds://` with TLS.

use std::{fmt, path::PathBuf, str::FromStr};

/// Members of an etcd cluster that are named, at most.
const ENDPOINTS_MAX: usize = 16;
/// Longest prefix, bytes.
const PREFIX_MAX: usize = 256;
const CLIENT_PORT: u16 = 2379;

/// A place. Its text names no password and no files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `HOST:PORT`, 1 to 16.
    pub endpoints: Vec<String>,
    /// What all keys begin with, without a slash at its ends; never empty.
    pub prefix: String,
    /// Over TLS.
    pub tls: bool,
    /// Name and password.
    pub user: Option<(String, String)>,
    /// PEM files for TLS: the authority that etcd's certificates are of; none: those that the system trusts are not asked, and
    /// TLS is refused.
    pub ca: Option<PathBuf>,
    /// PEM files of the certificate and the key by which etcd knows this client.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Bytes that etcd's database may have, if it does not say so itself (3.6 does) and has another quota than by default.
    pub quota: Option<u64>,
}

/// A text that is no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no place in etcd: {why}; etcd://HOST:PORT,HOST:PORT/PREFIX is one")]
pub struct BadPlace {
    text: String,
    why: &'static str,
}

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Place, BadPlace> {
        let bad = |why| BadPlace { text: text.to_owned(), why };
        let (tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(bad("it begins with neither etcd:// nor etcds://")),
        };
        let (hosts, prefix) = rest.split_once('/').ok_or(bad("it has no prefix"))?;
        let prefix = prefix.trim_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.chars().all(plain) {
            return Err(bad(
                "its prefix has 1 to 256 letters, digits, dots, dashes, underscores and slashes",
            ));
        }
        let endpoint = |host: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()?),
                _ => (host, CLIENT_PORT),
            };
            (!name.is_empty() && name.chars().all(plain)).then(|| format!("{name}:{port}"))
        };
        let endpoints: Option<Vec<String>> = hosts.split(',').map(endpoint).collect();
        match endpoints {
            Some(endpoints) if endpoints.len() <= ENDPOINTS_MAX => {
                let prefix = prefix.to_owned();
                Ok(Place { endpoints, prefix, tls, user: None, ca: None, client: None, quota: None })
            }
            Some(_) => Err(bad("it names more than 16 members")),
            None => Err(bad("a member is HOST or HOST:PORT")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.endpoints.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_and_written() {
        let place: Place = "etcd://a,10.0.0.1:4001,[fd00::1]:2379/rope/walk/".parse().unwrap();
        assert_eq!(place.endpoints, ["a:2379", "10.0.0.1:4001", "[fd00::1]:2379"]);
        assert_eq!(place.to_string(), "etcd://a:2379,10.0.0.1:4001,[fd00::1]:2379/rope/walk");
        assert_eq!(place.to_string().parse(), Ok(place));
        assert!("etcds://[fd00::1]/x".parse::<Place>().is_ok_and(|place| place.tls));
        for (wrong, why) in [
            ("http://a/x", "begins with"),
            ("etcd://a", "no prefix"),
            ("etcd://a//", "its prefix has"),
            ("etcd:///x", "a member is"),
            ("etcd://a:99999/x", "a member is"),
            ("etcd://a@b/x", "a member is"),
            ("etcd://a/x y", "its prefix has"),
            ("etcd://1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17/x", "more than 16"),
        ] {
            let error = wrong.parse::<Place>().unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
