//! Figures for people: latencies, shares, amounts, rates.

use std::collections::BTreeMap;

use analytics::{quantile_bucket, quantile_ns};
use base::{
    ByteSize,
    stats::{self, UTILISATION_BUCKETS},
};

/// Nanoseconds for people, never shorter than they are: what is shown of a bucket's beginning lies in the bucket.
pub fn latency(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let whole = ns / unit;
    let decimals = match whole {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let scale = 10u64.pow(decimals);
    let up = (u128::from(ns) * u128::from(scale)).div_ceil(u128::from(unit)) as f64 / scale as f64;
    format!("{up:.*}{name}", decimals as usize)
}

/// A value of an ordered dimension for people, and as a query takes it: where its bucket begins.
pub fn begins(dimension: &str, bucket: u64) -> String {
    match dimension {
        "latency" => latency(stats::latency_start(usize::try_from(bucket).unwrap_or(usize::MAX))),
        "utilisation" => format!("{}%", bucket.min(UTILISATION_BUCKETS) * (100 / UTILISATION_BUCKETS)),
        _ if bucket == 0 => "none".to_owned(),
        "offset" if bucket == 1 => "0".to_owned(),
        "offset" => ByteSize(1 << (bucket - 2).min(63)).to_string(),
        _ => ByteSize(1 << (bucket - 1).min(63)).to_string(),
    }
}

/// What a share `q` of a distribution did not exceed, for people: the end of its bucket.
pub fn quantile(dimension: &str, buckets: &BTreeMap<u8, u64>, q: f64) -> String {
    let found = match dimension {
        "utilisation" => quantile_bucket(buckets, q).map(|bucket| begins(dimension, u64::from(bucket) + 1)),
        _ => quantile_ns(buckets, q).map(latency),
    };
    found.unwrap_or_else(|| "-".to_owned())
}

/// A figure of that unit for people.
pub fn amount(unit: &str, value: f64) -> String {
    figure(unit, value, value.fract() == 0.0)
}

/// The same; `whole`: without decimals, if it is small.
fn figure(unit: &str, value: f64, whole: bool) -> String {
    let (scale, name) = match value.abs() {
        v if v >= 1e12 => (1e12, " T"),
        v if v >= 1e9 => (1e9, " G"),
        v if v >= 1e6 => (1e6, " M"),
        v if v >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let decimals = match value.abs() {
        _ if whole && scale == 1.0 => 0,
        v if v > 0.0 && v < 1.0 => 2,
        _ => 1,
    };
    let figure = format!("{:.decimals$}{name}", value / scale);
    if unit == "bytes" { format!("{figure}{}B", if name.is_empty() { " " } else { "" }) } else { figure }
}

/// A figure a second, for people.
pub fn rate(unit: &str, value: f64) -> String {
    format!("{}/s", figure(unit, value, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_for_people() {
        assert_eq!(
            [900, 1_500, 99_949, 786_432, 1_048_576].map(latency),
            ["900ns", "1.50us", "100.0us", "787us", "1.05ms"]
        );
        assert_eq!(latency(3 << 30), "3.23s");
        assert_eq!(amount("operations", 1234.0), "1234");
        assert_eq!(amount("operations", 12_345.0), "12.3 k");
        assert_eq!(amount("bytes", 3.0 * 1024.0), "3072 B");
        assert_eq!(rate("bytes", 2.5e9), "2.5 GB/s");
        assert_eq!(rate("operations", 0.25), "0.25/s");
    }
}
