//! What stands in where a plan needs something and nothing is named: files for devices, loopback addresses for
//! pairs, or testbeds in network namespaces, a small cluster of the run's own for client nodes. All of it lies in the results directory, and is gone
//! when the run ends.

mod cluster;
mod command;

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
};

use base::AlignedBuf;

use crate::{
    engine::EngineKind,
    plan::{Params, Plan, Series},
    targets::{Device, Pair, Side, Targets, disk_name},
    testbed::{self, BitRate, Join, Spec, Testbed},
};
pub use cluster::{Cluster, ClusterSpec, capacity};
pub use command::StandInError;
use command::run;

/// Parameters that say what stands in.
pub const KEYS: [&str; 11] = [
    "links",
    "clients",
    "policy",
    "mtu",
    "speed",
    "block",
    "pagepool",
    "transport",
    "pdisks",
    "cpus",
    "memory",
];
/// Bytes of a file that stands in for a device.
const FILE_BYTES: u64 = 128 << 20;
/// Loopback pairs.
const PAIRS: u32 = 4;

/// Files in the results directory that will stand in for devices; they are filled when they are first used.
pub fn files(results: &Path, count: u32) -> Vec<Device> {
    let existing = results.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let disk = fs::metadata(existing).ok().and_then(|meta| disk_name(meta.dev()));
    let disk = disk.unwrap_or_else(|| "unknown".into());
    let file = |n| Device {
        path: results.join("work").join(format!("disk{n}")),
        writable: true,
        size: FILE_BYTES,
        kind: format!("file on {disk}"),
        disk: disk.clone(),
        file: true,
    };
    (1..=count).map(file).collect()
}

/// Fills those of the devices that are files of the run's own and not there yet.
pub fn fill_files(work: &Path, devices: &[Device]) -> Result<(), StandInError> {
    for device in devices.iter().filter(|device| device.path.starts_with(work)) {
        if fs::metadata(&device.path).map(|m| m.len()).unwrap_or_default() != FILE_BYTES {
            fill(&device.path).map_err(|source| StandInError::Fill { path: device.path.clone(), source })?;
        }
    }
    Ok(())
}

/// Loopback addresses.
pub fn pairs() -> Vec<Pair> {
    let side = |n| Side { namespace: None, address: format!("127.0.0.{n}") };
    (1..=PAIRS).map(|n| Pair { client: side(n), server: side(n) }).collect()
}

/// Reading what was only allocated would not touch the disk.
fn fill(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    let mut buffer = AlignedBuf::zeroed(1 << 20);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for offset in (0..FILE_BYTES).step_by(buffer.len()) {
        for word in buffer.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all_at(&buffer, offset)?;
    }
    file.sync_all()
}

/// Bytes that what stands in for a series may take of the results directory's disk.
pub fn bytes(plan: &Plan, series: &Series, targets: &Targets, results: &Path) -> u64 {
    let files = targets.devices.iter().filter(|device| device.path.starts_with(results)).count() as u64;
    let wanted = targets.dirs.is_empty() && targets.agents.addrs.is_empty();
    let cluster = ClusterSpec::of(plan, series).filter(|_| wanted);
    files * FILE_BYTES + cluster.map_or(0, |cluster| cluster.bytes())
}

/// What a series uses, for people: what was named, or what will stand in. `results` is the results directory.
pub fn touches(plan: &Plan, series: &Series, targets: &Targets, results: &Path) -> String {
    let speed = |mbit: u64| format!("{mbit} Mbit/s");
    let names = |paths: Vec<String>, what: &str| match paths.len() {
        0..4 => paths.join(", "),
        many => format!("{many} {what}, {} first", paths[0]),
    };
    if series.engine.uses_pairs() {
        let bed = BedSpec::of(&series.set).filter(|_| rustix::process::geteuid().is_root());
        return match bed.filter(|_| targets.pairs_stand_in) {
            Some(bed) => format!(
                "testbed: clients {}, links of each {}, {} each",
                bed.clients,
                bed.links,
                speed(bed.speed_mbit)
            ),
            None => {
                let pair = |pair: &Pair| format!("{}={}", pair.client.address, pair.server.address);
                names(targets.pairs.iter().map(pair).collect(), "pairs")
            }
        };
    }
    if !targets.agents.addrs.is_empty() {
        return names(targets.agents.addrs.clone(), "agents");
    }
    if series.engine == EngineKind::Fio {
        let own = targets.devices.iter().filter(|device| device.path.starts_with(results)).count();
        return match own {
            0 => names(targets.devices.iter().map(|d| d.path.display().to_string()).collect(), "devices"),
            files => format!("{files} files in the results directory"),
        };
    }
    match ClusterSpec::of(plan, series).filter(|_| targets.dirs.is_empty()) {
        Some(ClusterSpec { speed_mbit, mounts, hosts, .. }) => {
            let each = if hosts { " each, on hosts of their own" } else { "" };
            let speed = speed_mbit.map_or(String::new(), |s| format!(", {}{each}", speed(s)));
            format!("own cluster: mounts {mounts}{speed}")
        }
        None if targets.dirs.is_empty() => "the results directory".into(),
        None => names(targets.dirs.iter().map(|dir| dir.display().to_string()).collect(), "directories"),
    }
}

/// What a testbed of the run's own shall be; it stands in for the ports of several hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BedSpec {
    /// Hosts that are clients; one more is the server.
    pub clients: u8,
    /// Links of each host.
    pub links: u8,
    /// Mbit/s of each link.
    pub speed_mbit: u64,
    /// ECMP with this hash policy; without, each link is a network of its own.
    pub policy: Option<u8>,
    /// MTU of the links.
    pub mtu: Option<u64>,
}

impl BedSpec {
    /// What a series' parameters ask for; `None` if they ask for none.
    pub fn of(params: &Params) -> Option<BedSpec> {
        let number = |key: &str| params.get(key).and_then(|value| value.parse::<u64>().ok());
        Some(BedSpec {
            clients: number("clients").unwrap_or(1) as u8,
            links: number("links")? as u8,
            speed_mbit: number("speed").unwrap_or(1000),
            policy: number("policy").map(|policy| policy as u8),
            mtu: number("mtu"),
        })
    }
}

/// A testbed that stands in, with its pairs and the links that connections should spread over.
pub struct Bed {
    /// What it is.
    pub spec: BedSpec,
    /// One for each link where links are networks of their own; else one for each client.
    pub pairs: Vec<Pair>,
    /// The first client's links.
    pub links: Vec<String>,
    _scoped: testbed::Scoped,
}

impl Bed {
    /// Brings it up; needs root.
    pub fn up(spec: BedSpec) -> Result<Bed, StandInError> {
        let join = spec.policy.map_or(Join::Subnets, |policy| Join::Ecmp { policy });
        let rate = BitRate(spec.speed_mbit * 1_000_000);
        let wanted = Spec { hosts: spec.clients + 1, links: spec.links, rate, join, ..Spec::default() };
        let bed = Testbed::scoped(wanted)?;
        let (Some(server), Some(first)) = (bed.hosts.last(), bed.hosts.first()) else {
            return Err(StandInError::Command { command: "testbed".into(), why: "it has no hosts".into() });
        };
        let side = |host: &testbed::Host, n: usize| {
            Some(Side { namespace: Some(host.netns.clone()), address: host.addrs.get(n)?.to_string() })
        };
        let clients = &bed.hosts[..bed.hosts.len() - 1];
        let pairs = clients
            .iter()
            .flat_map(|host| (0..host.addrs.len()).map(move |n| (host, n)))
            .filter_map(|(host, n)| Some(Pair { client: side(host, n)?, server: side(server, n)? }))
            .collect();
        let devices: Vec<String> = (1..=spec.links).map(|n| format!("l{n}")).collect();
        if let Some(mtu) = spec.mtu {
            for (host, device) in bed.hosts.iter().flat_map(|h| devices.iter().map(move |d| (h, d))) {
                let mtu = mtu.to_string();
                run(Command::new("ip").args(["-n", &host.netns, "link", "set", device, "mtu", &mtu]))?;
            }
        }
        let links = devices.iter().map(|device| format!("{}/{device}", first.netns)).collect();
        Ok(Bed { spec, pairs, links, _scoped: bed })
    }
}
