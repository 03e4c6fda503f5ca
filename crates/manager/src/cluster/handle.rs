//! Takes an event: what it says first, then what follows for pdisks, moves, tokens, locks and mounts that wait.

use std::{sync::Arc, time::Duration};

use base::MemberId;
use libc::{EINVAL, ENOENT};
use wire::{
    map::PdiskEntry,
    mgr::{AuthorityReport, MgrError, MgrReply, MgrRequest},
};

use super::{Ask, Cluster, Event, Question, Step, stored::map_record};
use crate::keys::{self, SessionRecord};

impl Cluster {
    /// Takes an event; `now` never goes back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Step {
        debug_assert!(now >= self.now, "time went back from {:?} to {now:?}", self.now);
        self.now = now;
        let mut step = Step::default();
        if let Event::Away(time) = event {
            self.was_away(time, now, &mut step);
        }
        self.lapse_servers(now, &mut step);
        match event {
            Event::Away(_) => self.settle(now, &mut step),
            Event::Tick => {
                self.lapse_clients(now, &mut step);
                self.settle_lease(now, &mut step);
                self.settle(now, &mut step);
            }
            Event::SetLease(lease) => {
                self.set_lease(lease, now, &mut step);
                self.settle(now, &mut step);
            }
            Event::SetRebuildDelay(delay) => {
                self.set_rebuild_delay(delay);
                self.settle(now, &mut step);
            }
            Event::SetOperationDeadline(deadline) => self.set_operation_deadline(deadline),
            Event::InForce { session, epoch } => {
                self.acknowledge(session, epoch);
                self.settle(now, &mut step);
            }
            Event::Unclear { fs } => {
                if self.unclear().iter().any(|(unclear, _)| *unclear == fs) {
                    self.share_tokens(fs, now, &mut step);
                }
                self.settle(now, &mut step);
            }
            Event::Asked(question, ask) => self.answer(question, ask, now, &mut step),
        }
        self.publish(now, &mut step);
        assert!(self.grants.are_stored(), "a grant was given that a restart could give again");
        step
    }

    /// Carries out what is asked for; what has to wait for something is answered by a later event.
    fn answer(&mut self, question: Question, ask: Ask, now: Duration, step: &mut Step) {
        use Ask::{Change, ForgetLosses, Look, Made, MakeFs, MakePool, Remove, Request};
        use MgrRequest as R;
        let Question { ticket, session, .. } = question;
        match ask {
            // What follows from these stays within the tables of tokens and locks, which settle it themselves.
            Change(ino) => return self.change(question, ino, now, step),
            Look(ino) => return self.look(question, ino, now, step),
            Made(inos) => return self.made(question, &inos, step),
            Request(R::Acquire { ino, need }) => return self.acquire(question, ino, need, now, step),
            Request(R::Release { tokens }) => return self.release(question, &tokens, now, step),
            Request(R::WaitRecalls) => return self.wait_recalls(question, now, step),
            Request(R::Claim { tokens, last }) => return self.claim(question, &tokens, last, now, step),
            Request(R::Resolved { ino }) => return self.resolved(question, ino, now, step),
            Request(R::Published { ino, number }) => {
                return self.published(question, ino, number, now, step);
            }
            Request(R::ResolvePassDone { pass }) => return self.pass_done(question, pass, now, step),
            Request(R::Tokens { fs, after }) => return self.list_tokens(ticket, fs, after, now, step),
            Request(R::Lock(request)) => return self.lock(question, request, now, step),

            Request(R::Locks { fs, after }) => self.list_locks(ticket, fs, after, now, step),
            Request(R::LogMarks { pdisks }) => {
                step.reply(ticket, MgrReply::LogMarks(self.log_marks(&pdisks)));
            }
            Request(R::RegisterServer { node, process, addrs, pdisks }) => {
                if self.admits(&question, || self.node_name(node), step) {
                    self.register(ticket, node, process, addrs, pdisks, now, step);
                }
            }
            Request(R::Renew { epoch, pdisks }) => {
                self.renew(ticket, session, epoch, pdisks, now, step);
                self.hear(session, question.build, step);
            }
            Request(R::OpenSession { fs, process, admin_addr, mount, proven_dead, share }) => {
                if self.admits(&question, || format!("{mount} on {}", process.host), step) {
                    let record = SessionRecord { process, admin_addr, mount, ..SessionRecord::default() };
                    self.open(question, &fs, record, &proven_dead, share, now, step);
                }
            }
            Request(R::Versions) => {
                step.reply(ticket, MgrReply::Versions(Box::new(self.version_report())));
            }
            Request(R::Finalize) => {
                let outcome = self.finalize(step);
                step.answer(ticket, outcome);
            }
            Request(R::ResolveDone) => self.resolve_done(ticket, session, now, step),
            Request(R::CloseSession) => self.close(ticket, session, now, step),
            Request(R::Reserve { pool, bytes, held }) => {
                match self.reserve(session, pool, bytes, held, now) {
                    Ok(bytes) => step.reply(ticket, MgrReply::Reserved { bytes }),
                    Err(error) => step.refuse(ticket, error),
                }
            }
            Request(R::ReportSilent { pdisk }) => {
                if self.clients.contains_key(&session) {
                    self.silent(pdisk, now, step);
                    step.reply(ticket, MgrReply::Done);
                } else {
                    step.refuse(ticket, MgrError::NoSession);
                }
            }
            Request(R::StatFs { fs }) => match self.statfs(fs) {
                Some(reply) => step.reply(ticket, reply),
                None => step.refuse(ticket, MgrError::Errno(ENOENT)),
            },
            Request(R::Cluster) => step.reply(ticket, MgrReply::Cluster(Box::new(self.report(now)))),
            Request(R::Detach { session }) => self.detach(ticket, session, step),
            Request(R::PdiskSet { pdisk, wish }) => {
                let outcome = self.wish(pdisk, wish, now, step);
                step.answer(ticket, outcome);
            }
            Request(R::PdiskAdd { pdisk, name, node, capacity, pools }) => {
                let entry = PdiskEntry { id: pdisk, name, nodes: vec![node], capacity, ..Default::default() };
                let outcome = self.add_pdisk(entry, &pools, step);
                step.answer(ticket, outcome);
            }
            Request(R::LastPdisk) => {
                step.reply(ticket, MgrReply::LastPdisk { pdisk: self.last_pdisk() });
            }
            Request(R::NodeAdd { name, addrs }) => match self.add_node(name, &addrs, step) {
                Ok(node) => step.reply(ticket, MgrReply::NodeAdded { node }),
                Err(error) => step.refuse(ticket, error),
            },
            Request(R::Invite { token, hash, role, expires, now, limits }) => {
                let outcome = match question.member {
                    MemberId(0) => self.invite(token, hash, role, expires, now, &limits, step),
                    _ => Err(MgrError::Config("tokens are made where the cluster was made".to_owned())),
                };
                step.answer(ticket, outcome);
            }
            Request(R::Admit(asked)) => match self.admit(&asked, step) {
                Ok((role, node)) => step.reply(ticket, MgrReply::Admitted { role, node }),
                Err(error) => step.refuse(ticket, error),
            },
            Request(R::Members) => step.reply(ticket, MgrReply::Members(self.member_list())),
            Request(R::Authorities) => {
                // `Manager::handle` adds what the process knows.
                let own = self.members.get(&question.member).map(|record| record.authority);
                let report = AuthorityReport { own, ..AuthorityReport::default() };
                step.reply(ticket, MgrReply::Authorities(Box::new(report)));
            }
            Request(R::Recertify { member, what }) => {
                let outcome = self.renew_member(member, what, step);
                step.answer(ticket, outcome);
            }
            Request(R::Revoke { member }) => {
                let outcome = self.revoke(member, step);
                step.answer(ticket, outcome);
            }
            Request(R::NodeRemove { node }) => {
                let outcome = self.remove_node(node, step);
                step.answer(ticket, outcome);
            }
            Request(R::NodeSet { node, name, addrs, rack }) => {
                let outcome = self.set_node(node, name, addrs.as_deref(), rack, step);
                step.answer(ticket, outcome);
            }
            Request(R::ManagerSet(entry)) => {
                let outcome = self.set_manager(&entry, step);
                step.answer(ticket, outcome);
            }
            Request(R::ManagerRemove { name }) => {
                let outcome = self.remove_manager(&name, step);
                step.answer(ticket, outcome);
            }
            MakePool(new) => {
                let outcome = self.make_pool(new, now, step);
                step.answer(ticket, outcome);
            }
            MakeFs { name, pool, now } => {
                let outcome = self.make_fs(name, pool, now, step);
                step.answer(ticket, outcome);
            }
            Remove(what) => {
                let outcome = self.remove_step(what, step);
                step.answer(ticket, outcome);
            }
            ForgetLosses(whole) => {
                self.forget_losses(&whole, step);
                step.reply(ticket, MgrReply::Done);
            }

            // Answered from the store, or put together of several questions (`Manager::handle`).
            Request(
                R::GetMap
                | R::WaitMap { .. }
                | R::Lookup { .. }
                | R::GetAttr { .. }
                | R::ReadDir { .. }
                | R::ReadLink { .. }
                | R::ReadInline { .. }
                | R::Extents { .. }
                | R::GetXattr { .. }
                | R::ListXattr { .. }
                | R::Mutate { .. }
                | R::MutateMany { .. }
                | R::Tell { .. }
                | R::ConfigSet { .. }
                | R::ConfigGet
                | R::PoolCreate { .. }
                | R::FsCreate { .. }
                | R::PoolDelete { .. }
                | R::FsDelete { .. }
                | R::LostFiles { .. }
                | R::Losses
                | R::Events { .. }
                | R::Owned { .. }
                | R::Owners { .. }
                | R::MayUse { .. }
                | R::Paths { .. }
                | R::Resign { .. }
                | R::CopyTable { .. }
                | R::Dump { .. },
            ) => step.refuse(ticket, MgrError::Errno(EINVAL)),
        }
        self.settle(now, step);
    }

    /// What follows for everything else.
    fn settle(&mut self, now: Duration, step: &mut Step) {
        self.settle_pdisks(now, step);
        self.note_out_of_reach(now);
        self.settle_losses(step);
        self.settle_moves(now, step);
        self.settle_tokens(now, step);
        self.settle_locks(now, step);
        self.settle_opens(now, step);
    }

    /// Stores and publishes the map if this event changed it; fills it into answers that carry it.
    fn publish(&mut self, now: Duration, step: &mut Step) {
        if self.map.epoch == self.published {
            return;
        }
        assert!(self.map.epoch > self.published, "an epoch is given once");
        if self.for_clients > self.published {
            self.for_clients = self.map.epoch;
            step.client_map = Some(Arc::new(self.client_map()));
        }
        self.published = self.map.epoch;
        self.versions.publish(self.published, now);
        step.put(keys::map_key(), &map_record(&self.map));
        step.put(keys::counter_key(), &self.counters);
        let map = Arc::new(self.map.clone());
        for (_, reply) in &mut step.replies {
            match reply {
                MgrReply::Registered { map: told, .. } => **told = self.map.clone(),
                MgrReply::SessionOpen { session, map: told, .. } => {
                    **told = self.client_map();
                    told.clients.extend(self.map.client(*session).cloned());
                }
                _ => {}
            }
        }
        step.map = Some(map);
    }
}
