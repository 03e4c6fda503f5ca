//! A question whose task ends without an answer is not an answer: nothing is taken for resolved by it.
#![allow(clippy::unwrap_used)] // tests

use std::{sync::Arc, time::Duration};

use base::{FsId, Grant, NodeId, OpClass, PdiskId, PoolId, SessionId, StripeId};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{
    ClusterView, Fault, IoConfig, NsdCall, NsdTransport, SessionCell, StripeError, StripeIo, resolve_fs,
};
use tokio::sync::watch;
use wire::{
    map::{ClusterMap, NodeEntry, PdiskEntry, PoolEntry},
    nsd::NsdReply,
};

struct Panics;

impl NsdTransport for Panics {
    fn call(&self, _: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        Box::pin(async { panic!("a bug on the way to a server") })
    }
}

fn io() -> (StripeIo, watch::Sender<Arc<ClusterView>>) {
    let node = NodeEntry { id: NodeId(1), session: Some(SessionId(1)), ..NodeEntry::default() };
    let pdisk = PdiskEntry { id: PdiskId(1), nodes: vec![NodeId(1)], ..PdiskEntry::default() };
    let pool = PoolEntry {
        id: PoolId(1),
        code: "1way".into(),
        block_size: 256 << 10,
        width: 1,
        table: vec![PdiskId(1)],
        ..PoolEntry::default()
    };
    let map =
        ClusterMap { nodes: vec![node], pdisks: vec![pdisk], pools: vec![pool], ..ClusterMap::default() };
    let (keep, views) = watch::channel(Arc::new(ClusterView::new(map)));
    let config = IoConfig { deadline: Duration::from_millis(100), ..IoConfig::default() };
    (StripeIo::new(Arc::new(Panics), views, SessionCell::default(), Arc::new(()), config), keep)
}

#[tokio::test]
async fn a_listing_that_panics_ends_resolution() {
    let (io, _keep) = io();
    let outcome = resolve_fs(&io, FsId(1), Grant(1), |_| ()).await;
    assert!(matches!(outcome, Err(StripeError::CannotList { pdisk: PdiskId(1), .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_strip_that_was_asked_has_answered_or_failed() {
    let (io, _keep) = io();
    let until = std::time::Instant::now() + Duration::from_secs(1);
    let states = io.states(StripeId::default(), PoolId(1), OpClass::Rebuild, |_| true, until).await.unwrap();
    assert!(matches!(states[..], [Some(Err(Fault::Unreachable(_)))]), "{states:?}");
}
