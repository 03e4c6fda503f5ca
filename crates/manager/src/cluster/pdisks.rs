//! Which pdisks count.
//!
//! ```text
//!            lease lapsed, silent, set aside, behind the record
//!   Ok ─────────────────────────────────────────────► Missing ──► Returning (its server is here)
//!   ▲                                                    ▲            │  │
//!   └────────────── caught up ──────────────────────────┼────────────┘  │
//!                                                        └── lapsed ─────┘      any ──► Failed
//! ```
//! What is missing returns only when all that was under way on it is over.
//! The last copies are never given up: while some group would be left with fewer than K `Ok` members,
//! a pdisk stays `Ok` although it is gone, and writes wait for it, until an administrator gives it up. A pdisk that came back behind its
//! record is the exception: it holds old content, so counting it would be worse than being unavailable.

use std::{collections::BTreeSet, time::Duration};

use base::{Epoch, NodeId, PdiskId};
use wire::{
    map::PdiskState,
    mgr::{LogMark, PdiskReport, ProcessIdent},
};

use super::{Cluster, Step, code::needed};

/// A silent pdisk whose server is alive stays out for this many leases.
const SILENT_LEASES: u32 = 6;

/// Whether the log of a pdisk that is named still has everything that was recorded of it.
fn contains(recorded: &LogMark, report: &PdiskReport) -> bool {
    match recorded {
        // Nothing is known: a new pdisk, or a manager that was restored from a dump.
        LogMark { position: 0, .. } => true,
        // Recorded by a version that knew positions only.
        LogMark { position, digest: 0 } => report.log.position >= *position,
        recorded => report.proved.as_ref() == Some(recorded),
    }
}

impl Cluster {
    /// What is on record of pdisks' logs.
    pub(super) fn log_marks(&self, pdisks: &[PdiskId]) -> Vec<LogMark> {
        pdisks.iter().map(|id| self.disks.get(id).map(|disk| disk.record.log).unwrap_or_default()).collect()
    }

    pub(super) fn set_state(&mut self, id: PdiskId, state: PdiskState, why: &str, step: &mut Step) {
        let epoch = self.bump();
        if let Some(entry) = self.map.pdisks.iter_mut().find(|entry| entry.id == id) {
            step.notes.push(format!("{} ({id}) is {}: {why}, {epoch}", entry.name, state.name()));
            entry.state = state;
            entry.changed = epoch;
        }
    }

    /// A server names a pdisk it serves from now on.
    pub(super) fn register_pdisk(
        &mut self,
        node: NodeId,
        process: &ProcessIdent,
        report: PdiskReport,
        now: Duration,
        step: &mut Step,
    ) {
        let Some(disk) = self.disks.get_mut(&report.id) else { return };
        let record = &mut disk.record;
        // The same life may register again only from the process that lives it.
        let same_life = record.incarnation == report.incarnation && record.process == *process;
        let behind =
            !contains(&record.log, &report) || record.incarnation >= report.incarnation && !same_life;
        record.incarnation = record.incarnation.max(report.incarnation);
        record.process = process.clone();
        record.log = report.log;
        record.capacity = report.capacity;
        record.free = report.free;
        step.put(crate::keys::pdisk_key(report.id), record);
        disk.stored = now;
        disk.changed = false;
        disk.reported = Some(now);
        disk.server = Some(node);
        disk.registered = now;
        disk.set_aside = disk.set_aside.filter(|_| same_life);
        disk.oldest = Duration::ZERO;
        disk.failed = report.failed;
        disk.silent = None;
        disk.held_off = None;
        if let Some(entry) = self.map.pdisks.iter_mut().find(|entry| entry.id == report.id) {
            entry.incarnation = report.incarnation;
            entry.capacity = report.capacity;
            if behind && entry.state.written() {
                self.set_state(report.id, PdiskState::Missing, "came back behind its record", step);
            }
        }
        // Of an earlier life nothing is under way any more, and this one begins with this map.
        let acked = if same_life { Epoch(0) } else { self.map.epoch };
        self.disks.entry(report.id).or_default().acked = acked;
    }

    /// A client says that a pdisk does not answer. A dead server is found by its lease; this is for a
    /// pdisk that stays silent while its server is alive.
    pub(super) fn silent(&mut self, id: PdiskId, now: Duration, step: &mut Step) {
        let lease = self.lease;
        let Some(disk) = self.disks.get_mut(&id) else { return };
        let first = match disk.silent {
            Some((first, last)) if now <= last + lease => first,
            _ => now,
        };
        disk.silent = Some((first, now));
        if now >= first + lease {
            disk.silent = None;
            disk.held_off = Some(now + lease * SILENT_LEASES);
            let name = self.map.pdisk_called(id);
            step.notes.push(format!("{name} is silent although its server is alive"));
        }
    }

    /// Whether every group keeps K `Ok` members without this pdisk. `all`: also of pools that have no
    /// redundancy. Otherwise these hold nobody up: their strips are out of reach as long as their pdisk is,
    /// nothing of them changes meanwhile, and the other pools on it go on.
    pub(super) fn can_lose(&self, id: PdiskId, all: bool) -> bool {
        let ok: BTreeSet<PdiskId> = self
            .map
            .pdisks
            .iter()
            .filter(|p| p.state == PdiskState::Ok && p.id != id)
            .map(|p| p.id)
            .collect();
        self.map.pools.iter().all(|pool| {
            let needed = needed(pool);
            if !all && needed == usize::from(pool.width) && self.map.pools.len() > 1 {
                return true;
            }
            let groups = pool.table.chunks_exact(usize::from(pool.width.max(1)));
            groups
                .filter(|group| group.contains(&id))
                .all(|group| group.iter().filter(|member| ok.contains(member)).count() >= needed)
        })
    }

    /// Whether a pdisk is out of reach: nobody serves it, it failed, or it does not answer. Nobody is declared gone while a manager
    /// that has just started waits for all to be heard.
    pub(super) fn is_away(&self, id: PdiskId, now: Duration) -> bool {
        self.disks.get(&id).is_none_or(|disk| {
            let gone = disk.server.is_none() && now > self.grace_until;
            gone || disk.is_held_off() || disk.failed
        })
    }

    /// Moves every pdisk to the state that its server's and its own condition ask for.
    pub(super) fn settle_pdisks(&mut self, now: Duration, step: &mut Step) {
        self.settle_set_aside(now, step);
        let ids: Vec<PdiskId> = self.map.pdisks.iter().map(|p| p.id).collect();
        for id in ids {
            let (Some(entry), Some(disk)) = (self.map.pdisk(id), self.disks.get_mut(&id)) else { continue };
            disk.held_off = disk.held_off.filter(|&until| now < until);
            // What was under way when it ceased to count is over: it could be taken for new, and be missed by catch-up.
            let over = disk.acked >= entry.changed;
            let here = disk.server.is_some_and(|_| disk.reported.is_some()) && !disk.is_held_off() && over;
            let failed = disk.failed;
            let away = self.is_away(id, now);
            match entry.state {
                PdiskState::Failed => {}
                PdiskState::Missing if failed => {
                    self.set_state(id, PdiskState::Failed, "its server says so", step)
                }
                PdiskState::Missing if here => self.set_state(id, PdiskState::Returning, "is back", step),
                PdiskState::Missing => {}
                PdiskState::Ok | PdiskState::Returning if !away => {}
                PdiskState::Ok if !self.can_lose(id, false) => {} // one of the last copies: writes wait for it
                _ if failed => self.set_state(id, PdiskState::Failed, "its server says so", step),
                _ => self.set_state(id, PdiskState::Missing, "is gone", step),
            }
        }
    }
}
