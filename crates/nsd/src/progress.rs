//! How far the work on the strips of one pdisk is: written by who does it, read by the reports to the manager.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use base::Epoch;
use parking_lot::Mutex;
use wire::mgr::{FILLED_MAX, Filled, PdiskReport};

/// Of catch-up and of moves to the pdisk.
#[derive(Default)]
pub struct Progress {
    /// It has caught up as of this epoch.
    pub caught_up: Mutex<Option<Epoch>>,
    /// Moves that are made here in full.
    pub filled: Mutex<BTreeSet<Filled>>,
    /// Bytes made anew.
    pub moved: AtomicU64,
    /// Why a strip waits; empty if none does.
    pub waits: Mutex<String>,
}

impl Progress {
    /// Says it in a report.
    pub(crate) fn report(&self, report: PdiskReport) -> PdiskReport {
        PdiskReport {
            caught_up: *self.caught_up.lock(),
            filled: self.filled.lock().iter().take(FILLED_MAX).copied().collect(),
            moved: self.moved.load(Ordering::Relaxed),
            waits: self.waits.lock().clone(),
            ..report
        }
    }
}
