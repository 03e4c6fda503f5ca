//! Counters since boot: TCP, UDP, sockets, softirqs, the virtual memory.

use super::reader::{Reader, count};
use crate::facts::Value;

/// Of the many numbers there those that rules look at.
pub(crate) const VMSTAT: &[&str] = &[
    "oom_kill",
    "allocstall_normal",
    "compact_stall",
    "pswpin",
    "pswpout",
    "zone_reclaim_failed",
    "thp_fault_fallback",
];

pub(super) fn read(r: &mut Reader<'_>) {
    for (file, groups) in
        [("proc/net/snmp", &["Tcp", "Udp", "Ip"][..]), ("proc/net/netstat", &["TcpExt", "IpExt"][..])]
    {
        tables(r, file, groups);
    }
    let file = "proc/net/sockstat";
    if let Some(text) = r.tree.text(file)
        && let Some(line) = text.lines().find_map(|line| line.strip_prefix("TCP:"))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let (["mem" | "inuse" | "orphan" | "tw"], Some(value)) = ([pair[0]], count(pair[1])) {
                r.put(["sockets", "tcp", pair[0]], value, file);
            }
        }
    }
    softnet(r);
    let file = "proc/vmstat";
    let text = r.tree.text(file).unwrap_or_default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if VMSTAT.contains(&key)
            && let Some(value) = count(value)
        {
            r.put(["vmstat", key], value, file);
        }
    }
}

/// Pairs of lines: `Tcp: Name Name ...`, `Tcp: 1 2 ...`.
fn tables(r: &mut Reader<'_>, file: &str, groups: &[&str]) {
    let Some(text) = r.tree.text(file) else { return };
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        let (Some((group, names)), Some((same, values))) = (pair[0].split_once(':'), pair[1].split_once(':'))
        else {
            continue;
        };
        if group != same || !groups.contains(&group) {
            continue;
        }
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if name.starts_with(|c: char| c.is_ascii_alphabetic())
                && let Ok(value) = value.parse::<i64>()
            {
                r.put(["stat", group, name], value, file);
            }
        }
    }
}

/// A line for each CPU, of hexadecimal columns: packets, dropped because the backlog was full, budget used up.
fn softnet(r: &mut Reader<'_>) {
    let file = "proc/net/softnet_stat";
    let Some(text) = r.tree.text(file) else { return };
    let mut sums = [0u64; 3];
    for line in text.lines() {
        for (sum, column) in sums.iter_mut().zip(line.split_whitespace()) {
            let Ok(number) = u64::from_str_radix(column, 16) else { return };
            *sum = sum.saturating_add(number);
        }
    }
    for (name, sum) in ["processed", "dropped", "squeezed"].into_iter().zip(sums) {
        r.put(["softnet", name], Value::from(sum), file);
    }
}
