//! What a pdisk tells of itself: how it was opened, its figures, what a verification found.

use std::{path::Path, time::Duration};

use base::{
    Incarnation, PdiskId, StripId, Version,
    events::{self, Severity},
    units::human_size,
};

use crate::recover::Damage;

/// What an open found.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// This life of the pdisk, durable.
    pub incarnation: Incarnation,
    /// Bytes of log ever written and durable. It only grows; an old copy of the pdisk is behind.
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
    /// As an event: how long recovery took, and what was damaged.
    pub(crate) fn tell(&self, pdisk: PdiskId, dir: &Path) {
        let mut text = format!(
            "{pdisk} in {} is open for the {}. time: {} strips, {} of log replayed, ready after {:.3} s",
            dir.display(),
            self.incarnation.0,
            self.strips,
            human_size(self.log_bytes_replayed),
            self.recovery.as_secs_f64(),
        );
        let Damage { strips, checkpoint, log_groups } = &self.damaged;
        let mut severity = Severity::Info;
        if !self.damaged.is_none() {
            severity = Severity::Warning;
            let groups = format!("{log_groups} log groups read from their second copy");
            text += &format!("; damaged: {} strips lost, {groups}", strips.len());
            checkpoint.iter().for_each(|why| text += &format!(", the older checkpoint was used: {why}"));
        }
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
    /// Why it latched itself failed, if it did.
    pub failed: Option<String>,
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
