//! Strips that the disk does not give: whoever reads one has found it.

#![allow(clippy::unwrap_used)] // tests

use std::{sync::Arc, time::Duration};

use base::PdiskId;
use nsd::Server;
use pdisk::{FaultPlan, FileKind, Trace, TraceEvent};

use crate::common::*;

/// A cluster with a block of which a strip with data is on the second node's pdisk, and nobody reads but the test.
struct Story {
    cluster: Cluster,
    client: Client,
    block: u64,
    trace: Trace,
}

async fn story() -> Story {
    let trace = Trace::default();
    let faults = FaultPlan::default().traced(&trace);
    let cluster = Cluster::start_on("2+1p", 256 << 10, 3, 1, Some(faults)).await;
    cluster.no_scrub();
    let mut client = cluster.patient_client(|endpoint| Arc::new(stripe::NetTransport::new(endpoint)));
    cluster.seen().await;
    for block in 0..16 {
        client.put(block, content(block, 64)).await;
    }
    client.adopt_all().await;
    let view = client.io.view();
    let members = |block: u64| view.members(POOL, view.pool(POOL).unwrap().group_of(stripe(block)));
    let block = (0..16).find(|block| members(*block)[..2].contains(&PdiskId(2))).unwrap();
    trace.take();
    Story { cluster, client, block, trace }
}

impl Story {
    fn server(&self) -> &Server {
        &self.cluster.nodes[1].as_ref().unwrap().server
    }

    /// What is written to data files since it was last asked, bytes.
    fn written(&self) -> usize {
        let data = |event: TraceEvent| match event {
            TraceEvent::Write { file: FileKind::Data, bytes, .. } => bytes.len(),
            _ => 0,
        };
        self.trace.take().into_iter().map(data).sum()
    }

    async fn read(&self) {
        assert!(self.client.read(self.block).await == content(self.block, 64));
    }
}

/// No CRC was wrong, so the reader complains of nothing: the server has seen the error itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strip_with_an_unreadable_sector_is_made_anew_after_one_read() {
    let story = story().await;
    assert!(story.cluster.io.change_faults(&"eio on=read file=data path=pdisk2/".parse().unwrap()));
    story.read().await;
    let repair = || story.server().status().repair;
    wait(|| repair().repaired + repair().sound + repair().failed == 1).await;
    assert_eq!((repair().found, repair().repaired), (1, 1), "{:?}", repair());
    assert_eq!(story.written(), 128 << 10, "the strip is stored anew");
    assert!(story.cluster.io.change_faults(&FaultPlan::default()));
    story.cluster.prove(story.block, Some(&content(story.block, 64))).await;
}

/// What the disk refuses once and then gives is no damage, and is not called repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strip_that_reads_well_again_is_left_as_it_is() {
    let story = story().await;
    assert!(story.cluster.io.change_faults(&"eio on=read file=data path=pdisk2/ times=1".parse().unwrap()));
    story.read().await;
    let repair = || story.server().status().repair;
    wait(|| repair().repaired + repair().sound + repair().failed == 1).await;
    assert_eq!((repair().found, repair().sound, repair().repaired), (1, 1, 0), "{:?}", repair());
    assert_eq!(story.written(), 0);
    story.cluster.prove(story.block, Some(&content(story.block, 64))).await;
}

/// A way to several disks is lost for a while, and with it more strips of a stripe than parity makes good. Their bytes are what they were: nothing is
/// recorded, and when the way is there again all is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strips_that_nobody_else_has_are_not_given_up_for_an_error_that_passes() {
    let story = story().await;
    let faults = "eio on=read file=data path=pdisk1/; eio on=read file=data path=pdisk2/; eio on=read file=data path=pdisk3/";
    assert!(story.cluster.io.change_faults(&faults.parse().unwrap()));
    let each = || story.cluster.nodes.iter().flatten().map(|node| node.server.status().repair);
    let lost = async {
        wait(|| each().map(|repair| repair.found).sum::<u64>() > 1).await;
        // They are tried more than once.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(each().map(|repair| repair.repaired + repair.sound).sum::<u64>(), 0);
        assert!(story.cluster.io.change_faults(&FaultPlan::default()));
    };
    let (_perhaps, ()) = tokio::join!(story.client.try_read(story.block), lost);
    story.read().await;
    wait(|| each().all(|repair| repair.queued == 0)).await;
    assert!(each().all(|repair| repair.repaired == 0 && repair.sound <= repair.found));
    assert_eq!(story.written(), 0);
    story.cluster.prove(story.block, Some(&content(story.block, 64))).await;
}
