//! `ropewalk status`: the cluster in one look, its processes on all machines with what they say themselves.

use anyhow::Result;
use serde::Serialize;
use wire::{admin::AdminRequest, map::PdiskState, mgr::ClusterReport};

use super::{
    ask::{self, Census, Process},
    listing::{PdiskRow, add_catch_up, group_health, pdisk_rows},
    managers, page,
};
use crate::{
    args::Listing,
    cluster_dir::{ClusterDir, PAGE},
    link::{self, Link},
    output,
    process::pid_file,
};

#[derive(Serialize)]
struct StatusReport {
    cluster: String,
    id: String,
    /// None where the manager does not answer; as store and deletes_pending.
    epoch: Option<u64>,
    well: bool,
    remarks: Vec<String>,
    store: Option<String>,
    deletes_pending: Option<u64>,
    processes: Vec<ProcessRow>,
    pdisks: Vec<PdiskRow>,
}

#[derive(Serialize)]
struct ProcessRow {
    name: String,
    role: &'static str,
    address: String,
    pid: Option<u32>,
    /// What the process itself says: statistics of the one registry.
    status: Option<serde_json::Value>,
}

/// `ropewalk status`: exit status 0 if the cluster could be asked; `well` says how it is.
pub fn status(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let (status, all) = link::run(async {
        let link = Link::new(&dir)?;
        let census = Census::take(&dir, &link).await;
        let answers = census.ask(&link, &AdminRequest::Status).await;
        let managers = managers::remarks(&managers::look(&census, &answers));
        let Census { processes, report } = census;
        let processes = processes.into_iter().zip(answers).map(|(p, status)| process_row(&dir, p, status));
        let processes: Vec<ProcessRow> = processes.chain(page_row(&dir).await).collect();
        match report {
            Ok(report) => {
                let others = [managers, ask::fenced(&dir, &link, &report).await].concat();
                Ok((gather_status(&link, report, processes, others).await, Ok(())))
            }
            Err(error) => Ok((status_without_manager(&dir, processes, managers), Err(error))),
        }
    })?;
    if listing.json {
        output::json(&status)?;
        return all;
    }
    let epoch = status.epoch.map(|epoch| format!(", map epoch {epoch}")).unwrap_or_default();
    output::line(format!(
        "cluster {} ({}){epoch}: {}",
        status.cluster,
        status.id,
        if status.well { "well" } else { "needs attention" }
    ));
    status.remarks.iter().for_each(|r| output::line(format!("  {r}")));
    status.store.iter().for_each(|store| output::line(format!("  store: {store}")));
    output::line("");
    let cells = |p: &ProcessRow| {
        let answer = if p.status.is_some() { "answers" } else { "does not answer" };
        vec![
            p.name.clone(),
            p.role.to_owned(),
            p.pid.map_or("-".to_owned(), |p| p.to_string()),
            p.address.clone(),
            answer.to_owned(),
        ]
    };
    output::table(
        &["PROCESS", "ROLE", "PID", "ADDRESS", "STATE"],
        status.processes.iter().map(cells).collect(),
    );
    all
}

/// A process's id is that on its own machine: of one of this machine as its file says, of others as they say themselves.
fn process_row(dir: &ClusterDir, process: Process, status: Option<serde_json::Value>) -> ProcessRow {
    let here = |local: &String| pid_file::live_pid(&dir.pid_file(local));
    let said = || u32::try_from(status.as_ref()?["pid"].as_u64()?).ok();
    let pid = process.local.as_ref().and_then(here).or(process.pid).or_else(said);
    ProcessRow { address: process.address(), name: process.name, role: process.role, pid, status }
}

/// The page of this machine, if it is to be there. It has no statistics: of it is said where it is.
async fn page_row(dir: &ClusterDir) -> Option<ProcessRow> {
    let at = dir.file.analytics?;
    let pid = pid_file::live_pid(&dir.pid_file(PAGE));
    let answers = pid.is_some() && page::answers(at).await;
    let status = answers.then(|| serde_json::json!({ "pid": pid, "listens": at }));
    Some(ProcessRow { name: "analytics".to_owned(), role: "page", address: at.to_string(), pid, status })
}

/// For a sentence; `several`: there are several managers.
fn called(process: &ProcessRow, several: bool) -> String {
    match process.role {
        "manager" if several => format!("manager {}", process.name),
        "manager" => "the manager".to_owned(),
        "nsd" => format!("the server of node {}", process.name),
        "page" => "the page of analytics".to_owned(),
        _ => format!("mount {}", process.name),
    }
}

/// What the processes' own words give cause to say.
fn process_remarks(processes: &[ProcessRow]) -> Vec<String> {
    let mut remarks: Vec<String> = Vec::new();
    let several = processes.iter().filter(|p| p.role == "manager").count() > 1;
    for p in processes {
        let Some(status) = &p.status else {
            remarks.push(format!("{} does not answer at {}", called(p, several), p.address));
            continue;
        };
        if let Some(lost) = status["log_lost_lines"].as_u64().filter(|&lost| lost > 0) {
            remarks.push(format!("{} could not write {lost} lines of its log", called(p, several)));
        }
    }
    remarks
}

/// What this machine knows by itself.
fn status_without_manager(
    dir: &ClusterDir,
    processes: Vec<ProcessRow>,
    managers: Vec<String>,
) -> StatusReport {
    StatusReport {
        cluster: dir.file.name.clone(),
        id: dir.file.id.clone(),
        epoch: None,
        well: false,
        remarks: [process_remarks(&processes), managers].concat(),
        store: None,
        deletes_pending: None,
        processes,
        pdisks: Vec::new(),
    }
}

async fn gather_status(
    link: &Link,
    report: ClusterReport,
    processes: Vec<ProcessRow>,
    others: Vec<String>,
) -> StatusReport {
    let mut remarks = [process_remarks(&processes), others].concat();
    for p in report.map.pdisks.iter().filter(|p| p.state != PdiskState::Ok) {
        remarks.push(format!("pdisk {} is {}", p.name, report.map.pdisk_word(p.id)));
    }
    for pool in &report.map.pools {
        match group_health(&report.map, pool) {
            (_, 0, 0) => {}
            (groups, degraded, 0) => remarks
                .push(format!("pool {}: {degraded} of {groups} groups degraded, all readable", pool.name)),
            (groups, _, dead) => {
                remarks.push(format!("pool {}: {dead} of {groups} groups cannot be read", pool.name))
            }
        }
    }
    let mut pdisks = pdisk_rows(&report);
    add_catch_up(&report.map, link, &mut pdisks).await;
    StatusReport {
        cluster: report.map.name.clone(),
        id: report.map.cluster.to_string(),
        epoch: Some(report.map.epoch.0),
        well: remarks.is_empty(),
        remarks,
        store: Some(match report.map.managers.len() {
            1 if report.store.contains("etcd") => format!("{}; the table on one disk", report.store),
            _ => report.store.clone(),
        }),
        deletes_pending: Some(report.deletes_pending),
        processes,
        pdisks,
    }
}
