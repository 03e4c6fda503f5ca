//! A store that may lose its right to commit is asked, again and again, whether it still has it: one that nobody writes to would not
//! find out.

use std::{sync::Arc, time::Duration};

use super::shared::Inner;

/// Runs until the manager ends, or fails it.
pub(super) async fn run(inner: Arc<Inner>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        // The store is let go before the lock, which a stop waits for.
        let (store, lock) = (inner.store.clone(), inner.scrubbing.clone().lock_owned().await);
        let step = move || {
            let outcome = store.upgrade().map_or(Ok(()), |store| store.tend());
            drop(lock);
            outcome
        };
        match inner.writer.aside(step).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return inner.writer.fail(error.to_string()),
            Err(_) => return,
        }
    }
}
