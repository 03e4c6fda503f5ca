//! The transport over several links, for real: connections placed on links that it is told nothing about, rails
//! lost in every way and taken back. Needs root, as `make test` has. Figures come from `ropewalk netperf`;
//! here it is only whether all links carry their share and no request fails.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests; a failing one shows what was drawn

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::AlignedBuf;
use lab::testbed::{BitRate, Join, LinkState, Scoped, Spec, Testbed};
use net::{Call, Endpoint, EndpointConfig, Lane, Payload, PeerStatus, Response, Service, handler_fn};
use tokio::runtime::Runtime;

const WRITE: u8 = 2;
const READ: u8 = 3;
const PORT: u16 = 7100;
const TRANSFER: usize = 256 << 10;
/// Ends a test that would otherwise hang, as a failure.
const SOON: Duration = Duration::from_secs(90);

/// Two hosts of a testbed with an endpoint each.
struct Pair {
    server: Endpoint,
    client: Endpoint,
    addrs: Vec<std::net::SocketAddr>,
    runtimes: [Runtime; 2],
    bed: Scoped,
}

impl Pair {
    fn new(spec: Spec, conns_max: u8) -> Pair {
        Pair::with(spec, EndpointConfig { conns_max, ..EndpointConfig::default() })
    }

    fn with(spec: Spec, config: EndpointConfig) -> Pair {
        let bed = Testbed::scoped(spec).unwrap();
        let runtimes = [0, 1].map(|i| bed.hosts[i].runtime(2).unwrap());
        let addrs = bed.addrs(1, PORT);
        let start = |runtime: &Runtime, config: EndpointConfig| {
            let started = runtime.spawn(async move { Endpoint::start(config).unwrap() });
            runtime.block_on(started).unwrap()
        };
        let listen = addrs.clone();
        let identity = net::Identity::from_secret(Default::default(), &net::Secret::new([7; 32])).ok();
        let config = EndpointConfig { identity, ..config };
        let server = start(&runtimes[1], EndpointConfig { listen, conns_max: 16, ..config.clone() });
        let source = AlignedBuf::zeroed(TRANSFER).freeze();
        server.serve(
            Service::Lab,
            handler_fn(move |request| {
                let source = source.clone();
                async move {
                    match request.header.op {
                        READ => Response::with_payload(vec![], source),
                        _ => Response::ok(vec![]),
                    }
                }
            }),
        );
        let client = start(&runtimes[0], config);
        Pair { server, client, addrs, runtimes, bed }
    }

    /// One whose connections are placed on all links, both ways. One placement of 2,000 meets a link with none of those it tries
    /// (`MISSED_MAX` of `net`), and leaves it unused: then there are others.
    fn placed(links: u8, new: impl Fn() -> Pair) -> Pair {
        for _ in 0..5 {
            let pair = new();
            let load = pair.load(WRITE);
            pair.until("placed", |peer| peer.rails.iter().any(|r| r.placement.is_some()));
            load.end(&pair);
            if pair.uses(links) {
                return pair;
            }
        }
        panic!("no placement of five has met {links} links");
    }

    /// Whether its placement has met so many links in each direction.
    fn uses(&self, links: u8) -> bool {
        let placement = self.status().rails[0].placement.clone().unwrap();
        println!("{placement:?}; seed {}", self.bed.spec.seed);
        (placement.links_out, placement.links_back) == (links.into(), links.into())
    }

    /// Calls without pause; a failure ends the test when the load is stopped.
    fn load(&self, op: u8) -> Load {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let data = AlignedBuf::zeroed(TRANSFER).freeze();
        let callers = (0..12)
            .map(|_| {
                let (peer, data) = (self.client.peer(&self.addrs), data.clone());
                let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
                self.runtimes[0].spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let payload = if op == WRITE { Payload::from(data.clone()) } else { Payload::new() };
                        let call = Call::new(Service::Lab, op, vec![], Instant::now() + SOON);
                        // New connections may hash onto a dead link several times: callers here wait for the rest.
                        let patience = Some(SOON);
                        peer.call(Call { lane: Lane::Bulk, payload, patience, ..call }).await.unwrap();
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Load { done, stop, callers }
    }

    fn status(&self) -> PeerStatus {
        self.client.status().remove(0)
    }

    fn until(&self, what: &str, looks: impl Fn(&PeerStatus) -> bool) {
        let began = Instant::now();
        while !self.client.status().first().is_some_and(&looks) {
            assert!(began.elapsed() < SOON, "{what}: {:#?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Bytes that the client's links send and receive while `calls` more calls are done.
    fn shares(&self, load: &Load, calls: u64) -> Vec<(u64, u64)> {
        let host = &self.bed.hosts[0];
        let before = self.bed.link_bytes(host).unwrap();
        load.more(calls);
        let after = self.bed.link_bytes(host).unwrap();
        after.iter().zip(&before).map(|(a, b)| (a.sent - b.sent, a.received - b.received)).collect()
    }
}

struct Load {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn more(&self, calls: u64) {
        let (then, began) = (self.done.load(Ordering::Relaxed), Instant::now());
        while self.done.load(Ordering::Relaxed) < then + calls {
            assert!(began.elapsed() < SOON, "the load stands still");
            assert!(!self.callers.iter().any(|c| c.is_finished()), "a request failed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    /// The longest time without an answer while so many more come, if it is less than that. How long the machine stands still, as this
    /// thread sees it, does not count.
    fn longest_pause(&self, calls: u64, less_than: Duration) -> Duration {
        const TICK: Duration = Duration::from_millis(2);
        let (mut pause, mut longest) = (Duration::ZERO, Duration::ZERO);
        let mut done = self.done.load(Ordering::Relaxed);
        let enough = done + calls;
        while done < enough && longest < less_than {
            let slept = Instant::now();
            std::thread::sleep(TICK);
            let tick = slept.elapsed().min(5 * TICK);
            let now = self.done.load(Ordering::Relaxed);
            pause = if now == done { pause + tick } else { Duration::ZERO };
            done = now;
            longest = longest.max(pause);
        }
        longest
    }
    fn end(self, pair: &Pair) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            pair.runtimes[0].block_on(caller).expect("no request fails");
        }
    }
}

/// Waits until each link carries its share of what one direction carries in all: on a busy machine now this one stands still, now that
/// one.
fn until_equal(pair: &Pair, what: &str, carried: impl Fn() -> Vec<u64>) {
    let began = Instant::now();
    loop {
        let bytes = carried();
        if are_equal(&bytes) {
            return;
        }
        assert!(began.elapsed() < SOON, "{what}: {bytes:?} {:#?}", pair.status());
    }
}

fn are_equal(bytes: &[u64]) -> bool {
    let fair = bytes.iter().sum::<u64>() / bytes.len() as u64;
    bytes.iter().all(|&b| b > fair * 2 / 3 && b < fair * 4 / 3)
}

#[test]
fn connections_take_all_links_in_both_directions() {
    for (links, conns, routed) in [(2, 2, false), (4, 4, false), (2, 2, true), (3, 6, false)] {
        let spec = || Spec { links, routed, rate: BitRate(400_000_000), ..Spec::default() };
        let pair = Pair::placed(links, || Pair::new(spec(), conns));
        let seed = pair.bed.spec.seed;
        let what = format!("{links} links, {conns} connections, routed {routed}, seed {seed}");
        for op in [WRITE, READ] {
            let load = pair.load(op);
            load.more(20);
            until_equal(&pair, &format!("{what}, op {op}"), || {
                let shares = pair.shares(&load, 200);
                shares.iter().map(|s| if op == WRITE { s.0 } else { s.1 }).collect()
            });
            load.end(&pair);
        }
        assert!(pair.uses(links), "{what}");
    }
}

#[test]
fn where_connections_cannot_help_it_says_why() {
    let pair = Pair::new(Spec { join: Join::Ecmp { policy: 0 }, ..Spec::default() }, 4);
    let load = pair.load(WRITE);
    load.more(20);
    pair.until("placed", |peer| peer.rails.iter().any(|r| r.placement.is_some()));
    load.end(&pair);
    let placement = pair.status().rails[0].placement.clone().unwrap();
    assert_eq!((placement.links_out, placement.links_back), (1, 1), "{placement:?}");
    assert!(
        placement.reason.contains("one link") && placement.reason.contains("hash_policy"),
        "{placement:?}"
    );
}

#[test]
fn a_growing_group_is_placed_anew_under_load() {
    let grown = || {
        let pair = Pair::new(Spec { links: 2, rate: BitRate(400_000_000), ..Spec::default() }, 1);
        let load = pair.load(WRITE);
        load.more(20);
        assert!(pair.status().rails[0].placement.is_none(), "one connection is not placed");
        pair.client.set_conns_max(2).unwrap();
        let active = |c: &&net::ConnStatus| c.lane == Lane::Bulk && c.state == net::ConnState::Active;
        pair.until("two, placed", |peer| {
            let bulk: Vec<_> = peer.connections.iter().filter(active).collect();
            bulk.len() == 2 && bulk.iter().all(|c| c.path.is_some())
        });
        load.end(&pair);
        pair
    };
    let pair = Pair::placed(2, grown);
    let load = pair.load(WRITE);
    load.more(40);
    until_equal(&pair, "after growing", || pair.shares(&load, 200).iter().map(|s| s.0).collect());
    load.end(&pair);
}

#[test]
fn the_number_of_connections_is_found_by_measuring() {
    let pair = Pair::new(Spec { links: 4, rate: BitRate(150_000_000), ..Spec::default() }, 2);
    pair.client.set_conns_auto();
    let load = pair.load(WRITE);
    pair.until("as many as there are links", |peer| peer.conns_wanted >= 4);
    load.end(&pair);
}

#[test]
fn a_link_of_several_is_lost_and_returns_and_no_request_fails() {
    for state in [LinkState::Down, LinkState::Cut] {
        let pair = Pair::placed(2, || Pair::new(Spec { rate: BitRate(300_000_000), ..Spec::default() }, 2));
        let load = pair.load(WRITE);
        load.more(40);
        let host = pair.bed.hosts[0].name.clone();
        pair.bed.set_link(&host, 1, state).unwrap();
        load.more(100);
        pair.bed.set_link(&host, 1, LinkState::Up).unwrap();
        let began = Instant::now();
        loop {
            let out: Vec<u64> = pair.shares(&load, 60).iter().map(|s| s.0).collect();
            if out.iter().min().unwrap() * 2 > *out.iter().max().unwrap() {
                break;
            }
            assert!(began.elapsed() < SOON, "{state:?}: {out:?} {:#?}", pair.status());
        }
        load.end(&pair);
    }
}

#[test]
fn one_way_of_a_route_is_cut_silently_and_calls_go_on_by_the_other() {
    /// Far above what it takes to find out, far below what an unanswered heartbeat would take here.
    const PAUSE_MAX: Duration = Duration::from_secs(15);
    // With two connections one of them never was on that way; one alone must be made anew until it is on the other.
    for conns in [2, 1] {
        let config =
            EndpointConfig { conns_max: conns, heartbeat_timeout: SOON, ..EndpointConfig::default() };
        let pair = Pair::with(Spec { rate: BitRate(300_000_000), ..Spec::default() }, config);
        let load = pair.load(WRITE);
        pair.until("made", |peer| {
            let bulk = |c: &&net::ConnStatus| c.lane == Lane::Bulk && c.state == net::ConnState::Active;
            peer.connections.iter().filter(bulk).count() == usize::from(conns)
        });
        load.more(40);
        let shares = pair.shares(&load, 40);
        let busiest = if shares[0].0 > shares[1].0 { 1 } else { 2 };
        let before: Vec<u64> = pair.status().connections.iter().map(|c| c.id).collect();
        let host = pair.bed.hosts[0].name.clone();
        pair.bed.set_link(&host, busiest, LinkState::Cut).unwrap();
        let longest = load.longest_pause(300, PAUSE_MAX);
        let stayed = pair.status().connections.iter().filter(|c| before.contains(&c.id)).count();
        let text = format!("{conns} connections: {longest:?} without an answer, {stayed} stayed");
        println!("{text}; seed {}", pair.bed.spec.seed);
        assert!(longest < PAUSE_MAX, "{text}: {:#?}", pair.status());
        load.end(&pair);
    }
}

#[test]
fn a_rail_lost_in_any_way_is_left_and_taken_back_and_no_request_fails() {
    let spec = Spec { join: Join::Subnets, rate: BitRate(400_000_000), ..Spec::default() };
    let pair = Pair::new(spec, 2);
    let load = pair.load(WRITE);
    pair.until("both rails", |peer| peer.rails.len() == 2 && peer.rails.iter().all(|r| r.connections > 0));
    load.more(50);
    for state in [LinkState::Cut, LinkState::Mute, LinkState::Deaf, LinkState::Down] {
        let host = pair.bed.hosts[0].name.clone();
        pair.bed.set_link(&host, 1, state).unwrap();
        pair.until(&format!("{state:?}: the rail is left"), |peer| peer.rails.iter().any(|r| !r.up));
        load.more(50);
        pair.bed.set_link(&host, 1, LinkState::Up).unwrap();
        pair.until(&format!("{state:?}: it is taken back"), |peer| {
            peer.rails.iter().all(|r| r.up && r.connections > 0)
        });
        // How soon depends on how soon the returned one is measured to be as fast as before.
        until_equal(&pair, &format!("after {state:?}"), || {
            pair.shares(&load, 100).iter().map(|s| s.0).collect()
        });
    }
    load.end(&pair);
    // What a lost rail was asked is asked again on another; the first may still be on its way.
    let began = Instant::now();
    while !(pair.client.waiters().is_empty() && pair.server.serving().is_empty()) {
        assert!(began.elapsed() < SOON, "{:?} {:?}", pair.client.waiters(), pair.server.serving());
        std::thread::sleep(Duration::from_millis(10));
    }
}
