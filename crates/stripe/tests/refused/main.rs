//! Servers that refuse, or never answer: a pool of one pdisk whose server is the test.
#![allow(clippy::unwrap_used)] // tests

mod fenced;
mod left;
mod no_answer;
mod stale;

use std::{sync::Arc, time::Duration};

use base::{NodeId, PdiskId, PoolId, SessionId, StripeId, Version};
use stripe::{ClusterView, IoConfig, NsdTransport, SessionCell, StripeIo, WriteStripe};
use tokio::sync::watch;
use wire::{
    map::{ClusterMap, NodeEntry, PdiskEntry, PdiskState, PoolEntry},
    strip::Range,
};

/// The map is in use as long as its sender is kept.
fn one_pdisk(
    server: impl NsdTransport,
    state: PdiskState,
    deadline: Duration,
) -> (StripeIo, watch::Sender<Arc<ClusterView>>) {
    let node = NodeEntry { id: NodeId(1), session: Some(SessionId(1)), ..NodeEntry::default() };
    let pdisk = PdiskEntry { id: PdiskId(1), nodes: vec![NodeId(1)], state, ..PdiskEntry::default() };
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
    let config = IoConfig { deadline, ..IoConfig::default() };
    (StripeIo::new(Arc::new(server), views, SessionCell::default(), Arc::new(()), config), keep)
}

/// The first unit of a new block.
fn unit(stripe: StripeId, version: Version) -> WriteStripe {
    let dirty = vec![Range { offset: 0, len: 4096 }];
    let pieces = vec![(0, vec![7; 4096].into())];
    WriteStripe { stripe, pool: PoolId(1), version, len: 4096, dirty, pieces, previous: None }
}
