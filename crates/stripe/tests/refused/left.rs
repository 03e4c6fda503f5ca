//! What a failed write left of a stripe: discarded before the next one, and forgotten with the inode.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use base::{FsId, Grant, InodeNo, PdiskId, StripeId, Version};
use bytes::Bytes;
use net::BoxFuture;
use stripe::{Fault, IoConfig, NsdCall, NsdTransport, SessionCell, StripeIo};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use wire::{
    map::PdiskState,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::StripRefusal,
};

use super::{one_pdisk, unit, view};

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

/// The second pdisk does not answer prepares, and the first one refuses the first version; or it does not answer discards, and
/// refuses that itself.
struct Hangs {
    at_discards: bool,
    asked: Arc<Notify>,
}

impl NsdTransport for Hangs {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let second = call.request.pdisk() == PdiskId(2);
        let answer = match &call.request {
            NsdRequest::Discard { .. } if second && self.at_discards => {
                self.asked.notify_one();
                return Box::pin(std::future::pending());
            }
            NsdRequest::Prepare { .. } if second && !self.at_discards => {
                return Box::pin(std::future::pending());
            }
            NsdRequest::Prepare { strip, .. }
                if strip.info.version.seq == 1 && second == self.at_discards =>
            {
                NsdReply::Refused(NsdRefusal::Strip(StripRefusal::Malformed))
            }
            NsdRequest::Discard { items, .. } | NsdRequest::Adopt { items, .. } => {
                NsdReply::Outcomes(vec![Ok(()); items.len()])
            }
            _ => NsdReply::Done,
        };
        Box::pin(async move {
            match answer {
                NsdReply::Refused(refusal) => Err(Fault::Refused(refusal)),
                answer => Ok((answer, Bytes::new())),
            }
        })
    }
}

/// Neither with what is under way to it nor with what is to be discarded there.
#[tokio::test]
async fn a_pdisk_that_goes_missing_is_not_waited_for_before_the_next_write() {
    for at_discards in [false, true] {
        let asked = Arc::<Notify>::default();
        let (map, views) = watch::channel(view(&[PdiskState::Ok; 2]));
        let (long, enough) = (Duration::from_secs(3600), Duration::from_secs(60));
        let config = IoConfig { deadline: long, attempt: long, ..IoConfig::default() };
        let server = Arc::new(Hangs { at_discards, asked: Arc::clone(&asked) });
        let io = StripeIo::new(server, views, SessionCell::default(), Arc::new(()), config);
        let version = |seq| Version { grant: Grant(1), seq };
        let stripe = StripeId::default();
        io.write(unit(stripe, version(1))).await.unwrap_err();
        let writing = tokio::spawn({
            let io = io.clone();
            async move { io.write(unit(stripe, version(2))).await }
        });
        if at_discards {
            timeout(enough, asked.notified()).await.expect("nothing is discarded");
        }
        map.send_replace(view(&[PdiskState::Ok, PdiskState::Missing]));
        let written = timeout(enough, writing).await;
        written.expect("it waits for a pdisk that is missing").unwrap().unwrap();
    }
}

/// There is no room for the first version. What discards it is carried out when the answer has been given up, and again at any later time.
struct Full {
    prepared: Mutex<Vec<Version>>,
    discarded: Mutex<Vec<Version>>,
}

impl NsdTransport for Full {
    fn call(&self, call: NsdCall) -> BoxFuture<'static, Result<(NsdReply, Bytes), Fault>> {
        let answer = match &call.request {
            NsdRequest::Prepare { strip, .. } => {
                let mut prepared = self.prepared.lock().unwrap();
                prepared.push(strip.info.version);
                match prepared.len() {
                    1 => Err(Fault::Refused(NsdRefusal::Strip(StripRefusal::NoSpace))),
                    _ => Ok((NsdReply::Done, Bytes::new())),
                }
            }
            NsdRequest::Discard { items, .. } => {
                let mut discarded = self.discarded.lock().unwrap();
                discarded.extend(items.iter().map(|(_, version)| version));
                match discarded.len() {
                    1 => Err(Fault::Timeout),
                    _ => Ok((NsdReply::Outcomes(vec![Ok(()); items.len()]), Bytes::new())),
                }
            }
            _ => Ok((NsdReply::Done, Bytes::new())),
        };
        Box::pin(async move { answer })
    }
}

#[tokio::test]
async fn what_is_written_when_there_is_room_no_late_discard_removes() {
    let server = Arc::new(Full { prepared: Mutex::default(), discarded: Mutex::default() });
    let (_keep, views) = watch::channel(view(&[PdiskState::Ok]));
    let io = StripeIo::new(server.clone(), views, SessionCell::default(), Arc::new(()), IoConfig::default());
    let seq = AtomicU64::new(1);
    let next = || Version { grant: Grant(1), seq: seq.fetch_add(1, SeqCst) };
    io.write_when_room(unit(StripeId::default(), next()), &next).await.unwrap();
    let written = *server.prepared.lock().unwrap().last().unwrap();
    let discarded = server.discarded.lock().unwrap().clone();
    assert!(discarded.len() > 1 && !discarded.contains(&written), "{written}: {discarded:?}");
}
