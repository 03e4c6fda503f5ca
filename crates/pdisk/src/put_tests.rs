//! What is promised of the log to an operation that is under way.

use std::time::{Duration, Instant};

use base::{
    BlockIndex, ClusterId, FsId, Grant, GroupId, InodeNo, PdiskId, PoolId, StripId, StripIndex, StripSet,
    StripeId,
};
use wire::strip::{Range, VersionInfo};

use super::*;
use crate::{CreateOptions, FaultPlan, IoConfig, IoNode, OpenOptions, Pdisk};

const VERSION: Version = Version { grant: Grant(1), seq: 1 };

fn strip(block: u64) -> StripId {
    StripeId { fs: FsId(1), inode: InodeNo(1), block: BlockIndex(block) }.strip(StripIndex(0))
}

fn whole(block: u64, units: usize) -> (PrepareStrip, Bytes) {
    let bytes = Bytes::from(vec![block as u8; units * UNIT]);
    let range = Range { offset: 0, len: bytes.len() as u32 };
    let request = PrepareStrip {
        strip: strip(block),
        pool: PoolId(1),
        group: GroupId(1),
        info: VersionInfo { version: VERSION, touched: StripSet(1), len: range.len, covers: vec![] },
        base: None,
        adopt: None,
        ranges: vec![range],
        crcs: unit_crcs(&bytes).collect(),
    };
    (request, bytes)
}

/// On a disk whose free space lies in single units the record is larger than was thought.
#[tokio::test]
async fn as_much_of_the_log_is_promised_as_the_record_takes() {
    const UNITS: u64 = 1024;
    let dir = tempfile::tempdir().unwrap();
    let (cluster, number) = (ClusterId(1), PdiskId(1));
    Pdisk::create(dir.path(), CreateOptions::new(cluster, number, UNITS * UNIT as u64)).unwrap();
    let node = IoNode::start(IoConfig { fault: Some(FaultPlan::default()), ..IoConfig::default() }).unwrap();
    let options = OpenOptions { reserve: Some(0), ..OpenOptions::new(cluster, number) };
    let (pdisk, _) = Pdisk::open(dir.path(), options, &node).unwrap();
    let stored = pdisk.prepare((0..UNITS).map(|block| whole(block, 1)).collect()).await;
    assert!(stored.iter().all(Result::is_ok));
    let every_second = (0..UNITS).step_by(2).map(|block| (strip(block), VERSION)).collect();
    assert!(pdisk.discard(every_second).await.iter().all(Result::is_ok));
    assert!(node.change_faults(&"delay 600s on=write file=data".parse().unwrap()));
    let large = whole(UNITS, UNITS as usize / 2);
    let meta = 4 * large.0.crcs.len() + 8 * (UNITS as usize / 2);
    let under_way = tokio::spawn({
        let pdisk = pdisk.clone();
        async move { pdisk.prepare(vec![large]).await }
    });
    let end = Instant::now() + Duration::from_secs(60);
    while node.held_up() == 0 {
        assert!(Instant::now() < end, "nothing gets to the disk");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let promised = pdisk.store().lock().reserved_log;
    node.let_go();
    assert_eq!(under_way.await.unwrap(), [Ok(())]);
    assert!(promised >= log_cost(meta, 0), "{promised} bytes for {}", log_cost(meta, 0));
    assert_eq!(pdisk.store().lock().reserved_log, 0);
}
