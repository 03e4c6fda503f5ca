//! Bounds that a peer meets: replies that it does not read, connections beyond what is accepted.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::*;
use net::{Call, Endpoint, EndpointConfig, Lane, Response, Service, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use wire::frame::Header;

async fn connected(addr: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(addr).await?;
    shake_hands(&mut stream, Lane::Bulk, 99).await?;
    Ok(stream)
}

/// Replies of 1 MiB are asked for and not read: no more is done than what sockets and the bound hold, until they are.
#[tokio::test]
async fn replies_that_nobody_reads_stop_further_work() {
    const ASKED: u64 = 60;
    let (server, addr) = server_with(EndpointConfig { outbound_bytes_max: 2 << 20, ..listening(1) });
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    server.serve(
        Service::Lab,
        handler_fn(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Response::with_payload(vec![], bytes::Bytes::from(vec![7; 1 << 20])) }
        }),
    );
    let mut stream = connected(addr).await.unwrap();
    for id in 1..=ASKED {
        stream.write_all(&frame(Header { op: SOURCE, ..request(id) }, b"", b"")).await.unwrap();
    }
    let mut before = usize::MAX;
    // At rest once it has begun: on a busy machine nothing may have happened for a while.
    let at_rest = async {
        while before != done.load(Ordering::SeqCst) || before < 3 {
            before = done.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    timeout(SOON, at_rest).await.expect("replies are made");
    assert!((3..ASKED as usize / 2).contains(&before), "{before} of {ASKED} replies were made");
    for _ in 0..ASKED {
        let (_, _, payload) = timeout(SOON, read_frame(&mut stream)).await.unwrap().unwrap();
        assert_eq!(payload.len(), 1 << 20);
    }
    assert_eq!(done.load(Ordering::SeqCst), ASKED as usize);
}

/// Connections beyond `accepted_max` are closed; when others have gone there is room again.
#[tokio::test]
async fn no_more_connections_than_accepted_max() {
    let (_server, addr) = server_with(EndpointConfig { accepted_max: 3, ..listening(1) });
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(timeout(SOON, connected(addr)).await.unwrap().unwrap());
    }
    assert!(timeout(SOON, connected(addr)).await.expect("closed, not left waiting").is_err());
    // Those that are there work on.
    kept[0].write_all(&frame(Header { op: ECHO, ..request(1) }, b"still", b"")).await.unwrap();
    assert_eq!(timeout(SOON, read_frame(&mut kept[0])).await.unwrap().unwrap().1, b"still");
    kept.clear();
    let again = async {
        while connected(addr).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, again).await.expect("there is room again");
    let mut rest = Vec::new();
    let mut stranger = TcpStream::connect(addr).await.unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = timeout(SOON, stranger.read_to_end(&mut rest)).await.expect("closed");
}

/// A peer that takes its time over the handshake: its machine has answered, so no further attempts are begun beside, each of which
/// would be work for it. Without an answer of its machine they are.
#[tokio::test]
async fn a_peer_that_is_late_with_the_handshake_is_not_given_more_of_them() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (client, came) = (Endpoint::start(config(2)).unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&came);
    let server = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    let deadline = Instant::now() + Duration::from_millis(1500);
    assert!(client.peer(&[addr]).call(Call { deadline, ..call(ECHO, b"hello") }).await.is_err());
    // On a busy machine the first may come after that.
    let first = async {
        while came.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, first).await.expect("it connects");
    let came = came.load(Ordering::SeqCst);
    // One for each lane; one that was late has been tried once more.
    assert!((1..=4).contains(&came), "{came} connections");
    server.abort();
}
