//! A node's server: its lives, and what of a pdisk is the same in all of them. A life has a membership and a gate of its own,
//! and the shipped catch-up. Who is killed carries out some of what it had begun, without an answer, and nothing more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{Epoch, GroupId, Incarnation, NodeId, PdiskId, PoolId, SessionId, StripId, StripeId, Version};
use bytes::Bytes;
use net::BoxFuture;
use nsd::{CatchUp, Fill, Gate, Pace, Progress, Records, Repairs, Scrub, ServedPdisk, Tuning};
use parking_lot::Mutex;
use stripe::{
    IoConfig, LinkError, ManagerLink, Membership, MembershipConfig, Registered, Registrar, RegistrarError,
    StripeIo,
};
use tokio::sync::watch;
use wire::{
    mgr::{MgrReply, MgrRequest, PdiskReport, ProcessIdent},
    nsd::NsdRequest,
    strip::{DeleteStrips, PrepareStrip, StripRefusal, StripState},
};

use super::{
    cluster::{Cluster, NODE, Way, Without},
    disk::Strips,
    world::Process,
};

/// A node and its pdisk, which has the node's number.
pub struct Node {
    pub id: NodeId,
    pub strips: Mutex<Strips>,
    /// Lives begun.
    lives: AtomicU64,
    serving: Mutex<Option<Life>>,
    /// Its disk does not answer.
    hangs: watch::Sender<bool>,
    /// What is being carried out: lost, or done, if the server is killed now.
    under_way: Mutex<BTreeMap<u64, (NsdRequest, Bytes)>>,
    /// Of the work on its pdisk's strips.
    progress: Mutex<Arc<Progress>>,
}

/// A server that serves.
#[derive(Clone)]
pub struct Life {
    pub membership: Membership,
    pub gate: Arc<Gate>,
    pub repairs: Arc<Repairs>,
    pub scrub: Arc<Scrub>,
    pub process: Process,
}

impl Node {
    pub fn new(id: u32) -> Arc<Node> {
        Arc::new(Node {
            id: NodeId(id),
            strips: Mutex::default(),
            lives: AtomicU64::new(0),
            serving: Mutex::default(),
            hangs: watch::Sender::new(false),
            under_way: Mutex::default(),
            progress: Mutex::default(),
        })
    }

    pub fn serving(&self) -> Option<Life> {
        self.serving.lock().clone()
    }

    /// Whether its server serves, and its disk answers.
    pub fn answers_now(&self) -> bool {
        self.serving().is_some_and(|life| !life.process.is_stopped()) && !self.hangs()
    }

    /// The stripes of which its pdisk has something, if that can be said.
    pub fn stripes(&self) -> Vec<StripeId> {
        if self.hangs() { Vec::new() } else { self.strips.lock().stripes().collect() }
    }

    pub fn waits(&self) -> String {
        self.progress.lock().waits.lock().clone()
    }

    pub fn hangs(&self) -> bool {
        *self.hangs.borrow()
    }

    /// Its disk answers nothing for so long, or never again.
    pub fn hang(self: &Arc<Node>, time: Option<Duration>) {
        self.hangs.send_replace(true);
        let node = self.clone();
        if let Some(time) = time {
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                node.hangs.send_replace(false);
            });
        }
    }

    /// Ends when the disk answers.
    pub async fn answers(&self) {
        drop(self.hangs.subscribe().wait_for(|hangs| !hangs).await);
    }

    pub fn begin(&self, number: u64, request: NsdRequest, payload: Bytes) {
        self.under_way.lock().insert(number, (request, payload));
    }

    /// What was begun under a number; none if the server has been killed since.
    pub fn end(&self, number: u64) -> Option<(NsdRequest, Bytes)> {
        self.under_way.lock().remove(&number)
    }
}

impl Cluster {
    /// A new life of a node's server; it serves as soon as it is registered.
    pub async fn start_server(self: &Arc<Cluster>, node: &Arc<Node>) {
        let process = Process::begin();
        let (cluster, node, of) = (self.clone(), node.clone(), process.clone());
        drop(process.spawn(async move { cluster.serve_node(&node, of).await }).await);
    }

    async fn serve_node(self: &Arc<Cluster>, node: &Arc<Node>, process: Process) {
        let life = node.lives.fetch_add(1, SeqCst) + 1;
        node.strips.lock().open();
        let way = Arc::new(Way { cluster: self.clone(), who: NODE + node.id.0 });
        let progress = Arc::<Progress>::default();
        if self.without == Without::CatchUp {
            *progress.caught_up.lock() = Some(Epoch(u64::MAX));
        }
        let by_length = self.without == Without::LogDigest;
        let server = Arc::new(Server { node: node.clone(), life, progress: progress.clone(), by_length });
        let membership = loop {
            let config = MembershipConfig { in_force_by_owner: true, ..MembershipConfig::default() };
            match Membership::start(way.clone(), server.clone(), config).await {
                Ok(membership) => break membership,
                Err(error) => self.note(|| format!("{} is started again: {error}", node.id)),
            }
        };
        let pdisk = PdiskId(node.id.0);
        let strips = Pdisk(node.clone());
        let gate = Arc::new(Gate::new(
            membership.view(),
            vec![(pdisk, Box::new(move || nsd::Strips::begin_life(&strips)))],
        ));
        let (views, session) = (membership.views(), membership.session_cell());
        let io = StripeIo::new(way, views, session, membership.reporter(), IoConfig::default());
        let served = ServedPdisk { id: pdisk, pdisk: Pdisk(node.clone()), damaged: Vec::new() };
        let pace = Arc::new(Pace::new());
        let maker = || {
            let (io, of, pace, progress) = (io.clone(), membership.clone(), pace.clone(), progress.clone());
            Arc::new(CatchUp::new(served.clone(), io, of, Tuning::default(), pace, progress))
        };
        tokio::spawn(maker().run());
        tokio::spawn(Fill::new(maker(), membership.clone(), Arc::default()).run());
        let (following, of) = (gate.clone(), membership.clone());
        tokio::spawn(async move { following.follow(of).await });
        let records = Arc::new(Records::new(membership.clone()));
        let scrub = Arc::new(Scrub::new(io.clone(), records.clone(), pace, [pdisk].into()));
        let (repairs, queues) = Repairs::new(Tuning::default().repair_queue_max, &[served]);
        for queue in queues {
            tokio::spawn(repairs.clone().run(queue, io.clone(), records.clone()));
        }
        *node.progress.lock() = progress;
        *node.serving.lock() = Some(Life { membership, gate, repairs, scrub, process });
    }

    /// SIGKILL. False if it does not serve.
    pub fn kill_server(&self, node: &Node) -> bool {
        let Some(life) = node.serving.lock().take() else { return false };
        life.process.kill();
        let mut strips = node.strips.lock();
        for (_, (request, payload)) in std::mem::take(&mut *node.under_way.lock()) {
            if self.below(2) == 0 {
                strips.carry_out(request, &payload);
            }
        }
        strips.end_life(self.without == Without::Written);
        true
    }
}

/// How a node becomes part of the cluster, and what it reports.
struct Server {
    node: Arc<Node>,
    life: u64,
    progress: Arc<Progress>,
    /// See [`Without::LogDigest`].
    by_length: bool,
}

impl Registrar for Server {
    fn register(&self, link: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>> {
        let id = self.node.id.0;
        let (node, process) = (
            self.node.id,
            ProcessIdent { pid: NODE + id, start_ticks: self.life, ..ProcessIdent::default() },
        );
        let (mut pdisks, at, by_length) = (self.reports(), self.node.clone(), self.by_length);
        Box::pin(async move {
            let ask = MgrRequest::LogMarks { pdisks: vec![pdisks[0].id] };
            let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
            let recorded = match link.call(SessionId(0), Epoch(0), ask, until).await {
                Ok(MgrReply::LogMarks(marks)) => marks[0],
                Ok(_) => return Err(RegistrarError::Fatal(LinkError::Protocol)),
                Err(error) => return Err(RegistrarError::Retry(error)),
            };
            pdisks[0].proved = match by_length {
                true => Some(recorded).filter(|recorded| recorded.position <= pdisks[0].log.position),
                false => at.strips.lock().mark_at(recorded.position),
            };
            let addrs = vec![format!("127.0.0.{id}:1")];
            let request = MgrRequest::RegisterServer { node, process, addrs, pdisks };
            let sent = base::presence::boot_time();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
            match link.call(SessionId(0), Epoch(0), request, deadline).await {
                Ok(MgrReply::Registered { session, lease_us, map, .. }) => {
                    let lease = std::time::Duration::from_micros(lease_us);
                    Ok(Registered { session, sent, lease, map: *map })
                }
                Ok(_) => Err(RegistrarError::Fatal(LinkError::Protocol)),
                Err(error) => Err(RegistrarError::Retry(error)),
            }
        })
    }

    fn reports(&self) -> Vec<PdiskReport> {
        vec![PdiskReport {
            id: PdiskId(self.node.id.0),
            incarnation: Incarnation(self.life),
            log: self.node.strips.lock().mark(),
            capacity: 1 << 40,
            free: 1 << 40,
            caught_up: *self.progress.caught_up.lock(),
            filled: self.progress.filled.lock().iter().copied().collect(),
            ..PdiskReport::default()
        }]
    }
}

/// A node's strips as its own catch-up has them.
#[derive(Clone)]
struct Pdisk(Arc<Node>);

type Refused<T> = Result<T, StripRefusal>;

impl Pdisk {
    fn strips(&self) -> parking_lot::MutexGuard<'_, Strips> {
        self.0.strips.lock()
    }
}

impl nsd::Strips for Pdisk {
    type Seen = usize;
    fn deletes_seen(&self) -> usize {
        self.strips().deletes_seen()
    }
    fn begin_life(&self) {
        self.strips().begin_life();
    }
    async fn state(&self, strips: Vec<StripId>) -> Refused<Vec<StripState>> {
        Ok(strips.into_iter().map(|id| self.strips().state(id)).collect())
    }
    async fn list_group(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
        limit: usize,
    ) -> Refused<Vec<StripState>> {
        Ok(self.strips().list_group(pool, group, after).into_iter().take(limit).collect())
    }
    async fn mark_lost(&self, strip: StripId) -> Refused<bool> {
        self.0.answers().await;
        self.strips().mark_lost(strip)
    }
    async fn adopt(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.0.answers().await;
        items.into_iter().map(|(id, version)| self.strips().adopt(id, version)).collect()
    }
    async fn discard(&self, items: Vec<(StripId, Version)>) -> Vec<Refused<()>> {
        self.0.answers().await;
        items.into_iter().map(|(id, version)| self.strips().discard(id, version)).collect()
    }
    async fn discard_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        Ok(self.strips().discard_leftover(strip, version))
    }
    async fn adopt_leftover(&self, strip: StripId, version: Version) -> Refused<bool> {
        self.strips().adopt_leftover(strip, version)
    }
    async fn delete(&self, items: Vec<DeleteStrips>) -> Refused<u64> {
        items.iter().for_each(|item| self.strips().delete(item));
        Ok(items.len() as u64)
    }
    async fn install_since(&self, request: PrepareStrip, payload: Bytes, since: usize) -> Refused<()> {
        self.0.answers().await;
        self.strips().install(&request, &payload, since)
    }
}
