//! Who does not know the cluster's secret gets nothing: whatever he sends, hears and sends again, from either end. Each
//! attempt is refused and counted, and the service goes on.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base::ClusterId;
use common::*;
use net::{Call, CallError, Endpoint, EndpointConfig, Lane, NetError, Role, Secret, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use wire::{
    auth::{Proven, Side},
    frame::{FrameKind, HEADER_LEN, Header, Service},
    hello::{Challenge, HelloReply},
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
            async move { net::Response::ok(who.into_bytes()) }
        }),
    );
    (server, addr, asked)
}

/// What this process has refused for that reason.
fn refused(reason: &str) -> u64 {
    let help = "Handshakes that came to nothing: nothing could be asked.";
    base::stats::counter("net_refused_handshakes", help, &[("reason", reason)]).get()
}

/// All that comes until the other side closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    bytes
}

/// The answer is a refusal that says nothing, and the connection is closed.
async fn is_refused(stream: &mut TcpStream) {
    let bytes = rest(stream).await;
    let header = Header::decode(bytes[..HEADER_LEN].try_into().unwrap()).unwrap();
    assert_eq!(header.kind, FrameKind::HelloReply);
    let reply: HelloReply = wire::frame::decode(&bytes[HEADER_LEN..]).unwrap();
    assert_eq!(reply, HelloReply::Refused { reason: "refused".to_owned() });
}

#[tokio::test]
async fn an_endpoint_without_a_secret_does_not_start() {
    let without = EndpointConfig { secret: None, ..config(1) };
    assert!(matches!(Endpoint::start(without), Err(NetError::NoSecret)));
}

#[tokio::test]
async fn a_member_is_who_it_says_on_both_sides() {
    let (_server, addr, asked) = counting(listening(1));
    let client = Endpoint::start(EndpointConfig { role: Role::Client, ..config(2) }).unwrap();
    let reply = client.peer(&[addr]).call(call(ECHO, b"")).await.unwrap();
    assert_eq!((&reply.body[..], asked.load(Ordering::SeqCst)), (&b"Client"[..], 1));
}

/// Another secret, another cluster: each end finds out that the other is a stranger, and says so with the remedy.
#[tokio::test]
async fn another_secret_or_cluster_is_refused_and_hears_nothing() {
    let (_server, addr, asked) = counting(listening(1));
    let (before, left) = (refused("stranger"), refused("left"));
    for config in [
        EndpointConfig { secret: Some(Secret::new([8; 32])), ..config(2) },
        EndpointConfig { cluster: ClusterId(8), ..config(2) },
        EndpointConfig { relays: true, ..config(2) },
    ] {
        let stranger = Endpoint::start(config).unwrap();
        let hasty = Call { patience: Some(Duration::from_millis(300)), ..call(ECHO, b"") };
        let error = timeout(SOON, stranger.peer(&[addr]).call(hasty)).await.unwrap().unwrap_err();
        let CallError::Disconnected { maybe_executed: false, reason } = error else { panic!("{error}") };
        assert!(reason.contains("permission denied") && reason.contains("cluster.toml"), "{reason}");
        assert!(!reason.contains(&CLUSTER.to_string()), "{reason}");
    }
    // Each end notes it.
    let counted = async {
        while refused("stranger") < before + 3 || refused("left") < left + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, counted).await.expect("each is counted");
    assert!(base::events::events().after(0).iter().any(|e| e.name == "net_refused"));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Before the proof nothing is taken: no request, no message of another step, nothing that is too long, nothing at all.
#[tokio::test]
async fn whatever_comes_first_is_refused() {
    let quick = EndpointConfig { connect_timeout: Duration::from_millis(300), ..listening(1) };
    let (_server, addr, asked) = counting(quick);
    let garbage = refused("garbage");
    let forged = Proven { said: wire::frame::encode(&introduction(Lane::Bulk, 1)), proof: [0; 32] };
    let empty = HelloReply::Refused { reason: String::new() };
    for first in [
        b"GET / HTTP/1.1\r\nHost: ropewalk\r\n\r\n".repeat(10),
        frame(request(1), b"", b""),
        step(FrameKind::Introduction, &forged),
        step(FrameKind::Challenge, &Challenge { nonce: [0; 32], proof: [0; 32] }),
        step(FrameKind::HelloReply, &empty),
        frame(Header { kind: FrameKind::Hello, ..Header::default() }, &[0; 5000], b""),
        frame(Header { kind: FrameKind::Hello, ..Header::default() }, b"", b""),
        // What the version before sent: a cluster, a node, a process, ...
        frame(Header { kind: FrameKind::Hello, ..Header::default() }, b"\x07\x09\x63\x00\x01", b""),
    ] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let _ = stream.write_all(&first).await;
        assert!(rest(&mut stream).await.is_empty(), "{first:?}");
    }
    assert!(refused("garbage") >= garbage + 8);
    // A forged introduction where one is due, and a request in its place.
    for second in [step(FrameKind::Introduction, &forged), frame(request(1), b"", b"")] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        challenged(&mut stream, &introduction(Lane::Bulk, 1)).await.unwrap();
        stream.write_all(&second).await.unwrap();
        if second.len() > HEADER_LEN {
            is_refused(&mut stream).await;
        } else {
            assert!(rest(&mut stream).await.is_empty());
        }
    }
    // Nothing, and then nothing more than a hello: both end by the deadline of the handshake as a whole.
    let silent = refused("silent");
    for said in [Vec::new(), hello()] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&said).await.unwrap();
        rest(&mut stream).await;
    }
    assert!(refused("silent") >= silent + 2);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let member = Endpoint::start(config(2)).unwrap();
    member.peer(&[addr]).call(call(ECHO, b"")).await.unwrap();
}

/// A relay between a member and the server that keeps every byte, so that it can be said again.
async fn recorded(server: SocketAddr) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let record = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(server).await.unwrap();
        let (mut to_server, mut to_client) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut said, mut answered) = (Vec::new(), Vec::new());
        // Until the request was sent and answered.
        while answered.len() < 3 * HEADER_LEN {
            tokio::select! {
                n = client.read(&mut to_server) => {
                    let new = &to_server[..n.unwrap()];
                    said.extend_from_slice(new);
                    server.write_all(new).await.unwrap();
                }
                n = server.read(&mut to_client) => {
                    let new = &to_client[..n.unwrap()];
                    answered.extend_from_slice(new);
                    client.write_all(new).await.unwrap();
                }
            }
        }
        (said, answered)
    });
    let client = Endpoint::start(EndpointConfig { relays: true, ..config(2) }).unwrap();
    client.peer(&[addr]).call(call(ECHO, b"")).await.unwrap();
    timeout(SOON, record).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_recorded_conversation_is_of_no_use() {
    // Even where the addresses of a connection do not count.
    let (_server, addr, asked) = counting(EndpointConfig { relays: true, ..listening(1) });
    let (said, answered) = recorded(addr).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&said).await.unwrap();
    read_frame(&mut stream).await.unwrap(); // its own challenge, a new one
    is_refused(&mut stream).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it was asked again");

    // The same from the other end: a member that connects to who plays the server's part.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let player = listener.local_addr().unwrap();
    let heard = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let all = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(&answered).await;
            let one = rest(&mut stream).await;
            all.lock().unwrap().push(one);
        }
    });
    let client = Endpoint::start(EndpointConfig { relays: true, ..config(2) }).unwrap();
    let hasty = Call { patience: Some(Duration::from_millis(100)), ..call(ECHO, b"the data") };
    let error = timeout(SOON, client.peer(&[player]).call(hasty)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
    // It said its challenge, and nothing of itself, let alone the data.
    timeout(SOON, async {
        while heard.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it was heard");
    assert!(heard.lock().unwrap().iter().all(|one| one.len() == hello().len()));
}

/// What a server proves to a stranger, sent back as the stranger's own proof, also on a second connection.
#[tokio::test]
async fn a_challenge_cannot_be_reflected() {
    let (_server, addr, asked) = counting(listening(1));
    let mut first = TcpStream::connect(addr).await.unwrap();
    first.write_all(&hello()).await.unwrap();
    let (_, body, _) = read_frame(&mut first).await.unwrap();
    let challenge: Challenge = wire::frame::decode(&body).unwrap();
    // On a second one the stranger challenges with the server's own nonce, and so has its proof over both.
    let mut second = TcpStream::connect(addr).await.unwrap();
    let own = wire::hello::Hello { nonce: challenge.nonce };
    second.write_all(&step(FrameKind::Hello, &own)).await.unwrap();
    let (_, body, _) = read_frame(&mut second).await.unwrap();
    let other: Challenge = wire::frame::decode(&body).unwrap();
    for (stream, proof) in [(&mut first, other.proof), (&mut second, challenge.proof)] {
        let said = wire::frame::encode(&introduction(Lane::Bulk, 1));
        stream.write_all(&step(FrameKind::Introduction, &Proven { said, proof })).await.unwrap();
        is_refused(stream).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// Who has taken the port of a server that is away, and passes everything on to another server, stays outside.
#[tokio::test]
async fn a_relay_is_noticed_by_the_addresses() {
    let (_server, addr, asked) = counting(listening(1));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(addr).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let client = Endpoint::start(config(2)).unwrap();
    let hasty = Call { patience: Some(Duration::from_millis(300)), ..call(ECHO, b"") };
    let error = timeout(SOON, client.peer(&[relay]).call(hasty)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

/// The price is paid once a connection: a thousand requests are two thousand frames, one each way.
#[tokio::test]
async fn requests_cost_nothing_more() {
    let quiet =
        |c: EndpointConfig| EndpointConfig { heartbeat_interval: SOON, heartbeat_timeout: SOON * 2, ..c };
    let (_server, addr, _) = counting(quiet(listening(1)));
    let client = Endpoint::start(quiet(config(2))).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(call(ECHO, b"")).await.unwrap();
    let counts = || {
        let peers = client.status();
        let of = |f: fn(&net::ConnStatus) -> u64| peers[0].connections.iter().map(f).sum::<u64>();
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

/// A proof for bytes of one side is none for the other's: both ends check which side speaks.
#[tokio::test]
async fn an_introduction_sealed_by_the_wrong_side_is_refused() {
    let (_server, addr, asked) = counting(listening(1));
    for side in [Side::Accepting, Side::Answering] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let (_, exchange) = challenged(&mut stream, &introduction(Lane::Bulk, 1)).await.unwrap();
        let said = wire::frame::encode(&introduction(Lane::Bulk, 1));
        let sealed = Proven::seal(&exchange, &secret(), side, said);
        stream.write_all(&step(FrameKind::Introduction, &sealed)).await.unwrap();
        is_refused(&mut stream).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}
