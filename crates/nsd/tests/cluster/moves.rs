//! Strips that move while those are away who know what there is.

#![allow(clippy::unwrap_used)] // tests

use base::{Epoch, GroupId, NodeId, PdiskId, StripIndex};
use wire::map::{PdiskState, PoolEntry, StripMove};

use crate::common::*;

const BLOCK: u32 = 256 << 10;
const BLOCKS: u64 = 24;

fn change_pool(cluster: &Cluster, change: impl FnOnce(&mut PoolEntry, Epoch)) {
    cluster.manager.change(|map, epoch| {
        change(&mut map.pools[0], epoch);
        map.pools[0].changed = epoch;
    });
}

/// A strip is to move to another pdisk, as the manager puts it into the map.
fn begin(cluster: &Cluster, group: GroupId, strip: usize, to: PdiskId) -> StripMove {
    let strip = StripIndex(strip as u8);
    change_pool(cluster, |pool, since| {
        pool.moves.push(StripMove { group, strip, to, since });
        pool.moves.sort_unstable();
    });
    let view = cluster.manager.view();
    *view.pools[0].moves.iter().find(|m| (m.group, m.strip) == (group, strip)).unwrap()
}

/// All of it is there: the table names the new place.
async fn switch(cluster: &Cluster, what: StripMove) {
    wait(|| cluster.manager.is_filled(what)).await;
    change_pool(cluster, |pool, _| {
        pool.moves.retain(|m| *m != what);
        pool.table[usize::from(pool.width) * what.group.0 as usize + usize::from(what.strip.0)] = what.to;
    });
    cluster.seen().await;
}

/// Waits until a move is done, or says that it waits; which of these.
async fn waits(cluster: &Cluster, what: StripMove) -> bool {
    let says = || cluster.manager.waits(what.to).contains("those who know what there is are away");
    wait(|| cluster.manager.is_filled(what) || says()).await;
    !cluster.manager.is_filled(what)
}

/// Blocks of which one data strip was written, before and after the pdisks went that know of it beside that strip's own.
struct Stage {
    cluster: Cluster,
    client: Client,
    group: GroupId,
    /// Members of the first block's group, and who is in none of its places.
    members: Vec<PdiskId>,
    to: Vec<PdiskId>,
}

async fn stage(code: &str, nodes: u32, away: &[usize]) -> Stage {
    let mut cluster = Cluster::start(code, BLOCK, nodes, 1).await;
    let mut client = cluster.client();
    cluster.seen().await;
    for block in 0..BLOCKS / 2 {
        client.put(block, content(block, 1)).await;
    }
    client.adopt_all().await;
    let map = cluster.manager.view();
    let group = client.io.view().pool(POOL).unwrap().group_of(stripe(0));
    let members = map.group_members(POOL, group).to_vec();
    let to = map.pdisks.iter().map(|p| p.id).filter(|id| !members.contains(id)).collect();
    for &at in away {
        let node = members[at].0;
        cluster.kill(node - 1).await;
        cluster.manager.lost_node(NodeId(node));
        cluster.seen().await;
    }
    for block in 0..BLOCKS {
        if block % 2 == 0 || block >= BLOCKS / 2 {
            client.put(block, content(100 + block, 1)).await;
        }
    }
    client.adopt_all().await;
    Stage { cluster, client, group, members, to }
}

impl Stage {
    /// Everything is where the map says, and as it was written.
    async fn check(&self) {
        self.client.check_all().await;
        for (block, bytes) in &self.client.blocks {
            self.cluster.prove(*block, Some(bytes)).await;
        }
    }
}

/// The first data strip, or copy, moves: as long as nobody else knows which blocks it has, the move is not done.
async fn a_move_waits_for_those_who_know(code: &str, nodes: u32, away: &[usize]) {
    let mut stage = stage(code, nodes, away).await;
    let what = begin(&stage.cluster, stage.group, 0, stage.to[0]);
    assert!(waits(&stage.cluster, what).await, "the move is done without those who know what there is");
    // Not what comes meanwhile either.
    stage.client.put(BLOCKS, content(BLOCKS, 1)).await;
    for &at in away {
        stage.cluster.start_node(stage.members[at].0 - 1).await;
    }
    stage.client.adopt_all().await;
    stage.cluster.all_ok().await;
    switch(&stage.cluster, what).await;
    stage.client.adopt_all().await;
    stage.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_the_other_copy() {
    a_move_waits_for_those_who_know("2way", 4, &[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_the_only_parity() {
    a_move_waits_for_those_who_know("2+1p", 4, &[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_one_of_two_parities() {
    a_move_waits_for_those_who_know("4+2p", 7, &[4, 5]).await;
}

/// The other copy is given up. What moves waits until it is made anew elsewhere: then that knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_waits_for_the_heir_of_a_copy_that_is_given_up() {
    let stage = stage("2way", 4, &[1]).await;
    let lost = stage.members[1];
    stage.cluster.manager.change(|map, epoch| {
        let entry = map.pdisks.iter_mut().find(|p| p.id == lost).unwrap();
        (entry.state, entry.changed, entry.leaving) = (PdiskState::Failed, epoch, true);
    });
    let what = begin(&stage.cluster, stage.group, 0, stage.to[0]);
    assert!(waits(&stage.cluster, what).await, "the move is done without those who know what there is");
    let heir = begin(&stage.cluster, stage.group, 1, stage.to[1]);
    switch(&stage.cluster, heir).await;
    switch(&stage.cluster, what).await;
    stage.client.adopt_all().await;
    stage.client.check_all().await;
    let view = stage.cluster.manager.view();
    assert_eq!(view.group_members(POOL, stage.group), [stage.to[0], stage.to[1]]);
    for (block, bytes) in &stage.client.blocks {
        if stage.client.io.view().pool(POOL).unwrap().group_of(stripe(*block)) == stage.group {
            stage.cluster.prove(*block, Some(bytes)).await;
        }
    }
}

/// What is back, but has not caught up, and waits for a copy that is given up: its strips are not left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_back_is_not_left_behind() {
    let mut stage = stage("2way", 4, &[1]).await;
    let (source, lost) = (stage.members[0], stage.members[1]);
    let what = begin(&stage.cluster, stage.group, 0, stage.to[0]);
    assert!(waits(&stage.cluster, what).await, "the move is done without those who know what there is");
    stage.cluster.kill(source.0 - 1).await;
    stage.cluster.manager.lost_node(NodeId(source.0));
    stage.cluster.manager.change(|map, epoch| {
        let entry = map.pdisks.iter_mut().find(|p| p.id == lost).unwrap();
        (entry.state, entry.changed, entry.leaving) = (PdiskState::Failed, epoch, true);
    });
    stage.cluster.start_node(source.0 - 1).await;
    // What it alone has is found by who takes the other one's place.
    let heir = begin(&stage.cluster, stage.group, 1, stage.to[1]);
    wait(|| stage.cluster.manager.is_filled(heir)).await;
    // Looked at before the table names the heir: from then on it may be done at any time.
    assert!(!stage.cluster.manager.is_filled(what), "nobody who counts knew what there is");
    switch(&stage.cluster, heir).await;
    switch(&stage.cluster, what).await;
    let view = stage.cluster.manager.view();
    assert_eq!(view.group_members(POOL, stage.group), [stage.to[0], stage.to[1]]);
    for (block, bytes) in &stage.client.blocks {
        if stage.client.io.view().pool(POOL).unwrap().group_of(stripe(*block)) == stage.group {
            stage.cluster.prove(*block, Some(bytes)).await;
        }
    }
}

/// The manager is restored from a dump that is older than a move: what is where the map knows no place for is all there is.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_map_has_no_place_for_stays() {
    let stage = stage("2way", 3, &[]).await;
    let Stage { cluster, client, group, members, to } = &stage;
    let (source, to) = (members[0], to[0]);
    // Another group of which the new pdisk has nothing: it stays where it is after all.
    let map = cluster.manager.view();
    let of = |block: &u64| client.io.view().pool(POOL).unwrap().group_of(stripe(*block));
    let stays =
        client.blocks.keys().map(of).find(|g| *g != *group && !map.group_members(POOL, *g).contains(&to));
    let stays = stays.unwrap();
    let there = |id: PdiskId, group: GroupId| async move {
        let pdisk = cluster.nodes[id.0 as usize - 1].as_ref().unwrap().pdisks[0].clone();
        let states = pdisk.list_group(POOL, group, None, 512).await.unwrap();
        states.iter().filter(|s| s.adopted.is_some()).count()
    };
    let until_none = |id: PdiskId, group: GroupId| async move {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while there(id, group).await > 0 {
            assert!(std::time::Instant::now() < until, "what is elsewhere is not removed");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let before = there(source, *group).await;
    assert!(before > 0);
    let what = begin(cluster, *group, 0, to);
    switch(cluster, what).await;
    client.adopt_all().await;
    until_none(source, *group).await;
    assert_eq!(there(to, *group).await, before);

    // Both are without a place on the new pdisk now; of one the member has nothing.
    let back = begin(cluster, stays, 0, to);
    wait(|| cluster.manager.is_filled(back)).await;
    assert!(there(to, stays).await > 0);
    let place = usize::from(map.pools[0].width) * group.0 as usize;
    change_pool(cluster, |pool, _| {
        pool.moves.clear();
        pool.table[place] = source;
    });
    until_none(to, stays).await;
    assert_eq!(there(to, *group).await, before, "the only strips are removed");

    // The dump that is newer brings it back.
    change_pool(cluster, |pool, _| pool.table[place] = to);
    cluster.seen().await;
    stage.check().await;
}
