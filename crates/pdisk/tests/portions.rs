//! What was written to the log goes to its place in portions: a commit that comes meanwhile waits for no more than one of them in the
//! disk's queue (docs/pdisk.md).
#![allow(clippy::unwrap_used)] // tests

mod common;

use std::collections::HashMap;

use common::*;
use pdisk::{CreateOptions, EngineChoice, FaultPlan, FileKind, IoConfig, IoNode, Pdisk, Trace, TraceEvent};
use wire::strip::ReadVersion;

/// Of a portion.
const WRITES_MAX: usize = 32;
const BYTES_MAX: usize = 1 << 20;

/// The most writes to the data file, and the most bytes of them, that were under way at once.
fn most_at_once(events: &[TraceEvent]) -> (usize, usize) {
    let (mut under_way, mut most) = (HashMap::new(), (0, 0));
    for event in events {
        match event {
            TraceEvent::Write { id, file: FileKind::Data, bytes, .. } => {
                under_way.insert(*id, bytes.len());
            }
            TraceEvent::Done { id, ok } => {
                assert!(ok);
                under_way.remove(id);
            }
            _ => {}
        }
        most = (under_way.len().max(most.0), under_way.values().sum::<usize>().max(most.1));
    }
    most
}

/// Small versions of neighbours, which go in few long writes, or of strips apart from each other, which go in many short ones.
/// Returned is what was under way at once when they went to their place.
async fn brought_to_their_place(strips: u64, units: usize, apart: bool) -> (usize, usize) {
    let (dir, trace) = (tempfile::tempdir().unwrap(), Trace::default());
    // So large that nothing is due before the pdisk is closed.
    let create = CreateOptions { log_size: Some(64 << 20), ..CreateOptions::new(CLUSTER, PDISK, 64 << 20) };
    Pdisk::create(dir.path(), create).unwrap();
    let plan = FaultPlan::default().traced(&trace);
    let config = IoConfig { engine: EngineChoice::Psync, fault: Some(plan), ..IoConfig::default() };
    let node = IoNode::start(config).unwrap();
    let (p, _) = open(dir.path(), &node);
    if apart {
        // What lies between them is written at once.
        for i in 0..strips {
            write(&p, strip(i), v(1, 1), &content(i, 40)).await;
        }
    }
    trace.take();
    // Each portion is there as a whole before the first of it is done.
    assert!(node.change_faults(&"delay 100ms on=write file=data".parse().unwrap()));
    for i in 0..strips {
        let bytes = content(1000 + i, units);
        let one = match apart {
            true => part(strip(i), v(1, 2), v(1, 1), 7, &bytes, 40),
            false => whole(strip(i), v(1, 2), &bytes),
        };
        prepare(&p, one).await.unwrap();
        adopt(&p, strip(i), v(1, 2)).await;
    }
    p.close().await.unwrap();
    let most = most_at_once(&trace.take());
    let (p, _) = open(dir.path(), &node);
    for i in 0..strips {
        let found = read(&p, strip(i), ReadVersion::Adopted).await.unwrap();
        let at = if apart { 7 * UNIT } else { 0 };
        assert!(found[at..at + units * UNIT] == content(1000 + i, units), "strip {i}");
    }
    most
}

#[tokio::test]
async fn small_versions_go_to_their_place_in_portions() {
    let (writes, bytes) = brought_to_their_place(48, 16, false).await;
    assert!(writes <= WRITES_MAX && bytes <= BYTES_MAX, "{writes} writes of {bytes} bytes at once");
    let (writes, bytes) = brought_to_their_place(96, 1, true).await;
    assert!(writes <= WRITES_MAX && bytes <= BYTES_MAX, "{writes} short writes of {bytes} bytes at once");
}
