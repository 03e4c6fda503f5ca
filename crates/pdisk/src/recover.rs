//! Opening: the newest whole checkpoint, then the log behind it, record by record, with the same code
//! that applied the records in life. Pure but for reads: the crash tests run it on images in memory.
//! Nothing is written; the free-space map is derived from what the index uses.

use std::path::Path;

use base::{AlignedBuf, StripId, Version, units::UNIT};
use bytes::Bytes;
use wire::mgr::LogMark;

use crate::{
    checkpoint::{self, Head, Slot},
    crcmap::CrcMap,
    deletes::RecentDeletes,
    error::PdiskError,
    files::Label,
    index::{Index, Misfit},
    log::{Group, LogPoint, ReadAt, Ring},
    record::Record,
    space::{Overlap, Space},
};

/// What recovery reads from.
pub(crate) struct Image<'a> {
    pub label: &'a Label,
    pub log: (&'a dyn ReadAt, &'a Path),
    pub data: &'a dyn ReadAt,
    pub crc: (&'a dyn ReadAt, &'a Path),
    pub index: [(&'a dyn ReadAt, &'a Path); 2],
}

/// The state of a pdisk as its files tell it.
pub(crate) struct Recovered {
    pub index: Index,
    pub crcs: CrcMap,
    pub space: Space,
    /// The last record.
    pub rsn: u64,
    /// The log's end: where the next group goes.
    pub head: LogPoint,
    /// The checkpoint it started from, and its slot.
    pub checkpoint: (usize, Head),
    /// Ends of groups that are known: what the checkpoint remembered, and all behind it.
    pub marks: Vec<LogMark>,
    /// Where the log must be kept from.
    pub tail: u64,
    pub replayed_bytes: u64,
    /// Those behind the checkpoint.
    pub deletes: RecentDeletes,
    pub damage: Damage,
}

/// What was found damaged at open and survived: everything else is an error.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Damage {
    /// Versions whose bytes in the log are damaged; the strips count as lost.
    pub strips: Vec<(StripId, Version)>,
    /// The newest checkpoint was damaged in this way; the older one was used.
    pub checkpoint: Option<String>,
    /// Groups of the log that needed their second copy.
    pub log_groups: u64,
}

impl Damage {
    /// Nothing was damaged.
    pub fn is_none(&self) -> bool {
        *self == Damage::default()
    }

    /// The strips that are lost, each once.
    pub fn strip_ids(&self) -> Vec<StripId> {
        let mut ids: Vec<StripId> = self.strips.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

pub(crate) fn recover(image: &Image<'_>) -> Result<Recovered, PdiskError> {
    let label = image.label;
    let mut damage = Damage::default();
    let (slot, head, mut index, tail, mut marks) = newest_checkpoint(image, &mut damage)?;
    marks.retain(|mark| mark.position < head.log.position);
    marks.push(head.log.mark());
    let mut crcs = read_crcs(image)?;
    let mut replay = Replay::new(image, head.rsn, u64::MAX);
    replay.damage = damage;
    let at = replay.run(&head, &mut index, &mut crcs, |group| marks.push(group.after.mark()))?;
    let Replay { rsn, damage, deletes, .. } = replay;
    let space = Space::from_used(label.units, index.used_extents()).map_err(|Overlap(unit)| {
        PdiskError::damaged(image.index[slot].1, format!("two strips claim unit {unit} of the data file"))
    })?;
    Ok(Recovered {
        index,
        crcs,
        space,
        rsn,
        head: at,
        checkpoint: (slot, head),
        marks,
        tail,
        replayed_bytes: at.position - head.log.position,
        deletes,
        damage,
    })
}

/// The log applied to an index, record by record.
pub(crate) struct Replay<'a> {
    label: &'a Label,
    log: (&'a dyn ReadAt, &'a Path),
    data: &'a dyn ReadAt,
    /// The last record applied.
    pub rsn: u64,
    until: u64,
    pub damage: Damage,
    pub deletes: RecentDeletes,
}

impl<'a> Replay<'a> {
    /// Goes on after record `rsn`, up to record `until`.
    pub fn new(image: &Image<'a>, rsn: u64, until: u64) -> Replay<'a> {
        let (damage, deletes) = (Damage::default(), RecentDeletes::default());
        Replay { label: image.label, log: image.log, data: image.data, rsn, until, damage, deletes }
    }

    /// Applies what is behind the checkpoint `head`. Returns the end of the log.
    pub fn run(
        &mut self,
        head: &Head,
        index: &mut Index,
        crcs: &mut CrcMap,
        mut see: impl FnMut(&Group),
    ) -> Result<LogPoint, PdiskError> {
        let (log, path) = self.log;
        let mut ring = Ring::new(log, path, self.label.uuid, self.label.log_bytes);
        let mut at = head.log;
        let mut next = ring.group(at, self.label.units);
        while self.rsn < self.until {
            let Some(group) = next? else { break };
            next = ring.group(group.after, self.label.units);
            if matches!(next, Ok(None)) && !group.is_in(self.data) {
                break; // The last one, and not whole: it never happened, and nobody has had an answer.
            }
            self.damage.log_groups += u64::from(!group.whole);
            see(&group);
            for (n, (record, payload, intact)) in (group.first_rsn..).zip(group.records) {
                if n > self.rsn && n <= self.until {
                    self.apply(n, &record, &payload, intact, index, crcs)?;
                }
            }
            at = group.after;
            if at.position - head.log.position > self.label.log_bytes {
                return Err(PdiskError::damaged(path, "the log is longer than its ring"));
            }
        }
        Ok(at)
    }

    fn apply(
        &mut self,
        n: u64,
        record: &Record,
        payload: &Bytes,
        intact: bool,
        index: &mut Index,
        crcs: &mut CrcMap,
    ) -> Result<(), PdiskError> {
        if n != self.rsn + 1 {
            return Err(PdiskError::damaged(self.log.1, format!("record {n} follows {}", self.rsn)));
        }
        index.apply(n, record, payload, crcs).map_err(|Misfit(what)| {
            PdiskError::damaged(self.log.1, format!("record {n} does not fit: {what}"))
        })?;
        self.rsn = n;
        if let Record::Delete(delete) = record {
            self.deletes.note(*delete);
        }
        if let (Record::Put(put), false) = (record, intact) {
            index.mark_damaged(put.strip, put.info.version);
            self.damage.strips.push((put.strip, put.info.version));
        }
        Ok(())
    }
}

pub(crate) fn newest_checkpoint(
    image: &Image<'_>,
    damage: &mut Damage,
) -> Result<(usize, Head, Index, u64, Vec<LogMark>), PdiskError> {
    let mut heads = Vec::new();
    for (slot, (file, path)) in image.index.iter().enumerate() {
        if let Slot::Head(head, marks) = checkpoint::read_head(*file, path, &image.label.uuid)? {
            heads.push((slot, head, marks));
        }
    }
    heads.sort_by_key(|(_, h, _)| std::cmp::Reverse(h.number));
    for (i, (slot, head, marks)) in heads.iter().enumerate() {
        match checkpoint::read_strips(image.index[*slot].0, head, image.label.units) {
            Ok(index) => {
                // What another open falls back to must stay replayable.
                let tail = heads.get(i + 1).map_or(head.log.position, |(_, older, _)| older.log.position);
                return Ok((*slot, *head, index, tail, marks.clone()));
            }
            Err(what) => {
                damage.checkpoint.get_or_insert(what);
            }
        }
    }
    Err(PdiskError::damaged(image.index[0].1, "neither checkpoint is whole"))
}

pub(crate) fn read_crcs(image: &Image<'_>) -> Result<CrcMap, PdiskError> {
    let (file, path) = image.crc;
    let mut crcs = CrcMap::new(image.label.units);
    // No more than there is: the crash tests open small pdisks a hundred thousand times.
    let step = crcs.pages().clamp(1, (1 << 20) / UNIT);
    let mut buf = AlignedBuf::zeroed(step * UNIT);
    for first in (0..crcs.pages()).step_by(step) {
        buf.set_len(step.min(crcs.pages() - first) * UNIT);
        if let Err(e) = file.read_at(&mut buf, (first * UNIT) as u64) {
            // Entries that cannot be read do not verify: their strips turn out lost when read.
            tracing::warn!(file = %path.display(), error = %e, "unreadable CRCs");
            continue;
        }
        crcs.load(first, &buf);
    }
    Ok(crcs)
}
