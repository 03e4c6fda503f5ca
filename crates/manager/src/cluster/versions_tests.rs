//! Builds and levels, with the manager's state machine and a store that survives its restarts.
#![allow(clippy::unwrap_used)] // tests

use base::NodeId;
use wire::{
    mgr::{MgrError, MgrReply, MgrRequest, VersionReport},
    version::{Build, LEVEL, LEVEL_BUILDS_KEPT, LEVEL_FIRST},
};

use super::stage::{NOBODY, Stage, report};
use crate::{
    keys::{self, BuildRecord, FormatRecord},
    store::{open_record, seal_record},
};

const OLD: Build = Build { levels: wire::version::Span { least: 1, greatest: 1 }, ..build() };
const fn build() -> Build {
    let none = wire::version::Span { least: 0, greatest: 0 };
    Build { version: [0, 1, 0], protocols: none, levels: none }
}

/// A cluster from before there were levels.
fn old_cluster() -> Stage {
    let mut stage = Stage::running(3, "2+1p");
    let key = keys::format_key();
    let format: FormatRecord = open_record(&key, &stage.store[&key]).unwrap();
    assert_eq!(format.version, u32::from(LEVEL), "a new cluster has nobody who is older");
    let version = LEVEL_FIRST.into();
    stage.store.insert(key.clone(), seal_record(&key, &FormatRecord { version, ..format }));
    stage.restart();
    assert_eq!(stage.cluster.map().level, LEVEL_FIRST);
    stage
}

fn versions(stage: &mut Stage) -> VersionReport {
    let MgrReply::Versions(report) = stage.ask(NOBODY, MgrRequest::Versions) else { panic!("no report") };
    *report
}

fn renew_as(stage: &mut Stage, node: u32, build: Build) {
    stage.build = Some(build);
    stage.renew(node, report(node, 1, 0));
    stage.build = None;
}

/// What `finalize` is refused for.
fn refusal(stage: &mut Stage) -> String {
    match stage.ask(NOBODY, MgrRequest::Finalize) {
        MgrReply::Error(MgrError::Config(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn kept(stage: &Stage, node: u32) -> Option<Build> {
    let key = keys::build_key(NodeId(node));
    stage.store.get(&key).map(|value| open_record::<BuildRecord>(&key, value).unwrap().build)
}

#[test]
fn a_level_is_raised_when_all_can_read_it_and_not_before() {
    let mut stage = old_cluster();
    let told = refusal(&mut stage);
    assert!(told.contains("n1 has not said yet what it runs"), "{told}");
    (1..=3).for_each(|node| renew_as(&mut stage, node, OLD));
    renew_as(&mut stage, 2, Build::own());
    let told = refusal(&mut stage);
    assert!(told.contains("n1 runs ropewalk 0.1.0, which knows levels 1; upgrade it"), "{told}");
    assert!(!told.contains("n2") && told.contains("n3 runs"), "{told}");
    let report = versions(&mut stage);
    assert_eq!(report.level, LEVEL_FIRST);
    let builds: Vec<_> = report.members.iter().map(|member| member.build).collect();
    assert_eq!(builds, [Some(OLD), Some(Build::own()), Some(OLD)]);
    // In an older cluster nothing is stored in the new way.
    assert!((1..=3).all(|node| kept(&stage, node).is_none()));

    (1..=3).for_each(|node| renew_as(&mut stage, node, Build::own()));
    let epoch = stage.cluster.map().epoch;
    assert_eq!(stage.ask(NOBODY, MgrRequest::Finalize), MgrReply::Done);
    assert_eq!(stage.cluster.map().level, LEVEL);
    assert!(stage.cluster.map().epoch > epoch, "everybody hears of it with the map");
    assert!(LEVEL >= LEVEL_BUILDS_KEPT && (1..=3).all(|node| kept(&stage, node) == Some(Build::own())));
    stage.restart();
    assert_eq!(stage.cluster.map().level, LEVEL);
    assert_eq!(versions(&mut stage).members[0].build, Some(Build::own()), "it is on record");
    assert_eq!(stage.ask(NOBODY, MgrRequest::Finalize), MgrReply::Done, "once more does nothing");
}

#[test]
fn an_absent_node_is_named() {
    let mut stage = old_cluster();
    (1..=3).for_each(|node| renew_as(&mut stage, node, Build::own()));
    stage.now += super::LEASE_DEFAULT * 3;
    [1, 2].into_iter().for_each(|node| renew_as(&mut stage, node, Build::own()));
    (1..=2).for_each(|node| stage.register(node, 2, 0));
    let told = refusal(&mut stage);
    assert!(told.contains("n3 is not there") && told.contains("ropewalk node remove n3"), "{told}");
}

#[test]
fn who_does_not_know_the_level_gets_no_session() {
    let mut stage = Stage::running(3, "2+1p");
    let later = Build { levels: wire::version::Span { least: LEVEL + 1, greatest: LEVEL + 2 }, ..build() };
    for (stranger, why, remedy) in
        [(OLD, "too old", "install a newer ropewalk there"), (later, "too new", "ropewalk cluster finalize")]
    {
        stage.build = Some(stranger);
        let register = MgrRequest::RegisterServer {
            node: NodeId(2),
            process: Default::default(),
            addrs: vec!["127.0.0.1:2".to_owned()],
            pdisks: Vec::new(),
        };
        let mount = MgrRequest::OpenSession {
            fs: "fs1".to_owned(),
            process: Default::default(),
            admin_addr: String::new(),
            mount: "/mnt".to_owned(),
            proven_dead: Vec::new(),
            share: true,
        };
        for (request, name) in [(register, "n2"), (mount, "/mnt on")] {
            let MgrReply::Error(MgrError::Config(told)) = stage.ask(NOBODY, request) else {
                panic!("let in")
            };
            assert!(told.contains(name) && told.contains(why) && told.contains(remedy), "{told}");
        }
    }
}
