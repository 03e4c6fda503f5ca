//! What stands in where a plan needs something and nothing is named: files for devices, loopback addresses for
//! pairs, or testbeds in network namespaces, a small cluster of the run's own for client nodes. All of it lies in the results directory, and is gone
//! when the run ends.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use base::{AlignedBuf, ByteSize};
use thiserror::Error;

use crate::{
    engine::{EngineKind, workload_bytes},
    observe::Watched,
    plan::{Params, Plan, Series, Step},
    removal::{self, REMOVE_MAX},
    targets::{Device, Pair, Side, Targets, disk_name},
    testbed::{self, BitRate, Join, Spec, Testbed, TestbedError},
};

/// Parameters that say what stands in.
pub const KEYS: [&str; 9] =
    ["links", "clients", "policy", "mtu", "speed", "block", "pagepool", "transport", "pdisks"];
/// Bytes of a file that stands in for a device.
const FILE_BYTES: u64 = 128 << 20;
/// Loopback pairs.
const PAIRS: u32 = 4;
/// Burst of the speed limit in bytes: several of the largest packets.
const BURST: u32 = 512 << 10;

/// Why nothing can stand in.
#[derive(Debug, Error)]
pub enum StandInError {
    /// A file could not be made.
    #[error("cannot fill {path}")]
    Fill {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A testbed could not be made.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A command failed.
    #[error("{command}: {why}")]
    Command {
        /// As typed.
        command: String,
        /// What it said.
        why: String,
    },
}

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
        Some(ClusterSpec { speed_mbit, mounts, .. }) => {
            format!(
                "own cluster: mounts {mounts}{}",
                speed_mbit.map_or(String::new(), |s| ", ".to_owned() + &speed(s))
            )
        }
        None if targets.dirs.is_empty() => "the results directory".into(),
        None => names(targets.dirs.iter().map(|dir| dir.display().to_string()).collect(), "directories"),
    }
}

fn run(command: &mut Command) -> Result<Output, StandInError> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let failed = |why: String| StandInError::Command { command: shown.clone(), why };
    let output = command.stdin(std::process::Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    Ok(output)
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

/// Mounts of a cluster of the run's own at most: each is a process with a page pool of its own.
const MOUNTS_MAX: u32 = 8;

/// What a cluster of the run's own shall be; it stands in for client nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterSpec {
    /// Mbit/s of the network namespace in which all its traffic runs; without root there is no limit.
    pub speed_mbit: Option<u64>,
    /// Mounts, each standing for a client node.
    pub mounts: u32,
    /// Pdisks: three with 2+1p, each on a node of its own, or eight with 4+2p, two on a node.
    pub pdisks: u64,
    /// MiB of each of its pdisks: what the load writes has room.
    pub pdisk_mib: u64,
    /// Block size of its file system, in bytes.
    pub block: u64,
    /// Page pool of each mount, in bytes; `None` is the tunable's default.
    pub pagepool: Option<u64>,
    /// How requests come from the kernel; `None` is the mount's own choice.
    pub transport: Option<String>,
}

/// Block size where a series names none.
const BLOCK: u64 = 1 << 20;
/// Pdisks where a series names no number.
const PDISKS: u64 = 3;
/// MiB of a pdisk beside what the load writes: its log, and files that are gone but not yet freed.
const PDISK_MIB: u64 = 1024;
/// Where the metrics of its first process are, in a network namespace of its own.
const METRICS: u16 = 9100;

impl ClusterSpec {
    /// What a series needs; `None` if it needs none.
    pub fn of(plan: &Plan, series: &Series) -> Option<ClusterSpec> {
        let number = |key: &str| series.set.get(key).and_then(|value| value.parse::<u64>().ok());
        let speed = number("speed");
        let most = plan.steps.most().unwrap_or(1);
        let mounts = match series.engine {
            EngineKind::Perf | EngineKind::Analytics if plan.step == Step::Nodes => most,
            EngineKind::Metadata if plan.step == Step::Nodes => most,
            EngineKind::Perf | EngineKind::Metadata => number("clients").unwrap_or(1) as u32,
            EngineKind::Writers if speed.is_some() => {
                most.div_ceil(number("per_client").unwrap_or(10) as u32)
            }
            _ => return None,
        };
        let speed_mbit = speed.filter(|_| rustix::process::geteuid().is_root());
        let size =
            |key: &str| series.set.get(key).and_then(|v| v.parse::<ByteSize>().ok()).map_or(0, |s| s.0);
        let files = if series.engine == EngineKind::Perf { mounts } else { most };
        let mut written = (size("amount") + size("file")) * u64::from(files);
        if series.engine == EngineKind::Analytics {
            written += workload_bytes(&series.set) * u64::from(most);
        }
        let pdisks = number("pdisks").unwrap_or(PDISKS);
        // Two of three strips are data.
        let pdisk_mib = PDISK_MIB + (written / (pdisks * 2 / 3)).div_ceil(1 << 20);
        let bytes = |key: &str| Some(size(key)).filter(|bytes| *bytes > 0);
        Some(ClusterSpec {
            speed_mbit,
            mounts: mounts.clamp(1, MOUNTS_MAX),
            pdisks,
            pdisk_mib,
            block: bytes("block").unwrap_or(BLOCK),
            pagepool: bytes("pagepool"),
            transport: series.set.get("transport").cloned(),
        })
    }
    /// What it may take of the results directory's disk, in bytes.
    fn bytes(&self) -> u64 {
        (self.pdisks * self.pdisk_mib) << 20
    }
}

/// A cluster of the run's own. With a speed, all its traffic goes over the loopback of a network namespace that is
/// limited to it.
pub struct Cluster {
    /// What it is.
    pub spec: ClusterSpec,
    program: PathBuf,
    dir: PathBuf,
    /// Where it is mounted.
    pub mounts: Vec<PathBuf>,
    /// How its processes are asked what they did; only in a namespace are their ports free for certain.
    pub watched: Option<Watched>,
    namespace: Option<String>,
}

impl Cluster {
    /// Brings it up. On failure nothing is left.
    pub fn up(program: &Path, work: &Path, spec: ClusterSpec) -> Result<Cluster, StandInError> {
        let namespace = spec.speed_mbit.map(|_| format!("ropewalk-lab-{}", std::process::id()));
        let (nodes, each, code) = if spec.pdisks == PDISKS { (3, "1", "2+1p") } else { (4, "2", "4+2p") };
        let names =
            (1..=nodes).map(|n| format!("n{n}")).chain((1..=spec.mounts).map(|n| format!("mount {n}")));
        let names: Vec<String> = ["manager".to_owned()].into_iter().chain(names).collect();
        let cluster = Cluster {
            program: program.to_owned(),
            dir: work.join("cluster"),
            mounts: (1..=spec.mounts).map(|n| work.join(format!("mnt{n}"))).collect(),
            watched: namespace.clone().map(|namespace| Watched {
                namespace,
                port: METRICS,
                names,
                disk: work.to_owned(),
            }),
            namespace,
            spec,
        };
        for mount in &cluster.mounts {
            let made = fs::create_dir_all(mount);
            made.map_err(|source| StandInError::Fill { path: mount.clone(), source })?;
        }
        if let (Some(name), Some(speed)) = (&cluster.namespace, cluster.spec.speed_mbit) {
            run(Command::new("ip").args(["netns", "add", name]))?;
            run(Command::new("ip").args(["-n", name, "link", "set", "lo", "up"]))?;
            let rate = format!("{speed}mbit");
            let burst = BURST.to_string();
            run(Command::new("tc")
                .args(["-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate"])
                .args([rate.as_str(), "burst", burst.as_str(), "latency", "50ms"]))?;
        }
        let metrics = |n: u32| format!("127.0.0.1:{}", u32::from(METRICS) + n);
        let (size, block) = (format!("{}m", cluster.spec.pdisk_mib), cluster.spec.block.to_string());
        let mut up = cluster.ropewalk(&["up", "--no-mount", "--detach", "--pdisks", each, "--code", code]);
        up.args(["--nodes", &nodes.to_string(), "--pdisk-size", &size, "--block-size", &block]);
        if cluster.watched.is_some() {
            up.args(["--metrics", &metrics(0)]);
        }
        run(&mut up)?;
        if let Some(bytes) = cluster.spec.pagepool {
            run(cluster.ropewalk(&["config", "set"]).arg(format!("pagepool={bytes}")))?;
        }
        for (mount, n) in cluster.mounts.iter().zip(nodes + 1..) {
            let mut command = cluster.ropewalk(&["mount"]);
            command.arg("fs1").arg(mount);
            if cluster.watched.is_some() {
                command.args(["--metrics", &metrics(n)]);
            }
            if let Some(transport) = &cluster.spec.transport {
                command.args(["--fuse-transport", transport]);
            }
            run(&mut command)?;
        }
        Ok(cluster)
    }

    /// The cluster's directory, which the command line of each of its processes names.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn ropewalk(&self, words: &[&str]) -> Command {
        let side = Side { namespace: self.namespace.clone(), address: String::new() };
        let mut command = crate::engine::process::command(Some(&side), &self.program.display().to_string());
        command.args(words).arg("--dir").arg(&self.dir);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = run(self.ropewalk(&["down"]).arg("--force"));
        if let Some(name) = &self.namespace {
            let _ = run(Command::new("ip").args(["netns", "delete", name]));
        }
        let _ = removal::tree(&self.dir, REMOVE_MAX);
        for mount in &self.mounts {
            let _ = fs::remove_dir(mount);
        }
    }
}
