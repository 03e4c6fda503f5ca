//! GET /api/hardware: hosts and their ports, rails between processes, pdisks, and what is wrong with what to do. Nothing is
//! changed from here: what to do is a line for the command line.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use axum::{extract::State, response::Response};
use serde_json::{Value, json};
use wire::admin::AdminRequest;

use super::{api, asking::Asking};
use crate::{
    cluster_dir::ClusterDir,
    commands::{
        ask::{Asked, ask_by, list, text},
        health,
        listing::pdisk_rows,
        net_status::name_peers,
    },
    link::Link,
};

/// Asks for all of it.
pub async fn hardware(State(asking): State<Arc<Asking>>) -> Response {
    api::answer(asking.with_link(async |link| look(&asking.dir, link).await).await)
}

async fn look(dir: &ClusterDir, link: Link) -> Result<Value> {
    let health = health::look(dir, &link).await?;
    let report = link.cluster().await?;
    let Asked { answers: states, .. } = ask_by(dir, &link, &AdminRequest::Status).await;
    let Asked { mut answers, names, .. } = ask_by(dir, &link, &AdminRequest::Net).await;
    name_peers(&mut answers, &names);
    let process = |state: &crate::commands::ask::Answer| {
        let of = |name: &str| state.answer.as_ref().map(|answer| answer[name].clone());
        json!({ "process": state.process, "address": state.address, "answers": state.answer.is_some(), "pid": of("pid"), "role": of("role") })
    };
    // Several processes of one machine tell the same.
    let hosts: BTreeMap<String, &Value> = states
        .iter()
        .filter_map(|state| state.answer.as_ref())
        .map(|answer| (text(&answer["host"]["name"]), &answer["host"]))
        .collect();
    let rails = answers.iter().flat_map(|answer| {
        let peers = answer.answer.iter().flat_map(list).filter(|peer| !list(&peer["addrs"]).is_empty());
        peers.flat_map(|peer| rails(&answer.process, peer)).collect::<Vec<Value>>()
    });
    Ok(json!({
        "healthy": health.healthy,
        "remarks": health.remarks,
        "processes": states.iter().map(process).collect::<Vec<_>>(),
        "hosts": hosts.values().collect::<Vec<_>>(),
        "rails": rails.collect::<Vec<_>>(),
        "pdisks": pdisk_rows(&report),
    }))
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
