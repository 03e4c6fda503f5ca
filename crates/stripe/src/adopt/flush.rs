//! Adoption in batches, one request a pdisk.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

use base::{OpClass, PdiskId, StripId, Version};
use tokio::task::JoinSet;
use wire::{
    nsd::{BATCH_MAX, NsdReply, NsdRequest},
    strip::StripRefusal,
};

use crate::{ClusterView, shared::Shared};

/// Runs until the last [`StripeIo`](crate::StripeIo) is gone.
pub(crate) fn spawn(shared: Weak<Shared>) {
    tokio::spawn(async move {
        loop {
            let Some(strong) = shared.upgrade() else { return };
            if strong.adoption.len() == 0 {
                let some = strong.adoption.some();
                drop(strong);
                some.notified().await;
                continue;
            }
            let interval = strong.adoption.interval;
            // The handle is held for one interval at most, so that the last user's end is noticed.
            let _ = tokio::time::timeout(interval, strong.adoption.wanted()).await;
            flush(&strong).await;
        }
    });
}

/// Adopts what waits now; returns how many strips failed and stay.
pub(super) async fn flush(shared: &Arc<Shared>) -> usize {
    let view = shared.view();
    let work = shared.adoption.snapshot(&view);
    let mut tasks = JoinSet::new();
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
