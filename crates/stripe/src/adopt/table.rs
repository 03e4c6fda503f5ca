//! Lazy adoption. A complete version need not be adopted at once: it is durable, and this table says that
//! it is the current one. Adoption follows in batches, or rides on the next write of the stripe.
//!
//! Owns the table of complete versions not known to be adopted, and of abandoned ones (a write that
//! failed): those are discarded before the stripe is written again, so that the next version is prepared
//! only beside what is complete. An entry goes when its adoption is durable, when its pdisk no longer
//! counts (when it does again, its catch-up waits until the others have adopted the version), or when the file is deleted.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{BlockIndex, FsId, InodeNo, PdiskId, PoolId, StripId, StripIndex, StripSet, StripeId, Version};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{ClusterView, config::IoConfig, meta::BlockMeta};

/// See the module.
pub struct Adoption {
    table: Mutex<Table>,
    /// The batch is full, or somebody waits.
    wanted: Notify,
    /// See [`Self::some`].
    some: Arc<Notify>,
    /// Entries went.
    room: Notify,
    pub interval: Duration,
    batch: usize,
    max: usize,
}

#[derive(Default)]
struct Table {
    complete: BTreeMap<StripeId, Complete>,
    abandoned: BTreeMap<StripeId, Abandoned>,
}

/// A complete version of a stripe.
#[derive(Clone, Debug)]
pub struct Complete {
    pub pool: PoolId,
    /// The strips that may hold it as prepared only; versions differ when an older one is still pending
    /// on strips the newer one did not touch.
    pub strips: Vec<(StripIndex, Version)>,
    /// The same for strips on their way to another pdisk, and which. They stay when the strip is adopted at
    /// its member, and then say what is current at a pdisk that becomes the member meanwhile.
    pub moved: Vec<(StripIndex, PdiskId, Version)>,
    pub meta: BlockMeta,
}

impl Complete {
    pub fn version_of(&self, index: StripIndex) -> Option<Version> {
        let strips = self.strips.iter().copied().chain(self.moved.iter().map(|(i, _, v)| (*i, *v)));
        strips.filter(|(i, _)| *i == index).map(|(_, v)| v).max()
    }
    fn is_empty(&self) -> bool {
        self.strips.is_empty() && self.moved.is_empty()
    }
}

/// A write that has become complete.
pub struct Written {
    pub pool: PoolId,
    pub version: Version,
    /// The block was begun anew: nothing older counts.
    pub fresh: bool,
    /// The strips it touches.
    pub touched: StripSet,
    /// Those of them that hold it.
    pub stored: StripSet,
    /// Where else it is: strips on their way to another pdisk.
    pub moved: Vec<(StripIndex, PdiskId)>,
    /// The block after it.
    pub meta: BlockMeta,
}

/// A version that was begun and not completed.
#[derive(Clone, Debug)]
pub struct Abandoned {
    pub pool: PoolId,
    pub versions: Vec<(Version, StripSet)>,
    /// Requests under way when it was given up, by the pdisk that they are for: dead after this.
    pub under_way: Vec<(PdiskId, Instant)>,
}

impl Drop for Adoption {
    fn drop(&mut self) {
        // Who waits for work of it has none any more.
        self.some.notify_one();
    }
}

impl Adoption {
    pub fn new(config: &IoConfig) -> Adoption {
        Adoption {
            table: Mutex::default(),
            wanted: Notify::new(),
            some: Arc::default(),
            room: Notify::new(),
            interval: config.adopt_interval,
            batch: config.adopt_batch.max(1),
            max: config.adopt_stripes_max.max(1),
        }
    }

    /// What is complete and perhaps not adopted on this stripe.
    pub fn complete_of(&self, stripe: StripeId) -> Option<Complete> {
        self.table.lock().complete.get(&stripe).cloned()
    }

    /// Stripes waiting for adoption.
    pub fn len(&self) -> usize {
        self.table.lock().complete.len()
    }

    /// A version is complete. Its prepares carried the adoption of what the strips that store it held before.
    pub fn completed(&self, stripe: StripeId, written: Written) {
        let Written { pool, version, fresh, touched, stored, moved, meta } = written;
        debug_assert!(touched.contains_all(stored), "{stripe}: {stored:?} are not all touched by {version}");
        let mut table = self.table.lock();
        let entry = table.complete.entry(stripe).or_insert(Complete {
            pool,
            strips: Vec::new(),
            moved: Vec::new(),
            meta: BlockMeta::default(),
        });
        debug_assert!(
            entry.strips.iter().all(|(_, before)| *before < version),
            "{stripe}: {version} is not above {:?}",
            entry.strips
        );
        entry.meta = meta;
        entry.strips.retain(|(i, _)| !fresh && !touched.contains(*i));
        entry.strips.extend(stored.iter().map(|i| (i, version)));
        entry.moved.retain(|(i, ..)| !fresh && !touched.contains(*i));
        entry.moved.extend(moved.into_iter().map(|(i, to)| (i, to, version)));
        if let Some(abandoned) = table.abandoned.get_mut(&stripe) {
            abandoned.versions.retain(|(v, _)| *v != version);
            if abandoned.versions.is_empty() {
                table.abandoned.remove(&stripe);
            }
        }
        if table.complete.len() == 1 {
            self.some.notify_one();
        }
        if table.complete.len() >= self.batch {
            self.wanted.notify_one();
        }
    }

    /// A version is begun: until it is complete it counts as abandoned, whatever happens to the writer. Requests to these pdisks are
    /// under way, and dead at that time.
    pub fn begun(
        &self,
        stripe: StripeId,
        pool: PoolId,
        version: Version,
        touched: StripSet,
        (to, dead_at): (&[PdiskId], Instant),
    ) {
        let mut table = self.table.lock();
        let none = Abandoned { pool, versions: Vec::new(), under_way: Vec::new() };
        let entry = table.abandoned.entry(stripe).or_insert(none);
        for pdisk in to {
            // Each later request is dead later.
            entry.under_way.retain(|(asked, _)| asked != pdisk);
            entry.under_way.push((*pdisk, dead_at));
        }
        match entry.versions.iter_mut().find(|(v, _)| *v == version) {
            Some((_, set)) => set.0 |= touched.0,
            None => entry.versions.push((version, touched)),
        }
    }

    /// No request of the abandoned versions is under way any more but to `unanswered`.
    pub fn settled(&self, stripe: StripeId, unanswered: &[PdiskId]) {
        if let Some(entry) = self.table.lock().abandoned.get_mut(&stripe) {
            entry.under_way.retain(|(pdisk, _)| unanswered.contains(pdisk));
        }
    }

    pub fn abandoned_of(&self, stripe: StripeId) -> Option<Abandoned> {
        self.table.lock().abandoned.get(&stripe).cloned()
    }

    pub fn is_abandoned(&self, stripe: StripeId) -> bool {
        self.table.lock().abandoned.contains_key(&stripe)
    }

    pub fn discarded(&self, stripe: StripeId) {
        self.table.lock().abandoned.remove(&stripe);
    }

    /// The inode is gone, and its strips with it: nothing of it will be written again.
    pub fn forget_abandoned(&self, fs: FsId, inode: InodeNo) {
        let mut table = self.table.lock();
        let of_inode: Vec<_> = table.abandoned.range(stripes_of(fs, inode)).map(|(id, _)| *id).collect();
        for stripe in of_inode {
            table.abandoned.remove(&stripe);
        }
    }

    /// Has what waits adopted soon: room on the pdisks comes back with it.
    pub fn adopt_soon(&self) {
        self.wanted.notify_one();
    }

    /// Told when something waits where nothing did, and at the end.
    pub fn some(&self) -> Arc<Notify> {
        Arc::clone(&self.some)
    }

    /// Returns when adoption is wanted soon.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until there is room for another stripe; false if there is none before `until`.
    pub async fn wait_room(&self, stripe: StripeId, until: Instant) -> bool {
        loop {
            let room = self.room.notified();
            {
                let table = self.table.lock();
                if table.complete.len() < self.max || table.complete.contains_key(&stripe) {
                    return true;
                }
            }
            self.wanted.notify_one();
            if tokio::time::timeout_at(until.into(), room).await.is_err() {
                return false;
            }
        }
    }

    pub fn abandoned_in(&self, fs: FsId, inode: InodeNo) -> Vec<StripeId> {
        self.table.lock().abandoned.range(stripes_of(fs, inode)).map(|(id, _)| *id).collect()
    }

    pub fn complete_in(&self, fs: FsId, inode: InodeNo) -> usize {
        self.table.lock().complete.range(stripes_of(fs, inode)).count()
    }

    /// Everything that waits now, by the pdisk that holds it. Strips whose pdisk does not count go.
    pub fn snapshot(&self, view: &ClusterView) -> HashMap<PdiskId, Vec<(StripId, Version)>> {
        let mut by_pdisk: HashMap<PdiskId, Vec<_>> = HashMap::new();
        let mut table = self.table.lock();
        let before = table.complete.len();
        table.complete.retain(|stripe, entry| {
            let Some(pool) = view.pool(entry.pool) else { return false };
            let group = pool.group_of(*stripe);
            let members = view.members(entry.pool, group);
            entry.moved.retain(|(index, to, version)| {
                let member = members.get(usize::from(index.0)) == Some(to);
                let there = member || view.joins(entry.pool, group, *index) == Some(*to);
                if there && view.state(*to).written() {
                    by_pdisk.entry(*to).or_default().push((stripe.strip(*index), *version));
                    return true;
                }
                false
            });
            entry.strips.retain(|(index, version)| match members.get(usize::from(index.0)) {
                Some(pdisk) if view.state(*pdisk).written() => {
                    by_pdisk.entry(*pdisk).or_default().push((stripe.strip(*index), *version));
                    true
                }
                _ => false,
            });
            !entry.is_empty()
        });
        if table.complete.len() < before {
            self.room.notify_waiters();
        }
        by_pdisk
    }

    /// Durably adopted on `pdisk`, which was where the strips stand in `view`.
    pub fn adopted(&self, view: &ClusterView, pdisk: PdiskId, items: &[(StripId, Version)]) {
        let mut table = self.table.lock();
        for (strip, version) in items {
            if let Some(entry) = table.complete.get_mut(&strip.stripe) {
                entry.moved.retain(|(i, to, v)| (*i, *to, *v) != (strip.index, pdisk, *version));
                let group = view.pool(entry.pool).map(|p| p.group_of(strip.stripe)).unwrap_or_default();
                if view.members(entry.pool, group).get(usize::from(strip.index.0)) == Some(&pdisk) {
                    entry.strips.retain(|(i, v)| (*i, *v) != (strip.index, *version));
                }
                if entry.is_empty() {
                    table.complete.remove(&strip.stripe);
                }
            }
        }
        drop(table);
        self.room.notify_waiters();
    }
}

fn stripes_of(fs: FsId, inode: InodeNo) -> RangeInclusive<StripeId> {
    let stripe = |block| StripeId { fs, inode, block: BlockIndex(block) };
    stripe(0)..=stripe(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_that_comes_since_no_pdisk_counts_is_told() {
        let adoption = Adoption::new(&IoConfig { adopt_stripes_max: 1, ..IoConfig::default() });
        let stripe = |block| StripeId { block: BlockIndex(block), ..StripeId::default() };
        let (touched, meta) = (StripSet(1), BlockMeta::default());
        let (version, fresh, stored, moved) = (Version::default(), true, touched, Vec::new());
        let written = Written { pool: PoolId(1), version, fresh, touched, stored, moved, meta };
        adoption.completed(stripe(0), written);
        let until = Instant::now() + Duration::from_secs(20);
        let (has_room, _) = tokio::join!(adoption.wait_room(stripe(1), until), async {
            // The map has no such pool any more.
            adoption.snapshot(&ClusterView::new(Default::default()))
        });
        assert!(has_room);
    }
}
