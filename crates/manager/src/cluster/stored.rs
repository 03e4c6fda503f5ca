//! How the map is stored: a record without its pools, and one for each pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use base::{FsId, MemberId, NodeId, PdiskId};
use wire::map::{ClusterMap, LimitedMember, ManagerEntry, NodeEntry, NodeRack};

use crate::{
    keys::{
        self, InvitationRecord, ManagerRecord, MapRecord, MemberRecord, NodeRecord, RackRecord, ReadError,
        last_u64,
    },
    store::{Read, StoreError, Voter, Voters, open_record, prefix_end},
};

/// The map as it is stored, without its pools.
pub fn map_record(map: &ClusterMap) -> MapRecord {
    MapRecord {
        epoch: map.epoch,
        cluster: map.cluster,
        name: map.name.clone(),
        nodes: map.nodes.clone(),
        pdisks: map.pdisks.clone(),
        filesystems: map.filesystems.clone(),
        clients: map.clients.clone(),
        revoked: map.revoked.clone(),
    }
}

/// The stored map with its pools.
pub fn load_map(from: &dyn Read) -> Result<ClusterMap, ReadError> {
    let head = keys::read_map(from)?;
    let (mut pools, mut bad) = (Vec::new(), None);
    from.scan(b"l", &prefix_end(b"l"), &mut |key, value| {
        match open_record(key, value) {
            Ok(pool) => pools.push(pool),
            Err(error) => bad = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    match bad {
        Some(error) => Err(error.into()),
        None => Ok(ClusterMap {
            epoch: head.epoch,
            cluster: head.cluster,
            name: head.name,
            nodes: head.nodes,
            pdisks: head.pdisks,
            pools,
            filesystems: head.filesystems,
            clients: head.clients,
            revoked: head.revoked,
            limited: limited(from)?,
            level: 0, // stands in the record of the format
            racks: racks(from)?,
            managers: managers(from)?,
        }),
    }
}

/// The servers that say whether a copy of the store counts.
pub const VOTERS: Voters = Voters { key: keys::map_key, of: voters };

fn voters(from: &dyn Read) -> Result<Vec<Voter>, StoreError> {
    let map = keys::read_map(from).map_err(|error| match error {
        ReadError::Store(error) => error,
        ReadError::Record(error) => StoreError::Damaged { reason: error.to_string() },
    })?;
    let voter = |node: &NodeEntry| Voter {
        id: node.id,
        name: node.name.clone(),
        addrs: node.addrs.iter().filter_map(|addr| addr.parse().ok()).collect(),
    };
    Ok(map.nodes.iter().map(voter).collect())
}

/// Nodes that were added or removed while the cluster runs.
#[derive(Debug, Default)]
pub struct GivenNodes {
    /// The highest number among them.
    pub last: NodeId,
    /// Those whose server has never registered.
    pub unused: BTreeSet<NodeId>,
}

/// The nodes that were added or removed.
pub fn given_nodes(from: &dyn Read) -> Result<GivenNodes, ReadError> {
    let mut given = GivenNodes::default();
    keys::walk(from, b"w", &prefix_end(b"w"), |key, value| {
        let node = NodeId(number(key));
        given.last = given.last.max(node);
        if !open_record::<NodeRecord>(key, value)?.used {
            given.unused.insert(node);
        }
        Ok(true)
    })?;
    Ok(given)
}

/// Machines that are invited.
pub fn invitations(from: &dyn Read) -> Result<BTreeMap<u64, InvitationRecord>, ReadError> {
    let mut invited = BTreeMap::new();
    keys::walk(from, b"v", &prefix_end(b"v"), |key, value| {
        invited.insert(last_u64(key), open_record(key, value)?);
        Ok(true)
    })?;
    Ok(invited)
}

/// Who has joined.
pub fn members(from: &dyn Read) -> Result<BTreeMap<MemberId, MemberRecord>, ReadError> {
    let mut members = BTreeMap::new();
    keys::walk(from, b"j", &prefix_end(b"j"), |key, value| {
        members.insert(MemberId(last_u64(key)), keys::open_member(key, value)?);
        Ok(true)
    })?;
    Ok(members)
}

/// Who is invited or has joined and may not do everything, by rising number.
fn limited(from: &dyn Read) -> Result<Vec<LimitedMember>, ReadError> {
    let mut limited = Vec::new();
    keys::walk(from, b"a", &prefix_end(b"a"), |key, value| {
        limited.push(LimitedMember { member: MemberId(last_u64(key)), limits: open_record(key, value)? });
        Ok(true)
    })?;
    Ok(limited)
}

/// The racks of nodes, by rising node.
fn racks(from: &dyn Read) -> Result<Vec<NodeRack>, ReadError> {
    let mut racks = Vec::new();
    keys::walk(from, b"g", &prefix_end(b"g"), |key, value| {
        let RackRecord { rack } = open_record(key, value)?;
        racks.push(NodeRack { node: NodeId(number(key)), rack });
        Ok(true)
    })?;
    Ok(racks)
}

/// The managers, by rising name.
fn managers(from: &dyn Read) -> Result<Vec<ManagerEntry>, ReadError> {
    let mut managers = Vec::new();
    keys::walk(from, b"@", &prefix_end(b"@"), |key, value| {
        let ManagerRecord { addrs } = open_record(key, value)?;
        managers.push(ManagerEntry { name: String::from_utf8_lossy(&key[1..]).into_owned(), addrs });
        Ok(true)
    })?;
    Ok(managers)
}

/// The highest number of a pdisk that has a record of its own: those of removed ones stay.
pub fn last_told_pdisk(from: &dyn Read) -> Result<PdiskId, StoreError> {
    let mut last = PdiskId(0);
    from.scan(b"p", &prefix_end(b"p"), &mut |key, _| {
        last = last.max(PdiskId(number(key)));
        ControlFlow::Continue(())
    })?;
    Ok(last)
}

/// The 32-bit number at the end of a key.
fn number(key: &[u8]) -> u32 {
    key.last_chunk::<4>().copied().map(u32::from_be_bytes).unwrap_or_default()
}

/// The highest number of a file system that was removed.
pub fn last_removed_fs(from: &dyn Read) -> Result<FsId, StoreError> {
    let mut last = FsId(0);
    from.scan(b"z", &prefix_end(b"z"), &mut |key, _| {
        last = last.max(FsId(number(key)));
        ControlFlow::Continue(())
    })?;
    Ok(last)
}
