//! `StripeIo`: the handle with which one process reads and writes stripes, and what its parts share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::{BufPool, InodeNo, OpClass, PdiskId, PoolId, SessionId, StripeId};
use bytes::Bytes;
use tokio::sync::watch;
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
};

use crate::{
    ClusterView, Fault, StripeError,
    adopt::Adoption,
    latency::Latency,
    transport::{NsdCall, NsdTransport},
    view::PoolView,
};

/// Bounds and times of stripe work.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// An operation without progress for this long fails.
    pub deadline: Duration,
    /// One request is waited for this long, then sent again.
    pub attempt: Duration,
    /// A pdisk that has not answered a write for this long is reported to the manager as silent.
    pub silent_after: Duration,
    /// Pause before a refused or failed request is sent again.
    pub retry_pause: Duration,
    /// A read that is later than this, at least, is replaced by parity; the bound in use follows from
    /// measured latency.
    pub hedge_min: Duration,
    /// The bound is never above this.
    pub hedge_max: Duration,
    /// Complete versions are adopted this often.
    pub adopt_interval: Duration,
    /// Or when this many stripes wait for it.
    pub adopt_batch: usize,
    /// Writes wait while this many stripes are complete and not adopted.
    pub adopt_stripes_max: usize,
    /// Stripes that resolution works on at a time.
    pub resolve_parallel: usize,
}

impl Default for IoConfig {
    fn default() -> Self {
        IoConfig {
            deadline: Duration::from_secs(60),
            attempt: Duration::from_secs(10),
            silent_after: Duration::from_secs(3),
            retry_pause: Duration::from_millis(50),
            hedge_min: Duration::from_millis(100),
            hedge_max: Duration::from_secs(2),
            adopt_interval: Duration::from_millis(50),
            adopt_batch: 256,
            adopt_stripes_max: 16384,
            resolve_parallel: 32,
        }
    }
}

/// The session in whose name requests are made; the owner of the session sets it.
#[derive(Clone, Default, Debug)]
pub struct SessionCell(Arc<AtomicU64>);

impl SessionCell {
    /// With this session.
    pub fn new(session: SessionId) -> SessionCell {
        SessionCell(Arc::new(AtomicU64::new(session.0)))
    }
    /// The session now.
    pub fn get(&self) -> SessionId {
        SessionId(self.0.load(Ordering::Acquire))
    }
    /// A new session.
    pub fn set(&self, session: SessionId) {
        self.0.store(session.0, Ordering::Release);
    }
}

/// Told about pdisks that do not answer. Called often; it limits its own rate.
pub trait SilenceReporter: Send + Sync + 'static {
    /// `pdisk` has not answered a write in time.
    fn silent(&self, pdisk: PdiskId);
}

impl SilenceReporter for () {
    fn silent(&self, _: PdiskId) {}
}

/// Reads and writes stripes over the network. Cheap to clone.
///
/// The caller holds the write token of what it writes, has at most one write of a stripe under way, and
/// gives every write a version above all earlier ones.
#[derive(Clone)]
pub struct StripeIo {
    pub(crate) shared: Arc<Shared>,
}

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

impl StripeIo {
    /// Must be called in a tokio runtime: adoption runs as a task, until the last clone is gone.
    pub fn new(
        transport: Arc<dyn NsdTransport>,
        views: watch::Receiver<Arc<ClusterView>>,
        session: SessionCell,
        reporter: Arc<dyn SilenceReporter>,
        config: IoConfig,
    ) -> StripeIo {
        let shared = Arc::new(Shared {
            transport,
            views,
            session,
            reporter,
            buffers: crate::view::buffer_pool(),
            adoption: Adoption::new(&config),
            last_room: tokio::sync::Mutex::new(()),
            latency: Latency::new(config.hedge_min, config.hedge_max),
            config,
        });
        crate::adopt::spawn(Arc::downgrade(&shared));
        StripeIo { shared }
    }

    /// The map in use.
    pub fn view(&self) -> Arc<ClusterView> {
        self.shared.view()
    }
    /// The map in use, and its changes.
    pub fn views(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.shared.views.clone()
    }
    /// Bounds and times.
    pub fn config(&self) -> &IoConfig {
        &self.shared.config
    }
    /// States of a stripe's strips on pdisks in a state that `ask` wants, asked all at once. `None` where
    /// it was not asked. A strip that is not there has a state with neither version.
    pub async fn states(
        &self,
        stripe: StripeId,
        pool: PoolId,
        class: OpClass,
        ask: impl Fn(PdiskState) -> bool,
        deadline: Instant,
    ) -> Result<StripStates, StripeError> {
        let view = self.view();
        let pool = self.shared.pool(&view, pool)?;
        Ok(self.shared.states(&view, stripe, &pool, class, ask, None, deadline).await)
    }

    /// One request to the server of a pdisk under the map in use.
    pub async fn call(
        &self,
        pdisk: PdiskId,
        request: NsdRequest,
        payload: Vec<Bytes>,
        class: OpClass,
        deadline: Instant,
    ) -> Result<(NsdReply, Bytes), Fault> {
        let view = self.view();
        self.shared.call(&view, pdisk, request, payload, class, InodeNo(0), deadline).await
    }
}

/// The answers of a stripe's strips, in strip order; `None` where it was not asked.
pub type StripStates = Vec<Option<Result<wire::strip::StripState, Fault>>>;

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
    pub async fn wait_epoch(&self, epoch: base::Epoch, until: Instant) -> bool {
        let mut views = self.views.clone();
        let newer = views.wait_for(|v| v.epoch() >= epoch);
        matches!(tokio::time::timeout_at(until.into(), newer).await, Ok(Ok(_)))
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
        seal: Option<base::Grant>,
        deadline: Instant,
    ) -> StripStates {
        let members = view.members(pool.id, pool.group_of(stripe)).to_vec();
        let mut tasks = tokio::task::JoinSet::new();
        let mut out: Vec<Option<_>> = (0..pool.geometry.width()).map(|_| None).collect();
        for (i, &pdisk) in members.iter().enumerate() {
            if !ask(view.state(pdisk)) {
                continue;
            }
            let strip = stripe.strip(base::StripIndex(i as u8));
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
                                wire::strip::StripState { strip, ..Default::default() }
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
