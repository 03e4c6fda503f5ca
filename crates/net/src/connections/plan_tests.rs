//! What the plan does as rails and connections come and go.

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
        let addrs: Vec<SocketAddr> = (0..rails).map(|i| format!("10.0.{i}.1:1").parse().unwrap()).collect();
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

#[test]
fn a_lost_path_means_haste_for_a_while_and_what_was_seen_of_links_stays() {
    let mut b = Bench::new(1, 2);
    let shown =
        PlacementStatus { tried: 12, links_out: 2, links_back: 2, reason: String::new(), verified: None };
    b.plan.set_placement(0, shown);
    assert!(!b.plan.in_haste(0, b.now));
    let have = Have { id: 1, lane: Lane::Bulk, rail: 0, leaving: false };
    let end = Ended { now: b.now, held: HELD, worked: true, alive: true, path: true };
    b.plan.ended(have, end, 1.0);
    assert!(b.plan.in_haste(0, b.now) && b.plan.in_haste(0, b.now + HASTE / 2));
    assert!(!b.plan.rails()[0].down, "another connection lives on it");
    b.plan.forget_placement(0);
    assert!(b.plan.is_poor(0, 2, [1, 1]) && !b.plan.is_poor(0, 2, [2, 2]));
    assert!(!b.plan.in_haste(0, b.now + HASTE));
}
