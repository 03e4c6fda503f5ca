//! 1 MiB requests and replies against iperf3 and against raw blocking sockets, in the same run over loopback.
//!
//! `cargo bench -p ropewalk-net --bench bulk -- [seconds=2] [rounds=5]`
//! Each end is a process of its own, as in life. Rounds are interleaved, because a shared machine changes
//! from minute to minute; for each case the best and the median round are printed, with the CPU seconds
//! of both ends for one GB. `iperf3` (one thread an end) is left out where it is not installed.
//! `... -- only write 4 10` runs one of our cases alone, for a profiler.
#![allow(clippy::print_stdout)] // it prints its figures

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base::AlignedBuf;
use bytes::Bytes;
use net::{Call, Endpoint, EndpointConfig, Lane, Payload, Response, Service, handler_fn};

const TRANSFER: usize = 1 << 20;
const CONNECTIONS: [usize; 4] = [1, 2, 4, 8];
/// Requests under way on each connection.
const DEPTH: usize = 4;
const WRITE: u8 = 2;
const READ: u8 = 3;

#[derive(Clone, Copy)]
struct Measured {
    gb_per_second: f64,
    cpu_seconds_per_gb: f64,
}

fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat of a live process");
    base::proc_stat::cpu_seconds(&stat).expect("times of a live process")
}

/// Watches `count` for the middle 80 % of `seconds`.
fn watch(seconds: f64, count: &AtomicU64, other: u32) -> Measured {
    let cpu = || cpu_seconds(std::process::id()) + cpu_seconds(other);
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.1));
    let (bytes, began, cpu_then) = (count.load(Ordering::Relaxed), Instant::now(), cpu());
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.8));
    let gb = (count.load(Ordering::Relaxed) - bytes) as f64 / 1e9;
    Measured {
        gb_per_second: gb / began.elapsed().as_secs_f64(),
        cpu_seconds_per_gb: (cpu() - cpu_then) / gb,
    }
}

/// The other process; it ends when its standard input is closed.
struct Server {
    child: Child,
    addr: SocketAddr,
}

impl Server {
    fn start(kind: &str, connections: usize) -> Server {
        let me = std::env::current_exe().expect("own path");
        let mut child = Command::new(me)
            .args([kind, &connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn the server");
        let mut addr = [0; 64];
        let n = child.stdout.as_mut().expect("stdout").read(&mut addr).expect("the server's address");
        let addr = std::str::from_utf8(&addr[..n]).expect("text").trim().parse().expect("an address");
        Server { child, addr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn until_closed() {
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

fn announce(addr: SocketAddr) {
    println!("{addr}");
    std::io::stdout().flush().expect("flush");
}

fn raw_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    announce(listener.local_addr().expect("addr"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            std::thread::spawn(move || {
                let mut buffer = vec![1; TRANSFER];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
            });
        }
    });
    until_closed();
}

fn raw(connections: usize, seconds: f64) -> Measured {
    let server = Server::start("raw-server", connections);
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let senders: Vec<_> = (0..connections)
        .map(|_| {
            let (count, stop) = (Arc::clone(&count), Arc::clone(&stop));
            let mut stream = TcpStream::connect(server.addr).expect("connect");
            std::thread::spawn(move || {
                let buffer = vec![7; TRANSFER];
                while !stop.load(Ordering::Relaxed) {
                    stream.write_all(&buffer).expect("write");
                    count.fetch_add(TRANSFER as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let measured = watch(seconds, &count, server.child.id());
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.join().expect("sender");
    }
    measured
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime")
}

fn our_server(connections: usize) {
    let runtime = runtime();
    let _in = runtime.enter();
    let server = Endpoint::start(EndpointConfig {
        conns_max: connections as u8,
        listen: vec!["127.0.0.1:0".parse().expect("addr")],
        ..EndpointConfig::default()
    })
    .expect("start");
    let source = Bytes::from(vec![5u8; TRANSFER]);
    let handler = handler_fn(move |request| {
        let source = source.clone();
        async move {
            match request.header.op {
                WRITE => Response::ok(vec![]),
                _ => Response::with_payload(vec![], source),
            }
        }
    });
    server.serve(Service::Lab, handler);
    announce(server.local_addrs()[0]);
    until_closed();
}

fn ours(op: u8, connections: usize, seconds: f64) -> Measured {
    let server = Server::start("server", connections);
    let runtime = runtime();
    let _in = runtime.enter();
    let client =
        Endpoint::start(EndpointConfig { conns_max: connections as u8, ..EndpointConfig::default() })
            .expect("start");
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..connections * DEPTH)
        .map(|_| {
            let (peer, count, stop) = (client.peer(&[server.addr]), Arc::clone(&count), Arc::clone(&stop));
            runtime.spawn(async move {
                let payload = Bytes::from(vec![3u8; if op == WRITE { TRANSFER } else { 0 }]);
                let mut page = (op == READ).then(|| AlignedBuf::zeroed(TRANSFER));
                while !stop.load(Ordering::Relaxed) {
                    let deadline = Instant::now() + Duration::from_secs(30);
                    let into = page.take().map(|p| Box::new(p) as net::Destination);
                    let payload = Payload::from(payload.clone());
                    let call = Call::new(Service::Lab, op, vec![], deadline);
                    let reply = peer.call(Call { lane: Lane::Bulk, payload, into, ..call });
                    let reply = reply.await.expect("call");
                    page = reply.payload.downcast::<AlignedBuf>().map(|(p, _)| p);
                    count.fetch_add(TRANSFER as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let measured = watch(seconds, &count, server.child.id());
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("task");
        }
    });
    measured
}

/// `None`: not installed, or it failed three times.
fn iperf3(connections: usize, seconds: f64) -> Option<Measured> {
    (0..3).find_map(|_| iperf3_once(connections, seconds))
}

fn iperf3_once(connections: usize, seconds: f64) -> Option<Measured> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let (seconds, streams) = (format!("{}", seconds.ceil()), connections.to_string());
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1", "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().ok()?;
    // A connect to see whether it listens would use up its one test.
    std::thread::sleep(Duration::from_millis(300));
    let args = ["-c", "127.0.0.1", "-p", &port, "-P", &streams, "-t", &seconds, "-J"];
    let output = Command::new("iperf3").args(args).output();
    let _ = server.kill();
    let _ = server.wait();
    let output = output.ok()?;
    if !output.status.success() {
        return None;
    }
    // Few numbers of a known program's JSON: the last of each name is that of the sum.
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |from: &str, name: &str| -> Option<f64> {
        let rest = &text[text.find(from)?..];
        let rest = &rest[rest.find(name)? + name.len()..];
        rest.trim_start_matches(['"', ':', '\t', ' ']).split([',', '\n', '}']).next()?.trim().parse().ok()
    };
    let rate = number("\"sum_received\"", "bits_per_second")? / 8e9;
    let cpu =
        number("cpu_utilization_percent", "host_total")? + number("cpu_utilization_percent", "remote_total")?;
    Some(Measured { gb_per_second: rate, cpu_seconds_per_gb: cpu / 100.0 / rate })
}

#[derive(Default)]
struct Case {
    rounds: Vec<Measured>,
}

impl Case {
    fn best(&self) -> f64 {
        self.rounds.iter().map(|m| m.gb_per_second).fold(0.0, f64::max)
    }
    fn median(&self, of: impl Fn(&Measured) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
    fn rate(&self) -> f64 {
        self.median(|m| m.gb_per_second)
    }
    fn cpu(&self) -> f64 {
        self.median(|m| m.cpu_seconds_per_gb)
    }
}

const NAMES: [&str; 4] = ["iperf3", "raw sockets", "write", "read"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |i: usize, default: f64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    match args.first().map(String::as_str) {
        Some("raw-server") => return raw_server(),
        Some("server") => return our_server(number(1, 1.0) as usize),
        Some("only") => {
            let op = if args.get(1).is_some_and(|a| a == "read") { READ } else { WRITE };
            let m = ours(op, number(2, 1.0) as usize, number(3, 5.0));
            println!("{:.2} GB/s, CPU {:.3} s/GB", m.gb_per_second, m.cpu_seconds_per_gb);
            return;
        }
        _ => {}
    }
    let (seconds, rounds) = (number(0, 2.0), number(1, 5.0) as usize);
    println!("loopback, 1 MiB a transfer, {DEPTH} under way a connection, {rounds} rounds of {seconds} s");
    let mut table: Vec<[Case; 4]> = Vec::new();
    table.resize_with(CONNECTIONS.len(), Default::default);
    for _ in 0..rounds {
        for (cases, &connections) in table.iter_mut().zip(&CONNECTIONS) {
            cases[0].rounds.extend(iperf3(connections, seconds));
            cases[1].rounds.push(raw(connections, seconds));
            cases[2].rounds.push(ours(WRITE, connections, seconds));
            cases[3].rounds.push(ours(READ, connections, seconds));
        }
    }
    for (cases, &connections) in table.iter().zip(&CONNECTIONS) {
        for (case, name) in cases.iter().zip(NAMES) {
            let (best, rate, cpu) = (case.best(), case.rate(), case.cpu());
            println!(
                "{connections} connections, {name:11}: best {best:.2} GB/s, median {rate:.2} GB/s, CPU {cpu:.3} s/GB"
            );
        }
    }
    let best = |i: usize, of: fn(&Case) -> f64| table.iter().map(|c| of(&c[i])).fold(0.0, f64::max);
    let least_cpu = |i: usize| table.iter().map(|c| c[i].cpu()).fold(f64::MAX, f64::min);
    for (base, name) in [(0, "iperf3"), (1, "raw sockets")] {
        for (case, ours) in [(2, "write"), (3, "read")] {
            println!(
                "{ours} against {name}: best rate {:.2}, best median {:.2}, least CPU {:.2}",
                best(case, Case::best) / best(base, Case::best),
                best(case, Case::rate) / best(base, Case::rate),
                least_cpu(case) / least_cpu(base),
            );
        }
    }
}
