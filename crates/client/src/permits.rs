//! How much of each kind of work is done at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::config::Tunables;

/// A permit for each piece of work at once, by kind.
pub(crate) struct Permits {
    /// Blocks being written.
    pub flush: Arc<Semaphore>,
    /// Blocks being read ahead.
    pub prefetch: Arc<Semaphore>,
    /// Blocks that applications wait for.
    pub load: Arc<Semaphore>,
    /// Files being written back in the background.
    pub cleaner: Arc<Semaphore>,
}

impl Permits {
    pub fn new(tunables: &Tunables) -> Permits {
        let permits = |count: u32| Arc::new(Semaphore::new(count as usize));
        Permits {
            flush: permits(tunables.flushes_max),
            prefetch: permits(tunables.prefetches_max),
            load: permits(tunables.loads_max),
            cleaner: permits(tunables.cleaners_max),
        }
    }

    /// So many as `new` says, instead of `old`; what is in use beyond that goes when it is given back.
    pub fn resize(&self, runtime: &tokio::runtime::Handle, old: &Tunables, new: &Tunables) {
        let kinds = [
            (&self.flush, old.flushes_max, new.flushes_max),
            (&self.prefetch, old.prefetches_max, new.prefetches_max),
            (&self.load, old.loads_max, new.loads_max),
            (&self.cleaner, old.cleaners_max, new.cleaners_max),
        ];
        for (permits, old, new) in kinds {
            permits.add_permits(new.saturating_sub(old) as usize);
            let less = old.saturating_sub(new);
            if less > 0 {
                let permits = permits.clone();
                runtime.spawn(async move {
                    if let Ok(taken) = permits.acquire_many(less).await {
                        taken.forget();
                    }
                });
            }
        }
    }
}
