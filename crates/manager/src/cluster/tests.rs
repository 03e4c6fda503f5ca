//! Stories of servers, pdisks and sessions, told to the state machine with its own clock.

use std::time::Duration;

use base::{Epoch, FsId, Grant, InodeNo, NodeId, PdiskId, PoolId};
use wire::{
    mgr::{LogMark, MgrError, MgrReply, MgrRequest, PdiskReport},
    token::{Need, Recall, Token, TokenMode},
};

use super::{
    Event,
    stage::{NOBODY, Stage, mark, process, report},
};

#[test]
fn a_lapsed_server_is_missing_returns_and_catches_up() {
    let mut stage = Stage::running(4, "2+2p");
    stage.pass_without(&[3], 10);
    assert_eq!(stage.states(), "oooo", "the lease still runs");
    stage.pass_without(&[3], 1);
    assert_eq!(stage.states(), "oomo");
    assert!(stage.cluster.map().node(NodeId(3)).unwrap().session.is_none());
    let changed = stage.cluster.map().pdisk(PdiskId(3)).unwrap().changed;
    assert_eq!(changed, stage.cluster.map().epoch);
    assert_eq!(stage.renew(3, report(3, 1, 0)), MgrReply::Error(MgrError::NoSession));

    stage.register(3, 2, 0);
    assert_eq!(stage.states(), "ooro");
    let caught_up = |epoch| PdiskReport { caught_up: Some(epoch), ..report(3, 2, 0) };
    stage.renew(3, caught_up(changed));
    assert_eq!(stage.states(), "ooro", "that was before it came back");
    let changed = stage.cluster.map().pdisk(PdiskId(3)).unwrap().changed;
    stage.renew(3, caught_up(changed));
    assert_eq!(stage.states(), "oooo");
}

#[test]
fn the_last_copies_are_never_given_up_until_others_are_back() {
    let mut stage = Stage::running(4, "2+2p");
    stage.pass_without(&[1, 2, 3], 11);
    assert_eq!(stage.states().matches('o').count(), 2, "K stay: {}", stage.states());
    assert_eq!(stage.states(), "mmoo");
    stage.register(1, 2, 0);
    assert_eq!(stage.states(), "rmoo");
    let changed = stage.cluster.map().pdisk(PdiskId(1)).unwrap().changed;
    stage.renew(1, PdiskReport { caught_up: Some(changed), ..report(1, 2, 0) });
    assert_eq!(stage.states(), "ommo", "now pdisk 3 can be spared");
    let mut failed = report(4, 1, 0);
    failed.failed = true;
    stage.renew(4, failed);
    assert_eq!(stage.states(), "ommo", "a failed one of the last copies is still waited for");
}

#[test]
fn a_failed_pdisk_stays_failed() {
    let mut stage = Stage::running(4, "2+2p");
    stage.renew(2, PdiskReport { failed: true, ..report(2, 1, 0) });
    assert_eq!(stage.states(), "ofoo");
    stage.register(2, 2, 0);
    assert_eq!(stage.states(), "ofoo");
}

#[test]
fn a_log_as_long_with_other_content_must_catch_up() {
    // What a renewal told last counts, also after the manager was restarted.
    for restarted in [false, true] {
        let mut stage = Stage::running(4, "2+2p");
        stage.register(1, 5, 100);
        stage.pass(2);
        stage.renew(1, report(1, 5, 300));
        assert_eq!(stage.recorded(1), mark(300));
        if restarted {
            stage.restart();
            assert_eq!(stage.recorded(1), mark(300));
        }
        stage.register_with(1, 6, 400, Some(mark(300)));
        assert_eq!(stage.states(), "oooo", "longer, and contains what was recorded");
        stage.register_with(1, 7, 500, Some(LogMark { position: 400, digest: 1 }));
        assert_eq!(stage.states(), "rooo", "longer, and other content up to there");
        assert_eq!(stage.recorded(1), mark(500), "what it has now counts from now on");
    }
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    stage.register_with(1, 6, 200, None);
    assert_eq!(stage.states(), "rooo", "it knows nothing of that point");
}

/// Too early after the last one to be stored at once, and nothing new after it: it is stored all the same.
#[test]
fn the_last_report_of_a_pdisk_is_stored_in_the_end() {
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    stage.renew(1, report(1, 5, 300));
    stage.pass(2);
    stage.renew(1, report(1, 5, 300));
    stage.restart();
    assert_eq!(stage.recorded(1), mark(300));
}

/// A report of the process before may still be on its way when the next one asks.
#[test]
fn who_proves_another_point_than_the_recorded_asks_again() {
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    stage.renew(1, report(1, 5, 300));
    let reply = stage.ask(
        NOBODY,
        MgrRequest::RegisterServer {
            node: NodeId(1),
            process: process(1),
            addrs: vec!["127.0.0.1:1".into()],
            pdisks: vec![PdiskReport { proved: Some(mark(100)), ..report(1, 6, 400) }],
        },
    );
    assert!(matches!(reply, MgrReply::Error(MgrError::Superseded)), "{reply:?}");
    assert_eq!(stage.states(), "oooo");
    stage.register(1, 6, 400);
    assert_eq!(stage.states(), "oooo");
}

/// What a manager of today's format 1 has on record: a position alone.
#[test]
fn a_record_without_a_digest_is_compared_by_position() {
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    stage.forget_digest(1);
    assert_eq!(stage.recorded(1), LogMark { position: 100, digest: 0 });
    stage.register_with(1, 6, 101, None);
    assert_eq!(stage.states(), "oooo");
    stage.forget_digest(1);
    stage.register_with(1, 7, 100, None);
    assert_eq!(stage.states(), "rooo");
}

#[test]
fn an_old_copy_of_a_pdisk_must_catch_up() {
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    assert_eq!(stage.states(), "oooo");
    stage.register(1, 6, 99);
    assert_eq!(stage.states(), "rooo", "its log is behind");
    let mut stage = Stage::running(4, "2+2p");
    stage.register(1, 5, 100);
    stage.restart();
    stage.register(1, 5, 100);
    assert_eq!(stage.states(), "oooo", "the same process registers its life again");
    let reply = stage.ask(
        NOBODY,
        MgrRequest::RegisterServer {
            node: NodeId(1),
            process: process(1),
            addrs: vec!["127.0.0.1:1".into()],
            pdisks: vec![report(1, 5, 100)],
        },
    );
    assert!(matches!(reply, MgrReply::Registered { .. }));
    assert_eq!(stage.states(), "rooo", "another process with the same life has an old copy");
    let wrong = stage.ask(
        NOBODY,
        MgrRequest::RegisterServer {
            node: NodeId(1),
            process: process(1),
            addrs: vec!["127.0.0.1:1".into()],
            pdisks: vec![report(2, 9, 0)],
        },
    );
    assert!(matches!(wrong, MgrReply::Error(MgrError::Pdisk { pdisk: PdiskId(2), .. })), "{wrong:?}");
}

#[test]
fn after_a_restart_everybody_has_a_full_lease() {
    let mut stage = Stage::running(4, "2+2p");
    stage.pass(9);
    stage.restart();
    stage.pass(9);
    assert_eq!(stage.states(), "oooo");
    assert_eq!(
        stage.renew(1, report(1, 1, 0)),
        MgrReply::Renewed { lease_us: 10_000_000, epoch: stage.cluster.map().epoch }
    );
    stage.pass(2);
    assert_eq!(stage.states(), "ommo", "2, 3, 4 lapsed; one of the three is needed with 1");
    let mut fresh = Stage::new(4, "2+2p");
    fresh.pass(9);
    assert_eq!(fresh.states(), "oooo", "nobody has come yet, and has time to");
}

#[test]
fn a_dead_client_is_fenced_before_another_begins() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, grant1, resolve) = stage.opened(ticket);
    assert!(!resolve);
    stage.renew_all();
    let busy = stage.open(2, None);
    assert!(
        matches!(stage.replies.remove(&busy), Some(MgrReply::SessionBusy { holders }) if holders[0].0 == first)
    );
    // Proven dead: out of the map at once, but nobody begins before every server knows.
    let ticket = stage.open(2, Some(first));
    assert!(stage.cluster.map().clients.is_empty());
    assert!(!stage.replies.contains_key(&ticket));
    let fence = stage.cluster.map().epoch;
    for node in 1..=3 {
        stage.renew(node, report(node, 1, 0));
        assert!(!stage.replies.contains_key(&ticket), "server 4 has not acknowledged");
    }
    let collected = stage.collected;
    let session = stage.servers[&4];
    stage.tell(Event::InForce { session, epoch: Epoch(fence.0 - 1) });
    stage.tell(Event::InForce { session, epoch: fence });
    stage.renew_stuck(4, Epoch(fence.0 - 1));
    assert!(!stage.replies.contains_key(&ticket), "something admitted under an older map is under way");
    stage.renew(4, report(4, 1, 0));
    let (second, grant2, resolve) = stage.opened(ticket);
    assert!(second > first && grant2 > grant1 && resolve);
    assert!(stage.collected > collected, "its orphans may go now");
    // The first one is nobody now.
    let reply = stage.ask(first, MgrRequest::Reserve { pool: PoolId(1), bytes: 1, held: 0 });
    assert_eq!(reply, MgrReply::Error(MgrError::NoSession));
    // Unresolved until somebody says so, also across clean ends.
    stage.ask(second, MgrRequest::CloseSession);
    let ticket = stage.open(3, None);
    let (third, _, resolve) = stage.opened(ticket);
    assert!(resolve);
    stage.ask(third, MgrRequest::ResolveDone);
    stage.ask(third, MgrRequest::CloseSession);
    let ticket = stage.open(4, None);
    assert!(!stage.opened(ticket).2);
}

#[test]
fn a_fence_ends_with_the_lease_of_a_silent_server() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, ..) = stage.opened(ticket);
    stage.renew_all();
    let ticket = stage.open(2, Some(first));
    stage.pass_without(&[4], 9);
    assert!(!stage.replies.contains_key(&ticket));
    stage.pass_without(&[4], 2);
    assert!(stage.opened(ticket).2);
}

#[test]
fn a_fence_outlives_the_manager() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, grant, _) = stage.opened(ticket);
    let ticket = stage.open(2, Some(first));
    stage.restart();
    assert!(!stage.replies.contains_key(&ticket));
    let ticket = stage.open(3, None);
    assert!(!stage.replies.contains_key(&ticket), "the servers have not answered the new manager");
    stage.renew_all();
    let (second, grant2, resolve) = stage.opened(ticket);
    assert!(second > first && grant2 > grant && resolve);
}

#[test]
fn a_client_whose_lease_ran_out_keeps_its_session_until_somebody_else_comes() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (first, ..) = stage.opened(ticket);
    stage.pass_without(&[], 30);
    let epoch = stage.cluster.map().epoch;
    let reply = stage.ask(first, MgrRequest::Renew { epoch, pdisks: vec![] });
    assert!(matches!(reply, MgrReply::Renewed { .. }));
    stage.pass_without(&[], 11);
    let ticket = stage.open(2, None);
    stage.renew_all();
    assert!(stage.opened(ticket).2);
    // A client that asks again itself is not told that it is busy.
    let ticket = stage.open(2, None);
    stage.renew_all();
    let (last, ..) = stage.opened(ticket);
    // Not for ever: what it left half done would hold up rebuilds.
    let there = |stage: &Stage| stage.cluster.map().clients.iter().any(|client| client.session == last);
    stage.pass_without(&[], 59);
    assert!(there(&stage));
    stage.pass_without(&[], 3);
    assert!(!there(&stage));
}

#[test]
fn room_is_what_the_fullest_pdisk_has_and_comes_back_with_reports() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (session, ..) = stage.opened(ticket);
    let reserve = |stage: &mut Stage, bytes, held| match stage
        .ask(session, MgrRequest::Reserve { pool: PoolId(1), bytes, held })
    {
        MgrReply::Reserved { bytes } => Ok(bytes),
        MgrReply::Error(MgrError::Errno(errno)) => Err(errno),
        other => panic!("{other:?}"),
    };
    let all = (4 * 63) << 20; // 1/64 of each pdisk is kept
    assert_eq!(reserve(&mut stage, 100 << 20, 0), Ok(100 << 20));
    assert_eq!(reserve(&mut stage, u64::MAX, 100 << 20), Ok(all - (100 << 20)));
    assert_eq!(reserve(&mut stage, 1, all), Err(libc::ENOSPC));
    // 40 MiB were used, but the pdisks have not reported since: nobody knows yet.
    assert_eq!(reserve(&mut stage, 1, all - (40 << 20)), Err(libc::EAGAIN));
    stage.now += Duration::from_secs(1);
    for node in 1..=4 {
        stage.renew(node, PdiskReport { free: 54 << 20, ..report(node, 1, 1) });
    }
    assert_eq!(reserve(&mut stage, 1, all - (40 << 20)), Err(libc::ENOSPC), "they report that it is used");
    // The holder gives all back: what the reports leave is there for the next.
    stage.now += Duration::from_secs(1);
    assert_eq!(reserve(&mut stage, 0, 0), Ok(0));
    stage.now += Duration::from_secs(1);
    for node in 1..=4 {
        stage.renew(node, PdiskReport { free: (54 - u64::from(node)) << 20, ..report(node, 1, 2) });
    }
    assert_eq!(reserve(&mut stage, u64::MAX, 0), Ok((4 * 49) << 20), "the fullest pdisk counts");
    let MgrReply::StatFs { total, free, .. } = stage.ask(NOBODY, MgrRequest::StatFs { fs: FsId(1) }) else {
        panic!()
    };
    assert_eq!((total, free), ((2 * 63) << 20, (2 * 49) << 20), "redundancy taken off");
}

#[test]
fn a_silent_pdisk_of_a_living_server_is_put_aside() {
    let mut stage = Stage::running(4, "2+2p");
    let ticket = stage.open(1, None);
    let (session, ..) = stage.opened(ticket);
    let silent = |stage: &mut Stage| {
        stage.ask(session, MgrRequest::ReportSilent { pdisk: PdiskId(2) });
    };
    for _ in 0..5 {
        silent(&mut stage);
        stage.pass_without(&[], 2);
    }
    assert_eq!(stage.states(), "oooo");
    silent(&mut stage);
    assert_eq!(stage.states(), "omoo");
    stage.pass_without(&[], 59);
    assert_eq!(stage.states(), "omoo");
    stage.pass_without(&[], 2);
    assert_eq!(stage.states(), "oroo");
}

#[test]
fn what_the_first_client_claims_is_recalled_for_the_second() {
    let claimed = Token::new(InodeNo(7), TokenMode::Write, Grant(1));
    let (mut stage, first, second) = Stage::two(vec![claimed.clone()]);
    // What nobody holds is given at once, under a grant above all others.
    let ticket = stage.acquire(second, 8, Need::Write);
    let (other, resolve) = stage.granted(ticket);
    assert!(other.serial > claimed.serial && !resolve);
    // What is held is recalled first.
    let poll = stage.poll(first);
    let ticket = stage.acquire(second, 7, Need::Read);
    assert_eq!(stage.told(poll), [Recall::Token(Token { mode: TokenMode::Read, ..claimed.clone() })]);
    assert!(!stage.replies.contains_key(&ticket));
    stage.release(first, Token { mode: TokenMode::Read, ..claimed.clone() });
    assert_eq!(stage.granted(ticket).0.mode, TokenMode::Read);
    // Both read now; the first to write has the other give it up.
    let poll = stage.poll(second);
    let write = stage.acquire(first, 7, Need::Write);
    let [Recall::Token(wanted)] = &stage.told(poll)[..] else { panic!() };
    assert_eq!(wanted.mode, TokenMode::Open);
    // An answer about an older grant is late.
    stage.release(second, Token { mode: TokenMode::None, serial: Grant(1), ..wanted.clone() });
    assert!(!stage.replies.contains_key(&write));
    stage.release(second, wanted.clone());
    assert!(stage.granted(write).0.serial > wanted.serial);
}

#[test]
fn tokens_of_a_dead_client_move_on_after_the_fence_and_with_the_duty_to_resolve() {
    let claimed = Token::new(InodeNo(7), TokenMode::Write, Grant(1));
    let (mut stage, first, second) = Stage::two(vec![claimed.clone()]);
    let ticket = stage.acquire(second, 7, Need::Read);
    let own = stage.acquire(second, 9, Need::Write);
    stage.granted(own);
    // The first one is silent: nothing happens before its lease has run out.
    for _ in 0..9 {
        stage.pass(1);
        stage.renew_all();
        stage.ask(second, MgrRequest::Renew { epoch: Epoch(0), pdisks: vec![] });
    }
    assert!(stage.cluster.map().clients.iter().any(|client| client.session == first));
    stage.pass(2);
    assert!(!stage.cluster.map().clients.iter().any(|client| client.session == first));
    assert!(!stage.replies.contains_key(&ticket), "it is not fenced yet");
    stage.fence();
    let (token, resolve) = stage.granted(ticket);
    assert!(resolve && token.mode == TokenMode::Write, "only who may write can resolve");
    // What the second one held itself was never the first one's.
    let again = stage.acquire(second, 9, Need::Write);
    assert!(!stage.granted(again).1);
    // Nor is anything to be resolved twice.
    stage.ask(second, MgrRequest::Resolved { ino: InodeNo(7) });
    stage.release(second, Token { mode: TokenMode::None, ..token.clone() });
    let again = stage.acquire(second, 7, Need::Read);
    assert!(!stage.granted(again).1);
    // A pass over everything ends it.
    let poll = stage.poll(second);
    stage.tell(Event::Tick);
    let [Recall::Resolve(pass)] = stage.told(poll)[..] else { panic!() };
    let other = stage.acquire(second, 100, Need::Read);
    assert!(stage.granted(other).1, "unknown until the pass is done");
    stage.ask(second, MgrRequest::ResolvePassDone { pass: pass + 1 });
    let other = stage.acquire(second, 101, Need::Read);
    assert!(stage.granted(other).1, "that was not the pass");
    stage.ask(second, MgrRequest::ResolvePassDone { pass });
    let other = stage.acquire(second, 102, Need::Read);
    assert!(!stage.granted(other).1);
}

#[test]
fn after_a_restart_nothing_is_given_before_all_have_claimed() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let ticket = stage.acquire(first, 7, Need::Write);
    let held = stage.granted(ticket).0;
    stage.restart();
    let (polls, ticket) = ([stage.poll(first), stage.poll(second)], stage.acquire(second, 7, Need::Read));
    for poll in polls {
        assert_eq!(stage.told(poll), [Recall::Share]);
    }
    stage.claim(second, Vec::new());
    assert!(!stage.replies.contains_key(&ticket));
    let poll = stage.poll(first);
    stage.claim(first, vec![held.clone()]);
    assert_eq!(stage.told(poll), [Recall::Token(Token { mode: TokenMode::Read, ..held.clone() })]);
    stage.release(first, Token { mode: TokenMode::Read, ..held.clone() });
    assert!(stage.granted(ticket).0.serial > held.serial, "numbers of grants only grow");
}

#[test]
fn who_is_left_alone_gets_everything_back_until_the_next_one_comes() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let poll = stage.poll(first);
    stage.ask(second, MgrRequest::CloseSession);
    stage.tell(Event::Tick);
    let [Recall::Whole(grant)] = stage.told(poll)[..] else { panic!() };
    let poll = stage.poll(first);
    let ticket = stage.open_beside(3);
    assert_eq!(stage.told(poll), [Recall::Share]);
    assert!(!stage.replies.contains_key(&ticket));
    stage.claim(first, vec![Token::new(InodeNo(5), TokenMode::Write, grant)]);
    stage.tell(Event::Tick);
    let third = stage.opened(ticket).0;
    let ticket = stage.acquire(third, 5, Need::Read);
    assert!(!stage.replies.contains_key(&ticket));
}
