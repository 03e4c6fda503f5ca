//! `cipherList`: what two ends agree on, that it carries everything, and that it changes while they work.
#![allow(clippy::unwrap_used)] // tests

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::CipherList::{self, Aes128, Aes256, AuthOnly, ChaCha20, Default as All, Empty};
use common::*;
use net::{ConnStatus, Destination, Endpoint, EndpointConfig, Lane, Protection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use wire::{frame::FrameKind, hello::Welcome};

fn connections(endpoint: &Endpoint) -> Vec<ConnStatus> {
    endpoint.status().into_iter().flat_map(|peer| peer.connections).collect()
}

/// The stricter of both decides, and a cipher's name goes before none.
#[tokio::test]
async fn two_ends_agree_on_the_stricter() {
    use Protection::{AuthOnly as Tagged, Empty as Clear, Encrypted};
    for (connecting, accepting, protection, cipher) in [
        (Empty, Empty, Clear, None),
        (Empty, AuthOnly, Tagged, Some(Aes128)),
        (AuthOnly, Empty, Tagged, Some(Aes128)),
        (AuthOnly, AuthOnly, Tagged, Some(Aes128)),
        (AuthOnly, All, Encrypted, Some(Aes128)),
        (All, AuthOnly, Encrypted, Some(Aes128)),
        (Empty, Aes256, Encrypted, Some(Aes256)),
        (ChaCha20, AuthOnly, Encrypted, Some(ChaCha20)),
        (ChaCha20, Aes256, Encrypted, Some(Aes256)),
    ] {
        let of = |cipher_list, config| EndpointConfig { cipher_list, ..config };
        let (server, addr) = server_with(of(accepting, listening(1)));
        let client = Endpoint::start(of(connecting, config(2))).unwrap();
        let whole = pattern(1_500_001, 3);
        // In one part and in several, some of them small; into a place of its own and into pieces of one.
        let parts: Vec<_> = whole.chunks(70_001).map(|part| part.to_vec().into()).collect();
        let place: Destination = Box::new((0..16).map(|_| vec![0u8; 100_000]).collect::<Vec<Vec<u8>>>());
        for into in [None, Some(place)] {
            let call = net::Call { into, ..bulk(ECHO, b"body", parts.clone()) };
            let reply = client.peer(&[addr]).call(call).await.unwrap();
            let received = match reply.payload.len() {
                len if len == whole.len() => len,
                len => panic!("{len} bytes"),
            };
            assert_eq!(&reply.body[..], b"body");
            if let Some((places, len)) = reply.payload.downcast::<Vec<Vec<u8>>>() {
                assert!(len == received && places.concat()[..len] == whole);
            }
        }
        client.serve(net::Service::Callback, lab());
        assert!(client.peer(&[addr]).call(call(CALL_BACK, b"")).await.is_ok());
        for endpoint in [&client, &server] {
            let all = connections(endpoint);
            assert!(all.iter().any(|c| c.lane == Lane::Bulk) && all.iter().any(|c| c.lane == Lane::Control));
            assert!(
                all.iter().all(|c| (c.protection, c.cipher) == (protection, cipher)),
                "{connecting} {accepting}: {all:?}"
            );
        }
        let copied: u64 = connections(&client).iter().map(|c| c.payload_copied).sum();
        assert_eq!(copied, 0, "{connecting} {accepting}");
    }
}

/// A side that accepts may say what it likes: nobody speaks less strictly than his own list.
#[tokio::test]
async fn nobody_is_talked_into_less() {
    for (list, clear, capabilities) in [(All, true, 0), (All, false, 1), (AuthOnly, true, 0)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut tls = Tls::accepting(&identity());
                let _ = tls.shake(&mut stream).await;
                let _ = tls.receive_frame(&mut stream).await;
                let welcome = Welcome::Accepted {
                    node: base::NodeId(1),
                    process: 1,
                    role: net::Role::Lab,
                    conns_max: 1,
                    window: net::Window { requests: 1, bytes: 1 },
                    capabilities,
                    build: wire::version::Build::own(),
                    addresses: vec![],
                    clear,
                    name: String::new(),
                };
                let _ = tls.send(&mut stream, &step(FrameKind::Welcome, &welcome)).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        let client = Endpoint::start(EndpointConfig { cipher_list: list, ..config(2) }).unwrap();
        // On a busy machine patience may end before the answer has come.
        let end = Instant::now() + SOON;
        loop {
            let hasty = net::Call { patience: Some(Duration::from_secs(2)), ..call(ECHO, b"") };
            let error = client.peer(&[addr]).call(hasty).await.unwrap_err().to_string();
            if error.contains(&format!("our cipherList is {list}")) {
                break;
            }
            assert!(Instant::now() < end, "{error}");
        }
    }
}

/// Each change arrives on all connections, whichever end hears of it first, and no request fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_changes_under_load_without_an_error() {
    let (server, addr) = server_with(EndpointConfig { conns_max: 4, ..listening(1) });
    let client = Endpoint::start(EndpointConfig { conns_max: 4, ..plain(2) }).unwrap();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..4u8)
        .map(|seed| {
            let (stop, done, peer) = (Arc::clone(&stop), Arc::clone(&done), client.peer(&[addr]));
            tokio::spawn(async move {
                let whole = bytes::Bytes::from(pattern(300_000, seed));
                while !stop.load(Ordering::Relaxed) {
                    let reply = peer.call(bulk(ECHO, b"", whole.clone())).await.unwrap();
                    assert!(reply.payload.into_bytes() == whole);
                    assert_eq!(&peer.call(call(ECHO, b"small")).await.unwrap().body[..], b"small");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let all_are = async |what: &str, protection: Protection, cipher: Option<CipherList>| {
        let (end, before) = (Instant::now() + SOON, done.load(Ordering::Relaxed));
        let is = |c: &ConnStatus| (c.protection, c.cipher) == (protection, cipher);
        let reached = |endpoint: &Endpoint| {
            let all = connections(endpoint);
            all.len() == 5 && all.iter().all(is)
        };
        // And they work.
        while !(reached(&client) && reached(&server) && done.load(Ordering::Relaxed) > before + 4) {
            assert!(Instant::now() < end, "{what}: {:?}", connections(&client));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    all_are("at first", Protection::Empty, None).await;
    let changes = [
        (AuthOnly, Protection::AuthOnly, Some(Aes128)),
        (Aes256, Protection::Encrypted, Some(Aes256)),
        // What is encrypted already stays as it is.
        (All, Protection::Encrypted, Some(Aes256)),
        (AuthOnly, Protection::AuthOnly, Some(Aes128)),
        (Empty, Protection::Empty, None),
        (All, Protection::Encrypted, Some(Aes128)),
        (Empty, Protection::Empty, None),
    ];
    for round in 0..2 {
        for (n, (list, protection, cipher)) in changes.into_iter().enumerate() {
            let ends = if (n + round) % 2 == 0 { [&client, &server] } else { [&server, &client] };
            for end in ends {
                end.set_cipher_list(list).unwrap();
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            all_are(list.name(), protection, cipher).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
}

/// A relay that changes what is in the clear is found out, and no handler has seen anything but what was sent.
#[tokio::test]
async fn a_relay_that_changes_a_payload_in_the_clear_is_found_out() {
    // It names no address of its own, so that all connections go through the relay.
    let unnamed = EndpointConfig { advertise: vec!["0.0.0.0:0".parse().unwrap()], ..listening(1) };
    let (_server, addr) = server_with(EndpointConfig { cipher_list: AuthOnly, ..unnamed });
    let whole = pattern(600_000, 3);
    let tampered = || base::stats::counter("net_tampered_connections", &[]).get();
    for at in [50_000usize, 262_300, 500_000] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relayed = listener.local_addr().unwrap();
        let relay = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                let to = tokio::net::TcpStream::connect(addr).await.unwrap();
                let ((mut said, mut tell), (mut heard, mut forward)) = (from.into_split(), to.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut heard, &mut tell).await });
                tokio::spawn(async move {
                    let (mut sent, mut buffer) = (0, vec![0; 1 << 16]);
                    while let Ok(n @ 1..) = said.read(&mut buffer).await {
                        if (sent..sent + n).contains(&at) {
                            buffer[at - sent] ^= 1;
                        }
                        sent += n;
                        if forward.write_all(&buffer[..n]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let before = tampered();
        let client =
            Endpoint::start(EndpointConfig { cipher_list: AuthOnly, conns_max: 1, ..config(2) }).unwrap();
        // It is sent again, on another connection, until patience ends; on a machine that stands still nothing may have arrived.
        let end = Instant::now() + SOON;
        while tampered() == before {
            assert!(Instant::now() < end, "{at}: never found");
            let hasty = net::Call {
                patience: Some(Duration::from_millis(300)),
                ..bulk(ECHO, b"", bytes::Bytes::from(whole.clone()))
            };
            if let Ok(reply) = client.peer(&[relayed]).call(hasty).await {
                assert!(reply.payload.into_bytes() == whole, "{at}");
            }
        }
        relay.abort();
    }
}
