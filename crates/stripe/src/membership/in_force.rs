//! Under which versions of the map work is under way here.

use std::collections::BTreeMap;

use base::{Epoch, PdiskId};

/// Which map versions are in force here: at a server, at each of its pdisks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InForce {
    /// Requests are admitted under this version.
    pub admitting: Epoch,
    /// Servers: nothing admitted under a version older than this one is under way at the pdisk.
    pub pdisks: BTreeMap<PdiskId, Epoch>,
}

impl InForce {
    /// What is in force at a pdisk.
    pub fn of(&self, pdisk: PdiskId) -> Epoch {
        self.pdisks.get(&pdisk).copied().unwrap_or(self.admitting)
    }
    /// Whether nothing older is under way at any pdisk.
    pub fn everywhere(&self) -> bool {
        self.pdisks.values().all(|epoch| *epoch >= self.admitting)
    }
}
