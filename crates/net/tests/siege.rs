//! A thousand handshakes of strangers, of every kind, in an order drawn from a seed and many at a time, while a member works: each is
//! refused and counted once, nothing of them stays, and the member notices nothing. (What each kind hears: `strangers.rs`.)

#![allow(clippy::unwrap_used, clippy::print_stdout)] // helpers of tests

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::{CipherList, ClusterId, MemberId, NodeId};
use common::*;
use net::{Endpoint, EndpointConfig, Identity, Lane, Role, Secret};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use trust::{Authority, Member, Nodes, Request, Roles};
use wire::{frame::FrameKind, hello::Introduction};

const ALL: u64 = 1000;
/// At a time: fewer than `handshakes_max`, or the oldest would make room.
const AT_A_TIME: usize = 24;
/// What the server gives a handshake: the member's own, on a busy machine, must be done by then, or it is counted among the strangers'.
const PATIENCE: Duration = Duration::from_secs(2);
const SHUT_OUT: MemberId = MemberId(6);

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    NoCertificate,
    OtherCluster,
    Expired,
    Revoked,
    OtherRole,
    OlderTls,
    OlderProtocol,
    CutOff,
    Flipped,
    Garbage,
    Http,
    Recorded,
    Slow,
}

const KINDS: [Kind; 13] = [
    Kind::NoCertificate,
    Kind::OtherCluster,
    Kind::Expired,
    Kind::Revoked,
    Kind::OtherRole,
    Kind::OlderTls,
    Kind::OlderProtocol,
    Kind::CutOff,
    Kind::Flipped,
    Kind::Garbage,
    Kind::Http,
    Kind::Recorded,
    Kind::Slow,
];

/// An identity that the cluster's authority has signed.
fn signed(id: MemberId, life: Duration) -> Identity {
    let it = Member {
        cluster: CLUSTER,
        id,
        roles: Roles::of(&[Role::Client]),
        nodes: Nodes::These(vec![NodeId(0)]),
    };
    let authority = Authority::from_secret(CLUSTER, &secret()).unwrap();
    let Request { key, request } = Request::new().unwrap();
    let certificate = authority.sign_request(&it, &request, life).unwrap();
    Identity::new(key, vec![certificate], vec![authority.certificate().clone()]).unwrap()
}

/// What strangers have.
struct Arms {
    other_cluster: Identity,
    expired: Identity,
    revoked: Identity,
    client: Identity,
    hello: Vec<u8>,
    /// All that a member has said.
    recorded: Vec<u8>,
    secret: Vec<u8>,
}

/// Where a piece of bytes is.
fn find(bytes: &[u8], piece: &[u8]) -> usize {
    bytes.windows(piece.len()).position(|window| window == piece).unwrap()
}

/// One attempt, to its end.
async fn attack(arms: &Arms, kind: Kind, mut random: Random, addr: SocketAddr) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let introduce = async |identity: &Identity, role, stream: &mut TcpStream| {
        let mut tls = Tls::connecting(identity);
        if tls.shake(stream).await.is_ok() {
            let said = Introduction { role, node: NodeId(0), ..introduction(Lane::Control, 1) };
            let _ = tls.send(stream, &step(FrameKind::Introduction, &said)).await;
        }
    };
    let mut first = arms.hello.clone();
    match kind {
        Kind::NoCertificate => {
            let mut tls = Tls::with(nobody());
            let _ = tls.shake(&mut stream).await;
            first = Vec::new();
        }
        Kind::OtherCluster | Kind::Expired | Kind::Revoked => {
            let identity = match kind {
                Kind::OtherCluster => &arms.other_cluster,
                Kind::Expired => &arms.expired,
                _ => &arms.revoked,
            };
            introduce(identity, Role::Client, &mut stream).await;
            first = Vec::new();
        }
        Kind::OtherRole => {
            let role = [Role::Manager, Role::Server, Role::Admin][random.below(3) as usize];
            introduce(&arms.client, role, &mut stream).await;
            first = Vec::new();
        }
        // The list of versions that it knows: TLS 1.3 alone.
        Kind::OlderTls => {
            let at = find(&first, &[0, 0x2b, 0, 3, 2, 3, 4]);
            first[at + 6] = 3;
        }
        Kind::OlderProtocol => {
            let at = find(&first, b"ropewalk/");
            first[at + 9..at + 10].copy_from_slice(b"0");
        }
        Kind::CutOff => first.truncate(random.below(first.len() as u64) as usize),
        Kind::Flipped => {
            let at = random.below(first.len() as u64) as usize;
            first[at] ^= 1 << random.below(8);
        }
        Kind::Garbage => {
            first = (0..1 + random.below(3000)).map(|_| random.below(256) as u8).collect();
        }
        Kind::Http => first = b"GET / HTTP/1.1\r\nHost: ropewalk\r\n\r\n".to_vec(),
        // All that a member has said, once more.
        Kind::Recorded => first = arms.recorded.clone(),
        Kind::Slow => {
            let until = Instant::now() + PATIENCE * 2;
            for byte in &first {
                if Instant::now() > until || stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(PATIENCE / 20).await;
            }
            first = Vec::new();
        }
    }
    let _ = stream.write_all(&first).await;
    if matches!(kind, Kind::CutOff | Kind::Garbage) || random.below(4) == 0 {
        let _ = stream.shutdown().await;
    }
    let mut said = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut said)).await.expect("the server closes");
    assert!(find_in(&said, &arms.secret).is_none(), "{kind:?} has heard something");
}

fn find_in(bytes: &[u8], piece: &[u8]) -> Option<usize> {
    bytes.windows(piece.len()).position(|window| window == piece)
}

/// What a member says to a server, from the hello to a request.
async fn recorded(addr: SocketAddr) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relayed = listener.local_addr().unwrap();
    let relay = tokio::spawn(async move {
        let (mut member, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(addr).await.unwrap();
        let ((mut said, mut tell), (mut heard, mut forward)) = (member.split(), server.split());
        let mut all = Vec::new();
        let listening = async {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = said.read(&mut buffer).await {
                all.extend_from_slice(&buffer[..n]);
                let _ = forward.write_all(&buffer[..n]).await;
            }
        };
        tokio::select! {
            () = listening => {}
            _ = tokio::io::copy(&mut heard, &mut tell) => {}
        }
        all
    });
    let member = Endpoint::start(EndpointConfig { conns_max: 1, ..config(3) }).unwrap();
    member.peer(&[relayed]).call(call(ECHO, b"")).await.unwrap();
    member.shutdown();
    drop(member);
    timeout(SOON, relay).await.unwrap().unwrap()
}

/// Handshakes that this process has refused, whatever for.
fn refused() -> u64 {
    let reasons = ["broken", "version", "garbage", "silent", "stranger", "expired", "refused"];
    reasons.map(|why| base::stats::counter("net_refused_handshakes", &[("reason", why)]).get()).iter().sum()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident memory, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn settled(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One after the other: both count what this process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_strangers_are_refused_and_leave_nothing() {
    besieged(CipherList::Default, ALL).await;
    besieged(CipherList::AuthOnly, ALL / 8).await;
}

/// By so many, while a member works whose connections are protected so.
async fn besieged(cipher_list: CipherList, all: u64) {
    let mut random = Random(seed() | 1 << 40);
    let (server, addr) = server_with(EndpointConfig { connect_timeout: PATIENCE, ..listening(1) });
    server.shut_out(&[SHUT_OUT]);
    let of = |cluster, byte| Identity::from_secret(cluster, &Secret::new([byte; 32])).unwrap();
    let arms = Arc::new(Arms {
        other_cluster: of(ClusterId(8), 8),
        expired: signed(MemberId(5), Duration::from_nanos(1)),
        revoked: signed(SHUT_OUT, Duration::ZERO),
        client: signed(MemberId(7), Duration::ZERO),
        hello: hello(),
        recorded: recorded(addr).await,
        secret: pattern(64, 9),
    });
    tokio::time::sleep(Duration::from_millis(1100)).await; // dates have whole seconds

    // A member works meanwhile.
    let client = Endpoint::start(EndpointConfig { cipher_list, ..config(2) }).unwrap();
    let (stop, worked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let member = tokio::spawn({
        let (stop, worked, peer) = (Arc::clone(&stop), Arc::clone(&worked), client.peer(&[addr]));
        let secret = bytes::Bytes::from(pattern(20_000, 9));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let reply = peer.call(bulk(ECHO, b"", secret.clone())).await.unwrap();
                assert!(reply.payload.into_bytes() == secret);
                worked.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // And makes no more handshakes.
    let stands = |endpoint: &Endpoint| {
        endpoint
            .status()
            .first()
            .is_some_and(|peer| peer.connections.len() == usize::from(peer.conns_wanted) + 1)
    };
    settled("the member works", || worked.load(Ordering::Relaxed) > 10 && stands(&client)).await;

    let siege = async |count: u64, random: &mut Random| {
        let before = refused();
        let turns = Arc::new(Semaphore::new(AT_A_TIME));
        let mut attempts = tokio::task::JoinSet::new();
        for n in 0..count {
            let turn = Arc::clone(&turns).acquire_owned().await.unwrap();
            // Each kind comes; the rest by lot.
            let kind =
                KINDS.get(n as usize).copied().unwrap_or(KINDS[random.below(KINDS.len() as u64) as usize]);
            let (arms, own) = (Arc::clone(&arms), Random(random.below(u64::MAX) | 1));
            attempts.spawn(async move {
                attack(&arms, kind, own, addr).await;
                drop(turn);
            });
        }
        while let Some(attempt) = attempts.join_next().await {
            attempt.unwrap();
        }
        settled("each is counted", || refused() >= before + count).await;
        assert_eq!(refused() - before, count, "each is counted once");
    };
    // What is made once is made by the first.
    siege(60, &mut random).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // What a peer was is remembered for a while after its last connection has gone.
    let connected = || server.status().iter().filter(|peer| !peer.connections.is_empty()).count();
    settled("the first are gone", || connected() == 1).await;
    let (before, had) = ((descriptors(), tasks()), resident());
    let worked_before = worked.load(Ordering::Relaxed);
    siege(all, &mut random).await;
    settled("descriptors and tasks are as before", || descriptors() <= before.0 && tasks() <= before.1).await;
    assert!(resident() < had + (64 << 20), "{} bytes grew to {}", had, resident());
    let since = worked.load(Ordering::Relaxed) - worked_before;
    println!("{cipher_list}: the member was served {since} times meanwhile");
    assert!(since > all / 10);
    let connections = client.status().remove(0).connections;
    assert!(connections.iter().all(|c| c.encrypted == (cipher_list == CipherList::Default)));
    assert!(base::events::events().after(0).iter().any(|event| event.name == "net_refused"));
    stop.store(true, Ordering::Relaxed);
    member.await.unwrap();
}
