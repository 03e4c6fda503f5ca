//! The map of the model, and the cluster map that the shipped code sees in it.

use base::{Epoch, PdiskId, SessionId, StripIndex};
use wire::map::{ClientEntry, ClusterMap, PdiskEntry, PdiskState, PoolEntry, StripMove};

use super::{DISKS, GROUP, POOL, WIDTH};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Map {
    pub(super) epoch: u64,
    pub(super) states: [PdiskState; DISKS],
    pub(super) changed: [u64; DISKS],
    pub(super) table: [usize; WIDTH],
    pub(super) moving: Option<(usize, usize, u64)>,
    pub(super) table_changed: u64,
    pub(super) session: Option<u64>,
}

impl Map {
    /// As the servers' gates see it.
    pub(super) fn real(&self) -> ClusterMap {
        ClusterMap {
            epoch: Epoch(self.epoch),
            pdisks: (0..DISKS)
                .map(|d| PdiskEntry {
                    id: PdiskId(d as u32),
                    state: self.states[d],
                    changed: Epoch(self.changed[d]),
                    ..PdiskEntry::default()
                })
                .collect(),
            pools: vec![PoolEntry {
                id: POOL,
                code: "2+1p".into(),
                width: WIDTH as u8,
                table: self.table.iter().map(|d| PdiskId(*d as u32)).collect(),
                moves: (self.moving.iter())
                    .map(|&(slot, to, since)| StripMove {
                        group: GROUP,
                        strip: StripIndex(slot as u8),
                        to: PdiskId(to as u32),
                        since: Epoch(since),
                    })
                    .collect(),
                changed: Epoch(self.table_changed),
                ..PoolEntry::default()
            }],
            clients: (self.session.iter())
                .map(|s| ClientEntry { session: SessionId(*s), ..ClientEntry::default() })
                .collect(),
            ..ClusterMap::default()
        }
    }
    /// (slot, disk) of every place a write goes to.
    pub(super) fn places(&self) -> Vec<(usize, usize)> {
        let mut places: Vec<_> = self.table.iter().copied().enumerate().collect();
        places.extend(self.moving.map(|(slot, to, _)| (slot, to)));
        places
    }
}
