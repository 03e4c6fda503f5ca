//! Moves, with the manager's state machine and a store that survives its restarts.
#![allow(clippy::unwrap_used)] // tests

use std::collections::BTreeSet;

use base::{GroupId, NodeId, PdiskId, PoolId};
use layout::{LayoutTable, PdiskDesc};
use wire::{
    map::{FailureDomain, PdiskState, PoolEntry, PoolPdisk, StripMove},
    mgr::{Filled, MgrReply, MgrRequest, PdiskReport, PdiskWish},
};

use super::{
    Ask, Event, NewPool,
    stage::{NOBODY, Stage, report},
};

const GROUPS: u32 = 40;

fn pool(pdisks: u32) -> PoolEntry {
    let desc = |id| PdiskDesc { id: PdiskId(id), node: NodeId(id), enclosure: None, weight: 64 << 20 };
    let descs: Vec<_> = (1..=pdisks).map(desc).collect();
    let table = LayoutTable::build("2+1p".parse().unwrap(), &descs, 0, GROUPS, 3).unwrap();
    PoolEntry {
        width: 3,
        seed: 3,
        table: table.group_ids().flat_map(|g| table.members(g).to_vec()).collect(),
        pdisks: descs
            .iter()
            .map(|d| PoolPdisk { id: d.id, array: Some(0), weight: d.weight, enclosure: None })
            .collect(),
        ..PoolEntry::default()
    }
}

fn stage() -> Stage {
    let mut stage = Stage::of(6, "2+1p", pool(6));
    (1..=6).for_each(|node| stage.register(node, 1, 0));
    stage.renew_all();
    stage
}

fn entry(stage: &Stage) -> &PoolEntry {
    stage.cluster.map().pool(PoolId(1)).unwrap()
}

fn wish(stage: &mut Stage, id: u32, wish: PdiskWish) -> MgrReply {
    stage.ask(NOBODY, MgrRequest::PdiskSet { pdisk: PdiskId(id), wish })
}

/// Never two strips of a group on one pdisk, in neither place; moves only to pdisks that count.
fn sound(stage: &Stage) {
    let (map, pool) = (stage.cluster.map(), entry(stage));
    for (g, members) in (0u32..).zip(pool.table.chunks_exact(3)) {
        let joining = map.moves(PoolId(1), GroupId(g)).iter().map(|m| m.to);
        let all: Vec<PdiskId> = members.iter().copied().chain(joining).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "group {g}: {all:?}");
    }
    assert!(pool.moves.is_sorted());
    assert!(pool.moves.iter().all(|m| map.pdisk(m.to).unwrap().state == PdiskState::Ok));
}

/// The servers of `which` moves' pdisks say that these are done.
fn fill(stage: &mut Stage, which: impl Fn(&StripMove) -> bool) -> usize {
    let moves: Vec<StripMove> = entry(stage).moves.iter().copied().filter(which).collect();
    for m in &moves {
        let filled = vec![Filled { pool: PoolId(1), what: *m }];
        stage.renew(m.to.0, PdiskReport { filled, ..report(m.to.0, 1, 0) });
    }
    stage.pass_without(&[], 1);
    moves.len()
}

fn finish(stage: &mut Stage) -> usize {
    let mut moved = 0;
    while !entry(stage).moves.is_empty() {
        sound(stage);
        moved += fill(stage, |_| true);
        assert!(moved < 1000, "it does not end");
    }
    moved
}

#[test]
fn a_failed_pdisk_is_emptied_and_a_group_is_switched_when_all_of_it_is_there() {
    let mut stage = stage();
    assert!(entry(&stage).moves.is_empty(), "a table as it was built is left alone");
    let held = entry(&stage).table.iter().filter(|id| **id == PdiskId(2)).count();
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    let before = entry(&stage).clone();
    assert!(!before.moves.is_empty());
    assert!(before.moves.len() <= 5 * 8, "at most eight to one pdisk");
    assert!(before.table.contains(&PdiskId(2)), "nothing is switched before it is there");

    // A report of another move, or of one that is gone, is nothing.
    let first = before.moves[0];
    let wrong = StripMove { since: base::Epoch(first.since.0 - 1), ..first };
    let filled = vec![Filled { pool: PoolId(1), what: wrong }];
    stage.renew(first.to.0, PdiskReport { filled, ..report(first.to.0, 1, 0) });
    stage.pass_without(&[], 1);
    assert_eq!(entry(&stage).table, before.table);
    assert_eq!(fill(&mut stage, |m| *m == first), 1);
    let slot = 3 * first.group.0 as usize + usize::from(first.strip.0);
    assert_eq!(entry(&stage).table[slot], first.to);
    let map = stage.cluster.map();
    assert!(map.group_changed(PoolId(1), first.group) > first.since, "requests under the old table are late");

    assert!(finish(&mut stage) + 1 >= held);
    assert!(!entry(&stage).table.contains(&PdiskId(2)));
    assert_eq!(stage.cluster.map().pdisk_word(PdiskId(2)), "replace");
    assert_eq!(wish(&mut stage, 2, PdiskWish::Remove), MgrReply::Done);
    assert!(stage.cluster.map().pdisk(PdiskId(2)).is_none());
}

fn put(stage: &mut Stage, node: u32, rack: &str) -> MgrReply {
    let rack = Some(rack.to_owned());
    stage.ask(NOBODY, MgrRequest::NodeSet { node: NodeId(node), name: None, addrs: None, rack })
}

/// The most strips of a group in one rack.
fn most_in_a_rack(stage: &Stage) -> usize {
    let map = stage.cluster.map();
    let rack = |id: &PdiskId| map.rack_of(map.pdisk(*id).unwrap().nodes[0]);
    let most = |members: &[PdiskId]| {
        members.iter().map(|id| members.iter().filter(|other| rack(other) == rack(id)).count()).max()
    };
    entry(stage).table.chunks_exact(3).filter_map(most).max().unwrap()
}

#[test]
fn nodes_are_put_into_racks_and_what_that_asks_for_moves() {
    let mut stage = stage();
    assert!(matches!(put(&mut stage, 1, "no rack"), MgrReply::Error(_)));
    assert!(stage.cluster.map().racks.is_empty());
    for node in 1..=6 {
        assert_eq!(put(&mut stage, node, &format!("r{}", node.div_ceil(2))), MgrReply::Done);
    }
    assert_eq!(most_in_a_rack(&stage), 2, "nothing has moved yet");
    assert!(finish(&mut stage) > 0);
    assert_eq!(most_in_a_rack(&stage), 1);

    // Two nodes change places: only what is in the wrong rack moves. The manager's restart forgets nothing of it.
    put(&mut stage, 2, "r2");
    put(&mut stage, 3, "r1");
    fill(&mut stage, |m| m.group.0 % 2 == 0);
    let racks = stage.cluster.map().racks.clone();
    stage.restart();
    stage.renew_all();
    assert_eq!(stage.cluster.map().racks, racks);
    finish(&mut stage);
    assert_eq!(most_in_a_rack(&stage), 1);

    let epoch = stage.cluster.map().epoch;
    put(&mut stage, 3, "r1");
    assert_eq!(stage.cluster.map().epoch, epoch, "it is there already");
    put(&mut stage, 3, "");
    assert_eq!(stage.cluster.map().rack_of(NodeId(3)), None);
    finish(&mut stage);
    assert_eq!(most_in_a_rack(&stage), 1, "a node of no rack is one by itself");
}

#[test]
fn a_pool_that_is_to_survive_a_rack_is_refused_where_it_would_not() {
    let mut stage = stage();
    let make = |stage: &mut Stage, name: &str, code: &str, survives| {
        let wish = NewPool {
            name: name.into(),
            code: code.into(),
            block_size: 1 << 20,
            pdisks: vec![],
            survives: Some(survives),
            seed: 5,
        };
        match stage.ask(NOBODY, Ask::MakePool(wish)) {
            MgrReply::Done => Ok(()),
            MgrReply::Error(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let no_racks = make(&mut stage, "a", "2+1p", FailureDomain::Rack).unwrap_err();
    assert!(no_racks.contains("ropewalk node set NODE --rack"), "{no_racks}");
    for node in 1..=6 {
        put(&mut stage, node, if node <= 3 { "r1" } else { "r2" });
    }
    let two_racks = make(&mut stage, "a", "2+1p", FailureDomain::Rack).unwrap_err();
    assert!(two_racks.contains("2+1p bears 1 lost strips of 3"), "{two_racks}");
    assert_eq!(make(&mut stage, "a", "2+1p", FailureDomain::Node), Ok(()));
    put(&mut stage, 3, "r3");
    put(&mut stage, 6, "r3");
    assert_eq!(make(&mut stage, "b", "2+1p", FailureDomain::Rack), Ok(()));
    assert!(make(&mut stage, "c", "1way", FailureDomain::Node).unwrap_err().contains("no redundancy"));
    let counted = stage.cluster.map().pools.len();
    assert_eq!(counted, 3, "what is refused is not there");
}

#[test]
fn a_restarted_manager_goes_on() {
    let mut stage = stage();
    wish(&mut stage, 3, PdiskWish::Drain);
    fill(&mut stage, |m| m.group.0 % 2 == 0);
    let (table, moves) = (entry(&stage).table.clone(), entry(&stage).moves.clone());
    assert!(!moves.is_empty());
    stage.restart();
    stage.pass_without(&[], 1);
    assert_eq!(entry(&stage).table, table);
    assert!(moves.iter().all(|m| entry(&stage).moves.contains(m)), "what is under way stays under way");
    finish(&mut stage);
    assert!(!entry(&stage).table.contains(&PdiskId(3)));
    assert_eq!(stage.cluster.map().pdisk(PdiskId(3)).unwrap().state, PdiskState::Ok);
}

#[test]
fn a_move_to_a_pdisk_that_goes_is_taken_back() {
    let mut stage = stage();
    wish(&mut stage, 1, PdiskWish::Drain);
    assert!(entry(&stage).moves.iter().any(|m| m.to == PdiskId(4)));
    stage.pass_without(&[4], 12); // its lease runs out
    assert_eq!(stage.cluster.map().pdisk(PdiskId(4)).unwrap().state, PdiskState::Missing);
    assert!(entry(&stage).moves.iter().all(|m| m.to != PdiskId(4)));
    sound(&stage);
}

#[test]
fn missing_for_too_long_is_rebuilt_and_levelled_when_it_is_back() {
    let mut stage = stage();
    stage.tell(Event::SetRebuildDelay(std::time::Duration::from_secs(30)));
    stage.pass_without(&[6], 20);
    assert_eq!(stage.cluster.map().pdisk(PdiskId(6)).unwrap().state, PdiskState::Missing);
    assert!(entry(&stage).moves.is_empty(), "not yet");
    stage.servers.remove(&6);
    for _ in 0..30 {
        stage.pass_without(&[], 1);
    }
    assert!(!entry(&stage).moves.is_empty());
    finish(&mut stage);
    assert!(!entry(&stage).table.contains(&PdiskId(6)));
    stage.register(6, 2, 0);
    stage.pass_without(&[], 1);
    let changed = stage.cluster.map().pdisk(PdiskId(6)).unwrap().changed;
    stage.renew(6, PdiskReport { caught_up: Some(changed), ..report(6, 2, 0) });
    stage.pass_without(&[], 1);
    finish(&mut stage);
    let used = entry(&stage).table.iter().filter(|id| **id == PdiskId(6)).count();
    assert!(used >= 14, "of {GROUPS} groups of 3 on 6 pdisks it has {used}");
}

#[test]
fn the_last_copies_are_not_given_up() {
    let mut stage = stage();
    assert_eq!(wish(&mut stage, 1, PdiskWish::Fail), MgrReply::Done);
    let MgrReply::Error(error) = wish(&mut stage, 2, PdiskWish::Fail) else { panic!("it was given up") };
    assert!(error.to_string().contains("last copies"), "{error}");
    finish(&mut stage);
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    finish(&mut stage);
    // Four are left for a width of three; with three left nothing moves any more, and it is said.
    wish(&mut stage, 3, PdiskWish::Fail);
    finish(&mut stage);
    wish(&mut stage, 4, PdiskWish::Fail);
    stage.pass_without(&[], 1);
    let reply = stage.ask(NOBODY, MgrRequest::Cluster);
    let MgrReply::Cluster(report) = reply else { panic!("{reply:?}") };
    assert!(!report.moving[0].hindered.is_empty());
}

/// A pdisk with last copies is given up when nobody serves it any more, and not while the manager cannot know that. It does not count
/// when it is back.
#[test]
fn last_copies_that_are_gone_can_be_given_up() {
    let mut stage = stage();
    let state = |stage: &Stage, id| stage.cluster.map().pdisk(PdiskId(id)).unwrap().state;
    // Two of groups of 2+1p are gone: the first is missing, the second counts as long as nobody gives it up.
    stage.pass_without(&[1, 2], 12);
    assert_eq!((state(&stage, 1), state(&stage, 2)), (PdiskState::Missing, PdiskState::Ok));
    let both =
        entry(&stage).table.chunks_exact(3).filter(|row| row.iter().filter(|id| id.0 <= 2).count() == 2);
    assert!(both.count() > 0, "no group is on both");
    // One that is in reach, beside them, is kept.
    let refused = |stage: &mut Stage, id| {
        let MgrReply::Error(error) = wish(stage, id, PdiskWish::Fail) else { panic!("{id} was given up") };
        error.to_string()
    };
    let said = refused(&mut stage, 3);
    assert!(said.contains("in reach; drain it"), "{said}");
    // A manager that has just started does not know who is gone.
    stage.restart();
    stage.pass_without(&[1, 2], 1);
    refused(&mut stage, 2);
    stage.pass_without(&[1, 2], 25);
    assert_eq!(state(&stage, 2), PdiskState::Ok);
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    assert!(stage.cluster.map().pdisk(PdiskId(2)).unwrap().given_up());
    assert_eq!(wish(&mut stage, 1, PdiskWish::Fail), MgrReply::Done);
    stage.pass_without(&[], 1);
    finish(&mut stage);
    assert!(entry(&stage).table.iter().all(|id| id.0 > 2), "something is left on them");
    stage.register(2, 2, 0);
    stage.pass_without(&[], 1);
    assert_eq!(state(&stage, 2), PdiskState::Failed);
    assert_eq!(stage.cluster.map().pdisk_word(PdiskId(2)), "replace");
}

/// What is lost is made of what is left; what merely moves in the same group may not be judged before that.
#[test]
fn of_a_group_that_has_lost_a_strip_nothing_else_moves() {
    let mut stage = stage();
    wish(&mut stage, 1, PdiskWish::Drain);
    let group = |stage: &Stage, g: GroupId| entry(stage).table[3 * g.0 as usize..][..3].to_vec();
    let both = |stage: &Stage, m: &StripMove| group(stage, m.group).contains(&PdiskId(2));
    assert!(entry(&stage).moves.iter().any(|m| both(&stage, m)), "a drained group is on the second as well");
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    let mut rounds = 0;
    while !entry(&stage).moves.is_empty() {
        sound(&stage);
        for m in entry(&stage).moves.iter().filter(|m| both(&stage, m)) {
            assert_eq!(group(&stage, m.group)[usize::from(m.strip.0)], PdiskId(2), "{m:?}");
        }
        fill(&mut stage, |_| true);
        rounds += 1;
        assert!(rounds < 1000, "it does not end");
    }
    assert!(!entry(&stage).table.iter().any(|id| [PdiskId(1), PdiskId(2)].contains(id)));
}

/// The other copies are given up, and what is back waits for them: they are made of it, and it goes nowhere before that.
#[test]
fn what_is_given_up_is_made_of_a_pdisk_that_is_back() {
    let of = pool(4);
    let descs: Vec<_> = of.pdisks.iter().map(|p| (p.id, NodeId(p.id.0))).collect();
    let desc = |(id, node)| PdiskDesc { id, node, enclosure: None, weight: 64 << 20 };
    let descs: Vec<_> = descs.into_iter().map(desc).collect();
    let table = LayoutTable::build("2way".parse().unwrap(), &descs, 0, GROUPS, 3).unwrap();
    let table = table.group_ids().flat_map(|g| table.members(g).to_vec()).collect();
    let mut stage = Stage::of(4, "2way", PoolEntry { width: 2, table, ..of });
    (1..=4).for_each(|node| stage.register(node, 1, 9));
    stage.renew_all();
    let back_without_its_log = |stage: &mut Stage, id, life| stage.register_with(id, life, 9, None);
    let state = |stage: &Stage, id| stage.cluster.map().pdisk(PdiskId(id)).unwrap().state;
    wish(&mut stage, 1, PdiskWish::Drain);
    back_without_its_log(&mut stage, 2, 2);
    assert_eq!(state(&stage, 2), PdiskState::Returning);
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    back_without_its_log(&mut stage, 1, 2);
    stage.pass_without(&[2], 1);
    assert_eq!(state(&stage, 1), PdiskState::Returning);
    let both = |stage: &Stage| {
        entry(stage).table.chunks_exact(2).filter(|row| row.iter().all(|id| id.0 <= 2)).count()
    };
    assert!(both(&stage) > 0, "no group is on both");
    let mut rounds = 0;
    while both(&stage) > 0 {
        for m in &entry(&stage).moves {
            let row = &entry(&stage).table[2 * m.group.0 as usize..][..2];
            let source = row[usize::from(m.strip.0)];
            assert!(source == PdiskId(2) || !row.contains(&PdiskId(2)), "{m:?} waits for what is given up");
        }
        assert_eq!(state(&stage, 1), PdiskState::Returning);
        fill(&mut stage, |_| true);
        rounds += 1;
        assert!(rounds < 1000, "it does not end");
    }
}

/// What cannot be made yet holds all places of a pdisk: others have their turn, and it is tried again when they are done.
#[test]
fn moves_that_do_not_get_on_give_way_to_others() {
    let mut stage = Stage::of(4, "2+1p", pool(4));
    (1..=4).for_each(|node| stage.register(node, 1, 0));
    stage.renew_all();
    assert_eq!(wish(&mut stage, 2, PdiskWish::Fail), MgrReply::Done);
    stage.pass_without(&[], 1);
    let held = |stage: &Stage| -> BTreeSet<GroupId> {
        entry(stage).moves.iter().filter(|m| m.to == PdiskId(1)).map(|m| m.group).collect()
    };
    let left = |stage: &Stage| entry(stage).table.iter().filter(|id| **id == PdiskId(2)).count();
    let stuck = held(&stage);
    assert_eq!(stuck.len(), 8, "as many as may move to one pdisk");
    // While they get on nothing gives way, however long it takes.
    let pass = |stage: &mut Stage, waits: &str, moved: u64| {
        for at in 0..40 {
            let waits = waits.to_owned();
            stage.renew(1, PdiskReport { waits, moved: moved * at, ..report(1, 1, 0) });
            stage.now += std::time::Duration::from_secs(1);
            (2..=4).for_each(|node| drop(stage.renew(node, report(node, 1, 0))));
            stage.tell(Event::Tick);
        }
    };
    pass(&mut stage, "", 0);
    pass(&mut stage, "waits", 1);
    assert_eq!(held(&stage), stuck);
    while fill(&mut stage, |m| m.to != PdiskId(1)) > 0 {}
    let others = left(&stage) - stuck.len();
    assert!(others > 0, "nobody else is to move there");
    pass(&mut stage, "waits", 0);
    assert!(fill(&mut stage, |m| !stuck.contains(&m.group)) > 0, "what could be made starves");
    fill(&mut stage, |m| !stuck.contains(&m.group));
    assert_eq!(left(&stage), stuck.len());
    stage.pass_without(&[], 1);
    assert_eq!(held(&stage), stuck, "they are tried again");
    sound(&stage);
    pass(&mut stage, "waits", 0);
    assert_eq!(held(&stage), stuck, "nobody else wants their places");
    finish(&mut stage);
    assert_eq!(left(&stage), 0);
}

/// What is under way when pdisks become too few goes on, and is where it is then: nothing is begun towards what is leaving,
/// only to be taken back at once, without end.
#[test]
fn with_too_few_pdisks_left_moves_end() {
    let mut stage = stage();
    for leaving in 1..=4 {
        assert_eq!(wish(&mut stage, leaving, PdiskWish::Drain), MgrReply::Done);
        assert!(!entry(&stage).moves.is_empty());
    }
    assert!(!stage.cluster.report_moves(stage.now)[0].hindered.is_empty(), "two pdisks are too few for 2+1p");
    let under_way = entry(&stage).moves.clone();
    assert!(under_way.iter().all(|m| m.to.0 > 4));
    fill(&mut stage, |_| true);
    for m in &under_way {
        assert_eq!(entry(&stage).table[3 * m.group.0 as usize + usize::from(m.strip.0)], m.to);
    }
    let epoch = stage.cluster.map().epoch;
    stage.pass_without(&[], 5);
    assert_eq!(entry(&stage).moves, []);
    assert_eq!(stage.cluster.report_moves(stage.now)[0].left, 0);
    assert_eq!(stage.cluster.map().epoch, epoch, "the map changes, and nothing moves");

    assert_eq!(wish(&mut stage, 4, PdiskWish::Keep), MgrReply::Done);
    assert!(finish(&mut stage) > 0);
    assert!(entry(&stage).table.iter().all(|id| id.0 > 3));
}

/// Every way a group of three can be laid out anew over six pdisks, with every set of the old ones lost.
#[test]
fn a_lost_strip_goes_where_nothing_has_to_make_room_first() {
    let rows: Vec<[u32; 3]> = (0..216u32)
        .map(|n| [n / 36 + 1, n / 6 % 6 + 1, n % 6 + 1])
        .filter(|[a, b, c]| a != b && b != c && a != c)
        .collect();
    let mut stage = stage();
    for lost in 0..64u32 {
        let gone = |id: &PdiskId| lost >> (id.0 - 1) & 1 == 1;
        for id in 1..=6 {
            let state = if gone(&PdiskId(id)) { PdiskState::Failed } else { PdiskState::Ok };
            stage.cluster.map.pdisks.iter_mut().find(|p| p.id == PdiskId(id)).unwrap().state = state;
        }
        for (row, aim) in rows.iter().flat_map(|row| rows.iter().map(move |aim| (row, aim))) {
            let (row, aim) = (row.map(PdiskId), aim.map(PdiskId));
            if aim.iter().any(gone) {
                continue;
            }
            let mut want = aim;
            stage.cluster.lost_only(&row, &mut want);
            assert_eq!(BTreeSet::from(want), BTreeSet::from(aim), "the group is on the same pdisks");
            let of_lost = (0..3).filter(|i| gone(&row[*i]));
            assert!(of_lost.clone().all(|i| !row.contains(&want[i])), "{row:?} {aim:?}: {want:?}");
        }
    }
}
