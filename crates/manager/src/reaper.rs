//! The reaper: removes the strips of deleted and truncated files from the pdisks.
//!
//! Takes the oldest entries of the delete queue, sends them to every pdisk of their pool that is
//! written to, and removes them from the queue when all of these have answered. A pdisk that turns
//! missing meanwhile is not waited for: when it comes back, catching up removes what no other member
//! has. A pdisk that turned returning meanwhile is asked as well. Entries may be sent twice; deletes
//! name the highest version they remove, so repeating one does no harm. On failure: again after a pause.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use base::{PdiskId, PoolId};
use wire::{map::ClusterMap, nsd::BATCH_MAX, strip::DeleteStrips};

use crate::{
    keys::{self, DeleteQueueRecord, DeleteRecord, delete_queue_key, last_u64},
    manager::Inner,
    namespace::Fault,
    store::{Read, open_record, prefix_end},
};

/// Pause after a failure, and between looks at an empty queue.
const PAUSE: Duration = Duration::from_secs(1);
/// What is removed gathers for so long: every round is a flush of each pdisk and a commit here, and who removes many files
/// waits for flushes of the same disks.
const GATHER: Duration = Duration::from_millis(200);

/// Sends deletes to a pdisk's server.
pub(crate) trait Deleter: Send + Sync + 'static {
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

/// The oldest entries of the queue by pool. Damaged ones are left out and told.
fn oldest(from: &dyn Read) -> Result<BTreeMap<PoolId, Batch>, Fault> {
    let mut batches: BTreeMap<PoolId, Batch> = BTreeMap::new();
    let mut count = 0;
    from.scan(b"q", &prefix_end(b"q"), &mut |key, value| {
        count += 1;
        match open_record::<DeleteRecord>(key, value) {
            Ok(record) => {
                let batch = batches.entry(record.pool).or_default();
                batch.numbers.push(last_u64(key));
                batch.items.push(record.strips);
                batch.blocks += record.blocks;
            }
            Err(error) => tracing::error!(%error, "an entry of the delete queue is skipped"),
        }
        if count == BATCH_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(batches)
}

/// The pdisks that must remove the strips of a pool.
fn wanted(map: &ClusterMap, pool: PoolId) -> BTreeSet<PdiskId> {
    let Some(pool) = map.pool(pool) else { return BTreeSet::new() };
    let members = pool.table.iter().copied().chain(pool.moves.iter().map(|m| m.to));
    members.filter(|id| map.pdisk(*id).is_some_and(|pdisk| pdisk.state.written())).collect()
}

/// Runs until it is dropped.
pub(crate) async fn run(inner: Arc<Inner>, deleter: impl Deleter) {
    let deleter = Arc::new(deleter);
    loop {
        match reap(&inner, &deleter).await {
            Ok(0) => {
                // Safe to cancel: a notification that is missed is made up for by the pause's end.
                let _ = tokio::time::timeout(PAUSE, inner.deletes.notified()).await;
            }
            Ok(BATCH_MAX..) => {}
            Ok(_) => tokio::time::sleep(GATHER).await,
            Err(reason) => {
                tracing::debug!(reason, "deletes are tried again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One round; how many entries are done.
pub(crate) async fn reap(inner: &Arc<Inner>, deleter: &Arc<impl Deleter>) -> Result<usize, String> {
    let batches = oldest(&*inner.writer.snapshot()).map_err(|fault| fault.to_string())?;
    let (mut done, mut failure) = (0, None);
    for (pool, batch) in batches {
        match delete_everywhere(inner, deleter, pool, &batch.items).await {
            Ok(()) => {
                done += batch.numbers.len();
                finish(inner, batch).await?;
            }
            Err(reason) => failure = Some(reason),
        }
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
    let done = inner.writer.run(move |txn| {
        let mut queue = keys::read::<DeleteQueueRecord>(txn, &delete_queue_key())?.unwrap_or_default();
        queue.entries = queue.entries.saturating_sub(batch.numbers.len() as u64);
        queue.blocks = queue.blocks.saturating_sub(batch.blocks);
        batch.numbers.iter().for_each(|&number| txn.delete(keys::delete_key(number)));
        keys::write(txn, delete_queue_key(), &queue);
        Ok(())
    });
    done.await.map_err(|error| error.to_string())
}
