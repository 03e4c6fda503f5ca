//! Which groups lose blocks when pdisks are given up: noted in the commit in which that becomes known, before any of their strips
//! moves, since afterwards nothing in the map tells of it.

use base::{Epoch, GroupId, PdiskId, PoolId, StripIndex, StripSet};
use wire::map::{PdiskEntry, PoolEntry};

use super::{Cluster, Step, StoreOp, code::needed};
use crate::losses::{LossRecord, Losses, loss_key};

impl Cluster {
    /// Notes groups of which too few strips are left that are not given up.
    pub(super) fn settle_losses(&mut self, step: &mut Step) {
        let given_up = |entry: &&PdiskEntry| entry.given_up();
        let now: Vec<(PdiskId, Epoch)> =
            self.map.pdisks.iter().filter(given_up).map(|p| (p.id, p.changed)).collect();
        if now == self.given_up {
            return;
        }
        let since = |id: &PdiskId| now.iter().find(|(gone, _)| gone == id).map(|(_, changed)| *changed);
        for pool in &self.map.pools {
            let mut groups = 0;
            for (group, row) in rows(pool) {
                let lost = row.iter().filter_map(since);
                let Some(since) = lost.clone().max().filter(|_| row.len() - lost.count() < needed(pool))
                else {
                    continue;
                };
                let left = (0u8..).zip(row).filter(|(_, id)| now.iter().all(|(gone, _)| gone != *id));
                let mut left: StripSet = left.map(|(i, _)| StripIndex(i)).collect();
                let known = self.losses.get(&(pool.id, group));
                if known.is_some_and(|known| known.since >= since) {
                    continue;
                }
                // What was lost before, and is not written anew, is lost still.
                left.0 &= known.map_or(u32::MAX, |known| known.left.0);
                let record = LossRecord { left, since };
                self.losses.insert((pool.id, group), record);
                step.put(loss_key(pool.id, group), &record);
                groups += 1;
            }
            if groups > 0 {
                step.notes.push(format!(
                    "pool {}: {groups} groups have lost more strips than {} bears: `ropewalk pool lost` names the files",
                    pool.name, pool.code
                ));
            }
        }
        self.given_up = now;
    }

    /// Blocks of these groups were looked at, and all are whole; what a group has lost since then stays on record.
    pub(super) fn forget_losses(&mut self, whole: &Losses, step: &mut Step) {
        for (&(pool, group), record) in whole {
            let given_up = |id: &PdiskId| self.map.pdisk(*id).is_some_and(PdiskEntry::given_up);
            let moves = self.map.group_members(pool, group).iter().any(given_up);
            if !moves && self.losses.get(&(pool, group)) == Some(record) {
                self.forget_loss(pool, group, step);
            }
        }
    }

    /// A pool is removed.
    pub(super) fn forget_losses_of(&mut self, pool: PoolId, step: &mut Step) {
        let its: Vec<GroupId> = self.losses.keys().filter(|(of, _)| *of == pool).map(|(_, g)| *g).collect();
        its.into_iter().for_each(|group| self.forget_loss(pool, group, step));
    }

    fn forget_loss(&mut self, pool: PoolId, group: GroupId, step: &mut Step) {
        self.losses.remove(&(pool, group));
        step.store.push(StoreOp::Delete(loss_key(pool, group)));
    }
}

fn rows(pool: &PoolEntry) -> impl Iterator<Item = (GroupId, &[PdiskId])> {
    (0u32..).map(GroupId).zip(pool.table.chunks_exact(usize::from(pool.width.max(1))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wire::{
        map::PdiskState,
        mgr::{MgrReply, MgrRequest, PdiskWish},
    };

    use super::*;
    use crate::{
        cluster::{
            Ask,
            stage::{NOBODY, Stage},
        },
        losses,
    };

    fn fail(stage: &mut Stage, id: u32) {
        let wish = MgrRequest::PdiskSet { pdisk: PdiskId(id), wish: PdiskWish::Fail };
        assert_eq!(stage.ask(NOBODY, wish), MgrReply::Done);
    }

    fn recorded(stage: &Stage) -> Losses {
        let stored = losses::load(&stage.store).unwrap_or_default();
        assert_eq!(stored, stage.cluster.losses);
        stored
    }

    #[test]
    fn what_is_lost_stays_on_record_until_it_is_looked_at() {
        let mut stage = Stage::running(6, "4+2p");
        stage.pass_without(&[1, 2, 3], 12);
        fail(&mut stage, 1);
        fail(&mut stage, 2);
        assert!(recorded(&stage).is_empty(), "4+2p bears two");
        stage.pass_without(&[1, 2, 3], 30);
        fail(&mut stage, 3);
        let first = recorded(&stage);
        let changed = |stage: &Stage, id| stage.cluster.map().pdisk(PdiskId(id)).map(|p| p.changed);
        let record = LossRecord { left: StripSet(0b111000), since: changed(&stage, 3).unwrap_or_default() };
        assert_eq!(first, BTreeMap::from([((PoolId(1), GroupId(0)), record)]));
        // One more is lost: whoever looked before that knows nothing of it.
        stage.pass_without(&[1, 2, 3, 4], 30);
        fail(&mut stage, 4);
        let second = recorded(&stage);
        assert_eq!(second.values().map(|r| r.left).collect::<Vec<_>>(), [StripSet(0b110000)]);
        let forget = |stage: &mut Stage, whole: &Losses| {
            assert_eq!(stage.ask(NOBODY, Ask::ForgetLosses(whole.clone())), MgrReply::Done);
        };
        forget(&mut stage, &first);
        assert_eq!(recorded(&stage), second);
        // While its pdisks are given up nothing is forgotten, by no manager.
        forget(&mut stage, &second);
        stage.restart();
        stage.pass_without(&[1, 2, 3, 4], 1);
        assert_eq!(recorded(&stage), second);
        for pdisk in &mut stage.cluster.map.pdisks {
            pdisk.state = PdiskState::Ok;
        }
        forget(&mut stage, &first);
        assert_eq!(recorded(&stage), second);
        forget(&mut stage, &second);
        assert!(recorded(&stage).is_empty());
    }
}
