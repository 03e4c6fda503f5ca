//! What the cluster knows, and what a manager that starts makes of what is stored.

use std::{collections::BTreeMap, time::Duration};

use base::{Epoch, FsId, MemberId, NodeId, PdiskId, PoolId, SessionId, fence::Versions, tunables::Tunables};
use wire::map::ClusterMap;

use super::{
    Ticket,
    builds::Builds,
    grants::Grants,
    longest_lease::LongestLease,
    moving::Moving,
    space::Space,
    stored::{GivenNodes, given_nodes, invitations, last_removed_fs, last_told_pdisk, load_map, members},
};
use crate::{
    keys::{
        self, CounterRecord, EndingRecord, InvitationRecord, MemberRecord, NumbersRecord, PdiskRecord,
        ReadError, SessionRecord,
    },
    locks::Locks,
    losses::{self, Losses},
    store::Read,
    tokens::Tokens,
};

/// Tokens that one session may hold: so many for each file that a client may keep, and at least. Clients keep fewer
/// (open files are bounded there too); one that does not is refused more, with ENFILE.
const TOKENS_HELD: (u64, u64) = (32, 1 << 20);

/// A server under a lease.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub session: SessionId,
    pub registered: Duration,
    pub renewed: Duration,
    /// Newest map version known to admit requests there.
    pub acked: Epoch,
}

/// A pdisk as its server tells.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    pub record: PdiskRecord,
    /// When the record was stored last.
    pub stored: Duration,
    /// It has changed since.
    pub changed: bool,
    /// Last report.
    pub reported: Option<Duration>,
    /// The node that serves it now.
    pub server: Option<NodeId>,
    /// Since when.
    pub registered: Duration,
    /// Newest map version known to be in force there.
    pub acked: Epoch,
    /// How long its oldest I/O had been under way when it was reported.
    pub oldest: Duration,
    /// It has had old I/O under way for too long, and counts as away until this version is in force on it.
    pub set_aside: Option<Epoch>,
    /// Its server said that it failed.
    pub failed: bool,
    /// First and last report of silence, while they come.
    pub silent: Option<(Duration, Duration)>,
    /// Silent for too long: it does not return before this.
    pub held_off: Option<Duration>,
    /// Since when it is missing, as far as this manager knows.
    pub missing_since: Option<Duration>,
    /// Bytes that its server has made anew on it.
    pub moved: u64,
    /// Why a strip of it could not be made last.
    pub waits: String,
    /// Mean time of client requests at its server.
    pub client_us: u64,
}

impl Disk {
    /// It does not answer although its server does, or has had old I/O under way for too long.
    pub fn is_held_off(&self) -> bool {
        self.held_off.is_some() || self.set_aside.is_some()
    }
}

/// A client session.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub record: SessionRecord,
    pub renewed: Duration,
}

/// A mount that waits for the fence of its predecessor.
#[derive(Debug, Clone)]
pub(super) struct PendingOpen {
    pub ticket: Ticket,
    pub expires: Duration,
    pub fs: FsId,
    pub member: MemberId,
    pub record: SessionRecord,
}

/// The state machine.
pub struct Cluster {
    pub(super) map: ClusterMap,
    pub(super) published: Epoch,
    /// The last version in which more changed than who has a client's session.
    pub(super) for_clients: Epoch,
    /// Versions that are not in force everywhere.
    pub(super) versions: Versions,
    pub(super) counters: CounterRecord,
    pub(super) lease: Duration,
    pub(super) longest: LongestLease,
    /// Nobody is declared gone before this: after a start everybody has a full lease.
    pub(super) grace_until: Duration,
    pub(super) servers: BTreeMap<NodeId, Server>,
    /// Servers that were shut out, until when each has its lease.
    pub(super) leases_left: BTreeMap<NodeId, Duration>,
    pub(super) disks: BTreeMap<PdiskId, Disk>,
    pub(super) clients: BTreeMap<SessionId, Client>,
    pub(super) endings: BTreeMap<FsId, EndingRecord>,
    pub(super) opens: Vec<PendingOpen>,
    pub(super) space: Space,
    pub(super) grants: Grants,
    pub(super) tokens: BTreeMap<FsId, Tokens>,
    pub(super) locks: BTreeMap<FsId, Locks>,
    /// A pdisk that is missing for this long is rebuilt elsewhere.
    pub(super) rebuild_delay: Duration,
    /// After it an operation of a client that does not move on has ended.
    pub(super) operation_deadline: Duration,
    /// When somebody may have waited last for a pdisk that is out of reach.
    pub(super) out_of_reach: Option<Duration>,
    /// Tokens that one session may hold.
    pub(super) tokens_max: u64,
    pub(super) moving: BTreeMap<PoolId, Moving>,
    /// Groups that have lost blocks for good.
    pub(super) losses: Losses,
    /// Pdisks that are given up, as far as that is noted in `losses`.
    pub(super) given_up: Vec<(PdiskId, Epoch)>,
    /// The last file system that was removed.
    pub(super) removed_fs: FsId,
    /// The last pdisk that has told of itself or was removed.
    pub(super) told_pdisk: PdiskId,
    /// Nodes that were added or removed.
    pub(super) given: GivenNodes,
    /// Machines that are invited to join, by their tokens' numbers.
    pub(super) invited: BTreeMap<u64, InvitationRecord>,
    /// Machines that have joined.
    pub(super) members: BTreeMap<MemberId, MemberRecord>,
    /// Who runs what.
    pub(super) builds: Builds,
    /// When the last event was.
    pub(super) now: Duration,
}

/// Tokens that one session may hold where its client may keep so many files.
fn tokens_max(files_to_cache_max: u32) -> u64 {
    let (each, least) = TOKENS_HELD;
    (u64::from(files_to_cache_max) * each).max(least)
}

impl Cluster {
    /// From what is stored.
    pub fn load(from: &dyn Read, lease: Duration, now: Duration) -> Result<Cluster, ReadError> {
        let (mut map, builds) = (load_map(from)?, Builds::load(from)?);
        map.level = builds.level();
        let counters: CounterRecord = keys::read(from, &keys::counter_key())?.unwrap_or_default();
        let longest = LongestLease::load(from, lease, now)?;
        // Whom this takes as renewed now has the longest lease that it may have been given.
        let renewed = now + longest.beyond(lease);
        let mut cluster = Cluster {
            published: map.epoch,
            for_clients: map.epoch,
            versions: Versions::default(),
            grants: Grants::new(counters.grant),
            tokens: BTreeMap::new(),
            locks: BTreeMap::new(),
            counters,
            lease,
            grace_until: renewed + lease,
            longest,
            servers: BTreeMap::new(),
            leases_left: BTreeMap::new(),
            disks: BTreeMap::new(),
            clients: BTreeMap::new(),
            endings: BTreeMap::new(),
            opens: Vec::new(),
            space: Space::default(),
            rebuild_delay: Tunables::default().missing_rebuild_delay(),
            operation_deadline: Tunables::default().operation_deadline(),
            out_of_reach: None,
            tokens_max: tokens_max(Tunables::default().max_files_to_cache()),
            moving: BTreeMap::new(),
            losses: losses::load(from)?,
            given_up: Vec::new(),
            removed_fs: last_removed_fs(from)?,
            told_pdisk: last_told_pdisk(from)?,
            given: given_nodes(from)?,
            invited: invitations(from)?,
            members: members(from)?,
            builds,
            now,
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
            let guest = |session| cluster.map.client(session).is_some_and(|c| cluster.map.is_guest(c.member));
            for (&session, _) in here {
                tokens.begin(session, true, guest(session));
                if keys::read::<NumbersRecord>(from, &keys::numbers_key(session))?.is_some() {
                    tokens.may_be_ahead(session);
                }
            }
            cluster.tokens.insert(fs.id, tokens);
            cluster.endings.insert(fs.id, ending);
        }
        Ok(cluster)
    }

    /// The map now.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// The map as clients get it: who else has a session is nothing to them, and that each hears of each would be messages and
    /// bytes by the square of their number.
    pub fn client_map(&self) -> ClusterMap {
        ClusterMap { clients: Vec::new(), ..self.map.clone() }
    }

    /// A pdisk that is missing for this long is rebuilt elsewhere.
    pub fn set_rebuild_delay(&mut self, delay: Duration) {
        self.rebuild_delay = delay;
    }

    /// A client may keep so many files.
    pub fn set_files_to_cache_max(&mut self, files: u32) {
        self.tokens_max = tokens_max(files);
    }

    /// The next map version: everything changed until the event's end is part of it or a later one.
    pub(super) fn bump(&mut self) -> Epoch {
        self.for_clients = self.bump_for_servers();
        self.for_clients
    }

    /// The next map version, if nothing else changes than who has a client's session.
    pub(super) fn bump_for_servers(&mut self) -> Epoch {
        self.map.epoch.0 += 1;
        self.map.epoch
    }

    pub(super) fn next_session(&mut self) -> SessionId {
        self.counters.session.0 += 1;
        self.counters.session
    }

    pub(super) fn lease_us(&self) -> u64 {
        self.lease.as_micros() as u64
    }
}
