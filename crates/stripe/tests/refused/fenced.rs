//! A resolver whose own session has been declared dead: nothing that it asks again is answered otherwise.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use base::{FsId, Grant, InodeNo, PoolId, StripIndex, StripSet, StripeId, Version};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{
    ClusterView, Fault, NsdCall, NsdTransport, StripeError, StripeIo, resolve_fs, resolve_inode,
    unresolved_inodes,
};
use tokio::sync::watch;
use wire::{
    map::PdiskState,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{StripState, VersionInfo},
};

use super::one_pdisk;

const INODE: InodeNo = InodeNo(7);
/// What would be waited for, and what is enough on a machine that has other things to do.
const DEADLINE: Duration = Duration::from_secs(600);
const AT_ONCE: Duration = Duration::from_secs(60);

/// The session is fenced from the first request on that is none of these.
struct Fences(fn(&NsdRequest) -> bool);

impl NsdTransport for Fences {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let answered = (self.0)(&call.request);
        Box::pin(async move {
            let prepared = |strip| {
                let prepared = Some(VersionInfo {
                    version: Version { grant: Grant(1), seq: 1 },
                    touched: StripSet(1),
                    len: 4096,
                    covers: Vec::new(),
                });
                StripState { strip, pool: PoolId(1), prepared, ..StripState::default() }
            };
            let stripe = StripeId { fs: FsId(1), inode: INODE, block: Default::default() };
            match call.request {
                _ if !answered => Err(Fault::Refused(NsdRefusal::Fenced)),
                NsdRequest::ListPrepared { .. } | NsdRequest::Seal { .. } => {
                    let states = vec![prepared(stripe.strip(StripIndex(0)))];
                    Ok((NsdReply::States { states, more: false }, Bytes::new()))
                }
                other => panic!("not asked in these tests: {other:?}"),
            }
        })
    }
}

fn io(answered: fn(&NsdRequest) -> bool, state: PdiskState) -> (StripeIo, watch::Sender<Arc<ClusterView>>) {
    one_pdisk(Fences(answered), state, DEADLINE)
}

async fn ends<T: std::fmt::Debug>(work: impl Future<Output = Result<T, StripeError>>) {
    let (began, error) = (Instant::now(), work.await.unwrap_err());
    assert!(error.is_fenced(), "{error}");
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_fenced_resolver_ends_at_once() {
    let nothing: fn(&NsdRequest) -> bool = |_| false;
    for state in [PdiskState::Ok, PdiskState::Returning] {
        let (io, _keep) = io(nothing, state);
        ends(unresolved_inodes(&io, FsId(1))).await;
        ends(resolve_inode(&io, FsId(1), INODE, Grant(2))).await;
    }
    // While it seals, and while it changes what is prepared.
    let lists: fn(&NsdRequest) -> bool = |r| matches!(r, NsdRequest::ListPrepared { .. });
    let seals: fn(&NsdRequest) -> bool =
        |r| !matches!(r, NsdRequest::Adopt { .. } | NsdRequest::Discard { .. });
    for answered in [lists, seals] {
        let (io, _keep) = io(answered, PdiskState::Ok);
        ends(resolve_fs(&io, FsId(1), Grant(2), |_| ())).await;
        ends(resolve_inode(&io, FsId(1), INODE, Grant(2))).await;
    }
}
