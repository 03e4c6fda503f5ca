//! What sessions hold of the room, and what they have used of it lately.

use std::{collections::BTreeMap, time::Duration};

use base::{PoolId, SessionId};

/// Uses remembered until reports catch up; later ones are added to the last of their pool.
const USES_MAX: usize = 64;

/// Who holds what.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub held: BTreeMap<(SessionId, PoolId), u64>,
    pub uses: Vec<Use>,
}

/// Bytes that were used, and when that was told.
#[derive(Debug)]
pub(super) struct Use {
    pub at: Duration,
    pub pool: PoolId,
    pub bytes: u64,
}

impl Space {
    /// A session ended uncleanly: what it held is free, or in the next reports.
    pub fn forget(&mut self, session: SessionId) {
        self.take(session);
    }

    /// A pool is gone.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.held.retain(|(_, of), _| *of != pool);
        self.uses.retain(|used| used.pool != pool);
    }

    /// A session ended: what it held may have been used last.
    pub fn close(&mut self, session: SessionId, now: Duration) {
        for (pool, bytes) in self.take(session) {
            self.add_use(pool, bytes, now);
        }
    }

    fn take(&mut self, session: SessionId) -> Vec<(PoolId, u64)> {
        let of_session: BTreeMap<_, _> = self.held.extract_if(.., |(of, _), _| *of == session).collect();
        of_session.into_iter().map(|((_, pool), bytes)| (pool, bytes)).collect()
    }

    pub fn add_use(&mut self, pool: PoolId, bytes: u64, now: Duration) {
        if bytes == 0 {
            return;
        }
        let full = self.uses.len() >= USES_MAX;
        match self.uses.iter_mut().rfind(|used| used.pool == pool) {
            Some(last) if full || now < last.at + Duration::from_millis(250) => {
                last.at = now;
                last.bytes += bytes;
            }
            _ => self.uses.push(Use { at: now, pool, bytes }),
        }
    }
}
