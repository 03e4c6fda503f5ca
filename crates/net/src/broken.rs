//! Whose memory of both was no good: processes that wrote there what they may not. They are spoken to by TCP as long as this process
//! lives.
//!
//! The number of a process is only what it says; the member and the node are what it has proven. So each is held against its node:
//! another node's process of the same number is not meant, a node that comes with number after number is spoken to by TCP as a
//! whole, and none makes room for its own by pushing out what is held against others.

use std::collections::VecDeque;

use base::{MemberId, NodeId};

/// Processes of one node; with so many of them it is the node.
const PROCESSES_MAX: usize = 16;
/// Nodes that are remembered.
const NODES_MAX: usize = 256;

/// A process, as its handshake has shown it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub member: MemberId,
    pub node: NodeId,
    /// What it says of itself.
    pub number: u64,
}

/// Those of one node.
struct Node {
    member: MemberId,
    node: NodeId,
    processes: Vec<u64>,
}

/// See the file's head; the newest nodes are first.
#[derive(Default)]
pub(crate) struct Broken(VecDeque<Node>);

impl Broken {
    fn node(&self, of: Process) -> Option<usize> {
        self.0.iter().position(|n| (n.member, n.node) == (of.member, of.node))
    }

    pub(crate) fn has(&self, process: Process) -> bool {
        self.node(process).is_some_and(|at| {
            let processes = &self.0[at].processes;
            processes.len() >= PROCESSES_MAX || processes.contains(&process.number)
        })
    }

    pub(crate) fn note(&mut self, process: Process) {
        if self.has(process) {
            return;
        }
        let Process { member, node, number } = process;
        match self.node(process) {
            Some(at) => self.0[at].processes.push(number),
            None => {
                if self.0.len() >= NODES_MAX {
                    self.forget_one();
                }
                self.0.push_front(Node { member, node, processes: vec![number] });
            }
        }
    }

    /// The oldest node of the member that has most: one that may speak as many nodes makes room among its own.
    fn forget_one(&mut self) {
        let of = |member: MemberId| self.0.iter().filter(|n| n.member == member).count();
        let most = self.0.iter().map(|n| of(n.member)).max();
        if let Some(at) = self.0.iter().rposition(|n| Some(of(n.member)) == most) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(member: u64, node: u32, number: u64) -> Process {
        Process { member: MemberId(member), node: NodeId(node), number }
    }

    /// Whatever number it says that it has, and whatever numbers others have.
    #[test]
    fn who_was_no_good_pushes_out_nobody_else() {
        let mut broken = Broken::default();
        broken.note(process(1, 1, 7));
        for number in 0..1000 {
            broken.note(process(2, 2, number));
        }
        for node in 0..1000 {
            broken.note(process(3, node, 7));
        }
        assert!(broken.has(process(1, 1, 7)) && !broken.has(process(1, 1, 8)));
        assert!(!broken.has(process(1, 2, 7)) && !broken.has(process(4, 1, 7)), "one of the same number");
        assert!(broken.has(process(2, 2, 5000)), "a node that comes with number after number");
        assert!(broken.has(process(3, 999, 7)) && !broken.has(process(3, 0, 7)));
        assert!(broken.0.len() == NODES_MAX && broken.0.iter().all(|n| n.processes.len() <= PROCESSES_MAX));
    }
}
