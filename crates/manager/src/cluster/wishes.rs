//! What administrators want of pdisks: new ones, and that one fails, is drained, kept or removed.

use std::time::Duration;

use base::{PdiskId, PoolId};
use wire::{
    map::{PdiskEntry, PdiskState, PoolPdisk},
    mgr::{MgrError, PdiskWish},
};

use super::{Cluster, Step, state::Disk};
use crate::keys;

/// A new pdisk's number is at most so far above the last: those between were given by commands that came to nothing.
const LEAP_MAX: u32 = 1 << 16;
/// Bytes of a pdisk, at most: 2^56, far above what a disk has.
const CAPACITY_MAX: u64 = 1 << 56;

impl Cluster {
    /// What an administrator wants of a pdisk.
    pub(super) fn wish(
        &mut self,
        id: PdiskId,
        wish: PdiskWish,
        now: Duration,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let no = |text: String| Err(MgrError::Config(text));
        let Some(entry) = self.map.pdisk(id) else { return no(format!("{id} is not in the cluster")) };
        let name = entry.name.clone();
        let used = self.map.pools.iter().any(|p| p.table.contains(&id) || p.moves.iter().any(|m| m.to == id));
        match wish {
            PdiskWish::Fail
                if entry.state == PdiskState::Ok && !self.is_away(id, now) && !self.can_lose(id, true) =>
            {
                let holds = format!("{name} holds one of the last copies of a group");
                return no(match self.disks.get(&id).and_then(|disk| disk.server) {
                    Some(_) => format!(
                        "{holds}, and is in reach; drain it, or wait until the others are rebuilt. If it is lost all the same, \
                         stop its server for good: it can be given up when that is known to have ended, after {:?}",
                        self.lease
                    ),
                    None => format!(
                        "{holds}; this manager has just started, and waits for all servers that may be there: try again in {} s",
                        self.grace_until.saturating_sub(now).as_secs() + 1
                    ),
                });
            }
            PdiskWish::Fail => {
                let known = entry.state == PdiskState::Failed;
                self.mark_leaving(id, true, step);
                if !known {
                    self.set_state(id, PdiskState::Failed, "an administrator says so", step);
                }
            }
            PdiskWish::Remove if used => {
                return no(format!("{name} still holds strips of groups; drain it or fail it first"));
            }
            PdiskWish::Remove => {
                self.bump();
                self.map.pdisks.retain(|p| p.id != id);
                // Its record stays, so that its number is never given again.
                let disk = self.disks.remove(&id).unwrap_or_default();
                step.put(keys::pdisk_key(id), &disk.record);
                self.told_pdisk = self.told_pdisk.max(id);
                for pool in &mut self.map.pools {
                    pool.pdisks.retain(|p| p.id != id);
                    step.put(keys::pool_key(pool.id), pool);
                }
                step.notes.push(format!("{name} ({id}) is removed"));
            }
            PdiskWish::Keep if entry.state == PdiskState::Failed => {
                self.mark_leaving(id, false, step);
                self.set_state(id, PdiskState::Missing, "an administrator wants it back", step);
            }
            PdiskWish::Drain | PdiskWish::Keep => self.mark_leaving(id, wish == PdiskWish::Drain, step),
        }
        Ok(())
    }

    fn mark_leaving(&mut self, id: PdiskId, leaving: bool, step: &mut Step) {
        let Some(entry) = self.map.pdisks.iter_mut().find(|p| p.id == id) else { return };
        if std::mem::replace(&mut entry.leaving, leaving) == leaving {
            return;
        }
        let what = if leaving { "is drained" } else { "is kept" };
        step.notes.push(format!("{} ({id}) {what}", entry.name));
        self.bump();
    }

    /// The highest number of a pdisk that was ever given.
    pub(super) fn last_pdisk(&self) -> PdiskId {
        self.map.pdisks.iter().map(|p| p.id).max().unwrap_or_default().max(self.told_pdisk)
    }

    /// A new pdisk for some pools.
    pub(super) fn add_pdisk(
        &mut self,
        new: PdiskEntry,
        pools: &[PoolId],
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let no = |text: String| Err(MgrError::Config(text));
        let last = self.last_pdisk();
        if last >= new.id {
            return no(format!("{} is not above {last}, the last number of a pdisk that was given", new.id));
        }
        if new.id.0 - last.0 > LEAP_MAX || new.capacity > CAPACITY_MAX {
            return no(format!("{} with {} bytes: no pdisk has such a number or size", new.id, new.capacity));
        }
        if new.capacity == 0 || new.nodes.iter().any(|node| self.map.node(*node).is_none()) {
            return no(format!("{} has no capacity, or its node is not in the cluster", new.id));
        }
        if let Some(unknown) = pools.iter().find(|pool| self.map.pool(**pool).is_none()) {
            return no(format!("there is no {unknown}"));
        }
        let epoch = self.bump();
        step.notes.push(format!("{} ({}) is new", new.name, new.id));
        for pool in self.map.pools.iter_mut().filter(|p| pools.contains(&p.id)) {
            pool.pdisks.push(PoolPdisk { id: new.id, weight: new.capacity, ..PoolPdisk::default() });
            step.put(keys::pool_key(pool.id), pool);
        }
        self.disks.insert(new.id, Disk::default());
        // Missing until its server names it; it has nothing to catch up with.
        self.map.pdisks.push(PdiskEntry { state: PdiskState::Missing, changed: epoch, ..new });
        Ok(())
    }
}
