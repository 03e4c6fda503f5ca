//! How the connections of a group fare, judged from what the kernel says of them at each tick: measured
//! rates, paths through which nothing passes any more, connections that stay much slower than others.
//! Decisions only: the caller asks the sockets and acts.
//!
//! A path is dead when sent bytes stay unacknowledged and nothing arrives, while another connection of
//! the same group does get through. The peer's kernel acknowledges also for a process that is stopped or
//! busy, so a slow peer is not taken for a dead path. When nothing gets through anywhere, others are tried
//! beside those that are there: by another way (ECMP) they may get through. If they do not, the peer is
//! gone, which the heartbeat finds.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Time between looks at a busy group.
pub(crate) const TICK: Duration = Duration::from_millis(200);
/// The same, at most, where all is well and only small requests are unanswered, such as questions whose answers may be long in coming.
/// Each look asks the silent for a sign of life, and judges by when it asked: a dead path is found no later than by [`TICK`], where
/// every second look asks.
pub(crate) const QUIET: Duration = Duration::from_millis(512);
/// After this without progress nothing new is given to a connection if there are others.
const SUSPECT_AFTER: Duration = Duration::from_millis(250);
/// After this it is given up if others get through.
const DEAD_AFTER: Duration = Duration::from_millis(600);
/// After this without progress anywhere, others are tried beside those that are there.
const STUCK_AFTER: Duration = Duration::from_millis(400);
/// A connection that got something this recently gets through.
const LIVE_WITHIN: Duration = Duration::from_millis(500);
/// A silent one that is waited for is asked for a sign of life, this often at most.
const PING_EVERY: Duration = Duration::from_millis(350);
/// One window of the comparison of rates.
const WINDOW: Duration = Duration::from_secs(1);
/// Windows in a row below half the fastest after which a connection is replaced when it is quiet ...
const SLOW_WINDOWS_QUIET: u32 = 3;
/// ... and even when it is not.
const SLOW_WINDOWS: u32 = 12;
/// No second replacement in a group sooner than this.
const HOLD_OFF: Duration = Duration::from_secs(30);

/// What a look at one connection shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub conn: u64,
    pub rail: usize,
    pub bulk: bool,
    /// Bytes the peer's kernel has acknowledged, and bytes received, since the connection began.
    pub acked: u64,
    pub received: u64,
    /// Something sent is not acknowledged.
    pub unacked: bool,
    /// Requests are unanswered now.
    pub waited_for: bool,
    /// Requests were unanswered all the time since the last look.
    pub busy: bool,
    /// When the first of the requests began that are unanswered and were not at the last look; looked up if that is long ago.
    pub asked: Option<Instant>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Ping(u64),
    /// Give it nothing new, or do again.
    Suspect(u64, bool),
    /// Nothing gets through it any more.
    PathDead(u64, Duration),
    /// Nothing gets through it, nor through any other: another beside it may.
    Stuck(u64),
    /// Its measured rate in bytes a second.
    Rate(u64, u64),
    /// It stays much slower than the fastest beside it.
    Replace(u64),
}

#[derive(Default)]
struct Health {
    acked: u64,
    received: u64,
    /// The last time either grew.
    progress: Option<Instant>,
    /// Unacknowledged bytes without progress since.
    stalled: Option<Instant>,
    suspect: bool,
    pinged: Option<Instant>,
    rate: f64,
    /// Of the current window.
    window_bytes: u64,
    window_busy: bool,
    slow_windows: u32,
}

#[derive(Default)]
pub(crate) struct Watch {
    conns: HashMap<u64, Health>,
    last: Option<Instant>,
    /// The last look followed the one before soon enough to judge by both.
    steady: bool,
    window_began: Option<Instant>,
    hold_off_until: Option<Instant>,
    window: Option<Window>,
}

/// One window of a whole group's bulk connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    /// Bytes a second, both directions.
    pub rate: f64,
    /// On some connection requests were unanswered all the time.
    pub busy: bool,
}

/// Whether a look so long after the one before is one of those that are rare because all is quiet.
fn is_sparse(elapsed: Duration) -> bool {
    elapsed > TICK * 3 / 2
}

impl Watch {
    /// One look at all connections of a group.
    pub(crate) fn look(&mut self, now: Instant, seen: &[Seen]) -> Vec<Advice> {
        let elapsed = self.last.map(|t| now.saturating_duration_since(t));
        let before = self.last.replace(now);
        let slept = elapsed.is_none_or(|e| e > 3 * TICK);
        self.steady = !slept;
        let sparse = !slept && elapsed.is_some_and(is_sparse);
        self.conns.retain(|id, _| seen.iter().any(|s| s.conn == *id));
        let mut advice = Vec::new();
        for s in seen {
            let h = self.conns.entry(s.conn).or_default();
            let moved = (s.acked - h.acked.min(s.acked)) + (s.received - h.received.min(s.received));
            (h.acked, h.received) = (s.acked, s.received);
            if moved > 0 {
                h.progress = Some(now);
            }
            if moved > 0 || !s.unacked || slept {
                h.stalled = None;
            } else {
                // Long ago nothing was unacknowledged: what is was sent after that, at the earliest what is known of.
                let sent = [s.asked, h.pinged.filter(|t| Some(*t) >= before)].into_iter().flatten().min();
                h.stalled.get_or_insert(sent.filter(|_| sparse).unwrap_or(now));
            }
            h.window_bytes += moved;
            h.window_busy &= s.busy;
            if let (Some(e), true, false) = (elapsed, s.busy && s.bulk, slept) {
                let rate = moved as f64 / e.as_secs_f64().max(1e-3);
                h.rate = if h.rate == 0.0 { rate } else { 0.7 * h.rate + 0.3 * rate };
                advice.push(Advice::Rate(s.conn, h.rate as u64));
            }
        }
        self.paths(now, sparse, seen, &mut advice);
        self.windows(now, slept, seen, &mut advice);
        advice
    }

    /// The window that has just ended, once.
    pub(crate) fn take_window(&mut self) -> Option<Window> {
        self.window.take()
    }

    /// Whether nothing is in doubt.
    pub(crate) fn is_well(&self) -> bool {
        self.steady && self.conns.values().all(|h| h.stalled.is_none() && !h.suspect)
    }

    /// The time of the last look, if the one at `now` follows it as looks do where all is quiet.
    pub(crate) fn long_before(&self, now: Instant) -> Option<Instant> {
        self.last.filter(|last| is_sparse(now.saturating_duration_since(*last)))
    }

    fn paths(&mut self, now: Instant, sparse: bool, seen: &[Seen], advice: &mut Vec<Advice>) {
        let since = |t: Option<Instant>| t.map(|t| now.saturating_duration_since(t));
        let any_stalled = self.conns.values().any(|h| h.stalled.is_some());
        let live: Vec<u64> = (self.conns.iter())
            .filter(|(_, h)| since(h.progress).is_some_and(|t| t <= LIVE_WITHIN) && h.stalled.is_none())
            .map(|(&id, _)| id)
            .collect();
        for s in seen {
            let Some(h) = self.conns.get_mut(&s.conn) else { continue };
            let others_live = live.iter().any(|&id| id != s.conn);
            let stalled = since(h.stalled).unwrap_or_default();
            let suspect = stalled >= SUSPECT_AFTER;
            if suspect != h.suspect {
                h.suspect = suspect;
                advice.push(Advice::Suspect(s.conn, suspect));
            }
            if stalled >= DEAD_AFTER && others_live {
                advice.push(Advice::PathDead(s.conn, stalled));
                continue;
            }
            if stalled >= STUCK_AFTER && live.is_empty() {
                advice.push(Advice::Stuck(s.conn));
            }
            // How long ago it was that something came is not known where looks are rare.
            let silent = sparse || since(h.progress).is_none_or(|t| t >= TICK);
            let asked = since(h.pinged).is_some_and(|t| t < PING_EVERY);
            if silent && !s.unacked && !asked && (s.waited_for || any_stalled) {
                h.pinged = Some(now);
                advice.push(Advice::Ping(s.conn));
            }
        }
    }

    fn windows(&mut self, now: Instant, slept: bool, seen: &[Seen], advice: &mut Vec<Advice>) {
        let began = *self.window_began.get_or_insert(now);
        if !slept && now.saturating_duration_since(began) < WINDOW {
            return;
        }
        self.window_began = Some(now);
        let bulk = || seen.iter().filter(|s| s.bulk).filter_map(|s| self.conns.get(&s.conn));
        let bytes: u64 = bulk().map(|h| h.window_bytes).sum();
        let seconds = now.saturating_duration_since(began).as_secs_f64().max(1e-3);
        let busy = !slept && bulk().any(|h| h.window_busy);
        self.window = Some(Window { rate: bytes as f64 / seconds, busy });
        let held_off = self.hold_off_until.is_some_and(|t| now < t);
        let mut worst: Option<(u64, u64)> = None;
        for s in seen.iter().filter(|s| s.bulk) {
            let beside = seen.iter().filter(|o| o.bulk && o.rail == s.rail && o.conn != s.conn);
            let busy_bytes = |id: u64| self.conns.get(&id).filter(|h| h.window_busy).map(|h| h.window_bytes);
            let fastest = beside.filter_map(|o| busy_bytes(o.conn)).max();
            let mine = busy_bytes(s.conn);
            let Some(h) = self.conns.get_mut(&s.conn) else { continue };
            match (mine, fastest) {
                (Some(mine), Some(fastest)) if mine < fastest / 2 && !slept => h.slow_windows += 1,
                // A window without load says nothing.
                (None, _) | (_, None) => {}
                _ => h.slow_windows = 0,
            }
            let enough = if s.waited_for { SLOW_WINDOWS } else { SLOW_WINDOWS_QUIET };
            if h.slow_windows >= enough && worst.is_none_or(|(_, bytes)| h.window_bytes < bytes) {
                worst = Some((s.conn, h.window_bytes));
            }
        }
        for h in self.conns.values_mut() {
            (h.window_bytes, h.window_busy) = (0, true);
        }
        if let (Some((conn, _)), false) = (worst, held_off) {
            self.hold_off_until = Some(now + HOLD_OFF);
            if let Some(h) = self.conns.get_mut(&conn) {
                h.slow_windows = 0;
            }
            advice.push(Advice::Replace(conn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        watch: Watch,
        now: Instant,
        seen: Vec<Seen>,
    }

    impl Bench {
        fn new(conns: u64) -> Bench {
            let seen = |conn| Seen { conn, bulk: true, ..Seen::default() };
            let mut bench =
                Bench { watch: Watch::default(), now: Instant::now(), seen: (1..=conns).map(seen).collect() };
            bench.run(2, |_| {});
            bench
        }
        fn run(&mut self, ticks: u32, mut change: impl FnMut(&mut [Seen])) -> Vec<Advice> {
            let mut all = Vec::new();
            for _ in 0..ticks {
                change(&mut self.seen);
                self.now += TICK;
                all.extend(self.watch.look(self.now, &self.seen));
            }
            all
        }
        fn load(rates: &[u64]) -> impl FnMut(&mut [Seen]) {
            move |seen| {
                for (s, rate) in seen.iter_mut().zip(rates) {
                    s.received += rate / 5;
                    (s.waited_for, s.busy) = (true, true);
                }
            }
        }
    }

    fn dead(advice: &[Advice]) -> Vec<u64> {
        let conn = |a: &Advice| if let Advice::PathDead(c, _) = a { Some(*c) } else { None };
        advice.iter().filter_map(conn).collect()
    }

    #[test]
    fn a_cut_path_is_found_within_a_second_when_another_gets_through() {
        let mut b = Bench::new(2);
        b.run(5, Bench::load(&[1 << 20, 1 << 20]));
        let advice = b.run(5, |seen| {
            Bench::load(&[1 << 20, 0])(seen);
            seen[1].unacked = true;
        });
        assert_eq!(dead(&advice).first(), Some(&2), "{advice:?}");
        assert!(advice.contains(&Advice::Suspect(2, true)));
        assert!(!dead(&advice).contains(&1));
    }

    #[test]
    fn a_reader_that_waits_finds_the_cut_by_asking() {
        let mut b = Bench::new(2);
        b.run(5, Bench::load(&[1 << 20, 1 << 20]));
        let mut asked = false;
        let mut found = 0;
        for tick in 1..=7 {
            let advice = b.run(1, |seen| {
                Bench::load(&[1 << 20, 0])(seen);
                seen[1].unacked = asked;
            });
            asked |= advice.contains(&Advice::Ping(2));
            if !dead(&advice).is_empty() {
                found = tick;
                break;
            }
        }
        assert!((1..=7).contains(&found));
    }

    /// When what is asked for is said, looked at as rarely as where all is quiet, after a cut that comes as soon as a look's sign of life was answered:
    /// by TICK it is `limit` at most.
    fn found(conns: u64, lively: bool, limit: Duration, said: impl Fn(&Advice) -> bool) {
        for first in [448, 512] {
            let mut b = Bench::new(conns);
            let steps = [first, 960 - first].map(Duration::from_millis);
            let mut steps = steps.into_iter().cycle();
            // Answers to what was asked at the last look, by the connections that get through.
            let (mut pings, mut cut_at) = (vec![], b.now);
            for look in 0.. {
                let quiet = b.watch.is_well() && look > 0;
                b.now += if quiet { steps.next().unwrap() } else { TICK };
                for s in &mut b.seen {
                    let through = look < 9 || lively && s.conn == 1;
                    s.received += if through && pings.contains(&s.conn) { 128 } else { 0 };
                    (s.waited_for, s.unacked) = (true, !through && (s.unacked || pings.contains(&s.conn)));
                }
                let advice = b.watch.look(b.now, &b.seen);
                pings = advice
                    .iter()
                    .filter_map(|a| if let Advice::Ping(c) = a { Some(*c) } else { None })
                    .collect();
                if look == 7 {
                    assert!(b.watch.is_well() && pings.len() == conns as usize, "{pings:?}");
                    cut_at = b.now;
                }
                if look > 7 && advice.iter().any(&said) {
                    break;
                }
                assert!(
                    !advice.iter().any(|a| matches!(a, Advice::Suspect(_, true) | Advice::Stuck(_)))
                        || look > 8
                );
                assert!(b.now - cut_at < 20 * TICK);
            }
            assert!(b.now - cut_at <= limit, "after {:?}", b.now - cut_at);
        }
    }

    #[test]
    fn rare_looks_find_a_cut_as_soon_as_frequent_ones() {
        found(1, false, 5 * TICK, |a| matches!(a, Advice::Stuck(1)));
        found(2, true, 6 * TICK, |a| matches!(a, Advice::PathDead(2, _)));
    }

    #[test]
    fn what_is_sent_between_rare_looks_is_judged_by_when_it_was() {
        let mut b = Bench::new(1);
        b.now += QUIET;
        (b.seen[0].waited_for, b.seen[0].asked) = (true, Some(b.now));
        assert_eq!(b.watch.look(b.now, &b.seen), [Advice::Ping(1)]);
        // What was asked since then is unacknowledged: nothing gets through since it was.
        b.seen[0].asked = Some(b.now + QUIET / 8);
        b.seen[0].unacked = true;
        b.now += QUIET;
        assert!(b.watch.look(b.now, &b.seen).contains(&Advice::Suspect(1, true)));
    }

    #[test]
    fn a_slow_peer_or_a_lost_network_is_no_dead_path() {
        let mut b = Bench::new(2);
        // Acknowledged and silent: the peer thinks.
        let advice = b.run(50, |seen| seen.iter_mut().for_each(|s| (s.waited_for, s.busy) = (true, true)));
        assert!(dead(&advice).is_empty() && advice.contains(&Advice::Ping(1)));
        assert!(!advice.iter().any(|a| matches!(a, Advice::Stuck(_))));
        // Nothing gets through anywhere: others are tried beside them.
        let advice = b.run(5, |seen| seen.iter_mut().for_each(|s| s.unacked = true));
        assert!(dead(&advice).is_empty());
        assert!(advice.ends_with(&[Advice::Stuck(1), Advice::Stuck(2)]), "{advice:?}");
    }

    #[test]
    fn a_process_that_was_stopped_looks_before_it_judges() {
        let mut b = Bench::new(2);
        b.run(3, |seen| {
            Bench::load(&[1 << 20, 0])(seen);
            seen[1].unacked = true;
        });
        b.now += Duration::from_secs(20);
        assert!(dead(&b.run(1, Bench::load(&[1 << 20, 0]))).is_empty());
    }

    #[test]
    fn rates_are_of_busy_time_only() {
        let mut b = Bench::new(2);
        let advice = b.run(40, |seen| {
            Bench::load(&[500 << 20, 100 << 20])(seen);
            seen[1].busy = false;
        });
        let rate = |advice: &[Advice], conn| {
            advice.iter().rev().find_map(|a| match a {
                Advice::Rate(c, r) if *c == conn => Some(*r),
                _ => None,
            })
        };
        assert!(rate(&advice, 1).unwrap().abs_diff(500 << 20) < 5 << 20);
        assert_eq!(rate(&advice, 2), None);
    }

    #[test]
    fn one_much_slower_than_the_fastest_is_replaced_once_in_a_while() {
        let mut b = Bench::new(3);
        let replaced = |advice: &[Advice]| advice.iter().filter(|a| matches!(a, Advice::Replace(_))).count();
        let advice = b.run(5 * 20, Bench::load(&[100, 100, 240].map(|m| m << 20)));
        assert_eq!(replaced(&advice), 1, "hold-off");
        let advice = b.run(5 * 60, Bench::load(&[100, 100, 150].map(|m| m << 20)));
        assert_eq!(replaced(&advice), 0, "not much slower");
        // On another rail a connection may be slower.
        let mut b = Bench::new(2);
        b.seen[1].rail = 1;
        assert_eq!(replaced(&b.run(5 * 60, Bench::load(&[100 << 20, 10 << 20]))), 0);
        // At a quiet moment it takes less to be replaced.
        let mut b = Bench::new(2);
        b.run(5 * 5, Bench::load(&[100 << 20, 10 << 20]));
        let advice = b.run(10, |seen| seen.iter_mut().for_each(|s| (s.waited_for, s.busy) = (false, false)));
        assert!(advice.contains(&Advice::Replace(2)), "{advice:?}");
    }
}
