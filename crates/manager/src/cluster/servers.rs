//! Servers: registration, leases, acknowledgement of map versions.
//!
//! A server's session is in the map while its lease runs, unless it is shut out (`members.rs`). Whoever lapses is taken out
//! first and must register again; nothing it says under the old session counts.
//!
//! Each map version is to be in force at all of them within a lease: at a server, that requests are admitted under it, which
//! takes no I/O; at each of its pdisks, that nothing admitted before is under way. A server that renews and does not follow
//! the map loses its session. A pdisk with older I/O, or with any for so long, is set aside: it counts as away, and a fence
//! does not wait for it
//! ([`base::fence`] says why that is safe).

use std::{net::SocketAddr, time::Duration};

use base::{Epoch, NodeId, SessionId};
use libc::EINVAL;
use wire::{
    map::PdiskState,
    mgr::{MgrError, MgrReply, PdiskReport, ProcessIdent},
};

use super::{
    Cluster, Step, Ticket,
    nodes::{addr_texts, check_addrs},
    state::{Disk, Server},
};

/// How far a pdisk's log is goes to the store once for each renewal, and not much more often: less than renewals are apart, which come
/// every 0.96 s.
const STORED_EVERY: Duration = Duration::from_millis(900);

impl Cluster {
    /// The manager itself was away: nobody could renew meanwhile, so everybody has a full lease again. After a short absence
    /// what is left of it is enough, since the absence itself does not count.
    pub(super) fn was_away(&mut self, time: Duration, now: Duration, step: &mut Step) {
        if time * 2 < self.lease {
            return;
        }
        step.notes.push(format!("the manager was away for {time:?}: everybody has a full lease again"));
        self.servers.values_mut().for_each(|server| server.renewed = server.renewed.max(now));
        self.clients.values_mut().for_each(|client| client.renewed = client.renewed.max(now));
        self.versions.again(now);
        self.grace_until = self.grace_until.max(now + self.lease);
    }

    /// Takes servers out whose lease has run out, and those that do not follow the map.
    pub(super) fn lapse_servers(&mut self, now: Duration, step: &mut Step) {
        let lease = self.lease;
        let why = |server: &Server| {
            let behind = self.versions.is_late(server.acked, server.registered, lease, now);
            let reasons =
                [(now > server.renewed + lease, "lost its lease"), (behind, "does not follow the map")];
            reasons.into_iter().find(|(is, _)| *is).map(|(_, why)| why)
        };
        let lapsed: Vec<(NodeId, &str)> =
            self.servers.iter().filter_map(|(&id, server)| Some((id, why(server)?))).collect();
        for (id, why) in lapsed {
            self.end_server(id, why, step);
            self.leave_disks(id);
        }
        let over = self.leases_left.extract_if(.., |_, until| now > *until).map(|(id, _)| id);
        for id in over.collect::<Vec<_>>() {
            if !self.servers.contains_key(&id) {
                self.leave_disks(id);
            }
        }
    }

    fn leave_disks(&mut self, id: NodeId) {
        self.disks.values_mut().filter(|disk| disk.server == Some(id)).for_each(|disk| disk.server = None);
    }

    /// A server is there no more; until when it has its lease.
    pub(super) fn end_server(&mut self, id: NodeId, why: &str, step: &mut Step) -> Option<Duration> {
        let server = self.servers.remove(&id)?;
        self.bump();
        if let Some(node) = self.map.nodes.iter_mut().find(|node| node.id == id) {
            node.session = None;
            step.notes.push(format!("server {} ({id}) {why}", node.name));
        }
        Some(server.renewed + self.lease)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn register(
        &mut self,
        ticket: Ticket,
        node: NodeId,
        process: ProcessIdent,
        addrs: Vec<String>,
        pdisks: Vec<PdiskReport>,
        now: Duration,
        step: &mut Step,
    ) {
        // Of the one that was shut out somebody may still be answered: another in its place asks again.
        if self.leases_left.get(&node).is_some_and(|until| now <= *until) {
            return step.refuse(ticket, MgrError::NoSession);
        }
        let addrs = match self.check_registration(node, &addrs, &pdisks) {
            Ok(addrs) => addrs,
            Err(error) => return step.refuse(ticket, error),
        };
        self.mark_used(node, step);
        self.take_addrs(node, &addrs, step);
        let session = self.next_session();
        self.bump();
        if let Some(entry) = self.map.nodes.iter_mut().find(|entry| entry.id == node) {
            step.notes.push(format!("server {} ({node}) registered, {session}", entry.name));
            entry.session = Some(session);
            entry.addrs = addr_texts(&addrs);
        }
        // Its map counts as in force only when it says so itself.
        self.servers.insert(node, Server { session, registered: now, renewed: now, acked: Epoch(0) });
        for disk in self.disks.values_mut() {
            if disk.server == Some(node) {
                disk.server = None; // until it is named below
            }
        }
        for report in pdisks {
            self.register_pdisk(node, &process, report, now, step);
        }
        let lease_us = self.lease_us();
        let map = Box::new(self.map.clone());
        step.reply(ticket, MgrReply::Registered { session, lease_us, map, config: Vec::new() });
    }

    /// Its addresses, if there is nothing to say against the server.
    fn check_registration(
        &self,
        node: NodeId,
        addrs: &[String],
        pdisks: &[PdiskReport],
    ) -> Result<Vec<SocketAddr>, MgrError> {
        if self.map.node(node).is_none() {
            return Err(MgrError::Config(format!("{node} is not in the cluster")));
        }
        let addrs = check_addrs(addrs)?;
        self.check_unregistered(node, &addrs)?;
        for (at, report) in pdisks.iter().enumerate() {
            let refuse = |reason: String| MgrError::Pdisk { pdisk: report.id, reason };
            let Some(entry) = self.map.pdisk(report.id) else {
                return Err(refuse("not in the cluster".into()));
            };
            if !entry.nodes.contains(&node) {
                return Err(refuse(format!("does not belong to {node}")));
            }
            if pdisks[..at].iter().any(|other| other.id == report.id) {
                return Err(refuse("named twice".into()));
            }
            // The record has moved since the server asked: a report of the process before was still on its way.
            if let (Some(proved), Some(disk)) = (report.proved, self.disks.get(&report.id))
                && proved.position != disk.record.log.position
            {
                return Err(MgrError::Superseded);
            }
        }
        Ok(addrs)
    }

    pub(super) fn renew(
        &mut self,
        ticket: Ticket,
        session: SessionId,
        epoch: Epoch,
        pdisks: Vec<PdiskReport>,
        now: Duration,
        step: &mut Step,
    ) {
        if epoch > self.map.epoch {
            return step.refuse(ticket, MgrError::Errno(EINVAL));
        }
        let newest =
            if let Some((&node, server)) = self.servers.iter_mut().find(|(_, s)| s.session == session) {
                server.renewed = server.renewed.max(now);
                server.acked = server.acked.max(epoch);
                for report in pdisks {
                    self.pdisk_report(node, report, now, step);
                }
                self.map.epoch
            } else if let Some(client) = self.clients.get_mut(&session) {
                client.renewed = client.renewed.max(now);
                self.for_clients
            } else {
                return step.refuse(ticket, MgrError::NoSession);
            };
        step.reply(ticket, MgrReply::Renewed { lease_us: self.lease_us(), epoch: newest });
    }

    /// Requests are admitted at a server under a map version.
    pub(super) fn acknowledge(&mut self, session: SessionId, epoch: Epoch) {
        if epoch <= self.map.epoch
            && let Some(server) = self.servers.values_mut().find(|server| server.session == session)
        {
            server.acked = server.acked.max(epoch);
        }
    }

    /// Whether a map version is in force at every server that still has a lease, but for pdisks that were set aside.
    pub(super) fn in_force(&self, epoch: Epoch) -> bool {
        debug_assert!(
            self.servers.values().map(|server| server.acked).all(|acked| acked <= self.map.epoch),
            "a server has a version that there is not"
        );
        let waited_for = |disk: &&Disk| disk.server.is_some() && disk.set_aside.is_none();
        self.servers.values().all(|server| server.acked >= epoch)
            && self.disks.values().filter(waited_for).all(|disk| disk.acked >= epoch)
    }

    /// Sets pdisks aside that hold newer map versions up for too long, and takes back those that do not any more.
    pub(super) fn settle_set_aside(&mut self, now: Duration, step: &mut Step) {
        let (lease, epoch) = (self.lease, self.map.epoch);
        for (id, disk) in self.disks.iter_mut().filter(|(_, disk)| disk.server.is_some()) {
            let behind = self.versions.is_late(disk.acked, disk.registered, lease, now);
            let late = behind || disk.oldest >= lease;
            match disk.set_aside {
                Some(since) if disk.acked >= since && !late => {
                    disk.set_aside = None;
                    step.notes.push(format!("{} has ended its old I/O", self.map.pdisk_called(*id)));
                }
                None if late => {
                    disk.set_aside = Some(epoch);
                    let name = self.map.pdisk_called(*id);
                    step.notes.push(format!("{name} has had I/O under way for {lease:?}: it is set aside"));
                }
                _ => {}
            }
        }
        let servers = self.servers.values().map(|server| server.acked);
        let disks = self.disks.values().filter(|disk| disk.server.is_some()).map(|disk| disk.acked);
        if let Some(everywhere) = servers.chain(disks).min() {
            self.versions.settled(everywhere);
        }
    }

    fn pdisk_report(&mut self, node: NodeId, report: PdiskReport, now: Duration, step: &mut Step) {
        let Some(disk) = self.disks.get_mut(&report.id).filter(|disk| disk.server == Some(node)) else {
            return; // not registered by this server: it does not count
        };
        let moved = report.log.position > disk.record.log.position;
        let used = report.free != disk.record.free || report.capacity != disk.record.capacity;
        if moved {
            disk.record.log = report.log;
        }
        disk.record.capacity = report.capacity;
        disk.record.free = report.free;
        disk.reported = Some(now);
        disk.acked = disk.acked.max(report.in_force.min(self.map.epoch));
        disk.oldest = Duration::from_micros(report.oldest_us);
        disk.failed |= report.failed;
        disk.moved = report.moved;
        disk.waits = report.waits;
        disk.client_us = report.client_us;
        disk.changed |= moved || used;
        if disk.changed && now >= disk.stored + STORED_EVERY {
            disk.stored = now;
            disk.changed = false;
            step.put(crate::keys::pdisk_key(report.id), &disk.record);
        }
        let Some(entry) = self.map.pdisk(report.id) else { return };
        if entry.state == PdiskState::Returning && report.caught_up.is_some_and(|e| e >= entry.changed) {
            self.set_state(report.id, PdiskState::Ok, "has caught up", step);
        }
        self.filled(report.id, &report.filled);
    }
}
