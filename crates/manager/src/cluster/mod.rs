//! The cluster: who serves, whose sessions live, which pdisks count; the only author of the map.
//!
//! A plain state machine: [`Cluster::handle`] takes an event and the time, changes its state and
//! returns a [`Step`]: what to store, whom to answer, what to tell. The driver stores first, publishes
//! the map then, and answers last, before it feeds the next event; so nobody ever sees state that is
//! not durable. Time only grows and starts anywhere; after a restart everybody has a full lease, the longest that may be out.
//! What comes first in each life of the manager is [`Cluster::begin_life`].
//!
//! Time here is the time that the manager was present ([`base::presence`]): it stands while the process is stopped, the
//! machine asleep, the store stuck. So nobody's silence is judged by a time in which the manager itself heard nothing; and after
//! a longer absence ([`Event::Away`]) everybody has a full lease. What was fenced stays fenced: it is in the map.
//! A lease given counts here from a later moment, and by a slower clock, than at whom it was given to: so it has ended there
//! when it has ended here. The other way round nothing is concluded from a lease that still runs here: servers and clients
//! look at their own. (With several managers one of them would need a lease itself, to be the only one who judges: that one it
//! must measure by `boot_time`, as servers and clients do theirs, and look at when an answer leaves.)

#[cfg(test)]
mod absence_tests;
mod clients;
mod holders;
mod lives;
#[cfg(test)]
mod lives_tests;
mod locks;
#[cfg(test)]
mod locks_tests;
mod moves;
#[cfg(test)]
mod moves_tests;
mod pdisks;
mod pools;
#[cfg(test)]
mod pools_tests;
mod servers;
mod space;
#[cfg(test)]
mod tests;
mod tokens;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base::{
    Epoch, FsId, Grant, InodeNo, NodeId, PdiskId, PoolId, SessionId, fence::Versions, tunables::Tunables,
};
use libc::{EINVAL, ENOENT};
use wire::{
    lock::LockRequest,
    map::{ClusterMap, PdiskEntry},
    mgr::{
        ClientReport, ClusterReport, MgrError, MgrReply, PdiskReport, PdiskUse, PdiskWish, ProcessIdent,
        Timestamp,
    },
    token::{Need, Token},
};

pub use self::{
    holders::{Holders, UnderWay},
    pools::{NewPool, Unmake},
    space::data_strips,
};
pub(crate) use self::{lives::LEASE_MAX, moves::needed};
use self::{lives::LongestLease, moves::Moving, space::Space, tokens::Grants};
pub use crate::ticket::Ticket;
use crate::{
    keys::{self, CounterRecord, EndingRecord, MapRecord, PdiskRecord, ReadError, SessionRecord},
    locks::Locks,
    store::{Read, Record, StoreError, open_record, prefix_end, seal_record},
    tokens::Tokens,
};

/// How long a lease lasts unless configured.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(10);

/// Something happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The manager itself was away for so long.
    Away(Duration),
    /// Time has passed.
    Tick,
    /// A server asks what is on record of its pdisks' logs.
    LogMarks {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        pdisks: Vec<PdiskId>,
    },
    /// A server starts.
    Register {
        /// Answer to.
        ticket: Ticket,
        /// Which node.
        node: NodeId,
        /// Its process.
        process: ProcessIdent,
        /// Where it listens.
        addrs: Vec<String>,
        /// What it serves.
        pdisks: Vec<PdiskReport>,
    },
    /// A lease is renewed, by a server or a client.
    Renew {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// The map version in force there.
        epoch: Epoch,
        /// Servers: their pdisks.
        pdisks: Vec<PdiskReport>,
    },
    /// A map version is in force somewhere.
    Have {
        /// At whom.
        session: SessionId,
        /// Which.
        epoch: Epoch,
    },
    /// Somebody waits to know who has what open.
    Unclear {
        /// In which file system.
        fs: FsId,
    },
    /// A client mounts.
    Open {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// File system.
        fs: String,
        /// Its process.
        process: ProcessIdent,
        /// Where it answers admin requests.
        admin_addr: String,
        /// Mount point.
        mount: String,
        /// Sessions known to be dead.
        proven_dead: Vec<SessionId>,
        /// It knows who else is there.
        share: bool,
    },
    /// A client has resolved what unclean sessions left.
    ResolveDone {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// A client ends cleanly.
    Close {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
    },
    /// A client wants room.
    Reserve {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// In which pool.
        pool: PoolId,
        /// Raw bytes wanted.
        bytes: u64,
        /// Raw bytes it still holds.
        held: u64,
    },
    /// A pdisk did not answer a client.
    Silent {
        /// Answer to.
        ticket: Ticket,
        /// Whom.
        session: SessionId,
        /// Which.
        pdisk: PdiskId,
    },
    /// Capacity of a file system.
    StatFs {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        fs: FsId,
    },
    /// The listing.
    Report {
        /// Answer to.
        ticket: Ticket,
    },
    /// The lease duration was changed.
    SetLease(Duration),
    /// A client wants a token.
    Acquire {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
        /// What for.
        need: Need,
    },
    /// A client changes an inode or a name in it: answered when no other session keeps anything of it.
    Change {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
    },
    /// A client gives tokens up.
    Release {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// What is left of them.
        tokens: Vec<Token>,
    },
    /// A client asks what is wanted of it.
    WaitRecalls {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
    },
    /// A client says what it holds.
    Claim {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// What.
        tokens: Vec<Token>,
        /// All is said.
        last: bool,
    },
    /// A client has resolved an inode.
    Resolved {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Which.
        ino: InodeNo,
    },
    /// A client has committed the times of an inode.
    Published {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// Which inode.
        ino: InodeNo,
        /// The question's number.
        number: Grant,
    },
    /// A client has resolved everything.
    ResolvePassDone {
        /// Answer to.
        ticket: Ticket,
        /// Whose.
        session: SessionId,
        /// The pass.
        pass: u64,
    },
    /// The listing of tokens.
    ListTokens {
        /// Answer to.
        ticket: Ticket,
        /// Of which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// A client wants something about programs' locks.
    Lock {
        /// Answer to.
        ticket: Ticket,
        /// When it stops waiting.
        expires: Duration,
        /// Whose.
        session: SessionId,
        /// What.
        request: LockRequest,
    },
    /// The listing of locks.
    ListLocks {
        /// Answer to.
        ticket: Ticket,
        /// Of which file system.
        fs: FsId,
        /// Inodes above this one.
        after: InodeNo,
    },
    /// A client is to go.
    Detach {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        session: SessionId,
    },
    /// How long a pdisk may be missing before its strips are rebuilt elsewhere was changed.
    SetRebuildDelay(Duration),
    /// An administrator wants something of a pdisk.
    Wish {
        /// Answer to.
        ticket: Ticket,
        /// Which.
        pdisk: PdiskId,
        /// What.
        wish: PdiskWish,
    },
    /// A new pdisk.
    Add {
        /// Answer to.
        ticket: Ticket,
        /// What is known of it.
        entry: Box<PdiskEntry>,
        /// The pools that are to use it.
        pools: Vec<PoolId>,
    },
    /// A new pool.
    MakePool {
        /// Answer to.
        ticket: Ticket,
        /// What it is to be.
        wish: NewPool,
    },
    /// A new file system.
    MakeFs {
        /// Answer to.
        ticket: Ticket,
        /// Its name.
        name: String,
        /// The pool of its root.
        pool: PoolId,
        /// When its root is made.
        now: Timestamp,
    },
    /// A pool or file system goes.
    Unmake {
        /// Answer to.
        ticket: Ticket,
        /// Which, and how far.
        what: Unmake,
    },
}

/// Something to store.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreOp {
    /// Set a key.
    Put(Vec<u8>, Vec<u8>),
    /// Remove a key.
    Delete(Vec<u8>),
    /// A client session is over: its record and replies go.
    EndSession(SessionId),
}

/// Sessions with their tokens.
pub type HolderList = Vec<(SessionId, Token)>;

/// What follows from an event.
#[derive(Debug, Default)]
pub struct Step {
    /// First: store this, in one transaction.
    pub store: Vec<StoreOp>,
    /// Then: the new map, if it changed.
    pub map: Option<Arc<ClusterMap>>,
    /// Then: who holds which tokens now, where that changed.
    pub holders: Vec<(FsId, InodeNo, HolderList)>,
    /// Then: file systems of which that is not known in full, or is known again.
    pub unclear: Vec<(FsId, bool)>,
    /// Then: sessions that gave up the last right on an inode.
    pub left: Vec<(SessionId, FsId, InodeNo)>,
    /// Then: the answers.
    pub replies: Vec<(Ticket, MgrReply)>,
    /// For people.
    pub notes: Vec<String>,
    /// Orphans of ended sessions may be removed now.
    pub collect: bool,
}

impl Step {
    fn put<T: Record>(&mut self, key: Vec<u8>, record: &T) {
        let value = seal_record(&key, record);
        self.store.push(StoreOp::Put(key, value));
    }
    fn reply(&mut self, ticket: Ticket, reply: MgrReply) {
        self.replies.push((ticket, reply));
    }
    fn answer(&mut self, ticket: Ticket, outcome: Result<(), MgrError>) {
        self.reply(ticket, outcome.map_or_else(MgrReply::Error, |()| MgrReply::Done));
    }
    fn refuse(&mut self, ticket: Ticket, error: MgrError) {
        self.reply(ticket, MgrReply::Error(error));
    }
}

/// A server under a lease.
#[derive(Debug, Clone)]
struct Server {
    session: SessionId,
    registered: Duration,
    renewed: Duration,
    /// Newest map version known to admit requests there.
    acked: Epoch,
}

/// A pdisk as its server tells.
#[derive(Debug, Clone, Default)]
struct Disk {
    record: PdiskRecord,
    /// When the record was stored last.
    stored: Duration,
    /// It has changed since.
    changed: bool,
    /// Last report.
    reported: Option<Duration>,
    /// The node that serves it now.
    server: Option<NodeId>,
    /// Since when.
    registered: Duration,
    /// Newest map version known to be in force there.
    acked: Epoch,
    /// How long its oldest I/O had been under way when it was reported.
    oldest: Duration,
    /// It has had old I/O under way for too long, and counts as away until this version is in force on it.
    stuck: Option<Epoch>,
    /// Its server said that it failed.
    failed: bool,
    /// First and last report of silence, while they come.
    silent: Option<(Duration, Duration)>,
    /// Silent for too long: it does not return before this.
    held_off: Option<Duration>,
    /// Since when it is missing, as far as this manager knows.
    missing_since: Option<Duration>,
    /// Bytes that its server has made anew on it.
    moved: u64,
    /// Why a strip of it could not be made last.
    waits: String,
    /// Mean time of client requests at its server.
    client_us: u64,
}

/// A client session.
#[derive(Debug, Clone)]
struct Client {
    record: SessionRecord,
    renewed: Duration,
}

/// A mount that waits for the fence of its predecessor.
#[derive(Debug, Clone)]
struct PendingOpen {
    ticket: Ticket,
    expires: Duration,
    fs: FsId,
    record: SessionRecord,
}

/// The state machine.
pub struct Cluster {
    map: ClusterMap,
    published: Epoch,
    /// Versions that are not in force everywhere.
    versions: Versions,
    counters: CounterRecord,
    lease: Duration,
    longest: LongestLease,
    /// Nobody is declared gone before this: after a start everybody has a full lease.
    grace_until: Duration,
    servers: BTreeMap<NodeId, Server>,
    disks: BTreeMap<PdiskId, Disk>,
    clients: BTreeMap<SessionId, Client>,
    endings: BTreeMap<FsId, EndingRecord>,
    opens: Vec<PendingOpen>,
    space: Space,
    grants: Grants,
    tokens: BTreeMap<FsId, Tokens>,
    locks: BTreeMap<FsId, Locks>,
    /// A pdisk that is missing for this long is rebuilt elsewhere.
    rebuild_delay: Duration,
    /// Tokens that one session may hold.
    tokens_max: u64,
    moving: BTreeMap<PoolId, Moving>,
    /// The last file system that was removed.
    removed_fs: FsId,
}

impl Cluster {
    /// From what is stored.
    pub fn load(from: &dyn Read, lease: Duration, now: Duration) -> Result<Cluster, ReadError> {
        let map = load_map(from)?;
        let counters: CounterRecord = keys::read(from, &keys::counter_key())?.unwrap_or_default();
        let longest = LongestLease::load(from, lease, now)?;
        // Whom this takes as renewed now has the longest lease that it may have been given.
        let renewed = now + longest.beyond(lease);
        let mut cluster = Cluster {
            published: map.epoch,
            versions: Versions::default(),
            grants: Grants::new(counters.grant),
            tokens: BTreeMap::new(),
            locks: BTreeMap::new(),
            counters,
            lease,
            grace_until: renewed + lease,
            longest,
            servers: BTreeMap::new(),
            disks: BTreeMap::new(),
            clients: BTreeMap::new(),
            endings: BTreeMap::new(),
            opens: Vec::new(),
            space: Space::default(),
            rebuild_delay: Tunables::default().missing_rebuild_delay(),
            tokens_max: tokens::tokens_max(Tunables::default().max_files_to_cache()),
            moving: BTreeMap::new(),
            removed_fs: last_removed_fs(from)?,
            map,
        };
        for node in &cluster.map.nodes {
            if let Some(session) = node.session {
                let server = Server { session, registered: now, renewed, acked: Epoch(0) };
                cluster.servers.insert(node.id, server);
            }
        }
        for pdisk in &cluster.map.pdisks {
            let record = keys::read_pdisk(from, pdisk.id)?;
            let server = pdisk.nodes.iter().find(|node| cluster.servers.contains_key(node)).copied();
            let disk = Disk { record, server, stored: now, registered: now, ..Disk::default() };
            cluster.disks.insert(pdisk.id, disk);
        }
        cluster.versions.publish(cluster.map.epoch, now);
        for entry in &cluster.map.clients {
            if let Some(record) = keys::read(from, &keys::session_key(entry.session))? {
                cluster.clients.insert(entry.session, Client { record, renewed });
            }
        }
        for fs in &cluster.map.filesystems {
            let ending: EndingRecord = keys::read(from, &keys::ending_key(fs.id))?.unwrap_or_default();
            // What clients hold they will claim; until then each may hold anything.
            let mut tokens = Tokens::new(ending.unresolved);
            let here = cluster.clients.iter().filter(|(_, client)| client.record.fs == fs.id);
            here.for_each(|(&session, _)| tokens.begin(session, true));
            cluster.tokens.insert(fs.id, tokens);
            cluster.endings.insert(fs.id, ending);
        }
        Ok(cluster)
    }

    /// The map now.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// A pdisk that is missing for this long is rebuilt elsewhere.
    pub fn set_rebuild_delay(&mut self, delay: Duration) {
        self.rebuild_delay = delay;
    }

    /// Takes an event; `now` never goes back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Step {
        let mut step = Step::default();
        if let Event::Away(time) = event {
            self.was_away(time, now, &mut step);
        }
        self.lapse_servers(now, &mut step);
        match event {
            Event::Away(_) => {}
            Event::Tick => {
                self.lapse_clients(now, &mut step);
                self.settle_lease(now, &mut step);
            }
            Event::LogMarks { ticket, pdisks } => {
                step.reply(ticket, MgrReply::LogMarks(self.log_marks(&pdisks)));
            }
            Event::Register { ticket, node, process, addrs, pdisks } => {
                self.register(ticket, node, process, addrs, pdisks, now, &mut step);
            }
            Event::Renew { ticket, session, epoch, pdisks } => {
                self.renew(ticket, session, epoch, pdisks, now, &mut step);
            }
            Event::Have { session, epoch } => self.acknowledge(session, epoch),
            Event::Unclear { fs } if self.unclear().contains(&fs) => self.share_tokens(fs, now, &mut step),
            Event::Unclear { .. } => {}
            Event::Open { ticket, expires, fs, process, admin_addr, mount, proven_dead, share } => {
                let record = SessionRecord { process, admin_addr, mount, ..SessionRecord::default() };
                self.open(ticket, expires, &fs, record, &proven_dead, share, now, &mut step);
            }
            Event::ResolveDone { ticket, session } => self.resolve_done(ticket, session, &mut step),
            Event::Close { ticket, session } => self.close(ticket, session, now, &mut step),
            Event::Reserve { ticket, session, pool, bytes, held } => {
                match self.reserve(session, pool, bytes, held, now) {
                    Ok(bytes) => step.reply(ticket, MgrReply::Reserved { bytes }),
                    Err(error) => step.refuse(ticket, error),
                }
            }
            Event::Silent { ticket, session, pdisk } => {
                if self.clients.contains_key(&session) {
                    self.silent(pdisk, now, &mut step);
                    step.reply(ticket, MgrReply::Done);
                } else {
                    step.refuse(ticket, MgrError::NoSession);
                }
            }
            Event::StatFs { ticket, fs } => match self.statfs(fs) {
                Some(reply) => step.reply(ticket, reply),
                None => step.refuse(ticket, MgrError::Errno(ENOENT)),
            },
            Event::Report { ticket } => {
                let report = self.report(now);
                step.reply(ticket, MgrReply::Cluster(Box::new(report)));
            }
            Event::SetLease(lease) => self.set_lease(lease, now, &mut step),
            Event::Detach { ticket, session } => self.detach(ticket, session, &mut step),
            Event::SetRebuildDelay(delay) => self.set_rebuild_delay(delay),
            Event::Wish { ticket, pdisk, wish } => {
                let outcome = self.wish(pdisk, wish, &mut step);
                step.answer(ticket, outcome);
            }
            Event::Add { ticket, entry, pools } => {
                let outcome = self.add_pdisk(*entry, &pools, &mut step);
                step.answer(ticket, outcome);
            }
            Event::MakePool { ticket, wish } => {
                let outcome = self.make_pool(wish, now, &mut step);
                step.answer(ticket, outcome);
            }
            Event::MakeFs { ticket, name, pool, now } => {
                let outcome = self.make_fs(name, pool, now, &mut step);
                step.answer(ticket, outcome);
            }
            Event::Unmake { ticket, what } => {
                let outcome = self.unmake(what, &mut step);
                step.answer(ticket, outcome);
            }
            Event::Lock { ticket, expires, session, request } => {
                self.lock_event(ticket, expires, session, request, now, &mut step);
                self.publish(now, &mut step);
                return step;
            }
            Event::ListLocks { ticket, fs, after } => self.list_locks(ticket, fs, after, now, &mut step),
            event => {
                self.token_event(event, now, &mut step);
                self.publish(now, &mut step);
                return step;
            }
        }
        self.settle_pdisks(now, &mut step);
        self.settle_moves(now, &mut step);
        self.settle_tokens(now, &mut step);
        self.settle_locks(now, &mut step);
        self.settle_opens(now, &mut step);
        self.publish(now, &mut step);
        step
    }

    /// The next map version: everything changed until the event's end is part of it or a later one.
    fn bump(&mut self) -> Epoch {
        self.map.epoch.0 += 1;
        self.map.epoch
    }

    /// Stores and publishes the map if this event changed it; fills it into answers that carry it.
    fn publish(&mut self, now: Duration, step: &mut Step) {
        if self.map.epoch == self.published {
            return;
        }
        self.published = self.map.epoch;
        self.versions.publish(self.published, now);
        step.put(keys::map_key(), &map_record(&self.map));
        step.put(keys::counter_key(), &self.counters);
        let map = Arc::new(self.map.clone());
        for (_, reply) in &mut step.replies {
            match reply {
                MgrReply::Registered { map: told, .. } | MgrReply::SessionOpen { map: told, .. } => {
                    **told = self.map.clone();
                }
                _ => {}
            }
        }
        step.map = Some(map);
    }

    fn next_session(&mut self) -> SessionId {
        self.counters.session.0 += 1;
        self.counters.session
    }

    fn lease_us(&self) -> u64 {
        self.lease.as_micros() as u64
    }

    fn report(&self, now: Duration) -> ClusterReport {
        let age = |at: Duration| now.saturating_sub(at).as_millis() as u64;
        let pdisks = self.map.pdisks.iter().map(|pdisk| {
            let disk = self.disks.get(&pdisk.id);
            PdiskUse {
                id: pdisk.id,
                state: pdisk.state,
                capacity: disk.map(|d| d.record.capacity).unwrap_or_default(),
                free: disk.map(|d| d.record.free).unwrap_or_default(),
                age_ms: disk.and_then(|d| d.reported).map(age),
                served: disk.is_some_and(|d| d.server.is_some()),
                moved: disk.map(|d| d.moved).unwrap_or_default(),
                waits: disk.map(|d| d.waits.clone()).unwrap_or_default(),
                client_us: disk.map(|d| d.client_us).unwrap_or_default(),
            }
        });
        let clients = self.clients.iter().map(|(&session, client)| {
            let tokens = self.tokens.get(&client.record.fs);
            let held = tokens.map(|tokens| tokens.member(session)).unwrap_or_default();
            ClientReport {
                session,
                process: client.record.process.clone(),
                mount: client.record.mount.clone(),
                admin_addr: client.record.admin_addr.clone(),
                fs: client.record.fs,
                age_ms: age(client.renewed),
                whole: held.whole,
                tokens: held.tokens,
                recalls: (held.recalls.0, held.recalls.1.map(age).unwrap_or_default()),
            }
        });
        ClusterReport {
            map: self.map.clone(),
            pdisks: pdisks.collect(),
            clients: clients.collect(),
            moving: self.report_moves(now),
            ..ClusterReport::default()
        }
    }
}

/// The map as it is stored, without its pools.
pub fn map_record(map: &ClusterMap) -> MapRecord {
    MapRecord {
        epoch: map.epoch,
        cluster: map.cluster,
        name: map.name.clone(),
        nodes: map.nodes.clone(),
        pdisks: map.pdisks.clone(),
        filesystems: map.filesystems.clone(),
        clients: map.clients.clone(),
    }
}

/// The stored map with its pools.
pub fn load_map(from: &dyn Read) -> Result<ClusterMap, ReadError> {
    let head: MapRecord = keys::read(from, &keys::map_key())?.unwrap_or_default();
    let (mut pools, mut bad) = (Vec::new(), None);
    from.scan(b"l", &prefix_end(b"l"), &mut |key, value| {
        match open_record(key, value) {
            Ok(pool) => pools.push(pool),
            Err(error) => bad = Some(error),
        }
        std::ops::ControlFlow::Continue(())
    })?;
    match bad {
        Some(error) => Err(error.into()),
        None => Ok(ClusterMap {
            epoch: head.epoch,
            cluster: head.cluster,
            name: head.name,
            nodes: head.nodes,
            pdisks: head.pdisks,
            pools,
            filesystems: head.filesystems,
            clients: head.clients,
        }),
    }
}

/// The highest number of a file system that was removed.
pub fn last_removed_fs(from: &dyn Read) -> Result<FsId, StoreError> {
    let mut last = FsId(0);
    from.scan(b"z", &prefix_end(b"z"), &mut |key, _| {
        last = last.max(FsId(key.last_chunk::<4>().copied().map(u32::from_be_bytes).unwrap_or_default()));
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(last)
}

/// Refusal of a request whose arguments contradict themselves.
fn invalid() -> MgrError {
    MgrError::Errno(EINVAL)
}
