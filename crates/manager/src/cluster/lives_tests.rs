//! Stories of managers that are restarted: what one life gave or asked, told to the next.

use base::{Grant, InodeNo, MemberId, NodeId, SessionId, tunables::Tunables};
use wire::{
    map::{LimitedMember, Limits},
    mgr::{MgrError, MgrReply, MgrRequest},
    token::{Need, Recall, Token, TokenMode},
};

use super::{
    stage::{LEASE, NOBODY, Stage, report},
    *,
};

/// The pass that a session is asked for, which has everything or nothing.
fn asked_for_pass(stage: &mut Stage, session: SessionId) -> u64 {
    for _ in 0..3 {
        let poll = stage.poll(session);
        stage.tell(Event::Tick);
        match stage.told(poll)[..] {
            [Recall::Share] => stage.claim(session, Vec::new()),
            [Recall::Resolve(pass)] => return pass,
            ref other => panic!("{other:?}"),
        }
    }
    panic!("nobody is asked to resolve")
}

fn pass_done(stage: &mut Stage, session: SessionId, pass: u64) {
    assert_eq!(stage.ask(session, MgrRequest::ResolvePassDone { pass }), MgrReply::Done);
}

/// Whether a file that nobody has used yet is to be resolved by who opens it.
fn is_unresolved(stage: &mut Stage, session: SessionId, ino: u64) -> bool {
    let ticket = stage.acquire(session, ino, Need::Read);
    stage.granted(ticket).1
}

fn detach(stage: &mut Stage, session: SessionId) {
    stage.ask(NOBODY, MgrRequest::Detach { session });
    stage.fence();
    stage.tell(Event::Tick);
}

#[test]
fn a_pass_of_one_life_says_nothing_in_the_next() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    detach(&mut stage, first);
    let before = asked_for_pass(&mut stage, second);
    // The manager is killed before it hears the answer.
    stage.restart();
    let after = asked_for_pass(&mut stage, second);
    assert_ne!(before, after, "a client that has done that pass would do nothing");
    pass_done(&mut stage, second, before);
    assert!(is_unresolved(&mut stage, second, 100), "it answered another question");
    pass_done(&mut stage, second, after);
    assert!(!is_unresolved(&mut stage, second, 101));
    // Nor are later ones of the two lives the same.
    let ticket = stage.open_beside(4);
    stage.tell(Event::Tick);
    let fourth = stage.opened(ticket).0;
    detach(&mut stage, fourth);
    let again = asked_for_pass(&mut stage, second);
    assert!(again > after && after > before);
}

#[test]
fn after_a_restart_an_idle_client_is_asked_to_resolve() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    detach(&mut stage, first);
    stage.restart();
    // It uses nothing, and nobody else comes.
    let pass = asked_for_pass(&mut stage, second);
    pass_done(&mut stage, second, pass);
    stage.restart();
    let poll = stage.poll(second);
    stage.tell(Event::Tick);
    assert!(!stage.replies.contains_key(&poll), "nothing is left, and it may have everything");
}

#[test]
fn locks_are_claimed_under_another_number_in_every_life() {
    let (mut stage, first, _) = Stage::two(Vec::new());
    let mut last = 0;
    for _ in 0..3 {
        stage.restart_with_locks();
        assert!(stage.life(first) > last, "a clock can jump back, a grant cannot");
        last = stage.life(first);
    }
}

#[test]
fn a_restart_with_a_shorter_lease_waits_for_the_longer_ones() {
    let (long, short) = (LEASE * 6, LEASE);
    let mut stage = Stage::running(4, "2+2p");
    stage.tell(Event::SetLease(long));
    let renewed = stage.renew(3, report(3, 1, 0));
    assert!(matches!(renewed, MgrReply::Renewed { lease_us: 60_000_000, .. }), "{renewed:?}");
    assert_eq!(stage.stored_lease(), long, "before anybody has it");
    let told = stage.restart_with_lease(short);
    let expected = "leases of 60s may be out: who of these does not come back is waited for so long from now on: \
        server n1, server n2, server n3, server n4";
    assert_eq!(told, [expected]);
    stage.pass_without(&[3], 59);
    assert_eq!(stage.states(), "oooo", "3 may serve until its lease ends");
    assert_eq!(stage.stored_lease(), long);
    stage.pass_without(&[3], 2);
    assert_eq!(stage.states(), "oomo");
    assert_eq!(stage.stored_lease(), short, "all longer ones have run out");
    // Who has renewed since has the short one only.
    stage.pass_without(&[2, 3], 11);
    assert_eq!(stage.states(), "ommo");
    assert_eq!(stage.restart_with_lease(short), [""; 0], "it is as always");
    stage.pass_without(&[1, 2, 3], 11);
    assert!(stage.cluster.map().node(NodeId(1)).unwrap().session.is_none(), "it is not waited for again");
}

#[test]
fn clients_keep_their_longer_leases_too() {
    let mut stage = Stage::running(4, "2+2p");
    stage.tell(Event::SetLease(LEASE * 6));
    let ticket = stage.open(1, None);
    let (first, second) = (stage.opened(ticket).0, stage.open_beside(2));
    let poll = stage.poll(first);
    assert_eq!(stage.told(poll), [Recall::Share]);
    stage.claim(first, vec![Token::new(InodeNo(7), TokenMode::Write, Grant(1))]);
    stage.tell(Event::Tick);
    let second = stage.opened(second).0;
    stage.tell(Event::SetLease(LEASE));
    stage.restart_with_lease(LEASE);
    stage.claim(second, Vec::new());
    let ticket = stage.acquire(second, 7, Need::Read);
    for _ in 0..59 {
        stage.pass_without(&[], 1);
        stage.renew_client(second);
    }
    assert!(stage.cluster.map().clients.iter().any(|client| client.session == first));
    stage.pass_without(&[], 2);
    assert!(!stage.cluster.map().clients.iter().any(|client| client.session == first));
    // The question was not answered in time.
    assert_eq!(stage.replies.get(&ticket), Some(&MgrReply::Error(MgrError::Errno(libc::ETIMEDOUT))));
}

#[test]
fn no_lease_is_longer_than_a_restore_expects() {
    let mut tunables = Tunables::default();
    tunables.set("leaseDuration", "300s").unwrap();
    assert_eq!(tunables.lease_duration(), LEASE_MAX);
    tunables.set("leaseDuration", "301s").unwrap_err();
}

/// A session that resolves nothing.
fn guest(stage: &mut Stage) -> SessionId {
    let limits = Limits { read_only: true, ..Limits::default() };
    stage.cluster.map.limited.push(LimitedMember { member: MemberId(9), limits });
    stage.asker = MemberId(9);
    let ticket = stage.open_beside(3);
    stage.tell(Event::Tick);
    let guest = stage.opened(ticket).0;
    stage.asker = MemberId(0);
    guest
}

/// Another one resolves: who is silent for a while has six leases to come back.
#[test]
fn who_is_silent_while_another_resolves_is_not_ended_for_a_guest() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let ticket = stage.open_beside(5);
    stage.pass_without(&[], 1);
    let third = stage.opened(ticket).0;
    let guest = guest(&mut stage);
    detach(&mut stage, first);
    let read = stage.acquire(guest, 100, Need::Read);
    let pass = asked_for_pass(&mut stage, third);
    for _ in 0..LEASE.as_secs() + 2 {
        stage.renew_client(guest);
        stage.renew_client(third);
        stage.pass_without(&[], 1);
    }
    assert!(stage.cluster.clients.contains_key(&second), "what it has not told is lost for nothing");
    pass_done(&mut stage, third, pass);
    assert!(!stage.granted(read).1);
}

/// What it wants is unresolved, and who would resolve it is gone: neither asks the other for anything.
#[test]
fn who_resolves_nothing_does_not_wait_for_a_resolver_that_is_gone() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let guest = guest(&mut stage);
    detach(&mut stage, first);
    let read = stage.acquire(guest, 100, Need::Read);
    for _ in 0..LEASE.as_secs() + 2 {
        stage.renew_client(guest);
        stage.pass_without(&[], 1);
    }
    assert!(!stage.replies.contains_key(&read), "it would read half a stripe");
    assert!(!stage.cluster.clients.contains_key(&second), "nobody resolves while it is there");
    let ticket = stage.open_beside(4);
    stage.pass_without(&[], 1);
    let fourth = stage.opened(ticket).0;
    let pass = asked_for_pass(&mut stage, fourth);
    pass_done(&mut stage, fourth, pass);
    assert!(!stage.granted(read).1);
}
