//! Netperf over real sockets: every kind of test, many to many, stops and failures.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use lab::netperf::{Connection, Controller, Dispatching, Kind, NetperfError, Parallel, Report, Server, Spec};

/// Ends a test that would otherwise hang, as a failure.
const PATIENCE: Duration = Duration::from_secs(60);

fn server() -> (Server, Vec<SocketAddr>) {
    let server = Server::start(vec!["127.0.0.1:0".parse().unwrap()], 16).unwrap();
    let addrs = server.local_addrs().to_vec();
    (server, addrs)
}

fn short(kind: Kind) -> Spec {
    Spec { ttime: Duration::from_millis(400), buffsize: 64 << 10, verify: true, ..Spec::new(kind) }
}

/// Runs a test without an error until its report is as it has to be, each time for longer: on a busy machine nothing may get through in a
/// short time.
async fn run_until(controller: &Controller, spec: &Spec, holds: impl Fn(&Report) -> bool) -> Report {
    let mut spec = spec.clone();
    loop {
        let report = controller.run(&spec, |_| {}).await.unwrap();
        assert_eq!((report.errors, &report.first_error), (0, &None), "{spec:?}");
        if holds(&report) {
            return report;
        }
        spec.ttime *= 2;
        assert!(spec.ttime < PATIENCE, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_moves_checked_data() {
    let (_server, addrs) = server();
    let controller = Controller::connect(&[addrs], &[]).await.unwrap();
    for kind in Kind::ALL {
        let spec = Spec { parallel: Parallel::Fixed(3), connections: 5, ..short(kind) };
        let wanted = if matches!(kind, Kind::Stream | Kind::Rr) { 5 } else { 3 };
        let works = |report: &Report| report.messages > 0 && report.by_client[0].connections.len() == wanted;
        let report = run_until(&controller, &spec, works).await;
        assert_eq!(report.bytes, report.messages * (64 << 10), "{report:?}");
        assert!(report.cpu_seconds_per_gb > 0.0 && report.gbit_per_second > 0.0);
        assert!(report.result_line().starts_with(&format!("1-1 {kind} ")), "{}", report.result_line());
        let counted = report.by_client[0].block.histogram.iter().map(|(_, n)| n).sum::<u64>();
        assert_eq!(counted, report.messages);
        assert!(report.timeline.iter().sum::<u64>() >= report.bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispatch_and_the_number_of_connections_are_the_callers_choice() {
    let (_server, addrs) = server();
    let controller = Controller::connect(&[addrs], &[]).await.unwrap();
    for dispatch in [Dispatching::ShortestQueue, Dispatching::RoundRobin, Dispatching::Pinned] {
        let spec = Spec { parallel: Parallel::Fixed(4), threads: 2, dispatch, ..short(Kind::Write) };
        let used =
            |report: &Report| report.by_client[0].connections.iter().filter(|c| c.sent > 64 << 10).count();
        let wanted = if dispatch == Dispatching::Pinned { 2 } else { 4 };
        let report = run_until(&controller, &spec, |report| used(report) >= wanted).await;
        assert_eq!(used(&report), wanted, "{dispatch:?}");
    }
    let spec = Spec { parallel: Parallel::Auto, ..short(Kind::Write) };
    let report = controller.run(&spec, |_| {}).await.unwrap();
    assert!(report.result_line().contains("parallel auto (found "), "{}", report.result_line());
    assert!((1..=16).contains(&report.by_client[0].connections.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_from_one_byte_to_16_mib() {
    let (_server, addrs) = server();
    let controller = Controller::connect(&[addrs], &[]).await.unwrap();
    for kind in [Kind::Write, Kind::Read, Kind::Nwrite, Kind::Rr] {
        for buffsize in [1, 16 << 10, (16 << 10) + 1, 16 << 20] {
            // A large one must begin and end within the part that counts.
            let whole = |report: &Report| report.timeline.iter().sum::<u64>() >= u64::from(buffsize);
            run_until(&controller, &Spec { buffsize, ..short(kind) }, whole).await;
        }
    }
    let too_much = controller.run(&Spec { buffsize: (16 << 20) + 1, ..short(Kind::Read) }, |_| {}).await;
    assert!(matches!(too_much, Err(NetperfError::BadSpec { name: "buffsize", .. })), "{too_much:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_to_many() {
    let servers: Vec<_> = (0..2).map(|_| server()).collect();
    let clients: Vec<_> = (0..2).map(|_| server()).collect();
    let addrs = |hosts: &[(Server, Vec<SocketAddr>)]| hosts.iter().map(|h| h.1.clone()).collect::<Vec<_>>();
    let controller = Controller::connect(&addrs(&servers), &addrs(&clients)).await.unwrap();
    let (mut looks, mut ttime) = (0, Duration::from_millis(1500));
    while looks == 0 {
        assert!(ttime < PATIENCE, "progress is told");
        let spec = Spec { ttime, ..short(Kind::Write) };
        controller.run(&spec, |p| looks += usize::from(p.bytes > 0)).await.unwrap();
        ttime *= 2;
    }
    let all: BTreeSet<String> = addrs(&servers).iter().flatten().map(|a| a.to_string()).collect();
    let write = short(Kind::Write);
    let report = run_until(&controller, &write, |report| {
        report.by_client.iter().all(|client| {
            let used = client.connections.iter().filter(|c| c.sent > 64 << 10);
            // Each client writes to each server.
            client.mb_per_second > 0.0 && used.map(|c| c.remote.clone()).collect::<BTreeSet<_>>() == all
        })
    });
    let report = report.await;
    assert_eq!((report.clients, report.servers, report.by_client.len()), (2, 2, 2));
    // Pinned threads: one thread reaches one server only.
    let reached = |report: &Report| -> Vec<usize> {
        let of = |all: &[Connection]| all.iter().filter(|c| c.received > 64 << 10).count();
        report.by_client.iter().map(|client| of(&client.connections)).collect()
    };
    let one = Spec { threads: 1, ..short(Kind::Sread) };
    let report = run_until(&controller, &one, |report| !reached(report).contains(&0)).await;
    assert_eq!(reached(&report), [1, 1]);
    // The processes end when told.
    controller.quit().await.unwrap();
    let ended = async {
        for (server, _) in servers.iter().chain(&clients) {
            server.ended().await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_test_ends_on_all_hosts() {
    let (_server, servers) = server();
    let (_client, clients) = server();
    let controller =
        Controller::connect(std::slice::from_ref(&servers), std::slice::from_ref(&clients)).await.unwrap();
    let long = Spec { ttime: Duration::from_secs(3600), ..short(Kind::Write) };
    let begun = tokio::sync::Notify::new();
    tokio::select! {
        ended = controller.run(&long, |_| begun.notify_one()) => panic!("it would run for an hour: {ended:?}"),
        () = begun.notified() => {}
    }
    // Another controller is told that the host is busy, as long as it is.
    let other = Controller::connect(&[servers], &[clients]).await.unwrap();
    let busy = other.run(&short(Kind::Read), |_| {}).await.unwrap_err().to_string();
    assert!(busy.contains("another test runs here"), "{busy}");
    controller.stop().await;
    let begun = Instant::now();
    let report = loop {
        match other.run(&short(Kind::Read), |_| {}).await {
            Ok(report) => break report,
            Err(e) => assert!(begun.elapsed() < PATIENCE, "{e}"),
        }
    };
    assert_eq!(report.errors, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_and_gone_meanwhile_are_named() {
    // Bound, so that no other test's server listens there meanwhile.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = bound.local_addr().unwrap();
    let error = Controller::connect(&[vec![free]], &[]).await.err().unwrap().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("does not answer"), "{error}");
    assert!(matches!(Controller::connect(&[], &[]).await, Err(NetperfError::NoServer)));

    let (gone, addrs) = server();
    let controller = Controller::connect(std::slice::from_ref(&addrs), &[]).await.unwrap();
    let spec = Spec { ttime: Duration::from_secs(10), ..short(Kind::Write) };
    let ends = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(gone);
    };
    let (result, ()) = tokio::join!(controller.run(&spec, |_| {}), ends);
    let error = result.unwrap_err().to_string();
    assert!(error.contains(&addrs[0].to_string()), "{error}");
}
