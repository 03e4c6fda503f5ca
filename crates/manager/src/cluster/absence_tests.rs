//! Stories of a manager that was away, and of disks and servers that do not follow the map, told to the state machine.

use base::{
    Epoch, PdiskId, PoolId, SessionId,
    fence::{Passes, Permit},
};
use wire::{
    mgr::{MgrError, MgrReply, MgrRequest, PdiskReport},
    token::{Need, Token, TokenMode},
};

use super::{
    stage::{LEASE, Stage, report},
    *,
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The manager is away for `away`: its own time goes on by what a look counts for at most.
fn away(stage: &mut Stage, away: Duration) {
    stage.now += base::presence::PRESENT_WITHIN;
    stage.tell(Event::Away(away));
    stage.tell(Event::Tick);
}

fn is_there(stage: &Stage, session: SessionId) -> bool {
    stage.cluster.map().clients.iter().any(|client| client.session == session)
}

#[test]
fn nobody_is_ended_for_the_managers_own_absence() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let held = stage.acquire(first, 7, Need::Write);
    let held = stage.granted(held).0;
    // Somebody waits for what the first one holds, and both are 9 s from their last renewal.
    let ticket = stage.acquire(second, 7, Need::Read);
    stage.pass_without(&[], 9);
    let epoch = stage.cluster.map().epoch;
    away(&mut stage, s(70));
    assert_eq!(stage.cluster.map().epoch, epoch, "nothing was judged");
    assert_eq!(stage.states(), "oooo");
    stage.pass_without(&[], 9);
    assert!(is_there(&stage, first) && is_there(&stage, second), "a full lease from then on");
    stage.renew_client(first);
    stage.release(first, Token { mode: TokenMode::Read, ..held });
    assert_eq!(stage.granted(ticket).0.mode, TokenMode::Read);
    // Who stays silent although the manager is there is ended as ever.
    stage.pass_without(&[], 9);
    let poll = stage.poll(first);
    stage.acquire(second, 7, Need::Write);
    stage.told(poll);
    stage.pass_without(&[], 3);
    assert!(!is_there(&stage, first));
}

#[test]
fn what_was_fenced_before_an_absence_stays_fenced() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, ..) = stage.opened(ticket);
    stage.renew_all();
    let ticket = stage.open(2, Some(first));
    away(&mut stage, s(70));
    assert!(!stage.replies.contains_key(&ticket), "no server has said so, and none is taken for gone");
    let reply = stage.ask(first, MgrRequest::Reserve { pool: PoolId(1), bytes: 1, held: 0 });
    assert_eq!(reply, MgrReply::Error(MgrError::NoSession));
    stage.renew_all();
    assert!(stage.opened(ticket).2);
}

#[test]
fn short_absences_do_not_keep_the_dead_alive() {
    let mut stage = Stage::running(4, "2+2p");
    for _ in 0..6 {
        stage.pass_without(&[3], 1);
        stage.now += s(1);
        stage.tell(Event::Away(s(4)));
    }
    assert_eq!(stage.states(), "oomo");
}

/// A disk that does not end what it was at when a session was fenced.
fn with_a_stuck_pdisk(stage: &mut Stage, stuck: u32, since: Epoch, seconds: u64) {
    for _ in 0..seconds {
        stage.now += s(1);
        for node in 1..=4 {
            if node == stuck {
                stage.renew_stuck(node, since);
            } else {
                stage.renew(node, report(node, 1, 0));
            }
        }
        stage.tell(Event::Tick);
    }
}

#[test]
fn a_hung_disk_holds_a_fence_up_for_a_lease_and_returns_when_its_io_has_ended() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, ..) = stage.opened(ticket);
    stage.renew_all();
    let before = stage.cluster.map().epoch;
    let ticket = stage.open(2, Some(first));
    with_a_stuck_pdisk(&mut stage, 3, before, LEASE.as_secs() - 1);
    assert!(!stage.replies.contains_key(&ticket), "within a lease it may end by itself");
    with_a_stuck_pdisk(&mut stage, 3, before, 3);
    assert_eq!(stage.states(), "oomo", "it is set aside");
    assert!(stage.opened(ticket).2, "and the fence has settled");
    assert!(stage.cluster.map().nodes.iter().all(|node| node.session.is_some()), "its server goes on");
    // As long as the old I/O is under way it does not come back, whatever it hangs at besides.
    with_a_stuck_pdisk(&mut stage, 3, before, 120);
    assert_eq!(stage.states(), "oomo");
    // Not either when the manager was restarted.
    stage.restart();
    with_a_stuck_pdisk(&mut stage, 3, before, 12);
    assert_eq!(stage.states(), "oomo");
    stage.renew_all();
    assert_eq!(stage.states(), "ooro", "its I/O has ended: it catches up");
}

#[test]
fn a_hung_disk_with_the_last_copies_is_waited_for_but_holds_no_fence_up() {
    let mut stage = Stage::running(4, "2+2p");
    stage.pass_without(&[1, 2], 11);
    let ticket = stage.open(1, None);
    let (first, ..) = stage.opened(ticket);
    stage.renew_all();
    let before = stage.cluster.map().epoch;
    let ticket = stage.open(2, Some(first));
    with_a_stuck_pdisk(&mut stage, 3, before, 12);
    assert_eq!(stage.states(), "mmoo");
    assert!(stage.opened(ticket).2);
}

#[test]
fn a_disk_at_which_anything_hangs_for_a_lease_is_set_aside_though_the_map_is_the_same() {
    let mut stage = Stage::running(4, "2+2p");
    let hung = |seconds: u64| PdiskReport { oldest_us: 1_000_000 * seconds, ..report(2, 1, 0) };
    stage.renew(2, hung(9));
    assert_eq!(stage.states(), "oooo");
    stage.renew(2, hung(10));
    assert_eq!(stage.states(), "omoo");
    stage.renew_stuck(2, Epoch(1));
    assert_eq!(stage.states(), "omoo", "what hangs is from before it was missing");
    stage.renew(2, report(2, 1, 0));
    assert_eq!(stage.states(), "oroo");
}

#[test]
fn a_server_that_renews_and_does_not_follow_the_map_is_taken_out() {
    let mut stage = Stage::running(4, "2+2p");
    let old = stage.cluster.map().epoch;
    let ticket = stage.open(1, None);
    stage.opened(ticket);
    for _ in 0..12 {
        stage.pass_without(&[3], 1);
        let session = stage.servers[&3];
        stage.ask(session, MgrRequest::Renew { epoch: old, pdisks: vec![report(3, 1, 0)] });
    }
    assert_eq!(stage.states(), "oomo");
    stage.register(3, 2, 0);
    assert_eq!(stage.states(), "ooro");
}

#[test]
fn a_shorter_lease_ends_none_that_was_given() {
    let mut stage = Stage::running(4, "2+2p");
    stage.tell(Event::SetLease(s(2)));
    stage.tell(Event::Away(s(3)));
    stage.renew_all();
    for _ in 0..9 {
        stage.pass(1);
    }
    assert_eq!(stage.states(), "oooo");
    stage.pass(2);
    assert_eq!(stage.states().matches('m').count(), 2, "all have lapsed, two are needed");
}

/// The servers of a [`Stage`] by the code that servers run: what is under way at each pdisk, and since which map.
struct Servers {
    passes: Vec<Passes>,
    /// Which server's requests under way were admitted under which map.
    under_way: Vec<(u32, Epoch, Permit)>,
    hung: Vec<bool>,
    state: u64,
}

impl Servers {
    fn below(&mut self, n: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % n
    }

    /// A second passes: requests begin and end, maps arrive, leases are renewed.
    fn second(&mut self, stage: &mut Stage) {
        for node in 1..=4u32 {
            let at = node as usize - 1;
            if self.below(3) > 0 {
                let epoch = self.passes[at].admitting();
                self.under_way.push((node, epoch, self.passes[at].begin(stage.now)));
            }
            if self.below(4) > 0 {
                self.passes[at].replace(stage.cluster.map().epoch);
            }
            while !self.hung[at] && self.below(4) > 0 {
                let Some(done) = self.under_way.iter().position(|(n, ..)| *n == node) else { break };
                self.passes[at].end(self.under_way.swap_remove(done).2);
            }
            let (session, epoch) = (stage.servers[&node], self.passes[at].admitting());
            let oldest_us = self.passes[at].oldest(stage.now).as_micros() as u64;
            let in_force = self.passes[at].in_force();
            let pdisks = vec![PdiskReport { in_force, oldest_us, ..report(node, 1, 0) }];
            stage.ask(session, MgrRequest::Renew { epoch, pdisks });
        }
        stage.now += s(1);
        stage.tell(Event::Tick);
    }
}

#[test]
fn every_fence_settles_and_nothing_older_is_left_where_it_has() {
    for seed in 0..300 {
        let mut stage = Stage::running(4, "2+2p");
        let passes = Passes::new(stage.cluster.map().epoch);
        let (passes, hung) = (vec![passes; 4], vec![false; 4]);
        let mut servers = Servers { passes, under_way: Vec::new(), hung, state: seed };
        let ticket = stage.open(1, None);
        let mut last = stage.opened(ticket).0;
        for pid in 2..8 {
            // One or two disks hang, or answer again.
            for _ in 0..2 {
                let at = servers.below(4) as usize;
                let others = servers.hung.iter().filter(|hung| **hung).count();
                servers.hung[at] = !servers.hung[at] && others < 2;
            }
            (0..servers.below(15)).for_each(|_| servers.second(&mut stage));
            let ticket = stage.open(pid, Some(last));
            let fence = stage.cluster.map().epoch;
            let mut waited = 0;
            while !stage.replies.contains_key(&ticket) {
                assert!(
                    waited < 2 * LEASE.as_secs(),
                    "seed {seed}: {fence} does not settle: {}",
                    stage.states()
                );
                servers.second(&mut stage);
                waited += 1;
            }
            for (node, epoch, _) in servers.under_way.iter().filter(|(_, epoch, _)| *epoch < fence) {
                let disk = &stage.cluster.disks[&PdiskId(*node)];
                assert!(
                    disk.set_aside.is_some(),
                    "seed {seed}: {fence} has settled, {epoch} is under way at {node}"
                );
            }
            last = stage.opened(ticket).0;
        }
        // What was set aside returns once it has answered.
        servers.hung.fill(false);
        (0..40).for_each(|_| servers.second(&mut stage));
        assert!(!stage.states().contains('m'), "seed {seed}: {}", stage.states());
    }
}
