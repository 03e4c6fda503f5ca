//! How long a client takes to set up all its connections with all its peers: by default 16 bulk connections and one for control
//! with each of 8, over loopback, both ends in this process. From the first request to the last connection, with the CPU time of
//! both ends; each time with new endpoints, for each `cipherList` in turn.
//!
//!   cargo run --release -p ropewalk-net --example set_up -- [PEERS [CONNECTIONS [TIMES]]]

#![allow(clippy::print_stdout)] // it is what it is for

use std::{
    error::Error,
    net::SocketAddr,
    time::{Duration, Instant},
};

use base::{CipherList, ClusterId, NodeId};
use net::{Call, Endpoint, EndpointConfig, Identity, Lane, Payload, Response, Secret, Service, handler_fn};
use rustix::time::{ClockId, clock_gettime};

const CLUSTER: ClusterId = ClusterId(7);
/// Longest time for all connections.
const PATIENCE: Duration = Duration::from_secs(60);

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Seconds from the first request until all connections stand, and of CPU time.
async fn once(config: &EndpointConfig, peers: u8, connections: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let mut servers = Vec::new();
    for node in 1..=peers {
        let listen = vec!["127.0.0.1:0".parse()?];
        let server = Endpoint::start(EndpointConfig { listen, node: NodeId(node.into()), ..config.clone() })?;
        server.serve(Service::Lab, handler_fn(|_| async { Response::ok(Vec::new()) }));
        servers.push(server);
    }
    let client = Endpoint::start(config.clone())?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut asked = tokio::task::JoinSet::new();
    for server in &servers {
        let addrs: Vec<SocketAddr> = server.local_addrs().to_vec();
        let peer = client.peer(&addrs);
        asked.spawn(async move {
            let call = Call::new(Service::Lab, 1, Vec::new(), Instant::now() + PATIENCE);
            peer.call(Call { lane: Lane::Bulk, payload: Payload::new(), ..call }).await
        });
    }
    while let Some(answer) = asked.join_next().await {
        answer??;
    }
    let wanted = usize::from(peers) * (connections + 1);
    while client.status().iter().map(|peer| peer.connections.len()).sum::<usize>() < wanted {
        if began.elapsed() > PATIENCE {
            return Err("they are not all made".into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok((began.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u8>());
    let mut next = |default| args.next().unwrap_or(Ok(default));
    let (peers, connections, times) = (next(8)?, next(16)?, next(5)?.max(1));
    println!("{peers} peers, {connections} bulk connections and one for control with each; of {times} times");
    println!(
        "{:>26} {:>9} {:>9} {:>9} {:>16}",
        "cipherList", "least s", "median s", "most s", "CPU s (median)"
    );
    for (name, cipher_list) in CipherList::NAMES {
        let identity = Some(Identity::from_secret(CLUSTER, &Secret::new([7; 32]))?);
        let config = EndpointConfig {
            cluster: CLUSTER,
            identity,
            cipher_list,
            conns_max: connections,
            ..EndpointConfig::default()
        };
        let mut taken = Vec::new();
        for _ in 0..times {
            taken.push(once(&config, peers, connections.into()).await?);
        }
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let median = taken[taken.len() / 2];
        let (least, most) = (taken[0].0, taken[taken.len() - 1].0);
        println!("{name:>26} {least:>9.3} {:>9.3} {most:>9.3} {:>16.3}", median.0, median.1);
    }
    Ok(())
}
