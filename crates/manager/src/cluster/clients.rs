//! Client sessions: one at a time for each file system (tokens will allow several).
//!
//! A session that ends uncleanly leaves the map first; its successor begins only when that map is in
//! force at every server that still has a lease (the fence). What has to be fenced is stored, so that a
//! restart of the manager forgets none of it.

use std::time::Duration;

use base::{FsId, SessionId};
use libc::ENOENT;
use wire::{
    map::ClientEntry,
    mgr::{MgrError, MgrReply, ProcessIdent},
};

use super::{Client, Cluster, PendingOpen, Step, StoreOp, Ticket};
use crate::keys::{SessionRecord, ending_key, session_key};

/// Mounts that may wait at once; more are told to try again.
const OPENS_MAX: usize = 64;

impl Cluster {
    fn holder(&self, fs: FsId) -> Option<(SessionId, &Client)> {
        self.clients.iter().find(|(_, client)| client.record.fs == fs).map(|(&id, client)| (id, client))
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn open(
        &mut self,
        ticket: Ticket,
        expires: Duration,
        fs: &str,
        mut record: SessionRecord,
        proven_dead: Option<SessionId>,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(fs) = self.map.fs_by_name(fs).map(|fs| fs.id) else {
            return step.refuse(ticket, MgrError::Errno(ENOENT));
        };
        if self.opens.len() >= OPENS_MAX {
            return step.refuse(ticket, MgrError::Errno(libc::EAGAIN));
        }
        if let Some((holder, client)) = self.holder(fs) {
            let lapsed = now > client.renewed + self.lease;
            // The holder itself asks again: its answer was lost, or it gave up its session.
            let itself = client.record.process == record.process && record.process != ProcessIdent::default();
            if !(lapsed || itself || proven_dead == Some(holder)) {
                let (process, mount) = (client.record.process.clone(), client.record.mount.clone());
                return step.reply(ticket, MgrReply::SessionBusy { holder, process, mount });
            }
            self.end_uncleanly(holder, step);
        }
        record.fs = fs;
        self.opens.push(PendingOpen { ticket, expires, fs, record });
    }

    fn remove(&mut self, session: SessionId, step: &mut Step) {
        self.clients.remove(&session);
        self.map.clients.retain(|client| client.session != session);
        self.bump();
        step.store.push(StoreOp::EndSession(session));
    }

    fn end_uncleanly(&mut self, session: SessionId, step: &mut Step) {
        let Some(fs) = self.clients.get(&session).map(|client| client.record.fs) else { return };
        self.space.forget(session);
        self.remove(session, step);
        let epoch = self.map.epoch;
        let ending = self.endings.entry(fs).or_default();
        ending.unresolved = true;
        ending.fence = Some(epoch);
        step.put(ending_key(fs), ending);
        step.notes.push(format!("{session} of {fs} ended uncleanly; fenced as of {epoch}"));
    }

    pub(super) fn close(&mut self, ticket: Ticket, session: SessionId, now: Duration, step: &mut Step) {
        let Some(client) = self.clients.get(&session) else {
            return step.refuse(ticket, MgrError::NoSession);
        };
        // Whoever ends cleanly has nothing in flight: nothing to fence. What it held is now either
        // stored, and the next reports say so, or free.
        let pool = self.map.filesystems.iter().find(|fs| fs.id == client.record.fs).map(|fs| fs.pool);
        self.space.close(session, pool.unwrap_or_default(), now);
        self.remove(session, step);
        step.collect = true;
        step.notes.push(format!("{session} ended"));
        step.reply(ticket, MgrReply::Done);
    }

    pub(super) fn resolve_done(&mut self, ticket: Ticket, session: SessionId, step: &mut Step) {
        let Some(fs) = self.clients.get(&session).map(|client| client.record.fs) else {
            return step.refuse(ticket, MgrError::NoSession);
        };
        let ending = self.endings.entry(fs).or_default();
        ending.unresolved = false;
        step.put(ending_key(fs), ending);
        step.reply(ticket, MgrReply::Done);
    }

    /// Ends fences that are in force, and begins the sessions that waited for them.
    pub(super) fn settle_opens(&mut self, now: Duration, step: &mut Step) {
        let fenced: Vec<FsId> = self
            .endings
            .iter()
            .filter(|(_, ending)| ending.fence.is_some_and(|epoch| self.in_force(epoch)))
            .map(|(&fs, _)| fs)
            .collect();
        for fs in fenced {
            let ending = self.endings.entry(fs).or_default();
            ending.fence = None;
            step.put(ending_key(fs), ending);
            step.collect = true;
        }
        for open in std::mem::take(&mut self.opens) {
            let ending = self.endings.get(&open.fs).cloned().unwrap_or_default();
            if now > open.expires {
                step.refuse(open.ticket, MgrError::Errno(libc::ETIMEDOUT));
            } else if let Some((holder, client)) = self.holder(open.fs) {
                let (process, mount) = (client.record.process.clone(), client.record.mount.clone());
                step.reply(open.ticket, MgrReply::SessionBusy { holder, process, mount });
            } else if ending.fence.is_some() {
                self.opens.push(open);
            } else {
                self.begin(open, ending.unresolved, now, step);
            }
        }
    }

    fn begin(&mut self, open: PendingOpen, resolve: bool, now: Duration, step: &mut Step) {
        let Some(fs) = self.map.filesystems.iter().find(|fs| fs.id == open.fs).cloned() else {
            return step.refuse(open.ticket, MgrError::Errno(ENOENT));
        };
        let session = self.next_session();
        self.counters.grant.0 += 1;
        let grant = self.counters.grant;
        let record = SessionRecord { grant, ..open.record };
        self.bump();
        self.map.clients.push(ClientEntry { session, fs: open.fs });
        step.put(session_key(session), &record);
        step.notes.push(format!("{session} began: {} on {}", fs.name, record.process.host));
        self.clients.insert(session, Client { record, renewed: now });
        let (lease_us, map) = (self.lease_us(), Box::new(self.map.clone()));
        let config = Vec::new();
        step.reply(open.ticket, MgrReply::SessionOpen { session, grant, fs, resolve, lease_us, map, config });
    }
}
