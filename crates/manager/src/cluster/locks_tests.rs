//! Stories of programs' locks and the sessions that hold them.

use base::{InodeNo, SessionId};
use libc::EINVAL;
use wire::{
    lock::{Lock, LockAnswer, LockMode, LockRequest},
    mgr::{MgrError, MgrReply, MgrRequest},
    token::Recall,
};

use super::{stage::Stage, *};

const FILE: InodeNo = InodeNo(7);

fn lock(owner: u64) -> Lock {
    Lock { mode: LockMode::Exclusive, owner, pid: 9, end: 99, ..Lock::default() }
}

fn set(stage: &mut Stage, session: SessionId, seq: u64, wait: bool) -> Ticket {
    stage.lock(session, LockRequest::Set { ino: FILE, seq, lock: lock(session.0), wait })
}

fn answer(stage: &mut Stage, ticket: Ticket) -> Option<LockAnswer> {
    match stage.replies.remove(&ticket)? {
        MgrReply::Lock(answer) => Some(answer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dead_sessions_lock_is_given_on_when_it_is_fenced() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let got = set(&mut stage, first, 1, false);
    assert_eq!(answer(&mut stage, got), Some(LockAnswer::Done));
    let test = stage.lock(second, LockRequest::Test { ino: FILE, lock: lock(1) });
    assert_eq!(answer(&mut stage, test), Some(LockAnswer::Held(Some(lock(first.0)))));
    // Nobody wants it: it stays, however long the session is silent.
    stage.pass_without(&[], 15);
    assert!(stage.cluster.clients.contains_key(&first));
    let waits = set(&mut stage, second, 1, true);
    let epoch = stage.cluster.map().epoch;
    stage.question(second, MgrRequest::Renew { epoch, pdisks: Vec::new() });
    stage.pass(1);
    stage.pass(1);
    assert!(!stage.cluster.clients.contains_key(&first), "its lease has run out");
    assert_eq!(answer(&mut stage, waits), None, "not before the servers refuse it");
    stage.fence();
    stage.pass(1);
    assert_eq!(answer(&mut stage, waits), Some(LockAnswer::Done));
    let late = set(&mut stage, first, 2, false);
    assert_eq!(stage.replies.remove(&late), Some(MgrReply::Error(MgrError::NoSession)));
}

#[test]
fn after_a_restart_sessions_claim_before_anything_is_given() {
    let (mut stage, first, second) = Stage::two(Vec::new());
    let got = set(&mut stage, first, 1, false);
    assert_eq!(answer(&mut stage, got), Some(LockAnswer::Done));
    stage.restart_with_locks();
    let tried = set(&mut stage, second, 9, false);
    let life = stage.life(first);
    for session in [first, second] {
        let poll = stage.poll(session);
        assert_eq!(stage.told(poll), [Recall::Locks(life)]);
    }
    let claim = |locks| LockRequest::Claim { life, locks, last: true };
    stage.lock(second, claim(Vec::new()));
    assert_eq!(answer(&mut stage, tried), None);
    stage.lock(first, claim(vec![(FILE, lock(first.0))]));
    assert_eq!(answer(&mut stage, tried), Some(LockAnswer::Busy));
    let poll = stage.poll(first);
    assert!(!stage.replies.contains_key(&poll), "it is not asked again");
    // What makes no sense is refused.
    let bad = Lock { start: 5, end: 4, ..lock(1) };
    let refused = stage.lock(first, LockRequest::Set { ino: FILE, seq: 99, lock: bad, wait: false });
    assert_eq!(stage.replies.remove(&refused), Some(MgrReply::Error(MgrError::Errno(EINVAL))));
}
