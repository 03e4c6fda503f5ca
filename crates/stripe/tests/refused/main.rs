//! Servers that refuse, or never answer: a pool of one pdisk, or of two, whose server is the test.
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
    let (keep, views) = watch::channel(view(&[state]));
    let config = IoConfig { deadline, ..IoConfig::default() };
    (StripeIo::new(Arc::new(server), views, SessionCell::default(), Arc::new(()), config), keep)
}

/// A map of pdisks in these states, each of which has a copy of every block.
fn view(states: &[PdiskState]) -> Arc<ClusterView> {
    let node = NodeEntry { id: NodeId(1), session: Some(SessionId(1)), ..NodeEntry::default() };
    let pdisk =
        |(id, &state)| PdiskEntry { id: PdiskId(id), nodes: vec![NodeId(1)], state, ..PdiskEntry::default() };
    let pdisks: Vec<_> = (1..).zip(states).map(pdisk).collect();
    let pool = PoolEntry {
        id: PoolId(1),
        code: format!("{}way", states.len()),
        block_size: 256 << 10,
        width: states.len() as u8,
        table: pdisks.iter().map(|p| p.id).collect(),
        ..PoolEntry::default()
    };
    let map = ClusterMap { nodes: vec![node], pdisks, pools: vec![pool], ..ClusterMap::default() };
    Arc::new(ClusterView::new(map))
}

/// The first unit of a new block.
fn unit(stripe: StripeId, version: Version) -> WriteStripe {
    let dirty = vec![Range { offset: 0, len: 4096 }];
    let pieces = vec![(0, vec![7; 4096].into())];
    WriteStripe {
        stripe,
        pool: PoolId(1),
        version,
        len: 4096,
        dirty,
        pieces,
        previous: None,
        replaces: false,
    }
}
