//! CPU time of the processes that take part, from /proc: what one GB costs, in client and servers.

use std::{collections::BTreeMap, fs};

use base::proc_stat;
use serde::Serialize;

use crate::cpu_ticks;

/// A process that takes part in the job besides this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// `client` (a mount's process) or `server`.
    pub role: &'static str,
    /// Its id.
    pub pid: u32,
}

/// Role of this process and of mounts.
pub const CLIENT: &str = "client";
/// Role of NSD servers and manager.
pub const SERVER: &str = "server";

/// CPU-seconds (user and system) of the roles.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Cpu {
    /// This process and the mount's.
    #[serde(rename = "client_s")]
    pub client_seconds: f64,
    /// The servers; `None` where it is not known who they are.
    #[serde(rename = "server_s")]
    pub server_seconds: Option<f64>,
}

/// CPU time at one moment.
pub struct Sample(BTreeMap<u32, f64>);

/// Reads the CPU time of this process and of `others`; one that is gone counts no more.
pub fn sample(others: &[Process]) -> Sample {
    let own = std::process::id();
    let pids = others.iter().map(|p| p.pid).chain([own]);
    Sample(pids.filter_map(|pid| Some((pid, seconds(pid)?))).collect())
}

/// CPU time between two samples.
pub fn between(others: &[Process], from: &Sample, to: &Sample) -> Cpu {
    let used = |pid: u32| match (from.0.get(&pid), to.0.get(&pid)) {
        (Some(from), Some(to)) => (to - from).max(0.0),
        _ => 0.0,
    };
    let of = |role| others.iter().filter(|p| p.role == role).map(|p| used(p.pid)).sum::<f64>();
    let has_servers = others.iter().any(|p| p.role == SERVER);
    Cpu {
        client_seconds: used(std::process::id()) + of(CLIENT),
        server_seconds: has_servers.then(|| of(SERVER)),
    }
}

/// User and system time of a process. `schedstat` counts nanoseconds but only of the first thread, so
/// that the ticks of `stat` are taken.
fn seconds(pid: u32) -> Option<f64> {
    proc_stat::cpu_seconds(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Busy and all time of the machine so far, from /proc/stat: user, system, idle, wait, in ticks.
pub fn machine() -> Option<[u64; 4]> {
    let [user, nice, system, idle, wait, irq, soft, _] = cpu_ticks::read().0?;
    Some([user + nice, system + irq + soft, idle, wait])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_is_seen_and_the_gone_count_nothing() {
        let gone = [Process { role: SERVER, pid: u32::MAX }];
        let before = sample(&gone);
        let mut x = 1u64;
        while between(&gone, &before, &sample(&gone)).client_seconds < 0.05 {
            (0..1_000_000).for_each(|i| x = x.wrapping_mul(31).wrapping_add(i));
        }
        assert_ne!(x, 0);
        assert_eq!(between(&gone, &before, &sample(&gone)).server_seconds, Some(0.0));
        assert_eq!(between(&[], &before, &sample(&[])).server_seconds, None);
    }
}
