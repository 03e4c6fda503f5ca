//! What the parts of a [`StripeIo`](crate::StripeIo) share: the way to the servers, the map, what waits for adoption.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{BufPool, Epoch, Grant, InodeNo, OpClass, PdiskId, PoolId, StripIndex, StripeId};
use bytes::Bytes;
use tokio::{sync::watch, task::JoinSet};
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
    strip::StripState,
};

use crate::{
    ClusterView, Fault, StripeError,
    adopt::Adoption,
    config::IoConfig,
    read::Latency,
    session::{SessionCell, SilenceReporter},
    transport::{NsdCall, NsdTransport},
    view::PoolView,
};

pub(crate) struct Shared {
    pub transport: Arc<dyn NsdTransport>,
    pub views: watch::Receiver<Arc<ClusterView>>,
    pub session: SessionCell,
    pub reporter: Arc<dyn SilenceReporter>,
    pub config: IoConfig,
    pub buffers: BufPool,
    pub adoption: Adoption,
    /// Who writes where only the pdisks' reserve is left.
    pub last_room: tokio::sync::Mutex<()>,
    pub latency: Latency,
}

/// The answers of a stripe's strips, in strip order; `None` where it was not asked.
pub type StripStates = Vec<Option<Result<StripState, Fault>>>;

impl Shared {
    pub fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.views.borrow())
    }

    pub fn pool(&self, view: &ClusterView, pool: PoolId) -> Result<Arc<PoolView>, StripeError> {
        view.pool(pool).cloned().ok_or(StripeError::NoSuchPool { pool })
    }

    /// Sends a request to the node that serves `pdisk` in `view`.
    #[allow(clippy::too_many_arguments)]
    pub async fn call(
        &self,
        view: &ClusterView,
        pdisk: PdiskId,
        request: NsdRequest,
        payload: Vec<Bytes>,
        class: OpClass,
        inode: InodeNo,
        deadline: Instant,
    ) -> Result<(NsdReply, Bytes), Fault> {
        let node = view.server(pdisk).ok_or(Fault::NoServer)?;
        let call = NsdCall {
            node: node.id,
            addrs: view.addrs(node.id).to_vec(),
            request,
            payload,
            class,
            session: self.session.get(),
            inode,
            epoch: view.epoch(),
            deadline,
        };
        let sent = self.transport.call(call);
        // The transport keeps the deadline; this is for one that does not.
        let limit = deadline + Duration::from_millis(500);
        match tokio::time::timeout_at(limit.into(), sent).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::Timeout),
        }
    }

    /// Waits until the map is at least `epoch`, at most until `until`.
    pub async fn wait_epoch(&self, epoch: Epoch, until: Instant) -> bool {
        let mut views = self.views.clone();
        let newer = views.wait_for(|v| v.epoch() >= epoch);
        matches!(tokio::time::timeout_at(until.into(), newer).await, Ok(Ok(_)))
    }

    /// Returns when the map says that nothing is written to `pdisk` (any more): what it holds counts again only after catch-up, and
    /// what was sent to it before is refused then.
    pub async fn left(&self, pdisk: PdiskId) {
        let mut views = self.views.clone();
        if views.wait_for(|view| !view.state(pdisk).written()).await.is_err() {
            std::future::pending().await // there is no newer map
        }
    }

    /// Asks the strips of a stripe on pdisks that `ask` for their states, all at once. `None` where it
    /// was not asked; an error where it did not answer.
    #[allow(clippy::too_many_arguments)]
    pub async fn states(
        self: &Arc<Self>,
        view: &Arc<ClusterView>,
        stripe: StripeId,
        pool: &PoolView,
        class: OpClass,
        ask: impl Fn(PdiskState) -> bool,
        seal: Option<Grant>,
        deadline: Instant,
    ) -> StripStates {
        let members = view.members(pool.id, pool.group_of(stripe)).to_vec();
        let mut tasks = JoinSet::new();
        let mut out: Vec<Option<_>> = (0..pool.geometry.width()).map(|_| None).collect();
        for (i, &pdisk) in members.iter().enumerate() {
            if !ask(view.state(pdisk)) {
                continue;
            }
            let strip = stripe.strip(StripIndex(i as u8));
            let request = match seal {
                Some(below) => NsdRequest::Seal { pdisk, strips: vec![strip], below },
                None => NsdRequest::State { pdisk, strips: vec![strip] },
            };
            let (shared, view) = (Arc::clone(self), Arc::clone(view));
            // As long as there is no answer: one that ends without any is no pdisk that was not asked.
            out[i] = Some(Err(Fault::Unreachable("no answer".into())));
            tasks.spawn(async move {
                let call =
                    shared.call(&view, pdisk, request, Vec::new(), class, stripe.inode, deadline).await;
                (
                    i,
                    match call {
                        Ok((NsdReply::States { mut states, .. }, _)) if states.len() <= 1 => {
                            Ok(states.pop().filter(|s| s.strip == strip).unwrap_or_else(|| {
                                // Nothing here: a state that says so.
                                StripState { strip, ..Default::default() }
                            }))
                        }
                        Ok(_) => Err(Fault::Protocol),
                        Err(fault) => Err(fault),
                    },
                )
            });
        }
        while let Some(done) = tasks.join_next().await {
            if let Ok((i, result)) = done {
                out[i] = Some(result);
            }
        }
        out
    }
}
