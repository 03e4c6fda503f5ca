//! Connections by memory of both ends: chosen by themselves within a machine, carrying everything, and gone with their peer.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    io::Read,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::CipherList::{AuthOnly, Default as All, Empty};
use bytes::Bytes;
use common::*;
use net::{Call, CallError, Destination, Endpoint, EndpointConfig, Lane, Peer, Transport};
use process::Process;
use tokio::time::timeout;

/// Says that this process is a server.
const SERVER: &str = "ROPEWALK_TEST_SHARED_SERVER";

fn sharing(config: EndpointConfig) -> EndpointConfig {
    EndpointConfig { transport: Transport::Auto, ..config }
}

fn by(endpoint: &Endpoint) -> Vec<&'static str> {
    let all = endpoint.status().into_iter().flat_map(|peer| peer.connections);
    let all = all.filter(|c| c.lane == Lane::Bulk && c.state == net::ConnState::Active);
    all.map(|c| c.transport).collect()
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn echo(peer: &Peer, len: usize) -> Result<(), CallError> {
    let whole = pattern(len, len as u8);
    let call = Call { idempotent: true, ..bulk(ECHO, b"body", Bytes::from(whole.clone())) };
    let reply = peer.call(Call { patience: Some(SOON), ..call }).await?;
    assert!(reply.payload.into_bytes() == whole && &reply.body[..] == b"body", "{len}");
    Ok(())
}

/// Whatever the protection: small and large, into places of their own, many at once so that the rings are full both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_by_memory() {
    for cipher_list in [Empty, AuthOnly, All] {
        let (server, addr) = server_with(EndpointConfig { cipher_list, ..sharing(listening(1)) });
        let client = Endpoint::start(EndpointConfig { cipher_list, ..sharing(config(2)) }).unwrap();
        let peer = client.peer(&[addr]);
        for len in [0, 1, 4095, 4096, 100_000, (512 << 10) - 128, 512 << 10, (16 << 20) - 5] {
            echo(&peer, len).await.unwrap();
        }
        let place: Destination = Box::new((0..16).map(|_| vec![0u8; 100_000]).collect::<Vec<Vec<u8>>>());
        let call = Call { into: Some(place), ..bulk(ECHO, b"", Bytes::from(pattern(1_500_001, 3))) };
        let (places, len) = peer.call(call).await.unwrap().payload.downcast::<Vec<Vec<u8>>>().unwrap();
        assert!(len == 1_500_001 && places.concat()[..len] == pattern(len, 3));
        let many: Vec<_> = (0..40)
            .map(|i| {
                let peer = peer.clone();
                tokio::spawn(async move { echo(&peer, if i % 2 == 0 { 2_000_000 + i } else { i }).await })
            })
            .collect();
        for one in many {
            timeout(SOON, one).await.unwrap().unwrap().unwrap();
        }
        for end in [&client, &server] {
            let by = by(end);
            assert!(!by.is_empty() && by.iter().all(|by| *by == "shm"), "{cipher_list}: {by:?}");
            let control = end.status().into_iter().flat_map(|peer| peer.connections);
            assert!(control.filter(|c| c.lane == Lane::Control).all(|c| c.transport == "tcp"));
        }
    }
}

/// It is a choice of both ends, and changes while they work: no call is lost, and either end may change it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_they_go_by_changes_while_they_work() {
    let (server, addr) = server_with(sharing(listening(1)));
    let client = Endpoint::start(sharing(plain(2))).unwrap();
    let (peer, stop, done) = (client.peer(&[addr]), Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let done = Arc::new(done);
    let working: Vec<_> = (0..4)
        .map(|i| {
            let (peer, stop, done) = (peer.clone(), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    echo(&peer, 300_000 * i + 5).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let all = |end: &Endpoint, wanted: &str| {
        let by = by(end);
        by.len() == 2 && by.iter().all(|by| *by == wanted)
    };
    until("memory", || all(&client, "shm") && all(&server, "shm")).await;
    for (changes, transport, wanted) in [
        (&client, Transport::Tcp, "tcp"),
        (&client, Transport::Shm, "shm"),
        (&server, Transport::Tcp, "tcp"),
        (&server, Transport::Auto, "shm"),
    ] {
        let before = done.load(Ordering::Relaxed);
        changes.set_transport(transport);
        until(wanted, || all(&client, wanted) && all(&server, wanted)).await;
        until("work goes on", || done.load(Ordering::Relaxed) > before).await;
    }
    stop.store(true, Ordering::Relaxed);
    for one in working {
        timeout(SOON, one).await.unwrap().unwrap();
    }
}

/// Memory is bounded: what is above goes by TCP, and works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_bound_go_by_tcp() {
    let (server, addr) =
        server_with(EndpointConfig { shared_max: 3, conns_max: 16, ..sharing(listening(1)) });
    let clients: Vec<_> = (2..6)
        .map(|i| Endpoint::start(EndpointConfig { conns_max: 16, ..sharing(plain(i)) }).unwrap())
        .collect();
    for client in &clients {
        echo(&client.peer(&[addr]), 100_000).await.unwrap();
    }
    let shared = || by(&server).iter().filter(|by| **by == "shm").count();
    until("all stand, as many as may be by memory", || by(&server).len() == 64 && shared() == 3).await;
    for client in &clients {
        let peer = client.peer(&[addr]);
        futures(&peer, 40).await;
    }
}

async fn futures(peer: &Peer, n: usize) {
    let all: Vec<_> = (0..n)
        .map(|i| {
            let peer = peer.clone();
            tokio::spawn(async move { echo(&peer, i * 999).await })
        })
        .collect();
    for one in all {
        timeout(SOON, one).await.unwrap().unwrap().unwrap();
    }
}

/// Not a test of its own: what the other process of the test below runs.
#[test]
fn server_process() {
    let Ok(listen) = std::env::var(SERVER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _in = runtime.enter();
    let (_server, addr) =
        server_with(EndpointConfig { listen: vec![listen.parse().unwrap()], ..sharing(listening(1)) });
    println!("\nlistening {addr}");
    // Ends with the test: its standard input is closed then.
    let _ = std::io::stdin().read(&mut [0]);
}

fn start(listen: &str) -> Process {
    Process::run("server_process", SERVER, listen)
}

/// Mappings of such memory, with all of a peer's endpoints.
fn mapped() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|l| l.contains("memfd:ropewalk")).count()
}

/// A peer that is stopped costs deadlines, one that is killed in the middle an error; calls that may be repeated end well with the one that
/// takes its place. No memory stays.
///
/// In a process of its own: it counts this one's mappings.
#[test]
fn peers_are_stopped_and_killed_in_the_middle() {
    const ALONE: &str = "ROPEWALK_TEST_SHARED_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let this = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peers_are_stopped_and_killed_in_the_middle", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        assert!(this.status.success(), "{}", String::from_utf8_lossy(&this.stderr));
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = start("127.0.0.1:0");
        let addr = server.addr;
        let client = Endpoint::start(EndpointConfig {
            heartbeat_interval: Duration::from_millis(200),
            heartbeat_timeout: Duration::from_millis(800),
            ..sharing(plain(2))
        })
        .unwrap();
        let peer = client.peer(&[addr]);
        futures(&peer, 20).await;
        // Both connections, and none that is only begun.
        let shared = || by(&client).contains(&"shm") && mapped() == by(&client).len();
        until("what goes by memory is mapped", shared).await;

        server.stop();
        let short = Call {
            deadline: Instant::now() + Duration::from_millis(1500),
            patience: Some(Duration::from_millis(300)),
            ..bulk(SINK, b"", Bytes::from(pattern(8 << 20, 1)))
        };
        let error = timeout(SOON, peer.call(short)).await.expect("no hang").unwrap_err();
        assert!(matches!(error, CallError::Deadline | CallError::Disconnected { .. }), "{error}");
        until("the stopped one is given up", || mapped() == 0).await;
        server.signal("-CONT");
        echo(&peer, 5_000_000).await.unwrap();
        until("memory again", || by(&client).contains(&"shm")).await;

        let working: Vec<_> = (0..8)
            .map(|i| {
                let peer = peer.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        echo(&peer, 1_000_000 * (i % 3) + 77).await.unwrap();
                    }
                })
            })
            .collect();
        let waiting = tokio::spawn({
            let peer = peer.clone();
            async move {
                peer.call(Call {
                    patience: Some(Duration::from_millis(500)),
                    ..bulk(NEVER, b"", Bytes::new())
                })
                .await
            }
        });
        // On a busy machine the connection may be lost before.
        let lost = || waiting.is_finished();
        until("in the middle", || lost() || client.waiters().iter().any(|w| w.op == NEVER)).await;
        server.signal("-KILL");
        let error = timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, CallError::Disconnected { .. }), "{error}");
        drop(server);
        let _other = start(&addr.to_string());
        for one in working {
            timeout(SOON, one).await.unwrap().unwrap();
        }
        until("all by memory again", || by(&client).iter().all(|by| *by == "shm")).await;
        until("none is left of the first", || mapped() == by(&client).len()).await;
        client.shutdown();
        until("none is left", || mapped() == 0).await;
    });
}
