//! Client sessions: any number for each file system.
//!
//! A session that ends uncleanly leaves the map first; its tokens are given on, and a successor begins, only
//! when that map is in force at every server that still has a lease (the fence). What has to be fenced is
//! stored, so that a restart of the manager forgets none of it.

use std::time::Duration;

use base::{FsId, SessionId};
use libc::ENOENT;
use wire::{
    map::ClientEntry,
    mgr::{MgrError, MgrReply, ProcessIdent},
};

use super::{
    Cluster, Question, Step, StoreOp, Ticket,
    state::{Client, PendingOpen},
};
use crate::keys::{SessionRecord, ending_key, session_key};

/// Mounts that may wait at once; more are told to try again.
const OPENS_MAX: usize = 64;

impl Cluster {
    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn open(
        &mut self,
        asked: Question,
        fs: &str,
        mut record: SessionRecord,
        proven_dead: &[SessionId],
        share: bool,
        now: Duration,
        step: &mut Step,
    ) {
        let Question { ticket, member, expires, .. } = asked;
        let Some(fs) = self.map.fs_by_name(fs).map(|fs| fs.id) else {
            return step.refuse(ticket, MgrError::Errno(ENOENT));
        };
        if self.map.limits_of(member).is_some_and(|limits| !limits.allow(fs)) {
            let reason = "this machine has joined with a token for other file systems; `ropewalk node token --fs` makes one";
            return step.refuse(ticket, MgrError::Config(reason.to_owned()));
        }
        if self.opens.len() >= OPENS_MAX {
            return step.refuse(ticket, MgrError::Errno(libc::EAGAIN));
        }
        let (mut dead, mut live) = (Vec::new(), Vec::new());
        for (&id, client) in self.clients.iter().filter(|(_, client)| client.record.fs == fs) {
            let lapsed = now > client.renewed + self.lease;
            // Who is not its machine knows neither whether it lives nor what it is.
            let knows = self.map.is_session_of(id, member, None);
            // The holder itself asks again: its answer was lost, or it gave up its session.
            let itself = client.record.process == record.process
                && client.record.mount == record.mount
                && record.process != ProcessIdent::default();
            if lapsed || knows && (itself || proven_dead.contains(&id)) {
                dead.push(id);
            } else {
                live.push((id, client.record.process.clone()));
            }
        }
        if !live.is_empty() && !share {
            // Whoever of them is dead may be proven so: that saves waiting for leases.
            return step.reply(ticket, MgrReply::SessionBusy { holders: live });
        }
        dead.into_iter().for_each(|session| self.end_uncleanly(session, step));
        record.fs = fs;
        self.opens.push(PendingOpen { ticket, expires, fs, member, record });
    }

    fn remove(&mut self, session: SessionId, step: &mut Step) {
        self.clients.remove(&session);
        self.map.clients.retain(|client| client.session != session);
        self.bump_for_servers();
        step.store.push(StoreOp::EndSession(session));
    }

    /// A client's session for people.
    pub(super) fn mount_called(&self, session: SessionId) -> String {
        self.clients.get(&session).map_or_else(
            || session.to_string(),
            |client| {
                let SessionRecord { mount, process, .. } = &client.record;
                format!("mount {mount} on {} ({session})", process.host)
            },
        )
    }

    pub(super) fn end_uncleanly(&mut self, session: SessionId, step: &mut Step) {
        let Some(fs) = self.clients.get(&session).map(|client| client.record.fs) else { return };
        let who = self.mount_called(session);
        self.space.forget(session);
        self.remove(session, step);
        if let Some(tokens) = self.tokens.get_mut(&fs) {
            tokens.end(session);
        }
        if let Some(locks) = self.locks.get_mut(&fs) {
            locks.end(session);
        }
        let epoch = self.map.epoch;
        let ending = self.endings.entry(fs).or_default();
        ending.unresolved = true;
        ending.fence = Some(epoch);
        step.put(ending_key(fs), ending);
        step.notes.push(format!("{who} ended uncleanly; fenced as of {epoch}"));
    }

    pub(super) fn detach(&mut self, ticket: Ticket, session: SessionId, step: &mut Step) {
        if !self.clients.contains_key(&session) {
            return step.refuse(ticket, MgrError::NoSession);
        }
        self.end_uncleanly(session, step);
        step.reply(ticket, MgrReply::Done);
    }

    pub(super) fn close(&mut self, ticket: Ticket, session: SessionId, now: Duration, step: &mut Step) {
        let Some(client) = self.clients.get(&session) else {
            return step.refuse(ticket, MgrError::NoSession);
        };
        // Whoever ends cleanly has nothing in flight: nothing to fence. What it held is now either
        // stored, and the next reports say so, or free.
        let fs = client.record.fs;
        let who = self.mount_called(session);
        self.space.close(session, now);
        self.remove(session, step);
        self.with_tokens(fs, step, |tokens, next| tokens.drop_session(session, now, next));
        self.with_locks(fs, step, |locks| locks.drop_session(session, now));
        step.collect = true;
        step.notes.push(format!("{who} ended"));
        step.reply(ticket, MgrReply::Done);
    }

    pub(super) fn resolve_done(
        &mut self,
        ticket: Ticket,
        session: SessionId,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(fs) = self.clients.get(&session).map(|client| client.record.fs) else {
            return step.refuse(ticket, MgrError::NoSession);
        };
        // It resolved everything at its start, when it was alone.
        if self.clients.values().filter(|client| client.record.fs == fs).count() == 1
            && self.endings.get(&fs).is_none_or(|ending| ending.fence.is_none())
        {
            self.with_tokens(fs, step, |tokens, next| tokens.all_resolved(now, next));
            self.set_resolved(fs, step);
        }
        step.reply(ticket, MgrReply::Done);
    }

    pub(super) fn set_resolved(&mut self, fs: FsId, step: &mut Step) {
        let ending = self.endings.entry(fs).or_default();
        ending.unresolved = false;
        step.put(ending_key(fs), ending);
    }

    /// Ends fences that are in force.
    pub(super) fn settle_fences(&mut self, step: &mut Step) {
        let fenced: Vec<FsId> = self
            .endings
            .iter()
            .filter(|(_, ending)| ending.fence.is_some_and(|epoch| self.in_force(epoch)))
            .map(|(&fs, _)| fs)
            .collect();
        for fs in fenced {
            let ending = self.endings.entry(fs).or_default();
            let settled = ending.fence.take();
            // What was not waited for does not come back before it is in force there too.
            self.disks
                .values_mut()
                .for_each(|disk| disk.set_aside = disk.set_aside.max(disk.set_aside.and(settled)));
            step.put(ending_key(fs), ending);
            step.collect = true;
        }
    }

    /// Begins the sessions whose time has come: alone with everything, beside others when these have said
    /// what they hold.
    pub(super) fn settle_opens(&mut self, now: Duration, step: &mut Step) {
        for open in std::mem::take(&mut self.opens) {
            let ending = self.endings.get(&open.fs).cloned().unwrap_or_default();
            let (alone, ready) =
                self.tokens.get(&open.fs).map_or((true, true), |t| (t.is_empty(), t.ready()));
            if now > open.expires {
                step.refuse(open.ticket, MgrError::Errno(libc::ETIMEDOUT));
            } else if ending.fence.is_some() {
                self.opens.push(open);
            } else if !alone && !ready {
                self.share_tokens(open.fs, now, step);
                self.opens.push(open);
            } else if alone && ending.unresolved && self.map.is_guest(open.member) {
                // Somebody else resolves first: the manager's own process, if nobody comes.
                self.opens.push(open);
            } else {
                self.begin(open, alone, alone && ending.unresolved, now, step);
            }
        }
    }

    fn begin(&mut self, open: PendingOpen, whole: bool, resolve: bool, now: Duration, step: &mut Step) {
        let Some(fs) = self.map.filesystems.iter().find(|fs| fs.id == open.fs).cloned() else {
            return step.refuse(open.ticket, MgrError::Errno(ENOENT));
        };
        let session = self.next_session();
        let grant = self.next_grant(step);
        let record = SessionRecord { grant, ..open.record };
        self.bump_for_servers();
        self.map.clients.push(ClientEntry { session, fs: open.fs, member: open.member });
        step.put(session_key(session), &record);
        self.with_locks(open.fs, step, |locks| {
            locks.begin(session, &record.process.scope, true);
            Vec::new()
        });
        self.clients.insert(session, Client { record, renewed: now });
        step.notes.push(format!("{} began: it has mounted {}", self.mount_called(session), fs.name));
        let guest = self.map.is_guest(open.member);
        self.with_tokens(open.fs, step, |tokens, _| {
            tokens.begin(session, whole, guest);
            crate::tokens::Acts::default()
        });
        // The map is filled in with the new version.
        let (lease_us, map, config) = (self.lease_us(), Box::default(), Vec::new());
        let reply = MgrReply::SessionOpen { session, grant, whole, fs, resolve, lease_us, map, config };
        step.reply(open.ticket, reply);
    }
}
