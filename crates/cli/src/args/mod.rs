//! The command line: what can be asked, with examples. Nothing is done here.

mod lab;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use base::ByteSize;
use clap::{Args, Parser, Subcommand, ValueHint};

pub use self::lab::*;

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
Without --dir, ROPEWALK_DIR names the cluster; without both it is the only one of yours that runs here.
Exit status: 0 only if what was asked was done; 1 not done, stderr says why; 2 the command line is not
understood; 130 interrupted (Ctrl-C), nothing is left half made.";

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
  ropewalk mount --dir /data/rope fs1 /mnt/rope --fuse-transport classic")]
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
    /// Locks of programs (fcntl and flock) on all mounts: who holds and who waits
    #[command(
        after_help = "Examples:\n  ropewalk locks --dir /data/rope\n  ropewalk locks --dir /data/rope --waiting --json"
    )]
    Locks(Locks),
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
    /// What the mounts' page pools and the servers' strip caches hold, and how often they had what was wanted
    #[command(
        after_help = "Examples:\n  ropewalk pagepool --dir /data/rope\n  ropewalk pagepool --dir /data/rope --json | jq '.[].pagepool.hit_bytes'"
    )]
    Pagepool(Listing),
    /// Tunables
    #[command(subcommand)]
    Config(Config),
    /// One file, one access pattern, some threads: how fast (gpfsperf's command form and report lines)
    #[command(after_help = lab::PERF_EXAMPLES)]
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
    /// Print the completion script of a shell
    #[command(after_help = "Example:\n  ropewalk completion bash > /etc/bash_completion.d/ropewalk")]
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_help = "Example:\n  ropewalk man /usr/local/share/man/man1 && man ropewalk-up")]
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
    /// Put the pdisks' logs here, on a faster device [default: beside their data]. Losing it loses all of them
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub log_dir: Option<PathBuf>,
    /// Redundancy code: 1way..4way, 2+1p, 4+2p, 4+3p, 8+2p, 8+3p, 16+2p, 16+3p [default for a new cluster: 4+2p]
    #[arg(long)]
    pub code: Option<String>,
    /// Block size, a power of two from 256k to 16m [default for a new cluster: 4m]
    #[arg(long)]
    pub block_size: Option<ByteSize>,
    /// Where to mount fs1; remembered for the next `up`
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub mount: Option<PathBuf>,
    /// Address of this machine at which manager and nodes are reached [default for a new cluster: 127.0.0.1].
    /// Whoever has the cluster.toml can use the file system from there. Nothing is encrypted: keep it to a network of your own
    #[arg(long)]
    pub listen: Option<IpAddr>,
    /// Clients reach it through a relay or an address translation (NAT): connections do not prove their addresses
    #[arg(long)]
    pub relays: bool,
    /// First TCP port; one for the manager and one for each node follow [default: free ones]
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
    /// The cluster's directory [default: that of the only cluster of yours that runs on this machine]
    #[arg(long, env = "ROPEWALK_DIR", hide_env_values = true, value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct Removal {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
    /// It is to go, with everything in it
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub dir: Dir,
    /// Which process of the cluster: `manager`, `n1`, `n2`, ...
    #[arg(long)]
    pub name: String,
    /// Serve Prometheus metrics over HTTP on this address: figures, to whoever can reach it
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
    /// How requests come from the kernel: auto (io_uring where it can be had), classic, uring
    #[arg(long, env = "ROPEWALK_FUSE_TRANSPORT", default_value = "auto")]
    pub fuse_transport: fuse::Transport,
    /// Serve Prometheus metrics over HTTP on this address: figures, to whoever can reach it
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
}

#[derive(Args)]
pub struct Umount {
    #[command(flatten)]
    pub dir: Dir,
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
    #[command(after_help = "Example:\n  ropewalk fs list --dir /data/rope")]
    List(Listing),
    /// Capacity and use, redundancy taken off
    #[command(
        after_help = "Examples:\n  ropewalk fs df --dir /data/rope\n  ropewalk fs df --dir /data/rope --json | jq '.[0].free_bytes'"
    )]
    Df(Listing),
    /// A new, empty file system
    #[command(after_help = "Example:\n  ropewalk fs create --dir /data/rope fs2 --pool work")]
    Create {
        #[command(flatten)]
        dir: Dir,
        /// Its name
        name: String,
        /// The pool of its root directory
        #[arg(long)]
        pool: String,
    },
    /// Remove a file system that nobody has mounted, with everything in it
    #[command(after_help = "Example:\n  ropewalk fs delete --dir /data/rope fs2 --yes")]
    Delete(Removal),
    /// Direct what is made in a mounted directory, and below, to a pool; what exists stays where it is
    #[command(after_help = "Examples:
  ropewalk fs set-pool /mnt/rope/work work
  getfattr -n ropewalk.pool /mnt/rope/work           the same attribute tells the pool of any file")]
    SetPool {
        #[command(flatten)]
        dir: Dir,
        /// A directory of a mounted file system
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
        /// The pool
        pool: String,
    },
}

#[derive(Subcommand)]
pub enum Pdisk {
    /// Pdisks with state and use
    #[command(
        after_help = "Examples:\n  ropewalk pdisk list --dir /data/rope\n  ropewalk pdisk list --dir /data/rope --json | jq '.[] | select(.state != \"ok\")'"
    )]
    List(Listing),
    /// Read everything in a pdisk that is not in use, and name whatever does not fit together
    #[command(after_help = "Example:\n  ropewalk pdisk verify /data/rope/nodes/n1/pdisk1")]
    Verify(PdiskDir),
    /// Show what the files of a pdisk that is not in use say: label, checkpoints, log records, strips
    #[command(
        after_help = "Example:\n  ropewalk pdisk dump /data/rope/nodes/n1/pdisk1 --json | jq 'select(.item == \"strip\")'"
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
  ropewalk pdisk add --dir /data/rope n1 --size 4g --path /mnt/disk7/rope
  ropewalk pdisk add --dir /data/rope n1 --path /mnt/disk7/rope --log-dir /mnt/nvme/logs")]
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
    /// Put its log here, on a faster device; losing that device loses the pdisk
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub log_dir: Option<PathBuf>,
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
pub struct PoolCreate {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
    /// Redundancy code: 1way..4way, 2+1p, 4+2p, 4+3p, 8+2p, 8+3p, 16+2p, 16+3p
    #[arg(long)]
    pub code: String,
    /// Block size, a power of two from 256k to 16m
    #[arg(long)]
    pub block_size: ByteSize,
    /// A pdisk it is laid out over; may be given several times [default: all]
    #[arg(long = "pdisk")]
    pub pdisks: Vec<String>,
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
    /// Reads handed over and awaited as one batch, in random-read
    #[arg(long, default_value_t = 1, requires = "load", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
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
    Dump(ManagerDump),
    /// Make the manager's store from such a file, for pdisks that are at least as new as it
    #[command(
        after_help = "Example:\n  mv /data/rope/manager /data/rope/manager.old\n  ropewalk manager restore --dir /data/rope rope.dump"
    )]
    Restore(ManagerFile),
    /// Check all that the manager stores, changing nothing; the cluster is down meanwhile
    #[command(after_help = "Example:\n  ropewalk manager check --dir /data/rope")]
    Check(Listing),
    /// Make a store that is refused one that starts, without what is lost; says what that is
    #[command(
        after_help = "Example:\n  ropewalk manager check --dir /data/rope\n  ropewalk manager accept-loss --dir /data/rope --yes"
    )]
    AcceptLoss(AcceptLoss),
}

#[derive(Args)]
pub struct AcceptLoss {
    #[command(flatten)]
    pub dir: Dir,
    /// Names, sizes and contents that were acknowledged may be gone, for good
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct ManagerDump {
    #[command(flatten)]
    pub file: ManagerFile,
    /// Leave out what is damaged, and say what that is
    #[arg(long)]
    pub damaged: bool,
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

#[derive(Args)]
pub struct Locks {
    #[command(flatten)]
    pub listing: Listing,
    /// Only those that are waited for, and who waits
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
    #[command(after_help = "Example:\n  ropewalk pool list --dir /data/rope")]
    List(Listing),
    /// A new pool over pdisks of the cluster; several may share pdisks and their room
    #[command(after_help = "Examples:
  ropewalk pool create --dir /data/rope work --code 1way --block-size 1m
  ropewalk pool create --dir /data/rope data --code 8+2p --block-size 8m")]
    Create(PoolCreate),
    /// Remove a pool that no file is in and no directory directs to
    #[command(after_help = "Example:\n  ropewalk pool delete --dir /data/rope work --yes")]
    Delete(Removal),
    /// Name the files that cannot be read as a whole now, because more strips are gone than the code can bear
    #[command(after_help = "Example:\n  ropewalk pool lost --dir /data/rope --json")]
    Lost(Listing),
    /// How many groups lack how many strips, spare space, what is to move
    #[command(after_help = "Example:\n  ropewalk pool status --dir /data/rope")]
    Status(Listing),
    /// Read everything and prove every stripe: data against CRCs, parity against data, versions, and what is
    /// there against what files name; exit status 0 only if all is proved
    #[command(after_help = "Examples:
  ropewalk pool verify --dir /data/rope
  ropewalk pool verify --dir /data/rope pool1 --repair --json")]
    Verify(PoolVerify),
}

#[derive(Subcommand)]
pub enum Net {
    /// Who is connected to whom: connections, bytes, round trip, what waits for an answer
    #[command(after_help = "Examples:
  ropewalk net status --dir /data/rope
  ropewalk net status --dir /data/rope --details     each connection: rail, state, links, rate, retransmits
  ropewalk net status --dir /data/rope --json | jq '.[].answer[].rails'")]
    Status(NetStatus),
    /// How many connections two nodes should have, by rule and by simulation
    #[command(after_help = "Examples:
  ropewalk net sizing                                          2 links, 100 Gbit/s a node, 25 on one connection
  ropewalk net sizing --links 4 --node-gbit 200 --nodes 12
  ropewalk net sizing --active 1 --json                        each node talks to one peer at a time

Rates are decimal: 1 Gbit/s = 10^9 bits a second.")]
    Sizing(Sizing),
}

#[derive(Args)]
pub struct NetStatus {
    #[command(flatten)]
    pub listing: Listing,
    /// Each connection, commands' too
    #[arg(long)]
    pub details: bool,
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
    #[command(after_help = "Example:\n  ropewalk config show --dir /data/rope")]
    Show(Listing),
    /// One tunable: meaning, unit, range, what changing it does
    #[command(after_help = "Example:\n  ropewalk config explain pagepool")]
    Explain {
        #[command(flatten)]
        dir: Dir,
        /// Its name
        name: String,
    },
    /// Change tunables: NAME=VALUE ...
    #[command(after_help = "Example:\n  ropewalk config set --dir /data/rope pagepool=4g prefetchThreads=16")]
    Set {
        #[command(flatten)]
        dir: Dir,
        /// NAME=VALUE
        #[arg(required = true)]
        pairs: Vec<String>,
    },
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
