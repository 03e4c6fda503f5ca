//! What an ended session left is resolved before a file is used, also if whoever wanted the file first has gone.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::support::{RW, mount_config, session_open, until};
use base::{Epoch, Grant, InodeNo, NodeId, PdiskId, PoolId, SessionId};
use bytes::Bytes;
use client::{BoxFuture, Client};
use stripe::{Fault, LinkError, ManagerLink, NsdCall, NsdTransport};
use wire::{
    map::{ClusterMap, NodeEntry, PdiskEntry, PdiskState, PoolEntry},
    mgr::{Attr, MgrReply, MgrRequest},
    nsd::{NsdReply, NsdRequest},
    token::{Token, TokenMode},
};

const INO: InodeNo = InodeNo(7);
const LEASE: Duration = Duration::from_secs(3600);

/// A manager with one file, which an ended session was writing; others have it mounted as well.
#[derive(Default)]
struct Manager {
    grants: AtomicU64,
    resolved: AtomicU64,
}

/// One pdisk, which does not say what is half done until it may.
#[derive(Default)]
struct Servers {
    asked: AtomicU64,
    answer: AtomicBool,
}

fn map() -> ClusterMap {
    let (node, pdisk, pool) = (NodeId(1), PdiskId(1), PoolId(1));
    let at = NodeEntry { id: node, session: Some(SessionId(9)), ..NodeEntry::default() };
    let disk = PdiskEntry { id: pdisk, nodes: vec![node], state: PdiskState::Ok, ..PdiskEntry::default() };
    let pool = PoolEntry {
        id: pool,
        code: "1way".into(),
        width: 1,
        block_size: 1 << 20,
        table: vec![pdisk],
        ..PoolEntry::default()
    };
    ClusterMap { nodes: vec![at], pdisks: vec![disk], pools: vec![pool], ..ClusterMap::default() }
}

fn file() -> Box<Attr> {
    let (pool, block_size, nlink) = (PoolId(1), 1 << 20, 1);
    Box::new(Attr { ino: INO, pool, block_size, nlink, inline: true, ..Attr::default() })
}

impl ManagerLink for Manager {
    fn call(
        &self,
        _: SessionId,
        _: Epoch,
        request: MgrRequest,
        _: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let lease_us = LEASE.as_micros() as u64;
        let reply = match request {
            MgrRequest::OpenSession { .. } => session_open(map(), LEASE, "5s"),
            MgrRequest::Renew { .. } => MgrReply::Renewed { lease_us, epoch: Epoch(0) },
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
            // Nothing changes, and nobody is recalled.
            MgrRequest::WaitMap { .. } | MgrRequest::WaitRecalls => return Box::pin(std::future::pending()),
            _ => MgrReply::Done,
        };
        Box::pin(async move { Ok(reply) })
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
    let client =
        Client::mount_over(manager.clone(), Arc::new(Ways(servers.clone())), mount_config()).await.unwrap();
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
