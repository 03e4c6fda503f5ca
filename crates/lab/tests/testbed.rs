//! Testbeds for real: namespaces, links, routes, faults, leftovers. Needs root, as `make test` has.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use lab::testbed::{self, BitRate, Host, Join, LinkState, Scoped, Spec, Testbed, TestbedError};

/// Ends a test that would otherwise hang, as a failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn up(spec: Spec) -> Scoped {
    Testbed::scoped(spec).unwrap()
}

/// `count` connections from one host to another, one after the other, `bytes` on each.
fn transfer(from: &Host, to: &Host, addr: IpAddr, count: usize, bytes: usize) {
    let listener = to.run(|| TcpListener::bind((addr, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    for _ in 0..count {
        let connect = || TcpStream::connect_timeout(&target, PATIENCE).unwrap();
        let mut near = from.run(connect).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let sender = std::thread::spawn(move || near.write_all(&vec![7; bytes]).unwrap());
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        sender.join().unwrap();
        assert_eq!(received.len(), bytes);
    }
}

fn sent(testbed: &Testbed, host: usize) -> Vec<u64> {
    testbed.link_bytes(&testbed.hosts[host]).unwrap().iter().map(|l| l.sent).collect()
}

#[test]
fn policy_1_spreads_connections_and_policy_0_does_not() {
    for (policy, seed) in [(0, 11), (1, 12)] {
        let bed = up(Spec { join: Join::Ecmp { policy }, links: 4, seed, ..Spec::default() });
        let before = sent(&bed, 0);
        transfer(&bed.hosts[0], &bed.hosts[1], bed.hosts[1].addrs[0], 48, 50_000);
        let moved: Vec<u64> = sent(&bed, 0).iter().zip(&before).map(|(a, b)| a - b).collect();
        let used = moved.iter().filter(|&&b| b >= 50_000).count();
        assert_eq!(used, if policy == 0 { 1 } else { 4 }, "policy {policy}: {moved:?}");
    }
}

#[test]
fn many_hosts_reach_each_other_over_a_router_and_over_switches() {
    for join in [Join::Ecmp { policy: 1 }, Join::Subnets] {
        let bed = up(Spec { hosts: 3, join, ..Spec::default() });
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            for &addr in &bed.hosts[to].addrs {
                transfer(&bed.hosts[from], &bed.hosts[to], addr, 1, 10_000);
            }
        }
    }
}

#[test]
fn subnets_are_separate_links_and_rates_hold() {
    let bed = up(Spec { join: Join::Subnets, rate: BitRate(20_000_000), ..Spec::default() });
    let [a, b] = &bed.hosts[..] else { panic!("two hosts") };
    let before = sent(&bed, 0);
    let begun = Instant::now();
    transfer(a, b, b.addrs[1], 1, 3_000_000);
    // 24 Mbit do not fit through 20 Mbit/s in less than a second.
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let moved: Vec<u64> = sent(&bed, 0).iter().zip(&before).map(|(a, b)| a - b).collect();
    assert!(moved[0] < 10_000 && moved[1] >= 3_000_000, "{moved:?}");
}

/// Whether a datagram arrives. Of one that should, it is waited for: an address may have to be resolved, and who sees to that may
/// wait for a CPU. That none arrives is seen in a few tries.
fn arrives(from: &UdpSocket, to: &UdpSocket, should: bool) -> bool {
    // What an earlier call sent may arrive late: each call looks for its own.
    static CALLS: AtomicU64 = AtomicU64::new(1);
    let own = CALLS.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    let addr = to.local_addr().unwrap();
    let mut buffer = [0; 8];
    let began = Instant::now();
    for tried in 1.. {
        if from.send_to(&own, addr).is_ok() && to.recv_from(&mut buffer).is_ok() && buffer == own {
            return true;
        }
        let enough = if should { began.elapsed() > PATIENCE } else { tried == 10 };
        if enough {
            break;
        }
    }
    false
}

#[test]
fn faults_of_a_link() {
    let bed = up(Spec { join: Join::Subnets, ..Spec::default() });
    let socket = |host: &Host, rail: usize| {
        let socket = host.run(|| UdpSocket::bind((host.addrs[rail], 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(40))).unwrap();
        socket
    };
    let [a, b] = &bed.hosts[..] else { panic!("two hosts") };
    let rails: Vec<[UdpSocket; 2]> = (0..2).map(|r| [socket(a, r), socket(b, r)]).collect();
    let passes = |rail: usize, (out, back): (bool, bool)| {
        let [near, far] = &rails[rail];
        (arrives(near, far, out), arrives(far, near, back))
    };
    assert_eq!(passes(0, (true, true)), (true, true));
    for (state, expected) in [
        (LinkState::Mute, (false, true)),
        (LinkState::Deaf, (true, false)),
        (LinkState::Cut, (false, false)),
        (LinkState::Down, (false, false)),
    ] {
        bed.set_link("h1", 1, state).unwrap();
        assert_eq!(passes(0, expected), expected, "{state:?}");
        assert_eq!(passes(1, (true, true)), (true, true), "the other link, {state:?}");
        bed.set_link("h1", 1, LinkState::Up).unwrap();
        assert_eq!(passes(0, (true, true)), (true, true), "up again after {state:?}");
    }
    let error = bed.set_link("h1", 3, LinkState::Up).unwrap_err().to_string();
    assert!(error.contains("h1 has no link 3; it has 1 to 2"), "{error}");
    assert!(bed.set_link("h7", 1, LinkState::Up).is_err());
}

#[test]
fn all_links_down_and_up_again_bring_the_routes_back() {
    for routed in [false, true] {
        let bed = up(Spec { routed, ..Spec::default() });
        for link in [1, 2] {
            bed.set_link("h1", link, LinkState::Down).unwrap();
        }
        let addr = SocketAddr::from((bed.hosts[1].addrs[0], 1));
        let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
        let tried = || TcpStream::connect_timeout(&addr, Duration::from_millis(200)).map_err(refused);
        assert!(matches!(bed.hosts[0].run(tried).unwrap(), Err(false)), "nothing passes");
        for link in [1, 2] {
            bed.set_link("h1", link, LinkState::Up).unwrap();
        }
        transfer(&bed.hosts[0], &bed.hosts[1], bed.hosts[1].addrs[0], 4, 10_000);
    }
}

#[test]
fn a_runtime_is_in_its_host() {
    let bed = up(Spec::default());
    let [a, b] = &bed.hosts[..] else { panic!("two hosts") };
    let (here, there) = (a.runtime(1).unwrap(), b.runtime(1).unwrap());
    let addr = bed.addrs(1, 4000)[0];
    let bound = there.spawn(async move { tokio::net::TcpListener::bind(addr).await });
    let listener = there.block_on(bound).unwrap().unwrap();
    let connected = here.spawn(tokio::net::TcpStream::connect(addr));
    assert_eq!(here.block_on(connected).unwrap().unwrap().peer_addr().unwrap(), addr);
    drop(listener);
    // The address is not one of this machine's own.
    assert!(TcpListener::bind(addr).is_err());
}

#[test]
fn names_are_taken_once_and_down_ends_what_runs_inside() {
    let bed = up(Spec::default());
    let name = bed.spec.name.clone();
    let same = Testbed::up(Spec { name: name.clone(), ..Spec::default() });
    assert!(matches!(same, Err(TestbedError::Exists { .. })), "{same:?}");
    let mut sleeper = bed.hosts[0].command("sleep").arg("600").spawn().unwrap();
    let begun = Instant::now();
    while bed.pids().unwrap().is_empty() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bed.pids().unwrap(), [sleeper.id()]);
    assert!(Testbed::find(Some(&name)).unwrap().stands());
    // Somebody waits for the process, as its parent does in life.
    let waited = std::thread::spawn(move || sleeper.wait().unwrap());
    testbed::down(&name).unwrap();
    assert!(!waited.join().unwrap().success());
    assert!(!bed.stands());
    assert!(matches!(testbed::down(&name), Err(TestbedError::NoTestbed { .. })));
}

#[test]
fn what_a_killed_owner_leaves_is_swept_away() {
    const CHILD: &str = "ROPEWALK_TEST_TESTBED_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let beds: Vec<Scoped> = (0..3).map(|_| up(Spec { hosts: 4, ..Spec::default() })).collect();
        let names: Vec<&str> = beds.iter().map(|bed| &*bed.spec.name).collect();
        let mut out = std::io::stdout();
        writeln!(out, "\nNAMES {}", names.join(" ")).unwrap();
        out.flush().unwrap();
        std::thread::sleep(Duration::from_secs(3600));
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_killed_owner_leaves_is_swept_away", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let names = lines.find_map(|l| l.unwrap().strip_prefix("NAMES ").map(str::to_owned)).unwrap();
    let mine = up(Spec::default());
    let left: Vec<Testbed> = names.split(' ').map(|name| Testbed::find(Some(name)).unwrap()).collect();
    assert!(left.iter().all(Testbed::stands), "a living owner's is left alone");
    child.kill().unwrap();
    child.wait().unwrap();
    // Several at once, and other tests' `scoped` beside them: whoever removes one, it is gone when a sweep has ended, and none meets what
    // another has removed by half.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                testbed::sweep().unwrap();
                for bed in &left {
                    let name = &bed.spec.name;
                    assert!(!bed.stands() && Testbed::find(Some(name)).is_err(), "{name} is left");
                }
            });
        }
    });
    assert!(mine.stands());
}

#[test]
fn hosts_with_trees_see_their_own_files_mounts_and_names() {
    let bed = up(Spec { trees: true, ..Spec::default() });
    let sh = |host: &str, script: &str| {
        let output = bed.command(host, "sh").unwrap().args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for host in ["h1", "h2"] {
        assert_eq!(sh(host, "hostname; ls -A /var/lib /mnt"), format!("{host}\n/mnt:\n\n/var/lib:\n"));
        sh(
            host,
            &format!(
                "echo {host} >/var/lib/who; mkdir /mnt/a; mount -t tmpfs none /mnt/a; touch /mnt/a/{host}"
            ),
        );
    }
    assert_eq!(sh("h1", "cat /var/lib/who; ls /mnt/a"), "h1\nh1\n");
    assert_eq!(sh("h2", "cat /var/lib/who; ls /mnt/a"), "h2\nh2\n");
    let name = bed.spec.name.clone();
    let tree = std::path::Path::new("/var/tmp/ropewalk-testbed").join(&name);
    assert!(tree.join("h1/mnt/a").exists() && !tree.join("h1/mnt/a/h1").exists());
    drop(bed);
    let spaces = std::path::Path::new("/run/ropewalk/testbed").join(format!("{name}.spaces"));
    assert!(!tree.exists() && !spaces.exists(), "nothing is left");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&name), "{mounts}");
}
