//! Which versions of a stripe's strips belong together.

use base::{StripIndex, StripSet, Version};
use wire::strip::ReadVersion;

use crate::{geometry::Geometry, meta::BlockMeta};

/// One version of a whole stripe: which versions of its strips belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeTarget {
    /// Version of the parity, or of the copies.
    pub version: Version,
    /// Version of each data strip; `None` was never written. Empty for copies.
    pub covers: Vec<Option<Version>>,
    /// Strips that `version` touches.
    pub touched: StripSet,
    /// Bytes of the longest strip, or more.
    pub len: u32,
}

impl StripeTarget {
    pub(crate) fn versions(&self, geometry: Geometry) -> Vec<ReadVersion> {
        let version = |i: StripIndex| match self.covers.get(usize::from(i.0)) {
            Some(Some(version)) => ReadVersion::Exactly(*version),
            _ => ReadVersion::Exactly(self.version),
        };
        geometry.all().map(version).collect()
    }
    pub(crate) fn meta(&self) -> BlockMeta {
        let data = if self.covers.is_empty() {
            vec![Some(self.version)]
        } else {
            self.covers.iter().map(|v| Some(v.unwrap_or(Version::ZERO))).collect()
        };
        BlockMeta { data, parity: Some(self.version), len: 0 }
    }
    /// The version strip `index` has in it; `None` if it was never written.
    pub fn version_of(&self, index: StripIndex) -> Option<Version> {
        match self.covers.get(usize::from(index.0)) {
            Some(version) => *version,
            None => Some(self.version),
        }
    }
}
