//! What the manager tells people of the cluster.

use base::{BlockIndex, FsId, InodeNo, PdiskId, SessionId};
use serde::{Deserialize, Serialize};

use super::{Extent, ProcessIdent, Timestamp};
use crate::{
    hello::Role,
    map::{ClusterMap, PdiskState},
    token::{Need, Token},
    version::Build,
};

/// What `status` and the listings show.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterReport {
    /// The map.
    pub map: ClusterMap,
    /// Per pdisk, in map order: state, use and last report.
    pub pdisks: Vec<PdiskUse>,
    /// Live clients.
    pub clients: Vec<ClientReport>,
    /// Per file system, in map order: inodes in use.
    pub inodes: Vec<u64>,
    /// Blocks of deleted files not yet removed from pdisks.
    pub deletes_pending: u64,
    /// Where the manager's store stands, and whether it is replicated.
    pub store: String,
    /// What was found damaged in it since the manager started, for people.
    pub store_damage: Vec<String>,
    /// Per pool, in map order: what moves.
    pub moving: Vec<PoolMoving>,
}

/// Who runs what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionReport {
    /// The level of the cluster.
    pub level: u16,
    /// The manager's build.
    pub manager: Build,
    /// Nodes, by rising id, then clients.
    pub members: Vec<MemberVersion>,
}

/// What a node or a client runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberVersion {
    /// Server or client.
    pub role: Role,
    /// The node's name, or the mount point with its host.
    pub name: String,
    /// Its session; none: it is down.
    pub session: Option<SessionId>,
    /// What it runs, or ran last; none: not known.
    pub build: Option<Build>,
}

/// What moves in a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolMoving {
    /// Strips of groups that are to move, under way or not.
    pub left: u32,
    /// Of these, strips whose pdisk does not count: they are rebuilt.
    pub lost: u32,
    /// Strips of groups that have moved since nothing was left to move last.
    pub done: u32,
    /// Milliseconds since then.
    pub running_ms: u64,
    /// Why nothing can be planned, for people; empty if it can.
    pub hindered: String,
    /// Of `left`, strips that nothing can be made from until pdisks of their groups are back or given up.
    pub waiting: u32,
    /// Mean time that requests of clients took at the slowest server when the moves began, microseconds; 0 if
    /// there were none.
    pub client_us_before: u64,
}

/// What a pool has lost for good: so many of its pdisks were given up that too few strips of some groups were left.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolLosses {
    /// Which.
    pub pool: base::PoolId,
    /// Groups that may have lost blocks.
    pub groups: u32,
    /// What was found in them when all was looked at last; none: that has not been done yet.
    pub counted: Option<LostBlocks>,
}

/// Blocks that cannot be read any more, until they are written again as a whole or their files go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostBlocks {
    /// How many.
    pub blocks: u64,
    /// Of how many files.
    pub files: u64,
}

/// A file with blocks that cannot be read now.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LostFile {
    /// Its inode.
    pub ino: InodeNo,
    /// A path of it below the file system's root; empty if it has no name any more.
    pub path: Vec<u8>,
    /// Its bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The first block that cannot be read.
    pub first: BlockIndex,
    /// How many cannot.
    pub blocks: u64,
    /// The pool they are in.
    pub pool: base::PoolId,
    /// Which they are: the first [`LOST_RUNS_MAX`] runs. Only their strips say whether one can be decoded after
    /// all.
    pub runs: Vec<Extent>,
}

/// Most runs of blocks named for one file in [`LostFile`].
pub const LOST_RUNS_MAX: usize = 4096;

/// Something that happened in the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Rises by one; starts anew with the manager.
    pub number: u64,
    /// When, by the manager's clock.
    pub at: Timestamp,
    /// What, for people.
    pub text: String,
}

/// Use of one pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskUse {
    /// Which.
    pub id: PdiskId,
    /// Whether it counts.
    pub state: PdiskState,
    /// Capacity, bytes.
    pub capacity: u64,
    /// Free, bytes.
    pub free: u64,
    /// Milliseconds since its server's last report; none since the manager's start.
    pub age_ms: Option<u64>,
    /// Whether a server serves it now. The last copies stay `ok` in the map when they are gone.
    pub served: bool,
    /// What moving and catching up have stored on it since its server's start, bytes.
    pub moved: u64,
    /// Why a strip of it could not be made last; empty if none waits.
    pub waits: String,
    /// Mean time that requests of clients take at its server now, microseconds; 0 if there are none.
    pub client_us: u64,
}

/// Tokens of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TokenReport {
    /// The inode.
    pub ino: InodeNo,
    /// Who holds which token.
    pub holders: Vec<(SessionId, Token)>,
    /// Who waits for which, first first, for how many milliseconds.
    pub waiting: Vec<(SessionId, Need, u64)>,
}

/// One client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its session.
    pub session: SessionId,
    /// Its process.
    pub process: ProcessIdent,
    /// Its mount point.
    pub mount: String,
    /// Where it answers admin requests.
    pub admin_addr: String,
    /// The file system.
    pub fs: FsId,
    /// Milliseconds since its last renewal.
    pub age_ms: u64,
    /// Whether it holds all tokens of the file system.
    pub whole: bool,
    /// Tokens it holds one by one.
    pub tokens: u64,
    /// Tokens it is asked to give up, and for how many milliseconds the oldest.
    pub recalls: (u64, u64),
}
