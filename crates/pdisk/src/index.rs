//! The index: every strip of the pdisk with its versions, by identity, by group, and those prepared.
//! It changes only by [`Index::apply`] (a log record) and [`Index::clean`] (bytes from the log have
//! reached their place). The same calls serve the running store and recovery.
//!
//! While a checkpoint walks over the index, a strip that is changed before the walk has reached it is
//! first saved as it was: the checkpoint is the state at one record, though the store runs on.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, RangeInclusive},
};

use base::{
    BlockIndex, Grant, GroupId, Incarnation, PoolId, StripId, StripIndex, StripeId, Version, units::UNIT,
};
use bytes::Bytes;
use wire::strip::DeleteStrips;

use crate::{
    crcmap::{CrcMap, Salt},
    extent::{Extent, released, unit_at},
    record::{Put, Record},
    strip::{Listed, Pending, Strip, Ver, encode_strip},
};

/// What a record did, besides changing the index.
#[derive(Default, Debug)]
pub(crate) struct Effects {
    /// Units that nothing refers to any more.
    pub freed: Vec<Extent>,
    /// Strips whose adopted version has pending units, with the record that made that version.
    pub to_clean: Vec<(StripId, u64)>,
    /// Strips that lost a version (delete).
    pub deleted: u64,
}

/// A record does not fit the state it is applied to: the log or the checkpoint is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misfit(pub &'static str);

struct Walk {
    /// The last strip written out.
    at: Option<StripId>,
    /// Strips changed before they were written out; `None`: was not there.
    saved: BTreeMap<StripId, Option<Strip>>,
}

/// All strips of a pdisk.
#[derive(Default)]
pub(crate) struct Index {
    strips: BTreeMap<StripId, Strip>,
    groups: BTreeSet<(PoolId, GroupId, StripId)>,
    prepared: BTreeSet<StripId>,
    pending_bytes: usize,
    memory: usize,
    /// Bytes of all strips in a checkpoint, an upper bound, but for those of pending units.
    encoded: usize,
    tombstones: usize,
    pub incarnation: Incarnation,
    walk: Option<Walk>,
}

impl Index {
    pub fn get(&self, strip: StripId) -> Option<&Strip> {
        self.strips.get(&strip)
    }
    pub fn len(&self) -> usize {
        self.strips.len()
    }
    pub fn prepared_count(&self) -> usize {
        self.prepared.len()
    }
    pub fn tombstones(&self) -> usize {
        self.tombstones
    }
    /// Bytes of pending units, an upper bound: those shared by two versions count twice.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }
    /// Bytes of memory that all strips take, an upper bound; those of pending units are apart.
    pub fn memory(&self) -> usize {
        self.memory
    }
    /// Bytes that all strips take in a checkpoint, an upper bound.
    pub fn checkpoint_bytes(&self) -> u64 {
        (self.encoded + self.pending_bytes) as u64
    }
    /// Strips after `after`, rising.
    pub fn iter_after(&self, after: Option<StripId>) -> impl Iterator<Item = (StripId, &Strip)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.strips.range((from, Bound::Unbounded)).map(|(id, s)| (*id, s))
    }
    /// Strips of a group after `after`, rising.
    pub fn group_after(
        &self,
        pool: PoolId,
        group: GroupId,
        after: Option<StripId>,
    ) -> impl Iterator<Item = (StripId, &Strip)> {
        let from = match after {
            Some(s) => Bound::Excluded((pool, group, s)),
            None => Bound::Included((pool, group, StripId::default())),
        };
        self.groups
            .range((from, Bound::Unbounded))
            .take_while(move |(p, g, _)| (*p, *g) == (pool, group))
            .filter_map(|(_, _, s)| Some((*s, self.strips.get(s)?)))
    }
    /// Strips with a prepared version after `after`, rising.
    pub fn prepared_after(&self, after: Option<StripId>) -> impl Iterator<Item = (StripId, &Strip)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.prepared.range((from, Bound::Unbounded)).filter_map(|s| Some((*s, self.strips.get(s)?)))
    }
    /// Every extent in use, once for each strip that uses it.
    pub fn used_extents(&self) -> Vec<Extent> {
        let mut used = Vec::with_capacity(self.strips.len());
        for s in self.strips.values() {
            used.extend(s.own_extents());
        }
        used
    }

    /// Strips with a prepared version that a delete leaves, and the last record of each.
    pub fn prepared_above(&self, d: &DeleteStrips) -> impl Iterator<Item = (StripId, u64)> {
        let prepared = strips_of(d).map(|strips| self.prepared.range(strips)).into_iter().flatten();
        let strips = prepared.filter_map(|id| Some((*id, self.strips.get(id)?)));
        let above = |s: &Strip| s.prepared.as_ref().is_some_and(|p| p.version > d.highest);
        strips.filter(move |(_, s)| above(s)).map(|(id, s)| (id, s.rsn))
    }

    /// The part of a delete that is of so many strips, or of one block: it, of how many it is about, and what is left.
    pub fn part_of_delete(
        &self,
        d: DeleteStrips,
        most: usize,
    ) -> (DeleteStrips, usize, Option<DeleteStrips>) {
        let (mut strips, mut last) = (0, d.last);
        for (id, _) in strips_of(&d).map(|ids| self.strips.range(ids)).into_iter().flatten() {
            if strips >= most && id.stripe.block > d.first {
                last = BlockIndex(id.stripe.block.0 - 1);
                break;
            }
            strips += 1;
        }
        let later = (last < d.last).then(|| DeleteStrips { first: BlockIndex(last.0 + 1), ..d });
        (DeleteStrips { last, ..d }, strips, later)
    }

    /// Applies the record with number `rsn`. `payload`: the bytes of its inline units.
    pub fn apply(
        &mut self,
        rsn: u64,
        record: &Record,
        payload: &Bytes,
        crcs: &mut CrcMap,
    ) -> Result<Effects, Misfit> {
        let mut effects = Effects::default();
        match record {
            Record::Open { incarnation } => {
                if *incarnation <= self.incarnation {
                    return Err(Misfit("incarnation does not grow"));
                }
                self.incarnation = *incarnation;
            }
            Record::Put(put) => {
                self.change(put.strip, rsn, &mut effects, |s| apply_put(s, rsn, put, payload))?
            }
            Record::Adopt { strip, version } => self.change(*strip, rsn, &mut effects, |s| {
                prepared_is(s, *version)?;
                s.adopt();
                Ok(())
            })?,
            Record::Discard { strip, version } => self.change(*strip, rsn, &mut effects, |s| {
                prepared_is(s, *version)?;
                s.prepared = None;
                Ok(())
            })?,
            Record::Seal { strip, below } => self.change(*strip, rsn, &mut effects, |s| {
                s.sealed_below = s.sealed_below.max(*below);
                Ok(())
            })?,
            Record::Lost { strip, version } => self.change(*strip, rsn, &mut effects, |s| {
                mark_damaged(s, *version).then_some(()).ok_or(Misfit("lost version is not here"))
            })?,
            Record::Delete(d) | Record::Remove(d) => {
                let there = strips_of(d).map(|strips| self.strips.range(strips)).into_iter().flatten();
                let ids: Vec<StripId> = there.map(|(id, _)| *id).collect();
                for id in ids {
                    let mut deleted = false;
                    self.change(id, rsn, &mut effects, |s| {
                        deleted |= s.adopted.take_if(|v| v.version <= d.highest).is_some();
                        deleted |= s.prepared.take_if(|v| v.version <= d.highest).is_some();
                        if s.versions().next().is_none() && s.sealed_below <= d.highest.grant {
                            s.sealed_below = Grant(0);
                        }
                        Ok(())
                    })?;
                    effects.deleted += u64::from(deleted);
                }
            }
        }
        if let Record::Put(put) = record
            && !put.inline
        {
            let salt = Salt::of(put.strip);
            for (unit, crc) in put.units() {
                let place = unit_at(&put.map, unit).ok_or(Misfit("written unit is a hole"))?;
                crcs.set(salt, unit, place, crc);
            }
        }
        Ok(effects)
    }

    /// The pending units `done` (unit, record number) of `strip` have reached their places durably.
    pub fn clean(&mut self, strip: StripId, done: &[(u32, u64)], crcs: &mut CrcMap) {
        let salt = Salt::of(strip);
        let Some(rsn) = self.get(strip).map(|s| s.rsn) else { return };
        let cleaned = self.change(strip, rsn, &mut Effects::default(), |s| {
            for v in s.adopted.iter_mut().chain(&mut s.prepared) {
                let map = &v.map;
                v.pending.retain(|p| {
                    let reached = done.binary_search(&(p.unit, p.rsn)).is_ok();
                    if reached && let Some(place) = unit_at(map, p.unit) {
                        crcs.set(salt, p.unit, place, p.crc);
                    }
                    !reached
                });
                if v.pending.is_empty() {
                    v.pending = Vec::new();
                }
            }
            Ok(())
        });
        debug_assert_eq!(cleaned, Ok(()));
    }

    /// Recovery found the bytes of this version damaged in the log.
    pub fn mark_damaged(&mut self, strip: StripId, version: Version) {
        if let Some(s) = self.strips.get_mut(&strip) {
            mark_damaged(s, version);
        }
    }

    /// Lets `f` change a strip, and brings up to date all that is derived from it.
    fn change(
        &mut self,
        id: StripId,
        rsn: u64,
        effects: &mut Effects,
        f: impl FnOnce(&mut Strip) -> Result<(), Misfit>,
    ) -> Result<(), Misfit> {
        if let Some(walk) = &mut self.walk
            && walk.at.is_none_or(|at| id > at)
        {
            walk.saved.entry(id).or_insert_with(|| self.strips.get(&id).cloned());
        }
        let strip = self.strips.entry(id).or_default();
        let (before, was, pending) = (strip.extents(), strip.listed(), strip.pending_bytes());
        let (memory, encoded) = (strip.memory(), strip.encoded_max());
        let result = f(strip);
        if result.is_ok() {
            strip.rsn = rsn;
        }
        effects.freed.extend(released(&before, &strip.extents()));
        if let Some(v) = strip.adopted.as_ref().filter(|v| !v.pending.is_empty()) {
            effects.to_clean.push((id, v.rsn));
        }
        self.pending_bytes = self.pending_bytes - pending + strip.pending_bytes();
        self.memory = self.memory - memory + strip.memory();
        self.encoded = self.encoded - encoded + strip.encoded_max();
        let now = strip.listed();
        if now == Listed::default() {
            self.strips.remove(&id);
        }
        if now != was {
            self.relist(id, was, now);
        }
        result
    }

    fn relist(&mut self, id: StripId, was: Listed, now: Listed) {
        if let Some((pool, group)) = was.group {
            self.groups.remove(&(pool, group, id));
        }
        if was.prepared {
            self.prepared.remove(&id);
        }
        if let Some((pool, group)) = now.group {
            self.groups.insert((pool, group, id));
        }
        if now.prepared {
            self.prepared.insert(id);
        }
        self.tombstones = self.tombstones - usize::from(was.tombstone) + usize::from(now.tombstone);
    }

    /// Starts writing out the state of now.
    pub fn walk_start(&mut self) {
        self.walk = Some(Walk { at: None, saved: BTreeMap::new() });
    }

    /// Ends a walk that comes to nothing.
    pub fn walk_stop(&mut self) {
        self.walk = None;
    }

    /// Appends the next strips to `out` until it has `len` bytes or more. False: that was the last.
    pub fn walk_on(&mut self, out: &mut Vec<u8>, len: usize, count: &mut u64) -> bool {
        let Some(walk) = &mut self.walk else { return false };
        while out.len() < len {
            let from = walk.at.map_or(Bound::Unbounded, Bound::Excluded);
            let live = self.strips.range((from, Bound::Unbounded)).next();
            let saved = walk.saved.first_key_value().map(|(id, _)| *id);
            let id = match (live, saved) {
                (None, None) => {
                    self.walk = None;
                    return false;
                }
                (Some((id, _)), None) => *id,
                (None, Some(id)) => id,
                (Some((live, _)), Some(saved)) => saved.min(*live),
            };
            if let Some(old) = walk.saved.remove(&id) {
                if let Some(s) = old {
                    encode_strip(id, &s, out);
                    *count += 1;
                }
            } else if let Some((_, s)) = live {
                encode_strip(id, s, out);
                *count += 1;
            }
            walk.at = Some(id);
        }
        true
    }

    /// Builds the index from what a checkpoint holds: strips in rising order.
    pub fn from_strips(strips: Vec<(StripId, Strip)>, incarnation: Incarnation) -> Index {
        let mut index = Index { incarnation, ..Index::default() };
        let (mut groups, mut prepared) = (Vec::with_capacity(strips.len()), Vec::new());
        for (id, s) in &strips {
            let listed = s.listed();
            index.pending_bytes += s.pending_bytes();
            index.memory += s.memory();
            index.encoded += s.encoded_max();
            index.tombstones += usize::from(listed.tombstone);
            groups.extend(listed.group.map(|(pool, group)| (pool, group, *id)));
            prepared.extend(listed.prepared.then_some(*id));
        }
        index.groups = groups.into_iter().collect();
        index.prepared = prepared.into_iter().collect();
        index.strips = strips.into_iter().collect();
        index
    }
}

/// The strips of the blocks that are deleted; `None` if there are none.
fn strips_of(d: &DeleteStrips) -> Option<RangeInclusive<StripId>> {
    let stripe = |block| StripeId { fs: d.fs, inode: d.inode, block };
    (d.first <= d.last).then(|| stripe(d.first).strip(StripIndex(0))..=stripe(d.last).strip(StripIndex(255)))
}

fn prepared_is(s: &Strip, version: Version) -> Result<(), Misfit> {
    let here = s.prepared.as_ref().is_some_and(|p| p.version == version);
    here.then_some(()).ok_or(Misfit("that version is not prepared"))
}

/// Marks the version, and a prepared one that holds its bytes. False if it is not here.
fn mark_damaged(s: &mut Strip, version: Version) -> bool {
    match (&mut s.adopted, &mut s.prepared) {
        (Some(a), p) if a.version == version => {
            a.damaged = true;
            if let Some(p) = p
                && p.derived
            {
                p.damaged = true;
            }
            true
        }
        (_, Some(p)) if p.version == version => {
            p.damaged = true;
            true
        }
        _ => false,
    }
}

fn apply_put(s: &mut Strip, rsn: u64, put: &Put, payload: &Bytes) -> Result<(), Misfit> {
    if let Some(adopt) = put.adopt {
        prepared_is(s, adopt)?;
        s.adopt();
    }
    let mut pending = Vec::new();
    let mut damaged = false;
    if let Some(base) = put.base {
        let base = s.adopted.as_ref().filter(|a| a.version == base).ok_or(Misfit("base is not adopted"))?;
        damaged = base.damaged;
        let kept = |unit: u32| put.runs.iter().all(|r| unit < r.first || unit >= r.end());
        let units = put.info.len / UNIT as u32;
        pending.reserve(base.pending.len() + put.crcs.len());
        pending.extend(base.pending.iter().filter(|p| p.unit < units && kept(p.unit)).cloned());
    }
    if put.inline {
        if payload.len() != put.inline_len() {
            return Err(Misfit("inline payload has another length"));
        }
        let mut new = Vec::with_capacity(put.crcs.len());
        for (i, (unit, crc)) in put.units().enumerate() {
            unit_at(&put.map, unit).ok_or(Misfit("written unit is a hole"))?;
            new.push(Pending { unit, crc, rsn, bytes: payload.slice(i * UNIT..(i + 1) * UNIT) });
        }
        // What is kept has nothing of a run: each goes in as one piece.
        let mut new = new.into_iter();
        for run in &put.runs {
            let at = pending.partition_point(|p| p.unit < run.first);
            pending.splice(at..at, new.by_ref().take(run.count as usize));
        }
    }
    let ver = Ver {
        version: put.info.version,
        touched: put.info.touched,
        len: put.info.len,
        covers: put.info.covers.as_slice().into(),
        map: put.map.as_slice().into(),
        pending,
        rsn,
        derived: put.base.is_some(),
        damaged,
    };
    if put.install {
        s.prepared.take_if(|p| p.version <= ver.version);
        s.adopted = Some(ver);
    } else if s.prepared.is_some() {
        return Err(Misfit("another version is prepared"));
    } else {
        s.prepared = Some(ver);
    }
    s.pool = put.pool;
    s.group = put.group;
    Ok(())
}
