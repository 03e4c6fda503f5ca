//! Groups that have lost blocks for good, on record: so many of their pdisks were given up that too few strips were left. The blocks
//! are named by the extents of files; which of them can be read all the same, or are written anew since, their servers say. So a
//! record stays until all blocks of its group have been looked at and are whole.

use std::collections::BTreeMap;

use base::{Epoch, GroupId, PoolId, StripSet};
use serde::{Deserialize, Serialize};
use wire::mgr::LostBlocks;

use crate::{
    keys::{self, Key, ReadError},
    store::{BadRecord, Read, Record, open_record, prefix_end},
};

/// `L POOL GROUP`: too few strips of the group were left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LossRecord {
    /// The strips that were never lost.
    pub left: StripSet,
    /// The map version in which the last pdisk of it was given up.
    pub since: Epoch,
}

impl Record for LossRecord {
    const NAME: &'static str = "loss";
    const VERSION: u8 = 1;
}

/// The groups on record.
pub type Losses = BTreeMap<(PoolId, GroupId), LossRecord>;

/// What was found in each pool.
pub type Counted = BTreeMap<PoolId, LostBlocks>;

/// `L POOL GROUP`
pub(crate) fn loss_key(pool: PoolId, group: GroupId) -> Vec<u8> {
    Key::new(b'L').u32(pool.0).u32(group.0).done()
}

/// All of them.
pub(crate) fn load(from: &dyn Read) -> Result<Losses, ReadError> {
    let mut losses = Losses::new();
    keys::walk(from, b"L", &prefix_end(b"L"), |key, value| {
        let (place, record) = open(key, value)?;
        losses.insert(place, record);
        Ok(true)
    })?;
    Ok(losses)
}

/// One of them.
pub(crate) fn open(key: &[u8], value: &[u8]) -> Result<((PoolId, GroupId), LossRecord), BadRecord> {
    let record = open_record(key, value)?;
    let number = |at: usize| {
        let bytes = key.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).unwrap_or_default()
    };
    Ok(((PoolId(number(1)), GroupId(number(5))), record))
}
