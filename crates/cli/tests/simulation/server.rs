//! A node's server: its lives, and what of a pdisk is the same in all of them. A life has a membership and a gate of its own,
//! and the shipped catch-up. Who is killed carries out some of what it had begun, without an answer, and nothing more.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{Epoch, GroupId, Incarnation, NodeId, PdiskId, PoolId, SessionId, StripId, Version};
use bytes::Bytes;
use net::BoxFuture;
use nsd::{CatchUp, Gate, Made, Pace, ServedPdisk, Tuning};
use stripe::{
    IoConfig, LinkError, ManagerLink, Membership, MembershipConfig, Registered, Registrar, RegistrarError,
    StripeIo,
};
use tokio::{sync::watch, task::JoinHandle};
use wire::{
    mgr::{LogMark, MgrReply, MgrRequest, PdiskReport, ProcessIdent},
    nsd::NsdRequest,
    strip::{DeleteStrips, PrepareStrip, StripRefusal, StripState},
};

use super::{
    cluster::{Cluster, NODE, Way, Without},
    disk::Strips,
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
}

#[derive(Clone)]
struct Life {
    membership: Membership,
    gate: Arc<Gate>,
    tasks: Arc<[JoinHandle<()>; 2]>,
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
        })
    }

    /// Membership and gate of who serves.
    pub fn serving(&self) -> Option<(Membership, Arc<Gate>)> {
        self.serving.lock().unwrap().as_ref().map(|life| (life.membership.clone(), life.gate.clone()))
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
        self.under_way.lock().unwrap().insert(number, (request, payload));
    }

    /// What was begun under a number; none if the server has been killed since.
    pub fn end(&self, number: u64) -> Option<(NsdRequest, Bytes)> {
        self.under_way.lock().unwrap().remove(&number)
    }
}

impl Cluster {
    /// A new life of a node's server; it serves as soon as it is registered.
    pub async fn start_server(self: &Arc<Cluster>, node: &Arc<Node>) {
        let life = node.lives.fetch_add(1, SeqCst) + 1;
        let way = Arc::new(Way { cluster: self.clone(), who: NODE + node.id.0 });
        let caught_up = Arc::<Mutex<Option<Epoch>>>::default();
        if self.without == Without::CatchUp {
            *caught_up.lock().unwrap() = Some(Epoch(u64::MAX));
        }
        let server = Arc::new(Server { node: node.clone(), life, caught_up: caught_up.clone() });
        let config = MembershipConfig { in_force_by_owner: true, ..MembershipConfig::default() };
        let membership = Membership::start(way.clone(), server, config).await.unwrap();
        let pdisk = PdiskId(node.id.0);
        let gate = Arc::new(Gate::new(membership.view(), vec![pdisk]));
        let (views, session) = (membership.views(), membership.session_cell());
        let io = StripeIo::new(way, views, session, membership.reporter(), IoConfig::default());
        let made = Made { caught_up, moved: Arc::default(), waits: Arc::default() };
        let served = ServedPdisk { id: pdisk, pdisk: Pdisk(node.clone()) };
        let (pace, tuning) = (Arc::new(Pace::new()), Tuning::default());
        let catch_up = Arc::new(CatchUp::new(served, io, membership.clone(), tuning, pace, made));
        let (following, of) = (gate.clone(), membership.clone());
        let tasks = [
            tokio::spawn(async move { following.follow(of).await }),
            tokio::spawn(async move { catch_up.run().await }),
        ];
        *node.serving.lock().unwrap() = Some(Life { membership, gate, tasks: Arc::new(tasks) });
    }

    /// SIGKILL. False if it does not serve.
    pub fn kill_server(&self, node: &Node) -> bool {
        let Some(life) = node.serving.lock().unwrap().take() else { return false };
        life.membership.stop();
        life.tasks.iter().for_each(JoinHandle::abort);
        let mut strips = node.strips.lock().unwrap();
        for (_, (request, payload)) in std::mem::take(&mut *node.under_way.lock().unwrap()) {
            if self.below(2) == 0 {
                strips.carry_out(request, &payload);
            }
        }
        strips.end_life(self.without == Without::Written);
        true
    }

    /// Whether all servers serve, and their disks answer.
    pub fn all_serve(&self) -> bool {
        let serves = |node: &Node| node.serving.lock().unwrap().is_some() && !*node.hangs.borrow();
        self.nodes.iter().all(|node| serves(node))
    }
}

/// How a node becomes part of the cluster, and what it reports.
struct Server {
    node: Arc<Node>,
    life: u64,
    caught_up: Arc<Mutex<Option<Epoch>>>,
}

impl Registrar for Server {
    fn register(&self, link: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>> {
        let id = self.node.id.0;
        let (node, process) = (
            self.node.id,
            ProcessIdent { pid: NODE + id, start_ticks: self.life, ..ProcessIdent::default() },
        );
        let mut pdisks = self.reports();
        Box::pin(async move {
            let ask = MgrRequest::LogMarks { pdisks: vec![pdisks[0].id] };
            let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
            let recorded = match link.call(SessionId(0), Epoch(0), ask, until).await {
                Ok(MgrReply::LogMarks(marks)) => marks[0],
                Ok(_) => return Err(RegistrarError::Fatal(LinkError::Protocol)),
                Err(error) => return Err(RegistrarError::Retry(error)),
            };
            // Its log is a count of changes: it contains every point that it reaches.
            pdisks[0].proved = (recorded.position <= pdisks[0].log.position).then_some(recorded);
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
            log: LogMark { position: self.node.strips.lock().unwrap().changes(), digest: 1 },
            capacity: 1 << 40,
            free: 1 << 40,
            caught_up: *self.caught_up.lock().unwrap(),
            ..PdiskReport::default()
        }]
    }
}

/// A node's strips as its own catch-up has them.
#[derive(Clone)]
struct Pdisk(Arc<Node>);

type Refused<T> = Result<T, StripRefusal>;

impl Pdisk {
    fn strips(&self) -> std::sync::MutexGuard<'_, Strips> {
        self.0.strips.lock().unwrap()
    }
}

impl nsd::Strips for Pdisk {
    type Seen = usize;
    fn deletes_seen(&self) -> usize {
        self.strips().deletes_seen()
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
