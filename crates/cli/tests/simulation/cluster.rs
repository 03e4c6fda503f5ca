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

use base::{ClusterId, Epoch, FsId, Grant, InodeNo, MemberId, NodeId, PdiskId, PoolId, SessionId};
use bytes::Bytes;
use client::{Client, ClientConfig, MountError, Tunables};
use layout::{LayoutTable, PdiskDesc};
use manager::{Caller, Deleter, Manager, Spec, format::first_state, store::Store};
use net::BoxFuture;
use stripe::{Fault, LinkError, ManagerLink, NsdCall, NsdTransport};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use wire::{
    crc::unit_crcs,
    map::{ClusterMap, FsEntry, NodeEntry, PdiskEntry, PdiskState, PoolEntry, PoolPdisk},
    mgr::{Change, FileKind, LogMark, MgrReply, MgrRequest, OpId, ProcessIdent},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::DeleteStrips,
    token::{Need, Recall, Token, TokenMode},
};

use super::{
    disk::Kept,
    held::Held,
    server::{Life, Node},
    world::{self, Process},
};
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
    /// What became of a block is not asked of the manager: the strips alone decide.
    Record,
    /// A log is compared by its length, which the open of it has already made longer.
    LogDigest,
    /// A server says that a map is in force while older requests are still at its disk.
    Passes,
    /// Others come while names that a client made are not told: it counts as asked.
    Unheard,
    /// Names made ahead are answered before they are carried out.
    Early,
    /// Of names made ahead those told last are carried out first.
    Disorder,
    /// Inode numbers are granted again.
    Numbers,
    /// Who looks where another one makes names ahead does not wait until they are told.
    Entered,
    /// Names made ahead count as told before they are. Whatever is asked waits for them: the measure for those that follow.
    Told,
    /// A question about an inode does not wait for what was made ahead.
    Waiting,
    /// It does not wait for what was done in a directory that it is about,
    Directories,
    /// or was moved into it,
    Target,
    /// nor for the move to a name that led to what it is about.
    Replaced,
    /// It waits until the oldest is told, in place of what concerns it.
    Entry,
}

/// A process that others may not reach: 0 to 98 are clients, 99 the manager where it deletes, 100 and more the nodes.
pub type Who = u32;
const MANAGER: Who = 99;
pub const NODE: Who = 100;

/// How large a cluster is.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Each with a pdisk of the same number.
    pub nodes: u32,
    code: &'static str,
    pub groups: u32,
    /// Pdisks that the code bears the loss of.
    pub spare: usize,
}

impl Shape {
    /// Strips of a stripe.
    pub fn width(&self) -> usize {
        let code: layout::Code = self.code.parse().unwrap();
        code.width().into()
    }
}

pub const SMALL: Shape = Shape { nodes: 3, code: "2+1p", groups: 3, spare: 1 };
pub const WIDE: Shape = Shape { nodes: 8, code: "4+2p", groups: 8, spare: 2 };

/// See the file's head.
pub struct Cluster {
    random: Mutex<Random>,
    pub without: Without,
    pub shape: Shape,
    kept: Mutex<Kept>,
    manager: Mutex<Option<(Manager, Process)>>,
    /// How often it was killed.
    kills: AtomicU64,
    pub nodes: Vec<Arc<Node>>,
    /// The network: what is on its way is in nobody's hands.
    net: Handle,
    /// Requests that servers have admitted.
    admitted: AtomicU64,
    /// Until when a process reaches nobody. The dead: for ever.
    cut: Mutex<HashMap<Who, Option<Instant>>>,
    /// Tokens that clients were asked for and have not given up.
    wanted: Mutex<HashSet<(SessionId, InodeNo)>>,
    /// Inodes of which names were asked for.
    named: Mutex<HashSet<InodeNo>>,
    /// Directories in which a client makes names, and under which grant.
    making: Mutex<HashMap<InodeNo, (SessionId, Grant)>>,
    /// Whether clients make names ahead of the manager.
    ahead: bool,
    /// The inode numbers that were granted first.
    granted: Mutex<Option<MgrReply>>,
    /// Names made ahead that are held back.
    pub held: tokio::sync::Mutex<Held>,
    /// All that happened, in order, or else the mishaps alone.
    pub trace: Mutex<Vec<String>>,
    whole: bool,
}

/// Whether a pdisk holds, or is to hold, strips.
fn in_use(map: &ClusterMap, id: PdiskId) -> bool {
    map.pools.iter().any(|pool| pool.table.contains(&id) || pool.moves.iter().any(|to| to.to == id))
}

fn spec(shape: Shape, seed: u64) -> Spec {
    let entry = |id| NodeEntry { id: NodeId(id), name: format!("n{id}"), ..NodeEntry::default() };
    let pdisk = |id| PdiskEntry { id: PdiskId(id), nodes: vec![NodeId(id)], ..PdiskEntry::default() };
    let desc = |id| PdiskDesc { id: PdiskId(id), node: NodeId(id), enclosure: None, weight: 1 << 40 };
    let of =
        |desc: &PdiskDesc| PoolPdisk { id: desc.id, array: Some(0), weight: desc.weight, enclosure: None };
    let descs: Vec<PdiskDesc> = (1..=shape.nodes).map(desc).collect();
    let table = LayoutTable::build(shape.code.parse().unwrap(), &descs, 0, shape.groups, seed).unwrap();
    Spec {
        racks: Vec::new(),
        cluster: ClusterId(7),
        name: "simulated".into(),
        nodes: (1..=shape.nodes).map(entry).collect(),
        pdisks: (1..=shape.nodes).map(pdisk).collect(),
        pools: vec![PoolEntry {
            id: PoolId(1),
            name: "pool1".into(),
            code: shape.code.into(),
            block_size: 256 << 10,
            width: shape.width() as u8,
            seed,
            table: table.group_ids().flat_map(|group| table.members(group).to_vec()).collect(),
            pdisks: descs.iter().map(of).collect(),
            ..PoolEntry::default()
        }],
        filesystems: vec![FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) }],
    }
}

impl Cluster {
    /// All servers and the manager are there.
    pub async fn start(seed: u64, without: Without, shape: Shape, ahead: bool, whole: bool) -> Arc<Cluster> {
        let kept = Kept::default();
        let first = first_state(&spec(shape, seed), [1, 2], &kept.snapshot().unwrap()).unwrap();
        kept.commit(&first).unwrap();
        let cluster = Arc::new(Cluster {
            random: Mutex::new(Random(seed)),
            without,
            shape,
            kept: Mutex::new(kept),
            manager: Mutex::default(),
            kills: AtomicU64::new(0),
            nodes: (1..=shape.nodes).map(Node::new).collect(),
            net: Handle::current(),
            admitted: AtomicU64::new(0),
            cut: Mutex::default(),
            wanted: Mutex::default(),
            named: Mutex::default(),
            making: Mutex::default(),
            ahead,
            granted: Mutex::default(),
            held: tokio::sync::Mutex::default(),
            trace: Mutex::default(),
            whole: whole || tracing::enabled!(tracing::Level::INFO),
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

    /// Writes into the trace, if all is wanted there.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if self.whole {
            self.mishap(&what());
        }
    }

    /// Writes into the trace.
    pub fn mishap(&self, what: &str) {
        tracing::info!("{what}");
        self.trace.lock().unwrap().push(format!("{} {what}", world::now()));
    }

    pub fn start_manager(self: &Arc<Cluster>) {
        let mut kept = self.kept.lock().unwrap();
        *kept = kept.next_life(self.without == Without::Durability && self.kills.load(SeqCst) > 0);
        let process = Process::begin();
        let _at = process.handle().enter();
        let started = Manager::on_store(Arc::new(kept.clone()), Path::new("simulated")).unwrap();
        started.delete_by(Remover { cluster: self.clone(), life: self.kills.load(SeqCst) });
        *self.manager.lock().unwrap() = Some((started, process));
    }

    /// The manager, if there is one.
    pub fn manager(&self) -> Option<(Manager, Process)> {
        self.manager.lock().unwrap().clone()
    }

    /// The map as the manager knows it; none while there is no manager.
    pub fn map(&self) -> Option<Arc<ClusterMap>> {
        let manager = self.manager.lock().unwrap();
        manager.as_ref().map(|(manager, _)| manager.map().borrow().clone())
    }

    /// Why pdisks do not count that could.
    pub fn not_ok(&self) -> Vec<String> {
        let Some(map) = self.map() else { return vec!["no manager".into()] };
        let hangs = |id: PdiskId| self.nodes.get(id.0 as usize - 1).is_some_and(|node| node.hangs());
        let counts = |state| matches!(state, PdiskState::Ok | PdiskState::Failed);
        let out = map.pdisks.iter().filter(|pdisk| !counts(pdisk.state) && !hangs(pdisk.id));
        let moves = map.pools.iter().flat_map(|pool| &pool.moves);
        let leaves = |id| map.pdisk(id).is_some_and(|pdisk| pdisk.leaving) && in_use(&map, id);
        let left = map.pdisks.iter().filter(|pdisk| leaves(pdisk.id));
        let out = out.map(|pdisk| format!("{} is {}", pdisk.id, pdisk.state.name()));
        let out = out.chain(moves.map(|to| format!("{to:?}")));
        out.chain(left.map(|pdisk| format!("{} still holds strips", pdisk.id))).collect()
    }

    /// How many pdisks do not answer, or do not count. All of them while there is no manager to tell.
    pub fn away(&self) -> usize {
        let Some(map) = self.map() else { return self.nodes.len() };
        let counts = |node: &Node| {
            let ok = map.pdisk(PdiskId(node.id.0)).is_some_and(|pdisk| pdisk.state == PdiskState::Ok);
            ok && node.answers_now() && !node.strips.lock().is_damaged()
        };
        let used = self.nodes.iter().filter(|node| in_use(&map, PdiskId(node.id.0)));
        used.filter(|node| !counts(node)).count()
    }

    /// The nodes whose pdisks count and hold something: what is left on others is swept apart.
    pub fn counting(&self) -> Vec<Arc<Node>> {
        let Some(map) = self.map() else { return Vec::new() };
        let ok = |node: &&Arc<Node>| map.pdisk(PdiskId(node.id.0)).is_some_and(|p| p.state == PdiskState::Ok);
        let used = |node: &&Arc<Node>| in_use(&map, PdiskId(node.id.0));
        self.nodes.iter().filter(ok).filter(used).cloned().collect()
    }

    /// Whether some disk has damaged bytes.
    pub fn rotted(&self) -> bool {
        self.nodes.iter().any(|node| node.strips.lock().is_damaged())
    }

    /// Asks the manager in nobody's name.
    pub async fn wish(&self, request: MgrRequest) -> Option<MgrReply> {
        let (manager, process) = self.manager.lock().unwrap().clone()?;
        let expires = Instant::now() + Duration::from_secs(30);
        let caller = Caller { session: SessionId(0), member: MemberId(0), expires, build: None };
        process.spawn(async move { manager.handle(caller, request).await }).await.ok()
    }

    /// What is durably on record of a pdisk's log.
    pub fn log_mark(&self, pdisk: PdiskId) -> LogMark {
        let stored = self.kept.lock().unwrap().snapshot().unwrap();
        manager::keys::read_pdisk(&*stored, pdisk).unwrap().log
    }

    pub fn kill_manager(&self) {
        self.kept.lock().unwrap().kill();
        self.kills.fetch_add(1, SeqCst);
        if let Some((_, process)) = self.manager.lock().unwrap().take() {
            process.kill();
        }
    }

    pub fn stop_manager(&self, time: Duration) {
        if let Some((_, process)) = &*self.manager.lock().unwrap() {
            process.stop(time);
        }
    }

    /// The process reaches nobody for so long, or never again.
    pub fn cut_off(&self, who: Who, time: Option<Duration>) {
        let until = time.map(|time| Instant::now() + time);
        let mut cut = self.cut.lock().unwrap();
        let longest = cut.get(&who).map_or(until, |before| before.zip(until).map(|(a, b)| a.max(b)));
        cut.insert(who, longest);
    }

    /// A client, and its process.
    pub async fn mount(self: &Arc<Cluster>, who: Who) -> Result<(Client, Process), MountError> {
        let way = Arc::new(Way { cluster: self.clone(), who });
        // Of a small cache much is forgotten, and asked for again while names are not told.
        let files_to_cache_max = match self.ahead.then(|| self.below(3)) {
            None | Some(0) => Tunables::default().files_to_cache_max,
            Some(1) => 12,
            Some(_) => 4,
        };
        let config = ClientConfig {
            managers: stripe::Managers::at(&[]),
            fs: "fs1".into(),
            mount: format!("/client{who}"),
            process: ProcessIdent { pid: 1 + who, ..ProcessIdent::default() },
            admin_addr: String::new(),
            // Of a file's blocks little is known at a time, and that is forgotten at once.
            tunables: Tunables {
                record_window: 2,
                record_runs_max: 1,
                names_ahead: self.ahead,
                files_to_cache_max,
                ..Tunables::default()
            },
        };
        let process = Process::begin();
        let mounted = process.spawn(Client::mount_over(way.clone(), way, config)).await;
        Ok((mounted.expect("it is not killed")?, process))
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
        let (kills, manager) = (self.kills.load(SeqCst), self.manager.lock().unwrap().clone());
        let Some((manager, process)) = manager else {
            sleep(Duration::from_millis(20)).await;
            return Err(LinkError::Unreachable("no manager".into()));
        };
        let caller = Caller { session, member: MemberId(0), expires, build: None };
        if request.is_idempotent()
            && let Some(late) = self.copy_after()
        {
            let (manager, request) = (manager.clone(), request.clone());
            process.spawn(async move {
                sleep(late).await;
                manager.handle(caller, request).await
            });
        }
        // Few at a time, so that they are asked for often.
        if let MgrRequest::Mutate { change: Change::Numbers { count }, .. } = &mut request {
            *count = 8;
        }
        if self.without == Without::ExactlyOnce {
            let renumber = |op: &mut OpId| op.seq = op.seq * 1000 + self.below(1000);
            match &mut request {
                MgrRequest::Mutate { op, .. } => renumber(op),
                MgrRequest::MutateMany { changes } | MgrRequest::Tell { changes } => {
                    changes.iter_mut().for_each(|(op, _)| renumber(op));
                }
                _ => {}
            }
        }
        self.note(|| format!("from {who}, {session}: {request:?}"));
        if self.without == Without::Record && matches!(request, MgrRequest::Owners { .. }) {
            return Err(lost());
        }
        if let MgrRequest::Acquire { ino, need: Need::Names } = &request {
            self.named.lock().unwrap().insert(*ino);
        }
        if let MgrRequest::Release { tokens } = &request {
            let mut wanted = self.wanted.lock().unwrap();
            tokens.iter().for_each(|token| _ = wanted.remove(&(session, token.ino)));
        }
        let held_back = self.hold_back(caller, &request).await;
        if self.without == Without::Entered {
            self.enter(&manager, caller, &request).await;
        }
        let at = manager.clone();
        let mut reply = if let Some(held_back) = held_back {
            held_back
        } else if let Some(early) = self.early(&mut request) {
            process.spawn(async move {
                sleep(Duration::from_secs(2)).await;
                at.handle(caller, request).await
            });
            early
        } else {
            process.spawn(async move { at.handle(caller, request).await }).await.map_err(|_| lost())?
        };
        self.note(|| format!("to {who}, {session}: {reply:?}"));
        self.note_making(session, &reply);
        if let MgrReply::Numbers { .. } = &reply
            && self.without == Without::Numbers
        {
            reply = self.granted.lock().unwrap().get_or_insert(reply).clone();
        }
        if let MgrReply::Recalls(recalls) = &mut reply {
            self.recalled(&manager, caller, recalls).await;
        }
        if !self.travel(who).await || kills != self.kills.load(SeqCst) {
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

    /// Notes which directories a client gets to make names in.
    fn note_making(&self, session: SessionId, reply: &MgrReply) {
        match reply {
            MgrReply::Many(replies) => {
                replies.iter().flatten().for_each(|reply| self.note_making(session, reply));
            }
            MgrReply::Token { token, attr: Some(attr), .. }
                if attr.kind == FileKind::Directory && token.mode == TokenMode::Write =>
            {
                self.making.lock().unwrap().insert(attr.ino, (session, token.serial));
            }
            MgrReply::CreatedHeld { attr, token, .. } if attr.kind == FileKind::Directory => {
                self.making.lock().unwrap().insert(attr.ino, (session, token.serial));
            }
            _ => {}
        }
    }

    /// Somebody looks: whoever makes names there counts as having told them.
    async fn enter(&self, manager: &Manager, caller: Caller, request: &MgrRequest) {
        let (MgrRequest::Lookup { parent: ino, .. }
        | MgrRequest::ReadDir { ino, .. }
        | MgrRequest::GetAttr { ino }
        | MgrRequest::Acquire { ino, need: Need::Names }) = *request
        else {
            return;
        };
        let making = self.making.lock().unwrap().get(&ino).copied();
        if let Some((session, serial)) = making.filter(|(session, _)| *session != caller.session) {
            let tokens = vec![Token::new(ino, TokenMode::Read, serial)];
            manager.handle(Caller { session, ..caller }, MgrRequest::Release { tokens }).await;
        }
    }

    /// What is done to names made ahead where a rule about them is taken out; what is answered before they are carried out.
    fn early(&self, request: &mut MgrRequest) -> Option<MgrReply> {
        let (MgrRequest::MutateMany { changes } | MgrRequest::Tell { changes }) = request else {
            return None;
        };
        if !changes.iter().any(|(_, change)| matches!(change, Change::CreateAs { .. })) {
            return None;
        }
        if self.without == Without::Disorder {
            changes.reverse();
        }
        let answered = || MgrReply::Many(changes.iter().map(|_| Ok(MgrReply::Done)).collect());
        (self.without == Without::Early).then(answered)
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
            if self.without == Without::Unheard && matches!(recall, Recall::Share) {
                manager.handle(caller, MgrRequest::Claim { tokens: Vec::new(), last: true }).await;
            }
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

    /// A request that has arrived at a server's machine.
    async fn arrive(self: Arc<Cluster>, to: Addressed, payload: Bytes) -> Result<(NsdReply, Bytes), Fault> {
        let Some(life) = self.nodes[to.node.0 as usize - 1].serving() else {
            return Err(Fault::Unreachable("not serving".into()));
        };
        let served = life.process.clone().spawn(self.serve(life, to, payload));
        served.await.unwrap_or_else(|_| Err(Fault::Unreachable("killed".into())))
    }

    async fn serve(
        self: Arc<Cluster>,
        life: Life,
        to: Addressed,
        payload: Bytes,
    ) -> Result<(NsdReply, Bytes), Fault> {
        let Addressed { node, session, epoch, request, deadline } = to;
        let (at, Life { membership, gate, .. }) = (&self.nodes[node.0 as usize - 1], &life);
        let wait = Duration::from_secs(2);
        let pass = match gate.admit(membership, session, epoch, &request, wait, deadline).await {
            Ok(pass) => Some(pass).filter(|_| self.without != Without::Passes),
            Err(NsdRefusal::Fenced) if self.without == Without::Fence => None,
            Err(refusal) => return Err(Fault::Refused(refusal)),
        };
        let number = self.admitted.fetch_add(1, SeqCst);
        let asked = if self.whole { format!("{node}, {session}: {request:?}") } else { String::new() };
        at.begin(number, request, payload);
        sleep(Duration::from_micros(self.below(3000))).await;
        at.answers().await;
        let Some((request, payload)) = at.end(number) else {
            return Err(Fault::Unreachable("killed".into()));
        };
        let (reply, bytes) = match self.pretended(session, &request) {
            Some(reply) => (reply, Bytes::new()),
            None => at.strips.lock().carry_out(request, &payload),
        };
        self.note(|| format!("{asked}: {reply:?}"));
        drop(pass);
        for strip in at.strips.lock().found_damaged() {
            life.repairs.found(PdiskId(node.0), strip);
        }
        if !membership.lease_valid() {
            return Err(Fault::Refused(NsdRefusal::NoLease));
        }
        match reply {
            NsdReply::Refused(refusal) => Err(Fault::Refused(refusal)),
            // As the network does where an answer arrives.
            NsdReply::Read(read) => {
                let bad = read.crcs.iter().zip(unit_crcs(&bytes)).position(|(stored, came)| *stored != came);
                match bad {
                    Some(unit) => Err(Fault::BadCrc { unit: unit as u32 }),
                    None => Ok((NsdReply::Read(read), bytes)),
                }
            }
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
                cluster.arrive(to, payload).await
            });
        }
        let served = self.clone().arrive(to, payload).await;
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

/// How the manager removes strips.
struct Remover {
    cluster: Arc<Cluster>,
    /// Of the manager.
    life: u64,
}

impl Deleter for Remover {
    async fn delete(&self, map: &ClusterMap, pdisk: PdiskId, items: Vec<DeleteStrips>) -> Result<(), String> {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let request = NsdRequest::Delete { pdisk, items };
        let (node, session, epoch) = (NodeId(pdisk.0), SessionId(0), map.epoch);
        let to = Addressed { node, session, epoch, request, deadline };
        let sent = self.cluster.net.spawn(self.cluster.clone().deliver(MANAGER, to, Bytes::new()));
        let answer = answered(sent, deadline, Fault::Timeout).await;
        answer.map(drop).map_err(|fault| format!("life {}: {fault}", self.life))
    }
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
            let sent = cluster.net.clone().spawn(cluster.ask(who, session, request, deadline.into()));
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
            let net = cluster.net.clone();
            let sent = net.spawn(cluster.deliver(who, to, Bytes::from(payload.concat())));
            answered(sent, deadline, Fault::Timeout).await
        })
    }
}
