//! All copies of blocks are given up: their moves end all the same, and what is lost is an error, never zeros, until it is written
//! anew as a whole.

#![allow(clippy::unwrap_used)] // tests

use base::{Epoch, NodeId, OpClass, PdiskId, StripIndex};
use stripe::{BlockMeta, StripeError, WriteStripe};
use wire::{
    map::{ClusterMap, PdiskState, StripMove},
    strip::Range,
};

use crate::common::*;

const BLOCK: u32 = 256 << 10;
const BLOCKS: u64 = 16;
const UNITS: u32 = BLOCK / UNIT;

fn give_up(map: &mut ClusterMap, lost: &[PdiskId], epoch: Epoch) {
    for entry in map.pdisks.iter_mut().filter(|p| lost.contains(&p.id)) {
        (entry.state, entry.changed, entry.leaving) = (PdiskState::Failed, epoch, true);
    }
}

/// Whether a block cannot be read, as an error says.
async fn is_lost(client: &Client, block: u64) -> bool {
    let whole = [Range { offset: 0, len: BLOCK }];
    match client.io.read(stripe(block), POOL, &whole, OpClass::Read).await {
        Ok(_) => false,
        Err(StripeError::Unavailable { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

async fn story(code: &str, nodes: u32) {
    let mut cluster = Cluster::start(code, BLOCK, nodes, 1).await;
    let mut client = cluster.client();
    cluster.seen().await;
    for block in 0..BLOCKS {
        client.put(block, content(block, if block % 2 == 0 { UNITS } else { 3 })).await;
    }
    client.adopt_all().await;
    let view = client.io.view();
    let group = view.pool(POOL).unwrap().group_of(stripe(0));
    let lost = view.members(POOL, group).to_vec();
    for pdisk in &lost {
        cluster.kill(pdisk.0 - 1).await;
        cluster.manager.lost_node(NodeId(pdisk.0));
    }
    cluster.manager.change(|map, epoch| give_up(map, &lost, epoch));
    // A copy of each goes to one of the others; all groups that have lost all of theirs.
    cluster.manager.change(|map, epoch| {
        let pool = &mut map.pools[0];
        let width = usize::from(pool.width);
        for (g, row) in (0u32..).zip(pool.table.chunks_exact(width)) {
            if !row.iter().all(|id| lost.contains(id)) {
                continue;
            }
            let others = (1..=nodes).map(PdiskId).filter(|id| !lost.contains(id));
            let to = (0u8..).zip(others).take(width).map(|(i, to)| (StripIndex(i), to));
            let group = base::GroupId(g);
            pool.moves.extend(to.map(|(strip, to)| StripMove { group, strip, to, since: epoch }));
        }
        pool.moves.sort_unstable();
        pool.changed = epoch;
    });
    let moves = cluster.manager.view().pools[0].moves.clone();
    assert!(moves.iter().any(|m| m.group == group));
    wait(|| moves.iter().all(|m| cluster.manager.is_filled(*m))).await;
    cluster.manager.change(|map, epoch| {
        let pool = &mut map.pools[0];
        for m in pool.moves.split_off(0) {
            pool.table[usize::from(pool.width) * m.group.0 as usize + usize::from(m.strip.0)] = m.to;
        }
        pool.changed = epoch;
    });
    cluster.seen().await;

    let of = |block: u64| view.pool(POOL).unwrap().group_of(stripe(block));
    let gone: Vec<u64> = (0..BLOCKS).filter(|b| moves.iter().any(|m| m.group == of(*b))).collect();
    for &block in &gone {
        assert!(is_lost(&client, block).await, "block {block} is read although all of its copies are gone");
        // A part of it: what is around that is not zeros. Some writers know what there was, others only that the block is allocated.
        let version = client.version();
        let (part, unknown) = (content(900, 1), BlockMeta::unknown(client.code.data().into()));
        let write = WriteStripe {
            stripe: stripe(block),
            pool: POOL,
            version,
            len: client.blocks[&block].len() as u32,
            dirty: vec![Range { offset: 0, len: UNIT }],
            pieces: client.pieces(0, &part),
            previous: client.metas.get(&block).filter(|_| block % 4 < 2).cloned().or(Some(unknown)),
            replaces: false,
        };
        let outcome = client.io.write(write).await;
        assert!(matches!(outcome, Err(StripeError::Unavailable { .. })), "block {block}: {outcome:?}");
        assert!(is_lost(&client, block).await, "block {block} has become zeros");
    }
    // The others are as they were; those that are lost are whole again when they are written as a whole.
    let kept: Vec<u64> = (0..BLOCKS).filter(|b| !gone.contains(b)).collect();
    for block in &kept {
        let bytes = client.blocks[block].clone();
        assert!(client.read(*block).await[..bytes.len()] == bytes, "block {block} differs");
    }
    for &block in &gone {
        client.put(block, content(700 + block, if block % 2 == 0 { UNITS } else { 3 })).await;
    }
    client.adopt_all().await;
    client.check_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_copy_is_given_up() {
    story("1way", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_copies_are_given_up() {
    story("2way", 5).await;
}
