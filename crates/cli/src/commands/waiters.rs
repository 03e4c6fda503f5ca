//! What all processes of a cluster say of themselves; `ropewalk waiters`; `ropewalk net sizing`: how many connections a
//! cluster should have.

use std::time::Duration;

use anyhow::{Result, ensure};
use base::units::human_size;
use net::sizing::{self, Cluster};
use serde::Serialize;
use serde_json::Value;
use wire::admin::{AdminReply, AdminRequest};

use crate::{
    args::{Listing, Sizing},
    link::{self, Link},
    output,
};

/// One process and what it answered.
#[derive(Serialize)]
pub struct Answer {
    /// Its name.
    pub process: String,
    /// Where it was asked.
    pub address: String,
    /// Absent: it does not answer.
    pub answer: Option<Value>,
}

/// Asks every process of the cluster.
pub fn ask_all(listing: &Listing, request: &AdminRequest) -> Result<Vec<Answer>> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let mut targets = vec![("manager".to_owned(), dir.file.manager.to_string())];
        targets.extend(dir.file.nodes.iter().map(|n| (n.name.clone(), n.addr.to_string())));
        targets.extend(report.clients.iter().map(|c| (c.mount.clone(), c.admin_addr.clone())));
        let mut answers = Vec::new();
        for (process, address) in targets {
            let reply = match address.parse() {
                Ok(addr) => link.admin(addr, request, Duration::from_secs(2)).await.ok(),
                Err(_) => None,
            };
            let answer = reply.and_then(|r| match r {
                AdminReply::Json(text) => serde_json::from_str(&text).ok(),
                AdminReply::Done => None,
            });
            answers.push(Answer { process, address, answer });
        }
        Ok(answers)
    })
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(crate) fn size(value: &Value) -> String {
    human_size(value.as_u64().unwrap_or(0))
}

/// `ropewalk waiters`: oldest first. What a mount is asked by programs, what a process waits for, of others and in itself, what it
/// serves.
pub fn waiters(listing: &Listing) -> Result<()> {
    let answers = ask_all(listing, &AdminRequest::Waiters)?;
    if listing.json {
        return output::json(&answers);
    }
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for a in &answers {
        let Some(answer) = &a.answer else {
            output::line(format!("{} does not answer at {}", a.process, a.address));
            continue;
        };
        let dash = || "-".to_owned();
        let number = |value: &Value| value.as_u64().filter(|&n| n > 0);
        let inode = |w: &Value| number(&w["inode"]).map_or_else(dash, |ino| ino.to_string());
        rows.extend(list(&answer["asked"]).iter().map(|w| {
            let age = w["age_s"].as_f64().unwrap_or(0.0);
            let by = number(&w["pid"]).map_or("kernel".to_owned(), |pid| format!("pid {pid}"));
            let (process, operation) = (a.process.clone(), text(&w["operation"]));
            let is = ["asked".to_owned(), by, "mount".to_owned(), operation, inode(w), dash()];
            (age, [vec![process], is.into(), vec![format!("{age:.3} s"), dash()]].concat())
        }));
        rows.extend(list(&answer["inside"]).iter().map(|w| {
            let age = w["age_s"].as_f64().unwrap_or(0.0);
            let by = w["operation"].as_str().unwrap_or("background").to_owned();
            let is = ["waits".to_owned(), "itself".to_owned(), by, dash(), inode(w), text(&w["what"])];
            (age, [vec![a.process.clone()], is.into(), vec![format!("{age:.3} s"), dash()]].concat())
        }));
        for (what, kind) in [("waiters", "waits"), ("serving", "serves")] {
            rows.extend(list(&answer[what]).iter().map(|w| {
                let age = w["age_s"].as_f64().unwrap_or(0.0);
                let for_what = if kind == "waits" { text(&w["state"]) } else { dash() };
                let cells = vec![
                    a.process.clone(),
                    kind.to_owned(),
                    text(&w["peer"]),
                    text(&w["service"]),
                    text(&w["class"]),
                    inode(w),
                    for_what,
                    format!("{age:.3} s"),
                    format!("{:.1} s", w["left_s"].as_f64().unwrap_or(0.0)),
                ];
                (age, cells)
            }));
        }
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    output::table(
        &["PROCESS", "", "PEER", "SERVICE", "CLASS", "INODE", "FOR", "SINCE", "LEFT"],
        rows.into_iter().map(|r| r.1).collect(),
    );
    Ok(())
}

/// Cluster sizes that are shown.
const NODES: [u32; 13] = [2, 3, 5, 8, 12, 16, 24, 32, 64, 128, 250, 500, 1000];
/// Draws of a simulation, and its seed: the same figures every time.
const DRAWS: u32 = 2000;
const SEED: u64 = 1;

#[derive(Serialize)]
struct SizingRow {
    cluster: Cluster,
    proposal: sizing::Proposal,
    /// Probability that chance puts all connections of a pair on one link.
    all_on_one_link: f64,
    /// Part of a node's rate that gets through with one connection a peer, and with the number proposed.
    one: sizing::Simulated,
    proposed: sizing::Simulated,
}

/// `ropewalk net sizing`.
pub fn sizing(args: &Sizing) -> Result<()> {
    ensure!(
        args.node_gbit > 0.0 && args.connection_gbit > 0.0,
        "--node-gbit and --connection-gbit must be above 0"
    );
    let row = |nodes: u32| {
        let cluster = Cluster {
            nodes,
            links: args.links,
            node_rate: args.node_gbit * 1e9 / 8.0,
            connection_rate: args.connection_gbit * 1e9 / 8.0,
            active: args.active.unwrap_or(nodes - 1).clamp(1, nodes - 1),
            limit: args.limit,
        };
        let proposal = sizing::propose(&cluster);
        SizingRow {
            cluster,
            proposal,
            all_on_one_link: sizing::all_on_one_link(proposal.connections, args.links),
            one: sizing::simulate(&cluster, 1, DRAWS, SEED),
            proposed: sizing::simulate(&cluster, proposal.connections, DRAWS, SEED),
        }
    };
    let nodes: Vec<u32> = args.nodes.map_or(NODES.to_vec(), |n| vec![n]);
    let rows: Vec<SizingRow> = nodes.into_iter().map(row).collect();
    if args.json {
        return output::json(&rows);
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let cells = |r: &SizingRow| {
        vec![
            r.cluster.nodes.to_string(),
            r.cluster.active.to_string(),
            r.proposal.k_balance.to_string(),
            r.proposal.k_bandwidth.to_string(),
            r.proposal.connections.to_string(),
            format!("{:.1} %", r.all_on_one_link * 100.0),
            percent(r.one.by_chance),
            percent(r.proposed.by_chance),
            percent(r.proposed.placed),
        ]
    };
    output::table(
        &[
            "NODES",
            "ACTIVE PEERS",
            "k_balance",
            "k_bw",
            "PROPOSED",
            "ALL ON ONE LINK",
            "1 BY CHANCE",
            "PROPOSED BY CHANCE",
            "PLACED",
        ],
        rows.iter().map(cells).collect(),
    );
    output::line(format!(
        "\nmaxTcpConnsPerNodeConn for nodes with {} links, {} Gbit/s in all, {} Gbit/s on one connection; the last \
         three\ncolumns are the part of a node's rate that gets through, simulated ({DRAWS} draws).",
        args.links, args.node_gbit, args.connection_gbit
    ));
    Ok(())
}
