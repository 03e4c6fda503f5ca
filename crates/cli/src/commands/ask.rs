//! Asking every process of a cluster about itself, and reading what it answers.
//!
//! Who belongs to the cluster the manager knows, on whatever machine. While it does not answer, the processes that this
//! machine's directory names are asked, and the command says so.

use std::{collections::HashMap, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use base::{NodeId, units::human_size};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use wire::{
    admin::{AdminReply, AdminRequest},
    map::{ManagerEntry, NodeEntry},
    mgr::{ClientReport, ClusterReport},
};

use crate::{
    args::Listing,
    cluster_dir::ClusterDir,
    link::{self, Link},
    process::{ident, mounts},
};

/// How long a process may take to tell of itself.
pub const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// A process of the cluster.
pub struct Process {
    /// What the cluster calls it: `manager`, a node's name, a mount point.
    pub name: String,
    /// `manager`, `nsd` or `client`.
    pub role: &'static str,
    /// Where it can be asked; several are rails of one.
    pub addresses: Vec<String>,
    /// What its files in this machine's directory are named by, if it belongs here.
    pub local: Option<String>,
    /// Of a mount, its process id.
    pub pid: Option<u32>,
}

impl Process {
    /// The first of its addresses.
    pub fn address(&self) -> String {
        self.addresses.first().cloned().unwrap_or_default()
    }

    /// Whether it is that node's server.
    pub fn is_node(&self, node: &NodeEntry) -> bool {
        self.role == "nsd" && self.name == node.name
    }
}

/// Those who can be asked.
pub struct Census {
    /// Managers first, then nodes, then mounts.
    pub processes: Vec<Process>,
    /// What the manager says of the cluster. Without it the processes are those of this machine, and no mounts.
    pub report: Result<ClusterReport>,
}

impl Census {
    /// Asks the manager who there is.
    pub async fn take(dir: &ClusterDir, link: &Link) -> Census {
        let report = link.cluster().await.context("only what belongs to this machine was asked");
        let managers = match &report {
            Ok(report) if !report.map.managers.is_empty() => report.map.managers.clone(),
            _ => dir.managers.known(),
        };
        let own = dir.file.own_managers();
        let manager = |entry: ManagerEntry| Process {
            local: own.iter().find(|own| own.entry.name == entry.name).map(|own| own.local.clone()),
            name: entry.name,
            role: "manager",
            addresses: entry.addrs,
            pid: None,
        };
        let node = |id: NodeId, name: &str, addresses: Vec<String>| Process {
            name: name.to_owned(),
            role: "nsd",
            addresses,
            local: dir.file.node(id).map(|here| here.name.clone()),
            pid: None,
        };
        let mut processes: Vec<Process> = managers.into_iter().map(manager).collect();
        match &report {
            Ok(report) => {
                processes.extend(report.map.nodes.iter().map(|n| node(n.id, &n.name, n.addrs.clone())));
                processes.extend(report.clients.iter().map(|c| Process {
                    name: c.mount.clone(),
                    role: "client",
                    addresses: vec![c.admin_addr.clone()],
                    local: None,
                    pid: Some(c.process.pid),
                }));
            }
            Err(_) => {
                processes.extend(dir.file.nodes.iter().map(|n| node(n.id, &n.name, n.addr.texts())));
            }
        }
        Census { processes, report }
    }

    /// What each answers, in their order; none where one does not. All are asked at once.
    pub async fn ask(&self, link: &Link, request: &AdminRequest) -> Vec<Option<Value>> {
        self.ask_within(link, request, ASK_PATIENCE).await
    }

    /// As [`Census::ask`], for what takes longer to answer.
    pub async fn ask_within(
        &self,
        link: &Link,
        request: &AdminRequest,
        patience: Duration,
    ) -> Vec<Option<Value>> {
        let mut asked = JoinSet::new();
        for (at, process) in self.processes.iter().enumerate() {
            let (link, request, addrs) = (link.clone(), request.clone(), parsed(&process.addresses));
            asked.spawn(async move { (at, json(&link, &addrs, &request, patience).await) });
        }
        let mut answers = vec![None; self.processes.len()];
        while let Some(Ok((at, answer))) = asked.join_next().await {
            answers[at] = answer;
        }
        answers
    }
}

/// What to say of mounts of this machine that live without a session.
pub async fn fenced(dir: &ClusterDir, link: &Link, report: &ClusterReport) -> Vec<String> {
    let without = |clients: &[ClientReport]| -> Vec<(PathBuf, u32)> {
        mounts::served(dir)
            .into_iter()
            .filter(|(_, pid)| !clients.iter().any(|c| is_process(c, *pid)))
            .collect()
    };
    let suspects = without(&report.clients);
    if suspects.is_empty() {
        return Vec::new();
    }
    // One that has begun or ended meanwhile is none.
    let Ok(now) = link.cluster().await else { return Vec::new() };
    let remark = |(path, pid): (PathBuf, u32)| {
        let path = path.display();
        format!(
            "mount {path} (process {pid}) has lost its session (`ropewalk events` says why): whatever is asked there is an error; \
             `ropewalk umount --force {path}`, and mount it again"
        )
    };
    without(&now.clients).into_iter().filter(|mount| suspects.contains(mount)).map(remark).collect()
}

/// Whether a session is that of a process of this machine: numbers of processes mean something in their scope only.
fn is_process(client: &ClientReport, pid: u32) -> bool {
    let ident = &client.process;
    ident.pid == pid
        && ident.scope == ident::own_scope()
        && ident::start_ticks(pid) == Some(ident.start_ticks)
}

/// Addresses that can be connected to.
pub fn parsed(addresses: &[String]) -> Vec<SocketAddr> {
    addresses.iter().filter_map(|addr| addr.parse().ok()).collect()
}

/// What one process answers.
async fn json(
    link: &Link,
    addrs: &[SocketAddr],
    request: &AdminRequest,
    patience: Duration,
) -> Option<Value> {
    if addrs.is_empty() {
        return None;
    }
    match link.admin(addrs, request, patience).await {
        Ok(AdminReply::Json(text)) => serde_json::from_str(&text).ok(),
        Ok(AdminReply::Done) | Err(_) => None,
    }
}

/// What the server of a node says of itself.
pub async fn node_status(link: &Link, node: &NodeEntry) -> Option<Value> {
    json(link, &parsed(&node.addrs), &AdminRequest::Status, ASK_PATIENCE).await
}

/// One process and what it answered.
#[derive(Serialize)]
pub struct Answer {
    /// Its name.
    pub process: String,
    /// Where it was asked: the first of its addresses.
    pub address: String,
    /// All of them.
    #[serde(skip)]
    pub addresses: Vec<String>,
    /// Absent: it does not answer.
    pub answer: Option<Value>,
}

/// What processes answered, and whether all of the cluster were asked.
pub struct Asked {
    /// A process each.
    pub answers: Vec<Answer>,
    /// Names of nodes, by what processes call them (`node3`).
    pub names: HashMap<String, String>,
    /// Why not: what a command ends with when it has shown the answers.
    pub all: Result<()>,
}

/// Asks every process of the cluster.
pub fn ask_all(listing: &Listing, request: &AdminRequest) -> Result<Asked> {
    let dir = listing.dir.open()?;
    link::run(async { Ok(ask_by(&dir, &Link::new(&dir)?, request).await) })
}

/// The same over a link that is there.
pub async fn ask_by(dir: &ClusterDir, link: &Link, request: &AdminRequest) -> Asked {
    let census = Census::take(dir, link).await;
    let answers = census.ask(link, request).await;
    let answer = |(process, answer): (Process, Option<Value>)| {
        let address = process.address();
        Answer { process: process.name, address, addresses: process.addresses, answer }
    };
    let answers = census.processes.into_iter().zip(answers).map(answer).collect();
    let nodes = census.report.iter().flat_map(|report| &report.map.nodes);
    let names = nodes.map(|node| (node.id.to_string(), node.name.clone())).collect();
    Asked { answers, names, all: census.report.map(drop) }
}

/// The elements of an array; of anything else none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text as it is, anything else as JSON.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A number of bytes for people.
pub fn size(value: &Value) -> String {
    human_size(value.as_u64().unwrap_or(0))
}
