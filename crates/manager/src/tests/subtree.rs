//! A session that is bound to a subtree, and asks for what is not in it: by number, through names, after changes of names.

use libc::{EACCES, ENOENT};
use net::Role;
use wire::{
    credentials::Credentials,
    map::{Limits, Subtree},
    mgr::OpId,
    token::{Need, Token, TokenMode},
};

use super::{
    roles::{client, endpoint},
    *,
};

/// A manager on the network.
pub(super) struct Served {
    at: net::Endpoint,
    pub(super) running: Option<crate::Running>,
    seq: std::cell::Cell<u64>,
}

impl Served {
    pub(super) fn start(path: &Path) -> Served {
        let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
        let running = Some(Manager::open(path).unwrap().serve(&at).unwrap());
        Served { at, running, seq: std::cell::Cell::new(0) }
    }

    pub(super) async fn ask(
        &self,
        from: &net::Endpoint,
        session: SessionId,
        request: &MgrRequest,
    ) -> MgrReply {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let body = wire::frame::encode(request);
        let call = net::Call { session, ..net::Call::new(net::Service::Manager, 1, body, deadline) };
        let reply = from.peer(self.at.local_addrs()).call(call).await.unwrap();
        wire::frame::decode(&reply.body).unwrap()
    }

    pub(super) async fn open(&self, from: &net::Endpoint, pid: u32) -> SessionId {
        let request = MgrRequest::OpenSession {
            fs: "fs1".into(),
            process: ProcessIdent { pid, ..ProcessIdent::default() },
            admin_addr: String::new(),
            mount: format!("/m{pid}"),
            proven_dead: vec![],
            share: true,
        };
        match self.ask(from, SessionId(0), &request).await {
            MgrReply::SessionOpen { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn change(&self, from: &net::Endpoint, session: SessionId, change: Change) -> MgrReply {
        self.change_by(from, session, None, change).await
    }

    pub(super) async fn change_by(
        &self,
        from: &net::Endpoint,
        session: SessionId,
        by: Option<Credentials>,
        change: Change,
    ) -> MgrReply {
        self.seq.set(self.seq.get() + 1);
        let op = OpId { slot: 1, seq: self.seq.get() };
        self.ask(from, session, &MgrRequest::Mutate { op, change, hold: false, by }).await
    }
}

pub(super) fn create(parent: InodeNo, name: &str, kind: FileKind) -> Change {
    Change::Create {
        parent,
        name: name.into(),
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: if kind == FileKind::Symlink { b"f".to_vec() } else { vec![] },
        now: Default::default(),
        existing_ok: false,
    }
}

pub(super) fn rename(parent: InodeNo, name: &str, new_parent: InodeNo) -> Change {
    Change::Rename {
        parent,
        name: name.into(),
        new_parent,
        new_name: name.into(),
        no_replace: false,
        exchange: false,
        open: false,
        highest: Default::default(),
        expect: None,
        now: Default::default(),
    }
}

pub(super) fn link(ino: InodeNo, parent: InodeNo, name: &str) -> Change {
    Change::Link { ino, parent, name: name.into(), now: Default::default() }
}

pub(super) fn unlink(parent: InodeNo, name: &str) -> Change {
    Change::Unlink {
        parent,
        name: name.into(),
        directory: false,
        open: false,
        highest: Default::default(),
        expect: None,
        now: Default::default(),
    }
}

pub(super) fn refused(errno: i32) -> MgrReply {
    MgrReply::Error(MgrError::Errno(errno))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_bound_to_a_subtree_asks_for_nothing_outside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let mut served = Served::start(&path);
    let own = endpoint(Role::Manager, 0, vec![]);
    let server = endpoint(Role::Server, 1, vec![]);
    let all = served.open(&own, 1).await;
    // It holds nothing.
    let claim = MgrRequest::Claim { tokens: vec![], last: true };
    assert_eq!(served.ask(&own, all, &claim).await, MgrReply::Done);
    let made = async |served: &Served, change: Change| match served.change(&own, all, change).await {
        MgrReply::Created { attr, .. } => attr.ino,
        other => panic!("{other:?}"),
    };
    let a = made(&served, create(InodeNo::ROOT, "a", FileKind::Directory)).await;
    let sub = made(&served, create(a, "sub", FileKind::Directory)).await;
    let b = made(&served, create(InodeNo::ROOT, "b", FileKind::Directory)).await;
    let inside = made(&served, create(sub, "inside", FileKind::File)).await;
    let outside = made(&served, create(b, "outside", FileKind::File)).await;
    let both = made(&served, create(a, "both", FileKind::File)).await;
    assert!(matches!(served.change(&own, all, link(both, b, "both")).await, MgrReply::Attr(_)));

    let invite = |token, path: &str, filesystems: &[u32]| MgrRequest::Invite {
        token,
        hash: [1; 32],
        role: Role::Client,
        expires: 100,
        now: 1,
        limits: Limits {
            filesystems: filesystems.iter().map(|fs| FsId(*fs)).collect(),
            read_only: false,
            subtree: Some(Subtree { path: path.into(), root: InodeNo::ROOT }),
            ..Limits::default()
        },
    };
    for wrong in [invite(4, "/a", &[]), invite(4, "/c", &[1]), invite(4, "/b/outside", &[1])] {
        let reply = served.ask(&own, SessionId(0), &wrong).await;
        assert!(matches!(reply, MgrReply::Error(_)), "{wrong:?}: {reply:?}");
    }
    for _ in 0..2 {
        assert_eq!(served.ask(&own, SessionId(0), &invite(5, "//a/.", &[1])).await, MgrReply::Done);
    }
    let bound = client(5);
    let session = served.open(&bound, 5).await;
    let can = async |served: &Served, session: SessionId, ino: InodeNo| {
        let seen = served.ask(&bound, session, &MgrRequest::GetAttr { ino }).await;
        let may = served
            .ask(&server, SessionId(0), &MgrRequest::MayUse { session, files: vec![ino], write: false })
            .await;
        let seen = match seen {
            MgrReply::Attr(_) | MgrReply::Held(_) => true,
            reply if reply == refused(EACCES) => false,
            other => panic!("{other:?}"),
        };
        assert_eq!(may, MgrReply::MayUse(seen), "{ino}: a server hears what the session sees");
        seen
    };
    let look = |parent, name: &str| MgrRequest::Lookup { parent, name: name.into() };
    for (ino, expected) in [(a, true), (sub, true), (inside, true), (b, false), (outside, false)] {
        assert_eq!(can(&served, session, ino).await, expected, "{ino}");
    }
    assert!(!can(&served, session, InodeNo::ROOT).await);
    // Its last name is elsewhere: it is there once it was looked up, by that session alone.
    assert!(!can(&served, session, both).await);
    assert!(matches!(served.ask(&bound, session, &look(a, "both")).await, MgrReply::Attr(_)));
    assert!(can(&served, session, both).await);

    for request in [
        look(InodeNo::ROOT, "b"),
        look(a, ".."),
        look(b, "outside"),
        MgrRequest::ReadDir { ino: b, cookie: 0, limit: 9, plus: true },
        MgrRequest::ReadLink { ino: outside },
        MgrRequest::ReadInline { ino: outside },
        MgrRequest::Extents { ino: outside, from: base::BlockIndex(0), limit: 9 },
        MgrRequest::GetXattr { ino: outside, name: b"user.a".to_vec() },
        MgrRequest::ListXattr { ino: outside },
        MgrRequest::Acquire { ino: outside, need: Need::Attr },
        MgrRequest::Lock(wire::lock::LockRequest::Test { ino: outside, lock: Default::default() }),
        MgrRequest::Tokens { fs: FsId(1), after: InodeNo(0) },
        MgrRequest::Owned { fs: FsId(1), ino: InodeNo(0), block: base::BlockIndex(0) },
    ] {
        assert_eq!(served.ask(&bound, session, &request).await, refused(EACCES), "{request:?}");
    }
    for change in [
        create(b, "new", FileKind::File),
        link(outside, a, "mine"),
        link(inside, b, "theirs"),
        unlink(b, "outside"),
        rename(b, "outside", a),
        rename(sub, "inside", b),
        Change::SetXattr {
            ino: outside,
            name: b"user.a".to_vec(),
            value: vec![],
            create: false,
            replace: false,
            now: Default::default(),
        },
    ] {
        assert_eq!(served.change(&bound, session, change.clone()).await, refused(EACCES), "{change:?}");
        let op = OpId { slot: 2, seq: 1 };
        let many =
            MgrRequest::MutateMany { changes: vec![(op, create(a, "x", FileKind::File)), (op, change)] };
        assert_eq!(served.ask(&bound, session, &many).await, refused(EACCES));
    }
    assert_eq!(served.ask(&bound, session, &look(a, "x")).await, refused(ENOENT), "nothing was done in part");
    let resolves = served.ask(&bound, session, &MgrRequest::ResolveDone).await;
    assert_eq!(resolves, refused(libc::EROFS));

    // Names move: directories with all that is below, files, one of two names.
    let link_in_b = made(&served, create(b, "l", FileKind::Symlink)).await;
    assert!(!can(&served, session, link_in_b).await);
    for change in [rename(b, "outside", sub), rename(b, "l", a)] {
        assert!(matches!(served.change(&own, all, change).await, MgrReply::Unlinked { .. }));
    }
    assert!(can(&served, session, outside).await && can(&served, session, link_in_b).await);
    assert!(matches!(served.change(&own, all, rename(a, "sub", b)).await, MgrReply::Unlinked { .. }));
    for ino in [sub, inside, outside] {
        assert!(!can(&served, session, ino).await, "{ino}");
    }
    assert!(matches!(served.change(&own, all, rename(b, "sub", a)).await, MgrReply::Unlinked { .. }));
    assert!(can(&served, session, inside).await);

    // What is not there: a session hears so; a server does not let it write under a number that is given later.
    let gone = InodeNo(1000);
    assert_eq!(served.ask(&bound, session, &MgrRequest::GetAttr { ino: gone }).await, refused(ENOENT));
    let may = MgrRequest::MayUse { session, files: vec![inside, gone], write: false };
    assert_eq!(served.ask(&server, SessionId(0), &may).await, MgrReply::MayUse(false));
    assert!(matches!(served.ask(&bound, session, &may).await, MgrReply::Error(MgrError::Role(_))));

    // After a restart sessions and their limits are there; what has several names is to be looked up again.
    served.running.take().unwrap().stop().await;
    let served = Served::start(&path);
    assert!(can(&served, session, inside).await && !can(&served, session, b).await);
    assert!(!can(&served, session, both).await);
    assert!(matches!(
        served.ask(&bound, session, &look(a, "both")).await,
        MgrReply::Attr(_) | MgrReply::Held(_)
    ));
    assert!(can(&served, session, both).await);
    // What it claims to hold elsewhere keeps nobody out.
    let token = |ino, serial| Token::new(ino, TokenMode::Write, base::Grant(serial));
    let claim = MgrRequest::Claim { tokens: vec![token(b, 1), token(inside, 2)], last: true };
    assert_eq!(served.ask(&bound, session, &claim).await, MgrReply::Done);
    let MgrReply::Tokens { inodes, .. } =
        served.ask(&own, all, &MgrRequest::Tokens { fs: FsId(1), after: InodeNo(0) }).await
    else {
        panic!()
    };
    assert_eq!(inodes.iter().map(|report| report.ino).collect::<Vec<_>>(), [inside]);
    served.running.unwrap().stop().await;
}
