//! The task that keeps a group's connections: does what the plan says, looks at their health while there
//! is work, closes those that are drained.
//! It sleeps while the group is idle; a call wakes it. It ends with its group.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use base::beat;
use wire::{frame::FrameKind, hello::Lane};

use crate::{
    calls::services::Services,
    config::Placement,
    connections::{
        auto::Auto,
        conn::{Conn, DrainState},
        dial,
        group::Group,
        place,
        plan::{Have, Plan, Step},
        watch::{Advice, QUIET, Seen, TICK, Watch},
    },
    error::CloseReason,
    links::{
        self,
        choose::Path,
        tcp_info::tcp_info,
        verify::{Carried, Verdict, Verify},
    },
};

/// A group not used for this long is not reconnected until it is; but while it is connected, a rail it has left is tried at every
/// look, so that a network that is back is used, and seen, before somebody waits for it.
pub(crate) const USED_WITHIN: Duration = Duration::from_secs(30);
/// Time between looks at an idle group.
const SLEEP: Duration = Duration::from_secs(10);
/// A draining connection is closed after this, whatever it still waits for.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// After connections were placed anew: as long as this, not again.
const HOLD_OFF: Duration = Duration::from_secs(15);

/// What is known from looking at a group while it works.
struct Sight {
    watch: Watch,
    verify: Verify,
    auto: Auto,
    hold_off_until: Option<Instant>,
}

pub(crate) async fn run(group: Weak<Group>, services: Arc<Services>) {
    let mut sight =
        Sight { watch: Watch::default(), verify: Verify::default(), auto: Auto::new(), hold_off_until: None };
    let mut looked = Instant::now();
    loop {
        let Some(group) = group.upgrade() else { return };
        // Made before looking: what happens between looking and waiting is not missed.
        let woken = group.keeper.notified();
        if group.is_shut() {
            return;
        }
        group.keeper_sleeps.store(true, Ordering::SeqCst);
        let now = Instant::now();
        let busy = group.lock().table.is_busy();
        let used = busy || group.idle() <= USED_WITHIN;
        let light = group.lock().table.is_light();
        let since = Some(now.saturating_duration_since(looked)).filter(|since| *since < TICK.mul_f64(0.9));
        let mut until = match (busy, used && group.is_changing()) {
            // Questions that are long in coming, most of all: each client of the manager has one. Looks at the common times.
            (true, false) if light && sight.watch.is_well() => {
                beat::by(now, QUIET).min(now + QUIET.saturating_sub(since.unwrap_or_default()))
            }
            (false, false) => beat::by(now, SLEEP),
            _ => now + TICK,
        };
        if busy || group.is_changing() {
            group.keeper_sleeps.store(false, Ordering::SeqCst);
        }
        if group.dials() && (used || group.has_left_a_rail()) {
            steps(&services, &group, now);
            if let Some(next) = group.lock_plan().next(now).filter(|_| used) {
                until = until.min(next.max(now + Duration::from_millis(1)));
            }
        }
        if !group.dials() {
            let conns = group.lock().conns.clone();
            conns.iter().filter(|c| c.is_outdated()).for_each(|c| drain(&group, c.id));
        }
        if busy && since.is_none() {
            looked = now;
            look(&group, &mut sight, now);
            if !sight.watch.is_well() {
                until = until.min(now + TICK);
            }
        }
        close_drained(&group);
        // Safe to cancel: it only waits, and `notify_one` keeps a permit.
        if tokio::time::timeout_at(until.into(), woken).await.is_err() {
            // What is sent at this common time is sent before it is looked: it asks for a sign of life by itself.
            drop(group);
            tokio::task::yield_now().await;
        }
    }
}

fn steps(services: &Arc<Services>, group: &Arc<Group>, now: Instant) {
    let core = &group.core;
    // Not known before the first handshake, which the control connection does.
    let bulk = if group.bulk_wanted.load(Ordering::Relaxed) { group.conns_wanted() } else { 0 };
    let mut plan = group.lock_plan();
    let conns = group.lock().conns.clone();
    let have: Vec<Have> = conns.iter().map(|c| c.have()).collect();
    place_those_not_placed(group, &mut plan, &conns, bulk.into(), now);
    let outdated = conns.iter().filter(|c| c.is_outdated() && !c.have().leaving);
    plan.replace(&outdated.map(|c| c.id).collect::<Vec<_>>());
    let steps = plan.steps(now, &have, bulk.into());
    let rails: Vec<_> = plan.rails().iter().map(|r| (r.addr, r.down)).collect();
    drop(plan);
    let mut placed = Vec::new();
    for (rail, &(addr, down)) in rails.iter().enumerate() {
        let dials = steps.iter().filter(|s| **s == Step::Dial { lane: Lane::Bulk, rail }).count();
        let live = have.iter().filter(|h| h.lane == Lane::Bulk && h.rail == rail && !h.leaving).count();
        if dials > 0 && dials + live > 1 && can_place(group, addr) {
            placed.push(rail);
            core.runtime.spawn(place::run(Arc::clone(services), Arc::clone(group), rail, addr, dials, down));
        }
    }
    for step in steps {
        match step {
            Step::Dial { lane: Lane::Bulk, rail } if placed.contains(&rail) => {}
            Step::Dial { lane, rail } => {
                if let Some(&(addr, down)) = rails.get(rail) {
                    core.runtime.spawn(dial::attempt(
                        Arc::clone(services),
                        Arc::clone(group),
                        lane,
                        rail,
                        addr,
                        down,
                    ));
                }
            }
            Step::Drain { conn } => drain(group, conn),
        }
    }
}

/// Whether connections to `addr` can be placed on links at all.
fn can_place(group: &Group, addr: SocketAddr) -> bool {
    group.core.config.placement == Placement::Probe && !addr.ip().is_loopback()
}

/// A connection that was the only one on its rail, or was made in haste, was not placed; where several are wanted it is made
/// anew with them, so that all are.
fn place_those_not_placed(group: &Group, plan: &mut Plan, conns: &[Arc<Conn>], bulk: usize, now: Instant) {
    let rails = plan.rails();
    if bulk <= rails.iter().filter(|r| !r.down).count() {
        return;
    }
    let to_place = |rail: usize| {
        let r = &rails[rail];
        r.placement.is_none() && !plan.in_haste(rail, now) && can_place(group, r.addr)
    };
    let to_place: Vec<bool> = (0..rails.len()).map(to_place).collect();
    let unplaced = |c: &&Arc<Conn>| c.lane == Lane::Bulk && c.path.is_none() && !c.have().leaving;
    let these = conns.iter().filter(unplaced).filter(|c| to_place.get(c.rail) == Some(&true));
    plan.replace(&these.map(|c| c.id).collect::<Vec<_>>());
}

pub(crate) fn drain(group: &Group, conn: u64) {
    let conn = group.lock().conns.iter().find(|c| c.id == conn).cloned();
    if let Some(conn) = conn
        && conn.begin_drain()
    {
        group.retire(&conn);
        let _ = conn.send(conn.bare(FrameKind::Drain, 0), false);
    }
}

/// Closes connections on which nothing is under way any more in either direction.
fn close_drained(group: &Group) {
    let done: Vec<Arc<Conn>> = {
        let mut state = group.lock();
        let conns = state.conns.clone();
        let mut over = |conn: &Conn| match conn.drain_state() {
            DrainState::No | DrainState::ByPeer => false,
            DrainState::Begun(since) => since.elapsed() >= DRAIN_MAX,
            DrainState::Agreed(since) => {
                since.elapsed() >= DRAIN_MAX
                    || state.table.look_at(conn.id).0 == 0 && conn.inbound.is_empty() && conn.outbox.is_idle()
            }
        };
        conns.into_iter().filter(|c| over(c)).collect()
    };
    done.iter().for_each(|c| c.close(CloseReason::Drained));
}

/// Finds the number of connections by measuring, where that is asked for.
fn count(group: &Group, sight: &mut Sight, now: Instant) {
    let Some(window) = sight.watch.take_window() else { return };
    if group.core.conns_auto() && group.dials() {
        let limit = group.conns_limit();
        let stands = !group.is_changing();
        group.set_conns_found(sight.auto.window(now, window.busy, stands, window.rate, limit));
    }
}

/// Compares the links' counters with what the connections placed on them carried.
fn verify(group: &Group, sight: &mut Sight, conns: &[Arc<Conn>], seen: &[Seen], now: Instant) {
    let placed = || conns.iter().filter(|c| c.path.is_some() && !c.have().leaving);
    if !group.dials() || placed().count() < 2 || !sight.verify.is_due(now) {
        return;
    }
    let carried: Vec<Carried<'_>> = placed()
        .filter_map(|c| {
            let s = seen.iter().find(|s| s.conn == c.id)?;
            Some(Carried { conn: c.id, path: c.path.as_ref()?, sent: s.acked, received: s.received })
        })
        .collect();
    let links = links::read(conns[0].remote.ip()).links;
    let Some(verdict) = sight.verify.look(now, links, &carried) else { return };
    let held_off = sight.hold_off_until.is_some_and(|t| now < t);
    let name = group.name();
    let mut plan = group.lock_plan();
    placed().for_each(|c| plan.set_verified(c.rail, verdict == Verdict::Agrees));
    if held_off {
        return;
    }
    let poor = (0..plan.rails().len()).any(|rail| {
        let paths: Vec<&Path> = placed().filter(|c| c.rail == rail).filter_map(|c| c.path.as_ref()).collect();
        let distinct = |side: fn(&Path) -> &str| paths.iter().map(|p| side(p)).collect::<HashSet<_>>().len();
        let out = distinct(|p| &p.out).max(distinct(|p| &p.out_at_peer));
        let back = distinct(|p| &p.back).max(distinct(|p| &p.back_from_peer));
        plan.is_poor(rail, paths.len(), [out, back])
    });
    if verdict == Verdict::Disagrees || poor {
        let why = if poor { "there were more links before" } else { "the links' counters do not agree" };
        tracing::info!(peer = %name, "placing its connections anew: {why}");
        sight.hold_off_until = Some(now + HOLD_OFF);
        plan.replace(&placed().map(|c| c.id).collect::<Vec<_>>());
        group.keeper.notify_one();
    }
}

fn look(group: &Arc<Group>, sight: &mut Sight, now: Instant) {
    let conns = group.lock().conns.clone();
    let after = sight.watch.long_before(now);
    let seen: Vec<Seen> = conns.iter().map(|c| seen(group, c, after)).collect();
    let find = |id| conns.iter().find(|c| c.id == id);
    verify(group, sight, &conns, &seen, now);
    let advice = sight.watch.look(now, &seen);
    count(group, sight, now);
    let mut stuck = Vec::new();
    for advice in advice {
        match advice {
            Advice::Rate(id, rate) => group.lock().table.set_rate(id, rate),
            Advice::Suspect(id, suspect) => group.lock().table.set_suspect(id, suspect),
            Advice::Ping(id) => {
                if let Some(conn) = find(id).filter(|c| c.outbox.is_idle()) {
                    let _ = conn.send(conn.bare(FrameKind::Ping, 0), false);
                }
            }
            Advice::PathDead(id, silent) => {
                if let Some(conn) = find(id) {
                    tracing::warn!(peer = %conn.peer_name(), conn = id, local = %conn.local,
                        "nothing gets through for {silent:?} while other connections do: leaving it");
                    conn.close(CloseReason::PathDead(silent));
                }
            }
            Advice::Stuck(id) => stuck.push(id),
            Advice::Replace(id) => {
                if let Some(conn) = find(id).filter(|_| group.dials()) {
                    tracing::info!(peer = %conn.peer_name(), conn = id, local = %conn.local,
                        "much slower than the fastest beside it: replacing it");
                    group.replaced.fetch_add(1, Ordering::Relaxed);
                    conn.stats.replaced.inc();
                    group.lock_plan().replace(&[id]);
                    group.keeper.notify_one();
                }
            }
        }
    }
    if !stuck.is_empty() && group.dials() {
        // Once any of them gets through, the others are known as dead.
        let mut plan = group.lock_plan();
        stuck.iter().filter_map(|&id| find(id)).for_each(|c| plan.path_lost(c.rail, now));
        plan.replace(&stuck);
        drop(plan);
        group.keeper.notify_one();
    }
}

/// `after`: the last look, if it is long ago.
fn seen(group: &Group, conn: &Conn, after: Option<Instant>) -> Seen {
    let mut state = group.lock();
    let (requests, busy) = state.table.look_at(conn.id);
    let asked = after.and_then(|after| state.table.first_since(conn.id, after));
    drop(state);
    let mut info = tcp_info(conn.socket.as_ref()).unwrap_or_default();
    let mut unacked = info.unacked > 0 || !conn.outbox.is_idle();
    if let Some(shared) = conn.socket.shared() {
        // Memory loses nothing: a peer that reads none of it is slow or stopped, which its heartbeat tells.
        (info.bytes_acked, info.bytes_received) = shared.moved();
        unacked = false;
    }
    Seen {
        conn: conn.id,
        rail: conn.rail,
        bulk: conn.lane == Lane::Bulk,
        acked: info.bytes_acked,
        received: info.bytes_received,
        unacked,
        waited_for: requests > 0,
        busy,
        asked,
    }
}
