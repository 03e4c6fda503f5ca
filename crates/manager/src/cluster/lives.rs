//! The lives of the manager: what a later one must know of those before, beside the map.
//!
//! Whatever another process remembers of one life, and could take for something of the next, has a number that is never
//! given again: a grant. Leases that one life gave are waited for by the next, however short its own are.

use std::time::Duration;

use super::{Cluster, Step};
use crate::keys::{self, LeaseRecord};

impl Cluster {
    /// Comes before every event: programs' locks are claimed under a number of this life, and the lease is on record.
    pub fn begin_life(&mut self) -> Step {
        let mut step = Step::default();
        let life = self.next_grant(&mut step);
        self.begin_locks(life.0);
        self.store_lease(&mut step);
        self.tell_waits(&mut step);
        step
    }

    /// Whoever is gone is waited for longer than usual: people wonder why, unless it is said.
    fn tell_waits(&self, step: &mut Step) {
        if self.longest.beyond(self.lease).is_zero() || (self.servers.is_empty() && self.clients.is_empty()) {
            return;
        }
        let names = self.map.nodes.iter().filter(|node| self.servers.contains_key(&node.id));
        let servers = names.map(|node| format!("server {}", node.name));
        let mounts = self.clients.values().map(|client| format!("mount {}", client.record.mount));
        step.notes.push(format!(
            "leases of {:?} may be out: who of these does not come back is waited for so long from now on: {}",
            self.longest.longest,
            servers.chain(mounts).collect::<Vec<_>>().join(", ")
        ));
    }

    /// Leases that were given stay as long as they were: no renewal makes one shorter, here or at whom it was given to.
    pub(super) fn set_lease(&mut self, lease: Duration, now: Duration, step: &mut Step) {
        let longer = self.lease.saturating_sub(lease);
        self.servers.values_mut().for_each(|server| server.renewed += longer);
        self.clients.values_mut().for_each(|client| client.renewed += longer);
        self.longest.falls = self.longest.falls.max(now + self.lease);
        self.longest.longest = self.longest.longest.max(lease);
        self.lease = lease;
        self.store_lease(step);
    }

    /// When the longer ones have run out they are not waited for after a restart.
    pub(super) fn settle_lease(&mut self, now: Duration, step: &mut Step) {
        if now > self.longest.falls {
            self.longest.longest = self.lease;
            self.store_lease(step);
        }
    }

    fn store_lease(&mut self, step: &mut Step) {
        if self.longest.stored != self.longest.longest {
            self.longest.stored = self.longest.longest;
            let longest_us = self.longest.longest.as_micros() as u64;
            step.put(keys::lease_key(), &LeaseRecord { longest_us });
        }
    }
}
