//! What a writer knows of a block without its bytes.

use base::Version;
use wire::strip::StripState;

use crate::geometry::Geometry;

/// Versions of a block's strips and its stored length. Unknown and "holds nothing" are not the same:
/// `None` is unknown, [`Version::ZERO`] is a strip that was never written (all zeros).
/// A writer that passes unknown versions costs a question to the servers, never a byte.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockMeta {
    /// Version of each of the K data strips.
    pub data: Vec<Option<Version>>,
    /// Version of the parity strips, or of the copies.
    pub parity: Option<Version>,
    /// Stored bytes of the block, a multiple of 4 KiB: the end of the highest stored unit. A lower bound
    /// as long as versions are unknown.
    pub len: u32,
}

impl BlockMeta {
    /// Nothing known.
    pub fn unknown(k: usize) -> BlockMeta {
        BlockMeta { data: vec![None; k], parity: None, len: 0 }
    }
    /// A block that holds nothing.
    pub fn empty(k: usize) -> BlockMeta {
        BlockMeta { data: vec![Some(Version::ZERO); k], parity: Some(Version::ZERO), len: 0 }
    }
    /// Whether, as far as is known, nothing is stored of it anywhere.
    pub(crate) fn is_nothing(&self) -> bool {
        let never = |version: &Option<Version>| *version == Some(Version::ZERO);
        self.data.iter().all(never) && self.parity.is_none_or(|version| version == Version::ZERO)
    }
    /// Whether every version is known.
    pub fn is_complete(&self, k: usize) -> bool {
        self.data.len() == k && self.data.iter().all(Option::is_some) && self.parity.is_some()
    }
    /// Adds what another look at the same block told (both looks between two writes).
    pub fn merge(&mut self, other: &BlockMeta) {
        for (mine, theirs) in self.data.iter_mut().zip(&other.data) {
            *mine = (*mine).max(*theirs);
        }
        self.parity = self.parity.max(other.parity);
        self.len = self.len.max(other.len);
    }
    /// The data versions as parity records them.
    pub(crate) fn covers(&self) -> Vec<Option<Version>> {
        self.data.iter().map(|v| v.filter(|v| *v != Version::ZERO)).collect()
    }

    /// From the states of a stripe's strips, `None` where the pdisk was not asked or does not count.
    /// `current` says which of a strip's two versions is the current one (a complete version that is not
    /// adopted yet). Parity, where there is any, decides; without it the data strips speak for themselves.
    pub fn from_states(
        geometry: Geometry,
        states: &[Option<StripState>],
        current: impl Fn(usize) -> Option<Version>,
    ) -> BlockMeta {
        let k = geometry.k();
        let info = |i: usize| {
            let state = states.get(i)?.as_ref()?;
            let prepared = state.prepared.as_ref().filter(|p| current(i) == Some(p.version));
            prepared.or(state.adopted.as_ref())
        };
        let mut meta = BlockMeta::unknown(k);
        let reference = (if geometry.replicated() { 0 } else { k }..geometry.width())
            .filter_map(info)
            .max_by_key(|i| i.version);
        for i in 0..k {
            if let Some(found) = info(i) {
                meta.data[i] = Some(found.version);
                meta.len = meta.len.max(geometry.start(i) + found.len);
            } else if states.get(i).is_some_and(|s| s.as_ref().is_some_and(|s| !s.lost)) {
                meta.data[i] = Some(Version::ZERO);
            }
        }
        let Some(reference) = reference else {
            let asked = (k..geometry.width()).any(|i| states.get(i).is_some_and(Option::is_some));
            if asked && meta.data.iter().all(|v| *v == Some(Version::ZERO)) {
                meta.parity = Some(Version::ZERO);
            }
            return meta;
        };
        meta.parity = Some(reference.version);
        if geometry.replicated() {
            meta.data[0] = Some(reference.version);
            meta.len = reference.len;
            return meta;
        }
        for (i, covered) in reference.covers.iter().enumerate().take(k) {
            meta.data[i] = Some(covered.unwrap_or(Version::ZERO));
            let known = info(i).filter(|f| Some(f.version) == *covered);
            match (covered, known) {
                (None, _) | (_, Some(_)) => {}
                // Its length is not known: as long as the parity, at most.
                (Some(_), None) => meta.len = meta.len.max(geometry.start(i) + reference.len),
            }
        }
        meta
    }
}
