//! Several pools over the same pdisks.
#![allow(clippy::unwrap_used)] // tests

use std::time::Duration;

use base::{FsId, PdiskId, PoolId};
use wire::{
    map::PdiskState,
    mgr::{MgrReply, MgrRequest, PdiskWish, Timestamp},
};

use super::{
    Ask, NewPool, Removal,
    stage::{NOBODY, Stage, report},
};

fn make(stage: &mut Stage, name: &str, code: &str, pdisks: &[u32]) -> MgrReply {
    let pdisks = pdisks.iter().map(|id| PdiskId(*id)).collect();
    let wish = NewPool {
        name: name.into(),
        code: code.into(),
        block_size: 1 << 20,
        pdisks,
        survives: None,
        seed: 5,
    };
    stage.ask(NOBODY, Ask::MakePool(wish))
}

#[test]
fn pools_and_file_systems_are_made_once_and_stay() {
    let mut stage = Stage::running(4, "2+2p");
    assert_eq!(make(&mut stage, "work", "1way", &[1, 2]), MgrReply::Done);
    let epoch = stage.cluster.map().epoch;
    assert_eq!(make(&mut stage, "work", "1way", &[1, 2]), MgrReply::Done, "asked again");
    for (name, code) in [("work", "2way"), ("", "1way"), ("wide", "8+2p"), ("odd", "3+3p")] {
        assert!(matches!(make(&mut stage, name, code, &[]), MgrReply::Error(_)), "{name} {code}");
    }
    assert!(matches!(make(&mut stage, "x", "1way", &[9]), MgrReply::Error(_)));
    let named = |name: &str, pool| Ask::MakeFs { name: name.into(), pool, now: Timestamp::default() };
    for name in ["", ".", "..", "-x", "_x", "a/b", "a b", "\u{1b}[2J", &"n".repeat(64)] {
        for reply in [make(&mut stage, name, "1way", &[]), stage.ask(NOBODY, named(name, PoolId(2)))] {
            let MgrReply::Error(error) = reply else { panic!("{name:?}: {reply:?}") };
            assert!(error.to_string().contains(&format!("{name:?} is no name of a ")), "{error}");
        }
    }
    assert_eq!(stage.cluster.map().epoch, epoch, "what is refused changes nothing");
    let fs = |pool| named("fs2", pool);
    assert!(matches!(stage.ask(NOBODY, fs(PoolId(7))), MgrReply::Error(_)));
    assert_eq!(stage.ask(NOBODY, fs(PoolId(2))), MgrReply::Done);
    stage.restart();
    let map = stage.cluster.map();
    let work = map.pool(PoolId(2)).unwrap();
    assert!(work.table.iter().all(|id| id.0 <= 2) && work.width == 1 && !work.table.is_empty());
    assert_eq!(map.fs_by_name("fs2").map(|fs| (fs.id, fs.pool)), Some((FsId(2), PoolId(2))));
}

#[test]
fn pools_over_the_same_pdisks_share_their_room() {
    let mut stage = Stage::running(4, "2+2p");
    make(&mut stage, "work", "1way", &[1, 2]);
    let ticket = stage.open(1, None);
    let (session, ..) = stage.opened(ticket);
    let mut reserve = |pool, bytes| {
        let ask = MgrRequest::Reserve { pool: PoolId(pool), bytes, held: 0 };
        match stage.ask(session, ask) {
            MgrReply::Reserved { bytes } => bytes >> 20,
            MgrReply::Error(_) => 0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reserve(2, 26 << 20), 26, "13 MiB on each of two pdisks");
    assert_eq!(reserve(1, u64::MAX), (63 - 13) * 4);
    assert_eq!(reserve(2, 1), 0, "held in the other pool");
}

#[test]
fn a_pool_without_redundancy_holds_up_no_other() {
    let mut stage = Stage::running(4, "2+2p");
    stage.cluster.set_rebuild_delay(Duration::ZERO);
    make(&mut stage, "work", "1way", &[1, 2]);
    let wish = |wish| MgrRequest::PdiskSet { pdisk: PdiskId(1), wish };
    assert!(
        matches!(stage.ask(NOBODY, wish(PdiskWish::Fail)), MgrReply::Error(_)),
        "it has the only strips of work"
    );
    stage.pass_without(&[1], 11);
    assert_eq!(stage.states(), "mooo");
    let moves = |stage: &Stage| stage.cluster.map().pool(PoolId(2)).unwrap().moves.len();
    let waiting = |stage: &mut Stage| match stage.ask(NOBODY, MgrRequest::Cluster) {
        MgrReply::Cluster(report) => (report.moving[1].waiting, report.moving[1].left),
        other => panic!("{other:?}"),
    };
    stage.pass_without(&[1], 3);
    assert_eq!(moves(&stage), 0, "there is nothing to make the strips from");
    let (wait, left) = waiting(&mut stage);
    assert!(wait == left && left > 0, "{wait} of {left} wait for the pdisk");
    stage.ask(NOBODY, wish(PdiskWish::Fail));
    stage.pass_without(&[1], 3);
    assert_eq!(waiting(&mut stage).0, 0);
    assert!(stage.cluster.map().pdisk(PdiskId(1)).unwrap().given_up() && moves(&stage) > 0);
    stage.register(1, 2, 0);
    stage.ask(NOBODY, wish(PdiskWish::Keep));
    stage.renew(1, report(1, 2, 0));
    let back = stage.cluster.map().pdisk(PdiskId(1)).unwrap();
    assert!(back.state == PdiskState::Returning && !back.leaving);
}

#[test]
fn what_is_removed_goes_and_its_number_does_not_come_back() {
    let mut stage = Stage::running(4, "2+2p");
    make(&mut stage, "work", "1way", &[1, 2]);
    let fs = |name: &'static str, pool| Ask::MakeFs { name: name.into(), pool, now: Timestamp::default() };
    let remove = Ask::Remove;
    let drop_fs = |name: &str| remove(Removal::RemoveFs(name.into()));
    let close = || remove(Removal::ClosePool("work".into()));
    let said = |reply| match reply {
        MgrReply::Error(error) => error.to_string(),
        other => format!("{other:?}"),
    };
    stage.ask(NOBODY, fs("fs2", PoolId(2)));
    assert!(said(stage.ask(NOBODY, close())).contains("fs2 begins in pool work"));
    let ticket = stage.open(1, None);
    let (session, ..) = stage.opened(ticket);
    assert!(said(stage.ask(NOBODY, drop_fs("fs1"))).contains("is mounted"));
    assert!(said(stage.ask(NOBODY, drop_fs("fs3"))).contains("there are fs1, fs2"));
    let epoch = stage.cluster.map().epoch;
    assert_eq!(stage.ask(NOBODY, drop_fs("fs2")), MgrReply::Done);
    assert!(stage.cluster.map().epoch > epoch && stage.cluster.map().fs_by_name("fs2").is_none());
    stage.ask(session, MgrRequest::CloseSession);

    // Closed, nothing goes there; opened again, it does; a crash in between leaves it closed.
    assert_eq!(stage.ask(NOBODY, close()), MgrReply::Done);
    assert!(said(stage.ask(NOBODY, fs("fs2", PoolId(2)))).contains("is being removed"));
    stage.ask(NOBODY, remove(Removal::ReopenPool(PoolId(2))));
    assert_eq!(stage.cluster.map().pool(PoolId(2)).unwrap().name, "work");
    assert!(
        matches!(stage.ask(NOBODY, remove(Removal::RemovePool(PoolId(2)))), MgrReply::Error(_)),
        "it is not closed"
    );
    stage.ask(NOBODY, close());
    stage.restart();
    assert_eq!(stage.cluster.map().pool(PoolId(2)).unwrap().name, "work (being removed)");
    (1..=4).for_each(|node| stage.register(node, 1, 0));
    stage.renew_all();
    assert_eq!(stage.ask(NOBODY, close()), MgrReply::Done);
    assert_eq!(stage.ask(NOBODY, remove(Removal::RemovePool(PoolId(2)))), MgrReply::Done);
    stage.restart();
    assert!(stage.cluster.map().pool(PoolId(2)).is_none());
    stage.ask(NOBODY, fs("fs2", PoolId(1)));
    assert_eq!(stage.cluster.map().fs_by_name("fs2").unwrap().id, FsId(3), "its inodes' numbers begin anew");
}

#[test]
fn a_pool_with_a_pdisk_away_is_not_removed() {
    let mut stage = Stage::running(4, "2+2p");
    assert_eq!(make(&mut stage, "work", "1way", &[1, 2]), MgrReply::Done);
    stage.pass_without(&[1], 11);
    assert_eq!(stage.states(), "mooo");
    let close = Ask::Remove(Removal::ClosePool("work".into()));
    let MgrReply::Error(error) = stage.ask(NOBODY, close) else { panic!("closed") };
    assert!(error.to_string().contains("n1p1 is missing"), "{error}");
}
