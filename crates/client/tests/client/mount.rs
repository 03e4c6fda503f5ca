//! What a mount takes over from the cluster's tunables before anything is read or written.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::support::{mount_config, until};
use base::{Epoch, FsId, Grant, PoolId, SessionId};
use bytes::Bytes;
use client::{BoxFuture, Client, MountError};
use stripe::{Fault, LinkError, ManagerLink, NsdCall, NsdTransport};
use wire::{
    map::{ClusterMap, FsEntry, PoolEntry},
    mgr::{MgrError, MgrReply, MgrRequest},
    nsd::NsdReply,
};

const LEASE: Duration = Duration::from_secs(3600);

/// A manager with one file system, on a pool of blocks of 4 MiB, and these tunables.
struct Manager {
    tunables: Vec<(&'static str, &'static str)>,
    renewals: AtomicU64,
    closed: AtomicU64,
    /// The answer to the first question to close does not come.
    loses_close: bool,
}

impl ManagerLink for Manager {
    fn call(
        &self,
        _: SessionId,
        _: Epoch,
        request: MgrRequest,
        _: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let lease_us = LEASE.as_micros() as u64;
        let reply = match request {
            MgrRequest::OpenSession { .. } => {
                let fs = FsEntry { id: FsId(1), name: "fs1".into(), pool: PoolId(1) };
                let pool = PoolEntry {
                    id: PoolId(1),
                    name: "data".into(),
                    code: "1way".into(),
                    width: 1,
                    block_size: 4 << 20,
                    ..PoolEntry::default()
                };
                let map =
                    ClusterMap { pools: vec![pool], filesystems: vec![fs.clone()], ..ClusterMap::default() };
                MgrReply::SessionOpen {
                    session: SessionId(1),
                    grant: Grant(1),
                    whole: true,
                    fs,
                    resolve: false,
                    lease_us,
                    map: Box::new(map),
                    config: self.tunables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect(),
                }
            }
            MgrRequest::Renew { .. } => {
                self.renewals.fetch_add(1, SeqCst);
                MgrReply::Renewed { lease_us, epoch: Epoch(0) }
            }
            MgrRequest::CloseSession => {
                let before = self.closed.fetch_add(1, SeqCst);
                let lost = match before {
                    0 if self.loses_close => Some(LinkError::Timeout),
                    0 => None,
                    _ => Some(LinkError::Refused(MgrError::NoSession)),
                };
                if let Some(error) = lost {
                    return Box::pin(async move { Err(error) });
                }
                MgrReply::Done
            }
            // Nothing changes, and nobody is recalled.
            _ => return Box::pin(std::future::pending()),
        };
        Box::pin(async move { Ok(reply) })
    }
}

/// No pdisk is asked for anything.
struct NoServers;

impl NsdTransport for NoServers {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        panic!("{:?}", call.request);
    }
}

async fn mount(tunables: &[(&'static str, &'static str)]) -> (Arc<Manager>, Result<Client, MountError>) {
    mount_by(tunables, false).await
}

async fn mount_by(
    tunables: &[(&'static str, &'static str)],
    loses_close: bool,
) -> (Arc<Manager>, Result<Client, MountError>) {
    let manager = Arc::new(Manager {
        tunables: tunables.to_vec(),
        renewals: AtomicU64::new(0),
        closed: AtomicU64::new(0),
        loses_close,
    });
    let mounted = Client::mount_over(manager.clone(), Arc::new(NoServers), mount_config()).await;
    (manager, mounted)
}

#[tokio::test]
async fn a_pool_of_larger_blocks_than_maxblocksize_is_refused() {
    let (manager, refused) = mount(&[("pagepool", "64m"), ("maxblocksize", "2m")]).await;
    let error = refused.err().unwrap().to_string();
    for named in ["fs1", "\"data\"", "4.00 MiB", "2.00 MiB", "raise maxblocksize"] {
        assert!(error.contains(named), "{named}: {error}");
    }
    assert_eq!(manager.closed.load(SeqCst), 1, "its session is not left to its lease");
    let (manager, mounted) = mount(&[("pagepool", "64m"), ("maxblocksize", "4m")]).await;
    mounted.unwrap();
    assert_eq!(manager.closed.load(SeqCst), 0);
}

/// Once a second, as is the default, would take a minute.
#[tokio::test]
async fn a_mount_renews_its_lease_as_often_as_the_tunable_says() {
    let (manager, mounted) = mount(&[("pagepool", "64m"), ("leaseRenewInterval", "100ms")]).await;
    let _mounted = mounted.unwrap();
    until("60 renewals", || manager.renewals.load(SeqCst) >= 60).await;
}

#[tokio::test]
async fn a_session_whose_end_is_asked_for_twice_has_ended_well() {
    for loses_close in [false, true] {
        let (manager, mounted) = mount_by(&[("pagepool", "64m")], loses_close).await;
        mounted.unwrap().shutdown(Instant::now() + Duration::from_secs(60)).await.unwrap();
        assert_eq!(manager.closed.load(SeqCst), 1 + u64::from(loses_close));
    }
}
