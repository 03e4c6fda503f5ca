//! A disk that does not answer for some time, below a server that has another one.

use std::time::{Duration, Instant};

use base::{BlockIndex, Grant, OpClass, PdiskId, StripId, StripIndex, StripeId};
use pdisk::FaultPlan;
use stripe::Fault;
use wire::nsd::{NsdRefusal, NsdReply, NsdRequest};

use crate::common::{Client, Cluster, FS, INODE};

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
    let (client, long) = (cluster.client(), Duration::from_secs(20));
    cluster.seen().await;
    cluster.manager.in_force().await;
    let before = cluster.manager.view().epoch;
    let plan: FaultPlan = "delay 4s on=write file=log path=pdisk1/ times=1".parse().unwrap();
    assert!(cluster.io.change_faults(&plan));
    let under_way = seal(1, 2);
    // By the client's clock or by the server's.
    let sent = call(&client, under_way, Duration::from_millis(300)).await;
    assert!(matches!(sent, Err(Fault::Timeout | Fault::Unreachable(_))), "{sent:?}");
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
    assert!(matches!(late, Err(Fault::Timeout | Fault::Refused(NsdRefusal::NoMap))), "{late:?}");
    let server = &cluster.nodes[0].as_ref().unwrap().server;
    let in_force = server.membership().in_force().borrow().clone();
    assert_eq!(in_force.admitting, epoch);
    assert_eq!((in_force.of(PdiskId(1)) <= before, in_force.of(PdiskId(2))), (true, epoch));
    assert!(server.membership().lease_valid());
    // It answers: the fence has settled, and what was under way is there for all who ask now.
    cluster.manager.in_force().await;
    let Ok(NsdReply::States { states, .. }) = call(&client, seal(1, 1), long).await else { panic!() };
    assert_eq!(states[0].sealed_below, Grant(2), "{states:?}");
}
