//! `pdisk fail|drain|keep|add|replace|remove`, `rebuild`, `pool status`, `health`, `events`.

use std::{
    ffi::OsStr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use base::{ByteSize, NodeId, PdiskId, PoolId, units::human_size};
use serde::Serialize;
use wire::{
    map::{ClusterMap, PdiskState, PoolEntry},
    mgr::{ClusterReport, MgrReply, MgrRequest, PdiskWish},
};

use crate::{
    args::{Events, Listing, PdiskAdd, PdiskName, RebuildStatus},
    cluster_dir::{ClusterDir, PdiskFile, access},
    interrupt::Interrupted,
    link::{self, Link},
    output,
    process::pid_file,
};

/// How long a node may take to stop and to serve again.
const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// A pdisk by its name or number.
pub fn find_pdisk(map: &ClusterMap, name: &str) -> Result<PdiskId> {
    let by_name = map.pdisks.iter().find(|p| p.name == name || p.id.0.to_string() == name);
    by_name.map(|p| p.id).with_context(|| {
        let names: Vec<&str> = map.pdisks.iter().map(|p| p.name.as_str()).collect();
        format!("there is no pdisk {name}; there are {}", names.join(", "))
    })
}

/// `ropewalk pdisk fail|drain|keep`.
pub fn pdisk_wish(args: &PdiskName, wish: PdiskWish) -> Result<()> {
    let dir = args.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let pdisk = find_pdisk(&report.map, &args.pdisk)?;
        link.manager(&MgrRequest::PdiskSet { pdisk, wish }).await?;
        let report = link.cluster().await?;
        let left: u32 = report.moving.iter().map(|m| m.left).sum();
        output::line(format!(
            "{} is {}; {left} strips of groups are to move (`ropewalk rebuild status` shows how far it is)",
            args.pdisk,
            report.map.pdisk_word(pdisk)
        ));
        Ok(())
    })
}

/// `ropewalk pdisk add`.
pub fn pdisk_add(args: &PdiskAdd) -> Result<()> {
    let mut dir = args.dir.open()?;
    let place = Place { size: args.size, path: args.path.clone(), log_dir: args.log_dir.clone() };
    let name = add(&mut dir, &args.node, place, None)?;
    output::line(format!("{name} is there; groups move to it (`ropewalk rebuild status`)"));
    Ok(())
}

/// Where a new pdisk is made, and how large; `None`: as its node's others.
struct Place {
    size: Option<ByteSize>,
    path: Option<PathBuf>,
    log_dir: Option<PathBuf>,
}

/// Makes a pdisk on a node, for the pools of `like` or for all; its name.
fn add(dir: &mut ClusterDir, node: &str, place: Place, like: Option<PdiskId>) -> Result<String> {
    let report = link::run(async { Link::new(dir)?.cluster().await })?;
    let last = dir.file.nodes.iter().flat_map(|n| n.pdisks.iter().map(|p| p.id)).max();
    let last = last.max(report.map.pdisks.iter().map(|p| p.id).max()).unwrap_or_default();
    let id = PdiskId(last.0 + 1);
    let cluster = dir.file.cluster_id()?;
    let names = dir.file.nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>().join(", ");
    let entry = dir.file.nodes.iter_mut().find(|n| n.name == node);
    let entry = entry.with_context(|| format!("there is no node {node}; there are {names}"))?;
    let size = place.size.or(entry.pdisks.first().map(|p| p.size)).context("say how large it is: --size")?;
    let path = place.path.unwrap_or_else(|| PathBuf::from(format!("nodes/{node}/pdisk-{}", id.0)));
    let full = dir.path.join(&path);
    if let Some(parent) = full.parent() {
        access::make_dir(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    if full.exists() {
        access::close(&full)?;
    }
    let options =
        pdisk::CreateOptions { log_dir: place.log_dir, ..pdisk::CreateOptions::new(cluster, id, size.0) };
    pdisk::Pdisk::create(&full, options)
        .with_context(|| format!("make a pdisk of {size} in {}", full.display()))?;
    let number = report.map.pdisks.iter().filter(|p| p.nodes.contains(&entry.id)).count() + 1;
    let taken = |name: &String| report.map.pdisks.iter().any(|p| p.name == *name);
    let name = (number..).map(|n| format!("{node}p{n}")).find(|n| !taken(n)).unwrap_or_default();
    let (node_id, node_name) = (entry.id, entry.name.clone());
    let uses = |pool: &&PoolEntry| like.is_none_or(|like| pool.pdisks.iter().any(|p| p.id == like));
    let pools: Vec<PoolId> = report.map.pools.iter().filter(uses).map(|p| p.id).collect();
    entry.pdisks.push(PdiskFile { id, dir: path, size });
    // First the file, then the manager: groups that move to a pdisk that no server will ever open would wait for it
    // for ever. A pdisk that only the file names is left out by its server.
    let undone = || format!("not added; {} can be removed", full.display());
    ClusterDir::save(&dir.path, &dir.file).with_context(undone)?;
    let request =
        MgrRequest::PdiskAdd { pdisk: id, name: name.clone(), node: node_id, capacity: size.0, pools };
    if let Err(error) = link::run(async { Link::new(dir)?.manager(&request).await }) {
        // The answer may be lost, and the pdisk be there.
        let report = link::run(async { Link::new(dir)?.cluster().await }).with_context(|| {
            format!("{error:#}; `ropewalk pdisk list` shows later whether {name} is there")
        })?;
        if report.map.pdisk(id).is_none() {
            dir.file.nodes.iter_mut().for_each(|n| n.pdisks.retain(|p| p.id != id));
            ClusterDir::save(&dir.path, &dir.file)?;
            return Err(error.context(undone()));
        }
    }
    restart_node(dir, &node_name, node_id)?;
    Ok(name)
}

/// A node's server learns of its pdisks when it starts: it is stopped cleanly and started again.
fn restart_node(dir: &ClusterDir, name: &str, id: NodeId) -> Result<()> {
    let pid_file = dir.pid_file(name);
    let Some(pid) = pid_file::live_pid(&pid_file) else {
        output::line(format!("{name} does not run; it knows its pdisks when it is started"));
        return Ok(());
    };
    let before = link::run(async { Link::new(dir)?.cluster().await })?;
    let session = before.map.node(id).and_then(|n| n.session);
    pid_file::terminate(pid);
    if !pid_file::wait_gone(&pid_file, RESTART_PATIENCE) {
        bail!("{name} (process {pid}) does not end; start it again when it has");
    }
    let args: [&OsStr; 5] =
        ["serve".as_ref(), "--dir".as_ref(), dir.path.as_ref(), "--name".as_ref(), name.as_ref()];
    let mut child = pid_file::spawn_detached(&args, &dir.log_file(name))?;
    let end = Instant::now() + RESTART_PATIENCE;
    loop {
        if let Some(status) = child.try_wait().context("look after a child process")? {
            bail!("{name} ended at its start ({status}); see {}", dir.log_file(name).display());
        }
        let report = link::run(async { Link::new(dir)?.cluster().await })?;
        let now = report.map.node(id).and_then(|n| n.session);
        if now.is_some() && now != session && dir.ready_file(name).exists() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{name} does not serve after {RESTART_PATIENCE:?}; see {}", dir.log_file(name).display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `ropewalk pdisk replace`: a new one on the same node takes over what the old one held.
pub fn pdisk_replace(args: &PdiskName) -> Result<()> {
    let mut dir = args.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let old = find_pdisk(&report.map, &args.pdisk)?;
    let place = |n: &crate::cluster_dir::NodeFile| n.pdisks.iter().find(|p| p.id == old).map(|p| p.size);
    let (node, size) = dir
        .file
        .nodes
        .iter()
        .find_map(|n| Some((n.name.clone(), place(n)?)))
        .with_context(|| format!("cluster.toml has no {old}"))?;
    let state = report.map.pdisk(old).map(|p| p.state);
    let place = Place { size: Some(size), path: None, log_dir: None };
    let name = add(&mut dir, &node, place, Some(old))?;
    let wish = if state == Some(PdiskState::Ok) { PdiskWish::Drain } else { PdiskWish::Fail };
    link::run(async {
        let link = Link::new(&dir)?;
        link.manager(&MgrRequest::PdiskSet { pdisk: old, wish }).await
    })?;
    output::line(format!(
        "{name} takes the place of {}; when that is shown as \"replace\", `ropewalk pdisk remove` takes it out",
        args.pdisk
    ));
    Ok(())
}

/// `ropewalk pdisk remove`.
pub fn pdisk_remove(args: &PdiskName) -> Result<()> {
    let mut dir = args.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let pdisk = find_pdisk(&report.map, &args.pdisk)?;
    let request = MgrRequest::PdiskSet { pdisk, wish: PdiskWish::Remove };
    link::run(async { Link::new(&dir)?.manager(&request).await })?;
    let mut of = None;
    for node in &mut dir.file.nodes {
        if let Some(at) = node.pdisks.iter().position(|p| p.id == pdisk) {
            of = Some((node.name.clone(), node.id, node.pdisks.remove(at).dir));
        }
    }
    ClusterDir::save(&dir.path, &dir.file)?;
    let Some((node, id, place)) = of else { return Ok(()) };
    restart_node(&dir, &node, id)?;
    let place = dir.path.join(place);
    // A disk that is gone does not say; its log is known by the name.
    let log = pdisk::Pdisk::log_path(&place).ok().filter(|log| !log.starts_with(&place));
    let log = log.map(|log| format!(" and its log {}", log.display())).unwrap_or_default();
    output::line(format!(
        "{} is out; its files in {}{log} are not used any more and can be removed",
        args.pdisk,
        place.display()
    ));
    Ok(())
}

/// What moves, as scripts see it.
#[derive(Serialize)]
struct RebuildRow {
    pool: String,
    /// Strips of groups still to move; of these, lost ones that are rebuilt.
    left: u32,
    lost: u32,
    done: u32,
    running_s: f64,
    eta_s: Option<f64>,
    moved_bytes: u64,
    /// Mean time of client requests at the slowest server: now, and when the moves began.
    client_us: u64,
    client_us_before: u64,
    hindered: String,
    /// Of `left`, strips that wait for pdisks of their groups, and these pdisks.
    waiting: u32,
    waits_for: Vec<String>,
    waits: Vec<String>,
}

fn rebuild_rows(report: &ClusterReport) -> Vec<RebuildRow> {
    let row = |(pool, moving): (&PoolEntry, &wire::mgr::PoolMoving)| {
        let of_pool = || report.pdisks.iter().filter(|u| pool.pdisks.iter().any(|p| p.id == u.id));
        let running_s = moving.running_ms as f64 / 1000.0;
        let eta_s = (moving.left > 0 && moving.done > 0)
            .then(|| running_s * f64::from(moving.left) / f64::from(moving.done));
        let name = |id| report.map.pdisk(id).map(|p| p.name.clone()).unwrap_or_default();
        let members = pool.pdisks.iter().filter_map(|p| report.map.pdisk(p.id));
        let gone = || members.clone().filter(|p| p.state != PdiskState::Ok && !p.given_up());
        RebuildRow {
            pool: pool.name.clone(),
            left: moving.left,
            lost: moving.lost,
            done: moving.done,
            running_s,
            eta_s,
            moved_bytes: of_pool().map(|u| u.moved).sum(),
            client_us: of_pool().map(|u| u.client_us).max().unwrap_or(0),
            client_us_before: moving.client_us_before,
            hindered: moving.hindered.clone(),
            waiting: moving.waiting,
            waits_for: match moving.waiting {
                0 => Vec::new(),
                _ => gone().map(|p| p.name.clone()).collect(),
            },
            waits: of_pool()
                .filter(|u| !u.waits.is_empty())
                .map(|u| format!("{}: {}", name(u.id), u.waits))
                .collect(),
        }
    };
    report.map.pools.iter().zip(&report.moving).map(row).collect()
}

/// Why `left` does not become less, and what to do.
fn waiting(row: &RebuildRow) -> String {
    format!(
        "{} strips cannot be made before {} is back; `ropewalk pdisk fail` gives up what it holds",
        row.waiting,
        row.waits_for.join(", ")
    )
}

/// How long clients wait beside how long they waited before the moves.
fn effect(now_us: u64, before_us: u64) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    match before_us {
        0 => format!("{:.1} ms", ms(now_us)),
        _ => format!("{:.1} ms (before: {:.1})", ms(now_us), ms(before_us)),
    }
}

/// `ropewalk rebuild status`. With `--watch` it ends when nothing is left that can be made now.
pub fn rebuild_status(args: &RebuildStatus) -> Result<()> {
    let dir = args.listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let mut report = link.cluster().await?;
        if args.watch {
            let bar = output::progress("moving", 0);
            loop {
                let rows = rebuild_rows(&report);
                let left: u32 = rows.iter().map(|r| r.left - r.waiting.min(r.left)).sum();
                let done: u32 = rows.iter().filter(|r| r.left > 0).map(|r| r.done).sum();
                let slowest = rows.iter().map(|r| r.client_us).max().unwrap_or(0);
                bar.set_length(u64::from(left + done));
                bar.set_position(done.into());
                let before = rows.iter().map(|r| r.client_us_before).max().unwrap_or(0);
                bar.set_message(format!("moving; clients wait {}", effect(slowest, before)));
                if left == 0 {
                    break;
                }
                // Interrupting the watch changes nothing.
                tokio::select! {
                    signal = link::stop_signal() => {
                        signal?;
                        bail!(Interrupted("what moves goes on moving".into()));
                    }
                    () = tokio::time::sleep(Duration::from_millis(500)) => {}
                }
                report = link.cluster().await?;
            }
            bar.finish_and_clear();
        }
        let rows = rebuild_rows(&report);
        if args.listing.json {
            return output::json(&rows);
        }
        for row in &rows {
            if !row.hindered.is_empty() {
                output::line(format!("pool {}: {}", row.pool, row.hindered));
            }
            if row.waiting > 0 {
                output::line(format!("pool {}: {}", row.pool, waiting(row)));
            }
            row.waits.iter().for_each(|w| output::line(format!("waits: {w}")));
        }
        let seconds = |s: f64| format!("{s:.0} s");
        let cells = |r: RebuildRow| {
            let percent = match r.left {
                0 => "100 %".to_owned(),
                left => format!("{:.0} %", f64::from(r.done) * 100.0 / f64::from(r.done + left)),
            };
            vec![
                r.pool,
                percent,
                r.left.to_string(),
                r.lost.to_string(),
                human_size(r.moved_bytes),
                seconds(r.running_s),
                r.eta_s.map_or("-".to_owned(), seconds),
                effect(r.client_us, r.client_us_before),
            ]
        };
        output::table(
            &["POOL", "DONE", "LEFT", "OF IT LOST", "STORED", "RUNNING", "ETA", "CLIENTS WAIT"],
            rows.into_iter().map(cells).collect(),
        );
        Ok(())
    })
}

#[derive(Serialize)]
struct PoolStatusRow {
    name: String,
    code: String,
    groups: u32,
    /// Groups by the number of strips that do not count: all there, one missing, ...
    by_missing: Vec<u32>,
    unreadable: u32,
    spare_pdisks: u32,
    pdisks_counting: u32,
    moving: u32,
}

fn pool_rows(report: &ClusterReport) -> Vec<PoolStatusRow> {
    let row = |(i, pool): (usize, &PoolEntry)| {
        let width = usize::from(pool.width.max(1));
        let data = pool.code.parse::<layout::Code>().map_or(width, |c| c.data().into());
        // The last copies stay `ok` in the map when their server is gone: what is not served cannot be read.
        let counts =
            |id: &PdiskId| report.pdisks.iter().any(|p| p.id == *id && p.served && p.state == PdiskState::Ok);
        let mut by_missing = vec![0u32; width - data + 1];
        let mut unreadable = 0;
        for group in pool.table.chunks_exact(width) {
            let missing = group.iter().filter(|id| !counts(id)).count();
            match by_missing.get_mut(missing) {
                Some(count) => *count += 1,
                None => unreadable += 1,
            }
        }
        PoolStatusRow {
            name: pool.name.clone(),
            code: pool.code.clone(),
            groups: (pool.table.len() / width) as u32,
            by_missing,
            unreadable,
            spare_pdisks: pool.spare,
            pdisks_counting: pool.pdisks.iter().filter(|p| counts(&p.id)).count() as u32,
            moving: report.moving.get(i).map_or(0, |m| m.left),
        }
    };
    report.map.pools.iter().enumerate().map(row).collect()
}

/// `ropewalk pool status`.
pub fn pool_status(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let rows = pool_rows(&report);
    if listing.json {
        return output::json(&rows);
    }
    let cells = |r: PoolStatusRow| {
        let missing = r.by_missing.iter().map(u32::to_string).collect::<Vec<_>>().join(" / ");
        vec![
            r.name,
            r.code,
            r.groups.to_string(),
            missing,
            r.unreadable.to_string(),
            r.pdisks_counting.to_string(),
            r.spare_pdisks.to_string(),
            r.moving.to_string(),
        ]
    };
    output::table(
        &["POOL", "CODE", "GROUPS", "WITH 0 / 1 / .. LOST", "UNREADABLE", "PDISKS", "SPARE", "TO MOVE"],
        rows.into_iter().map(cells).collect(),
    );
    Ok(())
}

#[derive(Serialize)]
struct Health {
    healthy: bool,
    /// What is wrong, what follows from it, what to do.
    remarks: Vec<String>,
}

/// `ropewalk health`: exit status 0 only if nothing is wrong.
pub fn health(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let map = &report.map;
    let mut remarks = Vec::new();
    for damage in &report.store_damage {
        remarks.push(format!(
            "the manager's store is damaged: {damage}; take a dump now (`ropewalk manager dump`, --damaged if need be), and \
             restore it, or an older one, into a new store"
        ));
    }
    for node in map.nodes.iter().filter(|n| n.session.is_none()) {
        remarks.push(format!(
            "node {} does not serve; start it: ropewalk serve --name {}",
            node.name, node.name
        ));
    }
    for node in map.nodes.iter().filter(|n| n.session.is_some()) {
        let of = |id| map.pdisk(id).is_some_and(|pdisk| pdisk.nodes.contains(&node.id));
        let mut reports = report.pdisks.iter().filter(|used| of(used.id)).map(|used| used.age_ms).peekable();
        if reports.peek().is_some() && reports.all(|age| age.is_none()) {
            remarks.push(format!(
                "node {} has not been heard of since the manager started; if it is gone, calls wait for it until its lease \
                 has run out (after `manager restore` or `accept-loss` 300 s, see `ropewalk events`)",
                node.name
            ));
        }
    }
    for pdisk in &map.pdisks {
        let (name, word) = (&pdisk.name, map.pdisk_word(pdisk.id));
        match word {
            "ok" => {}
            "replace" => remarks.push(format!(
                "pdisk {name} holds nothing any more; take it out (`ropewalk pdisk remove`) or keep it (`pdisk keep`)"
            )),
            "missing" => remarks.push(format!(
                "pdisk {name} is missing; it catches up when it is back, and is rebuilt on the others after \
                 missingRebuildDelay or `ropewalk pdisk fail {name}`"
            )),
            "failed" => remarks.push(format!("pdisk {name} has failed; its strips are rebuilt on the others")),
            other => remarks.push(format!("pdisk {name} is {other}")),
        }
    }
    for row in pool_rows(&report) {
        let degraded: u32 = row.by_missing.iter().skip(1).sum();
        if row.unreadable > 0 {
            remarks.push(format!(
                "pool {}: {} of {} groups cannot be read; `ropewalk pool lost` names the files",
                row.name, row.unreadable, row.groups
            ));
        }
        if degraded > 0 {
            let worst = row.by_missing.iter().rposition(|n| *n > 0).unwrap_or(0);
            remarks.push(format!(
                "pool {}: {degraded} of {} groups are degraded, the worst by {worst}",
                row.name, row.groups
            ));
        }
    }
    for row in rebuild_rows(&report) {
        if !row.hindered.is_empty() {
            remarks.push(format!("pool {}: nothing can be rebuilt: {}; add a pdisk", row.pool, row.hindered));
        }
        if row.waiting > 0 {
            remarks.push(format!("pool {}: {}", row.pool, waiting(&row)));
        }
        remarks.extend(row.waits.into_iter().map(|w| format!("a strip cannot be made: {w}")));
    }
    let health = Health { healthy: remarks.is_empty(), remarks };
    if listing.json {
        output::json(&health)?;
    } else if health.healthy {
        output::line("healthy");
    } else {
        health.remarks.iter().for_each(output::line);
    }
    if health.healthy { Ok(()) } else { bail!("{} things need attention", health.remarks.len()) }
}

#[derive(Serialize)]
struct EventRow {
    number: u64,
    at_us: i64,
    text: String,
}

/// `ropewalk events`.
pub fn events(args: &Events) -> Result<()> {
    let dir = args.listing.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let MgrReply::Events(events) = link.manager(&MgrRequest::Events { after: args.after }).await? else {
            bail!("unexpected answer from the manager to Events");
        };
        let row = |e: wire::mgr::ClusterEvent| EventRow {
            number: e.number,
            at_us: e.at.secs * 1_000_000 + i64::from(e.at.nanos) / 1000,
            text: e.text,
        };
        let rows: Vec<EventRow> = events.into_iter().map(row).collect();
        if args.listing.json {
            return output::json(&rows);
        }
        for row in rows {
            output::line(format!("{:>6} {} {}", row.number, utc(row.at_us / 1_000_000), row.text));
        }
        Ok(())
    })
}

/// A time of day for people, UTC.
fn utc(seconds: i64) -> String {
    let of_day = seconds.rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}
