//! GET /api/hardware: hosts with their ports, cards and disks, links and rails between processes, pools with their groups, pdisks,
//! and what is wrong with what to do. Nothing is changed from here: what to do is a line for the command line.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Context, Result};
use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::{api, asking::Asking};
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
    let (health, Seen { report, processes, nets, states }) = health::look(dir, &link).await?;
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
    let hosts = hosts(states.iter().flatten());
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
    }))
}

/// Several processes of one machine tell the same of its ports, and each of its own disks.
fn hosts<'a>(states: impl Iterator<Item = &'a Value>) -> Vec<Value> {
    let mut hosts: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for host in states.map(|answer| &answer["host"]).filter(|host| !host.is_null()) {
        let of = hosts.entry(text(&host["name"])).or_insert_with(|| (host["ports"].clone(), Vec::new()));
        of.1.extend(list(&host["disks"]).iter().cloned());
    }
    let host = |(name, (ports, disks))| json!({ "name": name, "ports": ports, "disks": disks });
    hosts.into_iter().map(host).collect()
}

/// The rails by which a process reaches a peer.
fn rails(process: &str, peer: &Value) -> Vec<Value> {
    let rail = |rail: &Value| {
        let of =
            |c: &&Value| text(&c["remote"]).starts_with(&text(&rail["addr"])) || c["rail"] == rail["addr"];
        let connections: Vec<&Value> = list(&peer["connections"]).iter().filter(of).collect();
        let rate: f64 = connections.iter().filter_map(|c| c["bytes_per_second"].as_f64()).sum();
        let slowest = connections.iter().filter_map(|c| c["tcp"]["rtt_us"].as_u64()).max();
        json!({
            "process": process,
            "peer": peer["name"],
            "rail": rail["addr"],
            "up": rail["up"],
            "last_error": rail["last_error"],
            "connections": connections.len(),
            "active": connections.iter().filter(|c| c["state"] == "active").count(),
            "bytes_per_second": rate,
            "rtt_us": slowest,
        })
    };
    list(&peer["rails"]).iter().map(rail).collect()
}
