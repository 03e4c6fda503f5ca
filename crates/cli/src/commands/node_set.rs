//! `ropewalk node set`: a node is in another rack, which the manager is told; or it listens at other addresses, or at more of them (rails). What a server names when it registers is
//! what the cluster knows of it: so this is done on the node's machine, in its `cluster.toml`, and its server is restarted.
//! If it does not serve there, the file is as before and the server is started again where it was.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use wire::{
    map::{ClusterMap, NodeEntry},
    mgr::MgrRequest,
};

use super::{
    node_restart::{hold_nodes, restart_node},
    pdisks::{elsewhere, find_node},
};
use crate::{
    args::NodeSet,
    cluster_dir::{Addrs, ClusterDir, make},
    link::{self, Link},
    output,
    process::tcp_ports::Beside,
};

/// Does it.
pub fn set(args: &NodeSet) -> Result<()> {
    let dir = args.name.dir.open()?;
    if args.rack.is_some() || args.no_rack {
        let rack = args.rack.as_deref().unwrap_or_default();
        put_into(&dir, &args.name.node, rack)?;
    }
    if args.address.is_empty() { Ok(()) } else { listen(dir, args) }
}

/// The node is in this rack from now on; empty: in none.
fn put_into(dir: &ClusterDir, name: &str, rack: &str) -> Result<()> {
    link::run(async {
        let link = Link::new(dir)?;
        let node = find_node(&link.cluster().await?.map, name)?.id;
        let set = MgrRequest::NodeSet { node, name: None, addrs: None, rack: Some(rack.to_owned()) };
        link.manager(&set).await
    })?;
    let place = if rack.is_empty() { "no rack".to_owned() } else { format!("rack {rack}") };
    output::line(format!(
        "node {name} is in {place} now; what that asks for moves: `ropewalk rebuild status`"
    ));
    Ok(())
}

fn listen(mut dir: ClusterDir, args: &NodeSet) -> Result<()> {
    let _held = hold_nodes(&mut dir)?;
    let map = link::run(async { Ok(Link::new(&dir)?.cluster().await?.map) })?;
    let known = find_node(&map, &args.name.node)?;
    let here = dir.file.nodes.iter().position(|node| node.id == known.id);
    let at = here.with_context(|| elsewhere(known))?;
    let before = dir.file.nodes[at].clone();
    let port = args.port.unwrap_or(before.addr.main().port());
    let addrs = args.address.iter().map(|&ip| SocketAddr::new(ip, port)).collect();
    let addrs = Addrs::new(addrs).context("--address")?;
    // Where only the file says so, an interrupted run did not get to restart the server.
    if addrs == before.addr && known.addrs == addrs.texts() {
        output::line(format!("{} is at {addrs} already", known.name));
        return Ok(());
    }
    check_nobodys(&map, known, &addrs)?;
    let kept = Beside::of(&dir, 0);
    // Its own present ones are not free, and need not be.
    for addr in addrs.iter().filter(|addr| !before.addr.contains(addr)) {
        make::listen_at(&[addr.ip()], addr.port(), &kept)?;
    }
    let put = |dir: &mut ClusterDir, addrs: &Addrs| {
        dir.keep(|file| {
            for node in file.nodes.iter_mut().filter(|node| node.id == known.id) {
                node.addr = addrs.clone();
            }
        })
    };
    put(&mut dir, &addrs)?;
    if let Err(error) = restart_node(&dir, &before.name, known.id) {
        // Where the file has the new ones already, an interrupted run has put them there.
        let parsed = known.addrs.iter().filter_map(|addr| addr.parse().ok()).collect();
        let was = if before.addr == addrs { Addrs::new(parsed).unwrap_or(before.addr) } else { before.addr };
        put(&mut dir, &was)?;
        super::up::start(&dir, false).with_context(|| {
            format!(
                "{error:#}; {} is at {was} again in cluster.toml, and does not serve there either",
                known.name
            )
        })?;
        return Err(error.context(format!("{} serves at {was}, as before", known.name)));
    }
    output::line(format!("node {} is at {addrs} now; the others follow by themselves", known.name));
    if dir.file.manager_here {
        output::line(format!("the manager stays at {}", dir.file.manager));
    }
    Ok(())
}

/// Refuses what the manager would: an address of another node.
fn check_nobodys(map: &ClusterMap, node: &NodeEntry, addrs: &Addrs) -> Result<()> {
    for other in map.nodes.iter().filter(|other| other.id != node.id) {
        let parsed = |addr: &String| addr.parse::<SocketAddr>().ok();
        if let Some(addr) = other.addrs.iter().filter_map(parsed).find(|addr| addrs.contains(addr)) {
            bail!("{addr} is the address of node {}; give each node addresses of its own", other.name);
        }
    }
    Ok(())
}
