//! Where the jobs of each client node run. A node that the run made is a host with a link of its own: its jobs run there, within the
//! control groups of its mount. A node whose directories were named is this machine: its jobs may be limited, what serves the
//! directories is not ours.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::setting::made;
use crate::{
    cell::Cell,
    engine::{
        context::{Context, EngineError},
        process,
    },
    limits::{Asked, Limits},
    targets::{ClientNode, Side},
};

/// All client nodes; with none, jobs run on this machine as they are.
#[derive(Default)]
pub(super) struct Nodes {
    nodes: Vec<ClientNode>,
    notes: Vec<String>,
    /// Of nodes whose directories were named.
    _own: Vec<Limits>,
}

impl Nodes {
    pub(super) fn make(cell: &Cell, context: &Context<'_>) -> Result<Nodes, EngineError> {
        let asked = Asked::of(&cell.params);
        let mut all = Nodes::default();
        for n in 0..cell.step {
            let mut node = made(context, n).cloned().unwrap_or_default();
            if !node.what.is_empty() {
                all.notes.push(format!("node {}: its mount and its jobs share {}", n + 1, node.what));
            }
            if node.groups.is_empty() && !asked.is_nothing() {
                let limits = Limits::make(asked, n + 1).map_err(EngineError::Target)?;
                node.groups = limits.groups().to_vec();
                node.memory = asked.memory;
                all._own.push(limits);
            }
            all.nodes.push(node);
        }
        if !all._own.is_empty() {
            all.notes.push(format!(
                "the jobs of each client node have {} (control groups); what serves its directories is not limited",
                asked.words()
            ));
        }
        Ok(all)
    }

    fn of(&self, number: u32) -> Option<&ClientNode> {
        self.nodes.get((number as usize).wrapping_sub(1))
    }

    /// A command on a node, from 1.
    pub(super) fn command(&self, number: u32, program: &Path) -> Command {
        let namespace = self.of(number).and_then(|node| node.namespace.clone());
        let side = Side { namespace, address: String::new() };
        process::command(Some(&side), &program.display().to_string())
    }

    /// The groups of a node as the supervisor takes them.
    pub(super) fn groups(&self, number: u32) -> String {
        match self.of(number).map(|node| &node.groups[..]).unwrap_or_default() {
            [] => "-".into(),
            own => own.iter().map(|path: &PathBuf| path.display().to_string()).collect::<Vec<_>>().join(","),
        }
    }

    /// The least memory of a node.
    pub(super) fn memory(&self) -> Option<u64> {
        self.nodes.iter().filter_map(|node| node.memory).min()
    }

    /// What each has, for the report.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.notes.iter().cloned()
    }
}
