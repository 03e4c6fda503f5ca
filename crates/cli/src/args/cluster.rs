//! What a cluster holds, who uses it, and what it runs: versions, file systems, pools, the manager's store, clients, tokens,
//! locks, events, tunables.

use std::{net::IpAddr, path::PathBuf};

use base::ByteSize;
use clap::{ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use wire::map::FailureDomain;

use super::{
    common::{Dir, Listing, Removal, new_name},
    store::StoreArgs,
};

#[derive(Subcommand)]
pub enum Whole {
    /// Who runs which version of ropewalk, which versions of the protocol that speaks, and the cluster's level
    #[command(after_help = "Examples:
  ropewalk cluster version --dir /data/rope
  ropewalk cluster version --dir /data/rope --json | jq '.members[] | select(.ready | not) | .name'")]
    Version(Listing),
    /// Let the cluster store things in the newest way, once all run a version that can read it. There is no way back
    #[command(after_help = "Example:\n  ropewalk cluster finalize --dir /data/rope")]
    Finalize(Dir),
    /// The authority that signs who is a member: whose it is, and how it is exchanged for a new one
    #[command(subcommand)]
    Authority(Authority),
}

#[derive(Subcommand)]
pub enum Authority {
    /// Which authorities are believed, and who still has a certificate of the one before while it is exchanged
    #[command(after_help = "Examples:
  ropewalk cluster authority show --dir /data/rope
  ropewalk cluster authority show --dir /data/rope --json | jq -r '.behind[].name'")]
    Show(Listing),
    /// Begin to exchange it, on the manager's machine, while everything runs: a new secret and authority are made, both are
    /// believed, and each machine has its certificate signed anew by itself, at once or when it is back
    #[command(after_help = "Example:\n  ropewalk cluster authority renew --dir /data/rope")]
    Renew(Dir),
    /// End the exchange: what the authority before has signed, and tokens that were made before, are worth nothing from now on
    #[command(after_help = "Examples:
  ropewalk cluster authority finish --dir /data/rope
  ropewalk cluster authority finish --dir /data/rope --force")]
    Finish(AuthorityFinish),
}

#[derive(Args)]
pub struct AuthorityFinish {
    #[command(flatten)]
    pub dir: Dir,
    /// Also while machines have a certificate of the one before: they are shut out, and join again with a token
    #[arg(long)]
    pub force: bool,
}

#[derive(Subcommand)]
pub enum Fs {
    /// File systems with pool, code and block size
    #[command(after_help = "Example:\n  ropewalk fs list --dir /data/rope")]
    List(Listing),
    /// Capacity and use, redundancy taken off
    #[command(
        after_help = "Examples:\n  ropewalk fs df --dir /data/rope\n  ropewalk fs df --dir /data/rope --json | jq '.[0].free_bytes'"
    )]
    Df(Listing),
    /// A new, empty file system
    #[command(after_help = "Example:\n  ropewalk fs create --dir /data/rope fs2 --pool work")]
    Create {
        #[command(flatten)]
        dir: Dir,
        /// Its name
        #[arg(value_parser = new_name("file system"))]
        name: String,
        /// The pool of its root directory
        #[arg(long)]
        pool: String,
    },
    /// Remove a file system that nobody has mounted, with everything in it
    #[command(after_help = "Example:\n  ropewalk fs delete --dir /data/rope fs2 --yes")]
    Delete(Removal),
    /// Direct what is made in a mounted directory, and below, to a pool; what exists stays where it is
    #[command(after_help = "Examples:
  ropewalk fs set-pool /mnt/rope/work work
  getfattr -n ropewalk.pool /mnt/rope/work           the same attribute tells the pool of any file")]
    SetPool {
        #[command(flatten)]
        dir: Dir,
        /// A directory of a mounted file system
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
        /// The pool
        pool: String,
    },
}

#[derive(Subcommand)]
pub enum Pool {
    /// Pools with code, block size and groups
    #[command(after_help = "Example:\n  ropewalk pool list --dir /data/rope")]
    List(Listing),
    /// A new pool over pdisks of the cluster; several may share pdisks and their room
    #[command(after_help = "Examples:
  ropewalk pool create --dir /data/rope work --code 1way --block-size 1m
  ropewalk pool create --dir /data/rope data --code 8+2p --block-size 8m")]
    Create(PoolCreate),
    /// Remove a pool that no file is in and no directory directs to
    #[command(after_help = "Example:\n  ropewalk pool delete --dir /data/rope work --yes")]
    Delete(Removal),
    /// Name the files that cannot be read as a whole now, because more strips are gone than the code can bear
    #[command(after_help = "Example:\n  ropewalk pool lost --dir /data/rope --json")]
    Lost(Listing),
    /// How many groups lack how many strips, spare space, what is to move
    #[command(after_help = "Example:\n  ropewalk pool status --dir /data/rope")]
    Status(Listing),
    /// Read everything and prove every stripe: data against CRCs, parity against data, versions, and what is
    /// there against what files name; exit status 0 only if all is proved
    #[command(after_help = "Examples:
  ropewalk pool verify --dir /data/rope
  ropewalk pool verify --dir /data/rope pool1 --repair --json")]
    Verify(PoolVerify),
}

#[derive(Args)]
pub struct PoolCreate {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    #[arg(value_parser = new_name("pool"))]
    pub name: String,
    /// Redundancy code: 1way..4way, 2+1p, 4+2p, 4+3p, 8+2p, 8+3p, 16+2p, 16+3p
    #[arg(long)]
    pub code: String,
    /// Block size, a power of two from 256k to 16m
    #[arg(long)]
    pub block_size: ByteSize,
    /// A pdisk it is laid out over; may be given several times [default: all]
    #[arg(long = "pdisk")]
    pub pdisks: Vec<String>,
    /// Make it only if it can be read with any one of these lost
    #[arg(long, value_enum)]
    pub failure_domain: Option<Domain>,
}

/// What may be lost at once.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Domain {
    /// A node with all its pdisks
    Node,
    /// A rack with all its nodes
    Rack,
}

impl From<Domain> for FailureDomain {
    fn from(domain: Domain) -> FailureDomain {
        match domain {
            Domain::Node => FailureDomain::Node,
            Domain::Rack => FailureDomain::Rack,
        }
    }
}

#[derive(Args)]
pub struct PoolVerify {
    #[command(flatten)]
    pub listing: Listing,
    /// Only this pool
    pub pool: Option<String>,
    /// Make damaged and absent strips anew
    #[arg(long)]
    pub repair: bool,
}

#[derive(Subcommand)]
pub enum Manager {
    /// Write everything the manager stores into a file: as it is at one moment, while the cluster is up or down
    #[command(after_help = "Example:\n  ropewalk manager dump --dir /data/rope rope.dump")]
    Dump(ManagerDump),
    /// Make the manager's store from such a file, for pdisks that are at least as new as it
    #[command(
        after_help = "Example:\n  mv /data/rope/manager /data/rope/manager.old\n  ropewalk manager restore --dir /data/rope rope.dump"
    )]
    Restore(ManagerFile),
    /// Check all that the manager stores, changing nothing; the cluster is down meanwhile
    #[command(after_help = "Example:\n  ropewalk manager check --dir /data/rope")]
    Check(Listing),
    /// Make a store that is refused one that starts, without what is lost; says what that is
    #[command(
        after_help = "Example:\n  ropewalk manager check --dir /data/rope\n  ropewalk manager accept-loss --dir /data/rope --yes"
    )]
    AcceptLoss(AcceptLoss),
    /// Take the manager's journal into etcd, or back into a file; the cluster is down meanwhile
    #[command(
        after_help = "Examples:\n  ropewalk manager migrate --dir /data/rope --store etcd://a:2379,b:2379,c:2379/rope\n  \
                      ropewalk manager migrate --dir /data/rope --to-file"
    )]
    Migrate(Box<Migrate>),
    /// Keep a copy of the manager's store in a directory on another disk, or on another machine, with every commit; the manager is down
    /// meanwhile
    #[command(after_help = "Examples:\n  ropewalk manager mirror --dir /data/rope /disk2/rope\n  \
                      ropewalk manager mirror --dir /data/rope m2             a machine that has joined with a token of role manager\n  \
                      ropewalk manager mirror --dir /data/rope --off")]
    Mirror(ManagerMirror),
    /// The managers, which of them is active, and how far the others are behind
    #[command(
        after_help = "Example:\n  ropewalk manager list --dir /data/rope --json | jq '.[] | select(.active) | .name'"
    )]
    List(Listing),
    /// One more manager on this machine, which follows the active one. On another machine it joins with a token
    #[command(
        after_help = "Examples:\n  ropewalk manager add --dir /data/rope m2                  on a machine that has one\n  \
                      ropewalk node token --dir /data/rope --role manager     there, and on another machine:\n  \
                      ropewalk join --dir /data/rope-manager TOKEN --address 192.0.2.2"
    )]
    Add(ManagerAdd),
    /// A manager is none any more; not the active one
    #[command(after_help = "Example:\n  ropewalk manager remove --dir /data/rope m2")]
    Remove(ManagerName),
    /// Make a manager the active one: operations pause for up to about a second. With --from-mirror: make a copy of the manager's store that
    /// store, when it is lost; refused if the copy is behind
    #[command(after_help = "Examples:\n  ropewalk manager promote --dir /data/rope m2\n  \
                      ropewalk manager promote --dir /data/rope --from-mirror /disk2/rope    the manager does not run\n  \
                      ropewalk manager promote --dir /data/rope-manager --from-mirror        on the machine that keeps the copy")]
    Promote(Promote),
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["copy", "off"])))]
pub struct ManagerMirror {
    #[command(flatten)]
    pub dir: Dir,
    /// The directory, which holds nothing else; or the name of a manager on another machine, as `manager list` shows it
    #[arg(value_hint = ValueHint::DirPath, value_name = "DIR|NODE")]
    pub copy: Option<PathBuf>,
    /// Keep none any more
    #[arg(long)]
    pub off: bool,
    /// The copy on the other machine is gone for good, and nobody will promote it: the servers are not told that it does not count
    #[arg(long)]
    pub destroyed: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["name", "from_mirror"])))]
pub struct Promote {
    #[command(flatten)]
    pub dir: Dir,
    /// The manager's name
    pub name: Option<String>,
    /// The copy's directory; without one, the copy that this machine keeps for another one
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub from_mirror: Option<Option<PathBuf>>,
}

#[derive(Args)]
pub struct ManagerName {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    pub name: String,
}

#[derive(Args)]
pub struct ManagerAdd {
    #[command(flatten)]
    pub dir: Dir,
    /// Its name
    #[arg(value_parser = new_name("manager"))]
    pub name: String,
    /// Addresses at which others reach it, one for each of this machine's networks: separated by commas [default: as of the manager
    /// that is here]
    #[arg(long, value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// Its TCP port [default: the next that is free]
    #[arg(long)]
    pub port: Option<u16>,
}

#[derive(Args)]
#[command(group(ArgGroup::new("to").required(true).args(["store", "to_file"])))]
pub struct Migrate {
    #[command(flatten)]
    pub dir: Dir,
    #[command(flatten)]
    pub journal: StoreArgs,
    /// Back into a file beside the table
    #[arg(long)]
    pub to_file: bool,
}

#[derive(Args)]
pub struct AcceptLoss {
    #[command(flatten)]
    pub dir: Dir,
    /// Names, sizes and contents that were acknowledged may be gone, for good
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct ManagerDump {
    #[command(flatten)]
    pub file: ManagerFile,
    /// Leave out what is damaged, and say what that is; the cluster is down meanwhile
    #[arg(long)]
    pub damaged: bool,
}

#[derive(Args)]
pub struct ManagerFile {
    #[command(flatten)]
    pub dir: Dir,
    /// The dump
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

#[derive(Subcommand)]
pub enum Clients {
    /// Sessions with mount point, process and tokens
    #[command(after_help = "Example:\n  ropewalk clients list --dir /data/rope --json")]
    List(Listing),
    /// End a session by force: its mount fails from then on, its tokens go to whoever waits for them
    #[command(after_help = "Example:\n  ropewalk clients detach --dir /data/rope 12")]
    Detach {
        #[command(flatten)]
        dir: Dir,
        /// Its number, as `ropewalk clients list` shows it
        session: u64,
    },
}

#[derive(Args)]
pub struct Tokens {
    #[command(flatten)]
    pub listing: Listing,
    /// Only of files whose tokens somebody waits for
    #[arg(long)]
    pub waiting: bool,
}

#[derive(Args)]
pub struct Locks {
    #[command(flatten)]
    pub listing: Listing,
    /// Only those that are waited for, and who waits
    #[arg(long)]
    pub waiting: bool,
}

#[derive(Args)]
pub struct Events {
    #[command(flatten)]
    pub listing: Listing,
    /// Only events after this number
    #[arg(long, default_value_t = 0)]
    pub after: u64,
}

#[derive(Subcommand)]
pub enum Config {
    /// All tunables with their values ("!" changed, "." derived)
    #[command(after_help = "Example:\n  ropewalk config show --dir /data/rope")]
    Show(Listing),
    /// One tunable: meaning, unit, range, what changing it does
    #[command(after_help = "Example:\n  ropewalk config explain pagepool")]
    Explain {
        #[command(flatten)]
        dir: Dir,
        /// Its name
        name: String,
    },
    /// Change tunables: NAME=VALUE ...
    #[command(after_help = "Example:\n  ropewalk config set --dir /data/rope pagepool=4g prefetchThreads=16")]
    Set {
        #[command(flatten)]
        dir: Dir,
        /// NAME=VALUE
        #[arg(required = true)]
        pairs: Vec<String>,
    },
}
