//! What programs of a squashed machine may change, kind by kind, as root, as owner, as member of the group, as another; and what a
//! client gains that lies about who asks.

use libc::{EACCES, EINVAL, EPERM};
use net::Role;
use wire::{
    credentials::{Credentials, NOBODY, Squash},
    map::Limits,
    mgr::{Attr, Extent, OpId, POOL_XATTR},
};

use super::{
    roles::{client, endpoint},
    subtree::{Served, create, link, refused, rename, unlink},
    *,
};

const OWNER: u32 = 1000;
const STAFF: u32 = 24;
const SQUASHED: Squash = Squash::Root { uid: NOBODY, gid: NOBODY };
const TO_ONE: Squash = Squash::All { uid: 70, gid: 80 };

fn program(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec() }
}

/// The same change, of what belongs to somebody, with a mode.
fn of(change: Change, (owner, group, bits): (u32, u32, u16)) -> Change {
    let Change::Create { parent, name, kind, rdev, target, now, existing_ok, .. } = change else {
        panic!("{change:?}")
    };
    Change::Create { parent, name, kind, mode: bits, uid: owner, gid: group, rdev, target, now, existing_ok }
}

fn set(ino: InodeNo) -> Change {
    Change::SetAttr {
        ino,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        ctime: Default::default(),
        highest: Default::default(),
    }
}

fn with_mode(ino: InodeNo, bits: u16) -> Change {
    let Change::SetAttr { uid, gid, size, atime, mtime, ctime, highest, .. } = set(ino) else { panic!() };
    Change::SetAttr { ino, mode: Some(bits), uid, gid, size, atime, mtime, ctime, highest }
}

fn given(ino: InodeNo, uid: Option<u32>, gid: Option<u32>) -> Change {
    let Change::SetAttr { mode, size, atime, mtime, ctime, highest, .. } = set(ino) else { panic!() };
    Change::SetAttr { ino, mode, uid, gid, size, atime, mtime, ctime, highest }
}

fn with_size(ino: InodeNo, size: u64) -> Change {
    let Change::SetAttr { mode, uid, gid, atime, mtime, ctime, highest, .. } = set(ino) else { panic!() };
    Change::SetAttr { ino, mode, uid, gid, size: Some(size), atime, mtime, ctime, highest }
}

fn touched(ino: InodeNo) -> Change {
    let Change::SetAttr { mode, uid, gid, size, atime, ctime, highest, .. } = set(ino) else { panic!() };
    Change::SetAttr { ino, mode, uid, gid, size, atime, mtime: Some(Default::default()), ctime, highest }
}

/// `text` becomes the content of a file; with other attributes.
fn written(ino: InodeNo, text: &str, (mode, uid, gid): (Option<u16>, Option<u32>, Option<u32>)) -> Change {
    Change::CommitWrite {
        ino,
        size: text.len() as u64,
        allocated: vec![],
        inline: Some(text.into()),
        mtime: Default::default(),
        ctime: Default::default(),
        mode,
        uid,
        gid,
        atime: None,
        shared: false,
    }
}

fn punched(ino: InodeNo) -> Change {
    let blocks = Extent { first: base::BlockIndex(0), count: 1 };
    Change::Deallocate { ino, blocks, highest: Default::default(), now: Default::default() }
}

fn xattr(ino: InodeNo, name: &[u8]) -> Change {
    let (name, value, now) = (name.to_vec(), b"x".to_vec(), Default::default());
    Change::SetXattr { ino, name, value, create: false, replace: false, now }
}

fn no_xattr(ino: InodeNo, name: &[u8]) -> Change {
    Change::RemoveXattr { ino, name: name.to_vec(), now: Default::default() }
}

/// A manager, a machine that is not squashed, and one that is.
struct Stage {
    served: Served,
    own: net::Endpoint,
    all: SessionId,
    squashed: net::Endpoint,
    session: SessionId,
}

impl Stage {
    async fn start(path: &Path, squash: Squash) -> Stage {
        format(path, spec(3)).unwrap();
        let (served, own) = (Served::start(path), endpoint(Role::Manager, 0, vec![]));
        let all = served.open(&own, 1).await;
        let claim = MgrRequest::Claim { tokens: vec![], last: true };
        assert_eq!(served.ask(&own, all, &claim).await, MgrReply::Done);
        let invite = |role, squash| MgrRequest::Invite {
            token: 5,
            hash: [1; 32],
            role,
            expires: 100,
            now: 1,
            limits: Limits { squash, ..Limits::default() },
        };
        for (role, wrong) in [
            (Role::Client, Squash::Root { uid: 0, gid: 1 }),
            (Role::Client, Squash::All { uid: 1, gid: 0 }),
            (Role::Server, squash),
        ] {
            let reply = served.ask(&own, SessionId(0), &invite(role, wrong)).await;
            assert!(matches!(reply, MgrReply::Error(MgrError::Config(_))), "{reply:?}");
        }
        assert_eq!(served.ask(&own, SessionId(0), &invite(Role::Client, squash)).await, MgrReply::Done);
        let squashed = client(5);
        let session = served.open(&squashed, 5).await;
        Stage { served, own, all, squashed, session }
    }

    /// Made where nobody is squashed.
    async fn made(&self, change: Change) -> InodeNo {
        match self.served.change(&self.own, self.all, change).await {
            MgrReply::Created { attr, .. } => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    async fn change(&self, by: Option<&Credentials>, change: Change) -> MgrReply {
        self.served.change_by(&self.squashed, self.session, by.cloned(), change).await
    }

    async fn attr(&self, ino: InodeNo) -> Attr {
        match self.served.ask(&self.own, self.all, &MgrRequest::GetAttr { ino }).await {
            MgrReply::Attr(attr) | MgrReply::Held(attr) => *attr,
            other => panic!("{other:?}"),
        }
    }

    /// What a server hears of a file: whether the session may read and write it.
    async fn may_use(&self, ino: InodeNo) -> (bool, bool) {
        let server = endpoint(Role::Server, 1, vec![]);
        let ask = async |write| {
            let asked = MgrRequest::MayUse { session: self.session, files: vec![ino], write };
            match self.served.ask(&server, SessionId(0), &asked).await {
                MgrReply::MayUse(may) => may,
                other => panic!("{other:?}"),
            }
        };
        (ask(false).await, ask(true).await)
    }
}

fn unnamed(parent: InodeNo) -> Change {
    Change::CreateUnnamed { parent, mode: 0o600, uid: 0, gid: 0, now: Default::default() }
}

/// 0, or the number of the refusal.
fn outcome(reply: &MgrReply) -> i32 {
    match reply {
        MgrReply::Error(MgrError::Errno(errno)) => *errno,
        MgrReply::Error(other) => panic!("{other:?}"),
        _ => 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_change_by_each_kind_of_program() {
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::start(&dir.path().join("manager"), SQUASHED).await;
    // Root, the owner, one of the group by a supplementary one, another.
    let programs = [
        program(0, 0, &[0, STAFF]),
        program(OWNER, 100, &[]),
        program(2000, 2000, &[4, STAFF]),
        program(3000, 3000, &[4]),
    ];
    for (column, by) in programs.iter().enumerate() {
        let make =
            async |parent, name: &str, kind, owner| stage.made(of(create(parent, name, kind), owner)).await;
        let (shared, private) = ((OWNER, STAFF, 0o775), (OWNER, STAFF, 0o755));
        let d = make(InodeNo::ROOT, &format!("d{column}"), FileKind::Directory, shared).await;
        let sticky = make(InodeNo::ROOT, &format!("s{column}"), FileKind::Directory, (0, 0, 0o1777)).await;
        let f = make(d, "f", FileKind::File, (OWNER, STAFF, 0o664)).await;
        make(d, "g", FileKind::File, (OWNER, STAFF, 0o664)).await;
        make(d, "sub", FileKind::Directory, private).await;
        make(sticky, "f", FileKind::File, (OWNER, STAFF, 0o664)).await;
        assert_eq!(outcome(&stage.served.change(&stage.own, stage.all, xattr(f, b"user.old")).await), 0);

        let (writers, owner, nobody) = ([EACCES, 0, 0, EACCES], [EPERM, 0, EPERM, EPERM], [EPERM; 4]);
        let open = |change: Change| match of(change, (0, 0, 0o644)) {
            Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, .. } => {
                Change::Create { parent, name, kind, mode, uid, gid, rdev, target, now, existing_ok: true }
            }
            _ => unreachable!(),
        };
        for (change, expected) in [
            (create(d, "new", FileKind::File), writers),
            (create(d, "newdir", FileKind::Directory), writers),
            (create(d, "newlink", FileKind::Symlink), writers),
            (create(d, "newfifo", FileKind::Fifo), writers),
            (create(d, "null", FileKind::CharDevice), [EACCES, EPERM, EPERM, EACCES]),
            (create(d, "sda", FileKind::BlockDevice), [EACCES, EPERM, EPERM, EACCES]),
            // Opened by its name: who may look it up.
            (open(create(d, "f", FileKind::File)), [0; 4]),
            (open(create(d, "opened", FileKind::File)), writers),
            (unnamed(d), writers),
            (link(f, d, "again"), writers),
            (unlink(d, "g"), writers),
            (rename(d, "again", sticky), [EACCES, 0, 0, EACCES]),
            // Its ".." changes.
            (rename(d, "sub", sticky), [EACCES, 0, EACCES, EACCES]),
            (unlink(sticky, "f"), owner),
            (with_size(f, 3), writers),
            (touched(f), writers),
            (written(f, "text", (None, None, None)), writers),
            (written(f, "text", (Some(0o4777), None, None)), [EACCES, 0, EPERM, EACCES]),
            (written(f, "text", (None, Some(0), None)), [EACCES, EPERM, EPERM, EACCES]),
            (punched(f), writers),
            (xattr(f, b"user.new"), writers),
            (no_xattr(f, b"user.old"), writers),
            (xattr(f, b"trusted.x"), nobody),
            (xattr(f, b"security.capability"), nobody),
            (xattr(d, POOL_XATTR), [EACCES, EINVAL, EINVAL, EACCES]),
            (with_mode(f, 0o600), owner),
            (with_mode(d, 0o700), owner),
            (given(f, Some(3000), None), nobody),
            (given(f, Some(OWNER), None), owner),
            // To a group of his, and to none that he is not in.
            (given(f, None, Some(4)), nobody),
            (given(f, None, Some(100)), owner),
        ] {
            let reply = stage.change(Some(by), change.clone()).await;
            assert_eq!(outcome(&reply), expected[column], "{by:?}: {change:?}: {reply:?}");
            // Whatever the change says, it is his who made it.
            if let MgrReply::Created { attr, new: true } = reply {
                let own = if by.uid == 0 { (NOBODY, NOBODY) } else { (by.uid, by.gid) };
                assert_eq!((attr.uid, attr.gid), own);
            }
        }
    }
    stage.served.running.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bits_of_a_group_are_not_set_by_who_is_not_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::start(&dir.path().join("manager"), SQUASHED).await;
    let d = stage.made(of(create(InodeNo::ROOT, "d", FileKind::Directory), (OWNER, STAFF, 0o2777))).await;
    let f = stage.made(of(create(InodeNo::ROOT, "f", FileKind::File), (OWNER, STAFF, 0o755))).await;
    let (inside, outside) = (program(OWNER, STAFF, &[]), program(OWNER, 100, &[]));
    for (by, expected) in [(&inside, 0o2755), (&outside, 0o755)] {
        assert_eq!(outcome(&stage.change(Some(by), with_mode(f, 0o2755)).await), 0);
        assert_eq!(stage.attr(f).await.mode, expected, "{by:?}");
        let name = format!("{}", by.gid);
        let made = of(create(d, &name, FileKind::File), (0, 0, 0o2755));
        let MgrReply::Created { attr, .. } = stage.change(Some(by), made).await else { panic!() };
        assert_eq!((attr.uid, attr.gid, attr.mode), (OWNER, STAFF, expected));
    }
    assert_eq!(outcome(&stage.change(Some(&outside), written(f, "x", (Some(0o2755), None, None))).await), 0);
    assert_eq!(stage.attr(f).await.mode, 0o755, "nor with what is written");
    // A program that gives rights which one has not is not written; its own machine would have to take them away.
    let staff = program(2000, STAFF, &[]);
    for bits in [0o4775, 0o2775] {
        let run = stage
            .made(of(create(InodeNo::ROOT, &format!("{bits:o}"), FileKind::File), (0, STAFF, bits)))
            .await;
        for change in [written(run, "mine", (None, None, None)), with_size(run, 9), punched(run)] {
            assert_eq!(stage.change(Some(&staff), change.clone()).await, refused(EACCES), "{change:?}");
            assert_eq!(stage.change(None, change).await, refused(EACCES));
        }
        assert_eq!(stage.may_use(run).await, (true, false));
        assert_eq!(outcome(&stage.change(Some(&staff), touched(run)).await), 0);
        assert_eq!(stage.attr(run).await.mode, bits);
    }
    // Its owner keeps it, and a new directory in it has it.
    assert_eq!(outcome(&stage.change(Some(&outside), with_mode(d, 0o2775)).await), 0);
    let made = of(create(d, "sub", FileKind::Directory), (0, 0, 0o755));
    let MgrReply::Created { attr, .. } = stage.change(Some(&outside), made).await else { panic!() };
    assert_eq!((stage.attr(d).await.mode, attr.gid, attr.mode), (0o2775, STAFF, 0o2755));
    // A file that is given away, or to another group, loses what it lets others do.
    assert_eq!(outcome(&stage.change(Some(&inside), with_mode(f, 0o6755)).await), 0);
    assert_eq!(outcome(&stage.change(Some(&outside), given(f, None, Some(100))).await), 0);
    assert_eq!(stage.attr(f).await.mode, 0o755);
    stage.served.running.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lies_about_who_asks_is_still_not_root() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    let mut stage = Stage::start(&path, SQUASHED).await;
    let file = async |stage: &Stage, name: &str, owner| {
        let ino = stage.made(of(create(InodeNo::ROOT, name, FileKind::File), owner)).await;
        assert_eq!(
            outcome(
                &stage.served.change(&stage.own, stage.all, written(ino, name, (None, None, None))).await
            ),
            0
        );
        ino
    };
    let private = file(&stage, "private", (0, 0, 0o600)).await;
    let seen = file(&stage, "seen", (0, 0, 0o644)).await;
    let run = file(&stage, "run", (0, 0, 0o711)).await;
    let users = file(&stage, "users", (OWNER, 100, 0o400)).await;
    let of_staff = file(&stage, "of-staff", (0, STAFF, 0o660)).await;
    let of_roots = file(&stage, "of-roots", (0, 0, 0o660)).await;
    let all_files = [private, seen, run, users, of_staff, of_roots];
    let closed = stage.made(of(create(InodeNo::ROOT, "closed", FileKind::Directory), (0, 0, 0o700))).await;
    stage.made(of(create(closed, "x", FileKind::File), (0, 0, 0o666))).await;

    let nobody_says = None;
    let says_root = Some(program(0, 0, &[]));
    let says_group = Some(program(5, 0, &[0]));
    let mut seq = 0;
    for by in [&nobody_says, &says_root, &says_group] {
        for (change, errno) in [
            (with_mode(private, 0o666), EPERM),
            (given(private, Some(OWNER), None), EPERM),
            (given(seen, None, Some(STAFF)), EPERM),
            (with_size(private, 0), EACCES),
            (written(private, "mine", (None, None, None)), EACCES),
            (written(seen, "mine", (Some(0o666), None, None)), EACCES),
            (written(of_roots, "mine", (None, None, None)), EACCES),
            (punched(private), EACCES),
            (xattr(private, b"user.a"), EACCES),
            (create(InodeNo::ROOT, "new", FileKind::File), EACCES),
            (create(closed, "new", FileKind::File), EACCES),
            (unnamed(closed), EACCES),
            (link(seen, closed, "mine"), EACCES),
            (unlink(InodeNo::ROOT, "private"), EACCES),
            (unlink(closed, "x"), EACCES),
            (rename(InodeNo::ROOT, "private", closed), EACCES),
            // Nobody gives a file away but root.
            (given(users, Some(0), None), EPERM),
        ] {
            let reply = stage.change(by.as_ref(), change.clone()).await;
            assert_eq!(reply, refused(errno), "{by:?}: {change:?}");
            seq += 1;
            let op = OpId { slot: 2, seq };
            let many = MgrRequest::MutateMany { changes: vec![(op, change)] };
            let MgrReply::Many(each) = stage.served.ask(&stage.squashed, stage.session, &many).await else {
                panic!()
            };
            assert!(each.iter().all(|one| one.is_err()), "{each:?}");
        }
    }
    // In a directory that all may write: nobody's, if nobody says whose.
    let tmp = stage.made(of(create(InodeNo::ROOT, "tmp", FileKind::Directory), (0, 0, 0o1777))).await;
    assert_eq!(stage.change(None, create(tmp, "a", FileKind::File)).await, refused(EPERM));
    let MgrReply::Created { attr, .. } =
        stage.change(says_root.as_ref(), create(tmp, "a", FileKind::File)).await
    else {
        panic!()
    };
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));

    // Questions, and what servers hear, before a restart and after.
    for _ in 0..2 {
        let look = |parent, name: &str| MgrRequest::Lookup { parent, name: name.into() };
        for (asked, errno) in [
            (look(closed, "x"), EACCES),
            (MgrRequest::ReadDir { ino: closed, cookie: 0, limit: 9, plus: false }, EACCES),
            (MgrRequest::ReadInline { ino: private }, EACCES),
            (MgrRequest::ReadInline { ino: of_roots }, EACCES),
            (MgrRequest::GetXattr { ino: private, name: b"user.a".to_vec() }, EACCES),
            (MgrRequest::GetXattr { ino: seen, name: b"trusted.a".to_vec() }, EPERM),
        ] {
            assert_eq!(
                stage.served.ask(&stage.squashed, stage.session, &asked).await,
                refused(errno),
                "{asked:?}"
            );
        }
        for (ino, text) in [(seen, "seen"), (run, "run"), (users, "users"), (of_staff, "of-staff")] {
            let asked = MgrRequest::ReadInline { ino };
            let reply = stage.served.ask(&stage.squashed, stage.session, &asked).await;
            assert_eq!(reply, MgrReply::Bytes(text.into()));
        }
        let mut may = Vec::new();
        for ino in all_files {
            may.push(stage.may_use(ino).await);
        }
        let (no, read, all) = ((false, false), (true, false), (true, true));
        assert_eq!(may, [no, read, read, all, all, no]);
        assert_eq!(stage.may_use(InodeNo(1000)).await, no, "a number that may become anybody's");
        stage.served.running.take().unwrap().stop().await;
        stage.served = Served::start(&path);
    }
    stage.served.running.unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_are_one_user_that_user_counts() {
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::start(&dir.path().join("manager"), TO_ONE).await;
    let tmp = stage.made(of(create(InodeNo::ROOT, "tmp", FileKind::Directory), (0, 0, 0o777))).await;
    for (name, by) in
        [("a", None), ("b", Some(program(0, 0, &[]))), ("c", Some(program(OWNER, 100, &[STAFF])))]
    {
        let MgrReply::Created { attr, .. } =
            stage.change(by.as_ref(), of(create(tmp, name, FileKind::File), (OWNER, 100, 0o600))).await
        else {
            panic!()
        };
        assert_eq!((attr.uid, attr.gid), (70, 80));
        assert_eq!(stage.may_use(attr.ino).await, (true, true));
        assert_eq!(outcome(&stage.change(by.as_ref(), with_mode(attr.ino, 0o400)).await), 0);
    }
    for (name, owner, may) in [
        ("users", (OWNER, 100, 0o600), (false, false)),
        ("seen", (OWNER, 100, 0o604), (true, false)),
        ("group", (OWNER, 80, 0o660), (true, true)),
        // He is of the group, so that what others may does not count.
        ("not-group", (OWNER, 80, 0o606), (false, false)),
    ] {
        let ino = stage.made(of(create(tmp, name, FileKind::File), owner)).await;
        assert_eq!(stage.may_use(ino).await, may, "{name}");
        let by = program(OWNER, 100, &[]);
        let errno = if may.1 { 0 } else { EACCES };
        assert_eq!(
            outcome(&stage.change(Some(&by), written(ino, "x", (None, None, None))).await),
            errno,
            "{name}"
        );
        assert_eq!(stage.change(Some(&by), with_mode(ino, 0o777)).await, refused(EPERM));
    }
    stage.served.running.unwrap().stop().await;
}
