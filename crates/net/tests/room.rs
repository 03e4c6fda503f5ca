//! Room that all share, of a connection's window and of the memory for requests: who is refused, and who is slow, gives it back.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use net::{Call, CallError, Endpoint, EndpointConfig, Lane, Service, Status};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use wire::frame::{FrameKind, Header};

#[tokio::test]
async fn calls_that_the_peer_may_not_answer_take_no_room() {
    let (_server, addr) = server();
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    for _ in 0..600 {
        let asked = Call { service: Service::Manager, ..call(ECHO, b"") };
        let error = peer.call(asked).await.unwrap_err();
        assert!(matches!(&error, CallError::Refused(why) if why.contains("does not answer")), "{error}");
    }
    assert!(peer.call(call(ECHO, b"")).await.is_ok());
}

/// A peer that has started anew may not be asked again for what may have been done.
#[tokio::test]
async fn calls_that_a_new_process_of_the_peer_is_not_asked_again_take_no_room() {
    // The window that `greet` gives.
    const WINDOW: usize = 64;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut first = true;
        while let Ok((mut stream, _)) = listener.accept().await {
            let requests = if std::mem::take(&mut first) { WINDOW } else { usize::MAX };
            tokio::spawn(async move {
                greet(&mut stream, requests as u64).await.unwrap();
                let mut read = 0;
                while let (true, Ok((header, body, _))) = (read < requests, read_frame(&mut stream).await) {
                    if header.kind != FrameKind::Request {
                        continue;
                    }
                    read += 1;
                    let reply = Header { kind: FrameKind::Reply, status: Status::Ok, ..header };
                    if requests > WINDOW {
                        stream.write_all(&frame(reply, &body, b"")).await.unwrap();
                    }
                }
            });
        }
    });
    let client = Endpoint::start(plain(2)).unwrap();
    let peer = client.peer(&[addr]);
    let lost: Vec<_> = (0..WINDOW)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { peer.call(call(ECHO, b"once")).await })
        })
        .collect();
    for call in lost {
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(&error, CallError::Disconnected { maybe_executed: true, reason } if reason.contains("anew")),
            "{error}"
        );
    }
    assert!(peer.call(call(ECHO, b"next")).await.is_ok());
}

/// A member that sends the bytes of a large request one by one keeps nobody else out for long.
#[tokio::test]
async fn a_request_that_trickles_gives_its_memory_back_when_others_want_it() {
    // No more than the largest request.
    let small = EndpointConfig {
        inbound_bytes_max: 24 << 20,
        heartbeat_interval: Duration::from_millis(300),
        heartbeat_timeout: Duration::from_secs(1),
        ..listening(1)
    };
    let (_server, addr) = server_with(small);
    let mut trickles = TcpStream::connect(addr).await.unwrap();
    shake_hands(&mut trickles, Lane::Bulk, 99).await.unwrap();
    let whole = Header { body_len: 8 << 20, payload_len: 16 << 20, ..request(1) };
    trickles.write_all(&whole.encode()).await.unwrap();
    static SENT: AtomicU64 = AtomicU64::new(0);
    let trickle = tokio::spawn(async move {
        while trickles.write_all(&[0]).await.is_ok() {
            SENT.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    while SENT.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let client = Endpoint::start(plain(2)).unwrap();
    let payload = Bytes::from(pattern(64 << 10, 1));
    let reply = client.peer(&[addr]).call(bulk(ECHO, b"", payload.clone())).await.unwrap();
    assert_eq!(reply.payload.into_bytes(), payload);
    timeout(SOON, trickle).await.expect("it is closed").unwrap();
}
