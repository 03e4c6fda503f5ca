//! How many connections are proposed for clusters of 2 to 1000 nodes, by rule and by simulation.

use net::sizing::{Cluster, propose, simulate};

use super::figure::{Figure, Run};

const NODES: [u32; 10] = [2, 3, 5, 10, 20, 50, 100, 200, 500, 1000];
/// 100 Gbit/s over two links; one connection carries 25 Gbit/s, as IBM's starting rule has it.
const NODE_RATE: f64 = 12.5e9;
const CONNECTION_RATE: f64 = 3.125e9;
const LIMIT: u32 = 16;
/// Draws of the simulation, and what they are drawn from.
const DRAWS: u32 = 200;
const SEED: u64 = 1;

pub(super) fn sizing() -> Vec<Figure> {
    let figure = |nodes: u32| {
        let active = (nodes - 1).min(8);
        let cluster = Cluster {
            nodes,
            links: 2,
            node_rate: NODE_RATE,
            connection_rate: CONNECTION_RATE,
            active,
            limit: LIMIT,
        };
        let p = propose(&cluster);
        let gain = simulate(&cluster, p.connections, DRAWS, SEED);
        let wanted = match nodes {
            5 => Some(LIMIT),
            500 => Some(1),
            _ => None,
        };
        Figure {
            group: "sizing",
            case: format!(
                "{nodes} nodes, 2 links, 100 Gbit/s a node, 25 a connection, {active} peers active"
            ),
            wanted: wanted.map_or("-".to_owned(), |w| format!("{w} connections")),
            seen: format!(
                "{} (k_balance {}, k_bw {}); of the rate, simulated: {:.0} % by chance, {:.0} % placed",
                p.connections,
                p.k_balance,
                p.k_bandwidth,
                gain.by_chance * 100.0,
                gain.placed * 100.0
            ),
            raw: "-".to_owned(),
            reached: wanted.map(|w| p.connections == w),
            runs: vec![Run { seen: p.connections.into(), ..Run::default() }],
        }
    };
    NODES.map(figure).into()
}
