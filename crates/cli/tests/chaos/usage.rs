//! What the cluster's processes use, and whether it grows.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use super::checker::{Class, Violation, violation};
use crate::common::Cluster;

/// What a fault took may be held for so long after it: connections that are closing, and what stands behind them.
const BACK_MAX: Duration = Duration::from_secs(60);

/// What a process uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    descriptors: u64,
    threads: u64,
    resident_kib: u64,
}

impl Usage {
    fn of(pid: i32) -> Option<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Usage { descriptors, threads: number("Threads:")?, resident_kib: number("VmRSS:")? })
    }

    fn has_grown(&self, first: &Usage) -> bool {
        self.descriptors > first.descriptors + 128
            || self.threads > first.threads + 64
            || self.resident_kib > 2 * first.resident_kib + (512 << 10)
    }
}

/// What each process used when it was first seen.
#[derive(Default)]
pub struct Usages(BTreeMap<(String, i32), Usage>);

impl Usages {
    /// Those that live longer than a round, and have grown.
    pub fn grown(&mut self, cluster: &Cluster) -> Vec<Violation> {
        let mut look = || -> Vec<Violation> {
            let grown = |process: (String, i32)| {
                let now = Usage::of(process.1)?;
                let first = *self.0.entry(process.clone()).or_insert(now);
                let text =
                    || format!("{process:?}: {first:?} then, {now:?} {BACK_MAX:?} after all was at rest");
                now.has_grown(&first).then(|| violation(Class::Growth, text()))
            };
            cluster.processes().into_iter().filter_map(grown).collect()
        };
        let end = Instant::now() + BACK_MAX;
        loop {
            let grown = look();
            if grown.is_empty() || Instant::now() > end {
                return grown;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// The most that any process uses now.
pub fn most(cluster: &Cluster) -> String {
    let all: Vec<Usage> = cluster.processes().iter().filter_map(|(_, pid)| Usage::of(*pid)).collect();
    let most = |of: fn(&Usage) -> u64| all.iter().map(of).max().unwrap_or(0);
    format!(
        "{} descriptors, {} threads, {} MiB",
        most(|u| u.descriptors),
        most(|u| u.threads),
        most(|u| u.resident_kib) >> 10
    )
}

/// The machine's load, to be told beside times.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
