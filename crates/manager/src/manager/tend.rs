//! A store that may lose its right to commit is asked, again and again, whether it still has it: one that nobody writes to would not
//! find out. And nothing is answered at a time when it may be another's.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Manager, shared::Inner};

/// How often it is looked whether it may be answered again.
const PAUSE: Duration = Duration::from_millis(20);

impl Manager {
    /// Waits until it is certain that no other manager has taken over by now; false: not before `expires`. Called after the
    /// answer was found.
    pub(crate) async fn is_confirmed(&self, expires: Instant) -> bool {
        let Some(confirmed) = &self.inner.confirmed else { return true };
        while !confirmed.holds() {
            if Instant::now() + PAUSE > expires {
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }
}

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
