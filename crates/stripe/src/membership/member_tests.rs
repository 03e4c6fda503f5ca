//! How often a lease is renewed. A slow machine renews less often, so both limits are on the side that it cannot cross.
#![allow(clippy::unwrap_used)] // tests

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use net::BoxFuture;

use super::*;
use crate::Registered;

const HOUR: Duration = Duration::from_secs(3600);

/// A manager that gives leases of so long, and counts renewals.
struct Renewals {
    lease: Duration,
    count: AtomicU64,
}

impl ManagerLink for Renewals {
    fn call(
        &self,
        _: SessionId,
        _: Epoch,
        request: MgrRequest,
        _: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let lease_us = self.lease.as_micros() as u64;
        match request {
            MgrRequest::Renew { .. } => {
                self.count.fetch_add(1, SeqCst);
                Box::pin(async move { Ok(MgrReply::Renewed { lease_us, epoch: Epoch(0) }) })
            }
            // The map never changes.
            _ => Box::pin(std::future::pending()),
        }
    }
}

struct Once(Duration);

impl Registrar for Once {
    fn register(&self, _: Arc<dyn ManagerLink>) -> BoxFuture<'static, Result<Registered, RegistrarError>> {
        let registered = Registered {
            session: SessionId(1),
            sent: boot_time(),
            lease: self.0,
            map: ClusterMap::default(),
        };
        Box::pin(async move { Ok(registered) })
    }
}

async fn start(lease: Duration, renew_interval: Duration) -> (Arc<Renewals>, Membership) {
    let link = Arc::new(Renewals { lease, count: AtomicU64::new(0) });
    let config = MembershipConfig { renew_interval, ..MembershipConfig::default() };
    let membership = Membership::start(link.clone(), Arc::new(Once(lease)), config).await.unwrap();
    (link, membership)
}

/// Waits for so many renewals more; fails after a minute, in which one an hour brings none.
async fn renewed(link: &Renewals, more: u64) {
    let (until, end) = (link.count.load(SeqCst) + more, Instant::now() + Duration::from_secs(60));
    while link.count.load(SeqCst) < until {
        assert!(Instant::now() < end, "{} renewals of {until}", link.count.load(SeqCst));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_lease_is_renewed_as_often_as_is_said() {
    let (link, membership) = start(24 * HOUR, HOUR).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(link.count.load(SeqCst), 0, "once an hour");
    membership.set_renew_interval(Duration::from_millis(10));
    renewed(&link, 20).await;
    membership.set_renew_interval(HOUR);
    // What was under way, and the one that brings the new pause.
    let before = link.count.load(SeqCst);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(link.count.load(SeqCst) <= before + 2);
}

#[tokio::test]
async fn a_short_lease_is_renewed_after_a_quarter_of_it() {
    let (link, _membership) = start(Duration::from_millis(400), HOUR).await;
    renewed(&link, 3).await;
}
