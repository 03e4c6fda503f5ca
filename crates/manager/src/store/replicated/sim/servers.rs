//! Servers of data, two copies of one block, and who writes and reads it: no more of them than what hangs on managers. A server
//! answers readers under its lease, from the moment on at which it asked for that, as long as the map it knows counts its pdisk. A write
//! is whole when every server has it that the newest map counts.

use std::sync::Arc;

use base::{Epoch, NodeId, SessionId};
use wire::{
    map::{ClusterMap, PdiskState},
    mgr::{MgrError, MgrReply, MgrRequest, PdiskReport},
};

use super::{SERVER_LEASE, Time};
use crate::cluster::stage::{mark, process, report};

/// See the module.
#[derive(Default)]
pub struct Server {
    node: u32,
    session: Option<SessionId>,
    /// Until when it answers.
    until: Time,
    map: Option<Arc<ClusterMap>>,
    /// Which write it has.
    data: u64,
    /// Until when it hears of no manager.
    pub cut_off: Time,
}

fn state(map: &ClusterMap, node: u32) -> PdiskState {
    map.pdisks[node as usize - 1].state
}

impl Server {
    pub fn new(node: u32) -> Server {
        Server { node, ..Server::default() }
    }

    /// It hears of a map; what it asks the manager next, as which session. What it lacks it has got from the other one by then.
    pub fn asks(&mut self, map: Option<&Arc<ClusterMap>>, written: u64) -> (SessionId, MgrRequest) {
        let known = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        if let Some(map) = map.filter(|map| map.epoch > known) {
            self.map = Some(map.clone());
        }
        let (node, report) = (self.node, report(self.node, 1, 0));
        let (Some(session), Some(map)) = (self.session, &self.map) else {
            let pdisks = vec![PdiskReport { proved: Some(mark(0)), ..report }];
            let (node, addrs) = (NodeId(node), vec![format!("127.0.0.1:{node}")]);
            let request = MgrRequest::RegisterServer { node, process: process(self.node), addrs, pdisks };
            return (SessionId(0), request);
        };
        let returns = state(map, self.node) == PdiskState::Returning;
        self.data = if returns { written } else { self.data };
        let (epoch, caught_up) = (map.epoch, Some(map.epoch).filter(|_| returns));
        (
            session,
            MgrRequest::Renew { epoch, pdisks: vec![PdiskReport { caught_up, in_force: epoch, ..report }] },
        )
    }

    /// The answer to what it asked then.
    pub fn heard(&mut self, asked: Time, reply: MgrReply) {
        match reply {
            MgrReply::Registered { session, map, .. } => {
                (self.session, self.map) = (Some(session), Some(Arc::from(map)));
                self.until = asked + SERVER_LEASE.as_millis() as Time;
            }
            MgrReply::Renewed { .. } => {
                self.until = self.until.max(asked + SERVER_LEASE.as_millis() as Time);
            }
            MgrReply::Error(MgrError::NoSession) => self.session = None,
            _ => {}
        }
    }

    /// What it answers a reader; none: nothing.
    pub fn reads(&self, now: Time) -> Option<u64> {
        let counts = self.map.as_ref().is_some_and(|map| state(map, self.node) == PdiskState::Ok);
        (self.session.is_some() && counts && now < self.until).then_some(self.data)
    }
}

/// Writes what comes next, if the servers that this map counts all take it; false: it waits.
pub fn write(servers: &mut [Server], map: &ClusterMap, written: u64, now: Time) -> bool {
    let counts = |server: &Server| state(map, server.node).written();
    let takes = |server: &Server| server.session.is_some() && now < server.until;
    let all = servers.iter().filter(|server| counts(server)).all(takes);
    if all {
        servers.iter_mut().filter(|server| counts(server)).for_each(|server| server.data = written);
    }
    all
}
