//! What an ended session left is resolved before a file is used, also if whoever wanted the file first has gone.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use base::{Grant, InodeNo, PoolId};
use bytes::Bytes;
use client::BoxFuture;
use stripe::{Fault, NsdCall, NsdTransport};
use wire::{
    mgr::{Attr, MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
    token::{Token, TokenMode},
};

use crate::support::{
    RW,
    link::{Recalls, SmallManager, mount_small},
    until,
};

const INO: InodeNo = InodeNo(7);

/// A manager with one file, which an ended session was writing; others have it mounted as well.
#[derive(Default)]
struct Manager {
    grants: AtomicU64,
    resolved: AtomicU64,
    /// There are none.
    recalls: Recalls,
}

/// One pdisk, which does not say what is half done until it may.
#[derive(Default)]
struct Servers {
    asked: AtomicU64,
    answer: AtomicBool,
}

fn file() -> Box<Attr> {
    let (pool, block_size, nlink) = (PoolId(1), 1 << 20, 1);
    Box::new(Attr { ino: INO, pool, block_size, nlink, inline: true, ..Attr::default() })
}

impl SmallManager for Manager {
    fn deadline(&self) -> &'static str {
        "5s"
    }
    fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        match request {
            MgrRequest::GetAttr { .. } => MgrReply::Attr(file()),
            MgrRequest::Acquire { .. } => {
                let serial = Grant(2 + self.grants.fetch_add(1, SeqCst));
                let (token, resolve) = (Token::new(INO, TokenMode::Write, serial), true);
                MgrReply::Token { token, resolve, attr: Some(file()), empty: false }
            }
            MgrRequest::Resolved { .. } => {
                self.resolved.fetch_add(1, SeqCst);
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
    }
}

struct Ways(Arc<Servers>);

impl NsdTransport for Ways {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        assert!(matches!(call.request, NsdRequest::ListPrepared { .. }), "{:?}", call.request);
        let servers = self.0.clone();
        servers.asked.fetch_add(1, SeqCst);
        Box::pin(async move {
            while !servers.answer.load(SeqCst) {
                if Instant::now() >= call.deadline {
                    return Err(Fault::Timeout);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok((NsdReply::States { states: Vec::new(), more: false }, Bytes::new()))
        })
    }
}

#[tokio::test]
async fn a_resolution_whose_first_waiter_goes_away_comes_to_its_end() {
    let (manager, servers) = (Arc::<Manager>::default(), Arc::<Servers>::default());
    let client = mount_small(&manager, Arc::new(Ways(servers.clone()))).await;
    tokio::select! {
        opened = client.open(INO, RW) => panic!("opened: {opened:?}"),
        () = until("what is half done is asked for", || servers.asked.load(SeqCst) > 0) => {}
    }
    assert_eq!(manager.resolved.load(SeqCst), 0);
    servers.answer.store(true, SeqCst);
    // As somebody who is told EIO and tries again when the pdisk is back.
    client.open(INO, RW).await.expect("nobody resolves it any more");
    assert_eq!((manager.grants.load(SeqCst), manager.resolved.load(SeqCst)), (1, 1));
}
