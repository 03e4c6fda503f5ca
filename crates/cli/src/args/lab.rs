//! The command line of the lab: plans, netperf, testbeds, perf, the layout simulator.

use std::{ffi::OsString, num::NonZeroU32, path::PathBuf};

use base::ByteSize;
use clap::{Args, Subcommand, ValueHint};

use crate::commands::lab_run;

#[derive(Subcommand)]
pub enum Lab {
    /// The built-in plans
    #[command(after_help = "Example:\n  ropewalk lab list")]
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
  ropewalk lab run --all --dry-run                       what would be measured, on what, how long
  ropewalk lab run node-scaling --cluster /data/rope --writable /mnt/rope      every node
  ropewalk lab run ./mine.toml

Only what is named as --writable is written, beside the results directory. Where nothing is named,
something stands in: files in the results directory, links and a small cluster in network namespaces
(root).")]
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
    /// Take part in runs that another node leads, where there is no cluster (`serve` takes part by itself); whoever
    /// reaches the port can make load with what is named here
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
    #[arg(long, default_value_t = 3.0)]
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
    /// Connections between each client and each server, 1 to 16; auto: found by measuring
    #[arg(long, default_value = "1")]
    pub parallel: lab::netperf::Parallel,
    /// Show histograms
    #[arg(long)]
    pub hist: bool,
    /// Check the data that arrives
    #[arg(long)]
    pub verify: bool,
    /// How messages are given to connections: shortest_queue, round_robin, pinned (each thread to one)
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
    #[arg(long)]
    pub direct_client: bool,
    #[command(flatten)]
    pub dir: super::Dir,
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
