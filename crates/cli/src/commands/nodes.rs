//! `ropewalk node list|show|remove|rename` (`drain|keep`: in `drain`): which nodes a cluster has, on whatever machine.

use anyhow::{Context, Result};
use base::units::human_size;
use serde::Serialize;
use serde_json::Value;
use wire::{
    map::{NodeEntry, PdiskState},
    mgr::{ClusterReport, MgrRequest, PdiskWish},
};

use super::{
    ask::{node_status, text},
    listing::{PdiskRow, RACK_MAX, pdisk_rows},
    pdisks::find_node,
};
use crate::{
    args::{Listing, NodeName, NodeRename, NodeShow},
    link::{self, Link},
    output::{self, begin_of, end_of},
};

/// Columns of a name, and of an address.
const NAME_MAX: usize = 15;
const ADDRESS_MAX: usize = 21;

#[derive(Serialize)]
struct NodeRow {
    name: String,
    id: u32,
    addresses: Vec<String>,
    /// The rack that it is in; null: none that is known.
    rack: Option<String>,
    /// `serves`, or `down`: its server has no session.
    state: &'static str,
    pdisks: usize,
    /// Of these, those that are `ok` and served.
    pdisks_ok: usize,
    /// Of these, those that are being emptied, or are.
    pdisks_leaving: usize,
    size_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
}

fn node_row(report: &ClusterReport, node: &NodeEntry) -> NodeRow {
    let of = |id| report.map.pdisk(id).is_some_and(|pdisk| pdisk.nodes.contains(&node.id));
    let on: Vec<_> = report.pdisks.iter().filter(|used| of(used.id)).collect();
    let (size, free) = on.iter().fold((0, 0), |sum, p| (sum.0 + p.capacity, sum.1 + p.free));
    NodeRow {
        name: node.name.clone(),
        id: node.id.0,
        addresses: node.addrs.clone(),
        rack: report.map.rack_of(node.id).map(str::to_owned),
        state: if node.session.is_some() { "serves" } else { "down" },
        pdisks: on.len(),
        pdisks_ok: on.iter().filter(|p| p.served && p.state == PdiskState::Ok).count(),
        pdisks_leaving: report.map.pdisks.iter().filter(|p| p.leaving && of(p.id)).count(),
        size_bytes: size,
        used_bytes: size.saturating_sub(free),
        free_bytes: free,
    }
}

/// `ropewalk node list`.
pub fn list(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let report = link::run(async { Link::new(&dir)?.cluster().await })?;
    let rows: Vec<NodeRow> = report.map.nodes.iter().map(|node| node_row(&report, node)).collect();
    if listing.json {
        return output::json(&rows);
    }
    output::table(&HEAD, rows.iter().map(cells).collect());
    Ok(())
}

const HEAD: [&str; 7] = ["NODE", "RACK", "ADDRESS", "STATE", "PDISKS", "SIZE", "USED"];

fn cells(row: &NodeRow) -> Vec<String> {
    let first = row.addresses.first().map_or("-".to_owned(), |addr| end_of(addr, ADDRESS_MAX));
    let address = match row.addresses.len() {
        0 | 1 => first,
        more => format!("{first} +{}", more - 1),
    };
    let pdisks = match (row.pdisks - row.pdisks_ok, row.pdisks_leaving) {
        (0, 0) => row.pdisks.to_string(),
        (0, leaving) => format!("{}, {leaving} leaving", row.pdisks),
        (not_ok, _) => format!("{}, {not_ok} not ok", row.pdisks),
    };
    vec![
        begin_of(&row.name, NAME_MAX),
        row.rack.as_deref().map_or("-".to_owned(), |rack| begin_of(rack, RACK_MAX)),
        address,
        row.state.to_owned(),
        pdisks,
        human_size(row.size_bytes),
        human_size(row.used_bytes),
    ]
}

/// A node in full.
#[derive(Serialize)]
struct NodeDetails {
    #[serde(flatten)]
    node: NodeRow,
    /// What its files in this machine's directory are named by, if it runs here.
    local_name: Option<String>,
    pdisk_list: Vec<PdiskRow>,
    /// What its server says of itself; null: it does not answer.
    status: Option<Value>,
}

/// `ropewalk node show`.
pub fn show(args: &NodeShow) -> Result<()> {
    let dir = args.listing.dir.open()?;
    let details = link::run(async {
        let link = Link::new(&dir)?;
        let report = link.cluster().await?;
        let entry = find_node(&report.map, &args.node)?;
        let status = node_status(&link, entry).await;
        let mut pdisk_list = pdisk_rows(&report);
        pdisk_list.retain(|pdisk| pdisk.node == entry.name);
        let local_name = dir.file.node(entry.id).map(|here| here.name.clone());
        Ok(NodeDetails { node: node_row(&report, entry), local_name, pdisk_list, status })
    })?;
    if args.listing.json {
        return output::json(&details);
    }
    let NodeDetails { node, local_name, pdisk_list, status } = &details;
    output::line(format!("node {} ({}): {}", node.name, node.id, node.state));
    output::line(format!("  addresses: {}", node.addresses.join(", ")));
    output::line(format!("  rack: {}", node.rack.as_deref().unwrap_or("none is known")));
    output::line(match local_name {
        Some(local) if *local == node.name => "  runs on this machine".to_owned(),
        Some(local) => format!("  runs on this machine, its files named {local}"),
        None => "  runs on another machine".to_owned(),
    });
    output::line(match status {
        Some(status) => {
            format!("  process {} of version {}", text(&status["pid"]), text(&status["version"]))
        }
        None => "  its server does not answer".to_owned(),
    });
    output::line(format!("  {} of {} used\n", human_size(node.used_bytes), human_size(node.size_bytes)));
    let row = |p: &PdiskRow| {
        vec![p.name.clone(), p.state.to_owned(), human_size(p.size_bytes), human_size(p.used_bytes)]
    };
    output::table(&["PDISK", "STATE", "SIZE", "USED"], pdisk_list.iter().map(row).collect());
    Ok(())
}

/// `ropewalk node remove`.
pub fn remove(args: &NodeName) -> Result<()> {
    let mut dir = args.dir.open()?;
    let id = link::run(async {
        let link = Link::new(&dir)?;
        let map = link.cluster().await?.map;
        let entry = find_node(&map, &args.node)?;
        let node = entry.id;
        // Those that hold nothing go with it. A server that serves still names them; then, and while one of them is
        // used, the manager says what to do.
        let on = || map.pdisks.iter().filter(|pdisk| pdisk.nodes.contains(&node));
        if entry.session.is_none() && on().all(|pdisk| map.pdisk_word(pdisk.id) == "replace") {
            for pdisk in on() {
                let request = MgrRequest::PdiskSet { pdisk: pdisk.id, wish: PdiskWish::Remove };
                link.manager(&request).await.with_context(|| format!("take {} out", pdisk.name))?;
            }
        }
        link.manager(&MgrRequest::NodeRemove { node }).await?;
        Ok(node)
    })?;
    let mut here = "";
    if dir.file.node(id).is_some() {
        dir.keep(|file| file.nodes.retain(|node| node.id != id))?;
        here = ", and of this machine's cluster.toml";
    }
    output::line(format!("node {} is out of the cluster{here}", args.node));
    Ok(())
}

/// `ropewalk node rename`.
pub fn rename(NodeRename { name, new }: &NodeRename) -> Result<()> {
    let dir = name.dir.open()?;
    link::run(async {
        let link = Link::new(&dir)?;
        let node = find_node(&link.cluster().await?.map, &name.node)?.id;
        link.manager(&MgrRequest::NodeSet { node, name: Some(new.clone()), addrs: None, rack: None }).await
    })?;
    output::line(format!("node {} is called {new} now; its files and pdisks keep their names", name.node));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_line_fits_a_terminal() {
        let addr = |n: u8| format!("[2001:db8:1234:5678:9abc:def0:1234:{n:x}]:31999");
        let row = NodeRow {
            name: "n".repeat(63),
            id: 65_539,
            addresses: (0..16).map(addr).collect(),
            rack: Some("r".repeat(63)),
            state: "serves",
            pdisks: 24,
            pdisks_ok: 12,
            pdisks_leaving: 24,
            size_bytes: u64::MAX,
            used_bytes: 1023 << 40,
            free_bytes: 0,
        };
        let table = output::table_text(&HEAD, vec![cells(&row)]);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        assert!(table.contains(":31999 +15") && table.contains("24, 12 not ok"), "{table}");
    }
}
