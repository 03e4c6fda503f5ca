//! The transport against the raw sockets it stands on, in one process over loopback.
//!
//! `cargo bench -p ropewalk-net --bench transport -- [seconds]`
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

use base::AlignedBuf;
use bytes::Bytes;
use net::{Call, Endpoint, EndpointConfig, Lane, Payload, Response, Service, handler_fn};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("own stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    (fields[11].parse::<f64>().expect("utime") + fields[12].parse::<f64>().expect("stime")) / 100.0
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
    let source = Bytes::from(vec![5u8; 16 << 20]);
    server.serve(
        Service::Lab,
        handler_fn(move |r| {
            let source = source.clone();
            async move {
                match r.header.op {
                    1 => Response::ok(r.body.to_vec()),
                    2 => Response::ok(vec![]),
                    _ => Response::with_payload(vec![], source.slice(..1 << 20)),
                }
            }
        }),
    );
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

/// 1 MiB requests (`op` 2) or replies (3), `depth` under way, over `conns` bulk connections.
async fn rpc_bulk(op: u8, conns: u8, depth: usize, seconds: f64) -> Measured {
    let (server, clients) = endpoints(1, conns);
    let peer = clients[0].peer(&server.local_addrs()[..1]);
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for _ in 0..depth {
        let (peer, count, stop) = (peer.clone(), Arc::clone(&count), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let payload = Bytes::from(vec![3u8; 1 << 20]);
            let mut page = (op == 3).then(|| AlignedBuf::zeroed(1 << 20));
            while !stop.load(Ordering::Relaxed) {
                let deadline = Instant::now() + Duration::from_secs(10);
                let into = page.take().map(|p| Box::new(p) as net::Destination);
                let payload = if op == 2 { payload.clone().into() } else { Payload::new() };
                let call =
                    Call { lane: Lane::Bulk, payload, into, ..Call::new(Service::Lab, op, vec![], deadline) };
                let reply = peer.call(call).await.expect("call");
                page = reply.payload.downcast::<AlignedBuf>().map(|(p, _)| p);
                count.fetch_add(1 << 20, Ordering::Relaxed);
            }
        }));
    }
    measure(seconds, tasks, &count, &stop).await
}

/// One-way streams in 1 MiB writes and 1 MiB reads: what the sockets give with the same runtime.
async fn raw_stream(conns: usize, seconds: f64) -> Measured {
    let (listener, addr) = raw_listener().await;
    let count = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let counter = Arc::clone(&count);
    let server = tokio::spawn(async move {
        while let Ok((mut s, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let mut b = vec![0; 1 << 20];
                while let Ok(n) = s.read(&mut b).await {
                    if n == 0 {
                        break;
                    }
                    counter.fetch_add(n as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let mut tasks = Vec::new();
    for _ in 0..conns {
        let stop = Arc::clone(&stop);
        let mut s = TcpStream::connect(addr).await.expect("connect");
        tasks.push(tokio::spawn(async move {
            let b = vec![0; 1 << 20];
            while !stop.load(Ordering::Relaxed) {
                s.write_all(&b).await.expect("write");
            }
        }));
    }
    let m = measure(seconds, tasks, &count, &stop).await;
    server.abort();
    m
}

fn line(name: &str, ours: &Measured, raw: &Measured, bytes: bool) {
    let rate = |m: &Measured| m.count as f64 / m.seconds;
    let cpu = |m: &Measured| m.cpu / m.count as f64 * 1e9;
    if bytes {
        println!(
            "{name}: {:.2} GB/s, raw {:.2} GB/s, ratio {:.2}; CPU {:.3} s/GB, raw {:.3}, ratio {:.2}",
            rate(ours) / 1e9,
            rate(raw) / 1e9,
            rate(ours) / rate(raw),
            cpu(ours),
            cpu(raw),
            cpu(ours) / cpu(raw),
        );
    } else {
        println!(
            "{name}: {:.0}/s, raw {:.0}/s, ratio {:.2}; CPU {:.1} us each, raw {:.1}",
            rate(ours),
            rate(raw),
            rate(ours) / rate(raw),
            cpu(ours) / 1e3,
            cpu(raw) / 1e3,
        );
    }
}

fn main() {
    let seconds = std::env::args().filter_map(|a| a.parse().ok()).next_back().unwrap_or(2.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        for conns in [1, 8, 150] {
            let raw = raw_echo(conns, seconds).await;
            let ours = rpc_echo(conns, seconds).await;
            line(&format!("1-byte request/response, {conns} connections"), &ours, &raw, false);
        }
        for conns in [1, 2, 4] {
            let raw = raw_stream(conns, seconds).await;
            for (op, name) in [(2, "write"), (3, "read")] {
                let ours = rpc_bulk(op, conns as u8, 8, seconds).await;
                line(&format!("1 MiB {name}, {conns} connections"), &ours, &raw, true);
            }
        }
    });
}
