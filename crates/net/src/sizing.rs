//! How many connections two nodes should have: the rule, and what it is worth by simulation.
//! Pure computation. Sources: the two anchors of the multi-connection talk (1 connection in a cluster of 500
//! nodes, several in one of 5), and IBM's starting rule of one connection for each 25 Gbit/s.
//!
//! - `k_balance = ceil(64 / (nodes - 1))`: flows hashed by chance use 91 % of two links when there are 64.
//! - `k_bw = ceil(node rate / (rate of one connection x peers active at once))`.
//! - `k = clamp(max(k_balance, k_bw), 1, limit)`.

use serde::Serialize;

/// Flows of a node from which on chance alone spreads them well.
const FLOWS_WANTED: u32 = 64;

/// What a cluster is like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Nodes, at least 2.
    pub nodes: u32,
    /// Links of each node.
    pub links: u32,
    /// What all links of a node carry, bytes a second.
    pub node_rate: f64,
    /// What one connection carries, bytes a second.
    pub connection_rate: f64,
    /// Peers a node exchanges data with at the same time; at most nodes - 1.
    pub active: u32,
    /// The most connections allowed.
    pub limit: u32,
}

/// The proposal for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// Connections so that chance spreads the flows of a node well.
    pub k_balance: u32,
    /// Connections to fill a node's links through its active peers.
    pub k_bandwidth: u32,
    /// Connections to have.
    pub connections: u32,
}

/// The rule.
pub fn propose(c: &Cluster) -> Proposal {
    let peers = c.nodes.saturating_sub(1).max(1);
    let active = c.active.clamp(1, peers);
    let k_balance = FLOWS_WANTED.div_ceil(peers);
    let ratio = c.node_rate / (c.connection_rate * f64::from(active));
    // A float to integer conversion saturates; the clamp below bounds it.
    let k_bandwidth = (ratio.ceil() as u32).max(1);
    Proposal { k_balance, k_bandwidth, connections: k_balance.max(k_bandwidth).clamp(1, c.limit.max(1)) }
}

/// The expected share of the fullest of `links` links when `flows` equal flows are each given one by chance.
/// Exact: by the distribution of the fullest, link after link.
pub fn fullest_share(flows: u32, links: u32) -> f64 {
    let (flows, links) = (flows.max(1) as usize, links.max(1) as usize);
    // P(fullest <= m) = flows! / links^flows x [x^flows] (sum over i <= m of x^i / i!)^links, in logarithms.
    // Each term is weighted as of a Poisson distribution around the mean, so that it stays within a float.
    let mean = flows as f64 / links as f64;
    let mut log_factorial = vec![0.0; flows + 1];
    (1..=flows).for_each(|i| log_factorial[i] = log_factorial[i - 1] + (i as f64).ln());
    let at_most = |m: usize| {
        // ways[f]: the probability, up to the factor above, that f flows are on the links so far.
        let term = |i: usize| (i as f64 * mean.ln() - mean - log_factorial[i]).exp();
        let mut ways: Vec<f64> = (0..=flows).map(|f| if f <= m { term(f) } else { 0.0 }).collect();
        for _ in 1..links {
            ways = (0..=flows).map(|f| (0..=m.min(f)).map(|i| ways[f - i] * term(i)).sum()).collect();
        }
        let scale = log_factorial[flows] - flows as f64 * (flows as f64).ln() + flows as f64;
        if ways[flows] > 0.0 { (ways[flows].ln() + scale).exp() } else { 0.0 }
    };
    let mut expected = 0.0;
    let mut below = 0.0;
    for m in flows.div_ceil(links)..=flows {
        let now = if m == flows { 1.0 } else { at_most(m).min(1.0) };
        expected += m as f64 * (now - below);
        below = now;
        if below > 1.0 - 1e-12 {
            break;
        }
    }
    expected / flows as f64
}

/// The probability that chance puts all `connections` of a pair on one of `links` links.
pub fn all_on_one_link(connections: u32, links: u32) -> f64 {
    f64::from(links.max(1)).powi(1 - connections.max(1) as i32)
}

/// The expected number of different links that `connections` use when each is given one of `links` by chance;
/// placed they use the lower of both numbers.
pub fn expected_links(connections: u32, links: u32) -> f64 {
    let links = f64::from(links.max(1));
    links * (1.0 - (1.0 - 1.0 / links).powi(connections as i32))
}

/// What a simulation of a cluster gives: each active pair has `connections` connections, each on a link
/// drawn at both ends, all with as much to send as gets through.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// Part of a node's rate that gets through with links drawn by chance, mean over nodes and draws.
    pub by_chance: f64,
    /// The same with each pair's connections placed on its links in turn.
    pub placed: f64,
}

/// Simulates `draws` times one node that sends equal amounts to its active peers and is done when the last
/// is: the fullest link, or the slowest connection, holds it up. `seed` makes it repeatable.
pub fn simulate(c: &Cluster, connections: u32, draws: u32, seed: u64) -> Simulated {
    let active = c.active.clamp(1, c.nodes.saturating_sub(1).max(1));
    let flows = active * connections.max(1);
    let links = c.links.max(1) as usize;
    let mut random = Random(seed);
    let used = |loads: &[u32]| {
        let fullest = f64::from(*loads.iter().max().unwrap_or(&1)) / f64::from(flows);
        let by_links = 1.0 / (links as f64 * fullest);
        let by_connections = f64::from(flows) * c.connection_rate / c.node_rate;
        by_links.min(by_connections).min(1.0)
    };
    let mut sums = (0.0, 0.0);
    for _ in 0..draws.max(1) {
        let mut chance = vec![0; links];
        (0..flows).for_each(|_| chance[random.below(links)] += 1);
        let mut placed = vec![0; links];
        for _ in 0..active {
            // Each pair begins where it likes; its own connections take the links in turn.
            let first = random.below(links);
            (0..connections.max(1) as usize).for_each(|i| placed[(first + i) % links] += 1);
        }
        sums.0 += used(&chance);
        sums.1 += used(&placed);
    }
    let mean = |sum: f64| sum / f64::from(draws.max(1));
    Simulated { by_chance: mean(sums.0), placed: mean(sums.1) }
}

/// A small seeded generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: u32) -> Cluster {
        Cluster { nodes, links: 2, node_rate: 12.5e9, connection_rate: 5e9, active: nodes - 1, limit: 16 }
    }

    #[test]
    fn the_anchors_of_the_talk() {
        assert_eq!(propose(&cluster(500)).connections, 1);
        assert_eq!(propose(&cluster(5)).connections, 16);
        assert_eq!(propose(&Cluster { limit: 8, ..cluster(5) }).connections, 8);
        assert_eq!(propose(&cluster(2)).k_balance, 64);
        assert_eq!(propose(&cluster(65)).k_balance, 1);
        for nodes in 2..=1000 {
            let p = propose(&cluster(nodes));
            assert!((1..=16).contains(&p.connections));
            assert!(p.connections <= propose(&cluster(nodes.max(3) - 1)).connections, "it never grows");
        }
    }

    #[test]
    fn bandwidth_asks_for_connections_when_few_peers_are_active() {
        // 100 Gbit/s, 5 GB/s on one connection to write and 7 to read: 3 and 2.
        let one = |rate| propose(&Cluster { active: 1, connection_rate: rate, ..cluster(500) });
        assert_eq!((one(5e9).k_bandwidth, one(7e9).k_bandwidth), (3, 2));
        // One for each 25 Gbit/s.
        assert_eq!(
            propose(&Cluster { active: 1, connection_rate: 25e9 / 8.0, ..cluster(500) }).connections,
            4
        );
        let wide = Cluster { active: 1, node_rate: 25e9, connection_rate: 25e9 / 8.0, ..cluster(500) };
        assert_eq!(propose(&wide).connections, 8);
    }

    #[test]
    fn shares_of_the_fuller_link() {
        let two = [(1, 1.0), (2, 0.75), (4, 0.688), (8, 0.637), (16, 0.598), (32, 0.570), (64, 0.550)];
        let four =
            [(1, 1.0), (2, 0.62), (4, 0.53), (8, 0.44), (16, 0.38), (32, 0.34), (64, 0.32), (128, 0.30)];
        for (flows, share) in two.into_iter().chain([(128, 0.535), (500, 0.518)]) {
            assert!((fullest_share(flows, 2) - share).abs() < 0.0006, "{flows}: {}", fullest_share(flows, 2));
        }
        for (flows, share) in four {
            assert!((fullest_share(flows, 4) - share).abs() < 0.006, "{flows}: {}", fullest_share(flows, 4));
        }
    }

    #[test]
    fn links_that_a_pair_uses_by_chance() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.0055, "{a} is not {b}");
        for (k, all) in [(1, 1.0), (2, 0.5), (4, 0.125), (6, 0.031), (8, 0.008)] {
            near(all_on_one_link(k, 2), all);
        }
        for (k, links) in [(1, 1.0), (2, 1.5), (4, 1.875), (6, 1.969), (8, 1.992)] {
            near(expected_links(k, 2), links);
        }
        for (k, links) in [(1, 1.0), (2, 1.75), (4, 2.73), (6, 3.29), (8, 3.60), (16, 3.96)] {
            near(expected_links(k, 4), links);
        }
    }

    #[test]
    fn the_simulation_agrees_with_the_exact_shares_and_placing_beats_chance() {
        let pair = |connections| {
            let c = Cluster { nodes: 2, connection_rate: 12.5e9, ..cluster(2) };
            simulate(&c, connections, 20_000, 7)
        };
        for connections in [2, 4, 8] {
            let simulated = pair(connections);
            assert!((simulated.placed - 1.0).abs() < 1e-9);
            // The mean of the inverse is not the inverse of the mean, but close to it.
            let usable = 0.5 / fullest_share(connections, 2);
            assert!((simulated.by_chance - usable).abs() < 0.09, "{connections}: {simulated:?} {usable}");
        }
        assert!((pair(2).by_chance - 0.75).abs() < 0.01, "half of the draws collide");
        assert!((pair(1).placed - 0.5).abs() < 1e-9, "one connection fills one link");
        assert_eq!(simulate(&cluster(9), 3, 50, 1), simulate(&cluster(9), 3, 50, 1), "repeatable");
    }
}
