//! The key of an operation, and what is counted of one.

use serde::{Deserialize, Serialize};

/// Bytes that weigh as much as one operation.
const BYTES_OF_WEIGHT: u64 = 128 << 10;

/// What is known of an operation. Fields that do not apply are 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Key {
    /// The session that asked.
    pub session: u64,
    /// The file.
    pub inode: u64,
    /// Its file system.
    pub fs: u32,
    /// The user that asked.
    pub user: u32,
    /// Where: of strips the pdisk, of files what [`offset_octave`] makes of the offset.
    pub place: u32,
    /// What: a number of the set, below 128.
    pub op: u8,
    /// A number of the set.
    pub class: u8,
    /// log2 of its bytes, plus one; 0 without bytes.
    pub size: u8,
}

/// The size octave of so many bytes, as in [`Key::size`].
pub fn size_octave(bytes: u64) -> u8 {
    (u64::BITS - bytes.leading_zeros()) as u8
}

/// The octave of an offset, as in [`Key::place`]: 0 stands for none, so that the beginning of a file is 1.
pub fn offset_octave(offset: Option<u64>) -> u32 {
    offset.map_or(0, |offset| u32::from(size_octave(offset)) + 1)
}

/// What was counted of one key.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Operations.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies together, nanoseconds.
    pub ns: u64,
    /// (bucket, operations) by rising bucket, only buckets with operations.
    pub latency: Vec<(u8, u64)>,
}

impl Amount {
    /// Adds what was counted elsewhere of the same.
    pub fn merge(&mut self, other: &Amount) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.ns = self.ns.saturating_add(other.ns);
        for (bucket, n) in &other.latency {
            match self.latency.binary_search_by_key(bucket, |l| l.0) {
                Ok(at) => self.latency[at].1 += n,
                Err(at) => self.latency.insert(at, (*bucket, *n)),
            }
        }
    }

    /// What decides who is kept apart: operations, and 128 KiB each.
    pub fn weight(&self) -> u64 {
        weight(self.ops, self.bytes)
    }
}

/// See [`Amount::weight`].
pub(super) fn weight(ops: u64, bytes: u64) -> u64 {
    ops + bytes / BYTES_OF_WEIGHT
}
