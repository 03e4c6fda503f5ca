//! Nodes that are added, removed, renamed and moved to other addresses while the cluster runs.
//!
//! A number is given once: what was added or removed stays on record (`w NODE`), so a machine that comes back after its
//! removal is not taken for a later one. An address belongs to one node: whoever holds it is who its pdisks are asked at. It is
//! what the node's server named when it registered last, since that listens there; what an administrator sets holds until then.

use std::net::SocketAddr;

use base::{NodeId, name};
use wire::{
    map::{NodeEntry, NodeRack, PdiskEntry},
    mgr::{MgrError, NODE_ADDRS_MAX},
};

use super::{Cluster, Step, StoreOp};
use crate::keys::{self, NodeRecord, RackRecord};

/// Most nodes of a cluster: every process holds all of them.
const NODES_MAX: usize = 4096;
/// What the processes of a cluster call its manager.
const MANAGER: &str = "manager";

fn no<T>(text: String) -> Result<T, MgrError> {
    Err(MgrError::Config(text))
}

/// Refuses what cannot be a node's name.
pub fn check_name(name: &str) -> Result<(), MgrError> {
    check_word("node", name)?;
    if name == MANAGER {
        return no(format!("no node can be called {MANAGER}: that is the manager; choose another name"));
    }
    Ok(())
}

/// Refuses what cannot be a rack's name.
pub fn check_rack(name: &str) -> Result<(), MgrError> {
    check_word("rack", name)
}

pub(super) fn check_word(of: &'static str, name: &str) -> Result<(), MgrError> {
    name::check_name(of, name).map_err(|bad| MgrError::Config(bad.to_string()))
}

/// A node's addresses, each once, if they can be connected to.
pub(super) fn check_addrs(texts: &[String]) -> Result<Vec<SocketAddr>, MgrError> {
    if !(1..=NODE_ADDRS_MAX).contains(&texts.len()) {
        return no(format!("{} addresses: a node has 1 to {NODE_ADDRS_MAX}, each IP:PORT", texts.len()));
    }
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for text in texts {
        let Some(addr) = text.parse().ok().filter(|addr: &SocketAddr| addr.port() != 0) else {
            return no(format!("{text:?} is no address of a node: name IP:PORT, such as 192.0.2.7:10001"));
        };
        if addr.ip().is_unspecified() {
            return no(format!("{addr}: others need the address that they are to connect to"));
        }
        if addrs.contains(&addr) {
            return no(format!("{addr} is named twice"));
        }
        addrs.push(addr);
    }
    Ok(addrs)
}

/// As the map has them.
pub(super) fn addr_texts(addrs: &[SocketAddr]) -> Vec<String> {
    addrs.iter().map(ToString::to_string).collect()
}

/// The addresses of an entry; one of an older version may have some that say nothing.
fn addrs_of(entry: &NodeEntry) -> Vec<SocketAddr> {
    entry.addrs.iter().filter_map(|addr| addr.parse().ok()).collect()
}

fn shares(entry: &NodeEntry, addrs: &[SocketAddr]) -> Option<SocketAddr> {
    addrs_of(entry).into_iter().find(|addr| addrs.contains(addr))
}

fn check_none<'a>(
    mut nodes: impl Iterator<Item = &'a NodeEntry>,
    addrs: &[SocketAddr],
) -> Result<(), MgrError> {
    match nodes.find_map(|node| Some((node, shares(node, addrs)?))) {
        Some((node, addr)) => no(format!(
            "{addr} is the address of node {} ({}); give each node addresses of its own",
            node.name, node.id
        )),
        None => Ok(()),
    }
}

impl Cluster {
    /// A new node; its number.
    pub(super) fn add_node(
        &mut self,
        name: String,
        addrs: &[String],
        step: &mut Step,
    ) -> Result<NodeId, MgrError> {
        check_name(&name)?;
        let addrs = check_addrs(addrs)?;
        if let Some(there) = self.map.nodes.iter().find(|node| node.name == name) {
            if self.given.unused.contains(&there.id)
                && addrs_of(there) == addrs
                && self.pdisks_on(there.id).is_empty()
            {
                return Ok(there.id);
            }
            return no(format!(
                "there is a node {name} already ({}); choose another name, or remove that one first \
                 (`ropewalk node remove {name}`)",
                there.id
            ));
        }
        self.check_free(None, &addrs)?;
        if self.map.nodes.len() >= NODES_MAX {
            return no(format!("there are {NODES_MAX} nodes already; remove one that is not used any more"));
        }
        let last = self.map.nodes.iter().map(|node| node.id).max().unwrap_or_default();
        let Some(id) = last.max(self.given.last).0.checked_add(1).map(NodeId) else {
            return no("every number of a node was given".to_owned());
        };
        self.given.last = id;
        self.given.unused.insert(id);
        step.put(keys::node_key(id), &NodeRecord { used: false });
        self.bump();
        step.notes.push(format!("node {name} ({id}) is new, at {}", addr_texts(&addrs).join(", ")));
        // Above all others: they stay in order.
        self.map.nodes.push(NodeEntry { id, name, addrs: addr_texts(&addrs), session: None });
        Ok(id)
    }

    /// A node goes.
    pub(super) fn remove_node(&mut self, id: NodeId, step: &mut Step) -> Result<(), MgrError> {
        let Some(entry) = self.map.node(id) else { return no(format!("{id} is not in the cluster")) };
        let name = entry.name.clone();
        let pdisks = self.pdisks_on(id);
        let is_empty =
            |pdisk: &PdiskEntry| !pdisk.nodes.contains(&id) || self.map.pdisk_word(pdisk.id) == "replace";
        let only_serves = self.servers.contains_key(&id) && self.map.pdisks.iter().all(is_empty);
        if !pdisks.is_empty() && !only_serves {
            return no(format!(
                "{name} has pdisks: {}; empty them (`ropewalk node drain {name}`, or `pdisk fail` each if they are gone), \
                 and stop the node: then they go with it",
                pdisks.join(", ")
            ));
        }
        if self.servers.contains_key(&id) {
            return no(format!(
                "{name} serves; stop it first (`ropewalk down` on its machine). One that has just ended is known to have \
                 after {:?}",
                self.lease
            ));
        }
        self.given.last = self.given.last.max(id);
        self.given.unused.remove(&id);
        step.put(keys::node_key(id), &NodeRecord { used: true });
        self.forget_build(id, step);
        self.put_rack(id, "", step);
        self.bump();
        self.map.nodes.retain(|node| node.id != id);
        step.notes.push(format!("node {name} ({id}) is removed"));
        self.revoke_node(id, step);
        Ok(())
    }

    /// Another name, other addresses, or another rack.
    pub(super) fn set_node(
        &mut self,
        id: NodeId,
        name: Option<String>,
        addrs: Option<&[String]>,
        rack: Option<String>,
        step: &mut Step,
    ) -> Result<(), MgrError> {
        let Some(at) = self.map.nodes.iter().position(|node| node.id == id) else {
            return no(format!("{id} is not in the cluster"));
        };
        let name = name.filter(|name| *name != self.map.nodes[at].name);
        if let Some(name) = &name {
            check_name(name)?;
            if let Some(other) = self.map.nodes.iter().find(|node| node.name == *name) {
                return no(format!("there is a node {name} already ({}); choose another name", other.id));
            }
        }
        let addrs = addrs.map(check_addrs).transpose()?.filter(|new| *new != addrs_of(&self.map.nodes[at]));
        if let Some(addrs) = &addrs {
            self.check_free(Some(id), addrs)?;
        }
        if let Some(rack) = rack {
            if !rack.is_empty() {
                check_rack(&rack)?;
            }
            self.put_rack(id, &rack, step);
        }
        if name.is_none() && addrs.is_none() {
            return Ok(());
        }
        self.bump();
        let entry = &mut self.map.nodes[at];
        if let Some(name) = name {
            step.notes.push(format!("node {} ({id}) is called {name} now", entry.name));
            entry.name = name;
        }
        if let Some(addrs) = addrs {
            entry.addrs = addr_texts(&addrs);
            step.notes.push(format!("node {} ({id}) is at {} now", entry.name, entry.addrs.join(", ")));
        }
        Ok(())
    }

    /// The rack that a node is in from now on; empty: none. What this asks of pools moves by itself.
    pub(super) fn put_rack(&mut self, node: NodeId, rack: &str, step: &mut Step) {
        if self.map.rack_of(node).unwrap_or_default() == rack {
            return;
        }
        self.map.racks.retain(|of| of.node != node);
        let name = self.node_name(node);
        if rack.is_empty() {
            step.store.push(StoreOp::Delete(keys::rack_key(node)));
            step.notes.push(format!("node {name} ({node}) is in no rack now"));
        } else {
            let at = self.map.racks.partition_point(|of| of.node < node);
            self.map.racks.insert(at, NodeRack { node, rack: rack.to_owned() });
            step.put(keys::rack_key(node), &RackRecord { rack: rack.to_owned() });
            step.notes.push(format!("node {name} ({node}) is in rack {rack} now"));
        }
        self.bump();
    }

    /// A server of the node registers.
    pub(super) fn mark_used(&mut self, id: NodeId, step: &mut Step) {
        if self.given.unused.remove(&id) {
            step.put(keys::node_key(id), &NodeRecord { used: true });
        }
    }

    /// A server listens at these: nodes that are down and had one of them are not reached there any more.
    pub(super) fn take_addrs(&mut self, id: NodeId, addrs: &[SocketAddr], step: &mut Step) {
        let taker = self.node_name(id);
        for entry in self.map.nodes.iter_mut().filter(|node| node.id != id) {
            if let Some(addr) = shares(entry, addrs) {
                step.notes
                    .push(format!("node {} ({}) has lost {addr} to {taker} ({id})", entry.name, entry.id));
                entry.addrs.retain(|text| text.parse().is_ok_and(|addr| !addrs.contains(&addr)));
            }
        }
    }

    /// Refuses addresses of other nodes whose servers are registered.
    pub(super) fn check_unregistered(&self, id: NodeId, addrs: &[SocketAddr]) -> Result<(), MgrError> {
        let serves = |node: &&NodeEntry| node.id != id && self.servers.contains_key(&node.id);
        check_none(self.map.nodes.iter().filter(serves), addrs)
    }

    /// Refuses addresses of other nodes.
    fn check_free(&self, id: Option<NodeId>, addrs: &[SocketAddr]) -> Result<(), MgrError> {
        check_none(self.map.nodes.iter().filter(|node| Some(node.id) != id), addrs)
    }

    /// The names of the pdisks on a node.
    fn pdisks_on(&self, id: NodeId) -> Vec<String> {
        let on = self.map.pdisks.iter().filter(|pdisk| pdisk.nodes.contains(&id));
        on.map(|pdisk| pdisk.name.clone()).collect()
    }
}
