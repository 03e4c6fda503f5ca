//! Loads of a block that are under way.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::error::Errno;

/// Others waiting for the same load, and its outcome.
#[derive(Default)]
pub(crate) struct LoadWait {
    pub done: OnceLock<Result<(), Errno>>,
    pub notify: Notify,
}

/// Units on their way from the pdisks. Those that are written or dropped meanwhile are `poisoned`: what
/// arrives for them is old and must not enter the block.
pub(super) struct Load {
    pub id: u64,
    pub units: Vec<std::ops::Range<u32>>,
    pub poisoned: Vec<std::ops::Range<u32>>,
    pub wait: Arc<LoadWait>,
}

/// `range` without `holes`.
pub(super) fn subtract(
    range: std::ops::Range<u32>,
    holes: &[std::ops::Range<u32>],
) -> Vec<std::ops::Range<u32>> {
    let mut rest = vec![range];
    for hole in holes {
        rest = rest
            .into_iter()
            .flat_map(|r| [r.start..r.end.min(hole.start), r.start.max(hole.end)..r.end])
            .filter(|r| r.start < r.end)
            .collect();
    }
    rest
}
