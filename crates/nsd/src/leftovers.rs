//! Strips that do not belong on a pdisk of this node any more: their group has moved away, or never came.
//! They are removed when the map is the same for some time; nobody reads them, but they take up space.
//!
//! The map alone is not believed: that of a manager that was restored from a dump is older than moves since then, and what
//! it knows no place for is all there is. So a strip goes only when the member that has it by the map answers that it holds
//! what is here, or something newer, or when its inode is gone for good. Others are looked at again, ever less often.
//!
//! A strip whose stripe has another strip here that does belong stays: strips are removed by stripe.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::{GroupId, OpClass, PdiskId, PoolId, StripId, StripeId, Version};
use stripe::{ClusterView, Membership, StripeIo};
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
    owned::Owner,
    strip::{DeleteStrips, StripRefusal, StripState},
};

use crate::{config::ServedPdisk, records::Records};

/// The map's tables have been the same for this long.
const QUIET: Duration = Duration::from_secs(5);
/// Longest pause before what had to stay is looked at again.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Strips looked at in one step.
const PAGE: usize = 512;

/// What is left over on one pdisk.
pub struct Leftovers {
    served: ServedPdisk,
    io: StripeIo,
    records: Arc<Records>,
    membership: Membership,
    sweeping: Arc<tokio::sync::Mutex<()>>,
    removed: AtomicU64,
}

impl Leftovers {
    /// `sweeping` is held while something is removed.
    pub fn new(
        served: ServedPdisk,
        io: StripeIo,
        records: Arc<Records>,
        membership: Membership,
        sweeping: Arc<tokio::sync::Mutex<()>>,
    ) -> Leftovers {
        Leftovers { served, io, records, membership, sweeping, removed: AtomicU64::new(0) }
    }

    /// Runs for the life of the server.
    pub async fn run(self) {
        let mut views = self.membership.views();
        let (mut swept, mut pause) = (None, QUIET);
        loop {
            let here = places(&views.borrow_and_update(), self.served.id);
            if swept.as_ref() != Some(&here) {
                // What was made here in between is looked for when the places are the former again.
                swept = None;
                // Safe to cancel: waiting changes nothing.
                match tokio::time::timeout(QUIET, views.wait_for(|v| places(v, self.served.id) != here)).await
                {
                    Ok(Ok(_)) => continue,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
                match self.sweep().await {
                    Ok(0) => (swept, pause) = (Some(here), QUIET),
                    Ok(stay) => {
                        tracing::debug!(pdisk = %self.served.id, stay, "strips that are not known to be elsewhere stay");
                        let other = views.wait_for(|v| places(v, self.served.id) != here);
                        // Safe to cancel: waiting changes nothing.
                        pause = match tokio::time::timeout(pause, other).await {
                            Ok(_) => QUIET,
                            Err(_) => PAUSE_MAX.min(pause * 2),
                        };
                    }
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

    /// Removes what is elsewhere; how many strips stay that do not belong here.
    async fn sweep(&self) -> Result<u64, StripRefusal> {
        let (mut after, mut stay): (Option<StripId>, u64) = (None, 0);
        loop {
            let view = self.membership.view();
            let mut page = self.served.pdisk.list(after, PAGE).await?;
            if let Some(last) = page.last().filter(|_| page.len() == PAGE).map(|s| s.strip.stripe) {
                page.retain(|s| s.strip.stripe != last); // perhaps not all of its strips
            }
            let Some(last) = page.last() else { break };
            after = Some(last.strip);
            let here = places(&view, self.served.id);
            let found: Vec<StripState> =
                page.into_iter().filter(|s| left_over(&view, &here, s) && highest(s).is_some()).collect();
            let elsewhere = self.elsewhere(&view, &found).await;
            // What has begun to move here meanwhile is wanted.
            let guard = self.sweeping.lock().await;
            let view = self.membership.view();
            let here = places(&view, self.served.id);
            let wanted = |s: &StripState| !elsewhere.contains(&s.strip) || !left_over(&view, &here, s);
            let stripes: HashSet<StripeId> =
                found.iter().filter(|s| wanted(s)).map(|s| s.strip.stripe).collect();
            let gone = |s: &&StripState| !stripes.contains(&s.strip.stripe);
            let items: Vec<DeleteStrips> = found.iter().filter(gone).filter_map(removal).collect();
            stay += (found.len() - items.len()) as u64;
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
        Ok(stay)
    }

    /// Those of these strips that are where they belong, as they are here or newer, or that nobody can ever ask for.
    async fn elsewhere(&self, view: &ClusterView, found: &[StripState]) -> HashSet<StripId> {
        let mut of: HashMap<PdiskId, Vec<&StripState>> = HashMap::new();
        for state in found {
            let members = view.members(state.pool, state.group);
            let Some(&member) = members.get(usize::from(state.strip.index.0)) else { continue };
            if view.state(member) == PdiskState::Ok {
                of.entry(member).or_default().push(state);
            }
        }
        let mut elsewhere = HashSet::new();
        let deadline = || Instant::now() + self.io.config().attempt;
        for (pdisk, asked) in of {
            let request = NsdRequest::State { pdisk, strips: asked.iter().map(|s| s.strip).collect() };
            let answer = self.io.call(pdisk, request, Vec::new(), OpClass::Rebuild, deadline()).await;
            let Ok((NsdReply::States { states, .. }, _)) = answer else { continue };
            let there: HashMap<StripId, StripState> = states.into_iter().map(|s| (s.strip, s)).collect();
            let held = |s: &&&StripState| there.get(&s.strip).is_some_and(|there| replaces(there, s));
            elsewhere.extend(asked.iter().filter(held).map(|s| s.strip));
        }
        let rest: Vec<StripId> = found.iter().map(|s| s.strip).filter(|s| !elsewhere.contains(s)).collect();
        if !rest.is_empty() {
            let blocks = rest.iter().map(|strip| strip.stripe).collect();
            let owners = self.records.of_all(blocks, deadline()).await.unwrap_or_default(); // asked again
            let nobody = rest.iter().zip(owners).filter(|(_, owner)| *owner == Owner::Nobody);
            elsewhere.extend(nobody.map(|(strip, _)| *strip));
        }
        elsewhere
    }
}

/// The newest version there, adopted or not.
fn highest(state: &StripState) -> Option<Version> {
    state.adopted.iter().chain(&state.prepared).map(|i| i.version).max()
}

/// Whether a member's strip is all that one that is left over can be wanted for. What is only prepared there may go.
fn replaces(member: &StripState, left: &StripState) -> bool {
    !member.lost && member.adopted.as_ref().map(|a| a.version) >= highest(left)
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
    let (stripe, highest) = (state.strip.stripe, highest(state)?);
    let base::StripeId { fs, inode, block } = stripe;
    Some(DeleteStrips { fs, inode, first: block, last: block, highest })
}
