//! Pdisks, and what moves between them.

use std::path::PathBuf;

use base::ByteSize;
use clap::{Args, Subcommand, ValueHint};

use super::common::{Dir, Listing};

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
    #[command(after_help = "Examples:
  ropewalk pdisk fail --dir /data/rope n1p2
  ropewalk pdisk fail --dir /data/rope n1p2 --accept-loss      its machine has burnt, and no other has what it held")]
    Fail(PdiskFail),
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
    /// A new pdisk on the same node takes the place of one. The node's server is restarted
    #[command(after_help = "Examples:
  ropewalk pdisk replace --dir /data/rope n1p2
  ropewalk pdisk replace n2p1 --path /disks/new
  ropewalk pdisk replace n2p1 --path /disks/1          a new disk, mounted where the lost one was")]
    Replace(PdiskReplace),
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
pub struct PdiskFail {
    #[command(flatten)]
    pub name: PdiskName,
    /// Give it up although it holds what no other pdisk has: files lose blocks, and `pool lost` names them
    #[arg(long)]
    pub accept_loss: bool,
}

#[derive(Args)]
pub struct PdiskReplace {
    #[command(flatten)]
    pub name: PdiskName,
    /// Go on although the lost one held what no other pdisk has: files lose blocks, and `pool lost` names them
    #[arg(long)]
    pub accept_loss: bool,
    /// Size of the new one, preallocated [default: that of the old one]
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Its directory, on its disk [default: below the cluster's directory, if the old one is there]
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub path: Option<PathBuf>,
    /// Put its log here, on a faster device; losing that device loses the pdisk
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub log_dir: Option<PathBuf>,
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
    /// Completions that are gathered before they are handed over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub coalesce_count: u32,
    /// Microseconds that the first of them waits at most
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub coalesce_us: u32,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
