//! What one strip is, as pdisks keep it and as messages carry it.
//!
//! A strip has at most two versions side by side: the *adopted* one, which readers see, and one
//! *prepared* beside it. The rules for both are DESIGN "Stripe versions"; [`StripRefusal`] names them.

use base::{Grant, GroupId, PoolId, StripId, StripSet, Version};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest strip in bytes: a 16 MiB block in one strip (replication).
pub const STRIP_LEN_MAX: u32 = 16 << 20;

/// What is known of one version of a strip, without its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionInfo {
    /// The version.
    pub version: Version,
    /// All strips of the stripe that this version writes, this one included.
    pub touched: StripSet,
    /// Stored bytes, a multiple of 4 KiB; what lies beyond reads as zeros.
    pub len: u32,
    /// Parity only: for each of the K data strips the version it covers; `None` is a data strip that
    /// was never written (zeros). Empty on data strips and in replicated pools.
    pub covers: Vec<Option<Version>>,
}

/// State of one strip on one pdisk.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StripState {
    /// Which strip.
    pub strip: StripId,
    /// The pool of its file.
    pub pool: PoolId,
    /// The group its stripe maps to in that pool.
    pub group: GroupId,
    /// The version that readers see.
    pub adopted: Option<VersionInfo>,
    /// The version stored beside it.
    pub prepared: Option<VersionInfo>,
    /// Versions with a grant below this are refused, durably.
    pub sealed_below: Grant,
    /// The adopted version's record or bytes are damaged here: an erasure that wants repair.
    pub lost: bool,
}

/// A byte range of a strip, 4 KiB aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Range {
    /// First byte, a multiple of 4 KiB.
    pub offset: u32,
    /// Bytes, a multiple of 4 KiB, above 0.
    pub len: u32,
}

impl Range {
    /// One past the last byte.
    pub fn end(self) -> u32 {
        self.offset.saturating_add(self.len)
    }
    /// 4 KiB units in it.
    pub fn units(self) -> usize {
        self.len as usize / base::units::UNIT
    }
}

/// Store a new version of one strip beside the adopted one. The payload is the ranges' bytes, one
/// after the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrepareStrip {
    /// Which strip.
    pub strip: StripId,
    /// The pool of its file.
    pub pool: PoolId,
    /// The group its stripe maps to.
    pub group: GroupId,
    /// The new version, its touched set, the strip's new length, what parity covers.
    pub info: VersionInfo,
    /// `None`: the ranges are the whole strip (one range from 0 to `info.len`, or none if that is 0).
    /// `Some`: they replace parts of this version, which the strip must hold after `adopt`.
    pub base: Option<Version>,
    /// First adopt this prepared version (the writer knows it to be complete).
    pub adopt: Option<Version>,
    /// Where the payload goes: rising, not overlapping, within `info.len`.
    pub ranges: Vec<Range>,
    /// CRC-32C of each 4 KiB unit of the payload, in payload order.
    pub crcs: Vec<u32>,
}

/// Which version a read wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ReadVersion {
    /// The adopted one.
    #[default]
    Adopted,
    /// Exactly this one, adopted or prepared: the writer's own complete version, or the resolver's.
    Exactly(Version),
}

/// Read ranges of one strip.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadStrip {
    /// Which strip.
    pub strip: StripId,
    /// Which of its versions.
    pub version: ReadVersion,
    /// What to read; parts beyond the stored length come back shortened (they are zeros).
    pub ranges: Vec<Range>,
}

/// The answer to [`ReadStrip`]; the payload is the bytes of all ranges that exist.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StripRead {
    /// The version the bytes belong to.
    pub info: VersionInfo,
    /// The ranges cut to the stored length; those with nothing left are absent.
    pub ranges: Vec<Range>,
    /// CRC-32C of each 4 KiB unit of the payload, as the writer computed it.
    pub crcs: Vec<u32>,
}

/// Remove the strips of a file's blocks `first..=last` whose version is at most `highest`, on one
/// pdisk, prepared ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeleteStrips {
    /// The file system.
    pub fs: base::FsId,
    /// The file.
    pub inode: base::InodeNo,
    /// First block.
    pub first: base::BlockIndex,
    /// Last block, inclusive.
    pub last: base::BlockIndex,
    /// Later versions stay.
    pub highest: Version,
}

/// Why a pdisk refuses or fails an operation on one strip. The refusals are protocol rules, not faults.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub enum StripRefusal {
    /// The strip (or the version asked for) is not here.
    #[error("absent")]
    Absent,
    /// The version's grant is below the strip's seal.
    #[error("sealed below {below}")]
    Sealed {
        /// The seal.
        below: Grant,
    },
    /// A newer or equal version is here already.
    #[error("not newer than {present}")]
    NotNewer {
        /// What is here.
        present: Version,
    },
    /// The range prepare's base is not what the strip holds.
    #[error("base version differs: here is {present:?}")]
    WrongBase {
        /// What is here, after the adoption the request carried.
        present: Option<Version>,
    },
    /// Another version is prepared and was not named for adoption.
    #[error("{prepared} is prepared and not adopted")]
    PreparedExists {
        /// The prepared version.
        prepared: Version,
    },
    /// The bytes or the record are damaged: an erasure.
    #[error("damaged on disk")]
    Lost,
    /// The request contradicts itself (ranges, lengths, counts of CRCs).
    #[error("malformed request")]
    Malformed,
    /// A payload unit does not match its CRC.
    #[error("payload CRC mismatch at unit {unit}")]
    BadCrc {
        /// Index of the unit in the payload.
        unit: u32,
    },
    /// No space for the version.
    #[error("pdisk full")]
    NoSpace,
    /// The pdisk has failed (latched).
    #[error("pdisk failed")]
    Failed,
}
