//! Names that a session made ahead of the manager, beside another session.

use std::{future::poll_fn, pin::pin, sync::mpsc, task::Poll};

use wire::token::{Need, Recall, Token, TokenMode};

use super::{
    restart::{claim_nothing, two_sessions},
    *,
};

/// Two sessions, the first of which has a directory in which it makes names, and numbers for them.
struct Stage {
    manager: Manager,
    maker: SessionId,
    other: SessionId,
    dir: InodeNo,
    token: Token,
    numbers: InodeNo,
}

impl Stage {
    async fn new(path: &Path) -> Stage {
        format(path, spec(3)).unwrap();
        let manager = Manager::open(path).unwrap();
        let (maker, other) = two_sessions(&manager).await;
        let numbers = manager.handle(caller(maker), mutate(1, Change::Numbers { count: 100 })).await;
        let MgrReply::Numbers { first, .. } = numbers else { panic!("{numbers:?}") };
        let hold = MgrRequest::Mutate {
            op: OpId { slot: 2, seq: 1 },
            change: create("dir", FileKind::Directory),
            hold: true,
            by: None,
        };
        let (dir, mut token) = match manager.handle(caller(maker), hold).await {
            MgrReply::CreatedHeld { attr, token, resolve: false } => (attr.ino, token),
            // It comes with the answer only if it is to be had at once.
            MgrReply::Created { attr, .. } => (attr.ino, Token::default()),
            other => panic!("{other:?}"),
        };
        while token.mode != TokenMode::Write {
            let ask = MgrRequest::Acquire { ino: dir, need: Need::Make };
            let MgrReply::Token { token: got, .. } = manager.handle(caller(maker), ask).await else {
                continue;
            };
            token = got;
        }
        Stage { manager, maker, other, dir, token, numbers: first }
    }

    /// Makes a name under the maker's next number but so many, told as change `seq`.
    async fn tell(&self, seq: u64, name: &str, kind: FileKind) -> MgrReply {
        let ino = InodeNo(self.numbers.0 + seq);
        let Change::Create { mode, uid, gid, rdev, target, now, .. } = create(name, kind) else { panic!() };
        let (parent, name) = (self.dir, name.into());
        let change = Change::CreateAs { ino, parent, name, kind, mode, uid, gid, rdev, target, now };
        let tell = MgrRequest::Tell { changes: vec![(OpId { slot: 3, seq }, change)] };
        match self.manager.handle(caller(self.maker), tell).await {
            MgrReply::Many(mut outcomes) if outcomes.len() == 1 => outcomes.remove(0).unwrap(),
            other => other,
        }
    }

    fn ask(&self, session: SessionId, request: MgrRequest) -> impl Future<Output = MgrReply> + use<> {
        let manager = self.manager.clone();
        async move { manager.handle(caller(session), request).await }
    }

    /// What the maker is asked to give up.
    async fn recalled(&self) -> Token {
        match self.ask(self.maker, MgrRequest::WaitRecalls).await {
            MgrReply::Recalls(recalls) => match &recalls[..] {
                [Recall::Token(token)] => token.clone(),
                _ => panic!("{recalls:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    async fn release(&self, left: Token) {
        let release = MgrRequest::Release { tokens: vec![left] };
        assert_eq!(self.ask(self.maker, release).await, MgrReply::Done);
    }
}

/// Whatever another one looks at: it sees what the maker tells before it gives its right up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_looks_where_another_makes_names_waits_until_they_are_told() {
    let place = tempfile::tempdir().unwrap();
    let stage = Stage::new(&place.path().join("manager")).await;
    let dir = stage.dir;
    let looks = [
        MgrRequest::Lookup { parent: dir, name: "n1".into() },
        MgrRequest::ReadDir { ino: dir, cookie: 0, limit: 100, plus: false },
        MgrRequest::GetAttr { ino: dir },
        MgrRequest::Lookup { parent: InodeNo::ROOT, name: "dir".into() },
        MgrRequest::Acquire { ino: dir, need: Need::Names },
    ];
    for (seq, look) in (1..).zip(looks) {
        let name = format!("n{seq}");
        let held = MgrRequest::Acquire { ino: dir, need: Need::Make };
        let held = stage.ask(stage.maker, held).await;
        assert!(
            matches!(&held, MgrReply::Token { token, .. } if token.mode == TokenMode::Write),
            "{look:?}: {held:?}"
        );
        let looked = tokio::spawn(stage.ask(stage.other, look.clone()));
        let left = stage.recalled().await;
        assert_eq!((left.ino, left.mode), (dir, TokenMode::Read), "{look:?}");
        assert!(!looked.is_finished(), "{look:?} is answered before it is told");
        let told = stage.tell(seq, &name, FileKind::File).await;
        assert!(matches!(&told, MgrReply::CreatedHeld { .. }), "{look:?}: {told:?}");
        stage.release(left).await;
        match looked.await.unwrap() {
            MgrReply::Held(attr) => assert_eq!(attr.ino, InodeNo(stage.numbers.0 + seq)),
            MgrReply::Entries { entries, .. } => assert!(entries.iter().any(|e| e.name == name.as_bytes())),
            MgrReply::Attr(attr) => {
                let now = stage.manager.handle(caller(stage.maker), MgrRequest::GetAttr { ino: dir }).await;
                assert_eq!(now, MgrReply::Attr(attr), "{look:?}");
            }
            MgrReply::Token { token, attr, .. } => {
                assert!(attr.is_some());
                // So that the maker gets its right back.
                let release = MgrRequest::Release { tokens: vec![Token { mode: TokenMode::None, ..token }] };
                assert_eq!(stage.ask(stage.other, release).await, MgrReply::Done);
            }
            other => panic!("{look:?}: {other:?}"),
        }
    }
    stage.manager.stop().await;
}

/// A number leads to no directory. Who may have made what it is the number of tells that first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_by_number_for_what_another_has_made_waits_until_it_is_told() {
    let place = tempfile::tempdir().unwrap();
    let stage = Stage::new(&place.path().join("manager")).await;
    let by_number = |number| MgrRequest::GetAttr { ino: InodeNo(stage.numbers.0 + number) };
    let absent = MgrReply::Error(MgrError::Errno(libc::ENOENT));
    let looked = tokio::spawn(stage.ask(stage.other, by_number(2)));
    let left = stage.recalled().await;
    assert_eq!((left.ino, left.mode), (stage.dir, TokenMode::Read));
    assert!(!looked.is_finished(), "it is answered before what was made is told");
    // It has made this one, and a file before.
    stage.tell(1, "before", FileKind::File).await;
    stage.tell(2, "made", FileKind::Directory).await;
    stage.release(left).await;
    // Its new directory is looked at as any other.
    let left = stage.recalled().await;
    assert_eq!(left.ino.0, stage.numbers.0 + 2);
    stage.release(left).await;
    let found = looked.await.unwrap();
    assert!(matches!(&found, MgrReply::Attr(attr) if attr.ino.0 == stage.numbers.0 + 2), "{found:?}");
    // Nobody is asked for what no other one can make (the directory has number 100): that would wait, since nobody answers.
    assert_eq!(stage.ask(stage.maker, by_number(3)).await, absent);
    assert_eq!(stage.ask(stage.other, by_number(101)).await, absent);
    assert_eq!(stage.ask(stage.other, by_number(3)).await, absent, "it holds no directory for Write");
    // It has made nothing of this number.
    let make = MgrRequest::Acquire { ino: stage.dir, need: Need::Make };
    let held = stage.ask(stage.maker, make).await;
    assert!(matches!(&held, MgrReply::Token { token, .. } if token.mode == TokenMode::Write), "{held:?}");
    let looked = tokio::spawn(stage.ask(stage.other, by_number(3)));
    let left = stage.recalled().await;
    assert_eq!(left.ino, stage.dir);
    stage.release(left).await;
    assert_eq!(looked.await.unwrap(), absent);
    stage.manager.stop().await;
}

/// A listing was read before, and its attributes of a directory are older than what another one has told of that meanwhile.
#[test]
fn attributes_that_were_told_while_a_directory_was_listed_are_shown() {
    let one_aside = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    one_aside.block_on(async {
        let place = tempfile::tempdir().unwrap();
        let stage = Stage::new(&place.path().join("manager")).await;
        let (go, held_up) = mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held_up.recv());
        let list = MgrRequest::ReadDir { ino: InodeNo::ROOT, cookie: 0, limit: 100, plus: true };
        let mut listed = pin!(stage.ask(stage.other, list));
        // What it will read it has now.
        let waits = poll_fn(|context| Poll::Ready(listed.as_mut().poll(context).is_pending()));
        assert!(waits.await);
        let change = Change::SetAttr {
            ino: stage.dir,
            mode: Some(0o711),
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            ctime: Timestamp::default(),
            highest: Version::default(),
        };
        let tell = MgrRequest::Tell { changes: vec![(OpId { slot: 4, seq: 1 }, change)] };
        let told = stage.ask(stage.maker, tell).await;
        assert!(matches!(&told, MgrReply::Many(all) if matches!(all[..], [Ok(_)])), "{told:?}");
        stage.release(Token { mode: TokenMode::None, ..stage.token.clone() }).await;
        go.send(()).unwrap();
        busy.await.unwrap().unwrap();
        let MgrReply::Entries { entries, .. } = listed.await else { panic!() };
        assert_eq!(entries[0].attr.as_ref().map(|attr| attr.mode), Some(0o711));
        stage.manager.stop().await;
    });
}

/// It is held by who tells of it before anybody can look at it: a directory may have names in it that are not told yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_held_by_who_made_it() {
    let place = tempfile::tempdir().unwrap();
    let stage = Stage::new(&place.path().join("manager")).await;
    let told = stage.tell(1, "below", FileKind::Directory).await;
    let MgrReply::CreatedHeld { attr, token, .. } = &told else { panic!("{told:?}") };
    assert_eq!((token.ino, token.mode), (attr.ino, TokenMode::Write));
    assert_eq!(stage.tell(1, "below", FileKind::Directory).await, told, "a copy of the message");
    let by_number = tokio::spawn(stage.ask(stage.other, MgrRequest::GetAttr { ino: attr.ino }));
    let left = stage.recalled().await;
    assert_eq!((left.ino, left.mode), (attr.ino, TokenMode::Read));
    stage.release(left).await;
    assert!(matches!(by_number.await.unwrap(), MgrReply::Attr(found) if found == *attr));
    let copy = stage.tell(1, "below", FileKind::Directory).await;
    assert_eq!(
        copy,
        MgrReply::Created { attr: attr.clone(), new: true },
        "it does not hold it for Write any more"
    );
    stage.manager.stop().await;
}

/// Who holds nothing of a directory may tell of it all the same, and waits for who does: nothing is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tells_without_the_right_waits_for_it() {
    let place = tempfile::tempdir().unwrap();
    let stage = Stage::new(&place.path().join("manager")).await;
    stage.release(Token { mode: TokenMode::None, ..stage.token.clone() }).await;
    let held = stage.ask(stage.other, MgrRequest::Acquire { ino: stage.dir, need: Need::Make }).await;
    let MgrReply::Token { token, .. } = held else { panic!("{held:?}") };
    let told = async { (stage.tell(1, "f", FileKind::File).await, Instant::now()) };
    let ((told, told_at), released_at) = tokio::join!(told, async {
        let recalls = stage.ask(stage.other, MgrRequest::WaitRecalls).await;
        let asked = matches!(&recalls, MgrReply::Recalls(recalls)
            if matches!(&recalls[..], [Recall::Token(token)] if token.ino == stage.dir));
        assert!(asked, "{recalls:?}");
        let released_at = Instant::now();
        let release = MgrRequest::Release { tokens: vec![Token { mode: TokenMode::None, ..token }] };
        assert_eq!(stage.ask(stage.other, release).await, MgrReply::Done);
        released_at
    });
    assert!(matches!(told, MgrReply::CreatedHeld { .. }), "{told:?}");
    assert!(told_at > released_at, "it is told while another one keeps the names");
    stage.manager.stop().await;
}

/// After a restart a session that makes names ahead may have some that it has not told. It tells them, and then says what it holds; nobody
/// is shown anything before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_nobody_looks_before_who_makes_names_ahead_has_told_and_claimed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manager");
    let before = Stage::new(&path).await;
    before.manager.stop().await;
    let stage = Stage { manager: Manager::open(&path).unwrap(), ..before };
    let list = MgrRequest::ReadDir { ino: stage.dir, cookie: 0, limit: 100, plus: false };
    // It claims nothing itself, and nobody waits for that.
    let looked = tokio::spawn(stage.ask(stage.other, list));
    // What is told waits for nobody, also where names go.
    let told = stage.tell(1, "f", FileKind::File).await;
    let MgrReply::Created { attr, new: true } = told else { panic!("{told:?}") };
    let gone = Change::Unlink {
        parent: stage.dir,
        name: "f".into(),
        directory: false,
        open: false,
        highest: Version::default(),
        expect: Some(attr.ino),
        now: Timestamp::default(),
    };
    let tell = MgrRequest::Tell { changes: vec![(OpId { slot: 4, seq: 1 }, gone)] };
    let told = stage.ask(stage.maker, tell).await;
    assert!(matches!(&told, MgrReply::Many(all) if matches!(all[..], [Ok(_)])), "{told:?}");
    stage.tell(2, "g", FileKind::File).await;
    assert!(!looked.is_finished(), "the maker may have more to tell");
    claim_nothing(stage.manager.clone(), stage.maker).await;
    let MgrReply::Entries { entries, .. } = looked.await.unwrap() else { panic!() };
    assert_eq!(entries.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"g"]);
    stage.manager.stop().await;
}

/// The same of a question by number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_nobody_asks_by_number_before_who_makes_names_ahead_has_claimed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manager");
    let before = Stage::new(&path).await;
    before.manager.stop().await;
    let stage = Stage { manager: Manager::open(&path).unwrap(), ..before };
    let ask = MgrRequest::GetAttr { ino: InodeNo(stage.numbers.0 + 1) };
    let looked = tokio::spawn(stage.ask(stage.other, ask));
    let told = stage.tell(1, "s", FileKind::Directory).await;
    assert!(matches!(told, MgrReply::Created { new: true, .. }), "{told:?}");
    assert!(!looked.is_finished(), "the maker may have more to tell");
    claim_nothing(stage.manager.clone(), stage.maker).await;
    let found = looked.await.unwrap();
    assert!(matches!(&found, MgrReply::Attr(attr) if attr.ino.0 == stage.numbers.0 + 1), "{found:?}");
    stage.manager.stop().await;
}

/// A session without numbers for new inodes makes nothing ahead, so nobody waits for it to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_nobody_who_looks_waits_for_a_session_that_makes_no_names_ahead() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    let (one, other) = two_sessions(&manager).await;
    let hold = MgrRequest::Mutate {
        op: OpId { slot: 1, seq: 1 },
        change: create("dir", FileKind::Directory),
        hold: true,
        by: None,
    };
    let made = manager.handle(caller(one), hold).await;
    let MgrReply::Created { attr, new: true } = made else { panic!("{made:?}") };
    let make = MgrRequest::Acquire { ino: attr.ino, need: Need::Make };
    let held = manager.handle(caller(one), make).await;
    assert!(matches!(&held, MgrReply::Token { token, .. } if token.mode == TokenMode::Read), "{held:?}");
    manager.stop().await;

    let manager = Manager::open(&path).unwrap();
    let list = MgrRequest::ReadDir { ino: InodeNo::ROOT, cookie: 0, limit: 100, plus: true };
    let listed = manager.handle(caller(other), list).await;
    assert!(
        matches!(&listed, MgrReply::Entries { entries, .. } if entries[0].attr.as_ref() == Some(&*attr)),
        "{listed:?}"
    );
    let look = MgrRequest::Lookup { parent: InodeNo::ROOT, name: "dir".into() };
    assert_eq!(manager.handle(caller(other), look).await, MgrReply::Attr(attr));
    manager.stop().await;
}
