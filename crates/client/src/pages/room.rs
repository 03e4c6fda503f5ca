//! Raw bytes on the pdisks that this session may use, by pool.
//!
//! Invariant: nothing is set aside that was not granted.

use std::{collections::BTreeMap, sync::Arc};

use base::PoolId;
use parking_lot::Mutex;

/// Raw bytes on the pdisks of a pool that this session may use and has not stored yet.
#[derive(Default)]
struct Room {
    /// Granted and not stored.
    granted: u64,
    /// Of these, set aside for what is dirty.
    used: u64,
    /// Allocations under way: each keeps what it was granted until it ends.
    allocations: u32,
}

/// See the file's head. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Rooms(Arc<Inner>);

#[derive(Default)]
struct Inner {
    pools: Mutex<BTreeMap<PoolId, Room>>,
    /// Held by who asks the manager for more.
    asking: tokio::sync::Mutex<()>,
}

impl Rooms {
    /// One asks at a time.
    pub fn asking(&self) -> &tokio::sync::Mutex<()> {
        &self.0.asking
    }

    /// Sets room aside, if what was granted is enough.
    pub fn take(&self, pool: PoolId, raw: u64) -> Option<RoomHold> {
        let mut pools = self.0.pools.lock();
        let room = pools.entry(pool).or_default();
        if raw > 0 && raw > room.granted.saturating_sub(room.used) {
            return None;
        }
        room.used += raw;
        debug_assert!(room.used <= room.granted);
        Some(RoomHold { rooms: self.clone(), pool, raw })
    }

    /// Granted and not stored.
    pub fn granted(&self, pool: PoolId) -> u64 {
        self.0.pools.lock().get(&pool).map_or(0, |room| room.granted)
    }

    /// The manager grants more.
    pub fn grant(&self, pool: PoolId, raw: u64) {
        self.0.pools.lock().entry(pool).or_default().granted += raw;
    }

    /// An allocation begins, or ends.
    pub fn note_allocation(&self, pool: PoolId, begins: bool) {
        let mut pools = self.0.pools.lock();
        let count = &mut pools.entry(pool).or_default().allocations;
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
    }

    /// Gives up what is granted and not used beyond `keep`; returns what is left of the grants. None: there is no more than
    /// that, or an allocation is under way.
    pub fn give_up(&self, pool: PoolId, keep: u64) -> Option<u64> {
        let mut pools = self.0.pools.lock();
        let room = pools.get_mut(&pool).filter(|room| room.allocations == 0)?;
        let left = room.used.saturating_add(keep);
        (room.granted > left).then(|| {
            room.granted = left;
            left
        })
    }

    fn change(&self, pool: Option<&PoolId>, change: impl FnOnce(&mut Room)) {
        let mut pools = self.0.pools.lock();
        pool.and_then(|pool| pools.get_mut(pool)).map(change);
    }

    /// Room that was set aside is not used.
    pub fn give_back(&self, pool: Option<&PoolId>, raw: u64) {
        self.change(pool, |room| room.used = room.used.saturating_sub(raw));
    }

    /// Room that was set aside holds stored bytes now.
    pub fn spend(&self, pool: Option<&PoolId>, raw: u64) {
        self.change(pool, |room| {
            room.used = room.used.saturating_sub(raw);
            room.granted = room.granted.saturating_sub(raw);
        });
    }
}

/// Raw room taken and not yet given to a block; returned on drop.
pub(crate) struct RoomHold {
    rooms: Rooms,
    pool: PoolId,
    raw: u64,
}

impl RoomHold {
    /// Gives up to `raw` of it away.
    pub fn take(&mut self, raw: u64) -> u64 {
        let taken = raw.min(self.raw);
        self.raw -= taken;
        taken
    }
}

impl Drop for RoomHold {
    fn drop(&mut self) {
        self.rooms.give_back(Some(&self.pool), self.raw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_granted_set_aside_given_back_and_spent() {
        let (rooms, pool) = (Rooms::default(), PoolId(1));
        assert!(rooms.take(pool, 1).is_none() && rooms.take(pool, 0).is_some());
        rooms.grant(pool, 100);
        let mut hold = rooms.take(pool, 60).unwrap();
        assert!(rooms.take(pool, 41).is_none());
        assert_eq!(hold.take(50), 50);
        drop(hold);
        assert!(rooms.take(pool, 50).is_some(), "what was not given to a block is there again");
        rooms.spend(Some(&pool), 50);
        assert_eq!(rooms.granted(pool), 50);
        assert!(rooms.take(pool, 50).is_some() && rooms.take(pool, 51).is_none());
        rooms.spend(None, 50);
        assert_eq!(rooms.granted(pool), 50);
    }

    #[test]
    fn what_is_granted_beyond_need_is_given_up_when_no_allocation_is_under_way() {
        let (rooms, pool) = (Rooms::default(), PoolId(1));
        rooms.grant(pool, 100);
        let _hold = rooms.take(pool, 30).unwrap();
        rooms.note_allocation(pool, true);
        rooms.note_allocation(pool, true);
        rooms.note_allocation(pool, false);
        assert_eq!(rooms.give_up(pool, 10), None, "one is under way");
        rooms.note_allocation(pool, false);
        assert_eq!((rooms.give_up(pool, 10), rooms.granted(pool)), (Some(40), 40));
        assert_eq!((rooms.give_up(pool, 10), rooms.give_up(PoolId(2), 0)), (None, None));
        assert!(rooms.take(pool, u64::MAX).is_none());
    }
}
