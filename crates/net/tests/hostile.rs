//! What comes from outside and is not a well-behaved peer: garbage, truncated and lying frames, replies
//! nobody asked for, peers of other clusters and versions, peers that say nothing or stop.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use net::{
    Call, CallError, CallState, Endpoint, EndpointConfig, Lane, Payload, Response, Service, handler_fn,
};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use wire::{
    frame::{FrameKind, Header, PROTOCOL_VERSION, Status},
    hello::Introduction,
};

/// Sends `bytes` to the server and reads until it closes or has answered everything and `eof` is sent.
async fn throw(addr: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    throw_on(TcpStream::connect(addr).await.unwrap(), bytes).await
}

async fn throw_on(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // The server may close in the middle.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the server closes");
    answer
}

async fn raw_connection(addr: std::net::SocketAddr, lane: Lane) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    shake_hands(&mut stream, lane, 99).await.unwrap();
    stream
}

async fn still_serves(addr: std::net::SocketAddr) {
    let client = Endpoint::start(plain(2)).unwrap();
    let reply = client.peer(&[addr]).call(bulk(ECHO, b"well?", Bytes::from_static(b"p"))).await.unwrap();
    assert_eq!(&reply.body[..], b"well?");
}

#[tokio::test]
async fn garbage_before_and_after_the_handshake_closes_that_connection_only() {
    let (server, addr) = server();
    assert!(throw(addr, b"GET / HTTP/1.1\r\n\r\n").await.is_empty());
    assert!(throw(addr, &[0xff; 1000]).await.is_empty());
    assert!(throw(addr, &hello()[..50]).await.is_empty());
    // A request without a handshake.
    assert!(throw(addr, &frame(request(1), b"", b"")).await.is_empty());
    for after in [
        vec![0xff; 300],
        frame(request(1), b"body", b"payload")[..130].to_vec(),
        frame(Header { kind: FrameKind::Introduction, ..Header::default() }, b"", b""),
        frame(Header { kind: FrameKind::Cancel, ..Header::default() }, b"x", b""),
        frame(Header { kind: FrameKind::Reply, request_id: 5, ..Header::default() }, b"", b""),
        // A body that does not match its CRC.
        [&Header { body_len: 4, body_crc: 1, ..request(1) }.encode()[..], b"body"].concat(),
        // A length above the bound.
        Header { payload_len: u32::MAX, ..request(1) }.encode().to_vec(),
    ] {
        let mut stream = raw_connection(addr, Lane::Control).await;
        let _ = stream.write_all(&after).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("closed");
        assert!(rest.is_empty(), "{rest:?}");
    }
    still_serves(addr).await;
    assert!(server.serving().is_empty());
}

#[tokio::test]
async fn every_cut_of_a_conversation_is_survived() {
    let (server, addr) = server();
    let whole = [
        frame(request(1), b"abc", &pattern(5000, 1)),
        frame(request(2), b"", b""),
        frame(Header { kind: FrameKind::Ping, ..Header::default() }, b"", b""),
        frame(Header { kind: FrameKind::Cancel, request_id: 77, ..Header::default() }, b"", b""),
        frame(request(3), &pattern(3000, 1), b"z"),
    ]
    .concat();
    for cut in (0..whole.len()).step_by(97) {
        throw_on(raw_connection(addr, Lane::Bulk).await, &whole[..cut]).await;
    }
    throw_on(raw_connection(addr, Lane::Bulk).await, &whole).await;
    still_serves(addr).await;
    assert!(server.serving().is_empty());
}

#[tokio::test]
async fn frames_in_any_pieces_are_the_same_frames() {
    let (_server, addr) = server();
    let stream = raw_connection(addr, Lane::Bulk).await;
    stream.set_nodelay(true).unwrap();
    // Small ones to turn the read-ahead on, then payloads caught in it, in pieces of odd sizes.
    let mut bytes = Vec::new();
    let sent: Vec<(Vec<u8>, Vec<u8>)> = (0..60u64)
        .map(|i| {
            let payload = if i < 20 { 0 } else { (i as usize * 331) % 40_000 };
            (pattern(i as usize * 13 % 600, i as u8), pattern(payload, i as u8))
        })
        .collect();
    for (i, (body, payload)) in sent.iter().enumerate() {
        bytes.extend_from_slice(&frame(request(i as u64 + 1), body, payload));
    }
    let (mut reader, mut writer) = stream.into_split();
    let replies = tokio::spawn(async move {
        let mut seen = Vec::new();
        let _ = reader.read_to_end(&mut seen).await;
        seen
    });
    let mut size = 1;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let n = size.min(rest.len());
        writer.write_all(&rest[..n]).await.unwrap();
        rest = &rest[n..];
        size = size * 7 % 9973 + 1;
        tokio::task::yield_now().await;
    }
    writer.shutdown().await.unwrap();
    let seen = timeout(SOON, replies).await.unwrap().unwrap();
    let mut at = 0;
    let mut answered = 0;
    while at < seen.len() {
        let header = Header::decode(seen[at..at + 128].try_into().unwrap(), PROTOCOL_VERSION).unwrap();
        let (b, p) = (header.body_len as usize, header.payload_len as usize);
        let (body, payload) = &sent[header.request_id as usize - 1];
        assert_eq!(
            (&seen[at + 128..at + 128 + b], &seen[at + 128 + b..at + 128 + b + p]),
            (&body[..], &payload[..])
        );
        at += 128 + b + p;
        answered += 1;
    }
    assert_eq!(answered, sent.len());
}

#[tokio::test]
async fn a_peer_beyond_its_window_is_closed() {
    let window = net::Window { requests: 3, bytes: 10_000 };
    // Not closed because it is silent.
    let patient = EndpointConfig { heartbeat_interval: SOON, heartbeat_timeout: SOON * 2, ..listening(1) };
    let (server, addr) = server_with(EndpointConfig { window, ..patient });
    for (op, payload, n) in [(NEVER, 0, 4), (NEVER, 6000, 2)] {
        let mut stream = raw_connection(addr, Lane::Bulk).await;
        for id in 1..=n {
            stream.write_all(&frame(Header { op, ..request(id) }, b"", &vec![0; payload])).await.unwrap();
        }
        let mut rest = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("closed");
    }
    // The same id twice.
    let mut stream = raw_connection(addr, Lane::Bulk).await;
    let twice = frame(Header { op: NEVER, ..request(1) }, b"", b"").repeat(2);
    stream.write_all(&twice).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.expect("closed");
    still_serves(addr).await;
    timeout(SOON, async {
        while !server.serving().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("what the closed peers asked for ends");
}

#[tokio::test]
async fn another_version_is_refused_with_a_reason() {
    let (_server, addr) = server();
    // A client from before TLS: told by a frame of ours, which names our version.
    let mut before_tls = frame(Header { kind: FrameKind::Introduction, ..Header::default() }, b"", b"");
    before_tls[4] = 7;
    let answer = throw(addr, &before_tls).await;
    let header = Header::decode(answer[..].try_into().unwrap(), PROTOCOL_VERSION).unwrap();
    assert_eq!(header.kind, FrameKind::Welcome);
    // One of a later version: TLS has a word for it.
    let mut later = (*identity().client_config()).clone();
    later.alpn_protocols = vec![b"ropewalk/99".to_vec()];
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let error = Tls::with(Arc::new(later)).shake(&mut stream).await.unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");

    // A server of another version.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut later = (*identity().server_config()).clone();
            later.alpn_protocols = vec![b"ropewalk/99".to_vec()];
            let _ = Tls::serving(Arc::new(later)).shake(&mut stream).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let client = Endpoint::start(plain(2)).unwrap();
    let error = timeout(SOON, client.peer(&[addr]).call(call(ECHO, b""))).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, CallError::Refused(r) if r.contains("another version of the protocol")),
        "{error}"
    );
}

/// A server that does the handshake and then `then` with each connection.
async fn raw_server<F, Fut>(then: F) -> std::net::SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + Sync + Copy + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    raw_server_as(|| 11, then).await
}

/// A number that no process had before.
fn another() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(100);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The same, as another process each time if `process` says so.
async fn raw_server_as<F, Fut>(process: fn() -> u64, then: F) -> std::net::SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + Sync + Copy + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if greet(&mut stream, process()).await.is_ok() {
                    then(stream).await;
                }
            });
        }
    });
    addr
}

#[tokio::test]
async fn a_peer_that_never_answers_costs_the_deadline_and_no_more() {
    // Not even a handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = listener.local_addr().unwrap();
    // A handshake, and then it stops reading.
    let stalled = raw_server(|stream| async move {
        tokio::time::sleep(SOON * 2).await;
        drop(stream);
    })
    .await;
    let client = Endpoint::start(plain(2)).unwrap();
    for addr in [mute, stalled] {
        let short = |op: u8, payload: Payload| Call {
            deadline: Instant::now() + Duration::from_millis(300),
            ..bulk(op, b"", payload)
        };
        // More than socket buffers hold, too.
        let big = Payload::from(Bytes::from(vec![1; 16 << 20]));
        let peer = client.peer(&[addr]);
        let (a, b) = timeout(SOON, async {
            tokio::join!(peer.call(short(ECHO, Payload::new())), peer.call(short(SINK, big)))
        })
        .await
        .expect("calls end by their deadlines");
        assert!(matches!(a, Err(CallError::Deadline)), "{a:?}");
        assert!(matches!(b, Err(CallError::Deadline)), "{b:?}");
    }
}

/// A connection is lost, its request sent again on another; the first copy is read after the second.
#[tokio::test]
async fn a_copy_that_is_read_late_does_not_take_the_reply_away() {
    let (server, addr) = server();
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let opened = std::sync::Arc::clone(&gate);
    server.serve(
        Service::Lab,
        handler_fn(move |_| {
            let opened = std::sync::Arc::clone(&opened);
            async move {
                opened.acquire().await.unwrap().forget();
                Response::ok(b"done".to_vec())
            }
        }),
    );
    let copy = frame(Header { once: true, settled: 7, ..request(7) }, b"", b"");
    let mut waiting = raw_connection(addr, Lane::Bulk).await;
    let mut lost = raw_connection(addr, Lane::Bulk).await;
    for (stream, copies) in [(&mut waiting, 1), (&mut lost, 2)] {
        stream.write_all(&copy).await.unwrap();
        while server.serving().len() < copies {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    drop(lost);
    gate.add_permits(1);
    let reply = async {
        loop {
            let (header, body, _) = read_frame(&mut waiting).await.unwrap();
            if header.kind == FrameKind::Reply {
                return (header.request_id, body);
            }
        }
    };
    assert_eq!(timeout(SOON, reply).await.expect("the reply comes"), (7, b"done".to_vec()));
    assert!(server.serving().is_empty(), "no copy holds room");
}

#[tokio::test]
async fn control_calls_do_not_wait_behind_bulk_data() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    // Reads nothing from bulk connections, answers on control ones.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(Introduction { lane, .. }) = greet(&mut stream, 11).await else { return };
                if lane == Lane::Bulk {
                    tokio::time::sleep(SOON * 2).await;
                }
                while let Ok((header, body, _)) = read_frame(&mut stream).await {
                    if header.kind == FrameKind::Request {
                        let reply = Header { kind: FrameKind::Reply, ..header };
                        stream.write_all(&frame(reply, &body, b"")).await.unwrap();
                    }
                }
            });
        }
    });
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    let bulk = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(bulk(SINK, b"", Bytes::from(vec![1; 16 << 20]))).await.map(|_| ()) }
    });
    while !client.waiters().iter().any(|w| w.state == CallState::Reply) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let reply = timeout(SOON / 3, peer.call(call(ECHO, b"lease"))).await.expect("it is not behind").unwrap();
    assert_eq!(&reply.body[..], b"lease");
    assert!(!bulk.is_finished());
    bulk.abort();
}

#[tokio::test]
async fn a_half_open_peer_is_found_by_heartbeats() {
    let addr = raw_server_as(another, |stream| async move {
        tokio::time::sleep(SOON * 2).await;
        drop(stream);
    })
    .await;
    let client = Endpoint::start(EndpointConfig {
        heartbeat_interval: Duration::from_millis(50),
        heartbeat_timeout: Duration::from_millis(200),
        ..plain(2)
    })
    .unwrap();
    let error = timeout(SOON, client.peer(&[addr]).call(call(ECHO, b""))).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, CallError::Disconnected { maybe_executed: true, reason } if reason.contains("no sign of life")),
        "{error}"
    );
}

#[tokio::test]
async fn an_idle_healthy_connection_stays() {
    let fast = |c: EndpointConfig| EndpointConfig {
        heartbeat_interval: Duration::from_millis(20),
        heartbeat_timeout: SOON,
        ..c
    };
    let (_server, addr) = server_with(fast(listening(1)));
    let client = Endpoint::start(fast(config(2))).unwrap();
    let peer = client.peer(&[addr]);
    let first = peer.call(call(ECHO, b"")).await.unwrap().connection;
    let answered = async {
        while client.status()[0].connections[0].frames_received <= 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, answered).await.expect("heartbeats are answered");
    assert_eq!(peer.call(call(ECHO, b"")).await.unwrap().connection, first);
}

#[tokio::test]
async fn a_lost_request_goes_to_a_new_process_only_where_the_call_allows_it() {
    // Reads one request, then closes, the first few times; the counter is in the kernel: a static.
    use std::sync::atomic::{AtomicU32, Ordering};
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    let addr = raw_server_as(another, |mut stream| async move {
        let n = CONNECTIONS.fetch_add(1, Ordering::SeqCst);
        while let Ok((header, body, _)) = read_frame(&mut stream).await {
            if header.kind != FrameKind::Request {
                continue;
            }
            if n < 3 {
                return;
            }
            let reply = Header { kind: FrameKind::Reply, status: Status::Ok, ..header };
            if stream.write_all(&frame(reply, &body, b"payload")).await.is_err() {
                return;
            }
        }
    })
    .await;
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    let error = timeout(SOON, peer.call(call(ECHO, b"once"))).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Disconnected { maybe_executed: true, .. }), "{error}");
    let again = Call { idempotent: true, into: Some(Box::new(vec![0u8; 16])), ..call(ECHO, b"repeat") };
    let reply = timeout(SOON, peer.call(again)).await.unwrap().unwrap();
    assert_eq!(&reply.body[..], b"repeat");
    assert_eq!(reply.payload.downcast::<Vec<u8>>().unwrap().0[..7], *b"payload");
}

/// A server where one was: its port is free when the last task of that one has ended.
async fn again_at(addr: std::net::SocketAddr) -> Endpoint {
    let server = timeout(SOON, async {
        loop {
            match Endpoint::start(EndpointConfig { listen: vec![addr], ..listening(1) }) {
                Ok(server) => return server,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    let server = server.await.expect("the port is free again");
    server.serve(Service::Lab, lab());
    server
}

#[tokio::test]
async fn no_server_ends_with_patience_and_a_server_that_comes_is_used() {
    // Where nobody else listens: on the usual address another program could get the port while nobody has it.
    let listener = TcpListener::bind("127.0.0.4:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    let hasty = Call { patience: Some(Duration::from_secs(2)), ..call(ECHO, b"") };
    let error = timeout(SOON, peer.call(hasty)).await.unwrap().unwrap_err();
    let CallError::Disconnected { maybe_executed: false, reason } = &error else { panic!("{error}") };
    assert!(reason.contains(&addr.to_string()) && reason.contains("refused"), "{reason}");
    // Now it is started while a call waits, later stopped and started again.
    for life in 0..3 {
        let waiting = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(Call { patience: Some(SOON), idempotent: true, ..call(ECHO, b"hi") }).await }
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        let server = again_at(addr).await;
        let reply = timeout(SOON, waiting).await.unwrap().unwrap();
        assert_eq!(&reply.unwrap_or_else(|e| panic!("life {life}: {e}")).body[..], b"hi");
        server.shutdown();
    }
}

#[tokio::test]
async fn a_reply_to_somebody_else_closes_the_connection() {
    let addr = raw_server_as(another, |mut stream| async move {
        if let Ok((header, ..)) = read_frame(&mut stream).await {
            let wrong = Header { kind: FrameKind::Reply, request_id: header.request_id + 1, ..header };
            let _ = stream.write_all(&frame(wrong, b"", b"")).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    })
    .await;
    let client = Endpoint::start(plain(2)).unwrap();
    let error = timeout(SOON, client.peer(&[addr]).call(call(ECHO, b""))).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, CallError::Disconnected { reason, .. } if reason.contains("no request")),
        "{error}"
    );
}

#[tokio::test]
async fn a_connection_lost_within_a_payload_gives_the_pages_to_the_retry() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    let addr = raw_server(|mut stream| async move {
        let n = CONNECTIONS.fetch_add(1, Ordering::SeqCst);
        while let Ok((header, ..)) = read_frame(&mut stream).await {
            if header.kind != FrameKind::Request {
                continue;
            }
            let reply = frame(Header { kind: FrameKind::Reply, ..header }, b"", &pattern(100_000, 5));
            let cut = if n < 2 { 50_000 } else { reply.len() };
            if stream.write_all(&reply[..cut]).await.is_err() || n < 2 {
                return;
            }
        }
    })
    .await;
    let client = Endpoint::start(plain(2)).unwrap();
    let call = Call { idempotent: true, into: Some(Box::new(vec![0u8; 100_000])), ..call(SOURCE, b"") };
    let reply = timeout(SOON, client.peer(&[addr]).call(call)).await.unwrap().unwrap();
    assert_eq!(reply.payload.downcast::<Vec<u8>>(), Some((pattern(100_000, 5), 100_000)));
}

#[tokio::test]
async fn silent_connects_do_not_keep_a_peer_out() {
    let patient = EndpointConfig { connect_timeout: SOON * 2, ..listening(1) };
    let (_server, addr) = server_with(EndpointConfig { handshakes_max: 8, ..patient });
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    still_serves(addr).await;
    // The oldest have made way.
    for stream in &mut silent[..80] {
        let closed = timeout(SOON, stream.read(&mut [0])).await.expect("closed");
        assert!(matches!(closed, Ok(0) | Err(_)));
    }
}

#[tokio::test]
async fn the_end_of_an_endpoint_ends_its_calls_and_frees_its_port() {
    let (server, addr) = server();
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    let waiting = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(call(NEVER, b"")).await }
    });
    while client.waiters().is_empty() || server.serving().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    client.shutdown();
    let ended = timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(CallError::Shutdown)), "{ended:?}");
    assert!(matches!(peer.call(call(ECHO, b"")).await, Err(CallError::Shutdown)));
    drop(server);
    again_at(addr).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Random damage to a valid conversation: the server answers or closes, and goes on serving.
    #[test]
    fn damaged_conversations_are_survived(
        flips in proptest::collection::vec((0usize..1500, 0u8..8), 1..20),
        cut in 0usize..1500,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_server, addr) = server();
            let mut bytes = [
                frame(request(1), b"abc", &pattern(500, 1)),
                frame(request(2), b"", b""),
                frame(request(3), &pattern(300, 1), b"z"),
            ].concat();
            for (at, bit) in flips {
                let at = at % bytes.len();
                bytes[at] ^= 1 << bit;
            }
            bytes.truncate(cut.max(1));
            throw_on(raw_connection(addr, Lane::Bulk).await, &bytes).await;
            still_serves(addr).await;
        });
    }
}
