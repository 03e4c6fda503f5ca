//! The scrub of the manager's own store: every block of the table is read from the disk, round all memory, and every
//! record, and compared with their CRCs, slowly, over and over. What is damaged is told as an event and in `health` as long as
//! the manager lives. Nothing wrong is answered without it either: it finds damage while there is a dump to go back to.

use std::{ops::ControlFlow, time::Duration};

use crate::{
    manager::Inner,
    store::{KeyText, Snapshot, StoreError, is_whole},
};

/// Blocks of one step, 1 MiB.
const BLOCKS: u64 = 256;
/// Records of one step.
const RECORDS: usize = 4096;
/// Damaged records that are named, at most.
const NAMED_MAX: usize = 1000;

/// How fast.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between the steps: some 20 MB a second.
    pub step: Duration,
    /// Between the end of a round and the next.
    pub round: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { step: Duration::from_millis(50), round: Duration::from_secs(3600) }
    }
}

/// What is known to be damaged, for people.
pub fn damage(inner: &Inner) -> Vec<String> {
    let blocks = inner.store.upgrade().map(|store| store.damage()).unwrap_or_default();
    let mut told = Vec::new();
    if let Some(first) = blocks.first() {
        told.push(format!(
            "{} blocks of its table do not match their CRCs, the first is block {first}",
            blocks.len()
        ));
    }
    let records = inner.damaged_records.lock();
    if let Some(first) = records.first() {
        told.push(format!(
            "{} records of its table do not match their CRCs, the first is {first}",
            records.len()
        ));
    }
    told
}

/// Goes over the store until the manager ends.
pub async fn run(inner: std::sync::Arc<Inner>, pace: Pace) {
    let mut told = Vec::new();
    loop {
        if let Err(error) = round(&inner, pace).await {
            tracing::warn!(%error, "the scrub of the manager's store cannot go on");
        }
        let found = damage(&inner);
        for text in found.iter().filter(|text| !told.contains(*text)) {
            inner.log.add(format!("the manager's store is damaged: {text}"));
        }
        told = found;
        tokio::time::sleep(pace.round).await;
    }
}

async fn round(inner: &Inner, pace: Pace) -> Result<(), StoreError> {
    let stopped = |_| StoreError::Engine { action: "scrub the", reason: "the manager is stopping".into() };
    let mut block = Some(0);
    while let Some(first) = block {
        // The store is let go before the lock, which a stop waits for.
        let (store, lock) = (inner.store.clone(), inner.scrubbing.clone().lock_owned().await);
        let step = move || {
            let next = store.upgrade().map_or(Ok(None), |store| store.scrub(first, BLOCKS));
            drop(lock);
            next
        };
        block = inner.writer.aside(step).await.map_err(stopped)??;
        tokio::time::sleep(pace.step).await;
    }
    let mut from = Some(Vec::new());
    while let Some(start) = from {
        let snapshot = inner.writer.snapshot();
        let read = inner.writer.aside(move || records(&snapshot, &start)).await.map_err(stopped)?;
        let (bad, next) = match read {
            // The block is known by now, and what lies behind it cannot be found from here.
            Err(StoreError::Damaged { .. }) => return Ok(()),
            read => read?,
        };
        add_records(inner, bad);
        from = next;
        tokio::time::sleep(pace.step).await;
    }
    Ok(())
}

fn add_records(inner: &Inner, bad: Vec<String>) {
    let mut damaged = inner.damaged_records.lock();
    let room = NAMED_MAX.saturating_sub(damaged.len());
    damaged.extend(bad.into_iter().take(room));
}

/// The damaged ones of the records from `start` on, and where to go on.
fn records(snapshot: &Snapshot, start: &[u8]) -> Result<(Vec<String>, Option<Vec<u8>>), StoreError> {
    let (mut bad, mut count, mut next) = (Vec::new(), 0, None);
    snapshot.scan(start, &[u8::MAX; 16], &mut |key, value| {
        if count == RECORDS {
            next = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        count += 1;
        if !is_whole(key, value) {
            bad.push(KeyText(key.to_vec()).to_string());
        }
        ControlFlow::Continue(())
    })?;
    Ok((bad, next))
}
