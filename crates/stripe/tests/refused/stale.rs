//! A server that refuses an old map and names a version that this process never gets: one that is for servers only, as servers
//! did that were built before there were such.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base::{Epoch, Grant, OpClass, PoolId, StripeId, Version};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{ClusterView, Fault, NsdCall, NsdTransport, StripeIo};
use tokio::sync::{mpsc, watch};
use wire::{
    map::{ClusterMap, PdiskState},
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{Range, StripRead, VersionInfo},
};

use super::{one_pdisk, unit};

/// Whoever waits for the map that was named waits for so long, and fails; less than an attempt, which a read waits for.
const DEADLINE: Duration = Duration::from_secs(8);
const VERSION: Version = Version { grant: Grant(1), seq: 1 };

/// The group has changed at version 1; the servers have version 9. Tells what it has refused.
struct Servers(mpsc::UnboundedSender<Epoch>);

impl NsdTransport for Servers {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let answer = match &call.request {
            _ if Instant::now() >= call.deadline => Err(Fault::Timeout),
            _ if call.epoch < Epoch(1) => {
                self.0.send(call.epoch).unwrap();
                Err(Fault::Refused(NsdRefusal::StaleEpoch { current: Epoch(9) }))
            }
            NsdRequest::Read { read, .. } => {
                let info = VersionInfo { version: VERSION, len: 4096, ..VersionInfo::default() };
                let (ranges, crcs) = (read.ranges.clone(), vec![0]);
                Ok((NsdReply::Read(StripRead { info, ranges, crcs }), vec![7; 4096].into()))
            }
            _ => Ok((NsdReply::Done, Bytes::new())),
        };
        Box::pin(async move { answer })
    }
}

fn io() -> (StripeIo, watch::Sender<Arc<ClusterView>>, mpsc::UnboundedReceiver<Epoch>) {
    let (refused, refusals) = mpsc::unbounded_channel();
    let (io, maps) = one_pdisk(Servers(refused), PdiskState::Ok, DEADLINE);
    (io, maps, refusals)
}

/// The newest map that there is for this process.
fn newer(maps: &watch::Sender<Arc<ClusterView>>) {
    let map = ClusterMap { epoch: Epoch(1), ..maps.borrow().map.clone() };
    maps.send_replace(Arc::new(ClusterView::new(map)));
}

#[tokio::test]
async fn a_write_goes_on_with_the_next_map() {
    let (io, maps, mut refusals) = io();
    let (written, ()) = tokio::join!(io.write(unit(StripeId::default(), VERSION)), async {
        assert_eq!(refusals.recv().await, Some(Epoch(0)));
        newer(&maps);
    });
    assert_eq!(written.map(|meta| meta.len), Ok(4096));
}

#[tokio::test]
async fn a_read_goes_on_with_the_next_map() {
    let (io, maps, mut refusals) = io();
    let ranges = [Range { offset: 0, len: 4096 }];
    let (read, ()) = tokio::join!(io.read(StripeId::default(), PoolId(1), &ranges, OpClass::Read), async {
        assert_eq!(refusals.recv().await, Some(Epoch(0)));
        newer(&maps);
    });
    assert_eq!(read.map(|read| read.pieces.len()), Ok(1));
}
