//! What a test showed: figures, nsdperf's result line, histograms.

use std::{collections::BTreeMap, fmt::Write};

use serde::{Deserialize, Serialize};

use super::{
    ClientResult, Connection, Kind, NetperfError, Parallel, ServerResult, Spec, Times, message::Info,
};

/// One process's part.
pub(super) struct Side<T> {
    pub name: String,
    pub info: Info,
    pub result: T,
}

/// A test's figures. Rates are decimal: MB = 10^6, GB = 10^9 bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What was measured.
    pub kind: Kind,
    /// Number of clients.
    pub clients: usize,
    /// Number of servers.
    pub servers: usize,
    /// How long it ran, in seconds; the counted time is `seconds`.
    pub ttime: f64,
    /// The counted time.
    #[serde(rename = "took_s", alias = "seconds")]
    pub seconds: f64,
    /// Bytes of a message.
    pub buffsize: u32,
    /// Tester threads of each client (`stream`: messages under way on each connection).
    pub threads: u32,
    /// Bulk connections of each client to each server, as asked for.
    pub parallel: Parallel,
    /// Connections of each client in `stream` and `rr`.
    pub connections: u32,
    /// Whether the data was checked.
    pub verify: bool,
    /// Bytes of whole messages in the counted time. An rr's count once, though they travel both ways.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// MB/s.
    pub mb_per_second: f64,
    /// Gbit/s.
    pub gbit_per_second: f64,
    /// Messages a second; for rr transactions.
    pub messages_per_second: f64,
    /// CPU time of the clients' processes, in percent of all CPUs of their hosts.
    pub client_cpu_percent: f64,
    /// The servers'.
    pub server_cpu_percent: f64,
    /// CPU seconds of the clients' processes for 10^9 bytes.
    pub client_cpu_seconds_per_gb: f64,
    /// The servers'.
    pub server_cpu_seconds_per_gb: f64,
    /// Of both sides; a process that was client and server counts once.
    pub cpu_seconds_per_gb: f64,
    /// Messages that failed.
    pub errors: u64,
    /// The first one's reason.
    pub first_error: Option<String>,
    /// When it began: seconds since 1970, by the first client's clock.
    pub started: f64,
    /// Seconds of an entry of `timeline`.
    pub interval: f64,
    /// Bytes of all clients' messages that ended in each interval from the start, the uncounted ones too.
    pub timeline: Vec<u64>,
    /// By client.
    pub by_client: Vec<ClientReport>,
}

/// One client's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its addresses, or the host's name if it is this process.
    pub name: String,
    /// MB/s.
    pub mb_per_second: f64,
    /// Time of a message without the server's part: network and queues.
    pub delay: TimesReport,
    /// Whole time of a message.
    pub block: TimesReport,
    /// Connections replaced because they were slow.
    pub replaced: u32,
    /// How its connections were placed on links, for each rail of each server where that was tried.
    pub placement: Vec<String>,
    /// Its bulk connections at the end.
    pub connections: Vec<Connection>,
}

/// Times in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimesReport {
    /// Messages.
    pub count: u64,
    /// Average.
    pub average_ms: f64,
    /// Median.
    pub median_ms: f64,
    /// Standard deviation.
    pub deviation_ms: f64,
    /// 99 % were not longer.
    pub p99_ms: f64,
    /// 99.9 % were not longer.
    pub p999_ms: f64,
    /// None was longer (to its bucket's middle).
    pub max_ms: f64,
    /// (begin of the bucket in ms, messages); below 1 ms in steps of 0.1, above of 1.
    pub histogram: Vec<(f64, u64)>,
}

impl From<&Times> for TimesReport {
    fn from(times: &Times) -> TimesReport {
        TimesReport {
            count: times.count(),
            average_ms: times.average_ms(),
            median_ms: times.quantile_ms(0.5),
            deviation_ms: times.deviation_ms(),
            p99_ms: times.quantile_ms(0.99),
            p999_ms: times.quantile_ms(0.999),
            max_ms: times.quantile_ms(1.0),
            histogram: times.histogram(),
        }
    }
}

impl Report {
    pub(super) fn new(
        spec: &Spec,
        clients: Vec<Side<ClientResult>>,
        servers: Vec<Side<ServerResult>>,
    ) -> Report {
        let seconds = clients.iter().map(|c| c.result.seconds).fold(0.0, f64::max);
        let bytes: u64 = clients.iter().map(|c| c.result.bytes).sum();
        let messages: u64 = clients.iter().map(|c| c.result.messages).sum();
        let rate = |n: u64| n as f64 / seconds.max(1e-9);
        let gb = (bytes as f64 / 1e9).max(1e-12);
        let percent = |cpu: f64, seconds: f64, info: &Info| {
            100.0 * cpu / seconds.max(1e-9) / f64::from(info.cpus.max(1))
        };
        let mean = |sum: f64, n: usize| sum / n.max(1) as f64;
        let client_cpu: f64 = clients.iter().map(|c| c.result.cpu_seconds).sum();
        let server_cpu: f64 = servers.iter().map(|s| s.result.cpu_seconds).sum();
        let by_process: BTreeMap<u64, f64> = (clients.iter().map(|c| (c.info.id, c.result.cpu_seconds)))
            .chain(servers.iter().map(|s| (s.info.id, s.result.cpu_seconds)))
            .collect();
        let percent_of_clients =
            clients.iter().map(|c| percent(c.result.cpu_seconds, c.result.seconds, &c.info)).sum();
        let percent_of_servers =
            servers.iter().map(|s| percent(s.result.cpu_seconds, s.result.seconds, &s.info)).sum();
        let mut timeline = Vec::new();
        for client in &clients {
            timeline.resize(timeline.len().max(client.result.timeline.len()), 0);
            timeline.iter_mut().zip(&client.result.timeline).for_each(|(sum, n)| *sum += n);
        }
        Report {
            kind: spec.kind,
            clients: clients.len(),
            servers: servers.len(),
            ttime: spec.ttime.as_secs_f64(),
            seconds,
            buffsize: spec.buffsize,
            threads: spec.threads,
            parallel: spec.parallel,
            connections: spec.connections,
            verify: spec.verify,
            bytes,
            messages,
            mb_per_second: rate(bytes) / 1e6,
            gbit_per_second: rate(bytes) * 8.0 / 1e9,
            messages_per_second: rate(messages),
            client_cpu_percent: mean(percent_of_clients, clients.len()),
            server_cpu_percent: mean(percent_of_servers, servers.len()),
            client_cpu_seconds_per_gb: client_cpu / gb,
            server_cpu_seconds_per_gb: server_cpu / gb,
            cpu_seconds_per_gb: by_process.values().sum::<f64>() / gb,
            errors: clients.iter().map(|c| c.result.errors).sum(),
            first_error: clients.iter().find_map(|c| c.result.first_error.clone()),
            started: clients.first().map_or(0.0, |c| c.result.started),
            interval: clients.first().map_or(0.0, |c| c.result.interval),
            timeline,
            by_client: clients
                .into_iter()
                .map(|c| ClientReport {
                    name: c.name,
                    mb_per_second: c.result.bytes as f64 / 1e6 / c.result.seconds.max(1e-9),
                    delay: (&c.result.delay).into(),
                    block: (&c.result.block).into(),
                    replaced: c.result.replaced,
                    placement: c.result.placement,
                    connections: c.result.connections,
                })
                .collect(),
        }
    }

    /// An error if messages failed.
    pub fn check(&self) -> Result<(), NetperfError> {
        match &self.first_error {
            Some(first) if self.errors > 0 => {
                Err(NetperfError::Messages { errors: self.errors, first: first.clone() })
            }
            _ => Ok(()),
        }
    }

    /// nsdperf's line; `stream` and `rr` name their connections as well.
    pub fn result_line(&self) -> String {
        let mut line = format!(
            "{}-{} {} {} MB/sec ({} msg/sec), cli {:.0}% srv {:.0}%, time {}, buff {}",
            self.clients,
            self.servers,
            self.kind,
            significant(self.mb_per_second),
            significant(self.messages_per_second),
            self.client_cpu_percent,
            self.server_cpu_percent,
            self.ttime,
            self.buffsize,
        );
        let mut add = |text: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = line.write_fmt(text);
        };
        match self.kind {
            Kind::Stream => add(format_args!(", conn {}, th {}", self.connections, self.threads)),
            Kind::Rr => add(format_args!(", conn {}", self.connections)),
            _ if self.threads != 4 => add(format_args!(", th {}", self.threads)),
            _ => {}
        }
        match self.parallel {
            Parallel::Fixed(1) => {}
            Parallel::Fixed(n) => add(format_args!(", parallel {n}")),
            Parallel::Auto => {
                let found = self.by_client.iter().map(|c| c.connections.len()).max().unwrap_or(0);
                add(format_args!(", parallel auto (found {})", found / self.servers.max(1)));
            }
        }
        if self.verify {
            add(format_args!(", verify"));
        }
        line
    }

    /// What nsdperf prints for each client: network delays, and with `hist` also the blocks' times.
    pub fn times_text(&self, hist: bool) -> String {
        let mut text = String::new();
        for client in &self.by_client {
            let kinds = [("network delay", &client.delay, hist), ("block transmit", &client.block, hist)];
            for (what, times, table) in kinds.into_iter().take(if hist { 2 } else { 1 }) {
                let _ = writeln!(
                    text,
                    "{} {what} times (average {} msec, median {} msec, std deviation {} msec)",
                    client.name,
                    significant(times.average_ms),
                    significant(times.median_ms),
                    significant(times.deviation_ms),
                );
                if table {
                    let _ = writeln!(text, "{:>10} {:>12}", "msec", "nevents");
                    for (begin, events) in &times.histogram {
                        let _ = writeln!(text, "{begin:>10} {events:>12}");
                    }
                }
            }
        }
        text
    }
}

/// Three significant digits, without an exponent.
fn significant(value: f64) -> String {
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(0.0);
    if !rounded.is_finite() || rounded == 0.0 {
        return "0".to_owned();
    }
    let digits = 2 - rounded.abs().log10().floor() as i32;
    format!("{rounded:.*}", digits.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side<T>(id: u64, result: T) -> Side<T> {
        Side { name: format!("host{id}"), info: Info { id, host: format!("host{id}"), cpus: 2 }, result }
    }

    fn client(bytes: u64) -> ClientResult {
        let mut times = Times::default();
        times.record(std::time::Duration::from_millis(3));
        ClientResult {
            bytes,
            messages: bytes / 1_000_000,
            seconds: 8.0,
            cpu_seconds: 4.0,
            delay: times.clone(),
            block: times,
            interval: 0.1,
            timeline: vec![1, 2],
            ..ClientResult::default()
        }
    }

    #[test]
    fn figures_and_line_of_known_results() {
        let spec = Spec {
            buffsize: 1_000_000,
            parallel: Parallel::Fixed(2),
            threads: 8,
            verify: true,
            ..Spec::new(Kind::Write)
        };
        let clients = vec![side(1, client(8_000_000_000)), side(2, client(1_872_000_000))];
        let servers = vec![side(2, ServerResult { cpu_seconds: 2.0, seconds: 8.0 })];
        let report = Report::new(&spec, clients, servers);
        assert_eq!(report.mb_per_second, 1234.0);
        assert!((report.gbit_per_second - 9.872).abs() < 1e-9);
        assert_eq!(report.timeline, [2, 4]);
        // Process 2 was both: its time counts once.
        assert!((report.cpu_seconds_per_gb - 6.0 / 9.872).abs() < 1e-9);
        assert_eq!(
            report.result_line(),
            "2-1 write 1230 MB/sec (1230 msg/sec), cli 25% srv 12%, time 10, buff 1000000, th 8, parallel 2, verify"
        );
        let text = report.times_text(true);
        assert!(text.contains(
            "host1 network delay times (average 3.00 msec, median 3.50 msec, std deviation 0 msec)\n      msec      nevents\n         3            1\n"
        ), "{text}");
        assert!(text.contains("host2 block transmit times"));
        assert!(report.check().is_ok());
        let auto = Report { parallel: Parallel::Auto, ..report };
        assert!(auto.result_line().ends_with("parallel auto (found 0), verify"), "{}", auto.result_line());
    }

    #[test]
    fn three_digits() {
        for (value, text) in [
            (1234.0, "1230"),
            (99.96, "100"),
            (12.34, "12.3"),
            (1.0, "1.00"),
            (0.012345, "0.0123"),
            (0.0, "0"),
            (f64::NAN, "0"),
            (123456.0, "123000"),
        ] {
            assert_eq!(significant(value), text);
        }
    }
}
