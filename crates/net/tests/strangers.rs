//! Who is no member of the cluster gets nothing, whatever he sends, hears and sends again, from either end; a member is what
//! its certificate says and nothing else. Each attempt is refused and counted, and the service goes on.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::{ClusterId, MemberId, NodeId};
use common::*;
use net::{Call, CallError, Endpoint, EndpointConfig, Identity, Lane, NetError, Role, Secret, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use trust::{Authority, Member, Nodes, Request, Roles};
use wire::{
    frame::{FrameKind, HEADER_LEN, Header, Service},
    hello::{Introduction, Welcome},
};

/// A server that counts what its handler is asked, and says who asked last.
fn counting(config: EndpointConfig) -> (Endpoint, SocketAddr, Arc<AtomicU64>) {
    let (server, addr) = server_with(config);
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    server.serve(
        Service::Lab,
        handler_fn(move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            let who = format!("{:?}", request.peer.role);
            let payload = request.payload.clone();
            async move { net::Response::with_payload(who.into_bytes(), payload) }
        }),
    );
    (server, addr, asked)
}

/// What this process has refused for that reason.
fn refused(reason: &str) -> u64 {
    base::stats::counter("net_refused_handshakes", &[("reason", reason)]).get()
}

/// Ends when that many more were refused for that reason.
async fn refused_since(reason: &str, before: u64, more: u64) {
    let counted = async {
        while refused(reason) < before + more {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, counted)
        .await
        .unwrap_or_else(|_| panic!("{reason}: {} of {more}", refused(reason) - before));
}

/// Longer than a handshake; where it may not be, it is tried again.
const PATIENCE: Duration = Duration::from_secs(2);

/// All that comes until the other side closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    bytes
}

fn member(role: Role, node: u32) -> Member {
    Member {
        cluster: CLUSTER,
        id: MemberId(5),
        roles: Roles::of(&[role]),
        nodes: Nodes::These(vec![NodeId(node)]),
    }
}

/// An identity that the cluster's authority has signed.
fn signed(member: &Member, life: Duration) -> Identity {
    let authority = Authority::from_secret(CLUSTER, &secret()).unwrap();
    let Request { key, request } = Request::new().unwrap();
    let certificate = authority.sign_request(member, &request, life).unwrap();
    Identity::new(key, vec![certificate], vec![authority.certificate().clone()]).unwrap()
}

/// Asks once.
async fn ask(client: EndpointConfig, addr: SocketAddr) -> Result<net::Reply, CallError> {
    let client = Endpoint::start(client).unwrap();
    client.peer(&[addr]).call(call(ECHO, b"")).await
}

/// Asks in vain, with little patience, until it is told so: on a busy machine patience may end before the answer has come. Whole.
async fn told(client: EndpointConfig, addr: SocketAddr, what: &str) -> CallError {
    let (client, end) = (Endpoint::start(client).unwrap(), Instant::now() + SOON);
    loop {
        let hasty = Call { patience: Some(PATIENCE), ..call(ECHO, b"") };
        let error = client.peer(&[addr]).call(hasty).await.unwrap_err();
        if error.to_string().contains(what) {
            return error;
        }
        assert!(Instant::now() < end, "{error}");
    }
}

#[tokio::test]
async fn an_endpoint_is_what_its_certificate_says_or_does_not_start() {
    let without = EndpointConfig { identity: None, ..config(1) };
    assert!(matches!(Endpoint::start(without), Err(NetError::NoIdentity)));
    let server3 = Some(signed(&member(Role::Server, 3), Duration::ZERO));
    for (role, node) in [(Role::Manager, 0), (Role::Server, 4), (Role::Client, 3)] {
        let config = EndpointConfig { identity: server3.clone(), role, ..config(node) };
        assert!(matches!(Endpoint::start(config), Err(NetError::NotAllowed(..))));
    }
    Endpoint::start(EndpointConfig { identity: server3, role: Role::Server, ..config(3) }).unwrap();
}

#[tokio::test]
async fn a_member_is_who_it_says_on_both_sides() {
    let (_server, addr, asked) = counting(listening(1));
    let reply = ask(EndpointConfig { role: Role::Client, ..config(2) }, addr).await.unwrap();
    assert_eq!((&reply.body[..], asked.load(Ordering::SeqCst)), (&b"Client"[..], 1));
    let joined = Some(signed(&member(Role::Server, 3), Duration::from_secs(60)));
    let joined = EndpointConfig { identity: joined, role: Role::Server, ..config(3) };
    assert_eq!(&ask(joined, addr).await.unwrap().body[..], b"Server");
}

/// Another secret, another cluster, a certificate that has ended: each end finds out, and says so with the remedy.
#[tokio::test]
async fn strangers_are_refused_and_hear_nothing() {
    let (_server, addr, asked) = counting(listening(1));
    let before = refused("stranger");
    let of = |cluster, byte| {
        let identity = Identity::from_secret(cluster, &Secret::new([byte; 32])).unwrap();
        EndpointConfig { cluster, identity: Some(identity), ..config(2) }
    };
    for stranger in [of(CLUSTER, 8), of(ClusterId(8), 7), of(ClusterId(8), 8)] {
        let error = told(stranger, addr, "permission denied").await;
        let CallError::Disconnected { maybe_executed: false, reason } = error else { panic!("{error}") };
        assert!(reason.contains("--dir"), "{reason}");
        assert!(!reason.contains(&CLUSTER.to_string()), "{reason}");
    }
    // Each end notes it.
    refused_since("stranger", before, 6).await;

    let expired = refused("expired");
    let ended = signed(&member(Role::Client, 0), Duration::from_nanos(1));
    tokio::time::sleep(Duration::from_millis(1100)).await; // dates have whole seconds
    let ended = EndpointConfig { identity: Some(ended), role: Role::Client, ..config(0) };
    told(ended, addr, "this process's certificate has expired").await;
    refused_since("expired", expired, 2).await;
    assert!(base::events::events().after(0).iter().any(|e| e.name == "net_refused"));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// A member that says it is another: the certificate decides, on both sides.
#[tokio::test]
async fn nobody_is_more_than_his_certificate_says() {
    let (_server, addr, asked) = counting(listening(1));
    let before = refused("refused");
    let server3 = signed(&member(Role::Server, 3), Duration::ZERO);
    for (role, node) in [(Role::Manager, 0), (Role::Server, 4), (Role::Admin, 0), (Role::Client, 3)] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let mut tls = Tls::connecting(&server3);
        tls.shake(&mut stream).await.unwrap();
        let lie = Introduction { role, node: NodeId(node), ..introduction(Lane::Control, 1) };
        tls.send(&mut stream, &step(FrameKind::Introduction, &lie)).await.unwrap();
        let (_, body, _) = tls.receive_frame(&mut stream).await.unwrap();
        let Welcome::Refused { reason } = wire::frame::decode(&body).unwrap() else { panic!("welcome") };
        assert!(reason.contains("server") && reason.contains(&format!("{role:?}")), "{reason}");
    }
    refused_since("refused", before, 4).await;
    // The other side: who has a server's certificate is no manager to its clients.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let false_manager = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut tls = Tls::accepting(&server3);
            let _ = tls.shake(&mut stream).await;
            let _ = tls.receive_frame(&mut stream).await;
            let lie = Welcome::Accepted {
                node: NodeId(0),
                process: 1,
                role: Role::Manager,
                conns_max: 1,
                window: net::Window { requests: 1, bytes: 1 },
                capabilities: 0,
                build: Default::default(),
                addresses: vec![],
                clear: false,
                name: String::new(),
            };
            let _ = tls.send(&mut stream, &step(FrameKind::Welcome, &lie)).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    told(config(2), false_manager, "it says that it is Manager").await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// A client where the manager or a server was, that says truthfully what it is, is not asked what those would be.
#[tokio::test]
async fn a_client_in_the_place_of_a_manager_is_not_asked() {
    let client = Some(signed(&member(Role::Client, 0), Duration::ZERO));
    let (impostor, addr, asked) =
        counting(EndpointConfig { identity: client, role: Role::Client, ..listening(0) });
    for service in [Service::Manager, Service::Nsd] {
        impostor.serve(service, handler_fn(|_| async { panic!("it is asked") }));
        let victim = Endpoint::start(config(2)).unwrap();
        let call = Call { service, ..call(ECHO, b"secret") };
        let error = timeout(SOON, victim.peer(&[addr]).call(call)).await.unwrap().unwrap_err();
        assert!(
            matches!(&error, CallError::Refused(why) if why.contains("certificate as Client")),
            "{error}"
        );
    }
    // What every process answers it may be asked.
    ask(config(2), addr).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Two processes that say they are the same one, but are different members, are two: what one of them is owed does not
/// go to the other.
#[tokio::test]
async fn nobody_takes_the_place_of_another_process() {
    let (server, addr, _) = counting(listening(1));
    let (mut one, mut other) =
        (TcpStream::connect(addr).await.unwrap(), TcpStream::connect(addr).await.unwrap());
    for (stream, id) in [(&mut one, 5), (&mut other, 6)] {
        let it = Member { id: MemberId(id), ..member(Role::Lab, 9) };
        introduced_as(&signed(&it, Duration::ZERO), stream, Lane::Control, 99, false).await.unwrap();
    }
    let peers = || server.status().iter().filter(|peer| peer.process == Some(99)).count();
    timeout(SOON, async {
        while peers() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("two peers");
}

/// Who shows no certificate, or an older TLS, is refused as well.
#[tokio::test]
async fn who_shows_no_certificate_is_refused() {
    let (_server, addr, asked) = counting(listening(1));
    let before = refused("stranger");
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut tls = Tls::with(nobody());
    // To this side the handshake is over before the other has judged.
    tls.shake(&mut stream).await.unwrap();
    let _ = tls.send(&mut stream, &step(FrameKind::Introduction, &introduction(Lane::Bulk, 1))).await;
    let error = tls.receive_frame(&mut stream).await.unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    refused_since("stranger", before, 1).await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Before the handshake nothing is taken: no frame, nothing that is too long, nothing at all.
#[tokio::test]
async fn whatever_comes_first_is_refused() {
    let (_server, addr, asked) = counting(listening(1));
    let (garbage, broken) = (refused("garbage"), refused("broken"));
    let record =
        |kind: u8, body: &[u8]| [&[kind, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat();
    let hello = hello();
    for first in [
        b"GET / HTTP/1.1\r\nHost: ropewalk\r\n\r\n".repeat(10),
        frame(request(1), b"", b""),
        step(FrameKind::Introduction, &introduction(Lane::Bulk, 1)),
        vec![0xff; 5000],
        record(22, &[0; 100]),
        record(23, &[0; 100]),
        record(22, &[1, 0xff, 0xff, 0xff]),
        [&[22, 3, 1, 0xff, 0xff][..], &[0; 100]].concat(),
        // A handshake that is never whole, of whole records.
        [record(22, &[1, 0xff, 0xff, 0xff]), record(22, &[0; 16000]).repeat(6)].concat(),
        // The hello of nobody: in the midst of it.
        [&hello[..5], &[0; 300]].concat(),
    ] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let _ = stream.write_all(&first).await;
        let _ = stream.shutdown().await;
        let said = rest(&mut stream).await;
        // At most an alert.
        assert!(said.is_empty() || (said.len() == 7 && said[0] == 21), "{first:?}: {said:?}");
    }
    timeout(SOON, async {
        while refused("garbage") + refused("broken") < garbage + broken + 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("each is counted");
    // After the handshake of TLS, but where an introduction is due: a request, noise, far too much.
    for second in [
        frame(request(1), b"", b""),
        vec![0xff; 300],
        frame(Header { kind: FrameKind::Introduction, ..Header::default() }, &[0; 5000], b""),
        frame(Header { kind: FrameKind::Introduction, ..Header::default() }, b"", b""),
    ] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let mut tls = before_introduction(&identity(), &mut stream).await.unwrap();
        tls.send(&mut stream, &second).await.unwrap();
        assert!(rest(&mut stream).await.is_empty());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    ask(config(2), addr).await.unwrap();
    // Nothing, and then nothing more than a hello: both end by the deadline of the handshake as a whole.
    let quick = EndpointConfig { connect_timeout: Duration::from_millis(300), ..listening(1) };
    let (_server, addr, asked) = counting(quick);
    let silent = refused("silent");
    for said in [Vec::new(), hello] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&said).await.unwrap();
        rest(&mut stream).await;
    }
    refused_since("silent", silent, 2).await;
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// A server that names no address of its own, so that all connections go through a relay.
fn unnamed() -> EndpointConfig {
    EndpointConfig { advertise: vec!["0.0.0.0:0".parse().unwrap()], ..listening(1) }
}

/// What a relay does to the bytes of one direction.
type Meddle = Arc<dyn Fn(usize, &mut Vec<u8>) + Send + Sync>;

/// A relay that hands what the connecting side sends, from the `n`th byte on, to `meddle`.
async fn relay(to: SocketAddr, meddle: Meddle) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let meddle = Arc::clone(&meddle);
            tokio::spawn(async move {
                let (mut buffer, mut sent) = (vec![0; 1 << 16], 0);
                while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
                    let mut bytes = buffer[..n].to_vec();
                    meddle(sent, &mut bytes);
                    sent += n;
                    if to_server.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

/// A relay, or an address translation, between members changes nothing but that the connection stays encrypted, also where
/// both would do without.
#[tokio::test]
async fn through_a_relay_everything_is_encrypted() {
    let (_server, addr, asked) = counting(unnamed());
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let all = Arc::clone(&seen);
    let relayed = relay(addr, Arc::new(move |_, bytes| all.lock().unwrap().extend_from_slice(bytes))).await;
    for (to, encrypted) in [(relayed, true), (addr, false)] {
        let client = Endpoint::start(plain(2)).unwrap();
        let peer = client.peer(&[to]);
        let secret = b"what nobody else may read".repeat(1000);
        let reply = peer.call(bulk(ECHO, b"", bytes::Bytes::from(secret.clone()))).await.unwrap();
        assert_eq!(&reply.payload.into_bytes()[..], &secret[..]);
        let status = client.status();
        assert!(status[0].connections.iter().all(|c| c.encrypted == encrypted), "{status:?}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 25_000 && !seen.windows(15).any(|w| w == b"what nobody els"));
}

/// A relay that changes, repeats, leaves out or exchanges what passes: the connection ends, and no handler has ever seen
/// anything but what was sent.
#[tokio::test]
async fn a_relay_that_meddles_is_found_out() {
    let (_server, addr, _) = counting(unnamed());
    let tampered = || base::stats::counter("net_tampered_connections", &[]).get();
    let whole = pattern(200_000, 3);
    for round in 0..16usize {
        // Somewhere in the second half of what is sent: records of a payload, mostly.
        let at = 60_000 + round * 7001;
        let meddle: Meddle = Arc::new(move |sent, bytes| {
            let Some(i) = at.checked_sub(sent).filter(|&i| i < bytes.len()) else { return };
            match round % 4 {
                0 => bytes[i] ^= 1,
                1 => drop(bytes.drain(i..(i + 100).min(bytes.len()))),
                2 => {
                    let again = bytes[i..(i + 1000).min(bytes.len())].to_vec();
                    bytes.splice(i..i, again);
                }
                _ => {
                    let half = bytes.len() / 2;
                    bytes.rotate_left(half.max(1));
                }
            }
        });
        let relayed = relay(addr, meddle).await;
        let client = Endpoint::start(config(2)).unwrap();
        let (before, end) = (tampered(), Instant::now() + SOON);
        // Each is counted, and told. On a busy machine a call may end before its bytes are there.
        while tampered() == before {
            assert!(Instant::now() < end, "round {round} is not found out");
            let call = Call {
                patience: Some(Duration::from_millis(300)),
                deadline: Instant::now() + Duration::from_secs(5),
                idempotent: false,
                ..bulk(ECHO, b"", bytes::Bytes::from(whole.clone()))
            };
            match timeout(SOON, client.peer(&[relayed]).call(call)).await.unwrap() {
                Ok(reply) => panic!("round {round}: {} bytes came through", reply.payload.len()),
                // It is sent again on each new connection, and changed again.
                Err(CallError::Disconnected { .. } | CallError::Deadline) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
    assert!(base::events::events().after(0).iter().any(|e| e.name == "net_tampered"));
}

/// All that a member has said, said again by a stranger.
#[tokio::test]
async fn a_recorded_conversation_is_of_no_use() {
    let (_server, addr, asked) = counting(listening(1));
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let all = Arc::clone(&said);
    let relayed = relay(addr, Arc::new(move |_, bytes| all.lock().unwrap().extend_from_slice(bytes))).await;
    ask(config(2), relayed).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let said = said.lock().unwrap().clone();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&said).await.unwrap();
    let _ = stream.shutdown().await;
    rest(&mut stream).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it was asked again");
}

/// Another implementation's records are understood, and ours by it; also after it has renewed its keys, and asked for ours
/// to be renewed, several times.
#[tokio::test]
async fn records_are_those_of_tls() {
    let (_server, addr, _) = counting(listening(1));
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut tls = introduced(&mut stream, Lane::Bulk, 99, false).await.unwrap();
    for (i, len) in [0, 1, 127, 4096, 16_384, 16_385, 70_000, 1 << 20].into_iter().enumerate() {
        let payload = pattern(len, i as u8);
        tls.send(&mut stream, &frame(request(i as u64 + 1), b"body", &payload)).await.unwrap();
        let received = tls.receive_frame(&mut stream).await;
        let (header, body, back) = received.unwrap_or_else(|e| panic!("{len}: {e}"));
        assert_eq!(
            (header.request_id, &body[..], back == payload),
            (i as u64 + 1, &b"Lab"[..], true),
            "{len}"
        );
        tls.renew_keys();
    }
}

/// The price is paid once a connection: a thousand requests are two thousand frames, one each way.
#[tokio::test]
async fn requests_cost_no_more_frames() {
    let quiet =
        |c: EndpointConfig| EndpointConfig { heartbeat_interval: SOON, heartbeat_timeout: SOON * 2, ..c };
    let (_server, addr, _) = counting(quiet(listening(1)));
    let client = Endpoint::start(quiet(config(2))).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(call(ECHO, b"")).await.unwrap();
    let counts = || {
        let peers = client.status();
        // Others of its group may just be made.
        let own = || peers[0].connections.iter().filter(|c| c.lane == Lane::Control);
        let of = |f: fn(&net::ConnStatus) -> u64| own().map(f).sum::<u64>();
        (of(|c| c.frames_sent), of(|c| c.frames_received), of(|c| c.bytes_sent))
    };
    let before = counts();
    for _ in 0..1000 {
        peer.call(call(ECHO, b"")).await.unwrap();
    }
    let after = counts();
    assert_eq!((after.0 - before.0, after.1 - before.1), (1000, 1000));
    assert_eq!(after.2 - before.2, 1000 * HEADER_LEN as u64);
}
