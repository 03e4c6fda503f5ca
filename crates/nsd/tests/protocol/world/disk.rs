//! A pdisk of the model: what it holds of its one strip, changed by the rules that pdisks ship with.

use base::{Grant, StripSet, Version};
use pdisk::rules::{self, Action};
use wire::strip::{StripState, VersionInfo};

use super::{Content, GROUP, POOL};

/// One version of a strip, and what its bytes are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Stored {
    pub(super) version: Version,
    pub(super) touched: u32,
    pub(super) covers: Vec<Option<Version>>,
    pub(super) content: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Disk {
    pub(super) adopted: Option<Stored>,
    pub(super) prepared: Option<Stored>,
    pub(super) sealed: u64,
    /// Something was stored in this life of it.
    pub(super) touched: bool,
    /// What its catch-up waits for.
    pub(super) held: Option<Version>,
}

impl Disk {
    pub(super) fn state(&self) -> StripState {
        let info = |s: &Stored| VersionInfo {
            version: s.version,
            touched: StripSet(s.touched),
            len: 4096,
            covers: s.covers.clone(),
        };
        StripState {
            adopted: self.adopted.as_ref().map(info),
            prepared: self.prepared.as_ref().map(info),
            sealed_below: Grant(self.sealed),
            pool: POOL,
            group: GROUP,
            ..StripState::default()
        }
    }
    pub(super) fn adopt(&mut self, version: Version) {
        if rules::adopt(&self.state(), version) == Ok(Action::Apply) {
            self.adopted = self.prepared.take();
        }
    }
    pub(super) fn discard(&mut self, version: Version) {
        if rules::discard(&self.state(), version) == Ok(Action::Apply) {
            self.prepared = None;
        }
    }
    pub(super) fn install(&mut self, stored: Stored, anything: bool) {
        if anything || rules::install(&self.state(), stored.version) == Ok(Action::Apply) {
            self.prepared.take_if(|p| p.version <= stored.version);
            self.adopted = Some(stored);
        }
    }
}
