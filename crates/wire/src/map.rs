//! The cluster map: who is in the cluster, which pdisks count, how pools are laid out, whose sessions
//! may write. One writer (the manager), versioned by its epoch; everyone else holds a copy.

use std::net::SocketAddr;

use base::{
    ClusterId, Epoch, FsId, GroupId, Incarnation, InodeNo, MemberId, NodeId, PdiskId, PoolId, SessionId,
    StripIndex,
};
use serde::{Deserialize, Serialize};

use crate::credentials::Squash;

/// One version of the cluster map.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Grows with every change.
    pub epoch: Epoch,
    /// Which cluster.
    pub cluster: ClusterId,
    /// Its name, for people.
    pub name: String,
    /// The nodes, by rising id.
    pub nodes: Vec<NodeEntry>,
    /// The pdisks, by rising id.
    pub pdisks: Vec<PdiskEntry>,
    /// The pools, by rising id.
    pub pools: Vec<PoolEntry>,
    /// The file systems, by rising id.
    pub filesystems: Vec<FsEntry>,
    /// Client sessions that may change anything, by rising number. Who is not here is fenced. A client's copy has none of others:
    /// its own when its session begins, later none.
    pub clients: Vec<ClientEntry>,
    /// Members whose certificates are worth nothing any more, by rising number.
    pub revoked: Vec<MemberId>,
    /// Members that may not do all that their role may, by rising number.
    pub limited: Vec<LimitedMember>,
    /// The level of the cluster: nothing is stored in a way that came with a later one.
    pub level: u16,
    /// The racks that nodes are in, by rising node; who is not here is in none that is known.
    pub racks: Vec<NodeRack>,
    /// The managers, by rising name, where there can be several; one of them is active, which is known by asking any.
    pub managers: Vec<ManagerEntry>,
}

/// A manager.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ManagerEntry {
    /// Its name, for people and commands.
    pub name: String,
    /// "ip:port" at which it answers; several are rails.
    pub addrs: Vec<String>,
}

impl ManagerEntry {
    /// Its addresses, as far as they are some.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        self.addrs.iter().filter_map(|addr| addr.parse().ok()).collect()
    }
}

/// The rack of a node: what is lost together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeRack {
    /// The node.
    pub node: NodeId,
    /// The rack's name.
    pub rack: String,
}

/// What may be lost at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FailureDomain {
    /// A node with all its pdisks.
    Node,
    /// A rack with all its nodes.
    Rack,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its id.
    pub id: NodeId,
    /// Its name, for people.
    pub name: String,
    /// "ip:port" of its NSD server; several are rails.
    pub addrs: Vec<String>,
    /// The server's present session; none while it is down.
    pub session: Option<SessionId>,
}

/// Whether a pdisk counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum PdiskState {
    /// Read, written, needed for every acknowledgement of its stripes.
    #[default]
    Ok,
    /// Not read and not written: its content is out of date.
    Missing,
    /// Back, and catching up: written and needed for acknowledgements, not read by clients.
    Returning,
    /// Gave a write or flush error; will not come back by itself.
    Failed,
}

impl PdiskState {
    /// Whether a write must be stored here before it is acknowledged.
    pub fn written(self) -> bool {
        matches!(self, PdiskState::Ok | PdiskState::Returning)
    }
    /// Lower-case name for listings.
    pub fn name(self) -> &'static str {
        match self {
            PdiskState::Ok => "ok",
            PdiskState::Missing => "missing",
            PdiskState::Returning => "returning",
            PdiskState::Failed => "failed",
        }
    }
}

/// A pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PdiskEntry {
    /// Its id.
    pub id: PdiskId,
    /// Its name, for people: node name and number.
    pub name: String,
    /// The nodes it can be reached through, first choice first.
    pub nodes: Vec<NodeId>,
    /// Whether it counts.
    pub state: PdiskState,
    /// Bytes it can hold.
    pub capacity: u64,
    /// The epoch in which its state last changed: requests that are older are refused for its groups.
    pub changed: Epoch,
    /// The life it registered with last.
    pub incarnation: Incarnation,
    /// It is to hold nothing: its strips go to other pdisks, and it gets no new ones.
    pub leaving: bool,
}

impl PdiskEntry {
    /// An administrator has said that nothing of it is to be waited for.
    pub fn given_up(&self) -> bool {
        self.state == PdiskState::Failed && self.leaving
    }
}

/// A pool and its layout table.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolEntry {
    /// Its id.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Redundancy code, as text: `4+2p`, `3way`.
    pub code: String,
    /// Bytes of a block, a power of two from 256 KiB to 16 MiB.
    pub block_size: u32,
    /// Strips of a stripe: K+M.
    pub width: u8,
    /// Spare space, counted in pdisks.
    pub spare: u32,
    /// Seed of the table's construction.
    pub seed: u64,
    /// The layout table: `width` pdisks for each group, one group after the other.
    pub table: Vec<PdiskId>,
    /// The epoch in which the table or `moves` last changed.
    pub changed: Epoch,
    /// For each group the epoch of its own last change; empty while no group has ever changed.
    pub group_changed: Vec<Epoch>,
    /// The pdisks the pool is laid out over, by rising id: those of the table, and new ones.
    pub pdisks: Vec<PoolPdisk>,
    /// Strips on their way to another pdisk, by rising group and strip.
    pub moves: Vec<StripMove>,
}

/// A pdisk as the layout of a pool sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PoolPdisk {
    /// Which.
    pub id: PdiskId,
    /// The declustered array it belongs to; none before it was first planned with.
    pub array: Option<u16>,
    /// Its weight, bytes.
    pub weight: u64,
    /// Enclosure or rack, if known.
    pub enclosure: Option<u32>,
}

/// One strip of all stripes of a group is on its way to another pdisk. Until the table names that pdisk
/// it is written like a member and needed for every acknowledgement, but not read, and nothing that it
/// holds or lacks decides anything: the member in the table still counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct StripMove {
    /// The group.
    pub group: GroupId,
    /// Which of its strips.
    pub strip: StripIndex,
    /// Where it goes.
    pub to: PdiskId,
    /// The epoch in which this began.
    pub since: Epoch,
}

/// A file system.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FsEntry {
    /// Its id.
    pub id: FsId,
    /// Its name.
    pub name: String,
    /// Where new files go.
    pub pool: PoolId,
}

/// A client session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientEntry {
    /// The session.
    pub session: SessionId,
    /// The file system it has mounted.
    pub fs: FsId,
    /// Whose it is: nobody else may act in it.
    pub member: MemberId,
}

/// What the sessions of a member may do; the default: everything.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// The file systems that it may mount, by rising number; empty: all.
    pub filesystems: Vec<FsId>,
    /// It changes nothing.
    pub read_only: bool,
    /// The directory that is its root, of the one file system that it may mount; none: that file system's.
    pub subtree: Option<Subtree>,
    /// Whom its programs act as.
    pub squash: Squash,
}

/// A directory and all below.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Subtree {
    /// Its path when it was named, for people.
    pub path: String,
    /// It; whoever asks for an invitation leaves 0, and the manager looks it up.
    pub root: InodeNo,
}

/// A member with its limits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LimitedMember {
    /// Which.
    pub member: MemberId,
    /// What it may do.
    pub limits: Limits,
}

impl Limits {
    /// Whether it takes no part in resolving what ended sessions left: that goes over the whole file system, and writes.
    pub fn is_guest(&self) -> bool {
        self.read_only || self.is_checked()
    }
    /// Whether it may use some files and others not: the manager says which, to servers as well.
    pub fn is_checked(&self) -> bool {
        self.subtree.is_some() || self.squash.is_any()
    }
    /// Whether it may use a file system.
    pub fn allow(&self, fs: FsId) -> bool {
        self.filesystems.is_empty() || self.filesystems.contains(&fs)
    }
}

impl ClusterMap {
    /// What limits a member, if anything does.
    pub fn limits_of(&self, member: MemberId) -> Option<&Limits> {
        let at = self.limited.binary_search_by_key(&member, |limited| limited.member).ok()?;
        Some(&self.limited[at].limits)
    }
    /// Whether a member's sessions resolve nothing.
    pub fn is_guest(&self, member: MemberId) -> bool {
        self.limits_of(member).is_some_and(Limits::is_guest)
    }
    /// A client's session; none if it is no client's, or fenced.
    pub fn client(&self, session: SessionId) -> Option<&ClientEntry> {
        let at = self.clients.binary_search_by_key(&session, |client| client.session).ok()?;
        Some(&self.clients[at])
    }
    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.iter().find(|n| n.id == id)
    }
    /// The pdisk with this id.
    pub fn pdisk(&self, id: PdiskId) -> Option<&PdiskEntry> {
        // They come in the order of their numbers; where they do not, it is found all the same.
        match self.pdisks.binary_search_by_key(&id, |p| p.id) {
            Ok(at) => self.pdisks.get(at),
            Err(_) => self.pdisks.iter().find(|p| p.id == id),
        }
    }
    /// The name of the rack that a node is in.
    pub fn rack_of(&self, node: NodeId) -> Option<&str> {
        let at = self.racks.binary_search_by_key(&node, |of| of.node).ok()?;
        Some(&self.racks[at].rack)
    }
    /// A number of the rack that a pdisk is in, for its layout: that of the first node there. A node of no rack is one by
    /// itself. None while no racks are known.
    pub fn rack_number(&self, id: PdiskId) -> Option<u32> {
        if self.racks.is_empty() {
            return None;
        }
        let node = self.pdisk(id)?.nodes.first().copied()?;
        let same = |rack| self.racks.iter().find(|of| of.rack == rack);
        Some(self.rack_of(node).and_then(same).map_or(node, |of| of.node).0)
    }
    /// A pdisk for people: its name, and its number, by which files and logs know it.
    pub fn pdisk_called(&self, id: PdiskId) -> String {
        self.pdisk(id).map_or_else(|| id.to_string(), |pdisk| format!("{} ({id})", pdisk.name))
    }
    /// The pool with this id.
    pub fn pool(&self, id: PoolId) -> Option<&PoolEntry> {
        self.pools.iter().find(|p| p.id == id)
    }
    /// The file system with this name.
    pub fn fs_by_name(&self, name: &str) -> Option<&FsEntry> {
        self.filesystems.iter().find(|f| f.name == name)
    }
    /// Whether a session is there, and is the asker's: a client's is its member's, a server's its node's.
    pub fn is_session_of(&self, session: SessionId, member: MemberId, server: Option<NodeId>) -> bool {
        match self.client(session) {
            Some(client) => client.member == member,
            None => server.and_then(|node| self.node(node)).is_some_and(|n| n.session == Some(session)),
        }
    }
    /// Whether it is anybody's session.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.client(session).is_some() || self.nodes.iter().any(|node| node.session == Some(session))
    }
    /// The members of a group, in strip order; empty if there is no such group.
    pub fn group_members(&self, pool: PoolId, group: GroupId) -> &[PdiskId] {
        let Some(pool) = self.pool(pool) else { return &[] };
        let width = usize::from(pool.width);
        let start = group.0 as usize * width;
        pool.table.get(start..start + width).unwrap_or(&[])
    }
    /// The strips of a group that are on their way to another pdisk.
    pub fn moves(&self, pool: PoolId, group: GroupId) -> &[StripMove] {
        let Some(pool) = self.pool(pool) else { return &[] };
        let start = pool.moves.partition_point(|m| m.group < group);
        let count = pool.moves[start..].partition_point(|m| m.group == group);
        &pool.moves[start..start + count]
    }
    /// What a pdisk is, in a word for listings: its state, or `draining` while it is being emptied, or
    /// `replace` when it holds no group any more and is not meant to.
    pub fn pdisk_word(&self, id: PdiskId) -> &'static str {
        let Some(pdisk) = self.pdisk(id) else { return "unknown" };
        let used = self.pools.iter().any(|p| p.table.contains(&id) || p.moves.iter().any(|m| m.to == id));
        match pdisk.state {
            PdiskState::Failed if !used => "replace",
            _ if pdisk.leaving && !used => "replace",
            PdiskState::Ok if pdisk.leaving => "draining",
            state => state.name(),
        }
    }
    /// What nodes are called, and where they listen.
    pub fn names(&self) -> impl Iterator<Item = (Option<NodeId>, String, Vec<SocketAddr>)> {
        let addrs = |node: &NodeEntry| node.addrs.iter().filter_map(|addr| addr.parse().ok()).collect();
        self.nodes.iter().map(move |node| (Some(node.id), node.name.clone(), addrs(node)))
    }
    /// The epoch of a group's last change: requests made under an older map are refused.
    pub fn group_changed(&self, pool: PoolId, group: GroupId) -> Epoch {
        let own = self.pool(pool).map(|p| match p.group_changed.get(group.0 as usize) {
            Some(changed) => *changed,
            None => p.changed,
        });
        let joining = self.moves(pool, group).iter().map(|m| &m.to);
        let pdisks = self.group_members(pool, group).iter().chain(joining);
        let states = pdisks.filter_map(|&id| self.pdisk(id)).map(|p| p.changed);
        states.fold(own.unwrap_or_default(), Epoch::max)
    }
}
