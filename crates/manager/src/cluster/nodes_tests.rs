//! Nodes that come, go, and are called and reached otherwise; a cluster that begins with nothing.
#![allow(clippy::unwrap_used)] // tests

use base::{ClusterId, NodeId, PdiskId, PoolId};
use wire::{
    map::{NodeEntry, PdiskState},
    mgr::{MgrError, MgrReply, MgrRequest, PdiskReport, PdiskWish, Timestamp},
};

use super::{
    Ask, NewPool,
    stage::{NOBODY, Stage, process, report},
};

fn texts(addrs: &[&str]) -> Vec<String> {
    addrs.iter().map(|addr| (*addr).to_owned()).collect()
}

fn add(stage: &mut Stage, name: &str, addrs: &[&str]) -> Result<u32, String> {
    match stage.ask(NOBODY, MgrRequest::NodeAdd { name: name.into(), addrs: texts(addrs) }) {
        MgrReply::NodeAdded { node } => Ok(node.0),
        MgrReply::Error(error) => Err(error.to_string()),
        other => panic!("{other:?}"),
    }
}

fn done(reply: MgrReply) -> Result<(), String> {
    match reply {
        MgrReply::Done => Ok(()),
        MgrReply::Error(error) => Err(error.to_string()),
        other => panic!("{other:?}"),
    }
}

fn remove(stage: &mut Stage, node: u32) -> Result<(), String> {
    done(stage.ask(NOBODY, MgrRequest::NodeRemove { node: NodeId(node) }))
}

fn set(stage: &mut Stage, node: u32, name: Option<&str>, addrs: Option<&[&str]>) -> Result<(), String> {
    let (name, addrs) = (name.map(str::to_owned), addrs.map(texts));
    done(stage.ask(NOBODY, MgrRequest::NodeSet { node: NodeId(node), name, addrs, rack: None }))
}

fn serve(stage: &mut Stage, node: u32, addrs: &[&str], pdisks: Vec<PdiskReport>) -> MgrReply {
    let (node, process, addrs) = (NodeId(node), process(7000 + node), texts(addrs));
    let reply = stage.ask(NOBODY, MgrRequest::RegisterServer { node, process, addrs, pdisks });
    if let MgrReply::Registered { session, .. } = &reply {
        stage.servers.insert(node.0, *session);
    }
    reply
}

fn node(stage: &Stage, id: u32) -> NodeEntry {
    stage.cluster.map().node(NodeId(id)).unwrap().clone()
}

#[test]
fn a_number_is_given_once_also_after_a_restart() {
    let mut stage = Stage::running(4, "2+2p");
    assert_eq!(add(&mut stage, "n5", &["192.0.2.5:10"]), Ok(5));
    assert_eq!(add(&mut stage, "n6", &["192.0.2.6:10"]), Ok(6));
    assert_eq!(remove(&mut stage, 6), Ok(()));
    assert_eq!(add(&mut stage, "n6", &["192.0.2.6:10"]), Ok(7), "another machine by that name");
    assert_eq!(remove(&mut stage, 7), Ok(()));
    stage.restart();
    assert_eq!(add(&mut stage, "n6", &["192.0.2.6:10"]), Ok(8));
    let ids: Vec<u32> = stage.cluster.map().nodes.iter().map(|node| node.id.0).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 8], "they rise");
    let late = serve(&mut stage, 6, &["192.0.2.9:10"], vec![]);
    assert!(matches!(late, MgrReply::Error(MgrError::Config(_))), "it was removed: {late:?}");
}

#[test]
fn a_pdisks_number_is_given_once_also_after_a_restart() {
    let mut stage = Stage::running(2, "2way");
    let last = |stage: &mut Stage| match stage.ask(NOBODY, MgrRequest::LastPdisk) {
        MgrReply::LastPdisk { pdisk } => pdisk.0,
        other => panic!("{other:?}"),
    };
    let add = |stage: &mut Stage, id: u32| {
        let (name, node) = (format!("p{id}"), NodeId(1));
        let new = MgrRequest::PdiskAdd { pdisk: PdiskId(id), name, node, capacity: 1 << 30, pools: vec![] };
        done(stage.ask(NOBODY, new))
    };
    assert_eq!(last(&mut stage), 2);
    for restarted in [false, true] {
        let id = last(&mut stage) + 1;
        assert_eq!(add(&mut stage, id), Ok(()));
        let remove = MgrRequest::PdiskSet { pdisk: PdiskId(id), wish: PdiskWish::Remove };
        assert_eq!(stage.ask(NOBODY, remove), MgrReply::Done, "its server has never told of it");
        if restarted {
            stage.restart();
        }
        assert_eq!(last(&mut stage), id);
        let said = add(&mut stage, id).unwrap_err();
        assert!(said.contains(&format!("is not above pdisk{id}")), "{said}");
    }
}

/// Nodes that the cluster was made with have no record of their own until they go.
#[test]
fn the_number_of_a_node_of_the_beginning_does_not_come_back() {
    let mut stage = Stage::running(4, "1way");
    let empty = MgrRequest::PdiskSet { pdisk: PdiskId(4), wish: PdiskWish::Remove };
    stage.cluster.map.pools[0].table.retain(|id| id.0 < 4);
    stage.ask(NOBODY, empty);
    stage.pass_without(&[4], 11);
    assert_eq!(remove(&mut stage, 4), Ok(()));
    stage.restart();
    assert_eq!(add(&mut stage, "n4", &["192.0.2.4:10"]), Ok(5));
}

#[test]
fn asking_again_is_harmless_until_the_node_is_used() {
    let mut stage = Stage::running(4, "2+2p");
    let addrs = ["192.0.2.5:10", "[2001:db8::5]:10"];
    assert_eq!(add(&mut stage, "n5", &addrs), Ok(5));
    let epoch = stage.cluster.map().epoch;
    assert_eq!(add(&mut stage, "n5", &addrs), Ok(5));
    assert_eq!(stage.cluster.map().epoch, epoch, "nothing changed");
    stage.restart();
    assert_eq!(add(&mut stage, "n5", &addrs), Ok(5), "the answer was lost with the manager");
    let said = add(&mut stage, "n5", &["192.0.2.5:11"]).unwrap_err();
    assert!(said.contains("there is a node n5 already (node5)"), "{said}");
    assert!(matches!(serve(&mut stage, 5, &addrs, vec![]), MgrReply::Registered { .. }));
    stage.pass_without(&[5], 11);
    for _ in 0..2 {
        let said = add(&mut stage, "n5", &addrs).unwrap_err();
        assert!(said.contains("ropewalk node remove n5"), "a server has registered: {said}");
        stage.restart();
    }
    assert_eq!(add(&mut stage, "n6", &["192.0.2.6:10"]), Ok(6));
    let new = MgrRequest::PdiskAdd {
        pdisk: PdiskId(5),
        name: "n6p1".into(),
        node: NodeId(6),
        capacity: 1 << 30,
        pools: vec![],
    };
    assert_eq!(stage.ask(NOBODY, new), MgrReply::Done);
    add(&mut stage, "n6", &["192.0.2.6:10"]).unwrap_err();
}

#[test]
fn what_cannot_be_is_said_and_changes_nothing() {
    let mut stage = Stage::running(2, "2way");
    let epoch = stage.cluster.map().epoch;
    let long = "n".repeat(64);
    for name in ["", "-n", ".n", "_n", "a b", "a/b", "ä", "manager", &long] {
        let said = add(&mut stage, name, &["192.0.2.5:10"]).unwrap_err();
        assert!(said.contains(&format!("{name:?}")) || said.contains("called manager"), "{said}");
        set(&mut stage, 1, Some(name), None).unwrap_err();
    }
    let many: Vec<String> = (1..=17).map(|port| format!("192.0.2.5:{port}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (addrs, reason) in [
        (&[][..], "1 to 16"),
        (&many, "17 addresses"),
        (&["192.0.2.5"], "IP:PORT"),
        (&["host:10"], "IP:PORT"),
        (&["192.0.2.5:0"], "IP:PORT"),
        (&["0.0.0.0:10"], "connect to"),
        (&["[::]:10"], "connect to"),
        (&["192.0.2.5:10", "192.0.2.5:10"], "twice"),
        (&["192.0.2.5:10", "127.0.0.1:2"], "127.0.0.1:2 is the address of node n2 (node2)"),
    ] {
        for said in [add(&mut stage, "n5", addrs), set(&mut stage, 1, None, Some(addrs)).map(|()| 0)] {
            let said = said.unwrap_err();
            assert!(said.contains(reason), "{addrs:?}: {said}");
        }
    }
    let said = set(&mut stage, 1, Some("n2"), Some(&["192.0.2.1:10"])).unwrap_err();
    assert!(said.contains("there is a node n2"), "{said}");
    for said in [set(&mut stage, 9, Some("x"), None), remove(&mut stage, 9)] {
        assert!(said.unwrap_err().contains("node9 is not in the cluster"));
    }
    let said = remove(&mut stage, 1).unwrap_err();
    assert!(said.contains("n1 has pdisks: n1p1") && said.contains("node drain"), "{said}");
    assert_eq!(stage.cluster.map().epoch, epoch);
    assert_eq!(add(&mut stage, &long[1..], &many[1..]), Ok(3), "the longest, and the most");
}

#[test]
fn a_node_that_serves_stays() {
    let mut stage = Stage::running(2, "2way");
    assert_eq!(add(&mut stage, "n3", &["192.0.2.3:10"]), Ok(3));
    assert!(matches!(serve(&mut stage, 3, &["192.0.2.3:10"], vec![]), MgrReply::Registered { .. }));
    let said = remove(&mut stage, 3).unwrap_err();
    assert!(said.contains("n3 serves") && said.contains("ropewalk down"), "{said}");
    stage.pass_without(&[3], 11);
    assert_eq!(remove(&mut stage, 3), Ok(()));
    assert!(stage.cluster.map().node(NodeId(3)).is_none());
}

#[test]
fn a_name_and_addresses_change_and_stay() {
    let mut stage = Stage::running(2, "2way");
    assert_eq!(set(&mut stage, 1, Some("ada"), Some(&["192.0.2.1:10", "198.51.100.1:10"])), Ok(()));
    stage.restart();
    let entry = node(&stage, 1);
    assert_eq!((entry.name.as_str(), entry.addrs.len(), entry.session.is_some()), ("ada", 2, true));
    assert_eq!(stage.cluster.map().node(NodeId(2)).unwrap().name, "n2");
    let epoch = stage.cluster.map().epoch;
    assert_eq!(set(&mut stage, 1, Some("ada"), Some(&["192.0.2.1:10", "198.51.100.1:10"])), Ok(()));
    assert_eq!(stage.cluster.map().epoch, epoch, "as it was");
    // Where its server listens counts.
    stage.register(1, 2, 0);
    assert_eq!(node(&stage, 1).addrs, ["127.0.0.1:1"]);
    assert_eq!(node(&stage, 1).name, "ada");
}

#[test]
fn an_address_has_one_owner_the_one_that_listens_there() {
    let mut stage = Stage::running(2, "2way");
    let taken = serve(&mut stage, 2, &["127.0.0.1:1"], vec![report(2, 2, 0)]);
    let MgrReply::Error(MgrError::Config(said)) = taken else { panic!("{taken:?}") };
    assert!(said.contains("127.0.0.1:1 is the address of node n1"), "{said}");
    assert_eq!(node(&stage, 2).addrs, ["127.0.0.1:2"]);
    // They change places; the first of them comes while the other is down.
    stage.pass_without(&[1], 11);
    let came = serve(&mut stage, 2, &["127.0.0.1:1"], vec![report(2, 2, 0)]);
    assert!(matches!(came, MgrReply::Registered { .. }), "{came:?}");
    assert_eq!(node(&stage, 1).addrs, Vec::<String>::new(), "nobody looks for it there");
    assert!(matches!(
        serve(&mut stage, 1, &["127.0.0.1:2"], vec![report(1, 2, 0)]),
        MgrReply::Registered { .. }
    ));
    assert_eq!([node(&stage, 1).addrs, node(&stage, 2).addrs], [["127.0.0.1:2"], ["127.0.0.1:1"]]);
}

/// From one node without anything to a file system that can be mounted, with the manager begun anew after each step.
#[test]
fn a_cluster_begins_with_nothing() {
    let entry = NodeEntry { id: NodeId(1), name: "n1".into(), ..NodeEntry::default() };
    let spec = crate::Spec {
        racks: vec![],
        cluster: ClusterId(7),
        name: "c".into(),
        nodes: vec![entry],
        pdisks: vec![],
        pools: vec![],
        filesystems: vec![],
    };
    let mut stage = Stage::made(&spec);
    assert_eq!(stage.ask(NOBODY, MgrRequest::LastPdisk), MgrReply::LastPdisk { pdisk: PdiskId(0) });
    let at = |node: u32| format!("192.0.2.{node}:10");
    assert!(matches!(serve(&mut stage, 1, &[&at(1)], vec![]), MgrReply::Registered { .. }));
    stage.pass(1);
    for id in 2..=3 {
        assert_eq!(add(&mut stage, &format!("n{id}"), &[&at(id)]), Ok(id));
        stage.restart();
        assert!(matches!(serve(&mut stage, id, &[&at(id)], vec![]), MgrReply::Registered { .. }));
    }
    for id in 1..=3 {
        let (name, node) = (format!("n{id}p1"), NodeId(id));
        let new = MgrRequest::PdiskAdd { pdisk: PdiskId(id), name, node, capacity: 64 << 20, pools: vec![] };
        assert_eq!(stage.ask(NOBODY, new), MgrReply::Done);
        stage.restart();
        assert!(matches!(
            serve(&mut stage, id, &[&at(id)], vec![report(id, 1, 0)]),
            MgrReply::Registered { .. }
        ));
        let caught_up = Some(stage.cluster.map().epoch);
        stage.renew(id, PdiskReport { caught_up, ..report(id, 1, 0) });
    }
    assert_eq!(stage.states(), "ooo");
    let wish = NewPool {
        name: "data".into(),
        code: "2+1p".into(),
        block_size: 1 << 20,
        pdisks: vec![],
        survives: None,
        seed: 5,
    };
    assert_eq!(stage.ask(NOBODY, Ask::MakePool(wish)), MgrReply::Done);
    let fs = Ask::MakeFs { name: "fs1".into(), pool: PoolId(1), now: Timestamp::default() };
    assert_eq!(stage.ask(NOBODY, fs), MgrReply::Done);
    stage.restart();
    stage.renew_all();
    let ticket = stage.open(1, None);
    let (session, ..) = stage.opened(ticket);
    let room = stage.ask(session, MgrRequest::Reserve { pool: PoolId(1), bytes: 30 << 20, held: 0 });
    assert_eq!(room, MgrReply::Reserved { bytes: 30 << 20 });
    assert!(stage.cluster.map().pdisks.iter().all(|pdisk| pdisk.state == PdiskState::Ok));
}
