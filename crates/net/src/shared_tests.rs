//! A member of the cluster whose program is broken, or is not ours, and writes what it likes into the memory of both: nobody else suffers.
#![allow(clippy::unwrap_used)] // tests

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{CipherList, ClusterId, NodeId};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UnixStream},
    runtime::Handle,
    time::timeout,
};
use trust::{Identity, Secret};
use wire::{
    frame::{FrameKind, Header, Service},
    hello::{Lane, Seen},
};

use crate::{
    Endpoint, EndpointConfig,
    connections::{
        handshake,
        meeting::{Place, join},
        socket::Socket,
    },
    core::Core,
};

const SOON: Duration = Duration::from_secs(90);

fn config(node: u32) -> EndpointConfig {
    let cluster = ClusterId(7);
    EndpointConfig {
        cluster,
        identity: Some(Identity::from_secret(cluster, &Secret::new([7; 32])).unwrap()),
        cipher_list: CipherList::Empty,
        node: NodeId(node),
        transport: crate::Transport::Auto,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        ..EndpointConfig::default()
    }
}

/// Another process: it never makes an end of its own.
fn peer(node: u32) -> Arc<Core> {
    peer_by(node, crate::Transport::Auto)
}

fn peer_by(node: u32, transport: crate::Transport) -> Arc<Core> {
    let config = EndpointConfig { transport, ..config(node) };
    let identity = config.identity.clone().unwrap().preferring(CipherList::Empty).unwrap();
    let identity = identity.speaking(config.build.protocols);
    Core::new(config, identity, Handle::current(), Vec::new())
}

fn seen() -> Seen {
    let addr = "127.0.0.1:1".parse().unwrap();
    Seen { from: addr, to: addr, place: String::new() }
}

async fn connect(peer: &Core, server: &Endpoint) -> Socket {
    let stream = TcpStream::connect(server.local_addrs()[0]).await.unwrap();
    handshake::connect(peer, stream, Lane::Bulk, SOON).await.map_err(|e| e.to_string()).unwrap().0
}

/// A call by a bulk connection.
fn links() -> crate::Call {
    let body = wire::frame::encode(&wire::hello::NetRequest::Links);
    let call = crate::Call::new(crate::Service::Net, 0, body, std::time::Instant::now() + SOON);
    crate::Call { lane: Lane::Bulk, ..call }
}

async fn ends(socket: &Socket) {
    let ended = timeout(SOON, async {
        let mut place = [0; 4096];
        while socket.read_exact(&mut place).await.is_ok() {}
    });
    ended.await.expect("the connection ends");
}

/// Garbage in the memory ends that connection, with a reason, and that process is spoken to by TCP; others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_the_connection_and_nothing_else() {
    let server = Endpoint::start(config(1)).unwrap();
    for (n, (written, read)) in
        [(u64::MAX, 0), (u64::MAX / 2, 0), (1 << 20, 0), (0, u64::MAX), (0, 1)].into_iter().enumerate()
    {
        let peer = peer(10 + n as u32);
        let socket = connect(&peer, &server).await;
        let shared = socket.shared().expect("memory");
        shared.claim(written, read);
        ends(&socket).await;
        assert!(connect(&peer, &server).await.shared().is_none(), "it goes by TCP from now on");
    }
    let garbage: Vec<u8> = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let peer = peer(30);
    let socket = connect(&peer, &server).await;
    let _ = socket.write_all(&garbage).await;
    ends(&socket).await;
    let other = Endpoint::start(config(2)).unwrap();
    other.peer(server.local_addrs()).call(links()).await.unwrap();
    let by = other.status().into_iter().flat_map(|p| p.connections).filter(|c| c.lane == Lane::Bulk);
    assert!(by.map(|c| c.transport).all(|by| by == "shm"));
}

/// One that writes anything anywhere in the memory all the time that it is there: the server lets it go and lives, and others of
/// the same server go on, by memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_scribbles_harms_nobody_else() {
    let server = Endpoint::start(config(1)).unwrap();
    let other = Endpoint::start(config(2)).unwrap();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let working = tokio::spawn({
        let (stop, done, to) = (Arc::clone(&stop), Arc::clone(&done), other.peer(server.local_addrs()));
        async move {
            while !stop.load(SeqCst) {
                to.call(links()).await.unwrap();
                done.fetch_add(1, SeqCst);
            }
        }
    });
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 16
    };
    for n in 0..16 {
        let peer = peer(40 + n);
        let socket = connect(&peer, &server).await;
        let shared = socket.shared().expect("memory");
        let (before, mut claimed) = (done.load(SeqCst), 0);
        while claimed < 300 || done.load(SeqCst) == before {
            claimed += 1;
            match (random() % 4, random()) {
                // Possible, so that what lies there is read as frames; until it is not.
                (0, some) => shared.claim(claimed + some % 64, some % 8),
                // The numbers of both directions, and who sleeps.
                (1, some) => shared.scribble(some as usize % 512, some % (1 << (some % 21))),
                (2, some) => shared.scribble(some as usize, some),
                (_, some) => {
                    let _ = timeout(Duration::from_millis(1), socket.write_all(&some.to_le_bytes())).await;
                }
            }
            tokio::task::yield_now().await;
        }
    }
    let there = || {
        server
            .status()
            .iter()
            .filter(|peer| peer.node.is_some_and(|node| node.0 >= 40) && !peer.connections.is_empty())
            .count()
    };
    let left = timeout(SOON, async {
        while there() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    left.await.expect("they are let go");
    stop.store(true, SeqCst);
    working.await.unwrap();
    let by = other.status().into_iter().flat_map(|p| p.connections).filter(|c| c.lane == Lane::Bulk);
    assert!(by.map(|c| c.transport).all(|by| by == "shm"));
}

/// Bytes that are always there are no reason to keep the thread: of a runtime's only one, whoever else has work gets it in between.
#[tokio::test]
async fn a_peer_that_always_has_more_takes_turns_with_others() {
    const PINGS: u64 = 4000;
    let server = Endpoint::start(config(1)).unwrap();
    let peer = peer(60);
    let socket = connect(&peer, &server).await;
    assert!(socket.shared().is_some());
    let ping = Header { version: socket.version(), kind: FrameKind::Ping, ..Header::default() };
    let pings = ping.encode().repeat(PINGS as usize);
    let came = || server.status().iter().flat_map(|p| &p.connections).map(|c| c.frames_received).sum::<u64>();
    // All that its reader finds when it looks: nothing is read while this task is not waiting.
    assert_eq!(socket.try_write(&pings).unwrap(), pings.len());
    let (mut turns, mut before) = (0, came());
    assert_eq!(before, 0);
    let all = timeout(SOON, async {
        while before < PINGS {
            tokio::task::yield_now().await;
            turns += u32::from(came() > before);
            before = came();
        }
    });
    all.await.expect("they are read");
    assert!(turns >= 8, "{turns} turns of another task meanwhile");
}

/// A number is what a process says of itself: it is held against its own node, and not against who has the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_held_against_its_own_node() {
    let server = Endpoint::start(config(1)).unwrap();
    let (one, mut other) = (peer(80), peer(81));
    Arc::get_mut(&mut other).unwrap().process = one.process;
    let socket = connect(&one, &server).await;
    socket.shared().expect("memory").claim(u64::MAX, 0);
    ends(&socket).await;
    assert!(connect(&one, &server).await.shared().is_none());
    assert!(connect(&other, &server).await.shared().is_some());
}

/// Replies that hold memory of others (on tmpfs, the space of pdisks) do not stay with a peer that pings, so that it lives, and
/// reads nothing.
async fn who_reads_nothing_is_let_go(node: u32, transport: crate::Transport) {
    let (interval, silence) = (Duration::from_millis(100), Duration::from_millis(500));
    let server = EndpointConfig { heartbeat_interval: interval, heartbeat_timeout: silence, ..config(1) };
    let server = Endpoint::start(server).unwrap();
    let lent = Arc::new(vec![7; 4 << 20]);
    let of_all = Arc::clone(&lent);
    server.serve(
        Service::Lab,
        crate::handler_fn(move |_| {
            struct Lent(Arc<Vec<u8>>);
            impl AsRef<[u8]> for Lent {
                fn as_ref(&self) -> &[u8] {
                    &self.0
                }
            }
            let payload = bytes::Bytes::from_owner(Lent(Arc::clone(&of_all)));
            async { crate::Response::with_payload(Vec::new(), payload) }
        }),
    );
    let peer = peer_by(node, transport);
    let socket = connect(&peer, &server).await;
    assert_eq!(socket.shared().is_some(), transport == crate::Transport::Auto);
    let frame = |kind, request_id| {
        let (version, service) = (socket.version(), Service::Lab);
        Header { version, kind, service, request_id, deadline_us: 600_000_000, ..Header::default() }.encode()
    };
    for id in 1..=8 {
        socket.write_all(&frame(FrameKind::Request, id)).await.unwrap();
    }
    let here = || server.status().iter().any(|p| p.node == Some(NodeId(node)) && !p.connections.is_empty());
    let gone = timeout(SOON, async {
        while here() || Arc::strong_count(&lent) > 2 {
            let _ = socket.try_write(&frame(FrameKind::Ping, 0));
            tokio::time::sleep(interval).await;
        }
    });
    gone.await.expect("it is let go, and what was lent to it is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_by_memory_is_let_go() {
    who_reads_nothing_is_let_go(90, crate::Transport::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_nothing_by_tcp_is_let_go() {
    who_reads_nothing_is_let_go(91, crate::Transport::Tcp).await;
}

/// Whoever comes to the place without the secret is let go; the memory is from who has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_at_the_meeting_get_nothing() {
    let shares = Arc::new(tokio::sync::Semaphore::new(8));
    let share = || Arc::clone(&shares).try_acquire_owned().unwrap();
    let (place, meeting) = Place::open(seen()).unwrap();
    let name = format!("\0{}", meeting.name);
    let mut strangers = Vec::new();
    for said in [&b""[..], b"x", &[0; 32], &[7; 100]] {
        let mut stranger = UnixStream::connect(&name).await.unwrap();
        stranger.write_all(said).await.unwrap();
        strangers.push(stranger);
    }
    let wrong = wire::hello::Meeting { secret: [0; 32], ..meeting.clone() };
    let _guesses = join(&wrong, share()).await.unwrap();
    let ours = join(&meeting, share()).await.unwrap();
    let theirs = place.receive(share()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    ours.write(&[std::io::IoSlice::new(b"hello")], &tcp).unwrap();
    let mut got = [0; 9];
    let n = theirs.read(&mut [std::io::IoSliceMut::new(&mut got)], &tcp).unwrap();
    assert_eq!(&got[..n], b"hello");
    // The place is gone with the handshake, and nobody comes at all: the wait ends.
    assert!(UnixStream::connect(&name).await.is_err());
    let (place, _) = Place::open(seen()).unwrap();
    assert!(timeout(SOON, place.receive(share())).await.unwrap().is_err());
}
