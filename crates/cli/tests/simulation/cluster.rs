//! A cluster in one thread: the shipped manager, memberships, gates, stripes and clients, over a network, a clock and disks
//! that are drawn from a seed. Requests are late, are lost, are carried out twice or after who asked has given up; ways are
//! cut; processes die.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{ClusterId, Epoch, FsId, InodeNo, NodeId, PdiskId, PoolId, SessionId};
use bytes::Bytes;
use client::{Client, ClientConfig, MountError, Tunables};
use manager::{Caller, Manager, Spec, format::first_state, store::Store};
use net::BoxFuture;
use stripe::{Fault, LinkError, ManagerLink, NsdCall, NsdTransport};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use wire::{
    map::{FsEntry, NodeEntry, PdiskEntry, PdiskState, PoolEntry},
    mgr::{MgrReply, MgrRequest, OpId, ProcessIdent},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    token::{Need, Recall},
};

use super::{disk::Kept, server::Node, world};
use crate::common::Random;

/// A rule taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    Nothing,
    /// Servers carry out what fenced sessions ask for.
    Fence,
    /// What the manager acknowledged last is lost when it is killed.
    Durability,
    /// A change that is repeated is done again.
    ExactlyOnce,
    /// A lease never runs out for who holds it.
    Lease,
    /// A token is given on as soon as its holder is asked for it.
    Recall,
    /// Names and directories are changed without asking for them who keeps them.
    Names,
    /// What is stored because a token is asked for is not stored.
    Flush,
    /// What a server acknowledged last is lost when it is killed.
    Written,
    /// A pdisk that comes back counts at once.
    CatchUp,
}

/// A process that others may not reach: 0 to 99 are clients, 100 and more the nodes.
pub type Who = u32;
pub const NODE: Who = 100;
pub const NODES: u32 = 3;

/// See the file's head.
pub struct Cluster {
    random: Mutex<Random>,
    pub without: Without,
    kept: Mutex<Kept>,
    manager: Mutex<Option<Manager>>,
    /// How often it was killed.
    kills: watch::Sender<u64>,
    pub nodes: Vec<Arc<Node>>,
    /// Requests that servers have admitted.
    admitted: AtomicU64,
    /// Until when a process reaches nobody. The dead: for ever.
    cut: Mutex<HashMap<Who, Option<Instant>>>,
    /// Tokens that clients were asked for and have not given up.
    wanted: Mutex<HashSet<(SessionId, InodeNo)>>,
    /// Inodes of which names were asked for.
    named: Mutex<HashSet<InodeNo>>,
    /// All that happened, in order.
    pub trace: Mutex<Vec<String>>,
}

fn spec() -> Spec {
    let entry = |id| NodeEntry { id: NodeId(id), name: format!("n{id}"), ..NodeEntry::default() };
    let pdisk = |id| PdiskEntry { id: PdiskId(id), nodes: vec![NodeId(id)], ..PdiskEntry::default() };
    Spec {
        cluster: ClusterId(7),
        name: "simulated".into(),
        nodes: (1..=NODES).map(entry).collect(),
        pdisks: (1..=NODES).map(pdisk).collect(),
        pools: vec![PoolEntry {
            id: PoolId(1),
            name: "pool1".into(),
            code: "2+1p".into(),
            block_size: 256 << 10,
            width: 3,
            table: [1, 2, 3, 2, 3, 1, 3, 1, 2].map(PdiskId).to_vec(),
            ..PoolEntry::default()
        }],
        filesystems: vec![FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) }],
    }
}

impl Cluster {
    /// All servers and the manager are there.
    pub async fn start(seed: u64, without: Without) -> Arc<Cluster> {
        let kept = Kept::default();
        let first = first_state(&spec(), [1, 2], &kept.snapshot().unwrap()).unwrap();
        kept.commit(&first).unwrap();
        let cluster = Arc::new(Cluster {
            random: Mutex::new(Random(seed)),
            without,
            kept: Mutex::new(kept),
            manager: Mutex::default(),
            kills: watch::Sender::new(0),
            nodes: (1..=NODES).map(Node::new).collect(),
            admitted: AtomicU64::new(0),
            cut: Mutex::default(),
            wanted: Mutex::default(),
            named: Mutex::default(),
            trace: Mutex::default(),
        });
        cluster.start_manager();
        for node in &cluster.nodes {
            cluster.start_server(node).await;
        }
        cluster
    }

    pub fn below(&self, n: u64) -> u64 {
        self.random.lock().unwrap().below(n)
    }

    /// Writes into the trace.
    pub fn note(&self, what: String) {
        tracing::info!("{what}");
        self.trace.lock().unwrap().push(format!("{} {what}", world::now()));
    }

    pub fn start_manager(&self) {
        let mut kept = self.kept.lock().unwrap();
        *kept = kept.next_life(self.without == Without::Durability && *self.kills.borrow() > 0);
        let started = Manager::on_store(Arc::new(kept.clone()), Path::new("simulated")).unwrap();
        *self.manager.lock().unwrap() = Some(started);
    }

    /// Whether all pdisks count, as far as a manager knows.
    pub fn all_ok(&self) -> bool {
        let manager = self.manager.lock().unwrap().clone();
        let ok = |manager: Manager| manager.map().borrow().pdisks.iter().all(|p| p.state == PdiskState::Ok);
        manager.is_some_and(ok)
    }

    pub fn kill_manager(&self) {
        self.kept.lock().unwrap().kill();
        self.kills.send_modify(|kills| *kills += 1);
        if let Some(killed) = self.manager.lock().unwrap().take() {
            tokio::spawn(killed.stop());
        }
    }

    /// The process reaches nobody for so long, or never again.
    pub fn cut_off(&self, who: Who, time: Option<Duration>) {
        let until = time.map(|time| Instant::now() + time);
        let mut cut = self.cut.lock().unwrap();
        let longest = cut.get(&who).map_or(until, |before| before.zip(until).map(|(a, b)| a.max(b)));
        cut.insert(who, longest);
    }

    pub async fn mount(self: &Arc<Cluster>, who: Who) -> Result<Client, MountError> {
        let way = Arc::new(Way { cluster: self.clone(), who });
        let config = ClientConfig {
            manager: Vec::new(),
            fs: "fs1".into(),
            mount: format!("/client{who}"),
            process: ProcessIdent { pid: 1 + who, ..ProcessIdent::default() },
            admin_addr: String::new(),
            tunables: Tunables::default(),
        };
        Client::mount_over(way.clone(), way, config).await
    }

    /// A message on its way; false if it was lost, and who sent it hears of it.
    async fn travel(&self, who: Who) -> bool {
        let (fate, small, large) = (self.below(1000), self.below(2000), self.below(2000));
        sleep(Duration::from_micros(100 + small)).await;
        match fate {
            0..5 => sleep(Duration::from_millis(large)).await,
            5..40 => sleep(Duration::from_millis(large / 40)).await,
            40..50 => {
                sleep(Duration::from_millis(200 + large)).await;
                return false;
            }
            _ => {}
        }
        let cut = self.cut.lock().unwrap().get(&who).copied();
        match cut {
            None => true,
            Some(None) => std::future::pending().await,
            Some(Some(until)) if until <= Instant::now() => true,
            // Some wait in the socket, however long it takes, and arrive; others go with their connection.
            Some(Some(until)) => {
                sleep_until(until).await;
                fate % 2 == 0
            }
        }
    }

    /// Whether a copy of a request is carried out as well, and how much later.
    fn copy_after(&self) -> Option<Duration> {
        let (fate, late) = (self.below(100), self.below(800));
        (fate == 0).then(|| Duration::from_millis(late))
    }

    async fn ask(
        self: Arc<Cluster>,
        who: Who,
        session: SessionId,
        mut request: MgrRequest,
        expires: Instant,
    ) -> Result<MgrReply, LinkError> {
        let lost = || LinkError::Unreachable("lost".into());
        if !self.travel(who).await {
            return Err(lost());
        }
        let (mut kills, manager) = (self.kills.subscribe(), self.manager.lock().unwrap().clone());
        let Some(manager) = manager else {
            sleep(Duration::from_millis(20)).await;
            return Err(LinkError::Unreachable("no manager".into()));
        };
        let caller = Caller { session, expires };
        if request.is_idempotent()
            && let Some(late) = self.copy_after()
        {
            let (manager, request) = (manager.clone(), request.clone());
            tokio::spawn(async move {
                sleep(late).await;
                manager.handle(caller, request).await
            });
        }
        if self.without == Without::ExactlyOnce {
            let renumber = |op: &mut OpId| op.seq = op.seq * 1000 + self.below(1000);
            match &mut request {
                MgrRequest::Mutate { op, .. } => renumber(op),
                MgrRequest::MutateMany { changes } => changes.iter_mut().for_each(|(op, _)| renumber(op)),
                _ => {}
            }
        }
        self.note(format!("from {who}, {session}: {request:?}"));
        if let MgrRequest::Acquire { ino, need: Need::Names } = &request {
            self.named.lock().unwrap().insert(*ino);
        }
        if let MgrRequest::Release { tokens } = &request {
            let mut wanted = self.wanted.lock().unwrap();
            tokens.iter().for_each(|token| _ = wanted.remove(&(session, token.ino)));
        }
        let mut reply = tokio::select! {
            biased;
            _ = kills.changed() => return Err(lost()),
            reply = manager.handle(caller, request) => reply,
        };
        self.note(format!("to {who}, {session}: {reply:?}"));
        if let MgrReply::Recalls(recalls) = &mut reply {
            self.recalled(&manager, caller, recalls).await;
        }
        if !self.travel(who).await || kills.has_changed().unwrap_or(true) {
            return Err(lost());
        }
        match reply {
            MgrReply::Error(error) => Err(LinkError::Refused(error)),
            MgrReply::Renewed { epoch, .. } if self.without == Without::Lease && who < NODE => {
                Ok(MgrReply::Renewed { epoch, lease_us: 3_600_000_000 })
            }
            reply => Ok(reply),
        }
    }

    /// A client is asked for tokens.
    async fn recalled(&self, manager: &Manager, caller: Caller, recalls: &mut Vec<Recall>) {
        let named = |recall: &Recall| match recall {
            Recall::Token(token) => self.named.lock().unwrap().contains(&token.ino),
            _ => false,
        };
        if self.without == Without::Names {
            for unheard in recalls.extract_if(.., |recall| named(recall)) {
                let Recall::Token(token) = unheard else { continue };
                manager.handle(caller, MgrRequest::Release { tokens: vec![token] }).await;
            }
        }
        for recall in recalls.iter() {
            let Recall::Token(token) = recall else { continue };
            self.wanted.lock().unwrap().insert((caller.session, token.ino));
            if self.without == Without::Recall {
                manager.handle(caller, MgrRequest::Release { tokens: vec![token.clone()] }).await;
            }
        }
    }

    /// What is answered to a request that is not carried out.
    fn pretended(&self, session: SessionId, request: &NsdRequest) -> Option<NsdReply> {
        let wanted = |ino| self.wanted.lock().unwrap().contains(&(session, ino));
        match request {
            _ if self.without != Without::Flush => None,
            NsdRequest::Prepare { strip, .. } if wanted(strip.strip.stripe.inode) => Some(NsdReply::Done),
            NsdRequest::Adopt { items, .. } if items.iter().all(|(strip, _)| wanted(strip.stripe.inode)) => {
                Some(NsdReply::Outcomes(items.iter().map(|_| Ok(())).collect()))
            }
            _ => None,
        }
    }

    async fn serve(self: Arc<Cluster>, to: Addressed, payload: Bytes) -> Result<(NsdReply, Bytes), Fault> {
        let Addressed { node, session, epoch, request, deadline } = to;
        let at = &self.nodes[node.0 as usize - 1];
        let Some((membership, gate)) = at.serving() else {
            return Err(Fault::Unreachable("not serving".into()));
        };
        let wait = Duration::from_secs(2);
        let pass = match gate.admit(&membership, session, epoch, &request, wait, deadline).await {
            Ok(pass) => Some(pass),
            Err(NsdRefusal::Fenced) if self.without == Without::Fence => None,
            Err(refusal) => return Err(Fault::Refused(refusal)),
        };
        let (number, asked) = (self.admitted.fetch_add(1, SeqCst), format!("{node}, {session}: {request:?}"));
        at.begin(number, request, payload);
        sleep(Duration::from_micros(self.below(3000))).await;
        at.answers().await;
        let Some((request, payload)) = at.end(number) else {
            return Err(Fault::Unreachable("killed".into()));
        };
        let (reply, bytes) = match self.pretended(session, &request) {
            Some(reply) => (reply, Bytes::new()),
            None => at.strips.lock().unwrap().carry_out(request, &payload),
        };
        self.note(format!("{asked}: {reply:?}"));
        drop(pass);
        match reply {
            NsdReply::Refused(refusal) => Err(Fault::Refused(refusal)),
            reply => Ok((reply, bytes)),
        }
    }

    async fn deliver(
        self: Arc<Cluster>,
        who: Who,
        to: Addressed,
        payload: Bytes,
    ) -> Result<(NsdReply, Bytes), Fault> {
        let lost = || Fault::Unreachable("lost".into());
        if !self.travel(who).await {
            return Err(lost());
        }
        if let Some(late) = self.copy_after() {
            let (cluster, to, payload) = (self.clone(), to.clone(), payload.clone());
            tokio::spawn(async move {
                sleep(late).await;
                cluster.serve(to, payload).await
            });
        }
        let served = self.clone().serve(to, payload).await;
        if self.travel(who).await { served } else { Err(lost()) }
    }
}

/// A request to a server.
#[derive(Clone)]
struct Addressed {
    node: NodeId,
    session: SessionId,
    epoch: Epoch,
    request: NsdRequest,
    deadline: std::time::Instant,
}

/// What a process reaches the others by.
pub struct Way {
    pub cluster: Arc<Cluster>,
    pub who: Who,
}

/// Waits for an answer; what was sent is on its way in any case.
async fn answered<T, E>(
    sent: JoinHandle<Result<T, E>>,
    deadline: std::time::Instant,
    late: E,
) -> Result<T, E> {
    match timeout_at(deadline.into(), sent).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(late),
    }
}

impl ManagerLink for Way {
    fn call(
        &self,
        session: SessionId,
        _: Epoch,
        request: MgrRequest,
        deadline: std::time::Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let (cluster, who) = (self.cluster.clone(), self.who);
        Box::pin(async move {
            let sent = tokio::spawn(cluster.ask(who, session, request, deadline.into()));
            answered(sent, deadline, LinkError::Timeout).await
        })
    }
}

impl NsdTransport for Way {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let (cluster, who) = (self.cluster.clone(), self.who);
        Box::pin(async move {
            let NsdCall { node, session, epoch, request, deadline, payload, .. } = call;
            let to = Addressed { node, session, epoch, request, deadline };
            let sent = tokio::spawn(cluster.deliver(who, to, Bytes::from(payload.concat())));
            answered(sent, deadline, Fault::Timeout).await
        })
    }
}
