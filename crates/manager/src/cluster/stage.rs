//! A cluster's state machine with a clock and a store of its own, and those who talk to it, for stories.
#![allow(clippy::unwrap_used)] // tests

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base::{
    ClusterId, Epoch, FsId, Grant, Incarnation, InodeNo, MemberId, NodeId, PdiskId, PoolId, SessionId,
};
use wire::{
    lock::LockRequest,
    map::{FsEntry, NodeEntry, PdiskEntry, PdiskState, PoolEntry},
    mgr::{LogMark, MgrReply, MgrRequest, PdiskReport, ProcessIdent},
    token::{Need, Recall, Token},
};

use super::{Ask, Cluster, Event, Kind, Question, Rest, Step, StoreOp, Ticket};
use crate::{
    keys,
    store::{self, Changes, Snapshot, seal_record},
};

/// Who needs no session.
pub(super) const NOBODY: SessionId = SessionId(0);
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// A cluster of `nodes` nodes with one pdisk each, one pool over all of them with one group.
pub(super) struct Stage {
    pub store: BTreeMap<Vec<u8>, Vec<u8>>,
    pub cluster: Cluster,
    pub now: Duration,
    tickets: Ticket,
    /// Which member asks.
    pub asker: MemberId,
    pub replies: BTreeMap<Ticket, MgrReply>,
    pub servers: BTreeMap<u32, SessionId>,
    pub collected: u32,
    rest: Rest,
    /// Until then a look at the clock brings nothing.
    pub rests_until: Duration,
    /// What whoever asks runs.
    pub build: Option<wire::version::Build>,
}

/// A point of a log that is as long, with the content that the tests mean.
pub(crate) fn mark(position: u64) -> LogMark {
    LogMark { position, digest: position ^ 0x5a }
}

pub(crate) fn report(id: u32, incarnation: u64, log_position: u64) -> PdiskReport {
    PdiskReport {
        id: PdiskId(id),
        incarnation: Incarnation(incarnation),
        log: mark(log_position),
        capacity: 64 << 20,
        free: 64 << 20,
        ..PdiskReport::default()
    }
}

pub(crate) fn process(pid: u32) -> ProcessIdent {
    ProcessIdent { host: "h".into(), scope: "b".into(), pid, start_ticks: 1 }
}

/// A cluster of so many nodes with one pdisk each; without a table there is one group over all.
pub(crate) fn spec(nodes: u32, code: &str, pool: PoolEntry) -> crate::Spec {
    let bare = pool.table.is_empty();
    crate::Spec {
        cluster: ClusterId(7),
        name: "c".into(),
        nodes: (1..=nodes)
            .map(|id| NodeEntry { id: NodeId(id), name: format!("n{id}"), ..NodeEntry::default() })
            .collect(),
        racks: Vec::new(),
        pdisks: (1..=nodes)
            .map(|id| PdiskEntry {
                id: PdiskId(id),
                name: format!("n{id}p1"),
                nodes: vec![NodeId(id)],
                ..PdiskEntry::default()
            })
            .collect(),
        pools: vec![PoolEntry {
            id: PoolId(1),
            name: "pool1".into(),
            code: code.into(),
            block_size: 1 << 20,
            width: if bare { nodes as u8 } else { pool.width },
            table: if bare { (1..=nodes).map(PdiskId).collect() } else { pool.table.clone() },
            ..pool
        }],
        filesystems: vec![FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) }],
    }
}

impl Stage {
    pub fn new(nodes: u32, code: &str) -> Stage {
        Stage::of(nodes, code, PoolEntry::default())
    }

    /// With what `pool` says of the layout; without a table there is one group over all.
    pub fn of(nodes: u32, code: &str, pool: PoolEntry) -> Stage {
        Stage::made(&spec(nodes, code, pool))
    }

    /// As a new store with this in it begins.
    pub fn made(spec: &crate::Spec) -> Stage {
        let empty: Snapshot = Arc::new(BTreeMap::new());
        let mut store = BTreeMap::new();
        store::memory::apply(&mut store, crate::format::first_state(spec, [1, 2], &empty).unwrap());
        let cluster = Cluster::load(&store, LEASE, Duration::ZERO).unwrap();
        let mut stage = Stage {
            store,
            cluster,
            now: Duration::ZERO,
            tickets: 0,
            asker: MemberId(0),
            build: None,
            replies: BTreeMap::new(),
            servers: BTreeMap::new(),
            collected: 0,
            rest: Rest::default(),
            rests_until: Duration::ZERO,
        };
        stage.begin_life();
        stage
    }

    pub fn begin_life(&mut self) -> Vec<String> {
        let step = self.cluster.begin_life();
        let notes = step.notes.clone();
        self.take(step);
        notes
    }

    /// All servers registered and up to date.
    pub fn running(nodes: u32, code: &str) -> Stage {
        let mut stage = Stage::new(nodes, code);
        (1..=nodes).for_each(|node| stage.register(node, 1, 0));
        stage.renew_all();
        stage
    }

    pub fn tell(&mut self, event: Event) {
        let kind = Kind::of(&event);
        let step = self.cluster.handle(event, self.now);
        let calm = step.is_nothing_new();
        if kind == Kind::Tick && self.now < self.rests_until {
            // It is shown the clock half a second late at most; a third of a lease is time enough for all stories.
            assert!(calm && step.replies.is_empty(), "it rested until {:?}: {step:?}", self.now);
        }
        let until = self.rest.after(kind, calm, &self.cluster, self.now);
        self.rests_until = until.map_or(self.now, |until| until.min(self.now + LEASE / 3));
        self.take(step);
    }

    /// Asks for something; the answer comes at once or later.
    pub fn question(&mut self, session: SessionId, ask: impl Into<Ask>) -> Ticket {
        self.tickets += 1;
        let expires = self.now + Duration::from_secs(60);
        let (ticket, member, build) = (self.tickets, self.asker, self.build);
        self.tell(Event::Asked(Question { ticket, session, member, expires, build }, ask.into()));
        self.tickets
    }

    fn take(&mut self, step: Step) {
        let mut changes = Changes::new();
        for op in step.store {
            match op {
                StoreOp::Put(key, value) => drop(changes.insert(key, Some(value))),
                StoreOp::Delete(key) => drop(changes.insert(key, None)),
                StoreOp::EndSession(session) => drop(changes.insert(keys::session_key(session), None)),
            }
        }
        store::memory::apply(&mut self.store, changes);
        self.replies.extend(step.replies);
        self.collected += u32::from(step.collect);
    }

    /// Asks for something that is answered at once.
    pub fn ask(&mut self, session: SessionId, ask: impl Into<Ask>) -> MgrReply {
        let ticket = self.question(session, ask);
        self.replies.remove(&ticket).expect("an answer")
    }

    pub fn register(&mut self, node: u32, incarnation: u64, log_position: u64) {
        let recorded = self.recorded(node);
        let proved = (recorded.position <= log_position).then(|| mark(recorded.position));
        self.register_with(node, incarnation, log_position, proved);
    }

    pub fn register_with(&mut self, node: u32, incarnation: u64, log_position: u64, proved: Option<LogMark>) {
        let reply = self.ask(
            NOBODY,
            MgrRequest::RegisterServer {
                node: NodeId(node),
                process: process(1000 * node + incarnation as u32),
                addrs: vec![format!("127.0.0.1:{node}")],
                pdisks: vec![PdiskReport { proved, ..report(node, incarnation, log_position) }],
            },
        );
        let MgrReply::Registered { session, .. } = reply else { panic!("{reply:?}") };
        self.servers.insert(node, session);
    }

    /// The manager that recorded it knew positions only.
    pub fn forget_digest(&mut self, pdisk: u32) {
        let key = keys::pdisk_key(PdiskId(pdisk));
        let now = keys::read_pdisk(&self.store, PdiskId(pdisk)).unwrap();
        self.store.insert(key.clone(), seal_record(&key, &keys::PdiskRecord1::from(now)));
        self.restart();
    }

    /// What is on record of a pdisk's log.
    pub fn recorded(&mut self, pdisk: u32) -> LogMark {
        let reply = self.ask(NOBODY, MgrRequest::LogMarks { pdisks: vec![PdiskId(pdisk)] });
        let MgrReply::LogMarks(marks) = reply else { panic!("{reply:?}") };
        marks[0]
    }

    pub fn renew(&mut self, node: u32, report: PdiskReport) -> MgrReply {
        let session = self.servers[&node];
        let epoch = self.cluster.map().epoch;
        let report = PdiskReport { in_force: epoch, ..report };
        self.ask(session, MgrRequest::Renew { epoch, pdisks: vec![report] })
    }

    pub fn renew_client(&mut self, session: SessionId) {
        self.ask(session, MgrRequest::Renew { epoch: Epoch(0), pdisks: vec![] });
    }

    /// The server follows the map, and its pdisk has had I/O from before a version under way since then.
    pub fn renew_stuck(&mut self, node: u32, in_force: Epoch) {
        let (session, epoch) = (self.servers[&node], self.cluster.map().epoch);
        let pdisks = vec![PdiskReport { in_force, ..report(node, 1, 0) }];
        self.ask(session, MgrRequest::Renew { epoch, pdisks });
    }

    pub fn renew_all(&mut self) {
        for node in self.servers.keys().copied().collect::<Vec<_>>() {
            self.renew(node, report(node, 1, 0));
        }
    }

    pub fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.tell(Event::Tick);
    }

    /// Time passes, all servers but `dead` renew.
    pub fn pass_without(&mut self, dead: &[u32], seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            for node in self.servers.keys().copied().filter(|n| !dead.contains(n)).collect::<Vec<_>>() {
                self.renew(node, report(node, 1, 0));
            }
            self.tell(Event::Tick);
        }
    }

    pub fn open(&mut self, pid: u32, proven_dead: Option<SessionId>) -> Ticket {
        self.question(
            NOBODY,
            MgrRequest::OpenSession {
                fs: "fs1".into(),
                process: process(pid),
                admin_addr: String::new(),
                mount: "/m".into(),
                proven_dead: proven_dead.into_iter().collect(),
                share: false,
            },
        )
    }

    pub fn opened(&mut self, ticket: Ticket) -> (SessionId, Grant, bool) {
        match self.replies.remove(&ticket) {
            Some(MgrReply::SessionOpen { session, grant, resolve, map, .. }) => {
                assert!(map.clients.iter().any(|client| client.session == session));
                (session, grant, resolve)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn states(&self) -> String {
        let letter = |p: &PdiskEntry| match p.state {
            PdiskState::Ok => 'o',
            PdiskState::Missing => 'm',
            PdiskState::Returning => 'r',
            PdiskState::Failed => 'f',
        };
        self.cluster.map().pdisks.iter().map(letter).collect()
    }

    pub fn restart(&mut self) {
        self.restart_with_locks();
        // No programs hold locks in these stories.
        for session in self.cluster.clients.keys().copied().collect::<Vec<_>>() {
            let life = self.life(session);
            self.lock(session, LockRequest::Claim { life, locks: Vec::new(), last: true });
        }
    }

    /// The number under which a session is to claim its locks.
    pub fn life(&self, session: SessionId) -> u64 {
        let Some(MgrReply::Recalls(recalls)) = self.cluster.lock_recall(session) else { panic!() };
        let [Recall::Locks(life)] = recalls[..] else { panic!("{recalls:?}") };
        life
    }

    /// Sessions are to claim theirs.
    pub fn restart_with_locks(&mut self) {
        self.restart_with_lease(LEASE);
    }

    /// Sessions are to claim their locks. What people are told.
    pub fn restart_with_lease(&mut self, lease: Duration) -> Vec<String> {
        self.cluster = Cluster::load(&self.store, lease, self.now).unwrap();
        self.begin_life()
    }

    /// The longest lease that is out, as stored.
    pub fn stored_lease(&self) -> Duration {
        let record: keys::LeaseRecord = keys::read(&self.store, &keys::lease_key()).unwrap().unwrap();
        Duration::from_micros(record.longest_us)
    }

    pub fn lock(&mut self, session: SessionId, request: LockRequest) -> Ticket {
        self.question(session, MgrRequest::Lock(request))
    }
}

impl Stage {
    pub fn open_beside(&mut self, pid: u32) -> Ticket {
        self.question(
            NOBODY,
            MgrRequest::OpenSession {
                fs: "fs1".into(),
                process: process(pid),
                admin_addr: String::new(),
                mount: "/m".into(),
                proven_dead: Vec::new(),
                share: true,
            },
        )
    }

    pub fn poll(&mut self, session: SessionId) -> Ticket {
        self.question(session, MgrRequest::WaitRecalls)
    }

    pub fn claim(&mut self, session: SessionId, tokens: Vec<Token>) {
        let reply = self.ask(session, MgrRequest::Claim { tokens, last: true });
        assert_eq!(reply, MgrReply::Done);
    }

    pub fn acquire(&mut self, session: SessionId, ino: u64, need: Need) -> Ticket {
        self.question(session, MgrRequest::Acquire { ino: InodeNo(ino), need })
    }

    pub fn granted(&mut self, ticket: Ticket) -> (Token, bool) {
        match self.replies.remove(&ticket) {
            Some(MgrReply::Token { token, resolve, .. }) => (token, resolve),
            other => panic!("{other:?}"),
        }
    }

    pub fn told(&mut self, ticket: Ticket) -> Vec<Recall> {
        match self.replies.remove(&ticket) {
            Some(MgrReply::Recalls(recalls)) => recalls,
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, session: SessionId, token: Token) {
        self.ask(session, MgrRequest::Release { tokens: vec![token] });
    }

    /// Two clients that share, the first of which claimed `tokens`.
    pub fn two(tokens: Vec<Token>) -> (Stage, SessionId, SessionId) {
        let mut stage = Stage::running(4, "2+2p");
        let ticket = stage.open(1, None);
        let first = stage.opened(ticket).0;
        stage.renew_all();
        let ticket = stage.open_beside(2);
        assert!(!stage.replies.contains_key(&ticket), "the first one holds everything");
        let poll = stage.poll(first);
        assert_eq!(stage.told(poll), [Recall::Share]);
        stage.claim(first, tokens);
        stage.tell(Event::Tick);
        let second = stage.opened(ticket).0;
        stage.renew_all();
        (stage, first, second)
    }

    pub fn fence(&mut self) {
        self.renew_all();
    }
}
