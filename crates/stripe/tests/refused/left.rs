//! What a failed write left of a stripe: discarded before the next one, and forgotten with the inode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{FsId, Grant, InodeNo, StripeId, Version};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{Fault, NsdCall, NsdTransport};
use wire::{
    map::PdiskState,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::StripRefusal,
};

use super::{one_pdisk, unit};

/// Takes no write; counts what it is asked to discard.
struct Refuses(Arc<AtomicU64>);

impl NsdTransport for Refuses {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let answer = match &call.request {
            NsdRequest::Discard { items, .. } => {
                self.0.fetch_add(1, SeqCst);
                Ok((NsdReply::Outcomes(vec![Ok(()); items.len()]), Bytes::new()))
            }
            _ => Err(Fault::Refused(NsdRefusal::Strip(StripRefusal::Malformed))),
        };
        Box::pin(async move { answer })
    }
}

#[tokio::test]
async fn what_a_failed_write_left_is_discarded_once_unless_its_inode_is_removed() {
    let discarded = Arc::new(AtomicU64::new(0));
    let (io, _keep) = one_pdisk(Refuses(discarded.clone()), PdiskState::Ok, Duration::from_secs(60));
    let [kept, removed] =
        [7, 8].map(|inode| StripeId { fs: FsId(1), inode: InodeNo(inode), block: Default::default() });
    let version = |seq| Version { grant: Grant(1), seq };
    for stripe in [kept, removed] {
        io.write(unit(stripe, version(1))).await.unwrap_err();
    }
    io.forget_inode(FsId(1), removed.inode);
    for stripe in [removed, kept] {
        let before = discarded.load(SeqCst);
        io.write(unit(stripe, version(2))).await.unwrap_err();
        assert_eq!(discarded.load(SeqCst) - before, u64::from(stripe == kept), "{stripe}");
    }
}
