//! What becomes of the questions of a session that ends.

use wire::token::Need;

use super::{restart::two_sessions, *};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_waits_for_is_answered_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (one, other) = two_sessions(&manager).await;
    let acquire = MgrRequest::Acquire { ino: InodeNo(9), need: Need::Write };
    let held = manager.handle(caller(one), acquire.clone()).await;
    assert!(matches!(held, MgrReply::Token { .. }), "{held:?}");

    let ask = |request| {
        let manager = manager.clone();
        tokio::spawn(async move { manager.handle(caller(other), request).await })
    };
    let waiting = [ask(acquire), ask(MgrRequest::WaitRecalls)];
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(waiting.iter().all(|asked| !asked.is_finished()));
    let detach = MgrRequest::Detach { session: other };
    assert_eq!(manager.handle(caller(SessionId(0)), detach).await, MgrReply::Done);
    for asked in waiting {
        let answer = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("at once").unwrap();
        assert_eq!(answer, MgrReply::Error(MgrError::NoSession));
    }
    manager.stop().await;
}
