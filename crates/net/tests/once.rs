//! Requests that take effect exactly once although connections are cut under them, payloads that the peer
//! fetches, and what becomes of either when the peer goes.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::*;
use net::{Call, CallError, Endpoint, EndpointConfig, Lane, Response, Service, Transfer, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Forwards connections, and cuts each after some bytes in either direction, at whatever byte that is.
async fn cutting_proxy(to: SocketAddr, seed: u64, cuts: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut random = seed;
        loop {
            let (from, _) = listener.accept().await.unwrap();
            let mut budget = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                2_000 + (random >> 33) % 60_000
            };
            let (there, back) = (budget(), budget());
            let cuts = Arc::clone(&cuts);
            tokio::spawn(async move {
                let Ok(to) = TcpStream::connect(to).await else { return };
                let ((mut fr, mut fw), (mut tr, mut tw)) = (from.into_split(), to.into_split());
                // Whichever is used up first ends both.
                tokio::select! {
                    () = pass(&mut fr, &mut tw, there) => {}
                    () = pass(&mut tr, &mut fw, back) => {}
                }
                cuts.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    addr
}

async fn pass<R: AsyncReadExt + Unpin, W: AsyncWriteExt + Unpin>(from: &mut R, to: &mut W, mut budget: u64) {
    let mut buf = vec![0; 4096];
    while budget > 0 {
        let room = buf.len().min(budget as usize);
        match from.read(&mut buf[..room]).await {
            Ok(n) if n > 0 && to.write_all(&buf[..n]).await.is_ok() => budget -= n as u64,
            _ => return,
        }
    }
}

/// Counts how often each number was carried out; the answer is that count.
fn counting(done: Arc<Mutex<HashMap<u64, u32>>>) -> Arc<dyn net::Handler> {
    handler_fn(move |request| {
        let done = Arc::clone(&done);
        async move {
            let number = u64::from_le_bytes(request.body[..8].try_into().unwrap());
            // Some take a while: their connections are cut while they are carried out.
            tokio::time::sleep(Duration::from_millis(number % 4)).await;
            let mut done = done.lock().unwrap();
            let times = done.entry(number).or_default();
            *times += 1;
            Response::with_payload(times.to_le_bytes().to_vec(), Bytes::from(vec![1; 500]))
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_takes_effect_once_however_often_its_connection_is_cut() {
    let seed = seed();
    for transfer in [Transfer::Push, Transfer::Fetch] {
        let done = Arc::<Mutex<HashMap<u64, u32>>>::default();
        // It names no address of its own: all connections go through the proxy.
        let advertise = vec!["0.0.0.0:0".parse().unwrap()];
        let (server, addr) = server_with(EndpointConfig { conns_max: 3, advertise, ..listening(1) });
        server.serve(Service::Lab, counting(Arc::clone(&done)));
        let cuts = Arc::<AtomicUsize>::default();
        let proxy = cutting_proxy(addr, seed, Arc::clone(&cuts)).await;
        let client = EndpointConfig { conns_max: 3, transfer, inline_write_max: 1000, ..config(2) };
        let client = Endpoint::start(client).unwrap();
        let next = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (peer, next) = (client.peer(&[proxy]), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= 250 {
                            return;
                        }
                        let payload = Bytes::from(vec![2; (number as usize % 7) * 400]);
                        let call =
                            Call { patience: Some(SOON), ..bulk(SINK, &number.to_le_bytes(), payload) };
                        let reply = timeout(SOON, peer.call(call)).await.unwrap().unwrap();
                        assert_eq!(&reply.body[..], 1u32.to_le_bytes(), "{number}");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let done = done.lock().unwrap();
        assert_eq!(done.len(), 250);
        assert!(done.values().all(|&n| n == 1), "carried out more than once");
        assert!(cuts.load(Ordering::Relaxed) > 5, "nothing was cut: nothing was tested");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_started_anew_is_not_asked_again() {
    let (server, addr) = server();
    let client = Endpoint::start(config(2)).unwrap();
    let waiting = tokio::spawn({
        let peer = client.peer(&[addr]);
        async move { peer.call(Call { patience: Some(SOON), ..call(NEVER, b"") }).await }
    });
    while server.serving().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    server.shutdown();
    drop(server);
    // Its port is free when its last task has ended.
    let _server = loop {
        match Endpoint::start(EndpointConfig { listen: vec![addr], ..listening(1) }) {
            Ok(server) => break server,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let error = timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    let CallError::Disconnected { maybe_executed: true, reason } = &error else { panic!("{error}") };
    assert!(reason.contains("anew"), "{reason}");
    assert!(!error.not_executed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_are_fetched_into_aligned_buffers_and_released() {
    let (server, addr) = server();
    let client = Endpoint::start(EndpointConfig { transfer: Transfer::Fetch, ..config(2) }).unwrap();
    let peer = client.peer(&[addr]);
    for len in [1, 32 << 10, (32 << 10) + 1, 1 << 20, 16 << 20] {
        let payload = pattern(len, 9);
        let reply = peer.call(bulk(SINK, &[], Bytes::from(payload.clone()))).await.unwrap();
        assert_eq!(&reply.body[..], wire::crc::crc32c(&payload).to_le_bytes(), "{len}");
    }
    // A caller that gives up releases its payload, and the server does not wait for it.
    let owner = Arc::new(vec![3u8; 1 << 20]);
    struct Owned(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let payload = Bytes::from_owner(Owned(Arc::clone(&owner)));
    let soon = Instant::now() + Duration::from_millis(200);
    let never = Call { lane: Lane::Bulk, deadline: soon, ..bulk(NEVER, b"", payload) };
    assert!(matches!(peer.call(never).await.unwrap_err(), CallError::Deadline));
    let freed = async {
        while Arc::strong_count(&owner) > 1 || !server.serving().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, freed).await.expect("the payload is released");
}

/// Numbers are given and told as settled by many callers at once: none may be taken for a late copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_at_once_are_all_carried_out() {
    let done = Arc::<Mutex<HashMap<u64, u32>>>::default();
    let (server, addr) = server_with(EndpointConfig { conns_max: 8, ..listening(1) });
    let counted = Arc::clone(&done);
    server.serve(
        Service::Lab,
        handler_fn(move |request| {
            let number = u64::from_le_bytes(request.body[..8].try_into().unwrap());
            *counted.lock().unwrap().entry(number).or_default() += 1;
            async { Response::ok(vec![]) }
        }),
    );
    let client = Endpoint::start(EndpointConfig { conns_max: 8, ..config(2) }).unwrap();
    let callers: Vec<_> = (0..64u64)
        .map(|caller| {
            // Two groups that lead to the same process.
            let same = "127.0.0.1:0".parse().unwrap();
            let peer = if caller % 2 == 0 { client.peer(&[addr]) } else { client.peer(&[addr, same]) };
            tokio::spawn(async move {
                for i in 0..300 {
                    let number = caller * 1000 + i;
                    peer.call(bulk(SINK, &number.to_le_bytes(), net::Payload::new())).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        timeout(SOON, caller).await.unwrap().unwrap();
    }
    let done = done.lock().unwrap();
    assert!(done.len() == 64 * 300 && done.values().all(|&n| n == 1));
}
