//! Peers that are processes of their own: stopped, killed, started anew as another, stormed with connects. No
//! hang, no request carried out twice, nothing left over: threads, descriptors and memory are counted.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::*;
use net::{Call, CallError, Endpoint, EndpointConfig, Lane};
use process::Process;
use tokio::{io::AsyncWriteExt, time::timeout};
use wire::frame::{Header, PAYLOAD_LEN_MAX};

/// Says that this process is a server, and where it shall listen.
const SERVER: &str = "ROPEWALK_TEST_SERVER";
/// Says that it is a client, and of whom.
const CLIENT: &str = "ROPEWALK_TEST_CLIENT";
/// For a server after which another comes at the same port: at an address where nobody else gets that meanwhile.
const AGAIN: &str = "127.0.0.4:0";

/// Not a test of its own: what the other process of the tests below runs.
#[test]
fn server_process() {
    let Ok(listen) = std::env::var(SERVER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _in = runtime.enter();
    let node = if listen.ends_with('!') { 2 } else { 1 };
    let addr = listen.trim_end_matches('!').parse().unwrap();
    let config = EndpointConfig { listen: vec![addr], handshakes_max: 256, ..plain(node) };
    let (_server, addr) = server_with(config);
    println!("\nlistening {addr}");
    // Ends with the test: its standard input is closed then.
    let _ = std::io::stdin().read(&mut [0]);
}

/// Not a test of its own: a client that asks without pause, whoever is at the address.
#[test]
fn client_process() {
    let Ok(addr) = std::env::var(CLIENT) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Endpoint::start(quick(2)).unwrap();
        let peer = client.peer(&[addr.parse().unwrap()]);
        println!("\nlistening {addr}");
        loop {
            let payload = Bytes::from_static(&[7; 100_000]);
            let asked = Call { patience: Some(SOON), idempotent: true, ..bulk(ECHO, b"", payload) };
            peer.call(asked).await.unwrap();
        }
    });
}

impl Process {
    fn start(listen: &str) -> Process {
        Process::run("server_process", SERVER, listen)
    }
    /// (Threads, descriptors, resident KiB).
    fn counts(&self) -> (usize, usize, usize) {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let value = |key: &str| -> usize {
            let line = status.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        (value("Threads:"), fs::read_dir(self.proc("fd")).unwrap().count(), value("VmRSS:"))
    }
}

impl Process {
    /// CPU time it has used.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(self.proc("stat")).unwrap();
        (base::proc_stat::cpu_seconds(&stat).unwrap() * 100.0) as u64
    }
    /// Its counts when threads and descriptors are no more than `before`, or, without that, stay the same.
    async fn settled(&self, before: Option<(usize, usize, usize)>) -> (usize, usize, usize) {
        let mut last = self.counts();
        let settled = async {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                let now = self.counts();
                let limit = before.unwrap_or(last);
                // The connections of one group may have stood or not: a control connection, and two by memory, of two descriptors each.
                if now.0 <= limit.0 && now.1 <= limit.1 + 5 {
                    return now;
                }
                last = now;
            }
        };
        timeout(SOON, settled).await.unwrap_or_else(|_| panic!("{before:?}, now {:?}", self.counts()))
    }
}

/// On a busy machine it may lose a connection to a peer that is there: what it asks may be repeated.
fn quick(node: u32) -> EndpointConfig {
    EndpointConfig {
        heartbeat_interval: Duration::from_millis(100),
        heartbeat_timeout: Duration::from_millis(400),
        ..config(node)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_peer_costs_deadlines_and_is_used_again_when_it_goes_on() {
    let server = Process::start("127.0.0.1:0");
    let client = Endpoint::start(quick(2)).unwrap();
    let peer = client.peer(&[server.addr]);
    let asked = Call { idempotent: true, ..bulk(ECHO, b"", Bytes::from_static(b"x")) };
    peer.call(asked).await.unwrap();
    server.stop();
    let short = Instant::now() + Duration::from_millis(1500);
    let calls: Vec<_> = (0..20)
        .map(|i| {
            let peer = peer.clone();
            let lane = if i % 2 == 0 { Lane::Bulk } else { Lane::Control };
            let patience = Some(Duration::from_millis(300));
            tokio::spawn(async move {
                peer.call(Call { deadline: short, lane, patience, ..call(ECHO, b"") }).await
            })
        })
        .collect();
    for call in calls {
        let error = timeout(SOON, call).await.expect("no hang").unwrap().unwrap_err();
        assert!(matches!(error, CallError::Deadline | CallError::Disconnected { .. }), "{error}");
    }
    assert!(client.waiters().is_empty(), "{:?}", client.waiters());
    server.signal("-CONT");
    let again = Call { idempotent: true, patience: Some(SOON), ..call(ECHO, b"again") };
    let reply = peer.call(again).await.unwrap();
    assert_eq!(&reply.body[..], b"again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_peer_is_noticed_at_once_and_another_in_its_place_is_another() {
    let server = Process::start(AGAIN);
    let addr = server.addr;
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(call(ECHO, b"")).await.unwrap();
    let before = peer.identity().unwrap();
    let waiting = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(Call { patience: Some(Duration::from_millis(500)), ..call(NEVER, b"") }).await }
    });
    while client.waiters().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // It has been sent: what is asked after it on the same lane is answered.
    peer.call(call(ECHO, b"")).await.unwrap();
    server.signal("-KILL");
    let error = timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, CallError::Disconnected { maybe_executed: true, .. }), "{error}");
    drop(server);
    // Another node of the cluster at the same address: it is used under its own name.
    let _other = Process::start(&format!("{addr}!"));
    peer.call(Call { patience: Some(SOON), ..call(ECHO, b"") }).await.unwrap();
    let after = peer.identity().unwrap();
    assert_ne!(before, after);
    assert_eq!(after.0, base::NodeId(2));
}

/// 20,000 connects: most go at once, some say half a hello first.
fn storm(addr: SocketAddr) -> usize {
    const THREADS: usize = 4;
    const CONNECTS: usize = 20_000;
    let made = AtomicUsize::new(0);
    let half = hello();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (made, half) = (&made, &half);
            scope.spawn(move || {
                // Some stay for a while, so that many are open at once.
                let mut open = std::collections::VecDeque::new();
                for i in 0..CONNECTS / THREADS {
                    let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(10)) else {
                        continue;
                    };
                    made.fetch_add(1, Ordering::Relaxed);
                    // Closed by a reset: 20,000 ports in TIME_WAIT would starve other tests.
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    if (i + thread) % 3 == 0 {
                        let _ = (&stream).write_all(&half[..half.len() / 2]);
                    }
                    open.push_back(stream);
                    if open.len() > 100 {
                        open.pop_front();
                    }
                }
            });
        }
    });
    made.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_connects_keeps_nobody_out_and_leaves_nothing_behind() {
    let server = Process::start("127.0.0.1:0");
    let addr = server.addr;
    let client = Endpoint::start(config(2)).unwrap();
    let peer = client.peer(&[addr]);
    peer.call(call(ECHO, b"")).await.unwrap();
    let (threads, descriptors, memory) = server.counts();
    let storm = tokio::task::spawn_blocking(move || storm(addr));
    let mut served = 0;
    while !storm.is_finished() {
        timeout(SOON, peer.call(call(ECHO, b"well?"))).await.expect("no hang").unwrap();
        served += 1;
    }
    // A newcomer gets in as well.
    let newcomer = Endpoint::start(config(3)).unwrap();
    newcomer.peer(&[addr]).call(Call { patience: Some(SOON), ..call(ECHO, b"") }).await.unwrap();
    newcomer.shutdown();
    assert!(storm.await.unwrap() > 19_000 && served > 0);
    let settled = async {
        while server.counts().0 > threads || server.counts().1 > descriptors + 8 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, settled).await.unwrap_or_else(|_| {
        panic!("{threads} threads, {descriptors} descriptors, now {:?}", server.counts())
    });
    let after = server.counts();
    assert!(after.2 < memory + (64 << 10), "resident KiB: {memory}, then {}", after.2);
    peer.call(call(ECHO, b"still")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_come_and_go_leave_nothing_behind() {
    let mut server = Process::start(AGAIN);
    let addr = server.addr;
    // One after the other, each a new process to the server; every second one leaves without a word.
    let newcomer = |i: u32| async move {
        let mut gone = Vec::new();
        if i.is_multiple_of(2) {
            let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
            shake_hands(&mut stream, Lane::Bulk, u64::from(i) + 1000).await.unwrap();
            let half = frame(Header { op: SINK, ..request(1) }, b"", &[1; 5000]);
            stream.write_all(&half[..3000]).await.unwrap();
            gone.push(stream);
        } else {
            let client = Endpoint::start(config(100 + i)).unwrap();
            let payload = Bytes::from(vec![1; 200_000]);
            // Not one whose reply is remembered until its deadline.
            let asked = Call { idempotent: true, ..bulk(ECHO, b"", payload) };
            client.peer(&[addr]).call(asked).await.unwrap();
            client.shutdown();
        }
    };
    for i in 0..40 {
        newcomer(i).await;
    }
    let before = server.settled(None).await;
    for i in 40..400 {
        newcomer(i).await;
    }
    let after = server.settled(Some(before)).await;
    assert!(after.2 < before.2 + (24 << 10), "resident KiB: {before:?}, then {after:?}");

    // The same client through many lives of its server.
    let client = Process::run("client_process", CLIENT, &addr.to_string());
    let mut before = None;
    for life in 0..12 {
        drop(server);
        server = Process::start(&addr.to_string());
        let began = Instant::now();
        while server.cpu_ticks() < 1 && began.elapsed() < SOON {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if life == 3 {
            before = Some(client.settled(None).await);
        }
    }
    let (before, after) = (before.unwrap(), client.settled(before).await);
    assert!(after.2 < before.2 + (24 << 10), "resident KiB: {before:?}, then {after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_that_lies_takes_no_memory() {
    let server = Process::start("127.0.0.1:0");
    let (_, _, before) = server.counts();
    let mut liars = Vec::new();
    for _ in 0..30 {
        let mut stream = tokio::net::TcpStream::connect(server.addr).await.unwrap();
        shake_hands(&mut stream, Lane::Bulk, 99).await.unwrap();
        let lying = Header { payload_len: PAYLOAD_LEN_MAX, op: SINK, ..request(1) };
        stream.write_all(&lying.encode()).await.unwrap();
        liars.push(stream);
    }
    // 480 MiB are announced.
    for _ in 0..50 {
        let (_, _, now) = server.counts();
        assert!(now < before + (64 << 10), "resident KiB: {before}, then {now}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // They were read: with its bytes the request is whole.
    let payload = pattern(PAYLOAD_LEN_MAX as usize, 1);
    let served = async {
        liars[0].write_all(&payload).await.unwrap();
        loop {
            let (header, body, _) = read_frame(&mut liars[0]).await.unwrap();
            if header.kind == wire::frame::FrameKind::Reply {
                return body;
            }
        }
    };
    assert_eq!(timeout(SOON, served).await.unwrap(), wire::crc::crc32c(&payload).to_le_bytes());
}
