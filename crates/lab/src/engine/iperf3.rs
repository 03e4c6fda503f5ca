//! iperf3: raw TCP streams. One server and one client process for each pair of addresses, both on this
//! machine, each in its network namespace where the pair names one.

use std::time::Duration;

use serde_json::Value;

use super::{
    context::{Context, EngineError},
    process::{Running, command},
};
use crate::{
    cell::{Cell, Figures},
    plan::{Params, Step},
    targets::{Pair, Side},
};

/// The first of the ports that servers listen on.
const PORT: u16 = 24_000;
/// How long a server may take to listen.
const LISTEN_MAX: Duration = Duration::from_secs(5);
/// IPv4 and TCP headers, in bytes: what a segment is smaller than the MTU.
const HEADERS: u64 = 40;

/// Runs one cell. Bytes are what arrived.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let pairs = chosen(cell, context)?;
    let connections = match cell.of {
        Step::Connections => cell.step,
        _ => number(&cell.params, "connections").unwrap_or(1) as u32,
    };
    let limit = context.seconds.ceil().max(1.0) * 1.5 + 30.0;
    let mut servers = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        let mut server = command(Some(&pair.server), "iperf3");
        server.args(["--server", "--one-off", "--bind", &pair.server.address, "--port"]);
        server.arg((PORT + i as u16).to_string());
        servers.push(Running::start(server, "iperf3", limit, context)?);
    }
    for (i, pair) in pairs.iter().enumerate() {
        wait_listening(&pair.server, PORT + i as u16, context)?;
    }
    let mut clients = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        let mut client = command(Some(&pair.client), "iperf3");
        client.args(["--client", &pair.server.address, "--port", &(PORT + i as u16).to_string(), "--json"]);
        client.args(["--bind", &pair.client.address, "--parallel", &connections.to_string()]);
        client.args(["--time", &context.seconds.ceil().max(1.0).to_string()]);
        if let Some(size) = cell.params.get("size").and_then(|s| s.parse::<base::ByteSize>().ok()) {
            client.args(["--length", &size.0.to_string()]);
        }
        if let Some(mtu) = number(&cell.params, "mtu") {
            client.args(["--set-mss", &(mtu - HEADERS).to_string()]);
        }
        if cell.params.get("direction").is_some_and(|way| way == "read") {
            client.arg("--reverse");
        }
        clients.push((pair, Running::start(client, "iperf3", limit, context)?));
    }
    let mut sum = Figures::default();
    for (pair, client) in clients {
        let bytes = received(&client.output(context)?)?;
        sum.bytes += bytes;
        if pairs.len() > 1 {
            sum.parts.insert(format!("{}={}", pair.client.address, pair.server.address), bytes);
        }
    }
    Ok(sum)
}

pub(super) fn number(params: &Params, key: &str) -> Option<u64> {
    params.get(key)?.parse().ok()
}

pub(super) fn chosen<'a>(cell: &Cell, context: &'a Context<'_>) -> Result<&'a [Pair], EngineError> {
    let (first, count) = match cell.of {
        Step::Pairs => (cell.first as usize, cell.step as usize),
        _ => (0, number(&cell.params, "clients").unwrap_or(1) as usize),
    };
    let pairs = &context.targets.pairs;
    pairs.get(first..first + count).ok_or_else(|| {
        let wanted = first + count;
        EngineError::Target(format!("{wanted} pairs of addresses are needed and {} are named", pairs.len()))
    })
}

/// Waits until the server's namespace has a listener on the port; connecting would use up a one-off server.
pub(super) fn wait_listening(side: &Side, port: u16, context: &Context<'_>) -> Result<(), EngineError> {
    let wanted = format!(":{port:04X}");
    let end = std::time::Instant::now() + LISTEN_MAX;
    loop {
        let mut cat = command(Some(side), "cat");
        let output = cat.args(["/proc/net/tcp", "/proc/net/tcp6"]).output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        // Columns: number, local address, remote address, state; 0A is LISTEN.
        let listens =
            text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).any(|columns| {
                columns.get(1).is_some_and(|local| local.ends_with(&wanted)) && columns.get(3) == Some(&"0A")
            });
        if listens {
            return Ok(());
        }
        if context.stopped() {
            return Err(EngineError::Stopped);
        }
        if std::time::Instant::now() > end {
            return Err(EngineError::Failed {
                program: "the server".into(),
                why: format!("it does not listen on {} port {port}", side.address),
            });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn received(text: &str) -> Result<f64, EngineError> {
    let bad = |why: String| EngineError::Output { program: "iperf3".into(), why };
    let root: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    if let Some(error) = root["error"].as_str() {
        return Err(EngineError::Failed { program: "iperf3".into(), why: error.to_owned() });
    }
    let bits = root["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.filter(|bits| *bits > 0.0).map(|bits| bits / 8.0).ok_or_else(|| bad("nothing was received".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_iperf3_json() {
        assert_eq!(received("{\"end\":{\"sum_received\":{\"bits_per_second\":800}}}").unwrap(), 100.0);
        let refused = "{\"error\":\"unable to connect to server\"}";
        assert!(received(refused).unwrap_err().to_string().contains("unable to connect"));
        for text in ["", "{}", "{\"end\":{\"sum_received\":{\"bits_per_second\":0}}}"] {
            assert!(received(text).is_err(), "{text}");
        }
    }

    #[test]
    fn changed_output_is_refused_or_means_something() {
        let texts = ["{\"end\":{\"sum_received\":{\"bits_per_second\":800}}}", "{\"error\":\"refused\"}"];
        crate::mutate::mutated(&texts.map(|text| text.as_bytes().to_vec()), 20_000, |bytes| {
            if let Ok(rate) = received(&String::from_utf8_lossy(bytes)) {
                assert!(rate > 0.0);
            }
        });
    }
}
