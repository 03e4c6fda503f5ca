//! GET /api/hardware: hosts with their ports, cards and disks, links and rails between processes, pools with their groups, pdisks,
//! and what is wrong with what to do. Nothing is changed from here: what to do is a line for the command line.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, Result};
use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::{api, asking::Asking, groups};
use crate::{
    cluster_dir::ClusterDir,
    commands::{
        ask::{Answer, list, text},
        health::{self, Seen},
        listing::pdisk_rows,
        net_status::name_peers,
    },
    link::Link,
};

/// Asks for all of it.
pub async fn hardware(State(asking): State<Arc<Asking>>) -> Response {
    let of = async {
        let dir = asking.dir().context("a recording has no hardware")?;
        asking.with_link(async |link| look(dir, link).await).await
    };
    api::answer(of.await)
}

/// Every process is asked once: what health says comes from the same answers.
async fn look(dir: &ClusterDir, link: Link) -> Result<Value> {
    let (health, Seen { report, processes, nets, states, .. }) = health::look(dir, &link).await?;
    let process = |(process, state): (&crate::commands::ask::Process, &Option<Value>)| {
        let of = |name: &str| state.as_ref().map(|answer| answer[name].clone());
        json!({
            "process": process.name,
            "address": process.address(),
            "answers": state.is_some(),
            "pid": of("pid"),
            "role": process.role,
            "host": state.as_ref().map(|answer| answer["host"]["name"].clone()),
        })
    };
    let listed: Vec<Value> = processes.iter().zip(&states).map(process).collect();
    let told = processes.iter().zip(&states);
    let hosts =
        hosts(told.filter_map(|(process, state)| Some((process.name.as_str(), &state.as_ref()?["host"]))));
    let of_host = |host: &Value| groups::of_ports(&text(&host["name"]), &host["ports"]);
    let groups: Vec<Value> =
        groups::of_pools(&report).into_iter().chain(hosts.iter().flat_map(of_host)).collect();
    let names = report.map.nodes.iter().map(|node| (node.id.to_string(), node.name.clone())).collect();
    let answer = |(process, answer): (crate::commands::ask::Process, Option<Value>)| {
        let address = process.address();
        Answer { process: process.name, address, addresses: process.addresses, answer }
    };
    let mut answers: Vec<Answer> = processes.into_iter().zip(nets).map(answer).collect();
    name_peers(&mut answers, &names);
    let rails = answers.iter().flat_map(|answer| {
        let peers = answer.answer.iter().flat_map(list).filter(|peer| !list(&peer["addrs"]).is_empty());
        peers.flat_map(|peer| rails(&answer.process, peer)).collect::<Vec<Value>>()
    });
    Ok(json!({
        "healthy": health.healthy,
        "remarks": health.remarks,
        "processes": listed,
        "hosts": hosts,
        "rails": rails.collect::<Vec<_>>(),
        "pdisks": pdisk_rows(&report),
        "pools": health::pool_rows(&report),
        "groups": groups,
    }))
}

/// Processes that are told to be on the machine of a name, where several have it.
const NAMED: usize = 3;

/// A machine as its processes tell of it.
struct Host<'a> {
    processes: Vec<&'a str>,
    ports: &'a Value,
    disks: Vec<Value>,
}

/// Several processes of one machine tell the same of its ports, and each of its own disks. Machines with one name are told apart by
/// the addresses of their ports, and called by their processes as well.
fn hosts<'a>(told: impl Iterator<Item = (&'a str, &'a Value)>) -> Vec<Value> {
    let mut hosts: BTreeMap<(String, Vec<String>), Host<'_>> = BTreeMap::new();
    let mut of_name: BTreeMap<String, usize> = BTreeMap::new();
    for (process, host) in told.filter(|(_, host)| !host.is_null()) {
        let (name, ports) = (text(&host["name"]), &host["ports"]);
        let addresses = list(ports).iter().map(|port| text(&port["address"])).collect();
        let of = hosts.entry((name.clone(), addresses)).or_insert_with(|| {
            *of_name.entry(name).or_default() += 1;
            Host { processes: Vec::new(), ports, disks: Vec::new() }
        });
        of.processes.push(process);
        of.disks.extend(list(&host["disks"]).iter().cloned());
    }
    let host = |((name, _), host): ((String, Vec<String>), Host<'_>)| {
        let name = match of_name.get(&name) {
            Some(1) => name,
            _ => format!("{name} ({})", host.processes[..host.processes.len().min(NAMED)].join(", ")),
        };
        json!({ "name": name, "ports": host.ports, "disks": host.disks })
    };
    hosts.into_iter().map(host).collect()
}

/// The rails by which a process reaches a peer.
fn rails(process: &str, peer: &Value) -> Vec<Value> {
    let rail = |(place, rail): (usize, &Value)| {
        let of = |c: &&Value| c["rail"].as_u64() == Some(place as u64);
        let connections: Vec<&Value> = list(&peer["connections"]).iter().filter(of).collect();
        let rate: f64 = connections.iter().filter_map(|c| c["bytes_per_second"].as_f64()).sum();
        let slowest = connections.iter().filter_map(|c| c["tcp"]["rtt_us"].as_u64()).max();
        json!({
            "process": process,
            "peer": peer["name"],
            "rail": rail["addr"],
            "up": rail["up"],
            "last_error": rail["last_error"],
            "connections": groups::connections(&connections),
            "bytes_per_second": rate,
            "rtt_us": slowest,
        })
    };
    list(&peer["rails"]).iter().enumerate().map(rail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_of_one_name_stay_two_and_processes_of_one_tell_of_one() {
        let host = |name: &str, address: &str, pdisk: &str| json!({ "name": name, "ports": [{ "name": "eth0", "address": address }], "disks": [{ "pdisk": pdisk }] });
        let told = [
            ("manager", host("a", "02:1", "-")),
            ("n1", host("a", "02:1", "d1")),
            ("n2", host("a", "02:2", "d2")),
            ("n3", host("b", "02:3", "d3")),
            ("old", Value::Null),
            ("odd", json!(7)),
        ];
        let found = hosts(told.iter().map(|(process, host)| (*process, host)));
        let said = |host: &Value| (text(&host["name"]), list(&host["disks"]).len());
        let said: Vec<_> = found.iter().map(said).collect();
        let wanted = [("a (manager, n1)", 2), ("a (n2)", 1), ("b", 1), ("null", 0)];
        assert_eq!(said, wanted.map(|(name, disks)| (name.to_owned(), disks)));
    }
}
