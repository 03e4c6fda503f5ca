//! A question whose task ends without an answer is not an answer: nothing is taken for resolved by it.

use std::{sync::Arc, time::Duration};

use base::{FsId, Grant, OpClass, PdiskId, PoolId, StripeId};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{ClusterView, Fault, NsdCall, NsdTransport, StripeError, StripeIo, resolve_fs};
use tokio::sync::watch;
use wire::{map::PdiskState, nsd::NsdReply};

use super::one_pdisk;

struct Panics;

impl NsdTransport for Panics {
    fn call(&self, _: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        Box::pin(async { panic!("a bug on the way to a server") })
    }
}

fn io() -> (StripeIo, watch::Sender<Arc<ClusterView>>) {
    one_pdisk(Panics, PdiskState::Ok, Duration::from_millis(100))
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
    let until = std::time::Instant::now() + Duration::from_secs(60);
    let states = io.states(StripeId::default(), PoolId(1), OpClass::Rebuild, |_| true, until).await.unwrap();
    assert!(matches!(states[..], [Some(Err(Fault::Unreachable(_)))]), "{states:?}");
}
