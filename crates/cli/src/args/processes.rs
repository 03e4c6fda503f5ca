//! A cluster, its processes and its mounts: bringing up, taking down.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use base::{ByteSize, CipherList};
use clap::{Args, ValueHint};

use super::{
    analytics::PageArgs,
    common::{self, Dir, ListenAt},
    store::StoreArgs,
};

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
    /// Other machines join with a token (`ropewalk node token`)
    #[arg(long)]
    pub listen: Option<IpAddr>,
    /// How connections are protected after the handshake, which proves both ends in any case [default: EMPTY on loopback,
    /// else DEFAULT]
    #[arg(long, value_parser = common::cipher_list(), ignore_case = true)]
    pub cipher_list: Option<CipherList>,
    /// First TCP port; one for the manager and one for each node follow [default: free ones]
    #[arg(long)]
    pub port: Option<u16>,
    #[command(flatten)]
    pub journal: StoreArgs,
    /// Managers on this machine, for trying: one is active, the others follow; with --store [default for a new cluster: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=7))]
    pub managers: Option<u32>,
    /// Serve Prometheus metrics over HTTP: the first process on this address, each further one, the mount last, on the next port.
    /// A port alone is one of loopback; `off`: no longer. Remembered, also for systemd's units; processes that run have it when they
    /// are started anew
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<ListenAt>,
    #[command(flatten)]
    pub page: PageArgs,
    /// Come back when everything serves, instead of staying until Ctrl-C
    #[arg(long)]
    pub detach: bool,
    /// Do not mount, even if a mount point is remembered
    #[arg(long, conflicts_with = "mount")]
    pub no_mount: bool,
    /// Start the processes apart from systemd, also where it runs and has the units
    #[arg(long)]
    pub no_service: bool,
}

#[derive(Args)]
pub struct Down {
    #[command(flatten)]
    pub dir: Dir,
    /// Also when files are open on the mount, which programs cannot write to any more
    #[arg(long)]
    pub force: bool,
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
    /// Start its process apart from systemd, also where it runs and has the units
    #[arg(long)]
    pub no_service: bool,
    /// Only reading
    #[arg(long)]
    pub read_only: bool,
    /// Programs on it are not run
    #[arg(long)]
    pub no_exec: bool,
    /// Reading does not change access times
    #[arg(long)]
    pub no_atime: bool,
    /// How requests come from the kernel: classic (/dev/fuse), uring, auto (io_uring where it can be had, up to 64 CPUs)
    #[arg(long, env = "ROPEWALK_FUSE_TRANSPORT", default_value_t)]
    pub fuse_transport: fuse::Transport,
    /// Serve Prometheus metrics over HTTP on this address: figures, to whoever can reach it
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
    /// When a new file's or directory's name is durable
    #[arg(long, env = "ROPEWALK_NAMES", value_enum, default_value_t)]
    pub names: Names,
}

/// When a name that was made is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Names {
    /// With fsync of it or its directory, or within a second, as on a local file system
    #[default]
    Ahead,
    /// When the call returns
    Durable,
}

#[derive(Args)]
pub struct Sync {
    /// Mount points, or anything on them that you may read
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
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
