//! Nodes: the servers of a cluster.

use std::net::IpAddr;

use clap::{Args, Subcommand};

use super::{
    common::{Dir, Listing, new_name},
    join::NodeToken,
};

#[derive(Subcommand)]
pub enum Node {
    /// Nodes with addresses, state, pdisks and use
    #[command(
        after_help = "Examples:\n  ropewalk node list --dir /data/rope\n  ropewalk node list --dir /data/rope --json | jq '.[] | select(.state != \"serves\")'"
    )]
    List(Listing),
    /// One node: its addresses and pdisks, and what its server says of itself
    #[command(after_help = "Examples:
  ropewalk node show --dir /data/rope n2
  ropewalk node show --dir /data/rope n2 --json | jq .status.version")]
    Show(NodeShow),
    /// Make a token, with which one machine may join, once
    #[command(after_help = "Examples:
  ropewalk node token --dir /data/rope
  ropewalk node token --dir /data/rope --role client --lifetime 10min
  ropewalk node token --dir /data/rope --role client --fs fs1 --read-only
  ropewalk node token --dir /data/rope --role client --fs fs1 --subtree /projects/a
  ropewalk node token --dir /data/rope --role client --squash root")]
    Token(NodeToken),
    /// Machines that have joined, of any role: since when, until when their certificates hold
    #[command(after_help = "Examples:
  ropewalk node members --dir /data/rope
  ropewalk node members --dir /data/rope --json | jq '.[] | select(.state == \"revoked\")'")]
    Members(Listing),
    /// Shut a machine that has joined out, for good: its mounts are fenced, and no process speaks to it any more. To come
    /// back it joins with a new token. Of a node's machine: its pdisks count as missing once its lease has run out
    #[command(after_help = "Examples:
  ropewalk node revoke --dir /data/rope laptop
  ropewalk node revoke --dir /data/rope 5f1c2b3a4d5e6f70")]
    Revoke(MemberName),
    /// Move everything off the pdisks of a node, while all is in use. Refused before anything changes if the others have no
    /// room, or too few nodes would be left for a pool's code. What moves goes on when the command ends
    #[command(after_help = "Examples:
  ropewalk node drain --dir /data/rope n4
  ropewalk node drain --dir /data/rope n4 --no-wait
  ropewalk node drain --dir /data/rope n4 --json | jq .state")]
    Drain(NodeDrain),
    /// Take back a drain: the pdisks of the node are used again
    #[command(after_help = "Example:\n  ropewalk node keep --dir /data/rope n4")]
    Keep(NodeName),
    /// Take a node that does not serve out of the cluster, with its pdisks if they hold nothing any more
    #[command(after_help = "Example:\n  ropewalk node remove --dir /data/rope n4")]
    Remove(NodeName),
    /// A node listens at other addresses, or at one in each of its networks (rails): on its machine; its server is restarted.
    /// Or it is in another rack: from the first machine
    #[command(after_help = "Examples:
  ropewalk node set n2 --address 10.0.0.22
  ropewalk node set n2 --rack r3
  ropewalk node set n2 --address 10.0.0.2,10.1.0.2")]
    Set(NodeSet),
    /// Call a node otherwise; its files and pdisks keep their names
    #[command(after_help = "Example:\n  ropewalk node rename --dir /data/rope n4 rack2-4")]
    Rename(NodeRename),
}

#[derive(Args)]
pub struct NodeShow {
    #[command(flatten)]
    pub listing: Listing,
    /// Its name, as `node list` shows it
    pub node: String,
}

#[derive(Args)]
pub struct NodeDrain {
    #[command(flatten)]
    pub listing: Listing,
    /// Its name, as `node list` shows it
    pub node: String,
    /// Come back at once; given again, the command shows how far it is
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Args)]
pub struct NodeName {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name, as `node list` shows it
    pub node: String,
}

#[derive(Args)]
pub struct NodeSet {
    #[command(flatten)]
    pub name: NodeName,
    /// All its addresses from now on, separated by commas: those of this machine at which others reach it
    #[arg(long, required_unless_present_any = ["rack", "no_rack"], value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// Its TCP port [default: as before]
    #[arg(long, requires = "address", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The rack that it is in from now on; what that asks for moves
    #[arg(long, value_parser = new_name("rack"))]
    pub rack: Option<String>,
    /// It is in no rack
    #[arg(long, conflicts_with = "rack")]
    pub no_rack: bool,
}

#[derive(Args)]
pub struct NodeRename {
    #[command(flatten)]
    pub name: NodeName,
    /// Its new name: 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit
    #[arg(value_parser = new_name("node"))]
    pub new: String,
}

#[derive(Args)]
pub struct MemberName {
    #[command(flatten)]
    pub dir: Dir,
    /// The machine's name or number, as `node members` shows it
    pub member: String,
}
