//! Ranges of one strip from its server.

use std::{sync::Arc, time::Instant};

use base::{OpClass, PdiskId, StripId, units::UNIT};
use bytes::Bytes;
use wire::{
    nsd::{NsdReply, NsdRequest},
    strip::{Range, ReadStrip, VersionInfo},
};

use crate::{ClusterView, Fault, geometry, shared::Shared};

/// Reads ranges of one strip; the transport has verified their CRCs.
pub(crate) async fn read_one(
    shared: &Shared,
    view: &ClusterView,
    pdisk: PdiskId,
    read: ReadStrip,
    class: OpClass,
    deadline: Instant,
) -> Result<(VersionInfo, Vec<(u32, Bytes)>), Fault> {
    let inode = read.strip.stripe.inode;
    let asked = read.ranges.clone();
    let request = NsdRequest::Read { pdisk, read };
    let (reply, payload) = shared.call(view, pdisk, request, Vec::new(), class, inode, deadline).await?;
    let NsdReply::Read(read) = reply else { return Err(Fault::Protocol) };
    let total: usize = read.ranges.iter().map(|r| r.len as usize).sum();
    let inside = |r: &Range| asked.iter().any(|a| r.offset >= a.offset && r.end() <= a.end());
    let rising = read.ranges.windows(2).all(|w| w[0].end() <= w[1].offset);
    let whole = read.ranges.iter().all(|r| r.len.is_multiple_of(UNIT as u32) && inside(r));
    if payload.len() != total || read.crcs.len() != total / UNIT || !rising || !whole {
        return Err(Fault::Protocol);
    }
    // What is shortened must be so because the strip ends there.
    let expected = geometry::total(&geometry::clip(&asked, read.info.len)) as usize;
    if total != expected {
        return Err(Fault::Protocol);
    }
    let mut at = 0;
    let mut pieces = Vec::with_capacity(read.ranges.len());
    for range in read.ranges.iter().filter(|r| r.len > 0) {
        let end = at + range.len as usize;
        pieces.push((range.offset, payload.slice(at..end)));
        at = end;
    }
    Ok((read.info, pieces))
}

/// Tells the server that bytes from this strip do not match; nobody waits for the answer.
pub(super) fn suspect(shared: &Arc<Shared>, view: &Arc<ClusterView>, pdisk: PdiskId, strip: StripId) {
    let called = view.map.pdisk_called(pdisk);
    tracing::warn!(%strip, pdisk = called, "CRC mismatch: the strip is decoded from the others and reported");
    let (shared, view) = (Arc::clone(shared), Arc::clone(view));
    let deadline = Instant::now() + shared.config.attempt;
    tokio::spawn(async move {
        let request = NsdRequest::Suspect { pdisk, strip };
        let inode = strip.stripe.inode;
        let told = shared.call(&view, pdisk, request, Vec::new(), OpClass::Scrub, inode, deadline).await;
        if let Err(fault) = told {
            tracing::warn!(%strip, pdisk = called, %fault, "cannot report a CRC mismatch");
        }
    });
}
