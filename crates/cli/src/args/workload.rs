//! The mixed analytics workload of the lab.

use std::path::PathBuf;

use base::ByteSize;
use clap::{Args, Subcommand, ValueHint};

#[derive(Subcommand)]
pub enum Workload {
    /// Make the environment of the engines: pinned packages from the package index that pip is configured with
    #[command(after_help = "Examples:
  ropewalk lab workload setup
  ropewalk lab workload setup --env /data/engines")]
    Setup {
        /// Directory of the environment, made new; what is missing of one that was begun is added [default:
        /// ~/.local/share/ropewalk/workload]
        #[arg(long, value_hint = ValueHint::DirPath)]
        env: Option<PathBuf>,
    },
    /// The tests: class, engine, inputs, what is done, what is checked; and the engines with their licences
    #[command(after_help = "Example:\n  ropewalk lab workload list")]
    List {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// 20 tests, 71 jobs a round, on one client node
    #[command(
        name = "analytics-20",
        after_help = "Examples:
  ropewalk lab workload analytics-20 --short --dir /mnt/rope
  ropewalk lab workload analytics-20 --env /data/engines --dir /mnt/data,/mnt/work,/mnt/util --scale 0.01
  ropewalk lab workload analytics-20 --short --engine sort --engine gzip --dir /mnt/rope"
    )]
    Analytics20(WorkloadArgs),
    /// 30 tests, 101 jobs a round, on one client node
    #[command(
        name = "analytics-30",
        after_help = "Example:\n  ropewalk lab workload analytics-30 --short --dir /mnt/rope"
    )]
    Analytics30(WorkloadArgs),
    /// The same work on each of one to four client nodes: n of them are expected to move n times what one moves
    #[command(
        name = "analytics-nodes",
        after_help = "Examples:
  ropewalk lab workload analytics-nodes --short
  ropewalk lab workload analytics-nodes --env /data/engines --dir /mnt/c1 --dir /mnt/c2 --dir /mnt/c3 --dir /mnt/c4"
    )]
    AnalyticsNodes(WorkloadArgs),
    /// The same work over links of two speeds, 40 to 56
    #[command(
        name = "analytics-links",
        after_help = "Example:\n  ropewalk lab workload analytics-links --short"
    )]
    AnalyticsLinks(WorkloadArgs),
}

#[derive(Args)]
pub struct WorkloadArgs {
    /// The short form: small inputs, one round
    #[arg(long)]
    pub short: bool,
    /// Size of the inputs: 1 is 1.2 TB [default: 1; short form: 0.00002]
    #[arg(long)]
    pub scale: Option<f64>,
    /// The environment that `setup` made [default: the one that it makes without --env]
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub env: Option<PathBuf>,
    /// Only the tests of this engine; may be given several times. Those of the distribution need no environment
    #[arg(long)]
    pub engine: Vec<String>,
    /// A client node: one directory, or DATA,WORK,UTIL; may be given several times [default: mounts of a small cluster of
    /// its own]
    #[arg(long, value_name = "DIR[,DIR,DIR]", value_hint = ValueHint::DirPath)]
    pub dir: Vec<String>,
    /// Results directory, made new [default: ropewalk-lab-DATE here]
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// A file with what the tests must give: read, or written once that is computed [default: values.json in the results
    /// directory, which must be on a local disk]
    #[arg(long, value_hint = ValueHint::FilePath)]
    pub values: Option<PathBuf>,
    /// Seed of inputs and order
    #[arg(long)]
    pub seed: Option<u64>,
    /// Jobs at a time on each node [default: 71 or 101, as many as the free memory has room for]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Option<u32>,
    /// Rounds of the list of jobs [default: 4; short form: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// CPUs of each client node (root, control groups)
    #[arg(long)]
    pub cpus: Option<u32>,
    /// Memory of each client node (root, control groups)
    #[arg(long)]
    pub memory: Option<ByteSize>,
    /// What CPU time is multiplied by in the report, where the system counts shares of a core in place of seconds
    #[arg(long)]
    pub cpu_factor: Option<f64>,
}
