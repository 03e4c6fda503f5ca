//! A small manager behind the link that a mount has: what every one of them answers in the same way, and what it wants back.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use base::{Epoch, NodeId, PdiskId, PoolId, SessionId};
use bytes::Bytes;
use client::{BoxFuture, Client};
use stripe::{Fault, LinkError, ManagerLink, NsdCall, NsdTransport};
use wire::{
    map::{ClusterMap, NodeEntry, PdiskEntry, PdiskState, PoolEntry},
    mgr::{MgrReply, MgrRequest},
    nsd::NsdReply,
    token::Recall,
};

use super::{mount_config, session_open};

/// What one test's manager does of its own.
pub trait SmallManager: Send + Sync + 'static {
    /// How long a lease is.
    fn lease(&self) -> Duration {
        Duration::from_secs(3600)
    }
    /// When an operation that does not move on ends (`operationDeadline`).
    fn deadline(&self) -> &'static str {
        "60s"
    }
    /// What it says to who waits for recalls.
    fn recalls(&self) -> &Recalls;
    /// The answer to whatever is not about sessions, maps and recalls.
    fn answer(&self, request: MgrRequest) -> impl Future<Output = MgrReply> + Send;
}

/// What is wanted back and was not told yet.
#[derive(Default)]
pub struct Recalls {
    waiting: Mutex<Vec<Recall>>,
    asked: AtomicU64,
}

impl Recalls {
    pub fn push(&self, recall: Recall) {
        self.waiting.lock().unwrap().push(recall);
    }
    /// How often somebody has waited for one.
    pub fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    async fn wait(&self) -> MgrReply {
        self.asked.fetch_add(1, SeqCst);
        loop {
            let recalls = std::mem::take(&mut *self.waiting.lock().unwrap());
            if !recalls.is_empty() {
                return MgrReply::Recalls(recalls);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Link<M>(Arc<M>);

impl<M: SmallManager> ManagerLink for Link<M> {
    fn call(
        &self,
        _: SessionId,
        _: Epoch,
        request: MgrRequest,
        _: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let manager = self.0.clone();
        Box::pin(async move {
            let lease = manager.lease();
            let lease_us = lease.as_micros() as u64;
            Ok(match request {
                MgrRequest::OpenSession { .. } => session_open(map(), lease, manager.deadline()),
                MgrRequest::Renew { .. } => MgrReply::Renewed { lease_us, epoch: Epoch(0) },
                MgrRequest::WaitMap { .. } => std::future::pending().await,
                MgrRequest::WaitRecalls => manager.recalls().wait().await,
                other => manager.answer(other).await,
            })
        })
    }
}

/// One of several sessions with this manager.
pub async fn mount_small(manager: &Arc<impl SmallManager>, servers: Arc<dyn NsdTransport>) -> Client {
    Client::mount_over(Arc::new(Link(manager.clone())), servers, mount_config()).await.unwrap()
}

/// One pdisk, with blocks of 1 MiB.
fn map() -> ClusterMap {
    let (node, pdisk, pool) = (NodeId(1), PdiskId(1), PoolId(1));
    let at = NodeEntry { id: node, session: Some(SessionId(9)), ..NodeEntry::default() };
    let disk = PdiskEntry { id: pdisk, nodes: vec![node], state: PdiskState::Ok, ..PdiskEntry::default() };
    let (code, block_size) = ("1way".into(), 1 << 20);
    let pool = PoolEntry { id: pool, code, width: 1, block_size, table: vec![pdisk], ..PoolEntry::default() };
    ClusterMap { nodes: vec![at], pdisks: vec![disk], pools: vec![pool], ..ClusterMap::default() }
}

/// Nothing is stored, and nobody may ask.
pub struct NoServers;

impl NsdTransport for NoServers {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        panic!("{:?}", call.request)
    }
}
