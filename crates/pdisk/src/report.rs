//! What a pdisk tells of itself: how it was opened, its figures, what a verification found.

use std::{path::Path, time::Duration};

use base::{
    Incarnation, PdiskId, StripId, Version,
    events::{self, Severity},
    units::human_size,
};
use wire::mgr::LogMark;

use crate::recover::Damage;

/// What an open found.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// This life of the pdisk, durable.
    pub incarnation: Incarnation,
    /// The end of the log as it was found: before the group that this open wrote.
    pub recovered: LogMark,
    /// Bytes of log ever written and durable, the group of this open included.
    pub log_position: u64,
    /// Strips held, tombstones of seals included.
    pub strips: u64,
    /// Time from the call to the pdisk being ready.
    pub recovery: Duration,
    /// Bytes of log behind the checkpoint.
    pub log_bytes_replayed: u64,
    /// What was damaged and survived.
    pub damaged: Damage,
}

impl OpenReport {
    /// For people, after the pdisk's name and place: how often it was opened, how long recovery took, what was damaged.
    pub fn sentence(&self) -> String {
        let mut text = format!(
            "is open for the {}. time: {} strips, {} of log replayed, ready after {:.3} s",
            self.incarnation.0,
            self.strips,
            human_size(self.log_bytes_replayed),
            self.recovery.as_secs_f64(),
        );
        let Damage { strips, checkpoint, log_groups } = &self.damaged;
        if !self.damaged.is_none() {
            let groups = format!("{log_groups} log groups read from their second copy");
            text += &format!("; damaged: {} strips lost, {groups}", strips.len());
            checkpoint.iter().for_each(|why| text += &format!(", the older checkpoint was used: {why}"));
        }
        text
    }

    /// As an event.
    pub(crate) fn tell(&self, pdisk: PdiskId, dir: &Path) {
        let severity = if self.damaged.is_none() { Severity::Info } else { Severity::Warning };
        let text = format!("{pdisk} in {} {}", dir.display(), self.sentence());
        events::raise(severity, "pdisk_opened", &pdisk.to_string(), &text);
    }
}

/// Figures of one pdisk, as of now.
#[derive(Clone, Debug, Default)]
pub struct PdiskStats {
    /// Bytes for strips.
    pub capacity: u64,
    /// Bytes not used by any version, those about to come back included.
    pub free: u64,
    /// Bytes of the free ones that are kept for new versions of strips that exist.
    pub reserved: u64,
    /// Runs the free space is in, and bytes of the longest.
    pub free_runs: u64,
    /// Bytes of the longest free run.
    pub free_run_max: u64,
    /// Strips held, tombstones of seals included.
    pub strips: u64,
    /// Strips with a prepared version.
    pub prepared: u64,
    /// Seals of strips that have no version.
    pub tombstones: u64,
    /// Memory that the index takes, an upper bound, and what it may take.
    pub index_bytes: u64,
    /// What it may take.
    pub index_max: u64,
    /// Bytes of small versions that are not at their place yet.
    pub pending_bytes: u64,
    /// Bytes of log in use.
    pub log_bytes: u64,
    /// Bytes of log there are.
    pub log_capacity: u64,
    /// This life of the pdisk.
    pub incarnation: Incarnation,
    /// Bytes of log ever written and durable.
    pub log_position: u64,
    /// Checkpoints made since the pdisk was created.
    pub checkpoints: u64,
    /// The host's file system has no room for what it must write, if so: it tries again by itself.
    pub short: Option<String>,
    /// Why it latched itself failed, if it did.
    pub failed: Option<String>,
}

impl PdiskStats {
    /// Bytes that new strips may still take: what is free and not reserved; less when the index comes near its
    /// bound, and none while the log fills up that nothing can relieve.
    pub fn room(&self) -> u64 {
        let free = self.free.saturating_sub(self.reserved);
        if self.short.is_some() && self.log_bytes > self.log_capacity / 2 {
            return 0;
        }
        let (left, near) =
            (new_strips_below(self.index_max).saturating_sub(self.index_bytes), self.index_max / 8);
        if left >= near { free } else { (u128::from(free) * u128::from(left) / u128::from(near)) as u64 }
    }
}

/// Index memory from which on new strips are refused: the rest is for those that exist.
pub(crate) fn new_strips_below(index_max: u64) -> u64 {
    index_max - index_max / 16
}

/// What a verification of all strips found.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Strips looked at.
    pub strips: u64,
    /// Bytes read and compared.
    pub bytes: u64,
    /// Versions that are damaged.
    pub damaged: Vec<(StripId, Version)>,
}
