//! What a store has to see to beside its commits is done, and what an admin has to see to is told, once. A store that may lose its right to commit is asked, again and again, whether it still has it: one that nobody writes to would not
//! find out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::beat;

use super::shared::Inner;
use crate::store::Store;

/// Runs until the manager ends, or fails it.
pub(super) async fn run(inner: Arc<Inner>, every: Duration) {
    let mut told: Vec<&str> = Vec::new();
    loop {
        tokio::time::sleep_until(beat::by(Instant::now(), every).into()).await;
        // The store is let go before the lock, which a stop waits for.
        let (store, lock) = (inner.store.clone(), inner.scrubbing.clone().lock_owned().await);
        let step = move || {
            let tended = |store: Arc<dyn Store>| store.tend().map(|()| store.remarks());
            let outcome = store.upgrade().map_or(Ok(Vec::new()), tended);
            drop(lock);
            outcome
        };
        match inner.writer.aside(step).await {
            Ok(Ok(remarks)) => {
                let now: Vec<&str> = remarks.iter().map(|remark| remark.what).collect();
                for remark in remarks.iter().filter(|remark| !told.contains(&remark.what)) {
                    tracing::warn!("{}", remark.text);
                    inner.log.add(remark.text.clone());
                }
                for what in told.iter().filter(|what| !now.contains(what)) {
                    inner.log.add(format!("no longer: {what}"));
                }
                told = now;
            }
            Ok(Err(error)) => return inner.writer.fail(error.to_string()),
            Err(_) => return,
        }
    }
}
