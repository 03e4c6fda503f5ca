//! What is read again comes from the server's memory, and is what the pdisk would give: after an overwrite,
//! a delete and a damaged strip too. Read once is not kept.

#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;

use crate::common::*;

fn hits(cluster: &Cluster) -> u64 {
    cluster.nodes.iter().flatten().map(|node| node.server.cache_use().hit_bytes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_set_that_fits_is_served_from_memory_and_never_stale() {
    let cluster = Cluster::start("2+1p", 1 << 20, 3, 1).await;
    let mut client = cluster.patient_client(|endpoint| Arc::new(stripe::NetTransport::new(endpoint)));
    cluster.seen().await;
    for block in 0..4 {
        client.put(block, content(block, 256)).await;
    }
    client.adopt_all().await;
    client.check_all().await;
    assert_eq!(hits(&cluster), 0, "a first read");
    client.check_all().await;
    client.check_all().await;
    assert_eq!(hits(&cluster), 4 << 20, "the third read of all");

    client.patch(1, 8192, &content(77, 3)).await;
    client.adopt_all().await;
    for _ in 0..3 {
        client.check_all().await;
    }
    client.put(2, content(99, 100)).await;
    client.delete(3).await;
    client.adopt_all().await;
    for _ in 0..3 {
        client.check_all().await;
    }
    let before = hits(&cluster);
    for node in cluster.nodes.iter().flatten() {
        node.server.resize_cache(0);
        assert_eq!(node.server.cache_use().used, 0);
    }
    client.check_all().await;
    assert_eq!(hits(&cluster), before);
}
