//! Groups that have lost blocks for good, for who counts these and for people.

use std::{collections::BTreeMap, time::Duration};

use base::{MemberId, PoolId, SessionId};
use tokio::time::Instant;
use wire::mgr::{MgrError, MgrReply, PoolLosses};

use super::{Caller, Manager, read_refusal};
use crate::{
    cluster::Ask,
    losses::{Counted, Losses, load},
};

/// How long the cluster may take to forget records.
const PATIENCE: Duration = Duration::from_secs(10);

impl Manager {
    /// The groups on record, for who looks at their blocks.
    pub fn losses(&self) -> Result<Losses, MgrError> {
        load(&*self.snapshot()).map_err(read_refusal)
    }

    /// What was found when all files were looked at, begun when `seen` was on record: what is said from now on. Of `seen`, those groups
    /// in which nothing was found are forgotten, unless they have lost more meanwhile.
    pub async fn count_losses(&self, counted: Counted, whole: Losses) -> Result<(), MgrError> {
        *self.inner().lost.lock() = Some(counted);
        if whole.is_empty() {
            return Ok(());
        }
        let expires = Instant::now() + PATIENCE;
        let caller = Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
        match self.ask(caller, Ask::ForgetLosses(whole)).await? {
            MgrReply::Error(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// In numbers, for people.
    pub(crate) fn told_losses(&self) -> Result<MgrReply, MgrError> {
        let mut pools: BTreeMap<PoolId, u32> = BTreeMap::new();
        self.losses()?.keys().for_each(|(pool, _)| *pools.entry(*pool).or_default() += 1);
        let counted = self.inner().lost.lock().clone();
        let found = |pool| counted.as_ref().map(|counted| counted.get(&pool).copied().unwrap_or_default());
        let told = pools.into_iter().map(|(pool, groups)| PoolLosses { pool, groups, counted: found(pool) });
        Ok(MgrReply::Losses(told.collect()))
    }
}
