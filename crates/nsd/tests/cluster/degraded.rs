//! A node dies, comes back, catches up: nothing is lost, every stripe is proved, and then another dies.

#![allow(clippy::unwrap_used)] // tests

use crate::common::*;
use base::NodeId;

const BLOCK: u32 = 256 << 10;

async fn story(code: &str, nodes: u32, per_node: u32) {
    let seed = seed();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let mut cluster = Cluster::start(code, BLOCK, nodes, per_node).await;
    let mut client = cluster.client();
    cluster.seen().await;
    let units = BLOCK / UNIT;
    let mut rng = Rng(seed);

    // Blocks of all lengths, overwritten whole and in parts.
    for block in 0..24 {
        client.put(block, content(block, 1 + rng.below(units))).await;
    }
    client.check_all().await;
    for round in 0..40u64 {
        let block = u64::from(rng.below(24));
        let at = rng.below(units - 4);
        client.patch(block, at * UNIT, &content(1000 + round, 1 + rng.below(4))).await;
    }
    client.put(3, content(333, units)).await;
    client.put(4, content(334, 1)).await; // shorter than before, or longer
    client.check_all().await;

    // A node is gone; the map does not say so yet: reads go round it.
    cluster.kill(0).await;
    client.check_all().await;
    cluster.manager.lost_node(NodeId(1));
    cluster.seen().await;
    client.check_all().await;

    // Writes while it is missing: new blocks, whole, parts, deletes.
    for block in 24..32 {
        client.put(block, content(block, 1 + rng.below(units))).await;
    }
    for round in 0..30u64 {
        let block = u64::from(rng.below(32));
        client.patch(block, rng.below(units - 4) * UNIT, &content(2000 + round, 1 + rng.below(4))).await;
    }
    client.put(5, content(555, units)).await;
    client.delete(7).await;
    client.delete(8).await;
    client.put(8, content(888, 1)).await; // begun anew, shorter
    client.check_all().await;

    // It comes back, and is written to while it catches up.
    cluster.start_node(0).await;
    cluster.seen().await;
    for round in 0..20u64 {
        let block = [0u64, 1, 2, 9, 30, 31][rng.below(6) as usize];
        client.patch(block, rng.below(units - 4) * UNIT, &content(3000 + round, 1 + rng.below(4))).await;
    }
    client.check_all().await;
    client.adopt_all().await;
    cluster.all_ok().await;
    cluster.seen().await;
    for block in 0..32 {
        cluster.prove(block, client.blocks.get(&block).map(Vec::as_slice)).await;
    }
    let status = cluster.nodes[0].as_ref().unwrap().server.status();
    assert!(
        status.pdisks.iter().all(|p| p.catch_up.as_ref().is_some_and(|c| c.done && c.installed > 0)),
        "{status:?}"
    );
    client.check_all().await;

    // Another one goes: what the first has made up is needed now.
    cluster.kill(1).await;
    cluster.manager.lost_node(NodeId(2));
    cluster.seen().await;
    client.check_all().await;
    for round in 0..10u64 {
        let block = 10 + u64::from(rng.below(10));
        client.patch(block, rng.below(units - 4) * UNIT, &content(4000 + round, 2)).await;
    }
    client.check_all().await;
}

/// Files are deleted while a node catches up: what it makes anew from a listing made before the delete
/// does not come back, what only it still has goes, and what is prepared there from an earlier life as well.
async fn deletes_while_a_node_catches_up(code: &str, nodes: u32, per_node: u32) {
    const BLOCKS: u64 = 96;
    let mut cluster = Cluster::start(code, BLOCK, nodes, per_node).await;
    let mut client = cluster.client();
    cluster.seen().await;
    let mut rng = Rng(seed());
    let units = BLOCK / UNIT;
    for block in 0..BLOCKS {
        client.put(block, content(block, 1 + rng.below(units))).await;
    }
    cluster.kill(0).await;
    cluster.manager.lost_node(NodeId(1));
    cluster.seen().await;
    // All of it is old there; some is gone, and some of that begun anew, shorter.
    for block in 0..BLOCKS {
        match rng.below(4) {
            0 => client.delete(block).await,
            1 => {
                client.delete(block).await;
                client.put(block, content(2000 + block, 1)).await;
            }
            _ => client.put(block, content(1000 + block, units)).await,
        }
    }
    cluster.start_node(0).await;
    cluster.seen().await;
    let mut order: Vec<u64> = client.blocks.keys().copied().collect();
    order.sort_unstable_by_key(|block| content(seed() + block, 1)[0]);
    for block in order.into_iter().take(BLOCKS as usize / 2) {
        client.delete(block).await;
    }
    client.adopt_all().await;
    cluster.all_ok().await;
    for block in 0..BLOCKS {
        cluster.prove(block, client.blocks.get(&block).map(Vec::as_slice)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_while_a_node_catches_up_4_2() {
    deletes_while_a_node_catches_up("4+2p", 4, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_while_a_node_catches_up_3way() {
    deletes_while_a_node_catches_up("3way", 4, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reed_solomon_4_2() {
    story("4+2p", 4, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_copies() {
    story("3way", 4, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reed_solomon_2_1() {
    story("2+1p", 4, 1).await;
}
