//! `fs`, `pdisk`, `pool`: what the manager knows, as tables or JSON.

use std::collections::HashMap;

use anyhow::{Result, bail};
use base::units::{human_size, seconds_of_ms};
use serde::{Deserialize, Serialize};
use wire::{
    map::{ClusterMap, PdiskState, PoolEntry},
    mgr::{ClusterReport, MgrReply, MgrRequest},
};

use crate::{
    args::Listing,
    commands::ask::node_status,
    link::{self, Link},
    output::{self, begin_of},
};

/// Columns of a rack's name.
pub const RACK_MAX: usize = 7;

fn with_report<T>(listing: &Listing, show: impl AsyncFnOnce(Link, ClusterReport) -> Result<T>) -> Result<T> {
    let dir = listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        show(link, report).await
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
    with_report(listing, async |_, report| {
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
    with_report(listing, async |link, report| {
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

/// A pdisk, as the manager and its server say.
#[derive(Serialize)]
pub struct PdiskRow {
    pub name: String,
    id: u32,
    pub node: String,
    /// The rack of its node; null: none that is known.
    rack: Option<String>,
    pub state: &'static str,
    pub size_bytes: u64,
    pub used_bytes: u64,
    free_bytes: u64,
    incarnation: u64,
    last_report_s: Option<f64>,
    /// Of one that is returning, if its server answers.
    catch_up: Option<CatchUp>,
}

/// How far a returning pdisk is, as its server says.
#[derive(Serialize, Deserialize)]
pub struct CatchUp {
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
pub async fn add_catch_up(map: &ClusterMap, link: &Link, rows: &mut [PdiskRow]) {
    for row in rows.iter_mut().filter(|row| row.state == PdiskState::Returning.name()) {
        let Some(node) = map.nodes.iter().find(|n| n.name == row.node) else { continue };
        let Some(status) = node_status(link, node).await else { continue };
        let of_pdisk = status["nsd"]["pdisks"].as_array().into_iter().flatten().find(|p| p["id"] == row.id);
        row.catch_up = of_pdisk.and_then(|p| CatchUp::deserialize(&p["catch_up"]).ok());
    }
}

/// All pdisks.
pub fn pdisk_rows(report: &ClusterReport) -> Vec<PdiskRow> {
    let row = |usage: &wire::mgr::PdiskUse| {
        let entry = report.map.pdisk(usage.id)?;
        let at = entry.nodes.first().copied().unwrap_or_default();
        let node = report.map.node(at).map(|n| n.name.clone()).unwrap_or_default();
        Some(PdiskRow {
            name: entry.name.clone(),
            id: usage.id.0,
            node,
            rack: report.map.rack_of(at).map(str::to_owned),
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
    with_report(listing, async |link, report| {
        let mut rows = pdisk_rows(&report);
        add_catch_up(&report.map, &link, &mut rows).await;
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
                r.rack.map_or("-".to_owned(), |rack| begin_of(&rack, RACK_MAX)),
                r.state.to_owned(),
                human_size(r.size_bytes),
                human_size(r.used_bytes),
                human_size(r.free_bytes),
                format!("{:.1} %", r.used_bytes as f64 * 100.0 / r.size_bytes.max(1) as f64),
                age,
            ]
        };
        output::table(
            &["PDISK", "NODE", "RACK", "STATE", "SIZE", "USED", "FREE", "USE", "LAST REPORT"],
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
    /// The same of racks; null: none is known.
    rack_losses_survived: Option<u32>,
}

/// How a pool's groups stand now: (groups, groups with a strip that is not ok, groups that cannot be read).
pub fn group_health(map: &ClusterMap, pool: &PoolEntry) -> (usize, usize, usize) {
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
    losses_survived(pool, |id| map.pdisk(id).and_then(|p| p.nodes.first()).map_or(0, |node| node.0))
}

/// The same of racks, if any are known. A node of none is one by itself.
pub fn rack_losses_survived(map: &ClusterMap, pool: &PoolEntry) -> Option<u32> {
    let known = !map.racks.is_empty();
    known.then(|| losses_survived(pool, |id| map.rack_number(id).unwrap_or_default()))
}

/// How many domains, any of them, a pool can lose; `of` says which one a pdisk is in.
fn losses_survived(pool: &PoolEntry, of: impl Fn(base::PdiskId) -> u32) -> u32 {
    let parity = pool.code.parse::<layout::Code>().map(|c| c.parity()).unwrap_or(0);
    let number: HashMap<base::PdiskId, u32> = pool.table.iter().map(|&id| (id, of(id))).collect();
    let survives = |members: &[base::PdiskId]| {
        // The worst case takes those with most strips first.
        let mut strips: HashMap<u32, u32> = HashMap::new();
        members.iter().for_each(|m| *strips.entry(number[m]).or_default() += 1);
        let mut counts: Vec<u32> = strips.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = u32::from(parity);
        counts.into_iter().take_while(|&c| left.checked_sub(c).map(|l| left = l).is_some()).count() as u32
    };
    pool.table.chunks_exact(usize::from(pool.width.max(1))).map(survives).min().unwrap_or(0)
}

/// `ropewalk pool list`.
pub fn pool_list(listing: &Listing) -> Result<()> {
    with_report(listing, async |_, report| {
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
                rack_losses_survived: rack_losses_survived(&report.map, pool),
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
                r.rack_losses_survived.map_or("-".to_owned(), |n| n.to_string()),
            ]
        };
        output::table(
            &["POOL", "CODE", "BLOCK", "PDISKS", "GROUPS", "DEGRADED", "SURVIVES NODES LOST", "RACKS LOST"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}
