//! What a testbed shall be: hosts, links, rate, how the links are joined.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

use super::TestbedError;

/// Hosts of one testbed.
pub const HOSTS_MAX: u8 = 32;
/// Links of one host.
pub const LINKS_MAX: u8 = 8;
/// Longest name; with the prefix and a host it stays far below what a file name may have.
const NAME_MAX: usize = 20;
/// Rates that the kernel's token buckets keep well.
const RATE_RANGE: (u64, u64) = (1_000_000, 100_000_000_000);

/// How the links of a host are used together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// One address a host, routes over all links; the kernel hashes each connection to a link.
    Ecmp {
        /// `fib_multipath_hash_policy`: 0 hashes addresses (as a bond's layer2+3), 1 also ports (as layer3+4).
        policy: u8,
    },
    /// Each link is a network of its own, with an address on it.
    Subnets,
}

/// A specification; [`Spec::default`] is two hosts with two links of 1 Gbit/s under policy 1.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Letters and digits; what it owns is named after it.
    pub name: String,
    /// 2 to [`HOSTS_MAX`].
    pub hosts: u8,
    /// Links of each host, 1 to [`LINKS_MAX`].
    pub links: u8,
    /// Rate of each link in each direction.
    pub rate: BitRate,
    /// How they are joined.
    pub join: Join,
    /// A router (or a switch for each subnet) between the hosts, as more than two hosts need. Without one, the links of
    /// two hosts go from one to the other.
    pub routed: bool,
    /// Each host has a `/var/lib`, a `/mnt` and a name of its own, and sees its own mounts only.
    #[serde(default)]
    pub trees: bool,
    /// What addresses and hash keys are drawn from.
    pub seed: u64,
}

impl Default for Spec {
    fn default() -> Self {
        let seed = RandomState::new().build_hasher().finish();
        Spec {
            name: format!("t{:06x}", seed & 0xff_ffff),
            hosts: 2,
            links: 2,
            rate: BitRate(1_000_000_000),
            join: Join::Ecmp { policy: 1 },
            routed: false,
            trees: false,
            seed,
        }
    }
}

impl Spec {
    /// Whether something stands between the hosts.
    pub(super) fn has_switch(&self) -> bool {
        self.routed || self.hosts > 2
    }

    pub(super) fn check(&self) -> Result<(), TestbedError> {
        let check = |ok: bool, name, value: String, allowed: String| {
            if ok { Ok(()) } else { Err(TestbedError::BadSpec { name, value, allowed }) }
        };
        check_name(&self.name)?;
        let hosts = format!("2 to {HOSTS_MAX}");
        check((2..=HOSTS_MAX).contains(&self.hosts), "hosts", self.hosts.to_string(), hosts)?;
        let links = format!("1 to {LINKS_MAX}");
        check((1..=LINKS_MAX).contains(&self.links), "links", self.links.to_string(), links)?;
        let (low, high) = RATE_RANGE;
        let rates = format!("{} to {} (bits a second, decimal)", BitRate(low), BitRate(high));
        check((low..=high).contains(&self.rate.0), "rate", self.rate.to_string(), rates)?;
        if let Join::Ecmp { policy } = self.join {
            check(policy <= 1, "policy", policy.to_string(), "0 and 1".to_owned())?;
        }
        Ok(())
    }
}

/// Names end up in namespace and file names.
pub(super) fn check_name(name: &str) -> Result<(), TestbedError> {
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if plain && (1..=NAME_MAX).contains(&name.len()) {
        return Ok(());
    }
    let allowed = format!("1 to {NAME_MAX} lower-case letters and digits");
    Err(TestbedError::BadSpec { name: "name", value: format!("{name:?}"), allowed })
}

/// What every namespace of ours begins with.
pub(super) const PREFIX: &str = "ropewalk-";

/// The namespace of a part of a testbed.
pub(super) fn netns(testbed: &str, part: &str) -> String {
    format!("{PREFIX}{testbed}-{part}")
}

/// A rate in bits a second, decimal: `500m` is 500 Mbit/s, `1g` is 10^9 bits a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct BitRate(pub u64);

impl BitRate {
    /// In Gbit/s.
    pub fn gbit_per_second(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("bad rate {text:?}: write bits a second, decimal, such as 500m or 1g");
        let lower = text.trim().to_ascii_lowercase();
        let lower = lower.strip_suffix("bit").unwrap_or(&lower);
        let (number, scale) = match lower.as_bytes().last() {
            Some(b'k') => (&lower[..lower.len() - 1], 1_000),
            Some(b'm') => (&lower[..lower.len() - 1], 1_000_000),
            Some(b'g') => (&lower[..lower.len() - 1], 1_000_000_000),
            _ => (lower, 1),
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        number.checked_mul(scale).map(BitRate).ok_or_else(bad)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scale, unit) in [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")] {
            if self.0 >= scale && self.0.is_multiple_of(scale) {
                return write!(f, "{} {unit}bit/s", self.0 / scale);
            }
        }
        write!(f, "{} bit/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal() {
        let parse = |s: &str| s.parse::<BitRate>().map(|r| r.0);
        assert_eq!(parse("1g"), Ok(1_000_000_000));
        assert_eq!(parse("500Mbit"), Ok(500_000_000));
        assert_eq!(parse("1500000"), Ok(1_500_000));
        assert!(parse("fast").is_err() && parse("").is_err() && parse("99999999999g").is_err());
        assert_eq!(BitRate(500_000_000).to_string(), "500 Mbit/s");
        assert_eq!(BitRate(1_000_000_000).to_string(), "1 Gbit/s");
    }

    #[test]
    fn bad_specs_are_named() {
        let bad = |change: fn(&mut Spec)| {
            let mut spec = Spec::default();
            change(&mut spec);
            spec.check().unwrap_err().to_string()
        };
        assert!(bad(|s| s.name = "../etc".to_owned()).contains("name \"../etc\""));
        assert!(bad(|s| s.name.clear()).contains("name \"\""));
        assert!(bad(|s| s.hosts = 1).contains("hosts 1: allowed are 2 to 32"));
        assert!(bad(|s| s.links = 9).contains("links 9"));
        assert!(bad(|s| s.rate = BitRate(10)).contains("rate 10 bit/s"));
        assert!(bad(|s| s.join = Join::Ecmp { policy: 2 }).contains("policy 2"));
        assert!(Spec::default().check().is_ok());
    }
}
