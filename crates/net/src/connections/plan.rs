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

/// What placing the connections on an address has shown.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlacementStatus {
    /// Connections tried.
    pub tried: usize,
    /// Links they left by, seen from the node that shows more.
    pub links_out: usize,
    /// Links the other direction came by.
    pub links_back: usize,
    /// What came of it, for people: where connections cannot help it says why, and the remedy.
    pub reason: String,
    /// Whether the links' counters agreed with it when they were last compared under load; absent: they
    /// were not yet.
    pub verified: Option<bool>,
}

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
/// So long after a path was lost, connections are taken as they come, and placed afterwards.
const HASTE: Duration = Duration::from_secs(5);
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
    /// When a path was found dead here.
    lost: Option<Instant>,
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
                lost: None,
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

    /// Whether a rail that has worked is left: an idle group looks whether it is back.
    pub(crate) fn has_left(&self) -> bool {
        self.rails.iter().any(|r| r.down && r.was_up)
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

    /// A path of `rail` is dead, others may be.
    pub(crate) fn path_lost(&mut self, rail: usize, now: Instant) {
        if let Some(r) = self.rails.get_mut(rail) {
            r.lost = Some(now);
        }
    }

    /// Whether connections on `rail` are to be made without trying them out: a path has just been lost.
    pub(crate) fn in_haste(&self, rail: usize, now: Instant) -> bool {
        let lost = self.rails.get(rail).and_then(|r| r.lost);
        lost.is_some_and(|t| now.saturating_duration_since(t) < HASTE)
    }

    /// What was shown of `rail` is no longer so; that there were more links is kept.
    pub(crate) fn forget_placement(&mut self, rail: usize) {
        if let Some(r) = self.rails.get_mut(rail) {
            r.placement = None;
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
        if path {
            r.lost = Some(now);
            if !alive {
                r.down = true;
                r.error = Some("nothing got through any more".into());
            }
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
        // One that was asked to be replaced may have ended before it was written down here.
        self.replacing.retain(|id| have.iter().any(|h| h.id == *id));
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
#[path = "plan_tests.rs"]
mod tests;
