//! How payloads of writes travel: pushed in the request (`write`) or fetched by the server (`nwrite`), turn by turn, over
//! loopback and over a link with a set rate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    figure::{Figure, FigureError, Run, Settings},
    process::{client, server},
};
use crate::testbed::{BitRate, Host, Spec, Testbed};

const SIZES: [&str; 3] = ["64k", "1m", "4m"];
/// Messages under way.
const THREADS: &str = "8";
/// Rounds at most.
const ROUNDS_MAX: u32 = 5;

pub(super) fn transfer(settings: &Settings, tell: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, FigureError> {
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST)];
    let mut figures = compare("loopback", None, &loopback, settings, tell)?;
    let spec = Spec { links: 1, rate: BitRate(1_000_000_000), seed: settings.seed, ..Spec::default() };
    let bed = Testbed::scoped(spec)?;
    let hosts = Some((&bed.hosts[0], &bed.hosts[1]));
    figures.extend(compare("link of 1 Gbit/s", hosts, &bed.hosts[1].addrs, settings, tell)?);
    Ok(figures)
}

fn compare(
    place: &str,
    hosts: Option<(&Host, &Host)>,
    listen: &[IpAddr],
    settings: &Settings,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Figure>, FigureError> {
    let (_server, addrs) = server(&settings.program, hosts.map(|h| h.1), listen)?;
    let rounds = settings.runs.clamp(1, ROUNDS_MAX);
    let mut figures = Vec::new();
    for size in SIZES {
        let (mut pushed, mut fetched) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            tell(&format!("transfer: {place}, {size}, round {round} of {rounds}"));
            for (kind, runs) in [("write", &mut pushed), ("nwrite", &mut fetched)] {
                runs.push(run(kind, size, hosts.map(|h| h.0), &addrs, settings)?);
            }
        }
        let [(push, push_says), (fetch, fetch_says)] = [median(&mut pushed), median(&mut fetched)];
        let errors = pushed.iter().chain(&fetched).map(|r| r.errors).sum::<u64>();
        figures.push(Figure {
            group: "transfer",
            case: format!("{place}, {size} written, {THREADS} under way, 2 connections, median of {rounds}"),
            wanted: "pushed and fetched compared, no failed message".to_owned(),
            seen: format!(
                "pushed {push:.0} MB/s ({push_says}), fetched {fetch:.0} MB/s ({fetch_says}), fetched/pushed {:.2}",
                fetch / push
            ),
            raw: "pushed".to_owned(),
            reached: Some(errors == 0),
            runs: pushed.into_iter().chain(fetched).collect(),
        });
    }
    Ok(figures)
}

fn run(
    kind: &str,
    size: &str,
    host: Option<&Host>,
    addrs: &[SocketAddr],
    settings: &Settings,
) -> Result<Run, FigureError> {
    let ttime = settings.seconds.to_string();
    let args = [kind, "--buffsize", size, "--parallel", "2", "--threads", THREADS, "--ttime", &ttime]
        .map(str::to_owned);
    let report = client(&settings.program, host, addrs, &args)?.report(settings.seconds)?;
    Ok(Run {
        drawn: format!("{kind} {size}"),
        seen: report.mb_per_second,
        errors: report.errors,
        says: format!("{:.3} CPU s/GB", report.cpu_seconds_per_gb),
        ..Run::default()
    })
}

/// The run in the middle: its rate and what it says.
fn median(runs: &mut [Run]) -> (f64, String) {
    runs.sort_by(|a, b| a.seen.total_cmp(&b.seen));
    runs.get(runs.len() / 2).map(|r| (r.seen, r.says.clone())).unwrap_or_default()
}
