//! A new file that comes with its token.

use wire::token::{Need, Token, TokenMode};

use super::{restart::two_sessions, *};

/// Its name can be looked up as soon as it is durable, before its maker has the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_made_a_file_that_another_has_written_to_gets_no_token_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (maker, other) = two_sessions(&manager).await;
    let made = manager.handle(caller(maker), mutate(1, create("a", FileKind::File))).await;
    let MgrReply::Created { attr, .. } = made else { panic!("{made:?}") };

    let acquire = MgrRequest::Acquire { ino: attr.ino, need: Need::Write };
    let held = manager.handle(caller(other), acquire).await;
    let MgrReply::Token { token, .. } = held else { panic!("{held:?}") };
    let now = Timestamp { secs: 7, nanos: 0 };
    let written = Change::CommitWrite {
        ino: attr.ino,
        size: 5,
        allocated: vec![],
        inline: Some(b"hello".to_vec()),
        mtime: now,
        ctime: now,
        mode: None,
        uid: None,
        gid: None,
        atime: None,
        shared: false,
    };
    let committed = manager.handle(caller(other), mutate(1, written)).await;
    assert!(matches!(committed, MgrReply::Attr(_)), "{committed:?}");
    let release = MgrRequest::Release { tokens: vec![Token::new(attr.ino, TokenMode::None, token.serial)] };
    assert_eq!(manager.handle(caller(other), release).await, MgrReply::Done);

    let answer = manager.made_held(caller(maker), attr.clone()).await;
    assert_eq!(answer, MgrReply::Created { attr, new: true }, "it would take the file for empty");
    manager.stop().await;
}
