//! `ropewalk netperf`: our own transport without any file system. A server process for each pair of addresses,
//! a client process for each, each in its network namespace where the pair names one.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    context::{Context, EngineError},
    iperf3::{chosen, number, wait_listening},
    process::{Running, command},
};
use crate::{
    cell::{Cell, Figures, Latency},
    netperf::NOT_SHARED,
    plan::Step,
};

/// The first of the ports that servers listen on.
const PORT: u16 = 25_000;
/// The first of the ports that clients listen on where one process leads several.
const CLIENT_PORT: u16 = 25_500;
/// Connections that the transport itself makes of one pair at most.
const PARALLEL_MAX: u32 = 16;

/// Runs one cell.
pub fn run(cell: &Cell, context: &Context<'_>) -> Result<Figures, EngineError> {
    let Some(program) = context.ropewalk.map(|path| path.display().to_string()) else {
        return Err(EngineError::Target("the program ropewalk cannot be found".into()));
    };
    let pairs = chosen(cell, context)?;
    let connections = match cell.of {
        Step::Connections => cell.step,
        _ => number(&cell.params, "connections").unwrap_or(1) as u32,
    };
    let test = cell.params.get("test").map_or("write", String::as_str);
    let limit = context.seconds * 1.5 + 60.0;
    // A server may serve several clients; those with the same address share it.
    let mut servers: Vec<Running> = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        if let Some(same) = pairs[..i].iter().position(|before| before.server == pair.server) {
            ports.push(ports[same]);
            continue;
        }
        let port = PORT + i as u16;
        ports.push(port);
        let mut server = command(Some(&pair.server), &program);
        server.args(["netperf", "server", "--listen", &at(&pair.server.address, port)]);
        servers.push(Running::start(server, "ropewalk", limit, context)?);
        wait_listening(&pair.server, port, context)?;
    }
    // Several clients of one server are led by one process, so that they begin together.
    let led = pairs.len() > 1 && pairs.iter().all(|pair| pair.server == pairs[0].server);
    let mut followers = Vec::new();
    for (i, pair) in pairs.iter().enumerate().filter(|_| led) {
        let port = CLIENT_PORT + i as u16;
        let mut follower = command(Some(&pair.client), &program);
        follower.args(["netperf", "server", "--listen", &at(&pair.client.address, port)]);
        servers.push(Running::start(follower, "ropewalk", limit, context)?);
        wait_listening(&pair.client, port, context)?;
        followers.extend(["--client".to_owned(), at(&pair.client.address, port)]);
    }
    let mut clients = Vec::new();
    for (pair, port) in pairs.iter().zip(&ports).take(if led { 1 } else { pairs.len() }) {
        let mut client = command(Some(&pair.client), &program);
        client.arg("netperf");
        let size = cell.params.get("size").cloned();
        if matches!(test, "stream" | "rr") {
            client.args([test, "--connections", &connections.to_string()]);
            client.args(["--sizes", &size.unwrap_or("64k".into())]);
        } else {
            if connections > PARALLEL_MAX {
                return Err(EngineError::Target(format!(
                    "{connections} connections are above {PARALLEL_MAX}"
                )));
            }
            client.args(["test", test, "--parallel", &connections.to_string()]);
            client.args(["--buffsize", &size.unwrap_or("1m".into())]);
            let threads = number(&cell.params, "threads").unwrap_or(u64::from(connections) * 4);
            client.args(["--threads", &threads.to_string()]);
            let transport = cell.params.get("transport").map_or("tcp", String::as_str);
            client.args(["--transport", transport]);
        }
        if cell.params.get("placement").is_some_and(|placement| placement == "off") {
            client.arg("--no-placement");
        }
        client.args(["--server", &at(&pair.server.address, *port)]).args(&followers);
        client.args(["--ttime", &context.seconds.to_string(), "--json"]);
        clients.push((pair, Running::start(client, "ropewalk", limit, context)?));
    }
    let mut sum = Figures::default();
    for (pair, client) in clients {
        let one = figures(&client.output(context)?)?;
        // Reaching the servers and placing connections came first.
        if let Some(began) = Instant::now().checked_sub(Duration::from_secs_f64(context.seconds)) {
            context.load_begins(began);
        }
        // A figure of TCP under the name of the other would be worse than none.
        if let Some(note) = one.notes.iter().find(|note| note.ends_with(NOT_SHARED)) {
            return Err(EngineError::Target(note.clone()));
        }
        sum.bytes += one.bytes;
        sum.operations += one.operations;
        if pairs.len() > 1 && !led {
            sum.parts.insert(
                format!("{}={}", pair.client.address, pair.server.address),
                one.value(context.figure),
            );
        }
        sum.latency = sum.latency.or(one.latency);
        sum.notes.extend(one.notes);
    }
    Ok(sum)
}

fn at(address: &str, port: u16) -> String {
    match address.parse::<IpAddr>() {
        Ok(ip) => std::net::SocketAddr::from((ip, port)).to_string(),
        Err(_) => format!("{address}:{port}"),
    }
}

fn figures(text: &str) -> Result<Figures, EngineError> {
    let bad = |why: String| EngineError::Output { program: "ropewalk netperf".into(), why };
    let root: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
    let report = &root[0];
    let need = |key: &str| report[key].as_f64().ok_or_else(|| bad(format!("no {key:?}")));
    let (bytes, operations) = (need("mb_per_second")? * 1e6, need("messages_per_second")?);
    if operations <= 0.0 {
        return Err(bad("no message was answered".into()));
    }
    let block = &report["by_client"][0]["block"];
    let us = |key: &str| block[key].as_f64().unwrap_or_default() * 1e3;
    let latency = Latency {
        mean: us("average_ms"),
        p50: us("median_ms"),
        p99: us("p99_ms"),
        p999: us("p999_ms"),
        max: us("max_ms"),
    };
    // What the transport says of its placement, such as that connections cannot help here.
    let clients = report["by_client"].as_array().into_iter().flatten();
    let said = clients.flat_map(|client| client["placement"].as_array().into_iter().flatten());
    let notes = said.filter_map(|line| line.as_str().map(str::to_owned)).collect();
    Ok(Figures { bytes, operations, latency: Some(latency), notes, ..Figures::default() })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_what_netperf_prints() {
        let text = "[{\"mb_per_second\":100.0,\"messages_per_second\":50.0,\
                    \"by_client\":[{\"block\":{\"median_ms\":2.0,\"p99_ms\":3.0,\"p999_ms\":4.0,\"max_ms\":5.0}}]}]";
        let figures = super::figures(text).unwrap();
        let latency = figures.latency.unwrap();
        assert_eq!((latency.p99, latency.p999, latency.max), (3000.0, 4000.0, 5000.0));
        assert_eq!((figures.bytes, figures.operations, figures.latency.unwrap().p50), (1e8, 50.0, 2000.0));
        for text in ["", "[]", "{}", "[{\"mb_per_second\":0,\"messages_per_second\":0}]"] {
            assert!(super::figures(text).is_err(), "{text}");
        }
        assert_eq!(super::at("::1", 7), "[::1]:7");
    }
}
