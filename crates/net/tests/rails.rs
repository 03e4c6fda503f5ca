//! Several addresses of one peer, the number of connections changed while they work, ways to dispatch.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use common::*;
use net::{Call, ConnState, Dispatch, Endpoint, EndpointConfig, Lane, Payload, PeerStatus};
use tokio::{task::JoinHandle, time::timeout};

/// Waits until the client's one peer looks as asked.
async fn until(client: &Endpoint, what: &str, looks: impl Fn(&PeerStatus) -> bool) {
    let wait = async {
        while !client.status().first().is_some_and(&looks) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(SOON, wait).await.is_err() {
        panic!("{what}: {:#?}", client.status());
    }
}

fn bulk_conns(peer: &PeerStatus) -> usize {
    let active = |c: &&net::ConnStatus| c.lane == Lane::Bulk && c.state == ConnState::Active;
    peer.connections.iter().filter(active).count()
}

/// Calls without pause until told to stop; none may fail.
fn load(client: &Endpoint, addr: std::net::SocketAddr, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<u64>> {
    (0..8)
        .map(|i| {
            let (peer, stop) = (client.peer(&[addr]), Arc::clone(stop));
            tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Not idempotent: a lost one would be an error.
                    peer.call(bulk(SINK, &[], Bytes::from(vec![i; 50_000]))).await.unwrap();
                    calls += 1;
                }
                calls
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_told_in_the_handshake_become_rails() {
    let listen = ["127.0.0.1:0", "127.0.0.2:0"].map(|a| a.parse().unwrap()).to_vec();
    let (server, addr) = server_with(EndpointConfig { listen, conns_max: 6, ..listening(1) });
    let client = Endpoint::start(EndpointConfig { conns_max: 4, ..config(2) }).unwrap();
    client.peer(&[addr]).call(bulk(ECHO, b"", Payload::new())).await.unwrap();
    until(&client, "two on each rail", |peer| {
        bulk_conns(peer) == 4 && peer.rails.iter().map(|r| r.up).eq([true, true])
    })
    .await;
    let remotes: Vec<_> = client.status()[0].connections.iter().map(|c| c.remote).collect();
    for local in server.local_addrs() {
        assert!(remotes.iter().filter(|r| *r == local).count() >= 2, "{local}: {remotes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_where_nobody_listens_is_left_out() {
    let (_server, addr) = server_with(EndpointConfig { conns_max: 4, ..listening(1) });
    // Bound, so that nobody else listens there meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.3:0".parse().unwrap()).unwrap();
    let free = bound.local_addr().unwrap();
    let client = Endpoint::start(EndpointConfig { conns_max: 4, ..config(2) }).unwrap();
    let peer = client.peer(&[free, addr]);
    for _ in 0..20 {
        peer.call(bulk(ECHO, b"", Payload::new())).await.unwrap();
    }
    until(&client, "all on the other", |peer| bulk_conns(peer) == 4 && peer.rails[0].last_error.is_some())
        .await;
    let rails = client.status().remove(0).rails;
    assert_eq!(rails.iter().map(|r| r.up).collect::<Vec<_>>(), [false, true]);
    assert!(rails[0].last_error.as_ref().is_some_and(|e| e.contains(&free.to_string())), "{rails:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_connections_changes_under_load_without_an_error() {
    let (server, addr) = server_with(EndpointConfig { conns_max: 8, ..listening(1) });
    let client = Endpoint::start(EndpointConfig { conns_max: 2, ..config(2) }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks = load(&client, addr, &stop);
    until(&client, "two", |peer| bulk_conns(peer) == 2).await;
    client.set_conns_max(16).unwrap();
    until(&client, "the server's eight", |peer| bulk_conns(peer) == 8).await;
    server.set_conns_max(3).unwrap();
    let only = |n: usize| move |peer: &PeerStatus| bulk_conns(peer) == n && peer.connections.len() == n + 1;
    until(&client, "three, the others drained and closed", only(3)).await;
    client.set_conns_max(1).unwrap();
    until(&client, "one", only(1)).await;
    server.set_conns_max(16).unwrap();
    client.set_conns_max(5).unwrap();
    until(&client, "five", only(5)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(timeout(SOON, task).await.unwrap().unwrap() > 0);
    }
    assert!(client.set_conns_max(0).is_err() && client.set_conns_max(17).is_err());
    assert!(server.serving().is_empty() && client.waiters().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispatch_spreads_or_pins() {
    for dispatch in [Dispatch::ShortestQueue, Dispatch::RoundRobin, Dispatch::Pinned] {
        let (_server, addr) = server_with(EndpointConfig { conns_max: 3, ..listening(1) });
        let client = Endpoint::start(EndpointConfig { conns_max: 3, dispatch, ..config(2) }).unwrap();
        let peer = client.peer(&[addr]);
        peer.call(bulk(ECHO, b"", Payload::new())).await.unwrap();
        until(&client, "three", |peer| bulk_conns(peer) == 3).await;
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..30 {
            let call = Call { inode: base::InodeNo(7), ..bulk(SINK, &[], Bytes::from_static(b"x")) };
            used.insert(peer.call(call).await.unwrap().connection);
        }
        assert_eq!(used.len(), if dispatch == Dispatch::Pinned { 1 } else { 3 }, "{dispatch:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_is_counted_by_peer_and_lane() {
    let (_server, addr) = server_with(listening(71));
    let client = Endpoint::start(config(72)).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(bulk(SINK, &[], Bytes::from(vec![1; 100_000]))).await.unwrap();
    let text = base::stats::registry().prometheus_text(base::stats::Form::Prometheus);
    let value = |line: &str| -> u64 {
        let found =
            text.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("{line} in {text}"));
        found.trim().parse().unwrap()
    };
    let labels = |node| format!("{{lane=\"bulk\",peer=\"node{node}\"}}");
    assert!(value(&format!("ropewalk_net_sent_bytes_total{}", labels(71))) > 100_000);
    assert!(value(&format!("ropewalk_net_received_bytes_total{}", labels(72))) > 100_000);
    assert!(value(&format!("ropewalk_net_sent_messages_total{}", labels(72))) >= 1);
    assert!(value(&format!("ropewalk_net_connections{}", labels(71))) >= 1);
    assert!(text.contains("ropewalk_net_call_seconds_count{service=\"lab\"}"), "{text}");
}
