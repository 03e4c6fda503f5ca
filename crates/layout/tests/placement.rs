//! Placement: failure domains, evenness, little movement, and that all of it is frozen.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockIndex, FsId, GroupId, InodeNo, NodeId, PdiskId, StripeId};
use layout::{Change, Code, LayoutError, LayoutTable, PdiskDesc, default_groups};
use proptest::prelude::*;

fn code(text: &str) -> Code {
    text.parse().unwrap()
}

fn pdisk(id: u32, node: u32, weight: u64) -> PdiskDesc {
    PdiskDesc { id: PdiskId(id), node: NodeId(node), enclosure: None, weight }
}

/// `nodes` nodes with `each` equal pdisks.
fn even(nodes: u32, each: u32) -> Vec<PdiskDesc> {
    (0..nodes * each).map(|i| pdisk(i + 1, i / each + 1, 1 << 40)).collect()
}

fn build(text: &str, pdisks: &[PdiskDesc]) -> LayoutTable {
    let groups = default_groups(code(text), pdisks.len() as u32);
    LayoutTable::build(code(text), pdisks, 0, groups, 7).unwrap()
}

/// The most strips that any group has on one node, and the fewest nodes that any group is on.
fn node_spread(table: &LayoutTable) -> (usize, usize) {
    let (mut most, mut fewest) = (0, usize::MAX);
    for group in table.group_ids() {
        let mut nodes: BTreeMap<NodeId, usize> = BTreeMap::new();
        for &member in table.members(group) {
            *nodes.entry(table.pdisk(member).unwrap().node).or_default() += 1;
        }
        most = most.max(nodes.values().copied().max().unwrap());
        fewest = fewest.min(nodes.len());
    }
    (most, fewest)
}

#[test]
fn stripes_are_on_as_many_nodes_as_there_are() {
    // (code, nodes, pdisks a node, most strips a node, nodes a group is on, node losses survived)
    for (text, nodes, each, most, on, survived) in [
        ("4+2p", 4, 2, 2, 4, 1),
        ("4+2p", 6, 1, 1, 6, 2),
        ("4+2p", 5, 2, 2, 5, 1),
        ("4+2p", 8, 2, 1, 6, 2),
        ("4+2p", 1, 8, 6, 1, 0),
        ("4+3p", 4, 4, 2, 4, 1),
        ("8+3p", 4, 4, 3, 4, 1),
        ("8+2p", 5, 2, 2, 5, 1),
        ("16+3p", 7, 4, 3, 7, 1),
        ("2+1p", 3, 1, 1, 3, 1),
        ("4way", 2, 2, 2, 2, 1),
        ("3way", 2, 4, 2, 2, 1),
        ("4way", 4, 2, 1, 4, 3),
        ("2way", 4, 2, 1, 2, 1),
        ("1way", 4, 2, 1, 1, 0),
    ] {
        let table = build(text, &even(nodes, each));
        let found = (node_spread(&table), table.node_losses_survived());
        assert_eq!(found, ((most, on), survived), "{text} on {nodes} x {each}");
    }
}

#[test]
fn racks_come_after_nodes() {
    let racks: Vec<PdiskDesc> =
        even(12, 4).into_iter().map(|p| PdiskDesc { enclosure: Some((p.node.0 - 1) / 4), ..p }).collect();
    let table = build("4+2p", &racks);
    assert_eq!((table.node_losses_survived(), table.enclosure_losses_survived()), (2, 1));
    let drawers: Vec<PdiskDesc> =
        even(2, 8).into_iter().map(|p| PdiskDesc { enclosure: Some(p.id.0 / 2), ..p }).collect();
    let table = build("4way", &drawers);
    assert_eq!((table.node_losses_survived(), table.enclosure_losses_survived()), (1, 3));
}

#[test]
fn tables_are_even_within_a_few_percent() {
    for (text, nodes, each) in [
        ("4+2p", 4, 2),
        ("4+2p", 5, 2),
        ("8+2p", 6, 4),
        ("8+3p", 16, 1),
        ("2way", 4, 2),
        ("4way", 6, 4),
        ("16+2p", 9, 4),
        ("1way", 4, 2),
        ("2+1p", 16, 4),
    ] {
        let table = build(text, &even(nodes, each));
        let e = table.evenness();
        assert!(e.groups_min >= 990 && e.groups_max <= 1010, "{text} {nodes} x {each}: {e:?}");
        assert!(e.parity_min >= 960 && e.parity_max <= 1040, "{text} {nodes} x {each}: {e:?}");
        assert!(e.pairs_min >= 850 && e.pairs_max <= 1150, "{text} {nodes} x {each}: {e:?}");
    }
}

#[test]
fn every_position_is_taken_equally_often() {
    let table = build("4+2p", &even(4, 2));
    let mut positions: BTreeMap<(PdiskId, usize), i64> = BTreeMap::new();
    for group in table.group_ids() {
        for (i, &member) in table.members(group).iter().enumerate() {
            *positions.entry((member, i)).or_default() += 1;
        }
    }
    let mean = i64::from(table.groups()) / 8;
    assert_eq!(positions.len(), 48);
    assert!(positions.values().all(|n| (n - mean).abs() <= 2), "{positions:?}");
}

#[test]
fn a_run_of_blocks_loads_all_pdisks_alike() {
    let table = build("8+2p", &even(8, 5));
    let stripe = |block| StripeId { fs: FsId(1), inode: InodeNo(77), block: BlockIndex(block) };
    for start in [0u64, 1000, 123_456] {
        let mut strips: BTreeMap<PdiskId, i64> = BTreeMap::new();
        for block in start..start + 40 {
            for &member in table.members(table.group_of(stripe(block))) {
                *strips.entry(member).or_default() += 1;
            }
        }
        // 40 blocks of 10 strips over 40 pdisks: 10 each.
        assert!(strips.len() == 40 && strips.values().all(|n| (n - 10).abs() <= 3), "{strips:?}");
    }
}

#[test]
fn shares_follow_capacity() {
    let mut pdisks = even(6, 4);
    pdisks.iter_mut().filter(|p| p.id.0 % 4 == 0).for_each(|p| p.weight = 3 << 40);
    let table = build("2way", &pdisks);
    let e = table.evenness();
    assert!(e.groups_min >= 985 && e.groups_max <= 1015, "{e:?}");
    // 36 TiB in all, two copies.
    let capacity = table.data_capacity() as f64 / (1u64 << 40) as f64;
    assert!((17.5..=18.01).contains(&capacity), "{capacity}");
}

#[test]
fn capacity_counts_spare_space() {
    let with = |spare| {
        LayoutTable::build(code("4+2p"), &even(4, 2), spare, 342, 7).unwrap().data_capacity() as f64
            / (1u64 << 40) as f64
    };
    assert!((5.3..=5.34).contains(&with(0)), "{}", with(0));
    assert!((3.97..=4.0).contains(&with(2)), "{}", with(2));
}

/// Strips that at least have to move: what the pdisks that gain will hold more.
fn least(before: &LayoutTable, after: &LayoutTable) -> usize {
    let held: BTreeMap<PdiskId, u32> = before.pdisks().iter().map(|p| p.id).zip(before.slots()).collect();
    let gains = after.pdisks().iter().zip(after.slots());
    gains.map(|(p, n)| n.saturating_sub(held.get(&p.id).copied().unwrap_or(0)) as usize).sum()
}

fn check_moves(before: &LayoutTable, after: &LayoutTable, moves: &[layout::Move]) {
    assert_eq!(before.groups(), after.groups());
    let mut replayed: Vec<Vec<PdiskId>> = before.group_ids().map(|g| before.members(g).to_vec()).collect();
    for step in moves {
        let strip = &mut replayed[step.group.0 as usize][usize::from(step.strip.0)];
        assert_eq!(*strip, step.from);
        *strip = step.to;
    }
    for (group, members) in after.group_ids().zip(replayed) {
        assert_eq!(after.members(group), members);
        assert_eq!(members.iter().collect::<BTreeSet<_>>().len(), members.len(), "{group} {members:?}");
    }
}

#[test]
fn a_lost_pdisk_moves_only_its_own_strips_and_loads_the_others_alike() {
    for (text, nodes, each) in
        [("4+2p", 4, 2), ("4+2p", 8, 2), ("8+2p", 8, 4), ("8+3p", 16, 1), ("2way", 4, 4), ("16+3p", 20, 2)]
    {
        let pdisks = even(nodes, each);
        let table = build(text, &pdisks);
        for lost in [1, nodes * each / 2, nodes * each] {
            let (next, moves) =
                table.change(&Change { lose: vec![PdiskId(lost)], ..Change::default() }).unwrap();
            check_moves(&table, &next, &moves);
            assert!(next.pdisk(PdiskId(lost)).is_none());
            assert_eq!(next.node_losses_survived(), table.node_losses_survived());
            let own = table.groups_on(PdiskId(lost)).count();
            assert!(moves.len() <= own + own / 50, "{text}: {} moves for {own} strips", moves.len());
            let load: Vec<u32> =
                table.rebuild_load(PdiskId(lost), &next).iter().map(|(r, w)| r + w).collect();
            let (most, sum) = (load.iter().max().unwrap(), load.iter().sum::<u32>());
            assert!(most * 10 * (load.len() as u32 - 1) <= sum * 12, "{text} {nodes} x {each}: {load:?}");
        }
    }
}

#[test]
fn new_pdisks_take_their_share_and_nothing_else_moves() {
    for (text, nodes, each, limit) in [
        ("4+2p", 4, 2, 105),
        ("4+2p", 8, 2, 105),
        ("8+2p", 12, 4, 105),
        ("2way", 4, 2, 105),
        ("4+2p", 5, 2, 105),
    ] {
        let table = build(text, &even(nodes, each));
        for new_node in [false, true] {
            let node = if new_node { nodes + 1 } else { 1 };
            let add: Vec<PdiskDesc> = (0..each).map(|i| pdisk(500 + i, node, 1 << 40)).collect();
            let (next, moves) = table.change(&Change { add, ..Change::default() }).unwrap();
            check_moves(&table, &next, &moves);
            let least = least(&table, &next);
            assert!(moves.len() * 100 <= least * limit, "{text}: {} moves, least {least}", moves.len());
            let e = next.evenness();
            assert!(!new_node || (e.groups_min >= 975 && e.groups_max <= 1025), "{text}: {e:?}");
            assert!(next.node_losses_survived() >= table.node_losses_survived());
        }
    }
}

#[test]
fn a_lost_node_is_spread_over_the_others() {
    let table = LayoutTable::build(code("4+2p"), &even(8, 2), 2, 683, 7).unwrap();
    let lose = vec![PdiskId(1), PdiskId(2)];
    let (next, moves) = table.change(&Change { lose, ..Change::default() }).unwrap();
    check_moves(&table, &next, &moves);
    assert_eq!((next.spare(), next.node_losses_survived()), (0, 2));
    assert!(next.evenness().groups_max <= 1030, "{:?}", next.evenness());
    // And comes back.
    let add = even(8, 2).into_iter().take(2).collect();
    let (back, _) = next.change(&Change { add, spare: Some(2), ..Change::default() }).unwrap();
    assert!(back.evenness().groups_min >= 970, "{:?}", back.evenness());
    assert_eq!(back.spare(), 2);
}

#[test]
fn more_nodes_end_the_doubling_of_strips() {
    let table = build("4+2p", &even(4, 2));
    let add = (0..4).map(|i| pdisk(20 + i, 10 + i / 2, 1 << 40)).collect();
    let (next, moves) = table.change(&Change { add, ..Change::default() }).unwrap();
    check_moves(&table, &next, &moves);
    assert_eq!((node_spread(&next), next.node_losses_survived()), ((1, 6), 2));
}

#[test]
fn large_pools_span_arrays() {
    let table = LayoutTable::build(code("8+2p"), &even(40, 16), 4, 9000, 3).unwrap();
    let arrays: BTreeSet<u16> = table.pdisks().iter().map(|p| table.array_of(p.id).unwrap()).collect();
    assert_eq!(arrays.len(), 2);
    for group in table.group_ids() {
        let of: BTreeSet<_> = table.members(group).iter().map(|m| table.array_of(*m)).collect();
        assert_eq!(of.len(), 1, "{group} is in one array");
    }
    assert_eq!(table.node_losses_survived(), 2);
    let (next, moves) = table.change(&Change { lose: vec![PdiskId(5)], ..Change::default() }).unwrap();
    check_moves(&table, &next, &moves);
    let own = table.groups_on(PdiskId(5)).count();
    assert!(moves.len() <= own + own / 20, "{} moves for {own} strips", moves.len());
}

#[test]
fn what_does_not_fit_is_refused_with_the_remedy() {
    let refuse = |text: &str, pdisks: &[PdiskDesc], spare, groups| {
        LayoutTable::build(code(text), pdisks, spare, groups, 1).unwrap_err()
    };
    let error = refuse("8+3p", &even(4, 2), 0, 100);
    assert_eq!(error, LayoutError::DoesNotFit { code: code("8+3p"), need: 11, pdisks: 8 });
    assert!(error.to_string().contains("8+3p") && error.to_string().contains("add 3"), "{error}");
    let error = refuse("4+2p", &even(4, 2), 3, 100).to_string();
    assert!(error.contains("spare of at most 2"), "{error}");
    let twice = [even(4, 2), even(1, 1)].concat();
    assert_eq!(refuse("2way", &twice, 0, 100), LayoutError::Duplicate { pdisk: PdiskId(1) });
    assert!(matches!(refuse("2way", &even(2, 2), 0, 0), LayoutError::Groups { groups: 0, .. }));
    let table = build("4+2p", &even(6, 1));
    let change = |change: Change| table.change(&change).unwrap_err();
    assert_eq!(
        change(Change { lose: vec![PdiskId(9)], ..Change::default() }),
        LayoutError::NotInTable { pdisk: PdiskId(9) }
    );
    assert!(matches!(
        change(Change { lose: vec![PdiskId(1)], ..Change::default() }),
        LayoutError::DoesNotFit { need: 6, pdisks: 5, .. }
    ));
}

#[test]
fn stored_tables_come_back_and_bad_ones_are_refused() {
    let table = build("4+2p", &even(4, 2));
    let bytes = postcard::to_stdvec(&table).unwrap();
    assert_eq!(postcard::from_bytes::<LayoutTable>(&bytes).unwrap(), table);
    let json = serde_json::to_value(&table).unwrap();
    assert_eq!(serde_json::from_value::<LayoutTable>(json.clone()).unwrap(), table);
    let bad = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        edit(&mut json);
        serde_json::from_value::<LayoutTable>(json).unwrap_err().to_string()
    };
    assert!(bad(&|t| t["format"] = 9.into()).contains("format 9"));
    assert!(bad(&|t| t["members"][0] = 99.into()).contains("pdisk99"));
    assert!(bad(&|t| t["members"][0] = t["members"][1].clone()).contains("named twice"));
    assert!(bad(&|t| t["pdisks"][0]["id"] = 5.into()).contains("out of order"));
    assert!(bad(&|t| t["members"] = serde_json::json!([1, 2, 3])).contains("groups of 6"));
    assert!(bad(&|t| t["code"] = "5+1p".into()).contains("5+1p"));
    // No bytes make it panic.
    for cut in 0..bytes.len().min(300) {
        assert!(postcard::from_bytes::<LayoutTable>(&bytes[..cut]).is_err());
    }
    assert_eq!(table.get(GroupId(u32::MAX)), None);
}

/// Frozen: a change here makes every stored file system unreadable (hash) or lets nodes of different
/// versions disagree about a table's construction.
#[test]
fn golden_vectors() {
    let table = build("4+2p", &even(4, 2));
    let stripe =
        |fs, inode, block| StripeId { fs: FsId(fs), inode: InodeNo(inode), block: BlockIndex(block) };
    let groups = [
        stripe(0, 0, 0),
        stripe(1, 2, 0),
        stripe(1, 2, 1),
        stripe(1, 2, 341),
        stripe(1, 2, 342),
        stripe(1, 3, 0),
        stripe(2, 2, 0),
        stripe(u32::MAX, u64::MAX, u64::MAX),
    ]
    .map(|s| table.group_of(s).0);
    assert_eq!(groups, GOLDEN_GROUPS);
    let ids = |g| table.members(GroupId(g)).iter().map(|p| p.0).collect::<Vec<_>>();
    assert_eq!([ids(0), ids(1), ids(341)], GOLDEN_MEMBERS);
    let mut mixed = even(5, 3);
    mixed.iter_mut().filter(|p| p.id.0 % 3 == 0).for_each(|p| p.weight *= 2);
    mixed.iter_mut().for_each(|p| p.enclosure = Some(p.node.0 % 2));
    let digests = ["4+2p", "2way", "8+3p"].map(|text| build(text, &mixed).digest());
    assert_eq!(digests.map(|d| format!("{d:016x}")), GOLDEN_BUILDS);
    let change = Change { lose: vec![PdiskId(4)], add: vec![pdisk(99, 6, 1 << 41)], ..Change::default() };
    let changed =
        ["4+2p", "2way", "8+3p"].map(|text| build(text, &mixed).change(&change).unwrap().0.digest());
    assert_eq!(changed.map(|d| format!("{d:016x}")), GOLDEN_CHANGES);
    // Only levelling: a pdisk grows, others come, and shares follow (`Array::settle`).
    let add = vec![pdisk(2, 1, 3 << 40), pdisk(98, 6, 1 << 40), pdisk(99, 6, 1 << 41)];
    let level = Change { add, level: true, ..Change::default() };
    let levelled = ["4+2p", "2way", "8+3p"].map(|text| {
        let (table, moves) = build(text, &mixed).change(&level).unwrap();
        format!("{} {:016x}", moves.len(), table.digest())
    });
    assert_eq!(levelled, GOLDEN_LEVELS);
}

const GOLDEN_GROUPS: [u32; 8] = [60, 157, 158, 156, 276, 302, 157, 78];
const GOLDEN_MEMBERS: [[u32; 6]; 3] = [[3, 8, 2, 6, 4, 1], [7, 1, 5, 4, 2, 3], [1, 8, 2, 5, 7, 3]];
const GOLDEN_BUILDS: [&str; 3] = ["5379f0096cab0e84", "89a7ce041a4f36c5", "b40d525501f1055f"];
const GOLDEN_CHANGES: [&str; 3] = ["06639ef63f67d521", "50c295a4170ca70c", "0303f4c91cf543db"];

const GOLDEN_LEVELS: [&str; 3] = ["796 3a6f180a25d8c5ac", "754 3d7f08c993cb17ac", "672 4716ec232af18c5a"];

fn shapes() -> impl Strategy<Value = Vec<PdiskDesc>> {
    proptest::collection::vec((0u32..7, 0u32..4, 1u64..20), 1..40).prop_map(|list| {
        let desc = |(id, (node, enclosure, weight))| PdiskDesc {
            id: PdiskId(id * 3),
            node: NodeId(node),
            enclosure: (enclosure > 0).then_some(enclosure),
            weight,
        };
        (0u32..).zip(list).map(desc).collect()
    })
}

/// The least number of strips that some node must hold.
fn node_cap(pdisks: &[PdiskDesc], width: usize) -> usize {
    let mut nodes: BTreeMap<NodeId, usize> = BTreeMap::new();
    pdisks.iter().for_each(|p| *nodes.entry(p.node).or_default() += 1);
    (1..=width).find(|&cap| nodes.values().map(|n| (*n).min(cap)).sum::<usize>() >= width).unwrap()
}

/// Strips of a group that racks of so many nodes, with so many pdisks each, can take if none may have more than
/// `most`, and no node either.
fn room_in_racks(racks: &[u32], pdisks_each: u32, most: u32) -> u32 {
    racks.iter().map(|nodes| (nodes * pdisks_each.min(most)).min(most)).sum()
}

/// Nodes with so many pdisks each in racks of so many of them.
fn in_racks(racks: &[u32], pdisks_each: u32) -> Vec<PdiskDesc> {
    let rack_of: Vec<u32> =
        (0u32..).zip(racks).flat_map(|(rack, &nodes)| vec![rack; nodes as usize]).collect();
    let nodes = even(rack_of.len() as u32, pdisks_each).into_iter();
    nodes.map(|p| PdiskDesc { enclosure: Some(rack_of[p.node.0 as usize - 1]), ..p }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Where there are racks enough, no rack holds more than M strips of a group: from the start, after a node was put
    /// into another rack, and when racks become known of a table that was made without.
    #[test]
    fn where_racks_suffice_the_loss_of_one_is_survived(
        racks in proptest::collection::vec(1u32..5, 2..7), each in 1u32..4, seed: u64,
        text in proptest::sample::select(Code::ALL.to_vec()), moved in 0usize..30, to in 0usize..7,
    ) {
        let pdisks = in_racks(&racks, each);
        let suffice = |racks: &[u32]| {
            room_in_racks(racks, each, text.parity().into()) >= text.width().into()
        };
        let Ok(table) = LayoutTable::build(text, &pdisks, 0, 64, seed) else { return Ok(()) };
        prop_assert!(!suffice(&racks) || table.enclosure_losses_survived() >= 1);
        let relevel = |table: &LayoutTable, pdisks: &[PdiskDesc]| {
            let change = Change { add: pdisks.to_vec(), level: true, ..Change::default() };
            let (next, moves) = table.change(&change).unwrap();
            check_moves(table, &next, &moves);
            next
        };
        let plain: Vec<PdiskDesc> = pdisks.iter().map(|p| PdiskDesc { enclosure: None, ..*p }).collect();
        let unknown = LayoutTable::build(text, &plain, 0, 64, seed).unwrap();
        prop_assert!(!suffice(&racks) || relevel(&unknown, &pdisks).enclosure_losses_survived() >= 1);
        let (node, to) = (pdisks[moved % pdisks.len()].node, to % racks.len());
        let mut other = pdisks.clone();
        for p in other.iter_mut().filter(|p| p.node == node) {
            p.enclosure = Some(to as u32);
        }
        let mut nodes = vec![BTreeSet::new(); racks.len()];
        other.iter().for_each(|p| {
            nodes[p.enclosure.unwrap() as usize].insert(p.node);
        });
        let racks: Vec<u32> = nodes.iter().map(|nodes| nodes.len() as u32).collect();
        prop_assert!(!suffice(&racks) || relevel(&table, &other).enclosure_losses_survived() >= 1);
    }

    /// Any shape: groups are whole, domains respected, and a second build is the same; after a chain of
    /// changes too.
    #[test]
    fn any_shape_is_placed_within_its_domains(
        pdisks in shapes(), text in proptest::sample::select(Code::ALL.to_vec()), seed: u64,
        losses in proptest::collection::vec(0usize..40, 0..6), more in shapes(),
    ) {
        let Ok(mut table) = LayoutTable::build(text, &pdisks, 0, 64, seed) else {
            prop_assert!(pdisks.len() < text.width().into());
            return Ok(());
        };
        let mut reversed = pdisks.clone();
        reversed.reverse();
        prop_assert_eq!(&LayoutTable::build(text, &reversed, 0, 64, seed).unwrap(), &table);
        let width = usize::from(text.width());
        let most = |pdisks: &[PdiskDesc]| node_cap(pdisks, width).max(text.parity().into());
        prop_assert!(node_spread(&table).0 <= most(&pdisks));
        let mut add: Vec<PdiskDesc> =
            more.into_iter().map(|p| PdiskDesc { id: PdiskId(p.id.0 + 1000), ..p }).collect();
        for lost in losses {
            let lose = vec![table.pdisks()[lost % table.pdisks().len()].id];
            let change = Change { lose, add: add.pop().into_iter().collect(), ..Change::default() };
            if let Ok((next, moves)) = table.change(&change) {
                check_moves(&table, &next, &moves);
                prop_assert!(node_spread(&next).0 <= most(next.pdisks()));
                table = next;
            }
        }
    }
}
