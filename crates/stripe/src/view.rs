//! One version of the cluster map, prepared for use: codecs built, pdisks found without a search.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use base::{Epoch, GroupId, NodeId, PdiskId, PoolId, StripIndex, StripeId};
use layout::{Code, Codec};
use wire::map::{ClusterMap, NodeEntry, PdiskEntry, PdiskState, StripMove};

use crate::geometry::Geometry;

/// A pool as reads and writes need it.
#[derive(Debug)]
pub struct PoolView {
    /// Which.
    pub id: PoolId,
    /// How blocks are cut.
    pub geometry: Geometry,
    /// Encoder and decoder.
    pub codec: Arc<Codec>,
    /// How many groups its layout table has.
    pub groups: u32,
    seed: u64,
}

impl PoolView {
    /// The group that a stripe maps to.
    pub fn group_of(&self, stripe: StripeId) -> GroupId {
        layout::group_of(self.seed, self.groups, stripe)
    }
    /// The code.
    pub fn code(&self) -> Code {
        self.geometry.code
    }
}

/// A cluster map with what is derived from it.
#[derive(Debug)]
pub struct ClusterView {
    /// The map.
    pub map: ClusterMap,
    pools: HashMap<PoolId, Arc<PoolView>>,
    pdisks: HashMap<PdiskId, usize>,
    nodes: HashMap<NodeId, (usize, Vec<SocketAddr>)>,
}

impl ClusterView {
    /// Prepares a map. A pool whose code or table makes no sense is left out (its stripes give
    /// `NoSuchPool`): the map comes from the manager, which refuses to make one.
    pub fn new(map: ClusterMap) -> ClusterView {
        let pool_view = |pool: &wire::map::PoolEntry| {
            let code: Code = pool.code.parse().ok()?;
            let block_size = Code::check_block_size(pool.block_size.into()).ok()?;
            let width = usize::from(code.width());
            if pool.width != code.width() || pool.table.is_empty() || !pool.table.len().is_multiple_of(width)
            {
                return None;
            }
            let view = PoolView {
                id: pool.id,
                geometry: Geometry::new(code, block_size),
                codec: Arc::new(Codec::new(code)),
                groups: u32::try_from(pool.table.len() / width).ok()?,
                seed: pool.seed,
            };
            Some((pool.id, Arc::new(view)))
        };
        let pools = map.pools.iter().filter_map(pool_view).collect();
        let pdisks = map.pdisks.iter().enumerate().map(|(i, p)| (p.id, i)).collect();
        let addrs = |n: &NodeEntry| n.addrs.iter().filter_map(|a| a.parse().ok()).collect();
        let nodes = map.nodes.iter().enumerate().map(|(i, n)| (n.id, (i, addrs(n)))).collect();
        ClusterView { map, pools, pdisks, nodes }
    }

    /// Its version.
    pub fn epoch(&self) -> Epoch {
        self.map.epoch
    }
    /// A pool.
    pub fn pool(&self, id: PoolId) -> Option<&Arc<PoolView>> {
        self.pools.get(&id)
    }
    /// All pools.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<PoolView>> {
        self.pools.values()
    }
    /// A pdisk.
    pub fn pdisk(&self, id: PdiskId) -> Option<&PdiskEntry> {
        self.pdisks.get(&id).map(|&i| &self.map.pdisks[i])
    }
    /// Whether a pdisk counts; one that is not in the map is missing.
    pub fn state(&self, id: PdiskId) -> PdiskState {
        self.pdisk(id).map_or(PdiskState::Missing, |p| p.state)
    }
    /// Whether nothing of a pdisk is to be waited for.
    pub fn is_given_up(&self, id: PdiskId) -> bool {
        self.pdisk(id).is_some_and(PdiskEntry::given_up)
    }
    /// The node that serves a pdisk now: the first of its list that is up.
    pub fn server(&self, id: PdiskId) -> Option<&NodeEntry> {
        let nodes = self.pdisk(id)?.nodes.iter();
        nodes.filter_map(|n| self.node(*n)).find(|n| n.session.is_some())
    }
    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.get(&id).map(|&(i, _)| &self.map.nodes[i])
    }
    /// A node's addresses that can be read.
    pub fn addrs(&self, id: NodeId) -> &[SocketAddr] {
        self.nodes.get(&id).map_or(&[], |(_, addrs)| addrs)
    }
    /// The pdisks of a stripe's group, in strip order.
    pub fn members(&self, pool: PoolId, group: GroupId) -> &[PdiskId] {
        self.map.group_members(pool, group)
    }
    /// Where strips of a group are on their way to, beside [`ClusterView::members`].
    pub fn moves(&self, pool: PoolId, group: GroupId) -> &[StripMove] {
        self.map.moves(pool, group)
    }
    /// The same for one strip: at most one place.
    pub fn joins(&self, pool: PoolId, group: GroupId, index: StripIndex) -> Option<PdiskId> {
        self.moves(pool, group).iter().find(|m| m.strip == index).map(|m| m.to)
    }
    /// The epoch of the last change that concerns any group with this pdisk: what is older may be refused
    /// for whatever strip of it.
    pub fn pdisk_changed(&self, id: PdiskId) -> Epoch {
        let mut latest = Epoch::default();
        for pool in &self.map.pools {
            // A group that has moved away from it still concerns it.
            latest = latest.max(pool.changed);
            let width = usize::from(pool.width).max(1);
            for members in pool.table.chunks_exact(width).filter(|m| m.contains(&id)) {
                let changed = members.iter().filter_map(|m| self.pdisk(*m)).map(|p| p.changed);
                latest = changed.fold(latest, Epoch::max);
            }
        }
        latest
    }
}
