//! The reaper: removes the strips of deleted and truncated files from the pdisks.
//!
//! Takes entries of the delete queue, oldest first, sends them to every pdisk of their pool that is
//! written to, and removes them from the queue when all of these have answered. A pdisk that turns
//! missing meanwhile is not waited for: when it comes back, catching up removes what no other member
//! has. A pdisk that turned returning meanwhile is asked as well. Entries may be sent twice; deletes
//! name the highest version they remove, so repeating one does no harm. On failure: again after a pause.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{PdiskId, PoolId, beat};
use wire::{map::ClusterMap, nsd::BATCH_MAX, strip::DeleteStrips};

use crate::{
    delete_queue,
    keys::{self, DeleteRecord, last_u64},
    manager::Inner,
    namespace::Fault,
    store::{Read, open_record, prefix_end},
};

/// Pause after a failure, and between looks at an empty queue.
const PAUSE: Duration = Duration::from_secs(1);
/// What is removed gathers for so long: every round is a flush of each pdisk and a commit here, and who removes many files
/// waits for flushes of the same disks.
const GATHER: Duration = Duration::from_millis(200);

/// Entries looked at in one round: those of pools that wait are gone past.
const LOOK_MAX: usize = 64 << 10;

/// Sends deletes to a pdisk's server.
pub trait Deleter: Send + Sync + 'static {
    /// Removes the strips at one pdisk; an error text if it did not.
    fn delete(
        &self,
        map: &ClusterMap,
        pdisk: PdiskId,
        items: Vec<DeleteStrips>,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

/// One pool's share of a batch.
#[derive(Debug, Default, Clone, PartialEq)]
struct Batch {
    numbers: Vec<u64>,
    items: Vec<DeleteStrips>,
    blocks: u64,
}

/// How far one pass over the queue is. A pool that is not served is tried once in a pass: its entries stand in nobody's way.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// The last entry looked at; 0 between passes.
    after: u64,
    /// Pools that could not be served in this pass.
    waiting: BTreeSet<PoolId>,
}

impl Pass {
    fn is_under_way(&self) -> bool {
        self.after > 0
    }

    /// The next entries of the queue by pool, at most [`BATCH_MAX`], of pools that do not wait. Damaged ones are left out and
    /// told. The pass ends with the queue.
    fn next(&mut self, from: &dyn Read) -> Result<BTreeMap<PoolId, Batch>, Fault> {
        let mut batches: BTreeMap<PoolId, Batch> = BTreeMap::new();
        let (mut taken, mut looked, mut last) = (0, 0, 0);
        let start = keys::delete_key(self.after.saturating_add(1));
        from.scan(&start, &prefix_end(b"q"), &mut |key, value| {
            (looked, last) = (looked + 1, last_u64(key));
            match open_record::<DeleteRecord>(key, value) {
                Ok(record) if self.waiting.contains(&record.pool) => {}
                Ok(record) => {
                    taken += 1;
                    let batch = batches.entry(record.pool).or_default();
                    batch.numbers.push(last_u64(key));
                    batch.items.push(record.strips);
                    batch.blocks += record.blocks;
                }
                Err(error) => tracing::error!(%error, "an entry of the delete queue is skipped"),
            }
            let more = taken < BATCH_MAX && looked < LOOK_MAX;
            if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        debug_assert!(batches.keys().all(|pool| !self.waiting.contains(pool)), "tried once in a pass");
        self.after = if taken < BATCH_MAX && looked < LOOK_MAX { 0 } else { last };
        Ok(batches)
    }
}

/// The pdisks that must remove the strips of a pool.
fn wanted(map: &ClusterMap, pool: PoolId) -> BTreeSet<PdiskId> {
    let Some(pool) = map.pool(pool) else { return BTreeSet::new() };
    let members = pool.table.iter().copied().chain(pool.moves.iter().map(|m| m.to));
    members.filter(|id| map.pdisk(*id).is_some_and(|pdisk| pdisk.state.written())).collect()
}

/// Runs until it is dropped.
pub(crate) async fn run(inner: Arc<Inner>, deleter: impl Deleter) {
    let (deleter, mut pass) = (Arc::new(deleter), Pass::default());
    loop {
        let outcome = reap(&inner, &deleter, &mut pass).await;
        if let Err(reason) = &outcome {
            tracing::debug!(reason, "deletes are tried again");
        }
        match outcome {
            Ok(BATCH_MAX..) => {}
            _ if pass.is_under_way() => tokio::task::yield_now().await,
            Ok(0) => {
                // Safe to cancel: a notification that is missed is made up for by the pause's end.
                let next = beat::by(Instant::now(), PAUSE);
                let _ = tokio::time::timeout_at(next.into(), inner.deletes.notified()).await;
            }
            Ok(_) => tokio::time::sleep(GATHER).await,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One round; how many entries are done. All pools at once: one whose servers do not answer takes long.
pub(crate) async fn reap(
    inner: &Arc<Inner>,
    deleter: &Arc<impl Deleter>,
    pass: &mut Pass,
) -> Result<usize, String> {
    let batches = pass.next(&*inner.writer.snapshot()).map_err(|fault| fault.to_string())?;
    let mut pools = tokio::task::JoinSet::new();
    for (pool, batch) in batches {
        let (inner, deleter) = (inner.clone(), deleter.clone());
        pools.spawn(async move {
            let entries = batch.numbers.len();
            let outcome = match delete_everywhere(&inner, &deleter, pool, &batch.items).await {
                Ok(()) => finish(&inner, batch).await.map(|()| entries),
                Err(reason) => Err(reason),
            };
            (pool, outcome)
        });
    }
    let (mut done, mut failure) = (0, None);
    while let Some(joined) = pools.join_next().await {
        match joined {
            Ok((_, Ok(entries))) => done += entries,
            Ok((pool, Err(reason))) => {
                pass.waiting.insert(pool);
                failure = Some(reason);
            }
            Err(error) => failure = Some(error.to_string()),
        }
    }
    if !pass.is_under_way() {
        pass.waiting.clear();
    }
    match failure {
        Some(reason) if done == 0 => Err(reason),
        _ => Ok(done),
    }
}

/// Returns when every pdisk that is written to has removed the items.
async fn delete_everywhere(
    inner: &Arc<Inner>,
    deleter: &Arc<impl Deleter>,
    pool: PoolId,
    items: &[DeleteStrips],
) -> Result<(), String> {
    let mut answered = BTreeSet::new();
    loop {
        let map = inner.map.borrow().clone();
        let left: Vec<PdiskId> = wanted(&map, pool).difference(&answered).copied().collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut calls = tokio::task::JoinSet::new();
        for pdisk in left {
            let (deleter, map, items) = (deleter.clone(), map.clone(), items.to_vec());
            calls.spawn(async move { (pdisk, deleter.delete(&map, pdisk, items).await) });
        }
        let mut failure = None;
        while let Some(joined) = calls.join_next().await {
            match joined {
                Ok((pdisk, Ok(()))) => drop(answered.insert(pdisk)),
                Ok((pdisk, Err(reason))) => failure = Some(format!("{pdisk}: {reason}")),
                Err(error) => failure = Some(error.to_string()),
            }
        }
        if let Some(reason) = failure {
            return Err(reason);
        }
    }
}

async fn finish(inner: &Arc<Inner>, batch: Batch) -> Result<(), String> {
    let done = inner.writer.run(move |txn| Ok(delete_queue::remove(txn, &batch.numbers, batch.blocks)?));
    done.await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::seal_record;

    /// The queue of a pool that is not served is longer than a batch; those of others come after it all the same.
    #[test]
    fn a_pool_that_is_not_served_is_in_nobodys_way() {
        let (dead, served) = (PoolId(1), PoolId(2));
        let mut queue = BTreeMap::new();
        for number in 1..=3 * BATCH_MAX as u64 {
            let pool = if number <= 2 * BATCH_MAX as u64 { dead } else { served };
            let strips = DeleteStrips {
                fs: base::FsId(1),
                inode: base::InodeNo(number),
                first: base::BlockIndex(0),
                last: base::BlockIndex(0),
                highest: base::Version::MAX,
            };
            let key = keys::delete_key(number);
            let value = seal_record(&key, &DeleteRecord { pool, strips, blocks: 1 });
            queue.insert(key, value);
        }
        let mut pass = Pass::default();
        let first = pass.next(&queue).expect("a batch");
        assert_eq!(first.keys().collect::<Vec<_>>(), [&dead]);
        pass.waiting.insert(dead);
        let second = pass.next(&queue).expect("a batch");
        assert_eq!(second.keys().collect::<Vec<_>>(), [&served]);
        assert_eq!(second[&served].items.len(), BATCH_MAX);
        // Nothing is left: the next pass begins with the oldest.
        assert!(pass.next(&queue).expect("the end").is_empty() && !pass.is_under_way());
    }
}
