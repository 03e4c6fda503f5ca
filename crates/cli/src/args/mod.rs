//! The command line: what can be asked, with examples. Nothing is done here.

mod advise;
mod analytics;
mod cluster;
mod common;
mod dumps;
mod join;
mod lab;
mod mount_helper;
mod net;
mod nodes;
mod pdisks;
mod perf;
mod processes;
mod store;
mod testbed;
mod workload;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueHint};

pub use self::{
    advise::*, analytics::*, cluster::*, common::*, dumps::*, join::*, lab::*, mount_helper::*, net::*,
    nodes::*, pdisks::*, perf::*, processes::*, store::*, testbed::*, workload::*,
};

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
Without --dir, ROPEWALK_DIR names the cluster; without both it is the only one of yours that runs
here.
Exit status: 0 only if what was asked was done; 1 not done, stderr says why; 2 the command line is
not understood; 130 interrupted (Ctrl-C), nothing is left half made.";

#[derive(Subcommand)]
pub enum Command {
    /// Bring up a whole cluster on this machine: made if DIR is empty, else the same one again, or what this
    /// machine runs of it
    #[command(after_help = "Examples:
  ropewalk up --dir /data/rope --mount /mnt/rope --detach
  ropewalk up --dir /tmp/r --nodes 6 --pdisks 2 --code 8+2p --block-size 8m --pdisk-size 4g --detach
  ropewalk up --dir /data/rope --analytics           with its page, at http://127.0.0.1:9470/
  ropewalk up --dir /data/rope --analytics 10.0.0.1:9470 --analytics-password
  ropewalk up --dir /data/rope --metrics 10.0.0.1:9400     the first process there; with off: no longer
  ropewalk up --dir /data/rope                       the cluster of that directory again, until Ctrl-C")]
    Up(Up),
    /// Make the first machine of a cluster of several: the manager and a node
    #[command(after_help = "Examples:
  ropewalk init --name rope --address 10.0.0.1 --pdisk /disks/1 --pdisk /disks/2
  ropewalk init --address 10.0.0.1 --pdisk /disks/1 --analytics 10.0.0.1:9470 --analytics-password
  ropewalk node token                                on it, for each further machine
  ropewalk join TOKEN --address 10.0.0.2 --pdisk /disks/1          on that machine")]
    Init(Init),
    /// Join a cluster with a token: this machine becomes a node of it, or a client
    #[command(after_help = "Examples:
  ropewalk join rw1.server.5f... --address 10.0.0.2 --pdisk /disks/1 --pdisk /disks/2
  ropewalk join - --dir /data/rope < token           the token is in no list of processes then
  ropewalk join rw1.client.07... && ropewalk mount --dir /var/lib/ropewalk fs1 /mnt/rope")]
    Join(Join),
    /// Stop what this machine runs of a cluster: unmount, then end its processes
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
  ropewalk mount --dir /data/rope fs1 /mnt/rope --fuse-transport uring")]
    Mount(Mount),
    /// Unmount a file system and wait until everything is written
    #[command(
        after_help = "Examples:\n  ropewalk umount /mnt/rope\n  ropewalk umount /mnt/rope --force    also when files are open"
    )]
    Umount(Umount),
    /// Make durable all that was written on a mount before: sync(2) does not reach it
    #[command(after_help = "Examples:
  ropewalk sync /mnt/rope
  cp -a tree /mnt/rope/ && ropewalk sync /mnt/rope")]
    Sync(Sync),
    /// What runs, and whether it is well
    #[command(
        after_help = "Examples:\n  ropewalk status --dir /data/rope\n  ropewalk status --dir /data/rope --json | jq .pdisks"
    )]
    Status(Listing),
    /// File systems
    #[command(subcommand)]
    Fs(Fs),
    /// The cluster as a whole: which versions of ropewalk it runs
    #[command(subcommand)]
    Cluster(Whole),
    /// Nodes: the servers of the cluster, on whatever machine
    #[command(subcommand)]
    Node(Node),
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
    /// Who does what on the cluster now: clients, files, operations, nodes, pdisks, live
    #[command(after_help = "Examples:
  ropewalk top --dir /data/rope
  ropewalk top --view files --once
  ropewalk top --view pdisks --over 1m --json | jq '.lines[0]'

Keys: 1-5 views; Enter drills into a line, Backspace goes back; c client, f file, u user, o operation, s size, l latency, p pdisk, n node:
what to break down by; left and right: what to sort by; / filters lines; q ends.")]
    Top(Top),
    /// What happened in every second, now and back in time: by client, file, operation, size and latency
    #[command(subcommand)]
    Analytics(Analytics),
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
    /// Read this machine, or dumps of others, and say what to change, and why; change it, and take it back
    #[command(args_conflicts_with_subcommands = true, after_help = ADVISE)]
    Advise(Advise),
    /// What mount(8) calls for `mount -t ropewalk` and fstab
    #[command(name = MOUNT_HELPER, hide = true)]
    MountHelper(MountHelper),
    /// What umount(8) calls
    #[command(name = UMOUNT_HELPER, hide = true)]
    UmountHelper(UmountHelper),
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
