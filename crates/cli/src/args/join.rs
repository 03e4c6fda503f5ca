//! Clusters of several machines: the first one, and how others join.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use base::{ByteSize, CipherList, tunables::parse_duration};
use clap::{Args, ValueEnum, ValueHint};
use net::Role;

use super::common::{self, Dir};

/// The manager's port, unless told otherwise.
const MANAGER_PORT: &str = "7450";
/// That of a node.
const NODE_PORT: &str = "7451";

#[derive(Args)]
pub struct Init {
    #[command(flatten)]
    pub dir: Dir,
    /// The cluster's name [default: that of its directory]
    #[arg(long)]
    pub name: Option<String>,
    /// The node's name [default: this machine's]
    #[arg(long)]
    pub node: Option<String>,
    /// Address of this machine, at which others reach it; several, one for each of its networks: separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// The manager's TCP port; the node has the next one
    #[arg(long, default_value = MANAGER_PORT)]
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
}

#[derive(Args)]
pub struct Join {
    #[command(flatten)]
    pub dir: Dir,
    /// What `ropewalk node token` printed; `-`: from standard input
    pub token: String,
    /// Servers: address of this machine, at which others reach it; several, one for each of its networks: separated by
    /// commas
    #[arg(long, value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// Servers: the node's TCP port
    #[arg(long, default_value = NODE_PORT)]
    pub port: u16,
    /// The node's name [default: this machine's]
    #[arg(long)]
    pub name: Option<String>,
    /// Servers: a directory on a disk that becomes a pdisk; again for each
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub pdisk: Vec<PathBuf>,
    /// Size of each pdisk, preallocated [default: 16g, or what fits half of the free space]
    #[arg(long)]
    pub pdisk_size: Option<ByteSize>,
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
}

impl From<JoinRole> for Role {
    fn from(role: JoinRole) -> Role {
        match role {
            JoinRole::Server => Role::Server,
            JoinRole::Client => Role::Client,
            JoinRole::Admin => Role::Admin,
        }
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
    /// How long it may be used, at most a week (168h)
    #[arg(long, default_value = "1h", value_parser = parse_duration)]
    pub lifetime: Duration,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
