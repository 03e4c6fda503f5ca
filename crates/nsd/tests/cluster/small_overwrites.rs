//! What a 4 KiB overwrite costs in an 8+2p pool: bytes over the network, and bytes read from and written to
//! the data files of pdisks, printed and bounded.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // tests

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::common::*;
use bytes::Bytes;
use net::BoxFuture;
use stripe::{Fault, NetTransport, NsdCall, NsdTransport};
use wire::{
    frame,
    nsd::{NsdReply, NsdRequest},
};

const KIB: u64 = 1 << 10;
/// A frame's header, each way.
const HEADER: u64 = 128;

#[derive(Default)]
struct Counts {
    network: AtomicU64,
    disk_read: AtomicU64,
    disk_written: AtomicU64,
    requests: AtomicU64,
}

struct Counting {
    inner: NetTransport,
    counts: Arc<Counts>,
}

impl NsdTransport for Counting {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let counts = Arc::clone(&self.counts);
        let payload: u64 = call.payload.iter().map(|p| p.len() as u64).sum();
        let message = frame::encode(&call.request).len() as u64;
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.network.fetch_add(HEADER + message + payload, Ordering::Relaxed);
        if matches!(call.request, NsdRequest::Prepare { .. }) {
            counts.disk_written.fetch_add(payload, Ordering::Relaxed);
        }
        let answer = self.inner.call(call);
        Box::pin(async move {
            let answer = answer.await;
            if let Ok((reply, payload)) = &answer {
                let bytes = HEADER + frame::encode(reply).len() as u64 + payload.len() as u64;
                counts.network.fetch_add(bytes, Ordering::Relaxed);
                counts.disk_read.fetch_add(payload.len() as u64, Ordering::Relaxed);
            }
            answer
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_overwrite_touches_one_data_strip_and_the_parity() {
    let cluster = Cluster::start("8+2p", 1 << 20, 5, 2).await;
    let counts = Arc::new(Counts::default());
    let of = Arc::clone(&counts);
    let mut client = cluster.patient_client(move |endpoint| {
        Arc::new(Counting { inner: NetTransport::new(endpoint), counts: of })
    });
    cluster.seen().await;
    client.put(0, content(1, 256)).await;
    client.adopt_all().await;
    let now = || {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (of(&counts.network), of(&counts.disk_read), of(&counts.disk_written), of(&counts.requests))
    };
    let before = now();
    let overwrites = 16;
    for i in 0..overwrites {
        client.patch(0, 4096 * (i * 13 % 256), &content(100 + u64::from(i), 1)).await;
    }
    client.adopt_all().await;
    let after = now();
    let each = |a: u64, b: u64| (a - b) / u64::from(overwrites);
    let (network, read, written) =
        (each(after.0, before.0), each(after.1, before.1), each(after.2, before.2));
    println!(
        "4 KiB overwrite in 8+2p, nothing cached: {:.1} KiB over the network in {} requests; data files: \
         {:.1} KiB read, {:.1} KiB written",
        network as f64 / KIB as f64,
        each(after.3, before.3),
        read as f64 / KIB as f64,
        written as f64 / KIB as f64,
    );
    assert!(network <= 64 * KIB, "{network} bytes over the network");
    assert!(read + written <= 48 * KIB, "{read} bytes read and {written} written");
    assert_eq!(written, 12 * KIB, "one data strip and two of parity, by ranges");
    client.check_all().await;
    cluster.prove(0, client.blocks.get(&0).map(Vec::as_slice)).await;
}
