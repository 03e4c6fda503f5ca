//! Placement: bulk connections to one address of a peer are tried on several source ports, and those are
//! kept that together use all links equally, in both directions.
//!
//! Where a bond's formula is known the ports are computed (`hash.rs`); in any case the counters of both
//! nodes say what came of it (`probe.rs`), and `choose.rs` decides. Bulk calls of the group wait while bursts
//! are sent, so that they do not hide them, and go on while connections are made: on a dead way an attempt hangs. The
//! whole is bounded by `PLACE_FOR`. What fails leaves connections unplaced, never missing.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::SemaphorePermit, task::JoinSet};
use wire::hello::{Lane, Links};

use crate::{
    calls::services::Services,
    connections::{
        dial::{self, DialError, Dialed},
        group::Group,
        handshake::Accepted,
        plan::PlacementStatus,
        socket::Socket,
    },
    core::Core,
    links::{
        self,
        choose::{self, Path, TRIED_MAX},
        hash,
        probe::{self, Probe},
    },
};

/// The time a placement may take.
const PLACE_FOR: Duration = Duration::from_secs(2);
/// The time one probe may take, or eight round trips.
const PROBE_FOR: Duration = Duration::from_millis(400);
/// The same for an attempt to connect.
const CONNECT_FOR: Duration = Duration::from_millis(250);
/// Attempts to connect at once; twice as many next time where some hang on a dead way.
const AT_ONCE: std::ops::RangeInclusive<usize> = 8..=32;
/// How long the placements of other groups are waited for; more peers than that are many flows, which chance
/// spreads well (`sizing.rs`).
const TURN_WITHIN: Duration = Duration::from_secs(1);
/// How long calls under way are waited for before the first burst.
const QUIET_WITHIN: Duration = Duration::from_millis(200);
/// Source ports among which those that suit a known hash are sought.
const PORTS_TO_CHOOSE_FROM: usize = 1024;

/// A connection that is tried.
struct Candidate {
    socket: Socket,
    accepted: Accepted,
    path: Path,
}

/// Makes `n` bulk connections on `rail`; the group is told of each as of a plain attempt.
pub(crate) async fn run(
    services: Arc<Services>,
    group: Arc<Group>,
    rail: usize,
    addr: SocketAddr,
    n: usize,
    again: bool,
) {
    let first = dial::race(&group, Lane::Bulk, addr, dial::limit(&group, again)).await;
    let (socket, accepted) = match first {
        Ok(made) => made,
        Err(error) => {
            dial::tell(&group, rail, &error);
            let text = error.to_string();
            let ended = |error| dial::ended(&services, &group, Lane::Bulk, rail, Err(error));
            (1..n).for_each(|_| ended(DialError::Beside { text: text.clone() }));
            ended(error);
            return;
        }
    };
    let within_machine = socket.shared().is_some();
    let here = links::read(addr.ip());
    let deadline = Instant::now() + PLACE_FOR;
    let asked = Instant::now();
    let peer = within(deadline, Probe::new(&socket).peer_links()).await;
    let trip = asked.elapsed();
    // An answer that was cut off may still be on its way: such a connection carries nothing else.
    let made = peer.is_some().then_some((socket, accepted));
    let peer = peer.unwrap_or_default();
    let task =
        Task { services, trip, group, rail, addr, deadline, here, peer, tried: Vec::new(), failed: None };
    if task.group.lock_plan().in_haste(rail, Instant::now()) {
        // Without a placement the keeper has it done when the haste is over.
        task.group.lock_plan().forget_placement(rail);
        return task.take_any(made, n);
    }
    let Some((socket, accepted)) = made else {
        return task.by_chance(None, n, "placed by chance: the peer did not say in time which links it has");
    };
    if within_machine {
        return task.by_chance(Some((socket, accepted)), n, "within this machine: memory of both, no link");
    }
    if task.here.links.len() <= 1 && task.peer.links.len() <= 1 {
        let made = Some((socket, accepted));
        return task.by_chance(made, n, "one link on each side: there is nothing to choose");
    }
    task.place(socket, accepted, n).await;
}

struct Task {
    services: Arc<Services>,
    /// One round trip.
    trip: Duration,
    group: Arc<Group>,
    rail: usize,
    addr: SocketAddr,
    deadline: Instant,
    here: Links,
    peer: Links,
    tried: Vec<Candidate>,
    /// Why no more could be tried.
    failed: Option<DialError>,
}

impl Task {
    async fn place(mut self, socket: Socket, accepted: Accepted, n: usize) {
        let core = Arc::clone(&self.group.core);
        // One placement at a time on this node: they would take each other's bursts for noise.
        let Ok(Some(_turn)) = tokio::time::timeout(TURN_WITHIN, self.turn(&core)).await else {
            let why = "placed by chance: many peers at once, over which chance spreads well by itself";
            return self.by_chance(Some((socket, accepted)), n, why);
        };
        self.deadline = Instant::now() + PLACE_FOR;
        let local = socket.as_ref().local_addr().map(|a| a.ip()).ok();
        let ports = local.map(|ip| self.ports(ip)).unwrap_or_default();
        let mut ports = ports.into_iter().filter_map(|port| Some(SocketAddr::new(local?, port)));
        let staying = self.staying();
        let mut made = vec![(socket, accepted)];
        let mut at_once = *AT_ONCE.start();
        loop {
            let choice = self.try_out(made, &staying, n).await;
            let over = self.failed.is_some() || Instant::now() >= self.deadline;
            if over || self.tried.len() >= n && choice.enough {
                return self.finish(&staying, choice, n);
            }
            let hung;
            (made, hung) = self.connect(at_once, &mut ports).await;
            if hung {
                at_once = (at_once * 2).min(*AT_ONCE.end());
            }
        }
    }

    /// Makes connections side by side; whether some of the attempts took a way that is dead.
    async fn connect(
        &mut self,
        count: usize,
        ports: &mut impl Iterator<Item = SocketAddr>,
    ) -> (Vec<(Socket, Accepted)>, bool) {
        self.group.lock_plan().still_dialing(Lane::Bulk, self.rail, Instant::now());
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limit = CONNECT_FOR.max(self.trip * 8).min(left);
        let mut attempts = JoinSet::new();
        for _ in 0..count {
            let (from, group, addr) = (ports.next(), Arc::clone(&self.group), self.addr);
            attempts.spawn(async move { (from, dial::connect(&group, Lane::Bulk, addr, from, limit).await) });
        }
        let (mut made, mut hung) = (Vec::new(), false);
        while let Some(ended) = attempts.join_next().await {
            match ended {
                Ok((_, Ok(connection))) => made.push(connection),
                // It took a way that is dead in one direction: others are not.
                Ok((_, Err(DialError::Timeout { .. } | DialError::Handshake { .. }))) => hung = true,
                // A port that somebody has: another will do.
                Ok((Some(_), Err(_))) => {}
                Ok((None, Err(error))) => self.failed = Some(error),
                // An attempt that was aborted: the runtime ends.
                Err(_) => break,
            }
        }
        (made, hung)
    }

    /// Tries connections one after the other until a good set is there, while bulk calls wait.
    async fn try_out(&mut self, made: Vec<(Socket, Accepted)>, staying: &[Path], n: usize) -> choose::Choice {
        let (group, towards) = (Arc::clone(&self.group), self.addr.ip());
        let mut choice = self.choose(staying, n);
        let hold = Hold::new(&group);
        let mut good = !made.is_empty();
        if good {
            hold.quiet().await;
        }
        for (socket, accepted) in made {
            if good && (self.tried.len() < n || !choice.enough) && self.tried.len() < TRIED_MAX {
                let until = self.deadline.min(Instant::now() + PROBE_FOR.max(self.trip * 8));
                // A burst that was cut off may still be on its way: such a connection carries nothing else. And calls
                // have waited long for it: the others of this round are let go.
                let path = within(until, Probe::new(&socket).path(towards)).await;
                good = path.is_some();
                if let Some(path) = path {
                    self.tried.push(Candidate { socket, accepted, path });
                    choice = self.choose(staying, n);
                }
            } else {
                group.core.runtime.spawn(probe::part(socket));
            }
        }
        choice
    }

    async fn turn<'a>(&self, core: &'a Core) -> Option<SemaphorePermit<'a>> {
        loop {
            match tokio::time::timeout(QUIET_WITHIN, core.placing.acquire()).await {
                Ok(turn) => return turn.ok(),
                Err(_) => self.group.lock_plan().still_dialing(Lane::Bulk, self.rail, Instant::now()),
            }
        }
    }

    /// The same, and says why.
    fn by_chance(&self, made: Option<(Socket, Accepted)>, n: usize, why: &str) {
        self.report(0, [1; 2], why.to_owned());
        self.take_any(made, n);
    }

    /// Takes the connection as it is, if there is one, and makes the others as they come.
    fn take_any(&self, made: Option<(Socket, Accepted)>, n: usize) {
        let others = n - made.iter().len();
        if let Some((socket, accepted)) = made {
            self.hand_over(socket, accepted, None);
        }
        for _ in 0..others {
            let group = Arc::clone(&self.group);
            let attempt =
                dial::attempt(Arc::clone(&self.services), group, Lane::Bulk, self.rail, self.addr, false);
            self.group.core.runtime.spawn(attempt);
        }
    }

    /// Paths of the connections that are there and stay.
    fn staying(&self) -> Vec<Path> {
        let plan = self.group.lock_plan();
        let state = self.group.lock();
        let stays = |c: &&Arc<crate::connections::conn::Conn>| {
            c.lane == Lane::Bulk && c.rail == self.rail && !c.have().leaving && !plan.replaces(c.id)
        };
        state.conns.iter().filter(stays).filter_map(|c| c.path.clone()).collect()
    }

    fn choose(&self, staying: &[Path], n: usize) -> choose::Choice {
        let paths: Vec<Path> = self.tried.iter().map(|c| c.path.clone()).collect();
        choose::choose(staying, &paths, n)
    }

    /// Source ports for a bond whose formula is known.
    fn ports(&self, local: IpAddr) -> Vec<u16> {
        let (ours, theirs) = (links::known(self.here.bond.as_ref()), links::known(self.peer.bond.as_ref()));
        if ours.is_none() && theirs.is_none() {
            return Vec::new();
        }
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut range = range.split_whitespace().filter_map(|n| n.parse::<u32>().ok());
        let (low, high) = (range.next().unwrap_or(32768), range.next().unwrap_or(60999));
        let span = high.saturating_sub(low).max(1);
        let start = (self.group.core.jitter_factor() * f64::from(span)) as u32 % span;
        let free = (0..PORTS_TO_CHOOSE_FROM as u32).map(|i| (low + (start + i) % span) as u16);
        hash::ports(local, self.addr, ours, theirs, free, TRIED_MAX)
    }

    fn finish(mut self, staying: &[Path], choice: choose::Choice, n: usize) {
        let all: Vec<&Path> = staying.iter().chain(self.tried.iter().map(|c| &c.path)).collect();
        let seen = |side: fn(&Path) -> &str| {
            let mut names: Vec<&str> = all.iter().map(|p| side(p)).filter(|n| !n.is_empty()).collect();
            names.sort_unstable();
            names.dedup();
            names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()
        };
        let at_both =
            |here: Vec<String>, there: Vec<String>| if there.len() > here.len() { there } else { here };
        let out = at_both(seen(|p| &p.out), seen(|p| &p.out_at_peer));
        let back = at_both(seen(|p| &p.back), seen(|p| &p.back_from_peer));
        let why = self.reason(&out, &back, choice.enough);
        tracing::info!(peer = %self.group.core.names.at(self.addr), tried = self.tried.len(), "{why}");
        self.report(self.tried.len(), [out.len(), back.len()], why);
        let group = Arc::clone(&self.group);
        let keep = choice.keep;
        let mut handed = 0;
        for (i, candidate) in std::mem::take(&mut self.tried).into_iter().enumerate() {
            if keep.contains(&i) && handed < n {
                handed += 1;
                self.hand_over(candidate.socket, candidate.accepted, Some(candidate.path));
            } else {
                group.core.runtime.spawn(probe::part(candidate.socket));
            }
        }
        let mut failed = self.failed.take();
        for _ in handed..n {
            let at = self.group.core.names.at(self.addr);
            let limit = DialError::Timeout { at, limit: PLACE_FOR };
            self.ended(Err(failed.take().unwrap_or(limit)));
        }
    }

    fn reason(&self, out: &[String], back: &[String], enough: bool) -> String {
        let tried = self.tried.len();
        if out.is_empty() || back.is_empty() {
            return "the counters of the links do not follow the traffic: placed by chance".to_owned();
        }
        let mut text = match (out.len(), back.len()) {
            (1, 1) => format!(
                "one link: all {tried} source ports tried leave by {} and come back by {}, so that more \
                 connections cannot use more links",
                out[0], back[0]
            ),
            (o, b) => {
                format!("spread over {o} links out ({}) and {b} back ({})", out.join(", "), back.join(", "))
            }
        };
        for (side, links) in [("this node", &self.here), ("the peer", &self.peer)] {
            let one = if side == "this node" { out.len() == 1 } else { back.len() == 1 };
            if !one || links.links.len() < 2 {
                continue;
            }
            match &links.bond {
                Some(bond) if !links::known(Some(bond)).is_some_and(|b| b.policy.uses_ports()) => {
                    text += &format!(
                        "; the bond of {side} leaves ports out (xmit_hash_policy {}): use layer3+4",
                        bond.policy
                    );
                }
                None if links.layer3_only => {
                    text += &format!(
                        "; routes of {side} choose by addresses only (net.ipv4.fib_multipath_hash_policy is \
                         0): set it to 1"
                    );
                }
                _ => {}
            }
        }
        if !enough {
            text += "; not finished, a better set may exist";
        }
        text
    }

    fn report(&self, tried: usize, [links_out, links_back]: [usize; 2], reason: String) {
        let status = PlacementStatus { tried, links_out, links_back, reason, verified: None };
        self.group.lock_plan().set_placement(self.rail, status);
    }

    fn ended(&self, result: Result<Dialed, DialError>) {
        dial::ended(&self.services, &self.group, Lane::Bulk, self.rail, result);
    }

    fn hand_over(&self, socket: Socket, mut accepted: Accepted, path: Option<Path>) {
        accepted.path = path;
        self.ended(Ok(Dialed { socket, accepted }));
    }
}

/// Bulk calls of a group wait while this lives.
struct Hold<'a>(&'a Group);

impl Hold<'_> {
    fn new(group: &Group) -> Hold<'_> {
        group.lock().table.hold();
        Hold(group)
    }
    /// Waits until those under way have been answered.
    async fn quiet(&self) {
        let until = Instant::now() + QUIET_WITHIN;
        while self.0.lock().table.bulk_requests() > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.lock().table.release_hold();
        self.0.notify_all();
    }
}

async fn within<T>(deadline: Instant, work: impl Future<Output = std::io::Result<T>>) -> Option<T> {
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(Ok(done)) => Some(done),
        Ok(Err(error)) => {
            tracing::debug!("probe: {error}");
            None
        }
        Err(_) => None,
    }
}
