//! `ropewalk health`, and `pool status`: what lacks where.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use base::{PdiskId, units::seconds_of_ms};
use serde::Serialize;
use serde_json::Value;
use wire::{
    admin::AdminRequest,
    map::{PdiskState, PoolEntry},
    mgr::{ClientReport, ClusterReport, MemberInfo, PdiskUse},
};

use super::{
    ask::{self, Census, Process, list, text},
    authority,
    listing::rack_losses_survived,
    lost, managers, members, page,
    rebuild::{rebuild_rows, waiting},
};
use crate::{
    args::Listing,
    cluster_dir::{ClusterDir, renewal},
    link::{self, Link},
    output,
};

/// A pool and its groups.
#[derive(Serialize)]
pub struct PoolStatusRow {
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

/// Each pool: its groups by what they lack.
pub fn pool_rows(report: &ClusterReport) -> Vec<PoolStatusRow> {
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

/// What is wanted of a mount for so long is more than its turn to wait, milliseconds.
const HELD_UP_MS: u64 = 30_000;

/// What is wrong with a pool's racks. Nothing while its strips still move to where they are to be.
fn rack_remark(report: &ClusterReport, pool: &PoolEntry) -> Option<String> {
    let code: layout::Code = pool.code.parse().ok()?;
    let at = report.map.pools.iter().position(|p| p.id == pool.id)?;
    let moves = report.moving.get(at).is_some_and(|moving| moving.left > 0);
    if code.parity() == 0 || moves || rack_losses_survived(&report.map, pool)? > 0 {
        return None;
    }
    Some(format!(
        "pool {}: the loss of one rack makes files unreadable: {code} bears {} lost strips of {}, and a rack holds more of \
         some; it takes more racks (`ropewalk node list` shows them), or a code with more parity",
        pool.name,
        code.parity(),
        code.width()
    ))
}

/// What is wrong with a mount whose reads or writes wait for pdisks that are out of reach, and others for what it holds.
fn held_up(report: &ClusterReport, client: &ClientReport) -> Option<String> {
    let out_of_reach = |pdisk: &PdiskUse| pdisk.state == PdiskState::Ok && !pdisk.served;
    let (count, oldest) = client.recalls;
    if count == 0 || oldest < HELD_UP_MS || !report.pdisks.iter().any(out_of_reach) {
        return None;
    }
    Some(format!(
        "mount {} on {} has not given up what others want for {:.0} s; it may wait for pdisks that are out of reach: until these are \
         back it is not ended for that so soon",
        client.mount,
        client.process.host,
        seconds_of_ms(oldest)
    ))
}

/// How the cluster is.
#[derive(Serialize)]
pub struct Health {
    /// Nothing is wrong.
    pub healthy: bool,
    /// What is wrong, what follows from it, what to do.
    pub remarks: Vec<String>,
    /// Blocks that are lost for good; null: they are still being counted, or the manager did not say.
    pub lost_blocks: Option<u64>,
}

/// What a process has of connections to other machines that nothing protects.
fn in_the_clear(process: &str, peers: &Value) -> Option<String> {
    let away = |c: &&Value| {
        let [local, remote] = ["local", "remote"].map(|end| c[end].as_str()?.parse::<SocketAddr>().ok());
        // Between two addresses of one machine the same one stands at both ends, or a loopback address.
        c["protection"] == "EMPTY"
            && remote.is_some_and(|remote| {
                !remote.ip().to_canonical().is_loopback()
                    && local.is_none_or(|local| local.ip() != remote.ip())
            })
    };
    let all = list(peers).iter();
    let connections = || {
        all.clone()
            .flat_map(|peer| list(&peer["connections"]).iter().map(move |c| (peer, c)))
            .filter(|(_, c)| away(c))
    };
    let (peer, first) = connections().next()?;
    let name = text(&peer["name"]);
    let name =
        name.rsplit_once(" at ").or_else(|| name.rsplit_once(" process ")).map_or(&*name, |(name, _)| name);
    let first = format!("{name} at {}", text(&first["remote"]));
    Some(format!(
        "{process}: {} connections with other machines, one with {first}, are neither encrypted nor protected from changes \
         (cipherList EMPTY); unless nobody else reaches that network: ropewalk config set cipherList=AUTHONLY, or DEFAULT",
        connections().count()
    ))
}

/// What the processes' own words give cause to say; of those that say nothing, unless it is said elsewhere (`said`).
pub fn own_words(
    processes: &[Process],
    states: &[Option<Value>],
    said: impl Fn(&Process) -> bool,
) -> Vec<String> {
    let several = processes.iter().filter(|process| process.role == "manager").count() > 1;
    let word = |(process, status): (&Process, &Option<Value>)| {
        let called = match process.role {
            "manager" if several => format!("manager {}", process.name),
            "manager" => "the manager".to_owned(),
            "nsd" => format!("the server of node {}", process.name),
            _ => format!("mount {}", process.name),
        };
        match status {
            None if said(process) => None,
            None => Some(format!("{called} does not answer at {}", process.address())),
            Some(status) => {
                let lost = status["log_lost_lines"].as_u64().filter(|&lost| lost > 0)?;
                Some(format!("{called} could not write {lost} lines of its log"))
            }
        }
    };
    processes.iter().zip(states).filter_map(word).collect()
}

/// What was seen for it.
pub struct Seen {
    /// What the manager says.
    pub report: ClusterReport,
    /// Who was asked ...
    pub processes: Vec<Process>,
    /// ... and what each said of its connections, and of itself, in their order.
    pub nets: Vec<Option<Value>>,
    /// The latter.
    pub states: Vec<Option<Value>>,
    /// The manager has said what is lost for good.
    pub knows_losses: bool,
}

/// Finds out.
pub async fn look(dir: &ClusterDir, link: &Link) -> Result<(Health, Seen)> {
    let members = match members::members(link).await {
        Ok(members) => members,
        Err(error) => {
            return Err(match managers::why_none(dir, link).await {
                Some(why) => error.context(why),
                None => error,
            });
        }
    };
    let census = Census::take(dir, link).await;
    let said = hear(&census, link).await;
    weigh(dir, link, census, said, members).await
}

/// What each process said of its connections, and of itself.
pub type Said = (Vec<Option<Value>>, Vec<Option<Value>>);

/// Asks them.
pub async fn hear(census: &Census, link: &Link) -> Said {
    tokio::join!(census.ask(link, &AdminRequest::Net), census.ask(link, &AdminRequest::Status))
}

/// What follows from what was said; `status` says the same.
pub async fn weigh(
    dir: &ClusterDir,
    link: &Link,
    census: Census,
    (answers, states): Said,
    members: Vec<MemberInfo>,
) -> Result<(Health, Seen)> {
    let rows = managers::look(&census, &states);
    let store = states.iter().flatten().flat_map(|status| list(&status["store_remarks"])).map(text);
    let standing = [managers::silent(&rows), managers::remarks(&rows), store.collect()].concat();
    let asked = census.processes.iter().zip(&answers);
    let in_the_clear: Vec<String> =
        asked.filter_map(|(process, peers)| in_the_clear(&process.name, peers.as_ref()?)).collect();
    let exchange = authority::Stand::ask(dir, link).await?.remark();
    let losses = lost::losses(link).await;
    let (report, processes) = (census.report?, census.processes);
    let mounts = ask::fenced(dir, link, &report).await;
    let map = &report.map;
    let mut remarks = Vec::new();
    let now = renewal::now();
    remarks.extend(members.iter().filter_map(|member| members::overdue(member, now)));
    remarks.extend(exchange);
    remarks.extend(in_the_clear);
    remarks.extend(standing);
    // Of managers and of nodes without a session more is said elsewhere.
    let said = |of: &Process| {
        of.role == "manager" || map.nodes.iter().any(|node| of.is_node(node) && node.session.is_none())
    };
    remarks.extend(own_words(&processes, &states, said));
    remarks.extend(page::remark(dir).await);
    remarks.extend(mounts);
    for damage in &report.store_damage {
        let remedy = match super::manager::copy_that_counts(dir) {
            Some(copy) => format!("stop the manager: {copy}"),
            None => "take a dump now (`ropewalk manager dump`, --damaged if need be), and restore it, or an older one, into a new store".into(),
        };
        remarks.push(format!("the manager's store is damaged: {damage}; {remedy}"));
    }
    for node in map.nodes.iter().filter(|n| n.session.is_none()) {
        let mut its = members.iter().filter(|member| member.node == Some(node.id)).peekable();
        let is_shut_out = its.peek().is_some() && its.all(|member| member.revoked);
        remarks.push(match dir.file.node(node.id) {
            None if is_shut_out => format!(
                "node {} does not serve, its machine was shut out: that joins again with a new token (`ropewalk node token`), or \
                 take the node out: `ropewalk pdisk fail` each of its pdisks, then `ropewalk node remove {}`",
                node.name, node.name
            ),
            Some(here) => {
                format!("node {} does not serve; start it: ropewalk serve --name {}", node.name, here.name)
            }
            None => format!(
                "node {} ({}) does not serve; start it on its machine: ropewalk up",
                node.name,
                node.addrs.join(", ")
            ),
        });
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
        let served = report.pdisks.iter().any(|used| used.id == pdisk.id && used.served);
        match word {
            "ok" if !served => remarks.push(format!(
                "pdisk {name} is out of reach, and nobody else has what it holds of some groups: writes there wait for it. If it is \
                 gone for good: ropewalk pdisk fail {name} --accept-loss"
            )),
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
    remarks.extend(report.clients.iter().filter_map(|client| held_up(&report, client)));
    remarks.extend(losses.iter().flatten().filter_map(|loss| lost::remark(map, loss)));
    remarks.extend(map.pools.iter().filter_map(|pool| rack_remark(&report, pool)));
    for row in rebuild_rows(&report, losses.as_deref()) {
        if !row.hindered.is_empty() {
            remarks.push(format!("pool {}: nothing can be rebuilt: {}; add a pdisk", row.pool, row.hindered));
        }
        if row.waiting > 0 {
            remarks.push(format!("pool {}: {}", row.pool, waiting(&row)));
        }
        remarks.extend(row.waits.into_iter().map(|w| format!("a strip cannot be made: {w}")));
    }
    let lost_blocks = losses.as_deref().and_then(lost::total);
    let health = Health { healthy: remarks.is_empty(), remarks, lost_blocks };
    Ok((health, Seen { report, processes, nets: answers, states, knows_losses: losses.is_some() }))
}

/// `ropewalk health`: exit status 0 only if nothing is wrong.
pub fn health(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let (health, seen) = link::run(async { look(&dir, &Link::new(&dir)?).await })?;
    if listing.json {
        output::json(&health)?;
    } else {
        match health.healthy {
            true => output::line("healthy"),
            false => health.remarks.iter().for_each(output::line),
        }
        // Nothing is wrong with a manager that is yet to be upgraded.
        if !seen.knows_losses {
            output::line(lost::UNKNOWN);
        }
    }
    if health.healthy { Ok(()) } else { bail!("{} things need attention", health.remarks.len()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_in_the_clear_between_machines_is_said() {
        let peers = |local: &str, remote: &str, protection: &str| json!([{ "connections": [{ "local": local, "remote": remote, "protection": protection }] }]);
        for (local, remote, protection) in [
            ("127.0.0.1:1", "127.0.0.2:2", "EMPTY"),
            ("10.0.0.1:1", "10.0.0.1:2", "EMPTY"),
            ("10.0.0.1:1", "10.0.0.2:2", "AUTHONLY"),
            ("10.0.0.1:1", "10.0.0.2:2", "ENCRYPTED"),
        ] {
            assert_eq!(in_the_clear("n1", &peers(local, remote, protection)), None, "{local} {protection}");
        }
        let said = in_the_clear("n1", &peers("10.0.0.1:1", "10.0.0.2:2", "EMPTY")).unwrap();
        assert!(said.starts_with("n1: 1 connections") && said.contains("10.0.0.2:2"), "{said}");
    }
}
