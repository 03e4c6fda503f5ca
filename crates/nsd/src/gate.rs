//! Admission: which requests are carried out, under which map.
//!
//! Owns the map that new requests are admitted under. Every admitted request holds a pass of that map
//! version; a newer version is in force here only when all passes of older ones are back, and only then is
//! the manager told. So whoever is fenced can change nothing after the fence is acknowledged.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base::{Epoch, PdiskId, SessionId};
use stripe::{ClusterView, Membership};
use tokio::sync::{mpsc, watch};
use wire::nsd::{NsdRefusal, NsdRequest};

/// Leave to carry out one request under one map version; given back by dropping it.
pub struct Pass {
    _held: mpsc::Sender<()>,
}

struct Present {
    view: Arc<ClusterView>,
    /// For each served pdisk the epoch of the last change of any group it is in.
    changed: HashMap<PdiskId, Epoch>,
    held: mpsc::Sender<()>,
}

/// See the module.
pub struct Gate {
    present: Mutex<Present>,
    returned: Mutex<Option<mpsc::Receiver<()>>>,
    admitted_epoch: watch::Sender<Epoch>,
    served: Vec<PdiskId>,
}

fn changed_of(view: &ClusterView, served: &[PdiskId]) -> HashMap<PdiskId, Epoch> {
    served.iter().map(|&id| (id, view.pdisk_changed(id))).collect()
}

impl Gate {
    /// Admits under `view` from the start.
    pub fn new(view: Arc<ClusterView>, served: Vec<PdiskId>) -> Gate {
        let (held, returned) = mpsc::channel(1);
        Gate {
            admitted_epoch: watch::Sender::new(view.epoch()),
            present: Mutex::new(Present { changed: changed_of(&view, &served), view, held }),
            returned: Mutex::new(Some(returned)),
            served,
        }
    }

    /// Admits under a newer map from now on; ends when nothing admitted before is under way.
    async fn replace(&self, view: Arc<ClusterView>) {
        let (held, returned) = mpsc::channel(1);
        let epoch = view.epoch();
        let changed = changed_of(&view, &self.served);
        {
            let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
            *present = Present { view, changed, held };
        }
        self.admitted_epoch.send_replace(epoch);
        let older = self.returned.lock().unwrap_or_else(PoisonError::into_inner).replace(returned);
        if let Some(mut older) = older {
            // Nothing is ever sent: this ends when the last pass is dropped.
            while older.recv().await.is_some() {}
        }
    }

    /// Follows the map: puts each new version in force and says so.
    pub async fn follow(&self, membership: Membership) {
        let mut views = membership.views();
        membership.set_in_force(self.epoch());
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            let epoch = view.epoch();
            if epoch > self.epoch() {
                self.replace(view).await;
                membership.set_in_force(epoch);
                // The manager may wait for this acknowledgement: not at the next turn, now.
                membership.renew_now().await;
            }
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    /// The map version that requests are admitted under.
    pub fn epoch(&self) -> Epoch {
        self.present.lock().unwrap_or_else(PoisonError::into_inner).view.epoch()
    }

    /// Checks a request against lease, session and map. `Err` is the answer to its sender.
    pub async fn admit(
        &self,
        membership: &Membership,
        session: SessionId,
        epoch: Epoch,
        request: &NsdRequest,
        wait: Duration,
        expires: Instant,
    ) -> Result<Pass, NsdRefusal> {
        if !membership.lease_valid(Instant::now()) {
            return Err(NsdRefusal::NoLease);
        }
        let until = expires.min(Instant::now() + wait);
        if epoch > self.epoch() {
            let mut admitted = self.admitted_epoch.subscribe();
            let here = admitted.wait_for(|e| *e >= epoch);
            if !matches!(tokio::time::timeout_at(until.into(), here).await, Ok(Ok(_))) {
                return Err(NsdRefusal::NoMap);
            }
        }
        if lists(request) && *membership.in_force().borrow() < epoch {
            // What is listed must contain all that was written under older maps.
            let mut in_force = membership.in_force();
            let here = in_force.wait_for(|e| *e >= epoch);
            if !matches!(tokio::time::timeout_at(until.into(), here).await, Ok(Ok(_))) {
                return Err(NsdRefusal::NoMap);
            }
        }
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let map = &present.view.map;
        let from_manager = session == SessionId(0) && matches!(request, NsdRequest::Delete { .. });
        let known = map.clients.iter().any(|c| c.session == session)
            || map.nodes.iter().any(|n| n.session == Some(session));
        if !known && !from_manager {
            return Err(NsdRefusal::Fenced);
        }
        let pdisk = request.pdisk();
        let Some(&pdisk_changed) = present.changed.get(&pdisk) else { return Err(NsdRefusal::NoSuchPdisk) };
        let changed = match request {
            NsdRequest::Prepare { strip, .. } | NsdRequest::Install { strip, .. } => {
                map.group_changed(strip.pool, strip.group)
            }
            // The last change of all groups of the pdisk is the group's, or later.
            _ => pdisk_changed,
        };
        if epoch < changed && !from_manager {
            return Err(NsdRefusal::StaleEpoch { current: map.epoch });
        }
        Ok(Pass { _held: present.held.clone() })
    }
}

/// Requests whose answer says what is there, so that it has to be complete.
fn lists(request: &NsdRequest) -> bool {
    matches!(
        request,
        NsdRequest::State { .. }
            | NsdRequest::Seal { .. }
            | NsdRequest::ListGroup { .. }
            | NsdRequest::ListPrepared { .. }
    )
}
