//! Several pools over the same pdisks.
#![allow(clippy::unwrap_used)] // tests

use std::time::Duration;

use base::{FsId, PdiskId, PoolId};
use wire::{
    map::PdiskState,
    mgr::{MgrReply, PdiskWish, Timestamp},
};

use super::{
    Event, NewPool,
    tests::{Stage, report},
};

fn make(stage: &mut Stage, name: &str, code: &str, pdisks: &[u32]) -> MgrReply {
    let pdisks = pdisks.iter().map(|id| PdiskId(*id)).collect();
    let wish = NewPool { name: name.into(), code: code.into(), block_size: 1 << 20, pdisks, seed: 5 };
    stage.ask(|ticket| Event::MakePool { ticket, wish })
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
    assert_eq!(stage.cluster.map().epoch, epoch, "what is refused changes nothing");
    let fs =
        |pool| move |ticket| Event::MakeFs { ticket, name: "fs2".into(), pool, now: Timestamp::default() };
    assert!(matches!(stage.ask(fs(PoolId(7))), MgrReply::Error(_)));
    assert_eq!(stage.ask(fs(PoolId(2))), MgrReply::Done);
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
        let ask = |ticket| Event::Reserve { ticket, session, pool: PoolId(pool), bytes, held: 0 };
        match stage.ask(ask) {
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
    let wish = |wish| move |ticket| Event::Wish { ticket, pdisk: PdiskId(1), wish };
    assert!(matches!(stage.ask(wish(PdiskWish::Fail)), MgrReply::Error(_)), "it has the only strips of work");
    stage.pass_without(&[1], 11);
    assert_eq!(stage.states(), "mooo");
    let moves = |stage: &Stage| stage.cluster.map().pool(PoolId(2)).unwrap().moves.len();
    stage.pass_without(&[1], 3);
    assert_eq!(moves(&stage), 0, "there is nothing to make the strips from");
    stage.ask(wish(PdiskWish::Fail));
    stage.pass_without(&[1], 3);
    assert!(stage.cluster.map().pdisk(PdiskId(1)).unwrap().given_up() && moves(&stage) > 0);
    stage.register(1, 2, 0);
    stage.ask(wish(PdiskWish::Keep));
    stage.renew(1, report(1, 2, 0));
    let back = stage.cluster.map().pdisk(PdiskId(1)).unwrap();
    assert!(back.state == PdiskState::Returning && !back.leaving);
}
