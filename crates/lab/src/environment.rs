//! Where a run was made: everything that another reader needs to judge its figures. What cannot be seen is left
//! out, never guessed.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

/// The environment of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of Ropewalk.
    pub version: String,
    /// The command line of the run.
    pub command: Vec<String>,
    /// Host name.
    pub host: String,
    /// Drawn anew by each boot of each machine: agents that have the same are on one machine.
    pub boot: String,
    /// The network namespace: agents on one machine that have the same see the same links.
    pub network: String,
    /// Kernel release and version.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// CPUs online.
    pub cpus: u32,
    /// CPUs this run may use.
    pub cpus_allowed: Vec<u32>,
    /// NUMA nodes with memory; 0 where the kernel tells of none.
    pub numa_nodes: u32,
    /// How devices' addresses are translated: groups of the IOMMU by the kind of their domain (DMA, DMA-FQ, identity); empty
    /// where it is not used.
    pub iommu: BTreeMap<String, u32>,
    /// Bytes of memory.
    pub memory: u64,
    /// Network interfaces: speed in Mbit/s and MTU, where told.
    pub links: BTreeMap<String, String>,
    /// Block devices: bytes, scheduler, queue depth, model.
    pub disks: BTreeMap<String, String>,
    /// Kernel settings that matter to the figures.
    pub settings: BTreeMap<String, String>,
    /// Tunables of Ropewalk that differ from their defaults.
    pub tunables: BTreeMap<String, String>,
    /// Programs used, with their versions.
    pub programs: BTreeMap<String, String>,
    /// Load of the machine over one minute when the run began.
    pub load: f64,
}

const SETTINGS: &[&str] = &[
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/fib_multipath_hash_policy",
    "vm/dirty_ratio",
    "vm/dirty_background_ratio",
    "vm/swappiness",
    "fs/fuse/max_pages_limit",
    "kernel/io_uring_disabled",
];

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Groups by the kind of their domain.
fn iommu(groups: &Path) -> BTreeMap<String, u32> {
    let mut kinds = BTreeMap::new();
    for group in names(groups) {
        let kind = text(groups.join(group).join("type"));
        *kinds.entry(if kind.is_empty() { "not told".to_owned() } else { kind }).or_default() += 1;
    }
    kinds
}

impl Environment {
    /// Reads it.
    pub fn read() -> Environment {
        let cpuinfo = text("/proc/cpuinfo");
        let value = |key: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let meminfo = text("/proc/meminfo");
        let memory = meminfo.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
        let link = |name: &String| {
            let of = |what: &str| text(format!("/sys/class/net/{name}/{what}"));
            let speed = of("speed").parse::<i64>().ok().filter(|speed| *speed > 0);
            let speed = speed.map_or("speed not told".to_owned(), |speed| format!("{speed} Mbit/s"));
            (name.clone(), format!("{speed}, MTU {}, {}", of("mtu"), of("operstate")))
        };
        let disk = |name: &String| {
            let of = |what: &str| text(format!("/sys/block/{name}/{what}"));
            let sectors = of("size").parse::<u64>().ok().filter(|sectors| *sectors > 0)?;
            let size = base::units::human_size(sectors * 512);
            let (model, scheduler) = (of("device/model"), of("queue/scheduler"));
            let requests = of("queue/nr_requests");
            let model = if model.is_empty() { String::new() } else { format!("{model}, ") };
            Some((name.clone(), format!("{model}{size}, scheduler {scheduler}, {requests} requests")))
        };
        Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            host: text("/proc/sys/kernel/hostname"),
            boot: text("/proc/sys/kernel/random/boot_id"),
            network: fs::read_link("/proc/self/ns/net").unwrap_or_default().display().to_string(),
            kernel: format!("{} {}", text("/proc/sys/kernel/osrelease"), text("/proc/sys/kernel/version")),
            cpu: value("model name").or_else(|| value("cpu")).unwrap_or_default(),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count() as u32,
            cpus_allowed: crate::observe::allowed_cpus().into_iter().collect(),
            numa_nodes: names("/sys/devices/system/node")
                .iter()
                .filter(|name| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok()))
                .count() as u32,
            iommu: iommu(Path::new("/sys/kernel/iommu_groups")),
            memory: memory.unwrap_or_default() * 1024,
            links: names("/sys/class/net").iter().map(link).collect(),
            disks: names("/sys/block").iter().filter_map(disk).collect(),
            settings: SETTINGS
                .iter()
                .map(|name| (name.replace('/', "."), text(Path::new("/proc/sys").join(name))))
                .filter(|(_, value)| !value.is_empty())
                .map(|(name, value)| (name, value.replace('\t', " ")))
                .collect(),
            tunables: BTreeMap::new(),
            programs: BTreeMap::new(),
            load: text("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or_default(),
        }
    }

    /// Notes the version of a program.
    pub fn add_program(&mut self, name: &str) {
        if let Ok(output) = std::process::Command::new(name).arg("--version").output() {
            let said = String::from_utf8_lossy(&output.stdout);
            self.programs.insert(name.to_owned(), said.lines().next().unwrap_or_default().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_the_iommu_are_counted_by_the_kind_of_their_domain() {
        let place = tempfile::tempdir().unwrap();
        for (group, kind) in [("0", "DMA-FQ\n"), ("1", "identity\n"), ("2", "DMA-FQ\n"), ("3", "")] {
            fs::create_dir(place.path().join(group)).unwrap();
            fs::write(place.path().join(group).join("type"), kind).unwrap();
        }
        let found = iommu(place.path());
        let found: Vec<_> = found.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(found, [("DMA-FQ", 2), ("identity", 1), ("not told", 1)]);
        assert!(iommu(&place.path().join("none")).is_empty());
    }
}
