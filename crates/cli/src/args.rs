//! The command line: what can be asked, with examples. Nothing is done here.

use std::{ffi::OsString, net::SocketAddr, num::NonZeroU32, path::PathBuf};

use base::ByteSize;
use clap::{Args, Parser, Subcommand, ValueHint};

use crate::lab_run;

/// A parallel file system, a lab that measures it, an advisor that says what to tune.
#[derive(Parser)]
#[command(name = "ropewalk", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ropewalk up --dir /data/rope --mount /mnt/rope --detach   a whole cluster on this machine, mounted
  ropewalk status --dir /data/rope                          what runs, and is it well
  ropewalk fs df --dir /data/rope --json                    room left, for scripts
  ropewalk down --dir /data/rope                            stop it; `up` brings the same data back

Sizes are binary: 1m = 1 MiB = 1048576 bytes. Rates are decimal: 1 GB/s = 10^9 bytes a second.
Exit status is 0 only if what was asked was done.";

#[derive(Subcommand)]
pub enum Command {
    /// Bring up a whole cluster on this machine: made if DIR is empty, else the same one again
    #[command(after_help = "Examples:
  ropewalk up --dir /data/rope --mount /mnt/rope --detach
  ropewalk up --dir /tmp/r --nodes 6 --pdisks 2 --code 8+2p --block-size 8m --pdisk-size 4g --detach
  ropewalk up --dir /data/rope                       the cluster of that directory again, until Ctrl-C")]
    Up(Up),
    /// Stop the cluster of a directory: unmount, then end its processes
    #[command(after_help = "Example:\n  ropewalk down --dir /data/rope")]
    Down(Down),
    /// Run one process of a cluster in the foreground (`up` starts these)
    #[command(after_help = "Examples:
  ropewalk serve --dir /data/rope --name manager
  ropewalk serve --dir /data/rope --name n2 --metrics 127.0.0.1:9402")]
    Serve(Serve),
    /// Mount a file system
    #[command(after_help = "Examples:
  ropewalk mount --dir /data/rope fs1 /mnt/rope
  ropewalk mount --dir /data/rope fs1 /mnt/rope --foreground --metrics 127.0.0.1:9410
  ropewalk mount --dir /data/rope fs1 /mnt/rope --fuse-transport auto")]
    Mount(Mount),
    /// Unmount a file system and wait until everything is written
    #[command(
        after_help = "Examples:\n  ropewalk umount /mnt/rope\n  ropewalk umount /mnt/rope --force    also when files are open"
    )]
    Umount(Umount),
    /// What runs, and whether it is well
    #[command(
        after_help = "Examples:\n  ropewalk status --dir /data/rope\n  ropewalk status --dir /data/rope --json | jq .pdisks"
    )]
    Status(Listing),
    /// File systems
    #[command(subcommand)]
    Fs(Fs),
    /// Pdisks
    #[command(subcommand)]
    Pdisk(Pdisk),
    /// Pools
    #[command(subcommand)]
    Pool(Pool),
    /// The manager's store
    #[command(subcommand)]
    Manager(Manager),
    /// Mounts that share the cluster's file systems
    #[command(subcommand)]
    Clients(Clients),
    /// Tokens of files: which session may keep or change what
    #[command(
        after_help = "Examples:\n  ropewalk tokens --dir /data/rope\n  ropewalk tokens --dir /data/rope --json | jq '.[] | select(.mode == \"write\")'\n\nA session that is alone on its file system holds all of them; then none is listed (`ropewalk clients list`)."
    )]
    Tokens(Tokens),
    /// What moves between pdisks: rebuild, drain, new pdisks
    #[command(subcommand)]
    Rebuild(Rebuild),
    /// What is wrong, and what to do about it; exit status 0 if nothing is
    #[command(after_help = "Example:\n  ropewalk health --dir /data/rope || mail -s rope root")]
    Health(Listing),
    /// What happened lately
    #[command(after_help = "Examples:
  ropewalk events --dir /data/rope
  ropewalk events --dir /data/rope --after 120 --json")]
    Events(Events),
    /// Connections between the processes of a cluster
    #[command(subcommand)]
    Net(Net),
    /// Who waits for whom, for what and how long: requests that are not answered
    #[command(
        after_help = "Examples:\n  ropewalk waiters --dir /data/rope\n  ropewalk waiters --dir /data/rope --json"
    )]
    Waiters(Listing),
    /// Tunables
    #[command(subcommand)]
    Config(Config),
    /// One file, one access pattern, some threads: how fast (gpfsperf's command form and report lines)
    #[command(after_help = PERF_EXAMPLES)]
    Perf(Perf),
    /// Measure
    #[command(subcommand)]
    Lab(Lab),
    /// Measure the network over the real transport; no file system needed
    #[command(subcommand)]
    Netperf(Netperf),
    /// Read this machine and say what to change, and why
    #[command(after_help = "Examples:\n  ropewalk advise\n  ropewalk advise --json")]
    Advise(Advise),
    /// Print the completion script of a shell: ropewalk completion bash > /etc/bash_completion.d/ropewalk
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    Man {
        /// Where to
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

#[derive(Args)]
pub struct Up {
    #[command(flatten)]
    pub dir: Dir,
    /// Server nodes, each a process of its own [default for a new cluster: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nodes: Option<u32>,
    /// Pdisks of each node [default for a new cluster: 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pdisks: Option<u32>,
    /// Size of each pdisk, preallocated [default for a new cluster: 16g, or what fits half of the free space]
    #[arg(long)]
    pub pdisk_size: Option<ByteSize>,
    /// Redundancy code: 1way..4way, 2+1p, 4+2p, 4+3p, 8+2p, 8+3p, 16+2p, 16+3p [default for a new cluster: 4+2p]
    #[arg(long)]
    pub code: Option<String>,
    /// Block size, a power of two from 256k to 16m [default for a new cluster: 4m]
    #[arg(long)]
    pub block_size: Option<ByteSize>,
    /// Where to mount fs1; remembered for the next `up`
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub mount: Option<PathBuf>,
    /// First TCP port on 127.0.0.1; one for the manager and one for each node follow [default: free ones]
    #[arg(long)]
    pub port: Option<u16>,
    /// Come back when everything serves, instead of staying until Ctrl-C
    #[arg(long)]
    pub detach: bool,
    /// Do not mount, even if a mount point is remembered
    #[arg(long, conflicts_with = "mount")]
    pub no_mount: bool,
}

#[derive(Args)]
pub struct Down {
    #[command(flatten)]
    pub dir: Dir,
    /// Also when files are open on the mount: what was not yet written by programs is lost to them
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct Dir {
    /// The cluster's directory
    #[arg(long, env = "ROPEWALK_DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub dir: Dir,
    /// Which process of the cluster: `manager`, `n1`, `n2`, ...
    #[arg(long)]
    pub name: String,
    /// Serve Prometheus metrics over HTTP on this address
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
}

#[derive(Args)]
pub struct Mount {
    #[command(flatten)]
    pub dir: Dir,
    /// Name of the file system
    pub fs: String,
    /// An empty directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Stay in the foreground until it is unmounted
    #[arg(long)]
    pub foreground: bool,
    /// Only reading
    #[arg(long)]
    pub read_only: bool,
    /// How requests come from the kernel: classic, auto (io_uring where it can be had), uring
    #[arg(long, env = "ROPEWALK_FUSE_TRANSPORT", default_value = "classic")]
    pub fuse_transport: fuse::Transport,
    /// Serve Prometheus metrics over HTTP on this address
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
}

#[derive(Args)]
pub struct Umount {
    /// The mount point
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Also when files are open
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct Listing {
    #[command(flatten)]
    pub dir: Dir,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Fs {
    /// File systems with pool, code and block size
    List(Listing),
    /// Capacity and use, redundancy taken off
    Df(Listing),
}

#[derive(Subcommand)]
pub enum Pdisk {
    /// Pdisks with state and use
    List(Listing),
    /// Read everything in a pdisk that is not in use, and name whatever does not fit together
    #[command(after_help = "Example:\n  ropewalk pdisk verify /data/rope/n1/p1")]
    Verify(PdiskDir),
    /// Show what the files of a pdisk that is not in use say: label, checkpoints, log records, strips
    #[command(
        after_help = "Example:\n  ropewalk pdisk dump /data/rope/n1/p1 --json | jq 'select(.item == \"strip\")'"
    )]
    Dump(PdiskDir),
    /// Give up a pdisk: what it holds is rebuilt on the others, from the other strips
    #[command(after_help = "Example:\n  ropewalk pdisk fail --dir /data/rope n1p2")]
    Fail(PdiskName),
    /// Move everything off a pdisk; it serves until it is empty
    #[command(after_help = "Example:\n  ropewalk pdisk drain --dir /data/rope n1p2")]
    Drain(PdiskName),
    /// Take back a drain or a failure: the pdisk is used again
    #[command(after_help = "Example:\n  ropewalk pdisk keep --dir /data/rope n1p2")]
    Keep(PdiskName),
    /// A new pdisk on a node; groups move to it. The node's server is restarted
    #[command(after_help = "Examples:
  ropewalk pdisk add --dir /data/rope n1
  ropewalk pdisk add --dir /data/rope n1 --size 4g --path /mnt/disk7/rope")]
    Add(PdiskAdd),
    /// A new pdisk on the same node takes the place of one
    #[command(after_help = "Example:\n  ropewalk pdisk replace --dir /data/rope n1p2")]
    Replace(PdiskName),
    /// Take a pdisk that holds nothing any more out of the cluster. The node's server is restarted
    #[command(after_help = "Example:\n  ropewalk pdisk remove --dir /data/rope n1p2")]
    Remove(PdiskName),
    /// What happened: pdisks that failed, queues that were not to be had, ... newest last
    #[command(
        after_help = "Examples:\n  ropewalk pdisk events --dir /data/rope\n  ropewalk pdisk events --dir /data/rope --json | jq '.[] | select(.severity == \"error\")'"
    )]
    Events(Listing),
    /// Measure the strip store on the disk under a directory against fio
    #[command(after_help = "Examples:
  ropewalk pdisk bench /data --size 4g --json
  ropewalk pdisk bench /data /dev/shm --tables --aging --strips 1000000
  ropewalk pdisk bench /data --no-fio --seconds 1 --rounds 1")]
    Bench(PdiskBench),
}

#[derive(Args)]
pub struct PdiskName {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name, as `pdisk list` shows it
    pub pdisk: String,
}

#[derive(Args)]
pub struct PdiskAdd {
    #[command(flatten)]
    pub dir: Dir,
    /// The node that serves it
    pub node: String,
    /// Its size, preallocated [default: that of the node's first pdisk]
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Its directory, on its disk [default: below the cluster's directory]
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub path: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Rebuild {
    /// How far it is, when it ends, how long clients wait meanwhile
    #[command(after_help = "Examples:
  ropewalk rebuild status --dir /data/rope --watch
  ropewalk rebuild status --dir /data/rope --json")]
    Status(RebuildStatus),
}

#[derive(Args)]
pub struct RebuildStatus {
    #[command(flatten)]
    pub listing: Listing,
    /// Stay until nothing moves any more, with a bar
    #[arg(long)]
    pub watch: bool,
}

#[derive(Args)]
pub struct Events {
    #[command(flatten)]
    pub listing: Listing,
    /// Only events after this number
    #[arg(long, default_value_t = 0)]
    pub after: u64,
}

#[derive(Args)]
pub struct PoolVerify {
    #[command(flatten)]
    pub listing: Listing,
    /// Only this pool
    pub pool: Option<String>,
    /// Make damaged and absent strips anew
    #[arg(long)]
    pub repair: bool,
}

#[derive(Args)]
pub struct PdiskDir {
    /// The pdisk's directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Where its log is, if not where it was when the pdisk was made
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub log_dir: Option<PathBuf>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PdiskBench {
    /// Directories on the disks to measure; a pdisk is made in each and removed
    #[arg(value_hint = ValueHint::DirPath, required = true)]
    pub dirs: Vec<PathBuf>,
    /// Size of that pdisk; half of it is filled
    #[arg(long, default_value = "2g")]
    pub size: ByteSize,
    /// Seconds for each load, and for each of fio's
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Times each load is measured, turn by turn with fio; the median counts
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// The store alone
    #[arg(long)]
    pub no_fio: bool,
    /// Also tables of 1 to 16 queues and of coalescing: IOPS, CPU, IOPS per CPU second
    #[arg(long)]
    pub tables: bool,
    /// Also what random overwriting does to sequential reading
    #[arg(long)]
    pub aging: bool,
    /// Also open a pdisk with so many strips
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub strips: u64,
    /// Open the pdisk that --strips has filled: its process of its own
    #[arg(long, hide = true)]
    pub open_only: bool,
    /// Only this load, instead of all
    #[arg(long, value_parser = ["write", "read", "random-read", "sync-write"])]
    pub load: Option<String>,
    /// Operations in flight, or writers, of that load
    #[arg(long, default_value_t = 32, requires = "load", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Pdisks side by side, each loaded alike
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pdisks: u32,
    /// Queues of the node, each with its thread [default: the node's default]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub queues: Option<u32>,
    /// Queues that one pdisk uses
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub queues_per_pdisk: u32,
    /// Registered memory of all queues, in MiB; too little for their number means one queue
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub io_dma_mib: Option<u32>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Manager {
    /// Write everything the manager stores into a file; the cluster is down meanwhile
    #[command(after_help = "Example:\n  ropewalk manager dump --dir /data/rope rope.dump")]
    Dump(ManagerFile),
    /// Make the manager's store from such a file, for pdisks that are at least as new as it
    #[command(
        after_help = "Example:\n  mv /data/rope/manager /data/rope/manager.old\n  ropewalk manager restore --dir /data/rope rope.dump"
    )]
    Restore(ManagerFile),
}

#[derive(Args)]
pub struct ManagerFile {
    #[command(flatten)]
    pub dir: Dir,
    /// The dump
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

#[derive(Args)]
pub struct Tokens {
    #[command(flatten)]
    pub listing: Listing,
    /// Only of files whose tokens somebody waits for
    #[arg(long)]
    pub waiting: bool,
}

#[derive(Subcommand)]
pub enum Clients {
    /// Sessions with mount point, process and tokens
    #[command(after_help = "Example:\n  ropewalk clients list --dir /data/rope --json")]
    List(Listing),
    /// End a session by force: its mount fails from then on, its tokens go to whoever waits for them
    #[command(after_help = "Example:\n  ropewalk clients detach --dir /data/rope 12")]
    Detach {
        #[command(flatten)]
        dir: Dir,
        /// Its number, as `ropewalk clients list` shows it
        session: u64,
    },
}

#[derive(Subcommand)]
pub enum Pool {
    /// Pools with code, block size and groups
    List(Listing),
    /// Name the files that cannot be read as a whole now, because more strips are gone than the code can bear
    #[command(after_help = "Example:\n  ropewalk pool lost --dir /data/rope --json")]
    Lost(Listing),
    /// How many groups lack how many strips, spare space, what is to move
    Status(Listing),
    /// Read everything and prove every stripe: data against CRCs, parity against data, versions; exit status
    /// 0 only if all is proved
    #[command(after_help = "Examples:
  ropewalk pool verify --dir /data/rope
  ropewalk pool verify --dir /data/rope pool1 --repair --json")]
    Verify(PoolVerify),
}

#[derive(Subcommand)]
pub enum Net {
    /// Every connection: rail, state, links, bytes, rate, round trip, retransmits, what is unanswered
    #[command(
        after_help = "Examples:\n  ropewalk net status --dir /data/rope\n  ropewalk net status --dir /data/rope --json | jq '.[].answer[].rails'"
    )]
    Status(Listing),
    /// How many connections two nodes should have, by rule and by simulation
    #[command(after_help = "Examples:
  ropewalk net sizing                                          2 links, 100 Gbit/s a node, 25 on one connection
  ropewalk net sizing --links 4 --node-gbit 200 --nodes 12
  ropewalk net sizing --active 1 --json                        each node talks to one peer at a time

Rates are decimal: 1 Gbit/s = 10^9 bits a second.")]
    Sizing(Sizing),
}

#[derive(Args)]
pub struct Sizing {
    /// Nodes of the cluster [default: a table from 2 to 1000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub nodes: Option<u32>,
    /// Links of each node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub links: u32,
    /// What all links of a node carry together, Gbit/s
    #[arg(long, default_value_t = 100.0)]
    pub node_gbit: f64,
    /// What one connection carries, Gbit/s (measure it: `ropewalk netperf`)
    #[arg(long, default_value_t = 25.0)]
    pub connection_gbit: f64,
    /// Peers a node exchanges data with at the same time [default: all others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=999))]
    pub active: Option<u32>,
    /// The most connections allowed
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub limit: u32,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Config {
    /// All tunables with their values ("!" changed, "." derived)
    Show(Listing),
    /// One tunable: meaning, unit, range, what changing it does
    Explain {
        /// Its name
        name: String,
    },
    /// Change tunables: NAME=VALUE ...
    Set {
        #[command(flatten)]
        dir: Dir,
        /// NAME=VALUE
        #[arg(required = true)]
        pairs: Vec<String>,
    },
}

#[derive(Subcommand)]
pub enum Lab {
    /// The built-in plans
    List(lab_run::ListArgs),
    /// Print a built-in plan, to edit it and run it from a file
    #[command(after_help = "Example:\n  ropewalk lab plan device-scaling > mine.toml")]
    Plan {
        /// Its name
        name: String,
    },
    /// Run plans: measure every cell, say what the limit is, write a report
    #[command(after_help = "Examples:
  ropewalk lab run --all --short
  ropewalk lab run device-scaling --device /dev/nvme0n1 --device /dev/nvme1n1 --out /data/lab1
  ropewalk lab run step-load --writable /mnt/client1 --writable /mnt/client2
  ropewalk lab run ./mine.toml

Only what is named as --writable is written, beside the results directory. Where no device or pair is
named, files in the results directory and loopback addresses stand in.")]
    Run(lab_run::RunArgs),
    /// Go on with a run that was stopped; cells that failed are measured again
    #[command(after_help = "Example:\n  ropewalk lab resume ropewalk-lab-2026-11-21-1405")]
    Resume(lab_run::Resume),
    /// Write the report of a run again
    #[command(after_help = "Examples:
  ropewalk lab report lab1
  ropewalk lab report lab1 --format csv > lab1.csv")]
    Report(lab_run::ReportArgs),
    /// Hold two runs against each other; fails if something became slower by more than the noise
    #[command(after_help = "Example:\n  ropewalk lab compare before after && echo no regression")]
    Compare(lab_run::CompareArgs),
    /// Take part in runs that another node leads; whoever reaches the port can make load with what is named here
    #[command(after_help = "Examples:
  ropewalk lab agent --listen 10.0.0.3:6669 --writable /mnt/rope
  ropewalk lab run node-scaling --agent 10.0.0.3 --agent 10.0.0.4     on the leading node")]
    Agent(lab_run::AgentArgs),
    /// The raw ceilings of this machine: loopback TCP, and the disk under a directory
    #[command(after_help = "Example:\n  ropewalk lab ceilings --dir /data --size 1g --json")]
    Ceilings {
        /// A directory on the disk to measure; a file is made there and removed
        #[arg(long, value_hint = ValueHint::DirPath)]
        dir: PathBuf,
        /// Bytes to write and read
        #[arg(long, default_value = "1g")]
        size: ByteSize,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Simulate a declustered array: evenness, data moved on changes, rebuild against a conventional array
    #[command(after_help = "Examples:
  ropewalk lab array --nodes 16 --pdisks 8 --code 8+2p
  ropewalk lab array --nodes 100 --pdisks 100 --code 8+2p --rate 200     10,000 pdisks in 20 arrays; takes longer
  ropewalk lab array --nodes 4 --pdisks 2 --code 4+2p --pdisk-size 1g --rate 20 --json")]
    Array(Array),
    /// The figures of the network transport, each beside the raw one of the same run. Needs root and iperf3
    #[command(after_help = "Examples:
  ropewalk lab net-figures                         all: about 10 minutes
  ropewalk lab net-figures links2 links4 --runs 20
  ropewalk lab net-figures rails --json
Groups: links2, links4, drawn, rails, policy0, loopback, rr, sizing. Exit status 0 only if all are reached.")]
    NetFigures(NetFigures),
    /// Several hosts on one machine: network namespaces joined by links with a set rate. Needs root
    #[command(subcommand)]
    Testbed(Testbed),
}

#[derive(Args)]
pub struct NetFigures {
    /// Which groups [default: all]
    pub groups: Vec<lab::netfigures::Group>,
    /// Runs of each row over links
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of one run
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Netperf {
    /// Run on each host that shall be a server, or a client of a test led from elsewhere
    #[command(after_help = "Examples:
  ropewalk netperf server                                       on loopback only
  ropewalk netperf server --listen 10.0.0.2                     for other hosts, port 6668
  ropewalk netperf server --listen 10.0.0.2,10.1.0.2            two networks, used together
Whoever reaches the port can use the server and end it: listen only on networks you trust.")]
    Server {
        /// HOST[:PORT]; several, separated by commas, are used together as rails
        #[arg(long, default_value = "127.0.0.1")]
        listen: Vec<String>,
        /// Bulk connections that one client may have, 1 to 16; the lower of both sides counts
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=16))]
        parallel: u8,
    },
    /// nsdperf's tests: write, read, nwrite, swrite, sread, rw
    #[command(after_help = "Examples:
  ropewalk netperf test --server 10.0.0.2                                    nwrite, then read
  ropewalk netperf test write read --server 10.0.0.2 --parallel 2 --ttime 30
  ropewalk netperf test rw --server 10.0.0.2 --server 10.0.0.3 --client 10.0.0.4 --client 10.0.0.5 --hist
  ropewalk netperf test write --server 10.0.0.2,10.1.0.2 --parallel 4        both networks of one server
The first and last tenth of the time are not counted. MB are 10^6 bytes.")]
    Test(NetperfTest),
    /// uperf's stream: one-way data over connections x message sizes
    #[command(after_help = "Example:
  ropewalk netperf stream --server 10.0.0.2 --connections 1,4,16 --sizes 4k,64k,1m")]
    Stream(NetperfMatrix),
    /// uperf's request/response over connections x message sizes
    #[command(after_help = "Example:
  ropewalk netperf rr --server 10.0.0.2 --connections 1,50,150 --sizes 1,4k --json")]
    Rr(NetperfMatrix),
    /// End servers
    #[command(after_help = "Example:\n  ropewalk netperf quit --server 10.0.0.2")]
    Quit {
        /// HOST[:PORT]; repeat it for several
        #[arg(long, required = true)]
        server: Vec<String>,
    },
}

#[derive(Args)]
pub struct NetperfHosts {
    /// A server: HOST[:PORT], several addresses of it separated by commas; repeat it for several servers
    #[arg(long, required = true)]
    pub server: Vec<String>,
    /// A host with a netperf server that shall be a client [default: this process is the one client]
    #[arg(long)]
    pub client: Vec<String>,
}

#[derive(Args)]
pub struct NetperfTest {
    /// write, read, nwrite, swrite, sread, rw [default: nwrite read]
    pub tests: Vec<lab::netperf::Kind>,
    #[command(flatten)]
    pub hosts: NetperfHosts,
    /// Seconds of each test
    #[arg(long, default_value_t = 10.0)]
    pub ttime: f64,
    /// Bytes of a message, 1 to 16m
    #[arg(long, default_value = "4m")]
    pub buffsize: ByteSize,
    /// Tester threads of each client, each with one message under way
    #[arg(long, default_value_t = 4)]
    pub threads: u32,
    /// Connections between each client and each server, 1 to 16
    #[arg(long, default_value_t = 1)]
    pub parallel: u8,
    /// Show histograms
    #[arg(long)]
    pub hist: bool,
    /// Check the data that arrives
    #[arg(long)]
    pub verify: bool,
    /// How messages are given to connections: shortest_queue, round_robin
    #[arg(long, default_value = "shortest_queue")]
    pub dispatch: lab::netperf::Dispatching,
    /// Leave the choice of links to chance instead of placing connections on them
    #[arg(long)]
    pub no_placement: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct NetperfMatrix {
    #[command(flatten)]
    pub hosts: NetperfHosts,
    /// Numbers of connections of each client [default: uperf's 1,4,8,16,64; rr: 1,25,50,100,150]
    #[arg(long, value_delimiter = ',')]
    pub connections: Vec<u32>,
    /// Bytes of a message [default: 256,1k,4k,16k,64k; rr: 1,1k,4k,16k,64k]
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<ByteSize>,
    /// Messages under way on each connection of a stream
    #[arg(long, default_value_t = 16)]
    pub under_way: u32,
    /// Seconds of each test
    #[arg(long, default_value_t = 5.0)]
    pub ttime: f64,
    /// Check the data that arrives
    #[arg(long)]
    pub verify: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Testbed {
    /// Make one; it stays until `down`
    #[command(after_help = "Examples:
  ropewalk lab testbed up --name t1                          h1 and h2, 2 links of 1 Gbit/s, ECMP by ports
  ropewalk lab testbed up --links 4 --rate 500m --policy 0   ECMP by addresses: connections cannot help
  ropewalk lab testbed up --join subnets --hosts 5           each link a network of its own
Links limit both directions. Addresses and hash keys are drawn anew each time; --seed repeats them.")]
    Up(TestbedUp),
    /// Remove testbeds, what runs in them included; also what a crash left behind
    #[command(after_help = "Examples:
  ropewalk lab testbed down t1
  ropewalk lab testbed down --all      all but those of tests that still run")]
    Down {
        /// Which [default: the only one]
        names: Vec<String>,
        /// All that no running process owns
        #[arg(long, conflicts_with = "names")]
        all: bool,
    },
    /// Testbeds with hosts, addresses, and the bytes each link has carried
    #[command(after_help = "Example:\n  ropewalk lab testbed status --json | jq '.[].link_bytes'")]
    Status {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Cut a link, let it lose one direction, or bring it back
    #[command(after_help = "Examples:
  ropewalk lab testbed link h1 2 cut     nothing passes, and no interface shows it
  ropewalk lab testbed link h1 2 down    the interface is taken down
  ropewalk lab testbed link h1 2 mute    what the host sends is lost; `deaf`: what is sent to it
  ropewalk lab testbed link h1 2 up      as it was made")]
    Link {
        /// The testbed [default: the only one]
        #[arg(long)]
        name: Option<String>,
        /// The host
        host: String,
        /// Its link, from 1
        link: u8,
        /// up, down, cut, mute, deaf
        state: lab::testbed::LinkState,
    },
    /// Run a command on a host
    #[command(after_help = "Examples:
  ropewalk lab testbed exec h1 ip route
  ropewalk lab testbed exec --name t1 h2 iperf3 -s")]
    Exec {
        /// The testbed [default: the only one]
        #[arg(long)]
        name: Option<String>,
        /// The host
        host: String,
        /// The command with its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// How the links of a host are used together.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum JoinBy {
    /// One address a host, routes over all links
    Ecmp,
    /// Each link a network with an address of its own
    Subnets,
}

#[derive(Args)]
pub struct TestbedUp {
    /// Letters and digits [default: drawn]
    #[arg(long)]
    pub name: Option<String>,
    /// Hosts, 2 to 32
    #[arg(long, default_value_t = 2)]
    pub hosts: u8,
    /// Links of each host, 1 to 8
    #[arg(long, default_value_t = 2)]
    pub links: u8,
    /// Rate of each link in each direction, bits a second, decimal: 500m, 1g
    #[arg(long, default_value = "1g")]
    pub rate: lab::testbed::BitRate,
    /// How the links of a host are used together
    #[arg(long, value_enum, default_value_t = JoinBy::Ecmp)]
    pub join: JoinBy,
    /// ECMP hash policy: 0 addresses only, 1 addresses and ports
    #[arg(long, default_value_t = 1)]
    pub policy: u8,
    /// Put a router (a switch for each subnet) between the hosts, as more than two have anyway
    #[arg(long)]
    pub routed: bool,
    /// Draw addresses and hash keys from this number, to repeat a testbed
    #[arg(long)]
    pub seed: Option<u64>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

const PERF_EXAMPLES: &str = "\
Examples:
  ropewalk perf create seq /mnt/rope/f -r 1m -n 3072M -th 4 -fsync
  ropewalk perf read seq /mnt/rope/f -r 1m -th 4
  ropewalk perf mixrw rand /mnt/rope/f -r 4k -n 100000R -th 16 -readratio 70 -dio --histogram
  ropewalk perf create seq /f -r 1m -n 1g --direct-client --dir /data/rope     the client library, no FUSE
  ropewalk perf read seq /mnt/rope/f -r 1m --start-at 1795000000 --json        one of several nodes

FILE may lie on any file system; with --direct-client it is a path from the root of file system --fs.
seq: each thread has a part of the file. rand: each picks whole records of all the file. strided: threads
take neighbouring records, each its next one a stride further on. Before the test the caches of the file
are given up (the kernel's; on a ropewalk mount the page pool's too). Threads open the file each for itself.
The rate covers the calls, with -fsync the flush too. Sizes are binary, or records as in 100R.
CPU-seconds are those of this process and the mount's (client), and of the cluster's servers on this
machine, found by the mount point or --dir.";

#[derive(Args)]
pub struct Perf {
    /// create, read, write, mixrw or uncache
    pub operation: lab::perf::Operation,
    /// seq, rand or strided
    pub pattern: lab::perf::Pattern,
    /// The file
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Bytes of a record [default: the block size of the file system]
    #[arg(short = 'r', value_name = "SIZE")]
    pub record: Option<ByteSize>,
    /// What to transfer, in bytes or records (100R) [default: the size of the file]
    #[arg(short = 'n', value_name = "AMOUNT")]
    pub amount: Option<lab::perf::Amount>,
    /// For strided: from one record of a thread to its next [default: threads x record]
    #[arg(short = 's', value_name = "AMOUNT")]
    pub stride: Option<lab::perf::Amount>,
    /// Threads (also -th)
    #[arg(long = "th", default_value_t = 1)]
    pub threads: u32,
    /// Percent of the records that mixrw reads (also -readratio)
    #[arg(long = "readratio", default_value_t = 50)]
    pub read_ratio: u32,
    /// Direct I/O (also -dio)
    #[arg(long = "dio")]
    pub direct: bool,
    /// Flush at the end; its time counts (also -fsync)
    #[arg(long)]
    pub fsync: bool,
    /// Every write is durable when it returns (also -osync)
    #[arg(long = "osync")]
    pub sync_writes: bool,
    /// So many times, one after the other (also -repeat)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Leave the caches as they are before the test (also -noinv)
    #[arg(long = "noinv")]
    pub keep_caches: bool,
    /// Write a pattern and check it when reading
    #[arg(short = 'V', long)]
    pub verify: bool,
    /// First value of the random order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Report lines of which generation of gpfsperf: new, mid or old
    #[arg(long, default_value = "new", value_parser = ["new", "mid", "old"])]
    pub style: String,
    /// Print how latencies are spread
    #[arg(long)]
    pub histogram: bool,
    /// Through the client library, without FUSE
    #[arg(long, requires = "dir")]
    pub direct_client: bool,
    /// The cluster's directory
    #[arg(long, env = "ROPEWALK_DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// File system, with --direct-client
    #[arg(long, default_value = "fs1")]
    pub fs: String,
    /// Begin at this time, in seconds since 1970: the common start of several nodes
    #[arg(long, value_name = "SECONDS")]
    pub start_at: Option<f64>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

/// gpfsperf writes long options with one dash: those of `perf` are taken in either form.
pub fn with_gpfsperf_options(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const LONG: [&str; 7] = ["-th", "-readratio", "-dio", "-fsync", "-osync", "-repeat", "-noinv"];
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_some_and(|command| command == "perf") {
        for arg in args.iter_mut().skip(2).filter(|arg| LONG.iter().any(|long| arg == long)) {
            let mut long = OsString::from("-");
            long.push(&*arg);
            *arg = long;
        }
    }
    args
}

#[derive(Args)]
pub struct Array {
    /// Server nodes
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub nodes: u32,
    /// Pdisks of each node; from 513 pdisks in all on there are several arrays
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub pdisks: u32,
    /// Redundancy code: 1way..4way, 2+1p, 4+2p, 4+3p, 8+2p, 8+3p, 16+2p, 16+3p
    #[arg(long, default_value = "8+2p")]
    pub code: String,
    /// Data on each pdisk, all of which a rebuild gets again
    #[arg(long, default_value = "4t")]
    pub pdisk_size: ByteSize,
    /// MB/s (10^6 bytes a second) that each pdisk gives to a rebuild, reads and writes together
    #[arg(long, default_value = "100")]
    pub rate: NonZeroU32,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Advise {
    /// Read this tree instead of / (a copy of another machine's /proc and /sys)
    #[arg(long, default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
