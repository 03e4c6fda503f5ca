//! Takes an event: what it says first, then what follows for pdisks, moves, tokens, locks and mounts that wait.

use std::{sync::Arc, time::Duration};

use libc::ENOENT;
use wire::mgr::{MgrError, MgrReply};

use super::{Cluster, Event, Step, stored::map_record};
use crate::keys::{self, SessionRecord};

impl Cluster {
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
}
