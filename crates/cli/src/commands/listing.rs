//! `status`, `fs`, `pdisk`, `pool`: what the manager knows, as tables or JSON.

use std::time::Duration;

use anyhow::{Result, bail};
use base::units::{human_size, seconds_of_ms};
use serde::{Deserialize, Serialize};
use wire::{
    admin::{AdminReply, AdminRequest},
    map::{ClusterMap, PdiskState, PoolEntry},
    mgr::{ClusterReport, MgrReply, MgrRequest},
};

use crate::{
    args::Listing,
    cluster_dir::ClusterDir,
    link::{self, Link},
    output,
    process::pid_file,
};

/// How long a process may take to tell of itself.
const ASK_PATIENCE: Duration = Duration::from_secs(2);

fn with_report<T>(
    listing: &Listing,
    show: impl AsyncFnOnce(ClusterDir, Link, ClusterReport) -> Result<T>,
) -> Result<T> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        show(dir, link, report).await
    })
}

#[derive(Serialize)]
struct FsRow {
    name: String,
    id: u32,
    pool: String,
    code: String,
    block_bytes: u32,
    inodes: u64,
}

/// `ropewalk fs list`.
pub fn fs_list(listing: &Listing) -> Result<()> {
    with_report(listing, async |_, _, report| {
        let rows: Vec<FsRow> =
            (report.map.filesystems.iter().zip(report.inodes.iter().copied().chain(std::iter::repeat(0))))
                .filter_map(|(fs, inodes)| {
                    let pool = report.map.pool(fs.pool)?;
                    Some(FsRow {
                        name: fs.name.clone(),
                        id: fs.id.0,
                        pool: pool.name.clone(),
                        code: pool.code.clone(),
                        block_bytes: pool.block_size,
                        inodes,
                    })
                })
                .collect();
        if listing.json {
            return output::json(&rows);
        }
        let cells = |r: FsRow| {
            vec![
                r.name,
                r.pool,
                r.code,
                base::ByteSize(r.block_bytes.into()).to_string(),
                r.inodes.to_string(),
            ]
        };
        output::table(
            &["FILE SYSTEM", "POOL", "CODE", "BLOCK", "INODES"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}

#[derive(Serialize)]
struct DfRow {
    name: String,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    inodes: u64,
}

/// `ropewalk fs df`.
pub fn fs_df(listing: &Listing) -> Result<()> {
    with_report(listing, async |_, link, report| {
        let mut rows = Vec::new();
        for fs in &report.map.filesystems {
            let MgrReply::StatFs { total, free, inodes } =
                link.manager(&MgrRequest::StatFs { fs: fs.id }).await?
            else {
                bail!("unexpected answer from the manager to StatFs");
            };
            rows.push(DfRow {
                name: fs.name.clone(),
                size_bytes: total,
                used_bytes: total.saturating_sub(free),
                free_bytes: free,
                inodes,
            });
        }
        if listing.json {
            return output::json(&rows);
        }
        let cells = |r: DfRow| {
            let percent = r.used_bytes as f64 * 100.0 / (r.size_bytes.max(1)) as f64;
            vec![
                r.name,
                human_size(r.size_bytes),
                human_size(r.used_bytes),
                human_size(r.free_bytes),
                format!("{percent:.1} %"),
                r.inodes.to_string(),
            ]
        };
        output::table(
            &["FILE SYSTEM", "SIZE", "USED", "FREE", "USE", "INODES"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}

#[derive(Serialize)]
struct PdiskRow {
    name: String,
    id: u32,
    node: String,
    state: &'static str,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    incarnation: u64,
    last_report_s: Option<f64>,
    /// Of one that is returning, if its server answers.
    catch_up: Option<CatchUp>,
}

/// How far a returning pdisk is, as its server says.
#[derive(Serialize, Deserialize)]
struct CatchUp {
    /// Groups it is in, and of these, compared.
    groups: u64,
    groups_done: u64,
    /// Groups to be compared again, since not all of their pdisks answered.
    groups_waiting: u64,
    /// Stripes to be looked at again, and why the last of all these waits.
    waiting: u64,
    last_reason: String,
}

impl CatchUp {
    fn words(&self, pdisk: &str) -> String {
        let waits = match (self.groups_waiting, self.waiting) {
            (0, 0) => String::new(),
            (groups, stripes) => {
                format!("; {groups} groups and {stripes} stripes wait: {}", self.last_reason)
            }
        };
        let compared = self.groups_done.saturating_sub(self.groups_waiting);
        format!("{pdisk} catches up: {compared} of {} groups compared{waits}", self.groups)
    }
}

/// Asks the servers of returning pdisks how far these are.
async fn add_catch_up(dir: &ClusterDir, link: &Link, rows: &mut [PdiskRow]) {
    for row in rows.iter_mut().filter(|row| row.state == PdiskState::Returning.name()) {
        let Some(node) = dir.file.nodes.iter().find(|n| n.name == row.node) else { continue };
        let Ok(AdminReply::Json(text)) = link.admin(node.addr, &AdminRequest::Status, ASK_PATIENCE).await
        else {
            continue;
        };
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let of_pdisk = status["nsd"]["pdisks"].as_array().into_iter().flatten().find(|p| p["id"] == row.id);
        row.catch_up = of_pdisk.and_then(|p| CatchUp::deserialize(&p["catch_up"]).ok());
    }
}

fn pdisk_rows(report: &ClusterReport) -> Vec<PdiskRow> {
    let row = |usage: &wire::mgr::PdiskUse| {
        let entry = report.map.pdisk(usage.id)?;
        let node =
            entry.nodes.first().and_then(|&n| report.map.node(n)).map(|n| n.name.clone()).unwrap_or_default();
        Some(PdiskRow {
            name: entry.name.clone(),
            id: usage.id.0,
            node,
            state: report.map.pdisk_word(usage.id),
            size_bytes: usage.capacity,
            used_bytes: usage.capacity.saturating_sub(usage.free),
            free_bytes: usage.free,
            incarnation: entry.incarnation.0,
            last_report_s: usage.age_ms.map(seconds_of_ms),
            catch_up: None,
        })
    };
    report.pdisks.iter().filter_map(row).collect()
}

/// `ropewalk pdisk list`.
pub fn pdisk_list(listing: &Listing) -> Result<()> {
    with_report(listing, async |dir, link, report| {
        let mut rows = pdisk_rows(&report);
        add_catch_up(&dir, &link, &mut rows).await;
        if listing.json {
            return output::json(&rows);
        }
        let progress: Vec<String> =
            rows.iter().filter_map(|r| Some(r.catch_up.as_ref()?.words(&r.name))).collect();
        let cells = |r: PdiskRow| {
            let age = r.last_report_s.map_or("never".to_owned(), |s| format!("{s:.1} s"));
            vec![
                r.name,
                r.node,
                r.state.to_owned(),
                human_size(r.size_bytes),
                human_size(r.used_bytes),
                human_size(r.free_bytes),
                format!("{:.1} %", r.used_bytes as f64 * 100.0 / r.size_bytes.max(1) as f64),
                age,
            ]
        };
        output::table(
            &["PDISK", "NODE", "STATE", "SIZE", "USED", "FREE", "USE", "LAST REPORT"],
            rows.into_iter().map(cells).collect(),
        );
        progress.iter().for_each(output::line);
        Ok(())
    })
}

#[derive(Serialize)]
struct PoolRow {
    name: String,
    id: u32,
    code: String,
    block_bytes: u32,
    pdisks: usize,
    groups: usize,
    degraded_groups: usize,
    node_losses_survived: u32,
}

/// How a pool's groups stand now: (groups, groups with a strip that is not ok, groups that cannot be read).
fn group_health(map: &ClusterMap, pool: &PoolEntry) -> (usize, usize, usize) {
    let data = pool.code.parse::<layout::Code>().map(|c| c.data()).unwrap_or(1);
    let mut health = (0, 0, 0);
    for members in pool.table.chunks_exact(usize::from(pool.width.max(1))) {
        let ok =
            members.iter().filter(|&&id| map.pdisk(id).is_some_and(|p| p.state == PdiskState::Ok)).count();
        health.0 += 1;
        health.1 += usize::from(ok < members.len());
        health.2 += usize::from(ok < usize::from(data));
    }
    health
}

/// How many whole nodes, any of them, a pool can lose and still be read.
fn node_losses_survived(map: &ClusterMap, pool: &PoolEntry) -> u32 {
    let parity = pool.code.parse::<layout::Code>().map(|c| c.parity()).unwrap_or(0);
    let node_of =
        |id: base::PdiskId| map.pdisk(id).and_then(|p| p.nodes.first().copied()).unwrap_or_default();
    let survives = |members: &[base::PdiskId]| {
        // The worst case takes the nodes with most strips first.
        let mut strips: std::collections::HashMap<base::NodeId, u32> = Default::default();
        members.iter().for_each(|&m| *strips.entry(node_of(m)).or_default() += 1);
        let mut counts: Vec<u32> = strips.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = u32::from(parity);
        counts.into_iter().take_while(|&c| left.checked_sub(c).map(|l| left = l).is_some()).count() as u32
    };
    pool.table.chunks_exact(usize::from(pool.width.max(1))).map(survives).min().unwrap_or(0)
}

/// `ropewalk pool list`.
pub fn pool_list(listing: &Listing) -> Result<()> {
    with_report(listing, async |_, _, report| {
        let row = |pool: &PoolEntry| {
            let (groups, degraded_groups, _) = group_health(&report.map, pool);
            let mut members: Vec<_> = pool.table.clone();
            members.sort_unstable();
            members.dedup();
            PoolRow {
                name: pool.name.clone(),
                id: pool.id.0,
                code: pool.code.clone(),
                block_bytes: pool.block_size,
                pdisks: members.len(),
                groups,
                degraded_groups,
                node_losses_survived: node_losses_survived(&report.map, pool),
            }
        };
        let rows: Vec<PoolRow> = report.map.pools.iter().map(row).collect();
        if listing.json {
            return output::json(&rows);
        }
        let cells = |r: PoolRow| {
            vec![
                r.name,
                r.code,
                base::ByteSize(r.block_bytes.into()).to_string(),
                r.pdisks.to_string(),
                r.groups.to_string(),
                r.degraded_groups.to_string(),
                r.node_losses_survived.to_string(),
            ]
        };
        output::table(
            &["POOL", "CODE", "BLOCK", "PDISKS", "GROUPS", "DEGRADED", "SURVIVES NODES LOST"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}

#[derive(Serialize)]
struct StatusReport {
    cluster: String,
    id: String,
    epoch: u64,
    well: bool,
    remarks: Vec<String>,
    store: String,
    deletes_pending: u64,
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
    with_report(listing, async |dir, link, report| {
        let status = gather_status(&dir, &link, report).await;
        if listing.json {
            return output::json(&status);
        }
        output::line(format!(
            "cluster {} ({}), map epoch {}: {}",
            status.cluster,
            status.id,
            status.epoch,
            if status.well { "well" } else { "needs attention" }
        ));
        status.remarks.iter().for_each(|r| output::line(format!("  {r}")));
        output::line(format!("  store: {}\n", status.store));
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
        Ok(())
    })
}

async fn gather_status(dir: &ClusterDir, link: &Link, report: ClusterReport) -> StatusReport {
    let mut targets = vec![("manager".to_owned(), "manager", dir.file.manager.to_string())];
    targets.extend(dir.file.nodes.iter().map(|n| (n.name.clone(), "nsd", n.addr.to_string())));
    targets.extend(report.clients.iter().map(|c| (c.mount.clone(), "client", c.admin_addr.clone())));
    let mut processes = Vec::new();
    for (name, role, address) in targets {
        let answer = match address.parse() {
            Ok(addr) => link.admin(addr, &AdminRequest::Status, ASK_PATIENCE).await.ok(),
            Err(_) => None,
        };
        let status = answer.and_then(|a| match a {
            AdminReply::Json(text) => serde_json::from_str::<serde_json::Value>(&text).ok(),
            AdminReply::Done => None,
        });
        let client = report.clients.iter().find(|c| role == "client" && c.mount == name);
        let pid = client.map(|c| c.process.pid).or_else(|| pid_file::live_pid(&dir.pid_file(&name)));
        processes.push(ProcessRow { name, role, address, pid, status });
    }

    let mut remarks: Vec<String> = Vec::new();
    for p in &processes {
        let Some(status) = &p.status else {
            remarks.push(format!("{} {} does not answer at {}", p.role, p.name, p.address));
            continue;
        };
        if let Some(lost) = status["log_lost_lines"].as_u64().filter(|&lost| lost > 0) {
            remarks.push(format!("{} {} could not write {lost} lines of its log", p.role, p.name));
        }
    }
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
    add_catch_up(dir, link, &mut pdisks).await;
    StatusReport {
        cluster: report.map.name.clone(),
        id: report.map.cluster.to_string(),
        epoch: report.map.epoch.0,
        well: remarks.is_empty(),
        remarks,
        store: report.store.clone(),
        deletes_pending: report.deletes_pending,
        processes,
        pdisks,
    }
}
