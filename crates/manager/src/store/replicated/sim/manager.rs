//! One of the managers in one of its lives: the shipped holder, and the shipped state machine of the cluster over the table.

use std::{sync::Arc, time::Duration};

use base::SessionId;
use wire::{
    map::ClusterMap,
    mgr::{MgrReply, MgrRequest},
};

use super::{
    super::{
        holder::{Ask, Holder, Origin, Revision, Rule},
        part::{self, Assembly},
    },
    JOURNAL, SERVER_LEASE, Time, Without,
    table::{Table, claim_of},
};
use crate::{
    cluster::{Cluster, Event, Question, Step, StoreOp},
    keys,
    store::Changes,
};

/// Who is answered when a commit is durable, and with what.
#[derive(Default)]
pub struct Answers {
    pub map: Option<Arc<ClusterMap>>,
    /// To a server, for what it asked then.
    pub server: Option<(usize, Time, MgrReply)>,
}

/// What a commit is of.
pub enum Of {
    Claim,
    Op(u64),
    Cluster(Answers),
}

/// A commit that is under way.
pub struct Commit {
    of: Of,
    changes: Changes,
    /// Records to be put.
    parts: Vec<Vec<u8>>,
    crc: Option<u32>,
}

/// See the module.
pub struct Manager {
    pub holder: Holder,
    pub life: u64,
    pub assembly: Assembly,
    pub now: Table,
    pub asks: Option<Ask>,
    commit: Option<Commit>,
    pub opened: bool,
    pub serves: bool,
    pub ends: bool,
    /// Until when it may answer.
    pub confirmed: Time,
    /// The leader's key, once it has won.
    pub leader: Option<Revision>,
    cluster: Option<Cluster>,
    pub map: Option<Arc<ClusterMap>>,
    /// Behind this its records stay for a table that is being copied.
    pub held: Option<u64>,
}

impl Manager {
    pub fn open(member: u64, life: u64, now: Table, without: Without) -> Manager {
        let new = now.acked == 0;
        let Table { applied, crc, acked, acked_crc, .. } = now;
        let origin = Origin { journal: JOURNAL, applied, crc, acked, acked_crc, new };
        let rule = match without {
            Without::Holder(rule) => Some(rule),
            _ => None::<Rule>,
        };
        let mut holder = Holder::new(origin, member, life).without(rule);
        let asks = Some(holder.open());
        Manager {
            holder,
            life,
            assembly: Assembly::default(),
            now,
            asks,
            commit: None,
            opened: false,
            serves: false,
            ends: false,
            confirmed: 0,
            leader: None,
            cluster: None,
            map: None,
            held: None,
        }
    }

    pub fn idle(&self) -> bool {
        self.asks.is_none() && self.commit.is_none()
    }

    pub fn claim(&mut self) {
        self.commit(Of::Claim, claim_of(self.life));
    }

    /// Begins to commit.
    pub fn commit(&mut self, of: Of, changes: Changes) {
        let mut parts =
            part::split((JOURNAL, self.life), self.holder.last() + 1, &changes, self.life % 2 == 1).unwrap();
        let crc = parts.last().map(|part| part::stored_crc(part));
        self.asks = Some(self.holder.append(parts.remove(0)));
        self.commit = Some(Commit { of, changes, parts, crc });
    }

    /// A record was put: the commit that is whole with it.
    pub fn committed(&mut self) -> Option<Of> {
        let commit = self.commit.as_mut()?;
        if !commit.parts.is_empty() {
            self.asks = Some(self.holder.append(commit.parts.remove(0)));
            return None;
        }
        let Commit { of, changes, crc, .. } = self.commit.take()?;
        self.now.apply(self.holder.last(), crc, changes);
        Some(of)
    }

    /// What the cluster is told, by a server if there is a ticket; the answers, if nothing has to be stored for them.
    pub fn tell(
        &mut self,
        asked: Option<(usize, SessionId, MgrRequest)>,
        now: Time,
        without: Without,
    ) -> Option<Answers> {
        let time = Duration::from_millis(now);
        let mut step = Step::default();
        let cluster = match &mut self.cluster {
            Some(cluster) => cluster,
            none => {
                // As if everybody had been silent for longer than any lease.
                let unheard =
                    if without == Without::ServerLeases { SERVER_LEASE * 2 } else { Duration::ZERO };
                let mut cluster = Cluster::load(&self.now.rows, SERVER_LEASE, time - unheard).unwrap();
                step = cluster.begin_life();
                self.map = Some(Arc::new(cluster.map().clone()));
                none.insert(cluster)
            }
        };
        let server = asked.as_ref().map(|(server, ..)| *server);
        let event = asked.map_or(Event::Tick, |(_, session, request)| {
            let expires = time + Duration::from_secs(60);
            let question = Question { ticket: 1, session, member: base::MemberId(0), expires, build: None };
            Event::Asked(question, request.into())
        });
        let more = cluster.handle(event, time);
        step.store.extend(more.store);
        let reply = more.replies.into_iter().next().map(|(_, reply)| reply);
        let answers =
            Answers { map: more.map, server: server.and_then(|server| Some((server, now, reply?))) };
        let changes: Changes = step.store.into_iter().map(change).collect();
        if changes.is_empty() {
            return Some(answers);
        }
        self.commit(Of::Cluster(answers), changes);
        None
    }
}

fn change(op: StoreOp) -> (Vec<u8>, Option<Vec<u8>>) {
    match op {
        StoreOp::Put(key, value) => (key, Some(value)),
        StoreOp::Delete(key) => (key, None),
        StoreOp::EndSession(session) => (keys::session_key(session), None),
    }
}
