//! What a manager that was restarted asks its sessions for.

use wire::{
    lock::{LockAnswer, LockRequest},
    token::Recall,
};

use super::*;

/// Claims nothing of all that a session is asked for, until it has been asked for its tokens.
pub(super) async fn claim_nothing(manager: Manager, session: SessionId) {
    let done = |request| manager.handle(caller(session), request);
    loop {
        let MgrReply::Recalls(recalls) = done(MgrRequest::WaitRecalls).await else { panic!() };
        for recall in recalls {
            match recall {
                Recall::Locks(life) => {
                    let claim = LockRequest::Claim { life, locks: vec![], last: true };
                    assert_eq!(done(MgrRequest::Lock(claim)).await, MgrReply::Lock(LockAnswer::Done));
                }
                Recall::Share => {
                    let claim = MgrRequest::Claim { tokens: vec![], last: true };
                    return assert_eq!(done(claim).await, MgrReply::Done);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Two sessions of one file system; the first had nothing of it.
pub(super) async fn two_sessions(manager: &Manager) -> (SessionId, SessionId) {
    let (one, _) = open_session(manager).await;
    let mut request = open_request(None);
    if let MgrRequest::OpenSession { process, share, .. } = &mut request {
        (process.pid, *share) = (8, true);
    }
    let (opened, ()) =
        tokio::join!(manager.handle(caller(SessionId(0)), request), claim_nothing(manager.clone(), one));
    let MgrReply::SessionOpen { session: other, .. } = opened else { panic!("{opened:?}") };
    (one, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlink_after_a_restart_asks_who_has_the_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (one, other) = two_sessions(&manager).await;
    let made = manager.handle(caller(one), mutate(1, create("a", FileKind::File))).await;
    let MgrReply::Created { attr, .. } = made else { panic!("{made:?}") };
    manager.stop().await;

    let manager = Manager::open(&path).unwrap();
    let unlink = Change::Unlink {
        parent: InodeNo::ROOT,
        name: "a".into(),
        directory: false,
        open: false,
        highest: Version::default(),
        expect: Some(attr.ino),
        now: Timestamp::default(),
    };
    let (unlinked, (), ()) = tokio::join!(
        manager.handle(caller(one), mutate(2, unlink)),
        claim_nothing(manager.clone(), one),
        claim_nothing(manager.clone(), other),
    );
    assert!(matches!(unlinked, MgrReply::Unlinked { .. }), "{unlinked:?}");
    manager.stop().await;
}
