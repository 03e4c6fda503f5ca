//! What people call the processes at the other ends of connections, for logs, errors and listings; nothing is decided by it.
//!
//! A node is called as the map has it, where this process has one: its process may still know an older name. Others are called
//! what they say in the handshake, as members of the cluster.

use std::{collections::HashMap, net::SocketAddr, sync::RwLock};

use base::NodeId;

/// Longest name that is taken from a peer, bytes.
pub(crate) const NAME_MAX: usize = u8::MAX as usize;

/// The names of nodes, and of who listens where.
#[derive(Default)]
pub(crate) struct Names(RwLock<(HashMap<NodeId, String>, HashMap<SocketAddr, String>)>);

/// A name that came from elsewhere, fit to be shown.
pub(crate) fn shown(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_MAX)].replace(char::is_control, " ")
}

impl Names {
    /// These, and no others, from now on.
    pub(crate) fn set(&self, all: impl Iterator<Item = (Option<NodeId>, String, Vec<SocketAddr>)>) {
        let (mut nodes, mut addrs) = (HashMap::new(), HashMap::new());
        for (node, name, at) in all {
            addrs.extend(at.into_iter().map(|addr| (addr, name.clone())));
            nodes.extend(node.map(|node| (node, name)));
        }
        *self.0.write().unwrap_or_else(|e| e.into_inner()) = (nodes, addrs);
    }

    /// What a process of `node` is called that calls itself `own`.
    pub(crate) fn of(&self, node: NodeId, own: &str) -> String {
        let names = self.0.read().unwrap_or_else(|e| e.into_inner());
        match names.0.get(&node) {
            Some(name) => name.clone(),
            None if own.is_empty() => node.to_string(),
            None => own.to_owned(),
        }
    }

    /// An address, with the name of who listens there.
    pub(crate) fn at(&self, addr: SocketAddr) -> String {
        let names = self.0.read().unwrap_or_else(|e| e.into_inner());
        names.1.get(&addr).map_or_else(|| addr.to_string(), |name| format!("{name} at {addr}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_goes_before_what_a_process_says_and_nothing_that_it_says_breaks_a_line() {
        let names = Names::default();
        let addr = "192.0.2.3:7451".parse().unwrap_or_else(|_| unreachable!());
        assert_eq!((names.of(NodeId(3), "n3"), names.of(NodeId(3), "")), ("n3".into(), "node3".into()));
        assert_eq!(names.at(addr), "192.0.2.3:7451");
        let all = [(Some(NodeId(3)), "ada".to_owned(), vec![addr])];
        names.set(all.into_iter());
        assert_eq!((names.of(NodeId(3), "n3"), names.of(NodeId(4), "n4")), ("ada".into(), "n4".into()));
        assert_eq!(names.at(addr), "ada at 192.0.2.3:7451");
        let long = format!("a\nb{}", "ä".repeat(NAME_MAX));
        assert!(shown(&long).starts_with("a b") && shown(&long).len() <= NAME_MAX);
    }
}
