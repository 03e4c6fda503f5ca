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
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use base::{
    BlockIndex, FsId, InodeNo, OpClass, PdiskId, PoolId, StripId, StripIndex, StripSet, StripeId, Version,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::{
    nsd::{BATCH_MAX, NsdReply, NsdRequest},
    strip::StripRefusal,
};

use crate::{
    ClusterView, Fault, StripeError, StripeIo,
    io::{IoConfig, Shared},
    meta::BlockMeta,
};

pub(crate) struct Adoption {
    table: Mutex<Table>,
    /// The batch is full, or somebody waits.
    kick: Notify,
    /// Entries went.
    room: Notify,
    interval: Duration,
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
pub(crate) struct Complete {
    pub pool: PoolId,
    /// The strips that may hold it as prepared only; versions differ when an older one is still pending
    /// on strips the newer one did not touch.
    pub strips: Vec<(StripIndex, Version)>,
    /// The same for strips on their way to another pdisk, and which. They stay when the strip is adopted at
    /// its member, and then say what is current at a pdisk that becomes the member meanwhile.
    pub joined: Vec<(StripIndex, PdiskId, Version)>,
    pub meta: BlockMeta,
}

impl Complete {
    pub fn version_of(&self, index: StripIndex) -> Option<Version> {
        let strips = self.strips.iter().copied().chain(self.joined.iter().map(|(i, _, v)| (*i, *v)));
        strips.filter(|(i, _)| *i == index).map(|(_, v)| v).max()
    }
    fn is_empty(&self) -> bool {
        self.strips.is_empty() && self.joined.is_empty()
    }
}

/// A version that was begun and not completed.
#[derive(Clone, Debug)]
pub(crate) struct Abandoned {
    pub pool: PoolId,
    pub versions: Vec<(Version, StripSet)>,
    /// Requests under way when it was given up are dead after this.
    pub dead_at: Instant,
}

impl Adoption {
    pub fn new(config: &IoConfig) -> Adoption {
        Adoption {
            table: Mutex::default(),
            kick: Notify::new(),
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

    /// A version is complete: `stored` are the strips that hold it, `touched` all it touches. Its
    /// prepares carried the adoption of what those strips held before. Of a block begun anew (`fresh`)
    /// nothing older counts.
    #[allow(clippy::too_many_arguments)]
    pub fn completed(
        &self,
        stripe: StripeId,
        pool: PoolId,
        version: Version,
        fresh: bool,
        touched: StripSet,
        stored: StripSet,
        joined: Vec<(StripIndex, PdiskId)>,
        meta: BlockMeta,
    ) {
        let mut table = self.table.lock();
        let entry = table.complete.entry(stripe).or_insert(Complete {
            pool,
            strips: Vec::new(),
            joined: Vec::new(),
            meta: BlockMeta::default(),
        });
        entry.meta = meta;
        entry.strips.retain(|(i, _)| !fresh && !touched.contains(*i));
        entry.strips.extend(stored.iter().map(|i| (i, version)));
        entry.joined.retain(|(i, ..)| !fresh && !touched.contains(*i));
        entry.joined.extend(joined.into_iter().map(|(i, to)| (i, to, version)));
        if let Some(abandoned) = table.abandoned.get_mut(&stripe) {
            abandoned.versions.retain(|(v, _)| *v != version);
            if abandoned.versions.is_empty() {
                table.abandoned.remove(&stripe);
            }
        }
        if table.complete.len() >= self.batch {
            self.kick.notify_one();
        }
    }

    /// A version is begun: until it is complete it counts as abandoned, whatever happens to the writer.
    pub fn begun(
        &self,
        stripe: StripeId,
        pool: PoolId,
        version: Version,
        touched: StripSet,
        dead_at: Instant,
    ) {
        let mut table = self.table.lock();
        let entry =
            table.abandoned.entry(stripe).or_insert(Abandoned { pool, versions: Vec::new(), dead_at });
        entry.dead_at = entry.dead_at.max(dead_at);
        match entry.versions.iter_mut().find(|(v, _)| *v == version) {
            Some((_, set)) => set.0 |= touched.0,
            None => entry.versions.push((version, touched)),
        }
    }

    /// No request of the abandoned versions is under way any more.
    pub fn settled(&self, stripe: StripeId) {
        if let Some(entry) = self.table.lock().abandoned.get_mut(&stripe) {
            entry.dead_at = Instant::now();
        }
    }

    pub fn abandoned_of(&self, stripe: StripeId) -> Option<Abandoned> {
        self.table.lock().abandoned.get(&stripe).cloned()
    }

    pub fn discarded(&self, stripe: StripeId) {
        self.table.lock().abandoned.remove(&stripe);
    }

    /// Adopts what waits soon: room on the pdisks comes back with it.
    pub fn hurry(&self) {
        self.kick.notify_one();
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
            self.kick.notify_one();
            if tokio::time::timeout_at(until.into(), room).await.is_err() {
                return false;
            }
        }
    }

    fn abandoned_in(&self, fs: FsId, inode: InodeNo) -> Vec<StripeId> {
        self.table.lock().abandoned.range(stripes_of(fs, inode)).map(|(id, _)| *id).collect()
    }

    fn complete_in(&self, fs: FsId, inode: InodeNo) -> usize {
        self.table.lock().complete.range(stripes_of(fs, inode)).count()
    }

    /// Everything that waits now, by the pdisk that holds it. Strips whose pdisk does not count go.
    fn snapshot(&self, view: &ClusterView) -> HashMap<PdiskId, Vec<(StripId, Version)>> {
        let mut by_pdisk: HashMap<PdiskId, Vec<_>> = HashMap::new();
        self.table.lock().complete.retain(|stripe, entry| {
            let Some(pool) = view.pool(entry.pool) else { return false };
            let group = pool.group_of(*stripe);
            let members = view.members(entry.pool, group);
            entry.joined.retain(|(index, to, version)| {
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
        by_pdisk
    }

    /// Durably adopted on `pdisk`, which was where the strips stand in `view`.
    fn adopted(&self, view: &ClusterView, pdisk: PdiskId, items: &[(StripId, Version)]) {
        let mut table = self.table.lock();
        for (strip, version) in items {
            if let Some(entry) = table.complete.get_mut(&strip.stripe) {
                entry.joined.retain(|(i, to, v)| (*i, *to, *v) != (strip.index, pdisk, *version));
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

/// Runs until the last [`StripeIo`] is gone.
pub(crate) fn spawn(shared: Weak<Shared>) {
    tokio::spawn(async move {
        loop {
            let Some(strong) = shared.upgrade() else { return };
            if strong.adoption.len() > 0 {
                flush(&strong).await;
            }
            let interval = strong.adoption.interval;
            let kick = async { strong.adoption.kick.notified().await };
            // The handle is held for one interval at most, so that the last user's end is noticed.
            let _ = tokio::time::timeout(interval, kick).await;
        }
    });
}

/// Adopts what waits now; returns how many strips failed and stay.
async fn flush(shared: &Arc<Shared>) -> usize {
    let view = shared.view();
    let work = shared.adoption.snapshot(&view);
    let mut tasks = tokio::task::JoinSet::new();
    let deadline = Instant::now() + shared.config.attempt;
    for (pdisk, items) in work {
        for batch in items.chunks(BATCH_MAX) {
            let (shared, view, batch) = (Arc::clone(shared), Arc::clone(&view), batch.to_vec());
            tasks.spawn(async move { adopt_batch(&shared, &view, pdisk, batch, deadline).await });
        }
    }
    let mut failed = 0;
    while let Some(done) = tasks.join_next().await {
        failed += done.unwrap_or(1);
    }
    failed
}

async fn adopt_batch(
    shared: &Arc<Shared>,
    view: &ClusterView,
    pdisk: PdiskId,
    items: Vec<(StripId, Version)>,
    deadline: Instant,
) -> usize {
    let request = NsdRequest::Adopt { pdisk, items: items.clone() };
    let inode = items.first().map(|(s, _)| s.stripe.inode).unwrap_or_default();
    let reply = shared.call(view, pdisk, request, Vec::new(), OpClass::Write, inode, deadline).await;
    let outcomes = match reply {
        Ok((NsdReply::Outcomes(outcomes), _)) if outcomes.len() == items.len() => outcomes,
        Ok(_) => return items.len(),
        Err(fault) => {
            tracing::debug!(%pdisk, %fault, "adoption is repeated");
            return items.len();
        }
    };
    let mut done = Vec::with_capacity(items.len());
    let mut failed = 0;
    for (item, outcome) in items.into_iter().zip(outcomes) {
        match outcome {
            // A later version is here (its prepare carried the adoption), or the strip was deleted.
            Ok(()) | Err(StripRefusal::NotNewer { .. } | StripRefusal::Absent | StripRefusal::Lost) => {
                done.push(item);
            }
            Err(refusal) => {
                tracing::debug!(%pdisk, strip = %item.0, %refusal, "adoption is repeated");
                failed += 1;
            }
        }
    }
    shared.adoption.adopted(view, pdisk, &done);
    failed
}

impl StripeIo {
    /// Adopts everything that is complete; returns when that is durable. Before a clean end of a session.
    pub async fn adopt_all(&self, deadline: Instant) -> Result<(), StripeError> {
        loop {
            flush(&self.shared).await;
            let stripes = self.shared.adoption.len();
            if stripes == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(StripeError::NotAdopted { stripes });
            }
            tokio::time::sleep(self.shared.config.retry_pause).await;
        }
    }

    /// Leaves nothing of an inode half done: what is complete is adopted, durably, and what failed writes
    /// left is discarded. Nothing of it is being written.
    pub async fn settle_inode(&self, fs: FsId, inode: InodeNo, deadline: Instant) -> Result<(), StripeError> {
        for stripe in self.shared.adoption.abandoned_in(fs, inode) {
            self.clear_abandoned(stripe, deadline).await?;
        }
        loop {
            let stripes = self.shared.adoption.complete_in(fs, inode);
            if stripes == 0 {
                return Ok(());
            }
            flush(&self.shared).await;
            let stripes = self.shared.adoption.complete_in(fs, inode);
            if stripes > 0 {
                if Instant::now() >= deadline {
                    return Err(StripeError::NotAdopted { stripes });
                }
                tokio::time::sleep(self.shared.config.retry_pause).await;
            }
        }
    }

    /// Stripes that are complete and not known to be adopted.
    pub fn unadopted(&self) -> usize {
        self.shared.adoption.len()
    }

    /// Discards what failed writes left of a stripe, so that the next version stands beside a complete
    /// one. Waits until requests of the failed write can no longer arrive.
    pub(crate) async fn clear_abandoned(&self, stripe: StripeId, until: Instant) -> Result<(), StripeError> {
        let shared = &self.shared;
        let Some(abandoned) = shared.adoption.abandoned_of(stripe) else { return Ok(()) };
        tokio::time::sleep_until(abandoned.dead_at.min(until).into()).await;
        loop {
            let view = shared.view();
            let pool = shared.pool(&view, abandoned.pool)?;
            let group = pool.group_of(stripe);
            let members = view.members(pool.id, group);
            let mut faults = Vec::new();
            for (version, touched) in &abandoned.versions {
                let places = touched.iter().flat_map(|index| {
                    let member = members.get(usize::from(index.0)).copied();
                    member.into_iter().chain(view.joins(pool.id, group, index)).map(move |p| (index, p))
                });
                for (index, pdisk) in places {
                    if !view.state(pdisk).written() {
                        continue; // what it holds counts again only after catch-up
                    }
                    let items = vec![(stripe.strip(index), *version)];
                    let request = NsdRequest::Discard { pdisk, items };
                    let reply = shared
                        .call(&view, pdisk, request, Vec::new(), OpClass::Write, stripe.inode, until)
                        .await;
                    let fault = match reply {
                        Ok((NsdReply::Outcomes(outcomes), _)) => match outcomes.first() {
                            Some(Ok(()) | Err(StripRefusal::NotNewer { .. } | StripRefusal::Absent)) => {
                                continue;
                            }
                            Some(Err(refusal)) => Fault::Refused(refusal.clone().into()),
                            None => Fault::Protocol,
                        },
                        Ok(_) => Fault::Protocol,
                        Err(fault) if fault.is_fenced() => return Err(StripeError::Fenced { stripe }),
                        Err(fault) => fault,
                    };
                    faults.push(crate::StripFault { index, pdisk: Some(pdisk), fault });
                }
            }
            if faults.is_empty() {
                shared.adoption.discarded(stripe);
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(StripeError::Deadline { stripe, faults: crate::StripFaults(faults) });
            }
            tokio::time::sleep(shared.config.retry_pause).await;
        }
    }
}
