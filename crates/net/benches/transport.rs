//! One-byte requests and replies against a raw echo on the same sockets, in one process over loopback.
//! (Throughput: the bench `bulk`.)
//!
//! `cargo bench -p ropewalk-net --bench transport -- [seconds=1] [rounds=5]`
//! Prints for each case our rate, the raw rate measured in the same run, and the ratio.
#![allow(clippy::print_stdout)] // it prints its figures

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use net::{Call, Endpoint, EndpointConfig, Response, Service, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("own stat");
    base::proc_stat::cpu_seconds(&stat).expect("times of a live process")
}

struct Measured {
    count: u64,
    seconds: f64,
    cpu: f64,
}

async fn measure(
    seconds: f64,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    count: &AtomicU64,
    stop: &AtomicBool,
) -> Measured {
    tokio::time::sleep(Duration::from_secs_f64(seconds * 0.1)).await;
    let (c0, t0, cpu0) = (count.load(Ordering::Relaxed), Instant::now(), cpu_seconds());
    tokio::time::sleep(Duration::from_secs_f64(seconds * 0.8)).await;
    let measured = Measured {
        count: count.load(Ordering::Relaxed) - c0,
        seconds: t0.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu0,
    };
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        let _ = tokio::time::timeout(Duration::from_secs(5), task).await;
    }
    measured
}

async fn raw_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("addr");
    (listener, addr)
}

async fn raw_echo(conns: usize, seconds: f64) -> Measured {
    let (listener, addr) = raw_listener().await;
    let server = tokio::spawn(async move {
        while let Ok((mut s, _)) = listener.accept().await {
            s.set_nodelay(true).expect("nodelay");
            tokio::spawn(async move {
                let mut b = [0; 1];
                while s.read_exact(&mut b).await.is_ok() && s.write_all(&b).await.is_ok() {}
            });
        }
    });
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for _ in 0..conns {
        let (count, stop) = (Arc::clone(&count), Arc::clone(&stop));
        let mut s = TcpStream::connect(addr).await.expect("connect");
        s.set_nodelay(true).expect("nodelay");
        tasks.push(tokio::spawn(async move {
            let mut b = [0; 1];
            while !stop.load(Ordering::Relaxed) {
                s.write_all(&b).await.expect("write");
                s.read_exact(&mut b).await.expect("read");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let m = measure(seconds, tasks, &count, &stop).await;
    server.abort();
    m
}

fn endpoints(pairs: usize, conns: u8) -> (Endpoint, Vec<Endpoint>) {
    let server = Endpoint::start(EndpointConfig {
        conns_max: conns,
        listen: vec!["127.0.0.1:0".parse().expect("addr")],
        ..EndpointConfig::default()
    })
    .expect("start");
    server.serve(Service::Lab, handler_fn(|r| async move { Response::ok(r.body.to_vec()) }));
    let clients = (0..pairs)
        .map(|_| {
            Endpoint::start(EndpointConfig { conns_max: conns, ..EndpointConfig::default() }).expect("start")
        })
        .collect();
    (server, clients)
}

/// `conns` clients, each with one connection and one request of one byte under way.
async fn rpc_echo(conns: usize, seconds: f64) -> Measured {
    let (server, clients) = endpoints(conns, 1);
    let addr = server.local_addrs()[0];
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for client in &clients {
        let peer = client.peer(&[addr]);
        let (count, stop) = (Arc::clone(&count), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let deadline = Instant::now() + Duration::from_secs(10);
                peer.call(Call::new(Service::Lab, 1, vec![7], deadline)).await.expect("call");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    measure(seconds, tasks, &count, &stop).await
}

/// The median round of one case.
fn median(rounds: &mut [Measured]) -> (f64, f64) {
    let rate = |m: &Measured| m.count as f64 / m.seconds;
    rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let m = &rounds[rounds.len() / 2];
    (rate(m), m.cpu / m.count.max(1) as f64 * 1e6)
}

fn main() {
    let args: Vec<f64> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let (seconds, rounds) = (args.first().copied().unwrap_or(1.0), args.get(1).map_or(5, |&n| n as usize));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        println!("1-byte request/response over loopback, median of {} rounds of {seconds} s", rounds.max(1));
        for conns in [1, 8, 32, 150] {
            let (mut raw, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..rounds.max(1) {
                // Interleaved: a shared machine changes from minute to minute.
                raw.push(raw_echo(conns, seconds).await);
                ours.push(rpc_echo(conns, seconds).await);
            }
            let ((raw, raw_cpu), (ours, ours_cpu)) = (median(&mut raw), median(&mut ours));
            println!(
                "{conns:3} connections: {ours:.0}/s, raw {raw:.0}/s, ratio {:.2}; CPU {ours_cpu:.1} us each, raw \
                 {raw_cpu:.1}",
                ours / raw
            );
        }
    });
}
