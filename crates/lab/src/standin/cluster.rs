//! A small cluster of the run's own that stands in for client nodes. Its mounts share one network namespace whose loopback has the
//! link's speed; those of the mixed analytics workload are each on a host of a testbed, with a link and, where asked, CPUs and memory
//! of its own, and the servers on another one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base::ByteSize;

use super::command::{StandInError, run};
use crate::{
    engine::{EngineKind, process, workload_bytes},
    limits::{Asked, Limits},
    observe::{Process, Watched},
    plan::{Plan, Series, Step},
    removal::{self, REMOVE_MAX},
    targets::{ClientNode, Side},
    testbed::{BitRate, Host, Join, Scoped, Spec, Testbed},
};

/// The fastest link of a testbed, in Mbit/s.
const MBIT_MAX: u64 = 100_000;
/// Burst of the speed limit of a loopback in bytes: several of the largest packets.
const BURST: u32 = 512 << 10;

/// Mounts of a cluster of the run's own at most: each is a process with a page pool of its own.
const MOUNTS_MAX: u32 = 8;

/// What a cluster of the run's own shall be; it stands in for client nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterSpec {
    /// Mbit/s of the link; without root there is no limit.
    pub speed_mbit: Option<u64>,
    /// Whether each mount is on a host of its own with such a link; else all traffic shares one.
    pub hosts: bool,
    /// What each of those hosts may use.
    pub asked: Asked,
    /// Whether three directories with pools of their own are made: DATA, WORK, UTIL.
    pub pools: bool,
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
        let workload = series.engine == EngineKind::Analytics;
        let hosts = workload && speed_mbit.is_some();
        Some(ClusterSpec {
            speed_mbit,
            hosts,
            asked: if hosts { Asked::of(&series.set) } else { Asked::default() },
            pools: workload,
            mounts: mounts.clamp(1, MOUNTS_MAX),
            pdisks,
            pdisk_mib,
            block: bytes("block").unwrap_or(BLOCK),
            pagepool: bytes("pagepool"),
            transport: series.set.get("transport").cloned(),
        })
    }
    /// What it may take of the results directory's disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.pdisks * self.pdisk_mib) << 20
    }
}

/// What its traffic goes over.
enum Network {
    /// The machine's own loopback.
    Machine,
    /// The loopback of a namespace, limited to the speed.
    Loopback(String),
    /// Hosts joined by a switch: one for each mount, the last one for the servers.
    Hosts(Scoped),
}

impl Network {
    fn make(spec: &ClusterSpec) -> Result<Network, StandInError> {
        let Some(speed) = spec.speed_mbit else { return Ok(Network::Machine) };
        if spec.hosts {
            let hosts = spec.mounts as u8 + 1;
            let rate = BitRate(speed.min(MBIT_MAX) * 1_000_000);
            let wanted = Spec { hosts, links: 1, rate, join: Join::Subnets, routed: true, ..Spec::default() };
            let bed = Testbed::scoped(wanted)?;
            let servers = bed.hosts.last().map(|host| host.name.clone()).unwrap_or_default();
            bed.set_rate(&servers, 1, BitRate(servers_mbit(speed, spec.mounts) * 1_000_000))?;
            return Ok(Network::Hosts(bed));
        }
        let name = format!("ropewalk-lab-{}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let limited = || {
            run(Command::new("ip").args(["-n", &name, "link", "set", "lo", "up"]))?;
            let (rate, burst) = (format!("{speed}mbit"), BURST.to_string());
            run(Command::new("tc")
                .args(["-n", &name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate"])
                .args([rate.as_str(), "burst", burst.as_str(), "latency", "50ms"]))
        };
        let made = limited();
        let network = Network::Loopback(name.clone());
        made.map(|_| network).inspect_err(|_| {
            let _ = run(Command::new("ip").args(["netns", "delete", &name]));
        })
    }

    /// The host of the servers.
    fn servers(&self) -> Option<&Host> {
        if let Network::Hosts(bed) = self { bed.hosts.last() } else { None }
    }

    /// The namespace of the servers.
    fn inner(&self) -> Option<String> {
        match self {
            Network::Machine => None,
            Network::Loopback(name) => Some(name.clone()),
            Network::Hosts(_) => self.servers().map(|host| host.netns.clone()),
        }
    }

    /// The namespace of mount `n`, from 0.
    fn of_mount(&self, n: usize) -> Option<String> {
        match self {
            Network::Hosts(bed) => bed.hosts.get(n).map(|host| host.netns.clone()),
            _ => self.inner(),
        }
    }
}

/// The link of the servers is no limit: it is as fast as those of all client nodes together, as far as the kernel's token
/// buckets go.
fn servers_mbit(speed: u64, mounts: u32) -> u64 {
    (speed * u64::from(mounts)).min(MBIT_MAX)
}

/// Mbit/s of a link of a stand-in: `link` as the observer names it, namespace and device. None where it has no limit.
pub fn capacity(plan: &Plan, engine: EngineKind, link: &str, speed: u64) -> Option<u64> {
    let (namespace, device) = link.split_once('/')?;
    if engine != EngineKind::Analytics {
        return namespace.starts_with("ropewalk-").then_some(speed);
    }
    let mounts = plan.steps.most().unwrap_or(1).clamp(1, MOUNTS_MAX);
    let servers = namespace.ends_with(&format!("-h{}", mounts + 1));
    let speed = if servers { servers_mbit(speed, mounts) } else { speed };
    (namespace.starts_with("ropewalk-") && device != "lo").then_some(speed)
}

/// A cluster of the run's own.
pub struct Cluster {
    /// What it is.
    pub spec: ClusterSpec,
    program: PathBuf,
    dir: PathBuf,
    /// Where it is mounted.
    pub mounts: Vec<PathBuf>,
    /// How its processes are asked what they did; only in a namespace are their ports free for certain.
    pub watched: Option<Watched>,
    limits: Vec<Limits>,
    network: Network,
}

/// Directories with pools of their own.
const POOLS: [&str; 3] = ["data", "work", "util"];
/// Starts a program within control groups: those before `--`.
const WITHIN: &str =
    "while [ \"$1\" != -- ]; do echo $$ >\"$1/cgroup.procs\" || exit 1; shift; done; shift; exec \"$@\"";

impl Cluster {
    /// Brings it up. On failure nothing is left.
    pub fn up(program: &Path, work: &Path, spec: ClusterSpec) -> Result<Cluster, StandInError> {
        let network = Network::make(&spec)?;
        let nodes = if spec.pdisks == PDISKS { 3 } else { 4 };
        let mut cluster = Cluster {
            program: program.to_owned(),
            dir: work.join("cluster"),
            mounts: (1..=spec.mounts).map(|n| work.join(format!("mnt{n}"))).collect(),
            watched: watched(&network, nodes, spec.mounts, work),
            limits: Vec::new(),
            network,
            spec,
        };
        for n in 1..=if cluster.spec.asked.is_nothing() { 0 } else { cluster.spec.mounts } {
            cluster.limits.push(Limits::make(cluster.spec.asked, n).map_err(StandInError::Limits)?);
        }
        for mount in &cluster.mounts {
            let made = fs::create_dir_all(mount);
            made.map_err(|source| StandInError::Fill { path: mount.clone(), source })?;
        }
        cluster.start(nodes)?;
        for n in 0..cluster.mounts.len() {
            cluster.mount(n, nodes)?;
        }
        cluster.direct()?;
        Ok(cluster)
    }

    /// Starts its servers.
    fn start(&self, nodes: u32) -> Result<(), StandInError> {
        let (each, code) = if self.spec.pdisks == PDISKS { ("1", "2+1p") } else { ("2", "4+2p") };
        let (size, block) = (format!("{}m", self.spec.pdisk_mib), self.spec.block.to_string());
        let mut up = self.ropewalk(&["up", "--no-mount", "--no-service", "--detach", "--pdisks", each]);
        up.args([
            "--code",
            code,
            "--nodes",
            &nodes.to_string(),
            "--pdisk-size",
            &size,
            "--block-size",
            &block,
        ]);
        if let Some(address) = self.network.servers().and_then(|host| host.addrs.first()) {
            // Not encrypted, as on a loopback.
            up.args(["--listen", &address.to_string(), "--cipher-list", "EMPTY"]);
        }
        if self.watched.is_some() {
            up.args(["--metrics", &metrics(0)]);
        }
        run(&mut up)?;
        if self.spec.speed_mbit.is_some() {
            // What goes by memory goes over no link.
            run(self.ropewalk(&["config", "set"]).arg("transport=tcp"))?;
        }
        if let Some(bytes) = self.spec.pagepool {
            run(self.ropewalk(&["config", "set"]).arg(format!("pagepool={bytes}")))?;
        }
        Ok(())
    }

    /// Mounts it for mount `n`, from 0, on its host and within its limits.
    fn mount(&self, n: usize, nodes: u32) -> Result<(), StandInError> {
        let own = self.ropewalk_in(self.network.of_mount(n), &["mount", "--no-service"]);
        let mut command = match self.limits.get(n) {
            None => own,
            Some(limits) => {
                let mut within = Command::new("sh");
                within.args(["-c", WITHIN, "sh"]).args(limits.groups()).arg("--");
                within.arg(own.get_program()).args(own.get_args());
                within
            }
        };
        command.arg("fs1").arg(&self.mounts[n]);
        if self.watched.is_some() {
            command.args(["--metrics", &metrics(nodes + 1 + n as u32)]);
        }
        if let Some(transport) = &self.spec.transport {
            command.args(["--fuse-transport", transport]);
        }
        run(&mut command).map(drop)
    }

    /// Makes the directories that have pools of their own, all over the same pdisks.
    fn direct(&self) -> Result<(), StandInError> {
        let (Some(first), true) = (self.mounts.first(), self.spec.pools) else { return Ok(()) };
        let code = if self.spec.pdisks == PDISKS { "2+1p" } else { "4+2p" };
        for pool in POOLS {
            let dir = first.join(pool);
            let made = fs::create_dir(&dir);
            made.map_err(|source| StandInError::Fill { path: dir.clone(), source })?;
            let block = self.spec.block.to_string();
            run(&mut self.ropewalk(&["pool", "create", pool, "--code", code, "--block-size", &block]))?;
            // Asked of the mount, which is on the machine.
            let mut set = self.ropewalk_in(self.network.of_mount(0), &["fs", "set-pool"]);
            run(set.arg(&dir).arg(pool))?;
        }
        Ok(())
    }

    /// The client nodes of the workload.
    pub fn nodes(&self) -> Vec<ClientNode> {
        if !self.spec.pools {
            return Vec::new();
        }
        let of = |(n, mount): (usize, &PathBuf)| {
            let link = self.spec.speed_mbit.map(|speed| format!("a link of {speed} Mbit/s"));
            let asked = Some(self.spec.asked.words()).filter(|words| !words.is_empty());
            let own: Vec<String> = [link, asked].into_iter().flatten().collect();
            ClientNode {
                dirs: POOLS.map(|pool| mount.join(pool)).into(),
                namespace: self.network.of_mount(n),
                groups: self.limits.get(n).map(|limits| limits.groups().to_vec()).unwrap_or_default(),
                memory: self.spec.asked.memory,
                what: own.join(", "),
            }
        };
        self.mounts.iter().enumerate().map(of).collect()
    }

    /// The cluster's directory, which the command line of each of its processes names.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn ropewalk(&self, words: &[&str]) -> Command {
        self.ropewalk_in(self.network.inner(), words)
    }

    fn ropewalk_in(&self, namespace: Option<String>, words: &[&str]) -> Command {
        let side = Side { namespace, address: String::new() };
        let mut command = process::command(Some(&side), &self.program.display().to_string());
        command.args(words).arg("--dir").arg(&self.dir);
        command
    }
}

/// The address of the metrics of process `n`.
fn metrics(n: u32) -> String {
    format!("127.0.0.1:{}", u32::from(METRICS) + n)
}

/// How its processes are asked: the manager, the nodes, the mounts.
fn watched(network: &Network, nodes: u32, mounts: u32, work: &Path) -> Option<Watched> {
    let inner = network.inner()?;
    let servers = ["manager".to_owned()].into_iter().chain((1..=nodes).map(|n| format!("n{n}")));
    let servers = servers.map(|name| (name, inner.clone()));
    let of_mount = |n: u32| Some((format!("mount {n}"), network.of_mount(n as usize - 1)?));
    let all = servers.chain((1..=mounts).filter_map(of_mount));
    let one = |((name, namespace), port)| Process { name, namespace, port };
    Some(Watched { processes: all.zip(METRICS..).map(one).collect(), disk: work.to_owned() })
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = run(self.ropewalk(&["down"]).arg("--force"));
        if let Network::Loopback(name) = &self.network {
            let _ = run(Command::new("ip").args(["netns", "delete", name]));
        }
        let _ = removal::tree(&self.dir, REMOVE_MAX);
        for mount in &self.mounts {
            let _ = fs::remove_dir(mount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_nodes_of_the_workload_have_links_of_their_own() {
        let text = crate::builtin::text("analytics-links").unwrap();
        let plan = Plan::parse("analytics-links", text, true).unwrap();
        let of = |link: &str| capacity(&plan, EngineKind::Analytics, link, 400);
        // Two nodes at most in the short form: the third host is the servers'.
        assert_eq!((of("ropewalk-t1-h1/l1"), of("ropewalk-t1-h3/l1")), (Some(400), Some(800)));
        assert_eq!((of("ropewalk-t1-h3/lo"), of("other/l1"), of("eth0")), (None, None, None));
        assert_eq!(servers_mbit(56_000, 4), 100_000);
        let loopback = |link: &str| capacity(&plan, EngineKind::Perf, link, 400);
        assert_eq!((loopback("ropewalk-lab-7/lo"), loopback("other/lo")), (Some(400), None));
        let root = rustix::process::geteuid().is_root();
        let spec = ClusterSpec::of(&plan, &plan.series[0]).unwrap();
        assert_eq!((spec.hosts, spec.mounts, spec.pools), (root, 2, true));
    }
}
