//! Which builds there are, as far as this manager knows, and the level of the store. What follows from it is in `versions.rs`.

use std::collections::BTreeMap;

use base::{NodeId, SessionId};
use wire::version::{Build, LEVEL_FIRST};

use crate::{
    keys::{self, BuildRecord, FormatRecord, ReadError},
    store::{Read, open_record, prefix_end},
};

/// What is known of builds.
#[derive(Debug, Default)]
pub struct Builds {
    /// What the store says of itself: its version is the cluster's level.
    pub(super) format: Option<FormatRecord>,
    /// Of those who have a session.
    pub(super) sessions: BTreeMap<SessionId, Build>,
    /// As the nodes' servers had them last; kept from [`LEVEL_BUILDS_KEPT`] on.
    pub(super) nodes: BTreeMap<NodeId, Build>,
}

impl Builds {
    /// From what is stored.
    pub fn load(from: &dyn Read) -> Result<Builds, ReadError> {
        let mut nodes = BTreeMap::new();
        keys::walk(from, b"c", &prefix_end(b"c"), |key, value| {
            let node = NodeId(key.last_chunk().copied().map(u32::from_be_bytes).unwrap_or_default());
            nodes.insert(node, open_record::<BuildRecord>(key, value)?.build);
            Ok(true)
        })?;
        Ok(Builds { format: keys::read(from, &keys::format_key())?, sessions: BTreeMap::new(), nodes })
    }

    /// The cluster's level.
    pub fn level(&self) -> u16 {
        self.format.as_ref().and_then(|format| format.version.try_into().ok()).unwrap_or(LEVEL_FIRST)
    }
}
