//! A disk that does not answer for some time, below a server that has another one.

use std::time::{Duration, Instant};

use base::{BlockIndex, Grant, OpClass, PdiskId, StripId, StripIndex, StripSet, StripeId, Version};
use bytes::Bytes;
use pdisk::FaultPlan;
use stripe::Fault;
use wire::{
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{PrepareStrip, Range, ReadStrip, ReadVersion, VersionInfo},
};

use crate::common::{Client, Cluster, FS, INODE, POOL, content, stripe, wait};

fn strip() -> StripId {
    StripeId { fs: FS, inode: INODE, block: BlockIndex(7) }.strip(StripIndex(0))
}

async fn call(client: &Client, request: NsdRequest, patience: Duration) -> Result<NsdReply, Fault> {
    let deadline = Instant::now() + patience;
    let answer = client.io.call(request.pdisk(), request, Vec::new(), OpClass::Write, deadline).await;
    answer.map(|(reply, _)| reply)
}

/// Changes the disk: nothing is answered before that is durable.
fn seal(pdisk: u32, below: u64) -> NsdRequest {
    NsdRequest::Seal { pdisk: PdiskId(pdisk), strips: vec![strip()], below: Grant(below) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_holds_up_neither_the_map_nor_the_disk_beside_it() {
    let cluster = Cluster::start_on("2+1p", 256 << 10, 3, 2, Some(FaultPlan::default())).await;
    let (client, long) = (cluster.client(), Duration::from_secs(60));
    cluster.seen().await;
    cluster.manager.in_force().await;
    let before = cluster.manager.view().epoch;
    let plan: FaultPlan = "delay 600s on=write file=log path=pdisk1/ times=1".parse().unwrap();
    assert!(cluster.io.change_faults(&plan));
    // On a busy machine its time may be over before it is at the disk.
    let end = Instant::now() + long;
    while cluster.io.held_up() == 0 {
        assert!(Instant::now() < end, "nothing gets to the disk");
        // By the client's clock or by the server's.
        let sent = call(&client, seal(1, 2), Duration::from_millis(300)).await;
        assert!(matches!(sent, Err(Fault::Timeout | Fault::Unreachable(_))), "{sent:?}");
    }
    // A fence, and nobody on this server waits for it but the disk that hangs.
    let dead = cluster.manager.client();
    cluster.manager.fence(dead);
    cluster.seen().await;
    let epoch = cluster.manager.view().epoch;
    let beside = call(&client, seal(2, 2), long).await;
    assert!(matches!(beside, Ok(NsdReply::States { .. })), "{beside:?}");
    let state = |pdisk| NsdRequest::State { pdisk: PdiskId(pdisk), strips: vec![strip()] };
    let listed = call(&client, state(2), long).await;
    assert!(matches!(listed, Ok(NsdReply::States { .. })), "{listed:?}");
    // What is on the one that hangs is not known before that has ended.
    let late = call(&client, state(1), Duration::from_millis(500)).await;
    let none = |fault: &Fault| {
        matches!(fault, Fault::Timeout | Fault::Unreachable(_) | Fault::Refused(NsdRefusal::NoMap))
    };
    assert!(late.as_ref().is_err_and(none), "{late:?}");
    let server = &cluster.nodes[0].as_ref().unwrap().server;
    // It is told a moment after the first request is admitted.
    let in_force = || server.membership().in_force().borrow().clone();
    wait(|| in_force().of(PdiskId(2)) == epoch).await;
    assert_eq!((in_force().admitting, in_force().of(PdiskId(1)) <= before), (epoch, true));
    assert!(server.membership().lease_valid());
    // It answers: the fence has settled, and what was under way is there for all who ask now.
    assert_eq!(cluster.io.held_up(), 1);
    cluster.io.let_go();
    cluster.manager.in_force().await;
    let Ok(NsdReply::States { states, .. }) = call(&client, seal(1, 1), long).await else { panic!() };
    assert_eq!(states[0].sealed_below, Grant(2), "{states:?}");
}

/// Who asks gives up, and asks again: no more requests wait for it than its share, and others get theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_requests_wait_for_it_than_its_share() {
    let cluster = Cluster::start_on("2+1p", 256 << 10, 3, 2, Some(FaultPlan::default())).await;
    let (client, long) = (cluster.client(), Duration::from_secs(60));
    cluster.seen().await;
    assert!(cluster.io.change_faults(&"delay 600s on=write file=log path=pdisk1/ times=1".parse().unwrap()));
    let server = &cluster.nodes[0].as_ref().unwrap().server;
    let (end, mut full) = (Instant::now() + 2 * long, 0);
    while full < 2 {
        assert!(Instant::now() < end, "they do not get to the disk: {:?}", server.requests_of(PdiskId(1)));
        let mut round = tokio::task::JoinSet::new();
        for _ in 0..400 {
            let io = client.io.clone();
            round.spawn(async move {
                let deadline = Instant::now() + Duration::from_millis(500);
                io.call(PdiskId(1), seal(1, 2), Vec::new(), OpClass::Write, deadline).await
            });
        }
        assert!(round.join_all().await.iter().all(Result::is_err));
        let (now, most) = server.requests_of(PdiskId(1));
        assert!(now <= most, "{now} of {most}");
        full += u32::from(now == most);
    }
    let beside = call(&client, seal(2, 2), long).await;
    assert!(matches!(beside, Ok(NsdReply::States { .. })), "{beside:?}");
    cluster.io.let_go();
    wait(|| server.requests_of(PdiskId(1)).0 == 0).await;
    let answered = call(&client, seal(1, 2), long).await;
    assert!(matches!(answered, Ok(NsdReply::States { .. })), "{answered:?}");
}

/// A damaged strip on the disk that hangs is being repaired, and one on the disk beside it is repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_holds_up_no_repair_on_the_disk_beside_it() {
    let cluster = Cluster::start_on("2+1p", 256 << 10, 3, 2, Some(FaultPlan::default())).await;
    let mut client = cluster.client();
    cluster.seen().await;
    for block in 0..16 {
        client.put(block, content(block, 64)).await;
    }
    client.adopt_all().await;
    let view = client.io.view();
    let on = |pdisk: u32| {
        let members = |block: &u64| view.members(POOL, view.pool(POOL).unwrap().group_of(stripe(*block)));
        let at = |block: u64| members(&block).iter().position(|m| *m == PdiskId(pdisk)).map(|i| (block, i));
        let (block, index) = (0..16).find_map(at).unwrap();
        stripe(block).strip(StripIndex(index as u8))
    };
    let lost = async |pdisk: u32| {
        let state = cluster.nodes[0].as_ref().unwrap().pdisks[pdisk as usize - 1].state(vec![on(pdisk)]);
        state.await.unwrap()[0].lost
    };
    let plan = "eio on=read file=data path=pdisk1/; eio on=read file=data path=pdisk2/ times=1; \
                delay 600s on=write file=data path=pdisk1/";
    assert!(cluster.io.change_faults(&plan.parse().unwrap()));
    for pdisk in [1, 2] {
        let suspect = NsdRequest::Suspect { pdisk: PdiskId(pdisk), strip: on(pdisk) };
        assert_eq!(call(&client, suspect, Duration::from_secs(60)).await.unwrap(), NsdReply::Done);
    }
    wait(|| cluster.nodes[0].as_ref().unwrap().server.status().repair.repaired == 1).await;
    assert_eq!((lost(1).await, lost(2).await), (true, false));
}

/// What is written to the disk that hangs takes its own share of the memory for requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_holds_up_no_write_to_the_disk_beside_it() {
    // Strips of 2 MiB: twelve of them are all that may be under way.
    let cluster = Cluster::start_on("2+1p", 4 << 20, 3, 2, Some(FaultPlan::default())).await;
    let client = cluster.client();
    cluster.seen().await;
    assert!(cluster.io.change_faults(&"delay 600s on=write file=data path=pdisk1/".parse().unwrap()));
    let bytes = content(1, 512);
    let prepare = |pdisk: u32, block: u64, seconds| {
        let group = client.io.view().pool(POOL).unwrap().group_of(stripe(block));
        let range = Range { offset: 0, len: bytes.len() as u32 };
        let strip = PrepareStrip {
            strip: stripe(block).strip(StripIndex(0)),
            pool: POOL,
            group,
            info: VersionInfo {
                version: Version { grant: client.grant, seq: 1 },
                touched: StripSet(7),
                len: range.len,
                covers: vec![],
            },
            base: None,
            adopt: None,
            ranges: vec![range],
            crcs: wire::crc::unit_crcs(&bytes).collect(),
        };
        let request = NsdRequest::Prepare { pdisk: PdiskId(pdisk), strip };
        let (io, payload) = (client.io.clone(), vec![Bytes::copy_from_slice(&bytes)]);
        async move {
            let deadline = Instant::now() + Duration::from_secs(seconds);
            io.call(PdiskId(pdisk), request, payload, OpClass::Write, deadline).await
        }
    };
    let hanging: Vec<_> = (0..24).map(|block| tokio::spawn(prepare(1, block, 600))).collect();
    let under_way = || cluster.nodes[0].as_ref().unwrap().endpoint.serving().len();
    wait(|| under_way() >= 6).await;
    for block in 24..30 {
        let written = prepare(2, block, 60).await;
        assert!(matches!(written, Ok((NsdReply::Done, _))), "{written:?}");
    }
    assert!(hanging.iter().all(|one| !one.is_finished()));
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}

/// What is read from the disk that hangs takes its own share of the memory for replies; beyond that its readers ask again. What
/// the server's cache has takes nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_bytes_are_read_at_once_than_its_share() {
    // Strips of 1 MiB, and room for 12 of them.
    let cluster = Cluster::start_on("2+1p", 2 << 20, 3, 2, Some(FaultPlan::default())).await;
    let (mut client, long) = (cluster.client(), Duration::from_secs(60));
    cluster.no_scrub();
    cluster.seen().await;
    for block in 0..16 {
        client.put(block, content(block, 512)).await;
    }
    client.adopt_all().await;
    let server = &cluster.nodes[0].as_ref().unwrap().server;
    let view = client.io.view();
    // Of the first, second, ... strip on that pdisk.
    let read = |pdisk: u32, nth: usize, patience: Duration| {
        let members = |block: u64| view.members(POOL, view.pool(POOL).unwrap().group_of(stripe(block)));
        let at =
            |block: u64| members(block)[..2].iter().position(|m| *m == PdiskId(pdisk)).map(|i| (block, i));
        let (block, index) = (0..16).filter_map(at).nth(nth).unwrap();
        let strip = stripe(block).strip(StripIndex(index as u8));
        let ranges = vec![Range { offset: 0, len: 1 << 20 }];
        let read = ReadStrip { strip, version: ReadVersion::Adopted, ranges };
        let (io, request) = (client.io.clone(), NsdRequest::Read { pdisk: PdiskId(pdisk), read });
        let expected = content(block, 512)[index << 20..][..1 << 20].to_vec();
        async move {
            let deadline = Instant::now() + patience;
            let answer = io.call(PdiskId(pdisk), request, Vec::new(), OpClass::Read, deadline).await;
            answer.map(|(_, payload)| assert!(payload[..] == expected[..]))
        }
    };
    for _ in 0..2 {
        read(1, 1, long).await.unwrap();
    }
    assert!(cluster.io.change_faults(&"delay 600s on=read file=data path=pdisk1/".parse().unwrap()));
    let end = Instant::now() + 2 * long;
    let mut full = 0;
    while full < 2 {
        assert!(Instant::now() < end, "they do not get to the disk: {:?}", server.requests_of(PdiskId(1)));
        let mut round = tokio::task::JoinSet::new();
        (0..36).for_each(|_| drop(round.spawn(read(1, 0, Duration::from_millis(500)))));
        read(1, 1, long).await.unwrap();
        assert!(round.join_all().await.iter().all(Result::is_err));
        let (now, _) = server.requests_of(PdiskId(1));
        assert!(now <= 12, "{now} MiB are read at once");
        full += u32::from(now == 12);
    }
    read(2, 0, long).await.unwrap();
    cluster.io.let_go();
    assert!(cluster.io.change_faults(&"delay 20ms on=read file=data path=pdisk1/".parse().unwrap()));
    let mut round = tokio::task::JoinSet::new();
    (0..36).for_each(|_| drop(round.spawn(read(1, 0, long))));
    assert!(round.join_all().await.iter().all(Result::is_ok));
    wait(|| server.requests_of(PdiskId(1)).0 == 0).await;
}
