//! `StripeIo`: the handle with which one process reads and writes stripes.

use std::{sync::Arc, time::Instant};

use base::{BufPool, InodeNo, OpClass, PdiskId, PoolId, StripeId};
use bytes::Bytes;
use tokio::sync::watch;
use wire::{
    map::PdiskState,
    nsd::{NsdReply, NsdRequest},
};

use crate::{
    ClusterView, Fault, StripeError,
    adopt::{Adoption, flush},
    config::IoConfig,
    read::Latency,
    session::{SessionCell, SilenceReporter},
    shared::{Shared, StripStates},
    transport::NsdTransport,
};

/// Memory for parity and decoded strips, kept warm.
const BUFFERS_BYTES: usize = 64 << 20;

/// Reads and writes stripes over the network. Cheap to clone.
///
/// The caller holds the write token of what it writes, has at most one write of a stripe under way, and
/// gives every write a version above all earlier ones.
#[derive(Clone)]
pub struct StripeIo {
    pub(crate) shared: Arc<Shared>,
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
        crate::statistics::show();
        let shared = Arc::new(Shared {
            transport,
            views,
            session,
            reporter,
            buffers: BufPool::new(BUFFERS_BYTES),
            adoption: Adoption::new(&config),
            last_room: tokio::sync::Mutex::new(()),
            latency: Latency::new(config.hedge_min, config.hedge_max),
            config,
        });
        flush::spawn(Arc::downgrade(&shared));
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
