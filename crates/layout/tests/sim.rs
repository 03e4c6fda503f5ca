//! The simulator, and what it says of tables: rebuild load, moved data, opening of arrays.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{cell::Cell, collections::BTreeMap, num::NonZeroU64, time::Duration};

use base::{NodeId, PdiskId};
use layout::{
    Change, LayoutError, LayoutTable, PdiskDesc,
    sim::{Event, Report, Setup, simulate},
};

fn setup(code: &str, nodes: u32, pdisks_per_node: u32) -> Setup {
    Setup {
        nodes,
        pdisks_per_node,
        code: code.parse().unwrap(),
        groups: None,
        spare: 0,
        seed: 7,
        pdisk_bytes: 1 << 40,
        pdisk_bytes_per_second: NonZeroU64::new(100_000_000).unwrap(),
    }
}

fn run(setup: &Setup) -> Report {
    simulate(setup, || Duration::ZERO).unwrap()
}

#[test]
fn rebuild_load_is_within_a_fifth_of_the_mean_and_moves_within_a_twentieth_of_the_least() {
    for (code, nodes, each) in [
        ("4+2p", 4, 2),
        ("4+2p", 7, 2),
        ("4+2p", 4, 3),
        ("4+2p", 4, 4),
        ("4+2p", 8, 2),
        ("4+3p", 10, 3),
        ("8+2p", 6, 2),
        ("8+2p", 16, 8),
        ("8+3p", 16, 1),
        ("8+3p", 8, 3),
        ("16+3p", 24, 4),
        ("16+2p", 12, 4),
        ("2+1p", 16, 8),
        ("2way", 4, 2),
        ("2way", 32, 2),
        ("3way", 12, 8),
        ("4way", 10, 4),
        ("4+2p", 1, 12),
    ] {
        let report = run(&setup(code, nodes, each));
        let shape = format!("{code} on {nodes} x {each}\n{report}");
        let rebuild = report.rebuild.unwrap();
        assert!(!rebuild.confined_to_node && rebuild.load_max_over_mean <= 1.2, "{shape}");
        assert_eq!(rebuild.pdisks, nodes * each - 1, "{shape}");
        let n = f64::from(nodes * each);
        let k = f64::from(report.setup.code.data());
        // All others read K strips and write one for each strip that was lost.
        let least_time = rebuild.conventional_seconds * (k + 1.0) / (n - 1.0);
        assert!(rebuild.seconds >= least_time * 0.99 && rebuild.seconds <= least_time * 1.21, "{shape}");
        for moved in &report.changes {
            if let Some(why) = &moved.refused {
                assert!(nodes == 1 && moved.event == Event::LoseNode, "{why}: {shape}");
            }
            if let Some(m) = &moved.movement {
                assert!(m.over_least() <= 1.05 && m.over_least() >= 0.97, "{shape}");
            }
        }
    }
}

/// Three copies over a large array give each pdisk six strips of work: the choice of the copies to read
/// has to be good.
#[test]
fn few_strips_a_pdisk_are_even_as_well() {
    let setup = setup("3way", 128, 4);
    let pdisks: Vec<_> = (0..512).map(|i| pdisk(i + 1, i / 4 + 1)).collect();
    let groups = layout::default_groups(setup.code, 512);
    let table = LayoutTable::build(setup.code, &pdisks, 0, groups, setup.seed).unwrap();
    let (next, _) = table.change(&Change { lose: vec![PdiskId(9)], ..Change::default() }).unwrap();
    let load: Vec<u32> = table.rebuild_load(PdiskId(9), &next).iter().map(|(r, w)| r + w).collect();
    assert_eq!(load[8], 0);
    let (most, sum) = (load.iter().max().unwrap(), load.iter().sum::<u32>());
    assert!(most * 511 * 10 <= sum * 12, "{most} of {sum}");
}

#[test]
fn a_group_on_every_node_confines_the_rebuild_and_the_report_says_so() {
    let report = run(&setup("8+2p", 10, 4));
    assert!(report.rebuild.unwrap().confined_to_node);
    assert!(report.to_string().contains("same node"), "{report}");
    assert_eq!((report.node_losses_survived, report.strips_per_node_max), (2, 1));
}

#[test]
fn what_cannot_be_is_said() {
    let report = run(&setup("4+2p", 6, 1));
    assert_eq!(report.rebuild, None);
    let lost = report.changes.iter().find(|m| m.event == Event::LosePdisk).unwrap();
    assert!(lost.refused.as_ref().unwrap().contains("add 1 pdisk"), "{lost:?}");
    assert_eq!(run(&setup("1way", 4, 2)).rebuild, None);
    let refused = |code, nodes, each| simulate(&setup(code, nodes, each), || Duration::ZERO).unwrap_err();
    assert!(matches!(refused("8+3p", 4, 2), LayoutError::DoesNotFit { need: 11, pdisks: 8, .. }));
    assert!(matches!(refused("4+2p", 0, 9), LayoutError::DoesNotFit { pdisks: 0, .. }));
    assert!(matches!(refused("4+2p", 1 << 20, 1 << 20), LayoutError::TooManyPdisks { .. }));
}

#[test]
fn the_report_is_the_same_each_time_but_for_the_clock() {
    let setup = Setup { groups: Some(1200), ..setup("4+2p", 300, 2) };
    let ticks = Cell::new(0);
    let clock = || {
        ticks.set(ticks.get() + 1);
        Duration::from_secs(ticks.get())
    };
    let report = simulate(&setup, clock).unwrap();
    assert_eq!((report.build_seconds, report.arrays.clone()), (1.0, vec![300, 300]));
    assert!(report.changes.iter().all(|m| m.movement.unwrap().plan_seconds == 1.0));
    assert_eq!(simulate(&setup, || Duration::ZERO).unwrap(), run(&setup));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["setup"]["code"], "4+2p");
    assert_eq!(json["changes"][0]["event"], "add_pdisk");
    assert!(json["changes"][0]["movement"]["least"].as_u64().unwrap() > 0);
    // Seven thousand members of one or two bytes, and the descriptions.
    assert!((7200 * 2 - 1000..30_000).contains(&report.stored_bytes), "{}", report.stored_bytes);
    let text = report.to_string();
    for part in ["4+2p on 300 nodes", "EVENNESS", "add a node", "REBUILD", "100 MB/s"] {
        assert!(text.contains(part), "{text}");
    }
}

fn pdisk(id: u32, node: u32) -> PdiskDesc {
    PdiskDesc { id: PdiskId(id), node: NodeId(node), enclosure: None, weight: 1 << 40 }
}

fn full(groups: u32) -> LayoutTable {
    let pdisks: Vec<_> = (0..512).map(|i| pdisk(i + 1, i / 32 + 1)).collect();
    LayoutTable::build("8+2p".parse().unwrap(), &pdisks, 0, groups, 7).unwrap()
}

fn array_sizes(table: &LayoutTable) -> Vec<u32> {
    let mut sizes: BTreeMap<Option<u16>, u32> = BTreeMap::new();
    table.pdisks().iter().for_each(|p| *sizes.entry(table.array_of(p.id)).or_default() += 1);
    sizes.into_values().collect()
}

/// Groups are within one array, and no node holds more than one strip of any.
fn check_domains(table: &LayoutTable) {
    for group in table.group_ids() {
        let members = table.members(group);
        let array = table.array_of(members[0]);
        assert!(members.iter().all(|m| table.array_of(*m) == array), "{group} spans arrays");
    }
    assert_eq!(table.node_losses_survived(), 2);
}

#[test]
fn a_full_pool_opens_an_array_of_new_nodes_alone_with_the_least_movement() {
    let table = full(3000);
    let add: Vec<_> = (0..160).map(|i| pdisk(1000 + i, 100 + i / 8)).collect();
    let (next, moves) = table.change(&Change { add, ..Change::default() }).unwrap();
    assert_eq!(array_sizes(&next), [512, 160]);
    check_domains(&next);
    let share = 30_000 * 160 / 672;
    let new = moves.iter().filter(|m| m.to.0 >= 1000).count();
    assert!(new.abs_diff(share) <= share / 100, "{new} of {share}");
    assert!(moves.len() <= share + share / 20, "{} of {share}", moves.len());
    let e = next.evenness();
    assert!(e.groups_min >= 950 && e.groups_max <= 1050, "{e:?}");
    // The groups that moved are spread over all, so that a file read in order is on all arrays.
    let moved: Vec<_> =
        next.group_ids().filter(|g| next.array_of(next.members(*g)[0]) == Some(1)).map(|g| g.0).collect();
    let half = moved.iter().filter(|g| **g < 1500).count();
    assert!(half.abs_diff(moved.len() / 2) <= moved.len() / 10, "{half} of {}", moved.len());
}

#[test]
fn one_node_opens_an_array_by_exchange_and_no_failure_domain_gets_worse() {
    let table = full(3000);
    let add: Vec<_> = (0..32).map(|i| pdisk(1000 + i, 17)).collect();
    let (next, moves) = table.change(&Change { add, ..Change::default() }).unwrap();
    assert_eq!(array_sizes(&next), [504, 40]);
    check_domains(&next);
    let share = 30_000 * 32 / 544;
    assert!(moves.len() <= share * 23 / 10, "{} of {share}", moves.len());
    let e = next.evenness();
    assert!(e.groups_min >= 900 && e.groups_max <= 1100, "{e:?}");
    // The next node is spread as well.
    let add: Vec<_> = (0..32).map(|i| pdisk(2000 + i, 18)).collect();
    let (third, _) = next.change(&Change { add, ..Change::default() }).unwrap();
    assert_eq!(array_sizes(&third), [504, 72]);
    check_domains(&third);
    let e = third.evenness();
    assert!(e.groups_min >= 900 && e.groups_max <= 1100, "{e:?}");
}

#[test]
fn too_few_pdisks_open_no_array() {
    let table = full(1000);
    let add = vec![pdisk(1000, 17)];
    let error = table.change(&Change { add, ..Change::default() }).unwrap_err();
    assert_eq!(error, LayoutError::ArraysFull { pdisks: 1, room: 0, need: 20 });
    assert!(error.to_string().contains("at least 20"), "{error}");
}

#[test]
fn an_array_too_small_for_a_group_is_dissolved() {
    let table = full(1000);
    let add: Vec<_> = (0..40).map(|i| pdisk(1000 + i, 100 + i / 2)).collect();
    let (next, _) = table.change(&Change { add, ..Change::default() }).unwrap();
    assert_eq!(array_sizes(&next), [512, 40]);
    let lose = (0..31).map(|i| PdiskId(1000 + i)).chain((1..=64).map(PdiskId)).collect();
    let (last, _) = next.change(&Change { lose, ..Change::default() }).unwrap();
    assert_eq!(array_sizes(&last), [457]);
    check_domains(&last);
    assert!(last.slots().iter().all(|slots| *slots > 0));
}
