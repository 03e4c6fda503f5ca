//! Strips that move to a pdisk of this node: every group on its way is made here in full, then the manager is
//! told, and switches the group.
//!
//! Which moves there are only the map says. One that is in the map is worked on, again after a restart of
//! this server; one that is gone is given up. What makes a group complete here is what makes a pdisk that
//! came back complete ([`CatchUp`]): since the map with the move is in force at every member that answers,
//! no write completes without this pdisk, and one pass makes up for those before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use base::PoolId;
use parking_lot::Mutex;
use pdisk::Pdisk;
use stripe::{ClusterView, Membership};
use tokio::{sync::Semaphore, task::JoinHandle};
use wire::{map::StripMove, mgr::Filled};

use crate::{
    catchup::{CatchUp, Revisit},
    pace::PERMITS,
    strips::Strips,
};

/// Pause between two reports to the manager that something is done.
const REPORT_PAUSE: Duration = Duration::from_millis(50);

/// The moves to one pdisk.
pub struct Fill<S = Pdisk> {
    maker: Arc<CatchUp<S>>,
    membership: Membership,
    /// Held while strips that do not belong here are removed: a group begins before or after that.
    sweeping: Arc<tokio::sync::Mutex<()>>,
}

/// A move under way; dropping it gives it up.
struct UnderWay(JoinHandle<()>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<S: Strips> Fill<S> {
    /// `maker` compares and makes strips.
    pub fn new(
        maker: Arc<CatchUp<S>>,
        membership: Membership,
        sweeping: Arc<tokio::sync::Mutex<()>>,
    ) -> Fill<S> {
        Fill { maker, membership, sweeping }
    }

    /// Runs for the life of the server.
    pub async fn run(self) {
        let mut views = self.membership.views();
        let mut under_way: BTreeMap<Filled, UnderWay> = BTreeMap::new();
        let (report, mut due) = tokio::sync::mpsc::channel::<()>(1);
        let parallel = Arc::new(Semaphore::new(PERMITS as usize));
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            let wanted = self.wanted(&view);
            under_way.retain(|of, _| wanted.contains(of));
            self.maker.progress().filled.lock().retain(|of| wanted.contains(of));
            for of in wanted {
                under_way.entry(of).or_insert_with(|| {
                    let work = Work {
                        maker: Arc::clone(&self.maker),
                        membership: self.membership.clone(),
                        sweeping: Arc::clone(&self.sweeping),
                        parallel: Arc::clone(&parallel),
                        report: report.clone(),
                    };
                    UnderWay(tokio::spawn(async move { work.fill(of).await }))
                });
            }
            // Both arms only wait; what is filled stays filled.
            tokio::select! {
                changed = views.changed() => if changed.is_err() { return },
                Some(()) = due.recv() => {
                    tokio::time::sleep(REPORT_PAUSE).await;
                    self.membership.renew_now().await;
                }
            }
        }
    }

    /// The moves to this pdisk.
    fn wanted(&self, view: &ClusterView) -> BTreeSet<Filled> {
        let id = self.maker.pdisk();
        let of_pool = |pool: &wire::map::PoolEntry| -> Vec<Filled> {
            let here = pool.moves.iter().filter(|m| m.to == id);
            here.map(|what| Filled { pool: pool.id, what: *what }).collect()
        };
        view.map.pools.iter().flat_map(of_pool).collect()
    }
}

struct Work<S> {
    maker: Arc<CatchUp<S>>,
    membership: Membership,
    sweeping: Arc<tokio::sync::Mutex<()>>,
    parallel: Arc<Semaphore>,
    /// The manager is to be told.
    report: tokio::sync::mpsc::Sender<()>,
}

impl<S: Strips> Work<S> {
    async fn fill(self, of: Filled) {
        let (pool, StripMove { group, strip, since, .. }): (PoolId, StripMove) = (of.pool, of.what);
        let mut in_force = self.membership.in_force();
        if in_force.wait_for(|now| now.of(self.maker.pdisk()) >= since).await.is_err() {
            return;
        }
        drop(self.sweeping.lock().await);
        let revisit = Arc::new(Mutex::new(Revisit::default()));
        loop {
            let me = usize::from(strip.0);
            Arc::clone(&self.maker)
                .group(pool, group, me, Arc::clone(&revisit), Arc::clone(&self.parallel))
                .await;
            // Strips that wait are looked at until none does; a group that was not listed to its end, again.
            let again = || {
                let mut left = revisit.lock();
                !std::mem::take(&mut left.groups).is_empty()
            };
            let mut listed = !again();
            while !self.maker.look_again(&revisit, &self.parallel).await {
                listed &= !again();
                tokio::time::sleep(self.maker.pause()).await;
            }
            if listed {
                break;
            }
        }
        self.maker.progress().filled.lock().insert(of);
        let _ = self.report.try_send(()); // one is on its way already
    }
}
