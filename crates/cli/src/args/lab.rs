//! The lab: plans, ceilings, figures, the layout simulator.

use std::{num::NonZeroU32, path::PathBuf};

use base::ByteSize;
use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::{testbed::Testbed, workload::Workload};

#[derive(Subcommand)]
pub enum Lab {
    /// The built-in plans
    #[command(after_help = "Example:\n  ropewalk lab list")]
    List(ListArgs),
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
  ropewalk lab run --all --dry-run                       what would be measured, on what, how long
  ropewalk lab run node-scaling --cluster /data/rope --writable /mnt/rope      every node
  ropewalk lab run ./mine.toml
  ropewalk lab run ./mine.fio --device /dev/nvme0n1      a job file of fio: each job is a series

Only what is named as --writable is written, beside the results directory. Where nothing is named,
something stands in: files in the results directory, links and a small cluster in network namespaces
(root).")]
    Run(RunArgs),
    /// Go on with a run that was stopped; cells that failed are measured again
    #[command(after_help = "Example:\n  ropewalk lab resume ropewalk-lab-2026-11-21-1405")]
    Resume(Resume),
    /// Write the report of a run again
    #[command(after_help = "Examples:
  ropewalk lab report lab1
  ropewalk lab report lab1 --format csv > lab1.csv")]
    Report(ReportArgs),
    /// Hold two runs against each other; fails if something became slower by more than the noise
    #[command(after_help = "Example:\n  ropewalk lab compare before after && echo no regression")]
    Compare(CompareArgs),
    /// The mixed analytics workload: jobs on real engines, every result checked
    #[command(subcommand)]
    Workload(Workload),
    /// Take part in runs that another node leads, where there is no cluster (`serve` takes part by itself); whoever
    /// reaches the port can make load with what is named here
    #[command(after_help = "Examples:
  ropewalk lab agent --listen 10.0.0.3:6669 --writable /mnt/rope
  ropewalk lab run node-scaling --agent 10.0.0.3 --agent 10.0.0.4     on the leading node")]
    Agent(AgentArgs),
    /// The lab held against bottlenecks that it stages itself, and against none: right, not known or wrong. Needs root,
    /// fio and iperf3
    #[command(after_help = "Examples:
  ropewalk lab self-test                              all: about 8 minutes
  ropewalk lab self-test 'slow device' --seed 7
  ropewalk lab self-test --trials 4 --json
Place, degree and order are drawn from the seed. Nothing is touched but loop devices, control groups and
network namespaces of its own, and files below --dir. Exit status 0 if nothing is wrong with high
confidence, and 19 of 20 answers are right.")]
    SelfTest(SelfTest),
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
pub struct ListArgs {
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

/// What a measurement may use.
#[derive(Args, Clone)]
pub struct MeasuredOn {
    /// A block device or file to read; may be given several times
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub device: Vec<String>,
    /// A block device, file or directory that may be written; what is on a device is lost
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub writable: Vec<String>,
    /// An NVMe device whose interrupt coalescing a plan may set; it is set back. Name it as --device too
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub changeable: Vec<String>,
    /// Addresses of a client's and a server's port, CLIENT=SERVER, each with NAMESPACE@ before it or without
    #[arg(long)]
    pub pair: Vec<String>,
    /// A link that connections should spread over: NAME, or NAMESPACE/NAME
    #[arg(long)]
    pub link: Vec<String>,
}

#[derive(Args)]
pub struct RunArgs {
    /// Built-in plans (`ropewalk lab list`), files with plans of your own, or job files of fio (.fio)
    #[arg(required_unless_present = "all", value_hint = ValueHint::FilePath)]
    pub plans: Vec<String>,
    /// All built-in plans
    #[arg(long, conflicts_with = "plans")]
    pub all: bool,
    /// The short form: each plan within two minutes or so
    #[arg(long)]
    pub short: bool,
    /// Only list what would be measured, on what, and about how long it takes
    #[arg(long)]
    pub dry_run: bool,
    /// Results directory, made new [default: ropewalk-lab-DATE here]
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub on: MeasuredOn,
    /// A node where `ropewalk lab agent` runs, HOST or HOST:PORT; each is one client node
    #[arg(long)]
    pub agent: Vec<String>,
    /// Directory of a cluster: each node that runs `ropewalk serve` is one client node, and what is named as
    /// --writable is a directory on a mount of that cluster on each of them
    #[arg(long, value_hint = ValueHint::DirPath, conflicts_with = "agent", requires = "writable")]
    pub cluster: Option<PathBuf>,
}

#[derive(Args)]
pub struct AgentArgs {
    /// HOST or HOST:PORT to listen on
    #[arg(long, default_value = "127.0.0.1:6669")]
    pub listen: std::net::SocketAddr,
    /// A block device, file or directory that may be written, such as a mount
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub writable: Vec<String>,
    /// A block device or file to read
    #[arg(long, value_hint = ValueHint::AnyPath)]
    pub device: Vec<String>,
    /// Addresses of this node and of a server, CLIENT=SERVER
    #[arg(long)]
    pub pair: Vec<String>,
}

#[derive(Args)]
pub struct Resume {
    /// Results directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// How a report is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One page that needs nothing else
    Html,
    /// Markdown
    Md,
    /// JSON, for scripts
    Json,
    /// The points, one a line
    Csv,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Results directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// How it is written
    #[arg(long, value_enum, default_value = "html")]
    pub format: Format,
    /// Where to [default: DIR/report.html for html, else standard output]
    #[arg(long, value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct CompareArgs {
    /// Results directory of the run before
    #[arg(value_hint = ValueHint::DirPath)]
    pub before: PathBuf,
    /// Results directory of the run after
    #[arg(value_hint = ValueHint::DirPath)]
    pub after: PathBuf,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct SelfTest {
    /// Stagings whose name holds one of these words [default: all]
    pub only: Vec<String>,
    /// What is drawn comes from it [default: the clock]
    #[arg(long)]
    pub seed: Option<u64>,
    /// So many at most
    #[arg(long, default_value_t = 1000)]
    pub trials: usize,
    /// A directory on a disk; files are made below it and removed
    #[arg(long, default_value = "/var/tmp", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct NetFigures {
    /// Which groups [default: all]
    pub groups: Vec<lab::netfigures::Group>,
    /// Runs of each row over links
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of one run
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Draw the first run of each group from this number, as it was shown, and the others after it [default: the clock]
    #[arg(long)]
    pub seed: Option<u64>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
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
