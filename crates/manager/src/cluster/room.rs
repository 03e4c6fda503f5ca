//! Room: how many raw bytes clients may dirty before a pdisk could be full.
//!
//! Placement spreads stripes evenly, so a pool is full when its fullest pdisk is: what can be given is
//! the least free space of a counted pdisk times their number, less a margin on each, the spare space
//! that a rebuild will need, and what is outstanding, in all pools over the same pdisks. Outstanding is what sessions hold unused, and what
//! they have used since the last report of some pdisk (it may not be in that pdisk's figure yet). Such use may be counted twice, so
//! a pool is full only when it is without it: until the reports are in, who asks is told to ask again (`EAGAIN`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use base::{FsId, PdiskId, PoolId, SessionId};
use libc::{EAGAIN, ENOSPC};
use wire::{
    map::{PdiskState, PoolEntry},
    mgr::{MgrError, MgrReply},
};

use super::{Cluster, code::data_strips};

/// Kept free on each pdisk: this part of it (1/64), at most [`MARGIN_MAX`].
const MARGIN_SHIFT: u32 = 6;
/// Most that is kept free on a pdisk, bytes.
const MARGIN_MAX: u64 = 256 << 20;

struct Room {
    /// Bytes that can be given, if nothing were outstanding.
    free: u64,
    /// Bytes that could be given if the pool were empty.
    total: u64,
    /// Every counted pdisk has reported after this.
    reported: Option<Duration>,
}

impl Cluster {
    fn members(&self, pool: &PoolEntry) -> Vec<PdiskId> {
        let mut members = pool.table.clone();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Room in a pool; none if no pdisk of it has ever reported.
    fn room(&self, pool: &PoolEntry) -> Option<Room> {
        let (mut all, mut counted) = (0u64, 0u64);
        let (mut least_free, mut least_total) = (u64::MAX, u64::MAX);
        let mut reported = Some(Duration::MAX);
        for id in self.members(pool) {
            let (Some(entry), Some(disk)) = (self.map.pdisk(id), self.disks.get(&id)) else { continue };
            if disk.record.capacity == 0 {
                continue; // never seen
            }
            let margin = (disk.record.capacity >> MARGIN_SHIFT).min(MARGIN_MAX);
            all += 1;
            least_total = least_total.min(disk.record.capacity.saturating_sub(margin));
            if !matches!(entry.state, PdiskState::Missing | PdiskState::Failed) {
                counted += 1;
                least_free = least_free.min(disk.record.free.saturating_sub(margin));
                reported = reported.zip(disk.reported).map(|(a, b)| a.min(b));
            }
        }
        if counted == 0 {
            return None;
        }
        let spare = u64::from(pool.spare);
        let spare_left = spare.saturating_sub(all - counted);
        Some(Room {
            free: (counted * least_free).saturating_sub(spare_left * least_total),
            total: all.saturating_sub(spare) * least_total,
            reported,
        })
    }

    /// How much of what is outstanding in `other` has to be left free in `pool`, of `bytes`: what falls on one
    /// pdisk there, on as many pdisks as this one has.
    fn share(&self, pool: &PoolEntry, other: PoolId, bytes: u64) -> u64 {
        if other == pool.id {
            return bytes;
        }
        let Some(other) = self.map.pool(other) else { return 0 };
        let (here, there) = (self.members(pool), self.members(other));
        if !there.iter().any(|id| here.binary_search(id).is_ok()) {
            return 0;
        }
        let scaled = u128::from(bytes) * here.len() as u128;
        u64::try_from(scaled.div_ceil(there.len().max(1) as u128)).unwrap_or(u64::MAX)
    }

    pub(super) fn reserve(
        &mut self,
        session: SessionId,
        pool: PoolId,
        bytes: u64,
        held: u64,
        now: Duration,
    ) -> Result<u64, MgrError> {
        let client = self.clients.get_mut(&session).ok_or(MgrError::NoSession)?;
        client.renewed = client.renewed.max(now);
        let pool = self.map.pool(pool).ok_or(MgrError::Errno(libc::ENOENT))?;
        let id = pool.id;
        let room = self.room(pool).ok_or(MgrError::Errno(EAGAIN))?;
        let before = self.space.held.get(&(session, id)).copied();
        // After a restart of the manager what is held is only known from here on.
        let kept = held.min(before.unwrap_or(held));
        self.space.add_use(id, before.unwrap_or_default().saturating_sub(kept), now);
        let pools: BTreeSet<PoolId> = self.space.uses.iter().map(|used| used.pool).collect();
        let reported = |of: PoolId| Some((of, self.room(self.map.pool(of)?)?.reported?));
        let reported: BTreeMap<PoolId, Duration> = pools.into_iter().filter_map(reported).collect();
        self.space.uses.retain(|used| reported.get(&used.pool).is_none_or(|at| *at <= used.at));
        self.space.held.insert((session, id), kept);
        let held = self.space.held.iter().map(|(&(_, of), &bytes)| self.share(pool, of, bytes));
        let used = self.space.uses.iter().map(|used| self.share(pool, used.pool, used.bytes));
        let unheld = room.free.saturating_sub(held.fold(0, u64::saturating_add));
        let granted = bytes.min(unheld.saturating_sub(used.fold(0, u64::saturating_add)));
        if granted == 0 && bytes > 0 {
            return Err(MgrError::Errno(if unheld == 0 { ENOSPC } else { EAGAIN }));
        }
        self.space.held.insert((session, id), kept + granted);
        Ok(granted)
    }

    pub(super) fn statfs(&self, fs: FsId) -> Option<MgrReply> {
        let fs = self.map.filesystems.iter().find(|entry| entry.id == fs)?;
        let pool = self.map.pool(fs.pool)?;
        let room = self.room(pool).unwrap_or(Room { free: 0, total: 0, reported: None });
        let data = u128::from(data_strips(&pool.code).unwrap_or(1));
        let of_data = |raw: u64| (u128::from(raw) * data / u128::from(pool.width.max(1))) as u64;
        Some(MgrReply::StatFs { total: of_data(room.total), free: of_data(room.free), inodes: 0 })
    }
}
