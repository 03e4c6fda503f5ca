//! Dump: what the files of a pdisk say, item by item: label, checkpoints, the records of the log, strips
//! as an open would find them. For people and scripts that look for what went wrong.

use std::{fmt, path::Path};

use base::{GroupId, PdiskId, PoolId, StripId, StripSet, Version, units::UNIT};
use serde::Serialize;

use super::offline::Offline;
use crate::{
    checkpoint::{self, Slot},
    error::PdiskError,
    log::Group,
    recover::{Damage, Replay, newest_checkpoint, read_crcs},
    strip::Ver,
};

/// One thing the files say.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "item", rename_all = "snake_case")]
pub enum DumpItem {
    /// Whose pdisk it is.
    Label {
        /// Its cluster.
        cluster: String,
        /// Its number.
        pdisk: PdiskId,
        /// Bytes of the data file.
        data_bytes: u64,
        /// Bytes of the log's ring.
        log_bytes: u64,
    },
    /// The header of a checkpoint.
    Checkpoint {
        /// 0 or 1.
        slot: usize,
        /// Its number; newer ones are higher.
        number: u64,
        /// Strips in it.
        strips: u64,
        /// The last record it contains.
        record: u64,
        /// Where replay starts.
        log_position: u64,
        /// The pdisk's incarnation then.
        incarnation: u64,
    },
    /// A group of the log behind the newest whole checkpoint.
    Group {
        /// Where it starts.
        position: u64,
        /// Its bytes.
        bytes: u64,
        /// Its number.
        sequence: u64,
        /// Both copies and all payload match.
        whole: bool,
    },
    /// A record of the group named before it.
    Record {
        /// Its number.
        number: u64,
        /// What it says.
        text: String,
    },
    /// What was wrong with the files; `verify` says more.
    Damage {
        /// What.
        text: String,
    },
    /// A strip as an open would find it.
    Strip {
        /// Its identity.
        strip: StripId,
        /// Its pool.
        pool: PoolId,
        /// Its group.
        group: GroupId,
        /// Versions with a lower grant are refused.
        sealed_below: u64,
        /// The adopted version.
        adopted: Option<DumpVersion>,
        /// The prepared version.
        prepared: Option<DumpVersion>,
    },
}

/// One version of a strip.
#[derive(Clone, Debug, Serialize)]
pub struct DumpVersion {
    /// Which.
    pub version: Version,
    /// The strips it touches.
    pub touched: StripSet,
    /// Its bytes.
    pub bytes: u32,
    /// The record that made it.
    pub record: u64,
    /// Start and count of units in the data file; a start of -1 is a hole.
    pub extents: Vec<(i64, u32)>,
    /// Units that are in the index or the log and not yet at their place.
    pub pending_units: Vec<u32>,
    /// It is known to be damaged.
    pub damaged: bool,
}

/// Gives every item of the pdisk in `dir`, which nobody may have open, to `see`.
pub fn dump(dir: &Path, log_dir: Option<&Path>, see: &mut dyn FnMut(DumpItem)) -> Result<(), PdiskError> {
    let offline = Offline::open(dir, log_dir)?;
    let (image, label) = (offline.image(), &offline.label);
    see(DumpItem::Label {
        cluster: label.cluster.to_string(),
        pdisk: label.pdisk,
        data_bytes: label.units * UNIT as u64,
        log_bytes: label.log_bytes,
    });
    for (slot, (file, path)) in image.index.iter().enumerate() {
        if let Slot::Head(head, _) = checkpoint::read_head(*file, path, &label.uuid)? {
            see(DumpItem::Checkpoint {
                slot,
                number: head.number,
                strips: head.strips,
                record: head.rsn,
                log_position: head.log.position,
                incarnation: head.incarnation.0,
            });
        }
    }
    let mut damage = Damage::default();
    let (_, head, mut index, ..) = newest_checkpoint(&image, &mut damage)?;
    if let Some(text) = damage.checkpoint {
        see(DumpItem::Damage { text });
    }
    let mut replay = Replay::new(&image, head.rsn, u64::MAX);
    let mut crcs = read_crcs(&image)?;
    let replayed = replay.run(&head, &mut index, &mut crcs, |group| show_group(group, see));
    if let Err(e) = replayed {
        see(DumpItem::Damage { text: e.to_string() });
    }
    for (strip, s) in index.iter_after(None) {
        see(DumpItem::Strip {
            strip,
            pool: s.pool,
            group: s.group,
            sealed_below: s.sealed_below.0,
            adopted: s.adopted.as_ref().map(version),
            prepared: s.prepared.as_ref().map(version),
        });
    }
    Ok(())
}

fn show_group(group: &Group, see: &mut dyn FnMut(DumpItem)) {
    let bytes = group.after.position - group.position;
    let (position, sequence, whole) = (group.position, group.sequence, group.whole);
    see(DumpItem::Group { position, bytes, sequence, whole });
    for (number, (record, ..)) in (group.first_rsn..).zip(&group.records) {
        see(DumpItem::Record { number, text: format!("{record:?}") });
    }
}

fn version(v: &Ver) -> DumpVersion {
    DumpVersion {
        version: v.version,
        touched: v.touched,
        bytes: v.len,
        record: v.rsn,
        extents: v.map.iter().map(|e| (if e.is_hole() { -1 } else { e.start() as i64 }, e.count())).collect(),
        pending_units: v.pending.iter().map(|p| p.unit).collect(),
        damaged: v.damaged,
    }
}

impl fmt::Display for DumpItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpItem::Label { cluster, pdisk, data_bytes, log_bytes } => {
                write!(f, "{pdisk} of cluster {cluster}: data {data_bytes} bytes, log {log_bytes} bytes")
            }
            DumpItem::Checkpoint { slot, number, strips, record, log_position, incarnation } => write!(
                f,
                "index.{slot}: checkpoint {number}, {strips} strips, record {record}, log position \
                 {log_position}, incarnation {incarnation}"
            ),
            DumpItem::Group { position, bytes, sequence, whole } => {
                let damaged = if *whole { "" } else { ", damaged" };
                write!(f, "group {sequence} at {position}, {bytes} bytes{damaged}")
            }
            DumpItem::Record { number, text } => write!(f, "  record {number}: {text}"),
            DumpItem::Damage { text } => write!(f, "damage: {text}"),
            DumpItem::Strip { strip, pool, group, sealed_below, adopted, prepared } => {
                write!(f, "{strip} {pool} {group}")?;
                if *sealed_below > 0 {
                    write!(f, " sealed below {sealed_below}")?;
                }
                for (name, v) in [("adopted", adopted), ("prepared", prepared)] {
                    if let Some(v) = v {
                        write!(f, " {name} {v}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for DumpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} bytes at", self.version, self.bytes)?;
        for (start, count) in &self.extents {
            if *start < 0 { write!(f, " hole+{count}")? } else { write!(f, " {start}+{count}")? }
        }
        if !self.pending_units.is_empty() {
            write!(f, ", {} units pending", self.pending_units.len())?;
        }
        f.write_str(if self.damaged { ", damaged" } else { "" })
    }
}
