//! Locks of programs, and what of them goes with which close.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    RW,
    link::{NoServers, Recalls, SmallManager, mount_small},
    until,
};
use base::{Grant, InodeNo, PoolId};
use client::{Client, Handle};
use tokio::sync::Semaphore;
use wire::{
    lock::{END, Lock, LockAnswer, LockKind, LockMode, LockRequest},
    lock_set::LockSet,
    mgr::{Attr, MgrReply, MgrRequest},
    token::{Token, TokenMode},
};

const INO: InodeNo = InodeNo(7);

/// A manager with one file, that sets every lock.
#[derive(Default)]
struct Manager {
    recalls: Recalls,
    held: Mutex<(u64, LockSet<()>)>,
    /// How often something was to be given up.
    freeing: AtomicU64,
    /// Leave to carry that out, where it is not at once.
    leave: Option<Semaphore>,
    /// How often it was, or was refused.
    freed: AtomicU64,
    /// Changes that were overtaken by later ones.
    overtaken: AtomicU64,
}

impl SmallManager for Manager {
    fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        let attr =
            Box::new(Attr { ino: INO, pool: PoolId(1), block_size: 1 << 20, nlink: 1, ..Attr::default() });
        match request {
            MgrRequest::GetAttr { .. } => MgrReply::Attr(attr),
            MgrRequest::Acquire { .. } => {
                let token = Token::new(INO, TokenMode::Write, Grant(2));
                MgrReply::Token { token, resolve: false, attr: Some(attr), empty: false }
            }
            MgrRequest::Lock(LockRequest::Set { seq, lock, .. }) => {
                if lock.mode == LockMode::None {
                    self.freeing.fetch_add(1, SeqCst);
                    if let Some(leave) = &self.leave {
                        leave.acquire().await.unwrap().forget();
                    }
                }
                let mut held = self.held.lock().unwrap();
                self.freed.fetch_add(u64::from(lock.mode == LockMode::None), SeqCst);
                if seq <= held.0 {
                    self.overtaken.fetch_add(1, SeqCst);
                    return MgrReply::Lock(LockAnswer::Superseded);
                }
                held.0 = seq;
                held.1.set((), lock, Duration::ZERO);
                MgrReply::Lock(LockAnswer::Done)
            }
            _ => MgrReply::Done,
        }
    }
}

impl Manager {
    async fn mount(self: &Arc<Manager>) -> (Client, Handle) {
        let client = mount_small(self, Arc::new(NoServers)).await;
        let handle = client.open(INO, RW).await.unwrap();
        (client, handle)
    }

    fn holds(&self) -> bool {
        !self.held.lock().unwrap().1.is_empty()
    }
}

fn lock(kind: LockKind, mode: LockMode) -> Lock {
    Lock { kind, mode, owner: 9, pid: 1, start: 0, end: END }
}

/// A process unlocks and closes; another one that has inherited the descriptor closes it when the first one has locked anew.
#[tokio::test]
async fn what_a_process_locked_anew_does_not_go_with_a_descriptor_it_has_closed() {
    let manager = Arc::new(Manager::default());
    let (client, first) = manager.mount().await;
    let (exclusive, none) =
        (lock(LockKind::Fcntl, LockMode::Exclusive), lock(LockKind::Fcntl, LockMode::None));
    client.lock(first, exclusive, None).await.unwrap();
    client.lock(first, none, None).await.unwrap();
    client.drop_locks(INO, exclusive.owner).await;
    let second = client.open(INO, RW).await.unwrap();
    client.lock(second, exclusive, None).await.unwrap();
    let flock = Lock { owner: 10, ..lock(LockKind::Flock, LockMode::Exclusive) };
    client.lock(first, flock, None).await.unwrap();
    let before = manager.freeing.load(SeqCst);
    client.release(first);
    until("the flock goes with the first handle", || manager.freeing.load(SeqCst) > before).await;
    until("it is gone", || manager.held.lock().unwrap().1.of((), &flock).next().is_none()).await;
    assert!(manager.holds());
    client.drop_locks(INO, exclusive.owner).await;
    assert!(!manager.holds());
}

/// An open file is closed, and the next one gets its owner's number; or a process closes, and locks anew by the next descriptor.
#[tokio::test]
async fn what_is_locked_after_a_close_is_not_given_up_with_it() {
    for kind in [LockKind::Fcntl, LockKind::Flock] {
        let manager = Arc::new(Manager { leave: Some(Semaphore::new(0)), ..Manager::default() });
        let (client, first) = manager.mount().await;
        client.lock(first, lock(kind, LockMode::Exclusive), None).await.unwrap();
        let second = client.open(INO, RW).await.unwrap();
        client.release(first);
        until("it is being given up", || manager.freeing.load(SeqCst) == 1).await;
        let again = client.clone();
        let locked =
            tokio::spawn(async move { again.lock(second, lock(kind, LockMode::Exclusive), None).await });
        // What went ahead would arrive within this time, and be overtaken by nothing.
        tokio::time::sleep(Duration::from_millis(50)).await;
        manager.leave.as_ref().unwrap().add_permits(1);
        locked.await.unwrap().unwrap();
        until("it is given up", || manager.freed.load(SeqCst) > 0).await;
        drop(manager.held.lock().unwrap());
        assert_eq!((manager.overtaken.load(SeqCst), manager.holds()), (0, true), "{kind:?}");
    }
}
