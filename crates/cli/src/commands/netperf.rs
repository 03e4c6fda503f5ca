//! `ropewalk netperf`: servers, tests, matrices.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use lab::{
    netperf::{Controller, Kind, NetperfError, PORT, Progress, Report, Server, Spec},
    uperf::{self, Profile},
};

use crate::{
    args::{Netperf, NetperfHosts, NetperfMatrix, NetperfTest, Uperf, UperfRun, UperfWrite},
    input, output,
};

/// `ropewalk netperf ...`.
pub fn run(command: &Netperf) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        match command {
            Netperf::Server { listen, parallel } => server(listen, *parallel).await,
            Netperf::Test(args) => test(args).await,
            Netperf::Stream(args) => matrix(Kind::Stream, args).await,
            Netperf::Rr(args) => matrix(Kind::Rr, args).await,
            Netperf::Uperf(Uperf::Run(args)) => profile(args).await,
            Netperf::Uperf(Uperf::Write(args)) => write_profile(args),
            Netperf::Quit { server } => {
                let controller = Controller::connect(&servers(server)?, &[]).await?;
                Ok(controller.quit().await?)
            }
        }
    });
    // What still runs is of no use to anybody any more.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

async fn server(listen: &[String], parallel: u8) -> Result<()> {
    let mut addrs = Vec::new();
    for text in listen {
        addrs.extend(addresses(text)?);
    }
    let server = Server::start(addrs, parallel)?;
    let addrs: Vec<String> = server.local_addrs().iter().map(|a| a.to_string()).collect();
    if !output::announce(format!("netperf server listens on {}", addrs.join(","))) {
        return Ok(());
    }
    // Both are safe to cancel: they only wait.
    tokio::select! {
        () = server.ended() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// `HOST[:PORT]`, several of one host separated by commas.
fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let one = |text: &str| -> Result<SocketAddr> {
        let found = match text.parse::<std::net::IpAddr>() {
            Ok(ip) => Some(SocketAddr::from((ip, PORT))),
            Err(_) if text.contains(':') => text.to_socket_addrs().ok().and_then(|mut a| a.next()),
            Err(_) => (text, PORT).to_socket_addrs().ok().and_then(|mut a| a.next()),
        };
        found.with_context(|| {
            format!("{text:?} is no address; write HOST or HOST:PORT, such as 10.0.0.2:{PORT}")
        })
    };
    text.split(',').map(one).collect()
}

fn servers(texts: &[String]) -> Result<Vec<Vec<SocketAddr>>> {
    texts.iter().map(|t| addresses(t)).collect()
}

/// Runs tests until Ctrl-C, which ends the one under way on all hosts.
struct Runner {
    controller: Controller,
}

impl Runner {
    async fn connect(hosts: &NetperfHosts) -> Result<Runner> {
        let controller = Controller::connect(&servers(&hosts.server)?, &servers(&hosts.client)?).await?;
        Ok(Runner { controller })
    }

    async fn run(&self, spec: &Spec) -> Result<Report> {
        let bar = output::progress("", spec.ttime.as_millis() as u64);
        let shown = |p: Progress| show(&bar, spec.kind, p);
        // Dropping the test is what Ctrl-C is for; `stop` then ends it on the other hosts.
        let result = tokio::select! {
            result = self.controller.run(spec, shown) => result,
            _ = tokio::signal::ctrl_c() => {
                self.controller.stop().await;
                Err(NetperfError::Stopped)
            }
        };
        bar.finish_and_clear();
        Ok(result?)
    }
}

fn show(bar: &ProgressBar, kind: Kind, p: Progress) {
    let rate = p.bytes as f64 / 1e6 / p.elapsed.as_secs_f64().max(1e-3);
    let errors = if p.errors > 0 { format!(", {} messages failed", p.errors) } else { String::new() };
    bar.set_message(format!("{kind}: {rate:.0} MB/s{errors}"));
    bar.set_position(p.elapsed.as_millis() as u64);
}

async fn test(args: &NetperfTest) -> Result<()> {
    let kinds = if args.tests.is_empty() { vec![Kind::Nwrite, Kind::Read] } else { args.tests.clone() };
    let runner = Runner::connect(&args.hosts).await?;
    let mut reports = Vec::new();
    for kind in kinds {
        let spec = Spec {
            ttime: seconds(args.ttime)?,
            buffsize: u32::try_from(args.buffsize.0).unwrap_or(u32::MAX),
            threads: args.threads,
            parallel: args.parallel,
            verify: args.verify,
            dispatch: args.dispatch,
            place: !args.no_placement,
            transport: args.transport,
            cipher_list: args.cipher_list,
            ..Spec::new(kind)
        };
        let report = runner.run(&spec).await?;
        if !args.json {
            output::line(report.result_line());
            output::line(report.times_text(args.hist).trim_end());
            output::line(cpu_line(&report));
            report
                .by_client
                .iter()
                .flat_map(|c| &c.placement)
                .for_each(|p| output::line(format!("placement on {p}")));
        }
        reports.push(report);
    }
    finish(reports, args.json)
}

fn cpu_line(report: &Report) -> String {
    format!(
        "CPU seconds per GB (10^9 bytes): clients {:.3}, servers {:.3}, together {:.3}",
        report.client_cpu_seconds_per_gb, report.server_cpu_seconds_per_gb, report.cpu_seconds_per_gb
    )
}

/// Prints for scripts if asked; failed messages are a failure.
fn finish(reports: Vec<Report>, json: bool) -> Result<()> {
    if json {
        output::json(&reports)?;
    }
    for report in &reports {
        report.check().with_context(|| format!("test {}", report.kind))?;
    }
    Ok(())
}

async fn matrix(kind: Kind, args: &NetperfMatrix) -> Result<()> {
    let runner = Runner::connect(&args.hosts).await?;
    let mut reports = Vec::new();
    let default_connections: &[u32] =
        if kind == Kind::Rr { &[1, 25, 50, 100, 150] } else { &[1, 4, 8, 16, 64] };
    let default_sizes: &[u64] =
        if kind == Kind::Rr { &[1, 1024, 4096, 16384, 65536] } else { &[256, 1024, 4096, 16384, 65536] };
    let connections = if args.connections.is_empty() { default_connections } else { &args.connections };
    let sizes: Vec<u64> = match &args.sizes[..] {
        [] => default_sizes.to_vec(),
        sizes => sizes.iter().map(|s| s.0).collect(),
    };
    for &size in &sizes {
        for &connections in connections {
            let spec = Spec {
                ttime: seconds(args.ttime)?,
                buffsize: u32::try_from(size).unwrap_or(u32::MAX),
                threads: args.under_way,
                connections,
                verify: args.verify,
                ..Spec::new(kind)
            };
            reports.push(runner.run(&spec).await?);
        }
    }
    show_matrix(kind, &reports, args.json);
    if reports.is_empty() {
        bail!("nothing to measure");
    }
    finish(reports, args.json)
}

/// A line for each test, unless it is for scripts.
fn show_matrix(kind: Kind, reports: &[Report], json: bool) {
    if !json {
        let rows = reports.iter().map(|r| {
            let delay =
                |of: fn(&lab::netperf::ClientReport) -> f64| r.by_client.iter().map(of).fold(0.0, f64::max);
            vec![
                r.buffsize.to_string(),
                r.connections.to_string(),
                format!("{:.3}", r.gbit_per_second),
                format!("{:.0}", r.messages_per_second),
                format!("{:.3}", delay(|c| c.block.median_ms)),
                format!("{:.3}", delay(|c| c.block.p99_ms)),
                format!("{:.3}", r.cpu_seconds_per_gb),
                format!("{:.1}", r.cpu_seconds_per_gb * f64::from(r.buffsize) / 1e3),
            ]
        });
        let rows = rows.collect();
        let what = if kind == Kind::Rr { "TRANSACTIONS/s" } else { "MESSAGES/s" };
        let header =
            ["BYTES", "CONNECTIONS", "Gbit/s", what, "MEDIAN ms", "99 % ms", "CPU s/GB", "CPU us EACH"];
        output::table(&header, rows);
    }
}

/// `ropewalk netperf uperf run`.
async fn profile(args: &UperfRun) -> Result<()> {
    let name = args.file.display();
    let text = input::text(&args.file, uperf::FILE_MAX).with_context(|| format!("read {name}"))?;
    let sets = args
        .set
        .iter()
        .map(|set| set.split_once('=').with_context(|| format!("--set {set:?}: write NAME=VALUE")));
    let sets: Vec<(&str, &str)> = sets.collect::<Result<_>>()?;
    let value = |name: &str| match sets.iter().rev().find(|(key, _)| *key == name) {
        Some((_, value)) => Some((*value).to_owned()),
        None => std::env::var(name).ok(),
    };
    let profile = Profile::read(&text, &value).with_context(|| format!("{name}"))?;
    let test = profile.test().with_context(|| format!("{name}"))?;
    let runner = Runner::connect(&NetperfHosts { server: test.servers, client: args.client.clone() }).await?;
    let spec = Spec { verify: args.verify, ..test.spec };
    let report = runner.run(&spec).await?;
    show_matrix(spec.kind, std::slice::from_ref(&report), args.json);
    finish(vec![report], args.json)
}

/// `ropewalk netperf uperf write`.
fn write_profile(args: &UperfWrite) -> Result<()> {
    let spec = Spec {
        ttime: seconds(args.ttime)?,
        buffsize: u32::try_from(args.size.0).unwrap_or(u32::MAX),
        threads: if args.test == Kind::Rr { 1 } else { args.under_way },
        connections: args.connections,
        ..Spec::new(args.test)
    };
    spec.check()?;
    let profile = Profile::of(&spec, &args.server);
    let profile = profile.with_context(|| format!("uperf has no {}: write stream or rr", args.test))?;
    output::line(profile.to_string().trim_end());
    Ok(())
}

fn seconds(value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value).ok().with_context(|| format!("{value} is no number of seconds"))
}
