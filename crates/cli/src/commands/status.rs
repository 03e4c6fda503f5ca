//! `ropewalk status`: the cluster in one look, its processes on all machines with what they say themselves. Whether it is well says
//! `health`: there is one list of what is wrong.

use anyhow::Result;
use serde::Serialize;
use wire::mgr::ClusterReport;

use super::{
    ask::{Census, Process},
    health::{self, Health},
    listing::{PdiskRow, add_catch_up, pdisk_rows},
    managers, members, page,
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
        let said = health::hear(&census, &link).await;
        let rows = census.processes.iter().zip(&said.1).map(|(p, status)| process_row(&dir, p, status));
        let rows: Vec<ProcessRow> = rows.chain(page_row(&dir).await).collect();
        let remarks = [
            health::own_words(&census.processes, &said.1, |_| false),
            managers::remarks(&managers::look(&census, &said.1)),
        ];
        let found = match census.report {
            Ok(_) => match members::members(&link).await {
                Ok(members) => health::weigh(&dir, &link, census, said, members).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        Ok(match found {
            Ok((health, seen)) => (gather_status(&link, seen.report, rows, health).await, Ok(())),
            Err(error) => {
                let remarks = remarks.into_iter().flatten().chain(page::remark(&dir).await).collect();
                (status_without_manager(&dir, rows, remarks), Err(error))
            }
        })
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
fn process_row(dir: &ClusterDir, process: &Process, status: &Option<serde_json::Value>) -> ProcessRow {
    let here = |local: &String| pid_file::live_pid(&dir.pid_file(local));
    let said = || u32::try_from(status.as_ref()?["pid"].as_u64()?).ok();
    let pid = process.local.as_ref().and_then(here).or(process.pid).or_else(said);
    ProcessRow {
        name: process.name.clone(),
        role: process.role,
        address: process.address(),
        pid,
        status: status.clone(),
    }
}

/// The page of this machine, if it is to be there. It has no statistics: of it is said where it is.
async fn page_row(dir: &ClusterDir) -> Option<ProcessRow> {
    let at = dir.file.analytics?;
    let pid = pid_file::live_pid(&dir.pid_file(PAGE));
    let answers = pid.is_some() && page::answers(at).await;
    let status = answers.then(|| serde_json::json!({ "pid": pid, "listens": at }));
    Some(ProcessRow { name: "analytics".to_owned(), role: "page", address: at.to_string(), pid, status })
}

/// What this machine knows by itself.
fn status_without_manager(
    dir: &ClusterDir,
    processes: Vec<ProcessRow>,
    remarks: Vec<String>,
) -> StatusReport {
    StatusReport {
        cluster: dir.file.name.clone(),
        id: dir.file.id.clone(),
        epoch: None,
        well: false,
        remarks,
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
    health: Health,
) -> StatusReport {
    let mut pdisks = pdisk_rows(&report);
    add_catch_up(&report.map, link, &mut pdisks).await;
    StatusReport {
        cluster: report.map.name.clone(),
        id: report.map.cluster.to_string(),
        epoch: Some(report.map.epoch.0),
        well: health.healthy,
        remarks: health.remarks,
        store: Some(match report.map.managers.len() {
            1 if report.store.contains("etcd") => format!("{}; the table on one disk", report.store),
            _ => report.store.clone(),
        }),
        deletes_pending: Some(report.deletes_pending),
        processes,
        pdisks,
    }
}
