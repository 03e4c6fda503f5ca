//! `ropewalk net sizing`: how many connections a cluster should have.

use anyhow::{Result, ensure};
use net::sizing::{self, Cluster};
use serde::Serialize;

use crate::{args::Sizing, output};

/// Cluster sizes that are shown.
const NODES: [u32; 13] = [2, 3, 5, 8, 12, 16, 24, 32, 64, 128, 250, 500, 1000];

/// Draws of a simulation, and its seed: the same figures every time.
const DRAWS: u32 = 2000;

const SEED: u64 = 1;

#[derive(Serialize)]
struct SizingRow {
    cluster: Cluster,
    proposal: sizing::Proposal,
    /// Probability that chance puts all connections of a pair on one link.
    all_on_one_link: f64,
    /// Part of a node's rate that gets through with one connection a peer, and with the number proposed.
    one: sizing::Simulated,
    proposed: sizing::Simulated,
}

/// `ropewalk net sizing`.
pub fn sizing(args: &Sizing) -> Result<()> {
    ensure!(
        args.node_gbit > 0.0 && args.connection_gbit > 0.0,
        "--node-gbit and --connection-gbit must be above 0"
    );
    let row = |nodes: u32| {
        let cluster = Cluster {
            nodes,
            links: args.links,
            node_rate: args.node_gbit * 1e9 / 8.0,
            connection_rate: args.connection_gbit * 1e9 / 8.0,
            active: args.active.unwrap_or(nodes - 1).clamp(1, nodes - 1),
            limit: args.limit,
        };
        let proposal = sizing::propose(&cluster);
        SizingRow {
            cluster,
            proposal,
            all_on_one_link: sizing::all_on_one_link(proposal.connections, args.links),
            one: sizing::simulate(&cluster, 1, DRAWS, SEED),
            proposed: sizing::simulate(&cluster, proposal.connections, DRAWS, SEED),
        }
    };
    let nodes: Vec<u32> = args.nodes.map_or(NODES.to_vec(), |n| vec![n]);
    let rows: Vec<SizingRow> = nodes.into_iter().map(row).collect();
    if args.json {
        return output::json(&rows);
    }
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let cells = |r: &SizingRow| {
        vec![
            r.cluster.nodes.to_string(),
            r.cluster.active.to_string(),
            r.proposal.k_balance.to_string(),
            r.proposal.k_bandwidth.to_string(),
            r.proposal.connections.to_string(),
            format!("{:.1} %", r.all_on_one_link * 100.0),
            percent(r.one.by_chance),
            percent(r.proposed.by_chance),
            percent(r.proposed.placed),
        ]
    };
    output::table(
        &[
            "NODES",
            "ACTIVE PEERS",
            "k_balance",
            "k_bw",
            "PROPOSED",
            "ALL ON ONE LINK",
            "1 BY CHANCE",
            "PROPOSED BY CHANCE",
            "PLACED",
        ],
        rows.iter().map(cells).collect(),
    );
    output::line(format!(
        "\nmaxTcpConnsPerNodeConn for nodes with {} links, {} Gbit/s in all, {} Gbit/s on one connection; the last \
         three\ncolumns are the part of a node's rate that gets through, simulated ({DRAWS} draws).",
        args.links, args.node_gbit, args.connection_gbit
    ));
    Ok(())
}
