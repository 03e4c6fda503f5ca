//! In what machines differ: of two everything, of several the odd one out, which is the commonest fault of a cluster.
//! What differs from minute to minute, or is of one machine by nature, does not count.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::facts::{Facts, Path, Value};

/// Facts that differ from minute to minute, or always.
const VOLATILE: &[&str] = &[
    "stat.",
    "log.",
    "vmstat.",
    "softnet.",
    "sockets.",
    "pressure.",
    "cpu.time.",
    "cpu.ticks.",
    "cpu.now.",
    "clock.offset_us",
    "host.name",
    "host.uptime_",
    "cgroup.throttled",
    "memory.available",
    "memory.swap_free",
    "memory.dirty",
    "memory.committed",
    "memory.slab_unreclaimable",
    "memory.page_tables",
    "sysctl.fs.aio-nr",
    "sysctl.net.netfilter.nf_conntrack_count",
];

/// What is counted of an interface beside what is set: names that begin alike.
const SET: [&str; 6] = ["rx_queues", "tx_queues", "rx_checksum", "tx_checksum", "rx_usecs", "rx_frames"];

/// Facts of one machine by nature: its disks, mounts, slots, limits of the one who asked.
const OWN: &[&str] =
    &["fs.", "pcie.", "bridge.", "slot.", "partition.", "limits.", "cgroup.", "probe.", "host.cmdline"];

/// Whether a fact differs from minute to minute, or always.
pub fn is_volatile(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default();
    VOLATILE.iter().any(|volatile| path.starts_with(volatile))
        || (path.starts_with("net.")
            && (last.starts_with("rx_") || last.starts_with("tx_"))
            && !SET.contains(&last)
            && last != "tx_queue_len")
        || (path.starts_with("block.") && ["requests", "requests_ms", "wait_us"].contains(&last))
        || (path.starts_with("net.") && last.ends_with("_rate"))
        || (path.starts_with("nvme.") && ["temperature_c", "hot_minutes"].contains(&last))
        || (path.starts_with("numa.")
            && (last == "free"
                || last.contains("numa_")
                || last.ends_with("_node")
                || last.ends_with("_hit")))
}

/// A fact in which machines differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// Its name.
    pub path: String,
    /// What most have; none where no value is more than half of them's.
    pub usual: Option<String>,
    /// The others, with what they have; all of them where nothing is usual.
    pub odd: Vec<(String, Option<String>)>,
}

/// In what machines of one kind differ, each by its name. A device that only some have is no difference: each machine has
/// its own; one that all have is compared.
pub fn odd_ones(machines: &[(String, Facts)]) -> Vec<Difference> {
    let paths: BTreeSet<&Path> =
        machines.iter().flat_map(|(_, facts)| facts.iter().map(|(path, _)| path)).collect();
    let counts = |path: &&&Path| {
        let text = path.as_str();
        !is_volatile(text) && !OWN.iter().any(|own| text.starts_with(own)) && is_everywhere(machines, path)
    };
    paths.iter().filter(counts).filter_map(|path| difference(machines, path)).collect()
}

/// Whether every machine has what a fact is of: the device of `net.eth0.mtu`; of other facts the machine itself.
fn is_everywhere(machines: &[(String, Facts)], path: &Path) -> bool {
    let names: Vec<&str> = path.names().take(2).collect();
    let of_device = ["net", "block", "bond", "nvme", "numa", "fast_port", "md", "irq"].contains(&names[0]);
    !of_device || machines.iter().all(|(_, facts)| !facts.nodes(&names.join(".")).is_empty())
}

fn difference(machines: &[(String, Facts)], path: &Path) -> Option<Difference> {
    let value = |facts: &Facts| facts.value(path.as_str()).map(Value::to_string);
    let mut groups: BTreeMap<Option<String>, usize> = BTreeMap::new();
    machines.iter().for_each(|(_, facts)| *groups.entry(value(facts)).or_default() += 1);
    if groups.len() < 2 {
        return None;
    }
    let usual = groups.into_iter().find(|(_, count)| count * 2 > machines.len()).map(|(value, _)| value);
    let odd = machines.iter().map(|(name, facts)| (name.clone(), value(facts)));
    let odd: Vec<_> = odd.filter(|(_, value)| usual.as_ref() != Some(value)).collect();
    Some(Difference {
        path: path.to_string(),
        usual: usual.map(|value| value.unwrap_or_else(|| "-".to_owned())),
        odd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    fn machine(name: &str, facts: &[(&str, i64)]) -> (String, Facts) {
        let mut all = Facts::new();
        facts.iter().for_each(|(path, value)| all.insert(*path, *value, Origin::default()));
        (name.to_owned(), all)
    }

    #[test]
    fn the_odd_one_is_named() {
        let alike = [("sysctl.a", 1), ("net.eth0.mtu", 9000), ("stat.x", 1), ("net.own.mtu", 1)];
        let machines = [
            machine("one", &alike),
            machine("two", &[("sysctl.a", 1), ("net.eth0.mtu", 1500), ("stat.x", 2)]),
            machine("three", &[("sysctl.a", 1), ("net.eth0.mtu", 9000), ("stat.x", 3)]),
        ];
        let found = odd_ones(&machines);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].path.as_str(), found[0].usual.as_deref()), ("net.eth0.mtu", Some("9000")));
        assert_eq!(found[0].odd, [("two".to_owned(), Some("1500".to_owned()))]);
        // Of two none is usual; what one does not have is told as well.
        let two =
            odd_ones(&[machine("a", &[("sysctl.a", 1), ("sysctl.b", 1)]), machine("b", &[("sysctl.a", 2)])]);
        assert_eq!(two.len(), 2);
        assert_eq!((two[0].usual.as_deref(), two[0].odd.len()), (None, 2));
        assert_eq!(two[1].odd[1], ("b".to_owned(), None));
        // Mounts and PCIe switches are a machine's own, though all have such.
        let own = |n| [("fs.1.full_percent", n), ("bridge.0000:11:00/0.mbit", n)];
        assert_eq!(odd_ones(&[machine("a", &own(1)), machine("b", &own(2))]), vec![]);
        assert_eq!((odd_ones(&[]), odd_ones(&machines[..1])), (vec![], vec![]));
    }

    #[test]
    fn counters_do_not_count_and_settings_do() {
        for path in [
            "net.e.rx_bytes",
            "net.e.tx_dropped",
            "numa.0.free",
            "numa.1.numa_miss",
            "log.oom.count",
            "block.a.requests",
            "host.uptime_ms",
            "net.e.collisions_rate",
            "cpu.now.steal",
        ] {
            assert!(is_volatile(path), "{path}");
        }
        for path in
            ["net.e.tx_queue_len", "net.e.rx_queues", "net.e.rx_checksum", "net.e.mtu", "numa.0.memory"]
        {
            assert!(!is_volatile(path), "{path}");
        }
    }
}
