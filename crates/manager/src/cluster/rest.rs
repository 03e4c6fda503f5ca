//! Is anything about to happen by itself? Where all servers, pdisks and clients are there, nothing moves and nobody waits for anything, time brings
//! nothing but the end of questions that wait for news. Then the cluster is shown the clock less often ([`Event::Tick`](super::Event::Tick)).
//! Whatever this leaves out would be late by that: what is in doubt does not rest. Who is silent for a third of a lease is looked at
//! as often as ever, long before anything follows from it.

use std::time::Duration;

use wire::{
    map::{PdiskEntry, PdiskState, PoolEntry},
    mgr::MgrRequest,
};

use super::{Ask, Cluster, Event};

/// With leases shorter than this it never rests: a third of one, and a look, must lie well within it.
const LEASE_MIN: Duration = Duration::from_secs(4);

/// Whether a cluster rests, as its events go by. It begins to after a look at the clock from which nothing followed, and rests on while servers and
/// clients only say that they are there: all else is followed by a look soon, as is what may be due at any time.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    rests: bool,
}

/// Events as far as they may keep a cluster from resting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Tick,
    Renewal,
    Other,
}

impl Kind {
    pub fn of(event: &Event) -> Kind {
        match event {
            Event::Tick => Kind::Tick,
            Event::Asked(_, Ask::Request(MgrRequest::Renew { .. })) => Kind::Renewal,
            _ => Kind::Other,
        }
    }
}

impl Rest {
    /// The cluster has taken an event; `calm`: nothing followed but answers. Until when it rests, if it does.
    pub fn after(&mut self, kind: Kind, calm: bool, cluster: &Cluster, now: Duration) -> Option<Duration> {
        let may = calm && (kind == Kind::Tick || kind == Kind::Renewal && self.rests);
        let until = may.then(|| cluster.rests_until(now)).flatten();
        self.rests = until.is_some();
        until
    }
}

impl Cluster {
    /// Until when nothing comes of time alone; none: something may at any moment. `Duration::MAX`: nothing ever does.
    fn rests_until(&self, now: Duration) -> Option<Duration> {
        let heard = |renewed: Duration| now < renewed + self.lease / 3;
        let epoch = self.map.epoch;
        let rests = self.lease >= LEASE_MIN
            && self.published == epoch
            && self.longest.longest == self.lease
            && now > self.grace_until
            && self.opens.is_empty()
            && self.leases_left.is_empty()
            && self.endings.values().all(|ending| !ending.unresolved && ending.fence.is_none())
            && self.servers.values().all(|server| heard(server.renewed) && server.acked >= epoch)
            && self.clients.values().all(|client| heard(client.renewed))
            && self.map.pdisks.iter().all(|entry| self.is_well(entry, now))
            && self.map.pools.iter().all(|pool| self.stands(pool))
            && self.locks.values().all(|locks| locks.rest());
        let polls = self.tokens.values().map(|tokens| tokens.rest_until());
        polls.fold(rests.then_some(Duration::MAX), |all, one| Some(all?.min(one?)))
    }

    fn is_well(&self, entry: &PdiskEntry, now: Duration) -> bool {
        entry.state == PdiskState::Ok
            && self.disks.get(&entry.id).is_some_and(|disk| {
                let there = disk.server.is_some() && disk.acked >= self.map.epoch;
                there
                    && !disk.is_held_off()
                    && !disk.failed
                    && disk.silent.is_none_or(|(_, last)| now > last + self.lease)
            })
    }

    fn stands(&self, pool: &PoolEntry) -> bool {
        let still = self
            .moving
            .get(&pool.id)
            .is_none_or(|moving| moving.filled.is_empty() && moving.work_left(pool) == 0);
        pool.moves.is_empty() && still
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::SessionId;
    use wire::token::Need;

    use super::super::stage::{LEASE, Stage};

    const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

    /// Two mounts that have nothing to do, long after the manager's start.
    fn idle() -> (Stage, SessionId, SessionId) {
        let (mut stage, first, second) = Stage::two(Vec::new());
        for _ in 0..30 {
            heard(&mut stage, &[first, second], &[]);
        }
        (stage, first, second)
    }

    /// A second passes, in which these clients renew, and all servers but `dead`.
    fn heard(stage: &mut Stage, clients: &[SessionId], dead: &[u32]) {
        clients.iter().for_each(|client| stage.renew_client(*client));
        stage.pass_without(dead, 1);
    }

    fn rests(stage: &Stage) -> bool {
        stage.rests_until > stage.now
    }

    #[test]
    fn an_idle_cluster_rests_and_its_questions_end_in_time() {
        let (mut stage, first, second) = idle();
        assert!(rests(&stage));
        stage.renew_client(first);
        stage.renew_all();
        assert!(rests(&stage), "who renews does not wake it");
        let asked = stage.now;
        let poll = stage.poll(first);
        assert!(!rests(&stage), "all else does");
        for _ in 0..59 {
            heard(&mut stage, &[first, second], &[]);
            assert!(rests(&stage) && stage.rests_until <= asked + 60 * SECOND);
        }
        heard(&mut stage, &[first, second], &[]);
        assert_eq!(stage.told(poll), [], "the question has ended");
    }

    #[test]
    fn it_rests_no_more_long_before_anything_follows() {
        let (mut stage, first, second) = idle();
        let mut waited = Duration::ZERO;
        while rests(&stage) {
            assert!(waited < LEASE / 2, "a silent server is not looked at");
            heard(&mut stage, &[first, second], &[1]);
            waited += SECOND;
        }
        let (mut stage, first, _) = idle();
        let mut waited = Duration::ZERO;
        while rests(&stage) {
            assert!(waited < LEASE / 2, "a silent client is not looked at");
            heard(&mut stage, &[first], &[]);
            waited += SECOND;
        }
        let (mut stage, first, second) = idle();
        let held = stage.acquire(first, 7, Need::Write);
        stage.granted(held);
        stage.acquire(second, 7, Need::Read);
        heard(&mut stage, &[first, second], &[]);
        assert!(!rests(&stage), "somebody waits for a token");
    }
}
