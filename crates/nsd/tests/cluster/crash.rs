//! A client dies in the middle of its writes, at every point: after resolution each block is its old or
//! its new content, what was acknowledged is there, and every stripe is proved.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // tests

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::common::*;
use base::{Grant, NodeId};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{Fault, NetTransport, NsdCall, NsdTransport, resolve_fs};
use wire::nsd::{NsdReply, NsdRequest};

const BLOCK: u32 = 256 << 10;

/// Lets a number of changes through; after that the client is as good as dead.
struct Cut {
    inner: NetTransport,
    counts: Arc<Counts>,
}

struct Counts {
    left: AtomicI64,
    /// Calls that were let through and are not answered.
    under_way: AtomicI64,
}

impl Counts {
    /// A change was kept back, and all before it has come to its end.
    async fn dead(&self) {
        while self.left.load(Ordering::SeqCst) >= 0 || self.under_way.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// One that is under way, until it has been answered or nobody waits for it.
struct UnderWay(Arc<Counts>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl NsdTransport for Cut {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let changes = matches!(
            call.request,
            NsdRequest::Prepare { .. } | NsdRequest::Adopt { .. } | NsdRequest::Discard { .. }
        );
        self.counts.under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(Arc::clone(&self.counts));
        if changes && self.counts.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Box::pin(std::future::pending());
        }
        let answer = self.inner.call(call);
        Box::pin(async move {
            let answer = answer.await;
            drop(under_way);
            answer
        })
    }
}

async fn story(code: &str, nodes: u32, per_node: u32, down: bool, cuts: std::ops::Range<i64>) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let mut cluster = Cluster::start(code, BLOCK, nodes, per_node).await;
    let units = BLOCK / UNIT;
    let mut blocks = std::collections::HashMap::new();
    let (mut forward, mut back) = (0, 0);
    for cut in cuts {
        let mut rng = Rng(cut as u64);
        let counts = Arc::new(Counts { left: AtomicI64::new(i64::MAX), under_way: AtomicI64::new(0) });
        let of = Arc::clone(&counts);
        let mut client = cluster
            .client_over(move |endpoint| Arc::new(Cut { inner: NetTransport::new(endpoint), counts: of }));
        cluster.seen().await;
        client.blocks = blocks.clone();
        // A new block, and one that is changed in parts, twice, before it dies.
        let first = cut as u64 % 8;
        if !client.blocks.contains_key(&first) {
            client.put(first, content(cut as u64, units)).await;
        }
        if down {
            cluster.kill(0).await;
            cluster.manager.lost_node(NodeId(1));
            cluster.seen().await;
        }
        counts.left.store(cut, Ordering::SeqCst);
        let mut maybe = client.blocks.clone();
        let mut maybe_of = None;
        let dying = async {
            for round in 0..4u64 {
                let at = rng.below(units - 2) * UNIT;
                let bytes = content(cut as u64 * 100 + round, 1 + rng.below(2));
                let block = if round == 2 { 100 + cut as u64 } else { first };
                let model = maybe.entry(block).or_default();
                if round == 2 {
                    *model = content(cut as u64 + 5000, 1 + rng.below(units));
                    let whole = model.clone();
                    maybe_of = Some(block);
                    client.put(block, whole).await;
                } else {
                    model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                    maybe_of = Some(block);
                    client.patch(block, at, &bytes).await;
                }
                maybe_of = None;
            }
        };
        tokio::select! {
            () = dying => {}
            () = counts.dead() => {}
        }
        let acknowledged = client.blocks.clone();
        cluster.manager.fence(client.session);
        cluster.manager.in_force().await;
        drop(client);

        let mut next = cluster.client();
        cluster.seen().await;
        cluster.manager.in_force().await;
        let report = resolve_fs(&next.io, FS, Grant(next.session.0), |_| ()).await.unwrap();
        assert!(report.unavailable.is_empty(), "cut {cut}: {report:?}");
        forward += report.forward;
        back += report.back;
        next.blocks = acknowledged;
        if let Some(block) = maybe_of {
            let new = maybe[&block].clone();
            let old = next.blocks.get(&block).cloned();
            let len = new.len();
            let until = Instant::now() + Duration::from_secs(60);
            let states = next
                .io
                .states(stripe(block), POOL, base::OpClass::Read, |s| s == wire::map::PdiskState::Ok, until)
                .await
                .unwrap();
            let any = states.iter().flatten().any(|s| s.as_ref().unwrap().adopted.is_some());
            if any {
                let flat = next.read(block).await;
                let is = |wanted: &[u8]| flat[..wanted.len()] == *wanted;
                let found = if is(&new) { Some(new) } else { None };
                let found = found.or_else(|| old.clone().filter(|o| is(o)));
                assert!(found.is_some(), "cut {cut}: block {block} ({len} bytes) is neither old nor new");
                next.blocks.insert(block, found.unwrap());
            } else {
                assert!(old.is_none(), "cut {cut}: block {block} is gone");
            }
        }
        next.check_all().await;
        if down {
            cluster.start_node(0).await;
            cluster.all_ok().await;
            cluster.seen().await;
        }
        for block in next.blocks.keys() {
            cluster.prove(*block, next.blocks.get(block).map(Vec::as_slice)).await;
        }
        blocks = next.blocks.clone();
        cluster.manager.fence(next.session);
    }
    println!("{code}: {forward} forward, {back} back");
    let copies = !code.contains("+"); // one copy is enough to go forward
    assert!(forward > 0 && (back > 0 || copies), "{forward} forward, {back} back");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_every_point_4_2() {
    story("4+2p", 3, 2, false, 0..14).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_every_point_with_a_node_down_4_2() {
    story("4+2p", 3, 2, true, 0..10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_every_point_2_way() {
    story("2way", 3, 1, false, 0..9).await;
}
