//! Loopback: bulk against iperf3, requests of one byte against a raw echo.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    figure::{Figure, FigureError, Run, Settings},
    process::{client, iperf3, server},
};
use crate::{
    ceiling,
    netperf::{Controller, Kind, Server, Spec, process_cpu_seconds},
};

const CONNECTIONS: [u32; 4] = [1, 2, 4, 8];
const RR_CONNECTIONS: [u32; 6] = [1, 8, 25, 50, 100, 150];
/// Rounds at most: each has twelve measurements.
const ROUNDS_MAX: u32 = 5;
/// What is asked for of the raw figure.
const BULK_PART: f64 = 0.90;
const CPU_PART: f64 = 1.15;
const RR_PART: f64 = 0.6;

/// GB/s and CPU seconds for a GB of each round, for each number of connections.
#[derive(Default)]
struct Case {
    by_connections: [Vec<(f64, f64)>; CONNECTIONS.len()],
}

impl Case {
    /// The best median rate, its CPU seconds for a GB, its number of connections.
    fn best(&self) -> (f64, f64, u32) {
        let of = |i: usize| {
            let median = |of: fn(&(f64, f64)) -> f64| {
                let mut values: Vec<f64> = self.by_connections[i].iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
            };
            (median(|m| m.0), median(|m| m.1), CONNECTIONS[i])
        };
        (0..CONNECTIONS.len()).map(of).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }
}

/// Messages of 1 MiB, both ends processes of their own, turn by turn with iperf3.
pub(super) fn bulk(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let (_server, addrs) = server(&settings.program, None, &[loopback])?;
    let rounds = settings.runs.clamp(1, ROUNDS_MAX);
    let mut raw = Case::default();
    let mut ours = [("write", Case::default()), ("read", Case::default())];
    for round in 1..=rounds {
        tell(&format!("loopback: round {round} of {rounds}"));
        for (i, connections) in CONNECTIONS.into_iter().enumerate() {
            let iperf3 = iperf3(None, loopback, connections, settings.seconds)?;
            raw.by_connections[i].push((iperf3.gbit_per_second / 8.0, iperf3.cpu_seconds_per_gb));
            for (kind, case) in &mut ours {
                let (parallel, threads) = (connections.to_string(), (connections * 4).to_string());
                let ttime = settings.seconds.to_string();
                let args = [
                    *kind,
                    "--buffsize",
                    "1m",
                    "--parallel",
                    &parallel,
                    "--threads",
                    &threads,
                    "--ttime",
                    &ttime,
                ];
                let args = args.map(str::to_owned);
                let report = client(&settings.program, None, &addrs, &args)?.report(settings.seconds)?;
                case.by_connections[i].push((report.mb_per_second / 1e3, report.cpu_seconds_per_gb));
            }
        }
    }
    let (raw_rate, raw_cpu, raw_connections) = raw.best();
    let figure = |(kind, case): (&str, Case)| {
        let (rate, cpu, connections) = case.best();
        Figure {
            group: "loopback",
            case: format!("loopback, 1 MiB {kind}, best of 1-8 connections, median of {rounds}"),
            wanted: format!("at least {BULK_PART} of iperf3's best; CPU s/GB at most {CPU_PART} of it"),
            seen: format!(
                "{rate:.2} GB/s ({:.2}), {cpu:.3} CPU s/GB ({:.2}), {connections} connections",
                rate / raw_rate,
                cpu / raw_cpu
            ),
            raw: format!("iperf3: {raw_rate:.2} GB/s, {raw_cpu:.3} CPU s/GB, {raw_connections} connections"),
            reached: Some(rate >= BULK_PART * raw_rate && cpu <= CPU_PART * raw_cpu),
            runs: (case.by_connections.iter().zip(CONNECTIONS))
                .flat_map(|(rounds, connections)| {
                    rounds.iter().map(move |(rate, cpu)| Run {
                        drawn: format!("{connections} connections, {cpu:.3} CPU s/GB"),
                        seen: *rate,
                        ..Run::default()
                    })
                })
                .collect(),
        }
    };
    Ok(ours.into_iter().map(figure).collect())
}

/// Both ends in this process and on one runtime, as those of the raw echo are, turn by turn with it.
pub(super) fn rr(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let failed =
        |e: std::io::Error| FigureError::Process { what: "tokio runtime".to_owned(), reason: e.to_string() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let ttime = Duration::try_from_secs_f64(settings.seconds).unwrap_or(Duration::from_secs(2));
    let rounds = settings.runs.clamp(1, ROUNDS_MAX);
    let figures = runtime.block_on(async {
        let mut by_connections: [Vec<Run>; RR_CONNECTIONS.len()] = Default::default();
        let server = Server::start(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))], 1)?;
        let controller = Controller::connect(&[server.local_addrs().to_vec()], &[]).await?;
        for round in 1..=rounds {
            for (runs, connections) in by_connections.iter_mut().zip(RR_CONNECTIONS) {
                tell(&format!("rr: round {round} of {rounds}, {connections} connections"));
                let cpu = process_cpu_seconds();
                let raw = ceiling::echo(ttime, connections as usize).await?;
                let raw_us = (process_cpu_seconds() - cpu) * 1e6 / (raw * ttime.as_secs_f64());
                let spec = Spec { ttime, buffsize: 1, connections, ..Spec::new(Kind::Rr) };
                let report = controller.run(&spec, |_| {}).await?;
                runs.push(Run {
                    seen: report.messages_per_second,
                    raw,
                    errors: report.errors,
                    // 10^9 messages of a byte are a GB.
                    says: format!("CPU us each {:.1}, echo {raw_us:.1}", report.cpu_seconds_per_gb / 1e3),
                    ..Run::default()
                });
            }
        }
        Ok::<_, FigureError>(by_connections)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(figures?.into_iter().zip(RR_CONNECTIONS).map(|(runs, n)| rr_figure(runs, n)).collect())
}

/// The round whose ratio is the median.
fn rr_figure(mut runs: Vec<Run>, connections: u32) -> Figure {
    runs.sort_by(|a, b| (a.seen / a.raw).total_cmp(&(b.seen / b.raw)));
    let Run { seen, raw, says, .. } = runs.get(runs.len() / 2).cloned().unwrap_or_default();
    Figure {
        group: "rr",
        case: format!(
            "loopback, 1-byte request/response, {connections} connections, median of {}",
            runs.len()
        ),
        wanted: format!("at least {RR_PART} of a raw echo"),
        seen: format!("{seen:.0}/s ({:.2}); {says}", seen / raw),
        raw: format!("echo: {raw:.0}/s"),
        reached: Some(seen >= RR_PART * raw && runs.iter().all(|r| r.errors == 0)),
        runs,
    }
}
