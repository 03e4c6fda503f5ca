//! Strips that do not belong on a pdisk of this node any more: their group has moved away, or never came.
//! They are removed when the map is the same for some time; nobody reads them, but they take up space.
//!
//! A strip whose stripe has another strip here that does belong stays: strips are removed by stripe.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::{GroupId, PdiskId, PoolId, StripId};
use stripe::{ClusterView, Membership};
use wire::strip::{DeleteStrips, StripRefusal, StripState};

use crate::config::ServedPdisk;

/// The map's tables have been the same for this long.
const QUIET: Duration = Duration::from_secs(5);
/// Strips looked at in one step.
const PAGE: usize = 512;

/// What is left over on one pdisk.
pub struct Leftovers {
    served: ServedPdisk,
    membership: Membership,
    sweeping: Arc<tokio::sync::Mutex<()>>,
    removed: AtomicU64,
}

impl Leftovers {
    /// `sweeping` is held while something is removed.
    pub fn new(
        served: ServedPdisk,
        membership: Membership,
        sweeping: Arc<tokio::sync::Mutex<()>>,
    ) -> Leftovers {
        Leftovers { served, membership, sweeping, removed: AtomicU64::new(0) }
    }

    /// Runs for the life of the server.
    pub async fn run(self) {
        let mut views = self.membership.views();
        let mut swept = None;
        loop {
            let here = places(&views.borrow_and_update(), self.served.id);
            if swept.as_ref() != Some(&here) {
                // Safe to cancel: waiting changes nothing.
                match tokio::time::timeout(QUIET, views.wait_for(|v| places(v, self.served.id) != here)).await
                {
                    Ok(Ok(_)) => continue,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
                match self.sweep().await {
                    Ok(()) => swept = Some(here),
                    Err(refusal) => {
                        tracing::debug!(pdisk = %self.served.id, %refusal, "leftovers are looked for again");
                        tokio::time::sleep(QUIET).await;
                    }
                }
                continue;
            }
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    async fn sweep(&self) -> Result<(), StripRefusal> {
        let mut after: Option<StripId> = None;
        loop {
            let guard = self.sweeping.lock().await;
            let view = self.membership.view();
            let page = self.served.pdisk.list(after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.strip);
            let here = places(&view, self.served.id);
            let items: Vec<DeleteStrips> =
                page.iter().filter(|s| left_over(&view, &here, s)).filter_map(removal).collect();
            if !items.is_empty() {
                self.removed.fetch_add(items.len() as u64, Ordering::Relaxed);
                self.served.pdisk.remove_leftovers(items).await?;
            }
            drop(guard);
            tokio::task::yield_now().await;
        }
        let removed = self.removed.swap(0, Ordering::Relaxed);
        if removed > 0 {
            let name = self.membership.view().map.pdisk_called(self.served.id);
            tracing::info!("{name}: {removed} strips of groups that are elsewhere are removed");
        }
        Ok(())
    }
}

/// The groups that have, or are to have, a strip on a pdisk.
fn places(view: &ClusterView, pdisk: PdiskId) -> HashSet<(PoolId, GroupId)> {
    let mut here = HashSet::new();
    for pool in &view.map.pools {
        let groups = (0u32..).zip(pool.table.chunks_exact(usize::from(pool.width.max(1))));
        here.extend(groups.filter(|(_, m)| m.contains(&pdisk)).map(|(g, _)| (pool.id, GroupId(g))));
        here.extend(pool.moves.iter().filter(|m| m.to == pdisk).map(|m| (pool.id, m.group)));
    }
    here
}

fn left_over(view: &ClusterView, here: &HashSet<(PoolId, GroupId)>, state: &StripState) -> bool {
    // A group is only judged by a map that has its pool.
    view.pool(state.pool).is_some_and(|p| state.group.0 < p.groups)
        && !here.contains(&(state.pool, state.group))
}

fn removal(state: &StripState) -> Option<DeleteStrips> {
    let versions = state.adopted.iter().chain(&state.prepared).map(|i| i.version);
    let (stripe, highest) = (state.strip.stripe, versions.max()?);
    let base::StripeId { fs, inode, block } = stripe;
    Some(DeleteStrips { fs, inode, first: block, last: block, highest })
}
