//! Calls to a manager that answers some of them.

use base::BlockIndex;
use wire::mgr::FileKind;

use super::*;
use crate::{core::now, parts::BoxFuture};

/// Changes one by one are never answered, several at once are. The newest message for these it may not know; then it waits with them
/// until a session has said what it holds, as one does that has just begun.
struct Stub {
    waiting: AtomicUsize,
    old: AtomicBool,
    /// An older one takes its place while it is told something.
    dies: AtomicBool,
    /// An older one is asked that follows, as long as nobody has found out who leads.
    follows: AtomicBool,
    /// The next changes wait in vain for other sessions.
    late: AtomicBool,
    told: Mutex<Vec<Vec<OpId>>>,
    claimed: Semaphore,
    asked: Notify,
}

impl Stub {
    fn calls() -> (Arc<Stub>, Arc<Calls>) {
        let (waiting, old, dies, follows, late, told, asked) = Default::default();
        let claimed = Semaphore::new(0);
        let stub = Arc::new(Stub { waiting, old, dies, follows, late, told, claimed, asked });
        (stub.clone(), Arc::new(Calls::new(FsId(1), stub, Duration::from_secs(60), true)))
    }
}

impl Manager for Stub {
    fn call(&self, request: MgrRequest, _: Instant) -> BoxFuture<'_, Result<MgrReply, CallError>> {
        Box::pin(async move {
            match request {
                MgrRequest::Tell { .. } if self.old.load(SeqCst) || self.follows.load(SeqCst) => {
                    Err(CallError::TooOld("it is older".into()))
                }
                MgrRequest::StatFs { .. } => {
                    self.follows.store(false, SeqCst);
                    Ok(MgrReply::StatFs { total: 0, free: 0, inodes: 0 })
                }
                MgrRequest::Tell { changes } | MgrRequest::MutateMany { changes } => {
                    self.told.lock().push(changes.iter().map(|(op, _)| *op).collect());
                    if self.late.swap(false, SeqCst) {
                        return Ok(MgrReply::Error(MgrError::Errno(libc::ETIMEDOUT)));
                    }
                    if self.dies.swap(false, SeqCst) {
                        self.old.store(true, SeqCst);
                        return Err(CallError::Deadline("it is dead".into()));
                    }
                    if self.old.load(SeqCst) {
                        let claimed = self.claimed.acquire().await;
                        claimed.expect("never closed").forget();
                    }
                    Ok(MgrReply::Many(changes.iter().map(|_| Ok(MgrReply::Done)).collect()))
                }
                MgrRequest::Claim { .. } | MgrRequest::Lock(LockRequest::Claim { .. }) => {
                    self.claimed.add_permits(1);
                    Ok(MgrReply::Done)
                }
                _ => {
                    self.waiting.fetch_add(1, SeqCst);
                    self.asked.notify_one();
                    std::future::pending().await
                }
            }
        })
    }
}

/// Changes may wait for other sessions, which wait for what is told.
#[tokio::test]
async fn what_is_told_does_not_wait_for_changes_that_are_not_answered() {
    let (stub, calls) = Stub::calls();
    for _ in 0..SLOTS {
        let calls = calls.clone();
        tokio::spawn(async move { calls.mutate(Change::Numbers { count: 1 }).await });
    }
    while stub.waiting.load(SeqCst) < usize::from(SLOTS) - MANY_MAX {
        stub.asked.notified().await;
    }
    let told = calls.tell_ahead(vec![Change::Numbers { count: 1 }; MANY_MAX], true).await;
    assert_eq!(told.map(|replies| replies.len()), Some(MANY_MAX));
}

/// A tree is copied within the file system: each file of the source is asked for while what was made of the copy gathers.
#[tokio::test]
async fn a_question_waits_only_for_what_may_have_an_effect_on_its_answer() {
    let (stub, calls) = Stub::calls();
    let [root, made, other] = [1, 10, 7].map(InodeNo);
    calls.ahead.add_numbers(made, 1);
    let set = |ino| Change::SetXattr {
        ino,
        name: vec![1],
        value: vec![],
        create: false,
        replace: false,
        now: now(),
    };
    let create = |ino| Change::CreateAs {
        ino,
        parent: root,
        name: b"a".to_vec(),
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        now: now(),
    };
    calls.ahead.append(|ino| Some(create(ino))).expect("there is a number");
    let ask = |request| {
        let calls = calls.clone();
        tokio::spawn(async move { calls.ask(request).await });
    };
    let of = |ino| {
        [
            MgrRequest::GetAttr { ino },
            MgrRequest::ReadInline { ino },
            MgrRequest::Extents { ino, from: BlockIndex(0), limit: 1 },
            MgrRequest::ListXattr { ino },
        ]
    };
    let asked = async |count| {
        let all = async {
            while stub.waiting.load(SeqCst) < count {
                stub.asked.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("they are asked");
    };
    of(other).into_iter().for_each(ask);
    asked(4).await;
    // What was made, its directory, a listing, which says something of many, and whatever changes something.
    of(made).into_iter().for_each(ask);
    of(root).into_iter().for_each(ask);
    ask(MgrRequest::ReadDir { ino: other, cookie: 0, limit: 1, plus: true });
    let changing = calls.clone();
    tokio::spawn(async move { changing.mutate(set(other)).await });
    assert!(tokio::time::timeout(Duration::from_millis(20), asked(5)).await.is_err());
    calls.ahead.advance(1);
    asked(14).await;
}

/// What it is told waits there for what this session says that it holds; what the one before may have done is told under the same numbers.
#[tokio::test]
async fn an_older_manager_that_takes_over_is_told_all_and_hears_before_what_is_held() {
    let claims = [
        MgrRequest::Claim { tokens: Vec::new(), last: true },
        MgrRequest::Lock(LockRequest::Claim { life: 1, locks: Vec::new(), last: true }),
    ];
    for (dies, claim) in [(false, claims[0].clone()), (true, claims[0].clone()), (true, claims[1].clone())] {
        let (stub, calls) = Stub::calls();
        stub.old.store(!dies, SeqCst);
        stub.dies.store(dies, SeqCst);
        calls.ahead.add_numbers(InodeNo(10), 1);
        let made = Change::Numbers { count: 1 };
        calls.ahead.append(|_| Some(made.clone())).expect("there is a number");
        let telling = calls.clone();
        let telling = tokio::spawn(async move { telling.tell_ahead(vec![made], true).await });
        assert_eq!(calls.told_or_waits().await, Ok(()));
        assert!(!telling.is_finished(), "it is told before it is known what is held");
        assert_eq!(calls.ask(claim).await, Ok(MgrReply::Done));
        assert_eq!(telling.await.expect("it ends").map(|replies| replies.len()), Some(1));
        assert_eq!(calls.told().await, Ok(()));
        let told = stub.told.lock().clone();
        assert!(told.len() == 1 + usize::from(dies) && told.iter().all(|ops| *ops == told[0]), "{told:?}");
    }
}

/// While nobody leads, whoever is asked may be an older one that follows: what is held is not said before all is told.
#[tokio::test]
async fn an_older_manager_that_follows_is_not_taken_for_who_leads() {
    let (stub, calls) = Stub::calls();
    stub.follows.store(true, SeqCst);
    let older = calls.telling_older.subscribe();
    let told = calls.tell_ahead(vec![Change::Numbers { count: 1 }], true).await;
    assert_eq!((told.map(|replies| replies.len()), stub.told.lock().len()), (Some(1), 1));
    assert_eq!(older.has_changed().ok(), Some(false));
}

/// A manager before may have done them, under these numbers.
#[tokio::test]
async fn what_is_told_and_was_not_looked_at_is_told_again_under_the_same_numbers() {
    let changes = vec![Change::Numbers { count: 1 }];
    for beside in [false, true] {
        let (stub, calls) = Stub::calls();
        stub.late.store(true, SeqCst);
        let told = calls.tell_ahead(changes.clone(), beside).await;
        assert_eq!(told.map(|replies| replies.len()), Some(1));
        let told = stub.told.lock().clone();
        assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
    }
    // A program hears of it.
    let (stub, calls) = Stub::calls();
    stub.late.store(true, SeqCst);
    assert_eq!(calls.mutate_many(changes).await.err(), Some(Errno(libc::ETIMEDOUT)));
    assert_eq!(stub.told.lock().len(), 1);
}
