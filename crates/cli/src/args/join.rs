//! Clusters of several machines: the first one, and how others join.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use base::{ByteSize, CipherList, tunables::parse_duration};
use clap::{Args, ValueEnum, ValueHint};
use net::Role;

use super::{
    analytics::PageArgs,
    common::{self, Dir, new_name},
    store::StoreArgs,
};

/// The manager's port, unless told otherwise.
pub const MANAGER_PORT: u16 = 7450;
/// That of a node.
pub const NODE_PORT: u16 = 7451;

#[derive(Args)]
pub struct Init {
    #[command(flatten)]
    pub dir: Dir,
    /// The cluster's name [default: like that of its directory]
    #[arg(long, value_parser = new_name("cluster"))]
    pub name: Option<String>,
    /// The node's name [default: this machine's]
    #[arg(long, value_parser = new_name("node"))]
    pub node: Option<String>,
    /// Address of this machine, at which others reach it; several, one for each of its networks: separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// The manager's TCP port; the node has the next one
    #[arg(long, default_value_t = MANAGER_PORT)]
    pub port: u16,
    /// A directory on a disk that becomes a pdisk; again for each
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub pdisk: Vec<PathBuf>,
    /// Size of each pdisk, preallocated [default: 16g, or what fits half of the free space]
    #[arg(long)]
    pub pdisk_size: Option<ByteSize>,
    /// How connections are protected after the handshake [default: EMPTY on loopback, else DEFAULT]
    #[arg(long, value_parser = common::cipher_list(), ignore_case = true)]
    pub cipher_list: Option<CipherList>,
    /// The rack that the machine is in: what is lost together. Pools spread their strips over racks
    #[arg(long, value_parser = new_name("rack"))]
    pub rack: Option<String>,
    /// Start the processes apart from systemd, also where it runs and has the units
    #[arg(long)]
    pub no_service: bool,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub journal: StoreArgs,
}

#[derive(Args)]
pub struct Join {
    #[command(flatten)]
    pub dir: Dir,
    /// What `ropewalk node token` printed; `-`: from standard input
    pub token: String,
    /// Servers and managers: address of this machine, at which others reach it; several, one for each of its networks: separated by
    /// commas
    #[arg(long, value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// Servers and managers: the TCP port [default: 7451 of a node, 7450 of a manager]
    #[arg(long)]
    pub port: Option<u16>,
    /// The node's or manager's name [default: this machine's]
    #[arg(long, value_parser = new_name("machine"))]
    pub name: Option<String>,
    /// Servers: a directory on a disk that becomes a pdisk; again for each
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub pdisk: Vec<PathBuf>,
    /// Size of each pdisk, preallocated [default: 16g, or what fits half of the free space]
    #[arg(long)]
    pub pdisk_size: Option<ByteSize>,
    /// Servers: the rack that the machine is in: what is lost together. Pools spread their strips over racks
    #[arg(long, value_parser = new_name("rack"))]
    pub rack: Option<String>,
    /// Start the processes apart from systemd, also where it runs and has the units
    #[arg(long)]
    pub no_service: bool,
}

/// What a machine that joins will be.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum JoinRole {
    /// A node with pdisks; it can mount as well
    Server,
    /// It mounts file systems
    Client,
    /// It gives commands, and mounts
    Admin,
    /// It runs one more manager, and holds the cluster's secret: whoever is root there owns the data
    Manager,
}

impl From<JoinRole> for Role {
    fn from(role: JoinRole) -> Role {
        match role {
            JoinRole::Server => Role::Server,
            JoinRole::Client => Role::Client,
            JoinRole::Admin => Role::Admin,
            JoinRole::Manager => Role::Manager,
        }
    }
}

/// Whom the programs of a machine act as.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SquashKind {
    /// As whom they run: its root is root here too (as clusters' own machines need it; NFS calls it no_root_squash)
    None,
    /// Root as --anon, the others as whom they run
    Root,
    /// All as --anon
    All,
}

/// `UID:GID`, neither of them root's.
fn parse_anonymous(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    match ids {
        None => Err("two numbers, as in 65534:65534".to_owned()),
        Some((0, _) | (_, 0)) => Err("0 is root's: whoever is squashed acts as somebody else".to_owned()),
        Some(ids) => Ok(ids),
    }
}

#[derive(Args)]
pub struct NodeToken {
    #[command(flatten)]
    pub dir: Dir,
    /// What the machine will be
    #[arg(long, value_enum, default_value = "server")]
    pub role: JoinRole,
    /// Clients: a file system that it may mount; again for each [default: all]
    #[arg(long = "fs", value_name = "NAME")]
    pub filesystems: Vec<String>,
    /// Clients: a directory of the one file system, which becomes the root of what it mounts: it reaches nothing else
    #[arg(long, value_name = "PATH")]
    pub subtree: Option<String>,
    /// Clients: it may read and nothing else
    #[arg(long)]
    pub read_only: bool,
    /// Clients: whom its programs act as
    #[arg(long, value_enum, default_value = "none")]
    pub squash: SquashKind,
    /// Clients: user and group that squashed ones act as, by number [default: 65534:65534, nobody]
    #[arg(long, value_name = "UID:GID", value_parser = parse_anonymous)]
    pub anon: Option<(u32, u32)>,
    /// How long it may be used, at most a week (168h)
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    pub lifetime: Duration,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
