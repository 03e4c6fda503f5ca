//! `ropewalk perf`, with the options of gpfsperf.

use std::{ffi::OsString, path::PathBuf};

use base::ByteSize;
use clap::{Args, ValueHint};

use super::common::Dir;

pub(super) const PERF_EXAMPLES: &str = "\
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
machine, found by the mount point, or by --dir where that does not tell.";

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
    /// Every write is durable when it returns: O_DSYNC (also -osync)
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
    #[arg(long)]
    pub direct_client: bool,
    #[command(flatten)]
    pub dir: Dir,
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
