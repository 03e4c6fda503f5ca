//! Which connections a group should have, on which rails, and what to do next: decisions only, no I/O.
//!
//! Bulk connections are spread evenly over the rails that work; one control connection stays where it is
//! while its rail works. A rail is left when an attempt on it fails and nothing else lives there, and is
//! tried again until it answers. A connection is drained only when those that replace it stand, so a
//! change never leaves fewer connections than before.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use wire::hello::Lane;

use crate::PlacementStatus;

/// First pause after a failure; doubled up to `backoff_max`.
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
/// A connection that held this long was no failure.
const HELD: Duration = Duration::from_secs(1);
/// An attempt not answered for this long makes way for attempts on other rails.
const SLOW: Duration = Duration::from_millis(300);
/// A rail that never worked is tried this seldom: it may be a network this node is not on.
const STRANGE_PAUSE: Duration = Duration::from_secs(15);
/// A peer that refused is asked again after this.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Rails of one peer.
pub(crate) const RAILS_MAX: usize = 16;

/// One network address of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Rail {
    pub addr: SocketAddr,
    /// The last attempt failed and nothing lives on it.
    pub down: bool,
    pub was_up: bool,
    pub error: Option<String>,
    /// What placing its connections has shown.
    pub placement: Option<PlacementStatus>,
    /// The most links that any placement has shown, out and back.
    most: [usize; 2],
    backoff: Duration,
    not_before: Option<Instant>,
}

/// A connection as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Have {
    pub id: u64,
    pub lane: Lane,
    pub rail: usize,
    /// Being drained or closed: it no longer counts.
    pub leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Connect; the plan counts it until `dialed` or `failed` is told.
    Dial { lane: Lane, rail: usize },
    /// Drain this connection.
    Drain { conn: u64 },
}

/// How an attempt failed.
pub(crate) struct Failed {
    pub now: Instant,
    /// Other connections live on its rail.
    pub alive: bool,
    /// The peer said no.
    pub refused: bool,
    pub error: String,
}

/// How a connection ended.
pub(crate) struct Ended {
    pub now: Instant,
    pub held: Duration,
    /// The peer has said something on it, beyond the handshake.
    pub worked: bool,
    /// Others live on its rail.
    pub alive: bool,
    /// Nothing passes between the nodes on this path any more.
    pub path: bool,
}

#[derive(Clone, Copy)]
struct Dialing {
    lane: Lane,
    rail: usize,
    since: Instant,
}

pub(crate) struct Plan {
    rails: Vec<Rail>,
    dialing: Vec<Dialing>,
    /// To be drained once others stand in their places.
    replacing: Vec<u64>,
    /// Where counting starts, so that not all groups use the same rails when there are too many.
    first: usize,
    /// Longest pause between attempts.
    backoff_max: Duration,
}

impl Plan {
    pub(crate) fn new(addrs: &[SocketAddr], first: usize, backoff_max: Duration) -> Plan {
        let mut plan =
            Plan { rails: Vec::new(), dialing: Vec::new(), replacing: Vec::new(), first, backoff_max };
        addrs.iter().for_each(|&addr| plan.add_rail(addr));
        plan
    }

    pub(crate) fn add_rail(&mut self, addr: SocketAddr) {
        if self.rails.len() < RAILS_MAX && !self.rails.iter().any(|r| r.addr == addr) {
            self.rails.push(Rail {
                addr,
                down: false,
                was_up: false,
                error: None,
                placement: None,
                most: [0; 2],
                backoff: BACKOFF_FIRST,
                not_before: None,
            });
        }
    }

    pub(crate) fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// Whether attempts are under way.
    pub(crate) fn is_dialing(&self) -> bool {
        !self.dialing.is_empty()
    }

    /// Whether a connection waits for its replacement.
    pub(crate) fn is_replacing(&self) -> bool {
        !self.replacing.is_empty()
    }

    /// Whether `conn` waits for its replacement.
    pub(crate) fn replaces(&self, conn: u64) -> bool {
        self.replacing.contains(&conn)
    }

    /// Asks that these be replaced by others on their rails; not while others are.
    pub(crate) fn replace(&mut self, conns: &[u64]) {
        if self.replacing.is_empty() {
            self.replacing = conns.to_vec();
        }
    }

    /// Attempts on `rail` take long because much is tried: it still answers.
    pub(crate) fn still_dialing(&mut self, lane: Lane, rail: usize, now: Instant) {
        let these = self.dialing.iter_mut().filter(|d| d.lane == lane && d.rail == rail);
        these.for_each(|d| d.since = now);
    }

    /// Whether the links' counters agreed with the placement on `rail`.
    pub(crate) fn set_verified(&mut self, rail: usize, agrees: bool) {
        if let Some(p) = self.rails.get_mut(rail).and_then(|r| r.placement.as_mut()) {
            p.verified = Some(agrees);
        }
    }

    pub(crate) fn set_placement(&mut self, rail: usize, status: PlacementStatus) {
        if let Some(r) = self.rails.get_mut(rail) {
            r.most = [r.most[0].max(status.links_out), r.most[1].max(status.links_back)];
            r.placement = Some(status);
        }
    }

    /// Whether `connections` that use so many links, out and back, could use more: there have been more.
    pub(crate) fn is_poor(&self, rail: usize, connections: usize, used: [usize; 2]) -> bool {
        let most = self.rails.get(rail).map_or([0; 2], |r| r.most);
        (0..2).any(|side| used[side] < most[side].min(connections))
    }

    /// An attempt has led to a connection.
    pub(crate) fn dialed(&mut self, lane: Lane, rail: usize) {
        self.attempt_over(lane, rail);
        if let Some(r) = self.rails.get_mut(rail) {
            (r.down, r.was_up, r.error, r.not_before) = (false, true, None, None);
        }
    }

    /// An attempt has failed. `jitter` is 0.5 to 1.5.
    pub(crate) fn failed(&mut self, lane: Lane, rail: usize, failure: Failed, jitter: f64) {
        let Failed { now, alive, refused, error } = failure;
        self.attempt_over(lane, rail);
        let (several, backoff_max) = (self.rails.len() > 1, self.backoff_max);
        let Some(r) = self.rails.get_mut(rail) else { return };
        r.down = !alive;
        r.error = Some(error);
        r.pause(now, backoff_max, jitter);
        if refused {
            r.not_before = Some(now + REFUSED_PAUSE.mul_f64(jitter));
        } else if !r.was_up && several && r.backoff >= backoff_max {
            r.not_before = Some(now + STRANGE_PAUSE.mul_f64(jitter));
        }
    }

    /// A connection has ended.
    pub(crate) fn ended(&mut self, have: Have, end: Ended, jitter: f64) {
        let Ended { now, held, worked, alive, path } = end;
        let backoff_max = self.backoff_max;
        self.replacing.retain(|&id| id != have.id);
        let Some(r) = self.rails.get_mut(have.rail) else { return };
        if path && !alive {
            r.down = true;
        }
        if held >= HELD || worked {
            r.backoff = BACKOFF_FIRST;
        }
        if held < HELD && !have.leaving {
            r.pause(now, backoff_max, jitter);
        }
    }

    fn attempt_over(&mut self, lane: Lane, rail: usize) {
        if let Some(i) = self.dialing.iter().position(|d| d.lane == lane && d.rail == rail) {
            self.dialing.swap_remove(i);
        }
    }

    /// What to do now, to have `bulk` bulk connections (0: none is needed yet). Calling it again without an
    /// event in between gives nothing new.
    pub(crate) fn steps(&mut self, now: Instant, have: &[Have], bulk: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let live =
            |lane, rail| have.iter().filter(|h| h.lane == lane && h.rail == rail && !h.leaving).count();
        let usable: Vec<usize> = (0..self.rails.len())
            .filter(|&r| self.is_usable(r, now, live(Lane::Control, r) + live(Lane::Bulk, r)))
            .collect();
        self.control(now, have, &usable, &mut steps);
        if bulk > 0 {
            self.bulk(now, have, &usable, bulk, &mut steps);
        }
        steps
    }

    fn is_usable(&self, rail: usize, now: Instant, live: usize) -> bool {
        let slow =
            self.dialing.iter().any(|d| d.rail == rail && now.saturating_duration_since(d.since) >= SLOW);
        !self.rails[rail].down && (live > 0 || !slow)
    }

    /// The rails to use, beginning with this group's first; all of them if none is known to work.
    fn choice(&self, usable: &[usize]) -> Vec<usize> {
        let mut rails = if usable.is_empty() { (0..self.rails.len()).collect() } else { usable.to_vec() };
        let n = rails.len().max(1);
        rails.rotate_left(self.first % n);
        rails
    }

    fn control(&mut self, now: Instant, have: &[Have], usable: &[usize], steps: &mut Vec<Step>) {
        let mine: Vec<&Have> = have.iter().filter(|h| h.lane == Lane::Control && !h.leaving).collect();
        let stays = |h: &&&Have| !self.replacing.contains(&h.id);
        if !mine.iter().any(|h| stays(&h)) {
            for rail in self.choice(usable) {
                let tried = self.dialing.iter().any(|d| d.lane == Lane::Control && d.rail == rail);
                let answering = |d: &Dialing| d.lane == Lane::Control && usable.contains(&d.rail);
                if self.dialing.iter().any(answering) {
                    return;
                }
                if !tried && self.may_dial(rail, now) {
                    self.begin(Lane::Control, rail, now, steps);
                    if !usable.is_empty() {
                        return;
                    }
                }
            }
        } else if mine.len() > 1 {
            let good = mine.iter().filter(stays).find(|h| usable.contains(&h.rail));
            let keep = good.or_else(|| mine.iter().find(stays)).unwrap_or(&mine[0]).id;
            let surplus: Vec<u64> = mine.iter().map(|h| h.id).filter(|&id| id != keep).collect();
            self.replacing.retain(|id| !surplus.contains(id));
            steps.extend(surplus.iter().map(|&conn| Step::Drain { conn }));
        }
    }

    fn bulk(&mut self, now: Instant, have: &[Have], usable: &[usize], bulk: usize, steps: &mut Vec<Step>) {
        let rails = self.choice(usable);
        if rails.is_empty() {
            return;
        }
        let mut wanted = vec![0usize; self.rails.len()];
        (0..bulk).for_each(|i| wanted[rails[i % rails.len()]] += 1);
        let is_bulk = |id: &u64| have.iter().any(|h| h.id == *id && h.lane == Lane::Bulk);
        let (replacing, others) = std::mem::take(&mut self.replacing).into_iter().partition(is_bulk);
        let (replacing, others): (Vec<u64>, Vec<u64>) = (replacing, others);
        self.replacing = others;
        let counted = |h: &&Have| h.lane == Lane::Bulk && !h.leaving && !replacing.contains(&h.id);
        let live = |rail| have.iter().filter(counted).filter(|h| h.rail == rail).count();
        for (rail, &wanted) in wanted.iter().enumerate() {
            let dialing = self.dialing.iter().filter(|d| d.lane == Lane::Bulk && d.rail == rail).count();
            let missing = wanted.saturating_sub(live(rail) + dialing);
            for _ in 0..missing {
                if self.may_dial(rail, now) {
                    self.begin(Lane::Bulk, rail, now, steps);
                }
            }
            // A rail that was left: one attempt at a time says whether it is back.
            if !usable.contains(&rail) && wanted == 0 && dialing == 0 && self.may_dial(rail, now) {
                self.begin(Lane::Bulk, rail, now, steps);
            }
        }
        if (0..self.rails.len()).any(|rail| live(rail) < wanted[rail]) {
            self.replacing.extend(replacing);
            return;
        }
        steps.extend(replacing.iter().map(|&conn| Step::Drain { conn }));
        for (rail, &wanted) in wanted.iter().enumerate() {
            let on_rail = have.iter().filter(counted).filter(|h| h.rail == rail);
            // The oldest stay: they were placed first.
            steps.extend(on_rail.skip(wanted).map(|h| Step::Drain { conn: h.id }));
        }
    }

    fn may_dial(&self, rail: usize, now: Instant) -> bool {
        self.rails[rail].not_before.is_none_or(|t| now >= t)
    }

    fn begin(&mut self, lane: Lane, rail: usize, now: Instant, steps: &mut Vec<Step>) {
        self.dialing.push(Dialing { lane, rail, since: now });
        steps.push(Step::Dial { lane, rail });
    }

    /// When `steps` may have something new although nothing has happened.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let slow = self.dialing.iter().map(|d| d.since + SLOW);
        slow.chain(self.rails.iter().filter_map(|r| r.not_before)).filter(|&t| t > now).min()
    }
}

impl Rail {
    fn pause(&mut self, now: Instant, backoff_max: Duration, jitter: f64) {
        self.not_before = Some(now + self.backoff.mul_f64(jitter));
        self.backoff = (self.backoff * 2).min(backoff_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(1);

    struct Bench {
        plan: Plan,
        have: Vec<Have>,
        now: Instant,
        next_id: u64,
        dead: Vec<usize>,
        bulk: usize,
        /// Attempts that will fail.
        failing: Vec<(Instant, Lane, usize)>,
    }

    impl Bench {
        fn new(rails: usize, bulk: usize) -> Bench {
            let addrs: Vec<SocketAddr> =
                (0..rails).map(|i| format!("10.0.{i}.1:1").parse().unwrap()).collect();
            let plan = Plan::new(&addrs, 0, MAX);
            let (have, dead, failing) = (Vec::new(), Vec::new(), Vec::new());
            Bench { plan, have, now: Instant::now(), next_id: 1, dead, bulk, failing }
        }
        /// Does what the plan says for `time`; attempts on dead rails fail after 500 ms.
        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                for step in self.plan.steps(self.now, &self.have, self.bulk) {
                    match step {
                        Step::Dial { lane, rail } if self.dead.contains(&rail) => {
                            self.failing.push((self.now + Duration::from_millis(500), lane, rail));
                        }
                        Step::Dial { lane, rail } => {
                            self.plan.dialed(lane, rail);
                            self.have.push(Have { id: self.next_id, lane, rail, leaving: false });
                            self.next_id += 1;
                        }
                        Step::Drain { conn } => self.have.retain(|h| h.id != conn),
                    }
                }
                self.now += Duration::from_millis(50);
                let now = self.now;
                for (_, lane, rail) in self.failing.extract_if(.., |f| f.0 <= now).collect::<Vec<_>>() {
                    let alive = self.have.iter().any(|h| h.rail == rail);
                    let failure = Failed { now, alive, refused: false, error: "dead".into() };
                    self.plan.failed(lane, rail, failure, 1.0);
                }
            }
        }
        fn cut(&mut self, rail: usize) {
            self.dead.push(rail);
            let lost: Vec<Have> = self.have.extract_if(.., |h| h.rail == rail).collect();
            for h in lost {
                let held = Duration::from_secs(9);
                let end = Ended { now: self.now, held, worked: true, alive: false, path: true };
                self.plan.ended(h, end, 1.0);
            }
        }
        fn bulk_by_rail(&self) -> Vec<usize> {
            let rails = 0..self.plan.rails().len();
            rails.map(|r| self.have.iter().filter(|h| h.lane == Lane::Bulk && h.rail == r).count()).collect()
        }
        fn controls(&self) -> usize {
            self.have.iter().filter(|h| h.lane == Lane::Control).count()
        }
    }

    #[test]
    fn connections_are_spread_over_the_rails() {
        let mut b = Bench::new(2, 0);
        b.run(MAX);
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![0, 0], 1));
        b.bulk = 5;
        b.run(MAX);
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![3, 2], 1));
        b.bulk = 2;
        b.run(MAX);
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![1, 1], 1));
    }

    #[test]
    fn a_cut_rail_is_left_and_taken_back() {
        let mut b = Bench::new(2, 4);
        b.run(MAX);
        b.cut(0);
        b.run(Duration::from_millis(100));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![0, 4], 1), "at once, on the other rail");
        b.run(Duration::from_secs(20));
        assert!(b.plan.rails()[0].down);
        b.dead.clear();
        b.run(Duration::from_secs(3));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![2, 2], 1));
        assert!(!b.plan.rails()[0].down);
    }

    #[test]
    fn a_first_rail_that_says_nothing_does_not_hold_up_the_rest() {
        let mut b = Bench::new(3, 2);
        b.dead = vec![0];
        b.run(Duration::from_millis(450));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![0, 1, 1], 1));
    }

    #[test]
    fn all_rails_down_are_tried_with_pauses() {
        let mut b = Bench::new(2, 2);
        b.dead = vec![0, 1];
        b.run(Duration::from_secs(5));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![0, 0], 0));
        b.dead.clear();
        b.run(Duration::from_secs(25));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![1, 1], 1));
    }

    #[test]
    fn a_replaced_connection_goes_only_when_the_new_one_stands() {
        let mut b = Bench::new(1, 2);
        b.run(MAX);
        let old = b.have.iter().find(|h| h.lane == Lane::Bulk).unwrap().id;
        b.plan.replace(&[old]);
        let steps = b.plan.steps(b.now, &b.have, 2);
        assert_eq!(steps, [Step::Dial { lane: Lane::Bulk, rail: 0 }]);
        assert_eq!(b.plan.steps(b.now, &b.have, 2), []);
        b.plan.dialed(Lane::Bulk, 0);
        b.have.push(Have { id: 99, lane: Lane::Bulk, rail: 0, leaving: false });
        assert_eq!(b.plan.steps(b.now, &b.have, 2), [Step::Drain { conn: old }]);
        assert!(!b.plan.is_replacing());
    }

    #[test]
    fn one_that_was_of_use_is_made_anew_soon_however_often_it_is_lost() {
        for worked in [true, false] {
            let mut b = Bench::new(1, 1);
            let stands = (0..12).filter(|_| {
                b.run(Duration::from_millis(100));
                let held = Duration::from_millis(90);
                for lost in std::mem::take(&mut b.have) {
                    let end = Ended { now: b.now, held, worked, alive: false, path: false };
                    b.plan.ended(lost, end, 1.0);
                }
                b.plan.rails()[0].not_before.is_some_and(|t| t <= b.now + 4 * BACKOFF_FIRST)
            });
            assert_eq!(stands.count() == 12, worked);
        }
    }

    #[test]
    fn stuck_connections_stay_until_others_stand() {
        let mut b = Bench::new(1, 2);
        b.run(MAX);
        let old: Vec<u64> = b.have.iter().map(|h| h.id).collect();
        b.plan.replace(&old);
        b.dead = vec![0];
        b.run(Duration::from_secs(3));
        assert!(old.iter().all(|id| b.have.iter().any(|h| h.id == *id)) && b.have.len() == 3);
        b.dead.clear();
        b.run(Duration::from_secs(3));
        assert_eq!((b.bulk_by_rail(), b.controls()), (vec![2], 1));
        assert!(!b.have.iter().any(|h| old.contains(&h.id)) && !b.plan.is_replacing());
    }

    #[test]
    fn a_rail_that_had_more_links_is_poor() {
        let mut b = Bench::new(1, 2);
        assert!(!b.plan.is_poor(0, 4, [1, 1]), "nothing better is known");
        let status = |links_out, links_back| PlacementStatus {
            tried: 9,
            links_out,
            links_back,
            reason: String::new(),
            verified: None,
        };
        b.plan.set_placement(0, status(4, 2));
        b.plan.set_placement(0, status(1, 1));
        assert!(b.plan.is_poor(0, 4, [3, 2]) && b.plan.is_poor(0, 2, [2, 1]));
        assert!(!b.plan.is_poor(0, 4, [4, 2]) && !b.plan.is_poor(0, 2, [2, 2]));
    }

    #[test]
    fn an_address_is_one_rail() {
        let mut b = Bench::new(1, 1);
        let addr = b.plan.rails()[0].addr;
        b.plan.add_rail(addr);
        assert_eq!(b.plan.rails().len(), 1);
        for i in 0..40 {
            b.plan.add_rail(format!("10.1.0.{i}:1").parse().unwrap());
        }
        assert_eq!(b.plan.rails().len(), RAILS_MAX);
    }
}
