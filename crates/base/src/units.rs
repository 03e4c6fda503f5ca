//! Sizes and rates as people write and read them. Sizes are binary (`1m` = 1 MiB = 1048576); rates are
//! decimal (GB/s = 10^9 bytes a second) and say so.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// The unit of checksums and of O_DIRECT alignment, in bytes. One CRC-32C covers one unit.
pub const UNIT: usize = 4096;

/// A size in bytes. Parses `4096`, `256k`, `4m`, `16g`, `2t` in either case, with an optional `b` or
/// `ib` at the end; prints the largest unit that divides it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a size could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "bad size {input:?}: {reason}; write a whole number with k, m, g or t, such as 256k or 4m (binary: 1m = 1048576)"
)]
pub struct BadSize {
    input: String,
    reason: &'static str,
}

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(s: &str) -> Result<Self, BadSize> {
        let bad = |reason| BadSize { input: s.to_owned(), reason };
        let text = s.trim().to_ascii_lowercase();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        if number.is_empty() {
            return Err(bad("no digits"));
        }
        let number: u64 = number.parse().map_err(|_| bad("number too large"))?;
        let shift = match suffix.trim_end_matches('b').trim_end_matches('i') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            "p" => 50,
            _ => return Err(bad("unknown unit")),
        };
        number.checked_mul(1 << shift).map(ByteSize).ok_or_else(|| bad("number too large"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(50, "p"), (40, "t"), (30, "g"), (20, "m"), (10, "k")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}
impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// For `#[serde(serialize_with)]` of a duration in JSON: seconds, as every field whose name ends in `_s`.
pub fn as_seconds<S: serde::Serializer>(duration: &std::time::Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(duration.as_secs_f64())
}

/// Milliseconds, as some messages carry them, in seconds.
pub fn seconds_of_ms(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// A size for people: three figures in the largest binary unit, such as `1.50 GiB`.
pub fn human_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", units[unit]) }
}

/// A rate in decimal GB/s, such as `1.234 GB/s`.
pub fn gb_per_second(bytes: u64, elapsed: std::time::Duration) -> f64 {
    bytes as f64 / 1e9 / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_round_trip() {
        for (text, bytes) in
            [("4096", 4096), ("1m", 1 << 20), ("256K", 256 << 10), ("16GiB", 16 << 30), ("3kb", 3072)]
        {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        for n in [0, 1, 1023, 1024, 3 << 20, 5 << 40, (1 << 20) + 1] {
            assert_eq!(ByteSize(n).to_string().parse::<ByteSize>().unwrap().0, n);
        }
    }

    #[test]
    fn bad_sizes_name_the_input() {
        for text in ["", "m", "4x", "-1", "1.5g", "99999999999999999999", "20000p"] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
