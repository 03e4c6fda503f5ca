//! Processes that figures are measured with: netperf servers and clients, iperf3. None outlives its owner.

use std::{
    io::{BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use super::figure::FigureError;
use crate::{netperf::Report, testbed::Host};

/// A server listens within this.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// A client may take this much longer than its test.
const BEYOND_TEST: Duration = Duration::from_secs(100);

/// A child that is killed when this is dropped.
pub(super) struct Running {
    child: Child,
    what: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failed(what: &str, reason: impl ToString) -> FigureError {
    FigureError::Process { what: what.to_owned(), reason: reason.to_string() }
}

/// A command on a host, or here.
fn command(host: Option<&Host>, program: &Path) -> Command {
    host.map_or_else(|| Command::new(program), |h| h.command(program))
}

fn spawn(mut command: Command, what: &str) -> Result<Running, FigureError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| failed(what, e))?;
    Ok(Running { child, what: what.to_owned() })
}

/// A netperf server on a host (or here), and the addresses it listens on.
pub(super) fn server(
    program: &Path,
    host: Option<&Host>,
    addrs: &[IpAddr],
) -> Result<(Running, Vec<SocketAddr>), FigureError> {
    let listen: Vec<String> = addrs.iter().map(|&a| SocketAddr::from((a, 0)).to_string()).collect();
    let mut command = command(host, program);
    command.args(["netperf", "server", "--listen", &listen.join(",")]);
    let mut server = spawn(command, "netperf server")?;
    let stdout = server.child.stdout.take();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        if let Some(stdout) = stdout {
            // What is not read is no address.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let _ = tell.send(line);
    });
    let line = told
        .recv_timeout(LISTENS_WITHIN)
        .map_err(|_| failed("netperf server", "it does not begin to listen"))?;
    let addrs = line.rsplit(' ').next().unwrap_or_default().trim().split(',');
    match addrs.map(str::parse).collect::<Result<Vec<SocketAddr>, _>>() {
        Ok(addrs) => Ok((server, addrs)),
        Err(_) => Err(failed("netperf server", server.end_text())),
    }
}

/// A client on a host (or here) that runs one test and prints its report.
pub(super) fn client(
    program: &Path,
    host: Option<&Host>,
    servers: &[SocketAddr],
    args: &[String],
) -> Result<Running, FigureError> {
    let addrs: Vec<String> = servers.iter().map(|a| a.to_string()).collect();
    let mut command = command(host, program);
    command.args(["netperf", "test", "--json", "--server", &addrs.join(",")]).args(args);
    spawn(command, &format!("netperf test {}", args.join(" ")))
}

impl Running {
    /// Whether it succeeded, and what it printed, once it has ended.
    fn end(&mut self, limit: Duration) -> Result<(bool, String), FigureError> {
        let stdout = self.child.stdout.take();
        let reader = std::thread::spawn(move || text(stdout));
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok((status.success(), reader.join().unwrap_or_default())),
                Ok(None) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => return Err(failed(&self.what, format!("no end within {limit:?}"))),
                Err(e) => return Err(failed(&self.what, e)),
            }
        }
    }

    /// What it printed; a failure is an error with what it said.
    fn output(mut self, limit: Duration) -> Result<String, FigureError> {
        match self.end(limit)? {
            (true, text) => Ok(text),
            (false, _) => Err(failed(&self.what.clone(), self.end_text())),
        }
    }

    /// A client's report. One with failed messages ends with a failure, and with its report.
    pub fn report(mut self, ttime: f64) -> Result<Report, FigureError> {
        let (_, text) = self.end(Duration::from_secs_f64(ttime.max(0.0)) + BEYOND_TEST)?;
        let reports: Vec<Report> = serde_json::from_str(&text).unwrap_or_default();
        match reports.into_iter().next() {
            Some(report) => Ok(report),
            None => Err(failed(&self.what.clone(), self.end_text())),
        }
    }

    /// What it said on its way out.
    fn end_text(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let said = text(self.child.stderr.take());
        if said.trim().is_empty() { "it ended without a word".to_owned() } else { said.trim().to_owned() }
    }
}

fn text(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = pipe {
        // What was read before an error is still worth having.
        let _ = pipe.read_to_string(&mut text);
    }
    text
}

/// What iperf3 measured.
pub(super) struct Iperf3 {
    pub gbit_per_second: f64,
    /// Of both ends.
    pub cpu_seconds_per_gb: f64,
}

/// iperf3 with `streams` connections from one host to an address of another, or over loopback. It is tried three times: its server
/// is not always ready when it should be.
pub(super) fn iperf3(
    hosts: Option<(&Host, &Host)>,
    addr: IpAddr,
    streams: u32,
    seconds: f64,
) -> Result<Iperf3, FigureError> {
    let mut result = iperf3_once(hosts, addr, streams, seconds);
    for _ in 0..2 {
        if result.is_err() {
            result = iperf3_once(hosts, addr, streams, seconds);
        }
    }
    result
}

fn iperf3_once(
    hosts: Option<(&Host, &Host)>,
    addr: IpAddr,
    streams: u32,
    seconds: f64,
) -> Result<Iperf3, FigureError> {
    const WHAT: &str = "iperf3 (package iperf3)";
    let bind = || std::net::TcpListener::bind((addr, 0)).and_then(|l| l.local_addr());
    let port = match hosts {
        Some((_, to)) => to.run(bind)?,
        None => bind(),
    };
    let port = port.map_err(|e| failed(WHAT, e))?.port().to_string();
    let program = Path::new("iperf3");
    let mut server = command(hosts.map(|h| h.1), program);
    server.args(["-s", "-1", "-p", &port]);
    let _server = spawn(server, WHAT)?;
    // A connect to see whether it listens would use up its one test.
    std::thread::sleep(Duration::from_millis(300));
    let whole = format!("{}", seconds.ceil().max(1.0));
    let mut client = command(hosts.map(|h| h.0), program);
    client.args(["-c", &addr.to_string(), "-p", &port, "-P", &streams.to_string(), "-t", &whole, "-J"]);
    let text = spawn(client, WHAT)?.output(Duration::from_secs_f64(seconds) + Duration::from_secs(20))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| failed(WHAT, e))?;
    let number = |path: &str| value.pointer(path).and_then(serde_json::Value::as_f64);
    let bits =
        number("/end/sum_received/bits_per_second").ok_or_else(|| failed(WHAT, "no rate in its output"))?;
    let cpu = number("/end/cpu_utilization_percent/host_total").unwrap_or(f64::NAN)
        + number("/end/cpu_utilization_percent/remote_total").unwrap_or(f64::NAN);
    Ok(Iperf3 { gbit_per_second: bits / 1e9, cpu_seconds_per_gb: cpu / 100.0 / (bits / 8e9) })
}
