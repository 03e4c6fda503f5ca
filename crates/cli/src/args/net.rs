//! The network: connections of a cluster, and measuring without one.

use std::path::PathBuf;

use base::{ByteSize, CipherList};
use clap::{Args, Subcommand, ValueHint};

use super::common::{self, Listing};

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
pub enum Netperf {
    /// Run on each host that shall be a server, or a client of a test led from elsewhere
    #[command(after_help = "Examples:
  ropewalk netperf server                                       on loopback only
  ropewalk netperf server --listen 10.0.0.2                     for other hosts, port 6668
  ropewalk netperf server --listen 10.0.0.2,10.1.0.2            two networks, used together
Whoever has the lab's secret (~/.ropewalk-lab.key) can use the server and end it.")]
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
    /// Run profiles of uperf, or write one
    #[command(subcommand)]
    Uperf(Uperf),
    /// End servers
    #[command(after_help = "Example:\n  ropewalk netperf quit --server 10.0.0.2")]
    Quit {
        /// HOST[:PORT]; repeat it for several
        #[arg(long, required = true)]
        server: Vec<String>,
    },
}

#[derive(Subcommand)]
pub enum Uperf {
    /// Run a profile: one-way writes as `stream`, writes and reads in turn as `rr`
    #[command(after_help = "Examples:
  ropewalk netperf uperf run stream.xml --set h=10.0.0.2
  ropewalk netperf uperf run stream.xml --set 'number of connections=16' --set 'message size=64k'
Each peer (remotehost) needs `ropewalk netperf server`, on port 6668 unless the profile says port=.
Variables are written $NAME, ${NAME} or {NAME}; without --set they come from the environment.")]
    Run(UperfRun),
    /// Print a test as a profile that uperf reads as well
    #[command(after_help = "Examples:
  ropewalk netperf uperf write stream --server 10.0.0.2 --connections 16 --size 64k > stream.xml
  ropewalk netperf uperf write rr --server 10.0.0.2 --server 10.1.0.2 --connections 50 --size 1")]
    Write(UperfWrite),
}

#[derive(Args)]
pub struct UperfRun {
    /// The profile
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// A variable's value, NAME=VALUE; repeat it for several
    #[arg(long)]
    pub set: Vec<String>,
    /// A host with a netperf server that shall be a client [default: this process is the one client]
    #[arg(long)]
    pub client: Vec<String>,
    /// Check the data that arrives
    #[arg(long)]
    pub verify: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct UperfWrite {
    /// stream or rr
    pub test: lab::netperf::Kind,
    /// A server: HOST[:PORT]; repeat it for several, each a group of the profile
    #[arg(long, required = true)]
    pub server: Vec<String>,
    /// Connections to each server
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Bytes of a message
    #[arg(long, default_value = "64k")]
    pub size: ByteSize,
    /// Messages under way on each connection of a stream
    #[arg(long, default_value_t = 16)]
    pub under_way: u32,
    /// Seconds
    #[arg(long, default_value_t = 120.0)]
    pub ttime: f64,
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
    /// What connections go by: tcp; shm, memory of both ends, where these are processes of one machine
    #[arg(long, default_value = "tcp")]
    pub transport: lab::netperf::Transporting,
    /// How connections are protected after the handshake
    #[arg(long, value_parser = common::cipher_list(), ignore_case = true, default_value = "EMPTY")]
    pub cipher_list: CipherList,
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
