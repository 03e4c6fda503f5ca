//! What survives: the manager's store and the strips of one pdisk, in memory. What may be done to a strip is decided by
//! `pdisk::rules`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use base::{Grant, GroupId, PoolId, StripId, StripeId, Version, units::UNIT};
use bytes::Bytes;
use manager::store::{Changes, Read, Snapshot, Store, StoreError, Visit};
use pdisk::rules;
use wire::{
    crc::{crc32c, unit_crcs},
    mgr::LogMark,
    nsd::{NsdRefusal, NsdReply, NsdRequest},
    strip::{
        DeleteStrips, PrepareStrip, ReadStrip, ReadVersion, StripRead, StripRefusal, StripState, VersionInfo,
    },
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The manager's store as one life of it has it open. Who is killed commits nothing more.
#[derive(Clone, Default)]
pub struct Kept {
    /// Now, and before the last commit.
    states: Arc<Mutex<(Arc<Map>, Arc<Map>)>>,
    killed: Arc<AtomicBool>,
}

struct Seen(Arc<Map>);

impl Read for Seen {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(&self, start: &[u8], end: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let range = if start < end { self.0.range(start.to_vec()..end.to_vec()) } else { Default::default() };
        for (key, value) in range {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Kept {
    pub fn kill(&self) {
        self.killed.store(true, SeqCst);
    }

    /// For the next life. `behind`: the last commit was acknowledged and is lost.
    pub fn next_life(&self, behind: bool) -> Kept {
        if behind {
            let mut states = self.states.lock().unwrap();
            states.0 = states.1.clone();
        }
        Kept { states: self.states.clone(), killed: Arc::default() }
    }
}

impl Store for Kept {
    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(Arc::new(Seen(self.states.lock().unwrap().0.clone())))
    }
    fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        if self.killed.load(SeqCst) {
            return Err(StoreError::Engine { action: "commit to the", reason: "killed".into() });
        }
        let mut states = self.states.lock().unwrap();
        let mut next = (*states.0).clone();
        for (key, value) in changes {
            match value {
                Some(value) => drop(next.insert(key.clone(), value.clone())),
                None => drop(next.remove(key)),
            }
        }
        let before = std::mem::replace(&mut states.0, Arc::new(next));
        states.1 = before;
        Ok(())
    }
    fn describe(&self) -> String {
        "memory".into()
    }
    fn waits(&self) -> bool {
        false
    }
}

/// One version of a strip. Its bytes are not copied with it.
#[derive(Clone)]
struct Held {
    info: VersionInfo,
    bytes: Bytes,
    crcs: Vec<u32>,
}

impl Held {
    /// Whether its bytes are not what was written.
    fn is_damaged(&self) -> bool {
        !unit_crcs(&self.bytes).eq(self.crcs.iter().copied())
    }
}

#[derive(Clone, Default)]
struct Strip {
    pool: PoolId,
    group: GroupId,
    adopted: Option<Held>,
    prepared: Option<Held>,
    /// What is adopted is known to be damaged.
    lost: bool,
    sealed_below: Grant,
    /// Something was done to it in this life of its server.
    touched: bool,
}

impl Strip {
    /// Whether the bytes of what is adopted are not what was written.
    fn is_damaged(&self) -> bool {
        self.adopted.iter().chain(&self.prepared).any(Held::is_damaged)
    }
}

/// The strips of a pdisk.
#[derive(Default)]
pub struct Strips {
    here: BTreeMap<StripId, Strip>,
    log: Vec<Entry>,
    /// Entries ever written, those included that were lost.
    written: u64,
    /// With how far the log was before each.
    deletes: Vec<(usize, DeleteStrips)>,
    /// Damaged strips that somebody came upon since it was last asked for them.
    found: Vec<StripId>,
    /// Some were damaged.
    rotted: bool,
}

/// A change.
struct Entry {
    /// Never given to another one. It stands for all that was changed up to here.
    number: u64,
    /// Strips before it.
    before: Vec<(StripId, Strip)>,
}

type Refused<T> = Result<T, StripRefusal>;

impl Strips {
    /// Carries out one admitted request.
    pub fn carry_out(&mut self, request: NsdRequest, payload: &Bytes) -> (NsdReply, Bytes) {
        let none = Bytes::new();
        let done = |result: Refused<()>| result.map_or_else(refused, |()| NsdReply::Done);
        let reply = match request {
            NsdRequest::Prepare { strip, .. } => done(self.prepare(&strip, payload)),
            NsdRequest::Install { strip, .. } => done(self.install(&strip, payload, self.deletes.len())),
            NsdRequest::Adopt { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.adopt(id, version)).collect())
            }
            NsdRequest::Discard { items, .. } => {
                NsdReply::Outcomes(items.into_iter().map(|(id, version)| self.discard(id, version)).collect())
            }
            NsdRequest::Seal { strips, below, .. } => {
                for id in &strips {
                    let strip = self.change(*id);
                    strip.sealed_below = strip.sealed_below.max(below);
                }
                self.states(strips.into_iter(), usize::MAX)
            }
            NsdRequest::State { strips, .. } => self.states(strips.into_iter(), usize::MAX),
            NsdRequest::ListGroup { pool, group, after, limit, .. } => {
                let mut states = self.list_group(pool, group, after);
                let more = states.len() > limit as usize;
                states.truncate(limit as usize);
                NsdReply::States { states, more }
            }
            NsdRequest::ListPrepared { fs, after, limit, .. } => {
                let listed = self.after(after, |strip| strip.prepared.is_some());
                self.states(listed.into_iter().filter(|id| id.stripe.fs == fs), limit as usize)
            }
            NsdRequest::Read { read, .. } => match self.read(&read) {
                Ok((read, bytes)) => return (NsdReply::Read(read), bytes),
                Err(refusal) => {
                    self.found.extend(Some(read.strip).filter(|_| refusal == StripRefusal::Lost));
                    refused(refusal)
                }
            },
            NsdRequest::Delete { items, .. } => {
                items.iter().for_each(|item| self.delete(item));
                NsdReply::Done
            }
            NsdRequest::Suspect { strip, .. } => {
                let damaged = self.here.get(&strip).is_some_and(Strip::is_damaged);
                assert!(damaged || self.rotted, "{strip} does not match its CRCs");
                if damaged {
                    self.change(strip).lost = true;
                    self.found.push(strip);
                }
                NsdReply::Done
            }
        };
        (reply, none)
    }

    fn after(&self, after: Option<StripId>, of: impl Fn(&Strip) -> bool) -> Vec<StripId> {
        let rest = self.here.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        rest.filter(|(_, strip)| of(strip)).map(|(id, _)| *id).collect()
    }

    fn append(&mut self, before: Vec<(StripId, Strip)>) {
        self.written += 1;
        self.log.push(Entry { number: self.written, before });
    }

    /// A strip that is changed.
    fn change(&mut self, id: StripId) -> &mut Strip {
        let before = self.here.entry(id).or_default().clone();
        self.append(vec![(id, before)]);
        let strip = self.here.entry(id).or_default();
        strip.touched = true;
        strip
    }

    /// How far its log is.
    pub fn mark(&self) -> LogMark {
        LogMark { position: self.log.len() as u64, digest: self.log.last().map_or(0, |entry| entry.number) }
    }

    /// The point of its log at a position.
    pub fn mark_at(&self, position: u64) -> Option<LogMark> {
        let entry = self.log.get((position as usize).checked_sub(1)?)?;
        Some(LogMark { position, digest: entry.number })
    }

    pub fn deletes_seen(&self) -> usize {
        self.deletes.len()
    }

    /// A new life begins, which is a change as well.
    pub fn open(&mut self) {
        self.append(Vec::new());
    }

    /// The server has died. `behind`: what it changed last is lost, and its log does not show it.
    pub fn end_life(&mut self, behind: bool) {
        let last = self.log.last_mut().filter(|_| behind);
        self.here.extend(last.map(|entry| std::mem::take(&mut entry.before)).unwrap_or_default());
        self.here.values_mut().for_each(|strip| strip.touched = false);
    }

    /// The log is damaged from there on, while no server runs.
    pub fn lose_from(&mut self, position: u64) {
        while self.log.len() as u64 > position {
            self.here.extend(self.log.pop().map(|entry| entry.before).unwrap_or_default());
        }
        self.deletes.retain(|(at, _)| *at < self.log.len());
        self.here.values_mut().for_each(|strip| strip.touched = false);
    }

    /// Bytes of an adopted strip change on the medium: one of them, the `nth`; false if there is none.
    pub fn rot(&mut self, nth: u64) -> bool {
        let mut held: Vec<_> = self.here.values_mut().filter_map(|strip| strip.adopted.as_mut()).collect();
        let Some(at) = nth.checked_rem(held.len() as u64) else { return false };
        let held = &mut held[at as usize];
        let mut bytes = held.bytes.to_vec();
        let at = nth as usize % bytes.len();
        bytes[at] ^= 1;
        held.bytes = bytes.into();
        self.rotted = true;
        true
    }

    /// Whether something adopted here is damaged.
    pub fn is_damaged(&mut self) -> bool {
        self.rotted = self.rotted && self.here.values().any(|strip| strip.lost || strip.is_damaged());
        self.rotted
    }

    /// The stripes of which something is adopted here. What is only prepared can stay when its inode goes meanwhile.
    pub fn stripes(&self) -> impl Iterator<Item = StripeId> {
        let there = self.here.iter().filter(|(_, strip)| strip.adopted.is_some());
        there.map(|(id, _)| id.stripe)
    }

    /// Damaged strips that somebody came upon.
    pub fn found_damaged(&mut self) -> Vec<StripId> {
        std::mem::take(&mut self.found)
    }

    pub fn list_group(&self, pool: PoolId, group: GroupId, after: Option<StripId>) -> Vec<StripState> {
        let of = |strip: &Strip| (strip.pool, strip.group) == (pool, group);
        self.after(after, of).into_iter().map(|id| self.state(id)).collect()
    }

    pub fn state(&self, id: StripId) -> StripState {
        let none = Strip::default();
        let strip = self.here.get(&id).unwrap_or(&none);
        let info = |held: &Option<Held>| held.as_ref().map(|held| held.info.clone());
        StripState {
            strip: id,
            pool: strip.pool,
            group: strip.group,
            adopted: info(&strip.adopted),
            prepared: info(&strip.prepared),
            sealed_below: strip.sealed_below,
            lost: strip.lost,
        }
    }

    fn states(&self, ids: impl Iterator<Item = StripId>, limit: usize) -> NsdReply {
        let mut ids = ids.peekable();
        let states = ids.by_ref().take(limit).map(|id| self.state(id)).collect();
        NsdReply::States { states, more: ids.peek().is_some() }
    }

    fn prepare(&mut self, request: &PrepareStrip, payload: &Bytes) -> Refused<()> {
        checked(request, payload)?;
        let mut decision = rules::prepare(&self.state(request.strip), request);
        // Late, and its block was deleted meanwhile.
        if decision.then == Ok(rules::PrepareAction::Store) && self.is_deleted(request) {
            decision.then = Err(StripRefusal::NotNewer { present: request.info.version });
        }
        if decision.adopt.is_none() {
            decision.then.clone()?;
        }
        let strip = self.change(request.strip);
        if decision.adopt.is_some() {
            (strip.adopted, strip.lost) = (strip.prepared.take(), false);
        }
        if decision.then? == rules::PrepareAction::Store {
            (strip.pool, strip.group) = (request.pool, request.group);
            let base = strip.adopted.clone().filter(|_| request.base.is_some());
            strip.prepared = Some(over(base, request, payload));
        }
        Ok(())
    }

    /// Whether a delete has gone past what is to be stored.
    fn is_deleted(&self, request: &PrepareStrip) -> bool {
        let past = |item: &DeleteStrips| covers(item, &request.strip) && item.highest >= request.info.version;
        self.deletes.iter().any(|(_, item)| past(item))
    }

    /// `since`: deletes that had been seen when it was begun.
    pub fn install(&mut self, request: &PrepareStrip, payload: &Bytes, since: usize) -> Refused<()> {
        checked(request, payload)?;
        let present = request.info.version;
        if since > self.deletes.len() || self.is_deleted(request) {
            return Err(StripRefusal::NotNewer { present });
        }
        rules::install(&self.state(request.strip), present)?;
        let strip = self.change(request.strip);
        (strip.pool, strip.group) = (request.pool, request.group);
        (strip.adopted, strip.prepared) = (Some(over(None, request, payload)), None);
        strip.lost = false;
        Ok(())
    }

    /// Whether what is adopted is damaged, which is recorded then.
    pub fn mark_lost(&mut self, id: StripId) -> Refused<bool> {
        let strip = self.here.get(&id).filter(|strip| strip.adopted.is_some()).ok_or(StripRefusal::Absent)?;
        let damaged = strip.adopted.as_ref().is_some_and(Held::is_damaged);
        if damaged && !strip.lost {
            self.change(id).lost = true;
        }
        Ok(damaged || self.here.get(&id).is_some_and(|strip| strip.lost))
    }

    pub fn adopt(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::adopt(&self.state(id), version)? == rules::Action::Apply {
            let strip = self.change(id);
            (strip.adopted, strip.lost) = (strip.prepared.take(), false);
        }
        Ok(())
    }

    pub fn discard(&mut self, id: StripId, version: Version) -> Refused<()> {
        if rules::discard(&self.state(id), version)? == rules::Action::Apply {
            self.change(id).prepared = None;
        }
        Ok(())
    }

    fn left_over(&self, id: StripId, version: Version) -> bool {
        let left = |strip: &&Strip| !strip.touched && version_of(&strip.prepared) == Some(version);
        self.here.get(&id).filter(left).is_some()
    }

    /// What is prepared now is an earlier life's.
    pub fn begin_life(&mut self) {
        self.here.values_mut().for_each(|strip| strip.touched = false);
    }

    /// Drops what an earlier life left prepared; false if it is not that.
    pub fn discard_leftover(&mut self, id: StripId, version: Version) -> bool {
        let found = self.left_over(id, version);
        if found {
            self.change(id).prepared = None;
        }
        found
    }

    /// Adopts what an earlier life left prepared; false if it is not that.
    pub fn adopt_leftover(&mut self, id: StripId, version: Version) -> Refused<bool> {
        let found = self.left_over(id, version);
        if found {
            self.adopt(id, version)?;
        }
        Ok(found)
    }

    pub fn delete(&mut self, item: &DeleteStrips) {
        let covered = || self.here.iter().filter(|(id, _)| covers(item, id));
        let before = covered().map(|(id, strip)| (*id, strip.clone())).collect();
        self.append(before);
        self.deletes.push((self.log.len() - 1, *item));
        for (_, strip) in self.here.iter_mut().filter(|(id, _)| covers(item, id)) {
            let stays = |held: &Held| held.info.version > item.highest;
            strip.adopted = strip.adopted.take().filter(stays);
            strip.lost &= strip.adopted.is_some();
            strip.prepared = strip.prepared.take().filter(stays);
        }
    }

    fn read(&self, read: &ReadStrip) -> Refused<(StripRead, Bytes)> {
        let strip = self.here.get(&read.strip).ok_or(StripRefusal::Absent)?;
        let versions = [&strip.adopted, &strip.prepared];
        let held = match read.version {
            ReadVersion::Adopted => strip.adopted.as_ref(),
            ReadVersion::Exactly(v) => versions.into_iter().flatten().find(|held| held.info.version == v),
        };
        let held = held.ok_or(StripRefusal::Absent)?;
        if strip.lost
            && strip.adopted.as_ref().is_some_and(|adopted| adopted.info.version == held.info.version)
        {
            return Err(StripRefusal::Lost);
        }
        let (mut ranges, mut crcs, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for mut range in read.ranges.iter().copied().filter(|range| range.offset < held.info.len) {
            range.len = range.len.min(held.info.len - range.offset);
            let (from, to) = (range.offset as usize, range.end() as usize);
            bytes.extend_from_slice(&held.bytes[from..to]);
            crcs.extend_from_slice(&held.crcs[from / UNIT..to / UNIT]);
            ranges.push(range);
        }
        Ok((StripRead { info: held.info.clone(), ranges, crcs }, bytes.into()))
    }
}

fn covers(item: &DeleteStrips, id: &StripId) -> bool {
    let stripe = id.stripe;
    (stripe.fs, stripe.inode) == (item.fs, item.inode) && (item.first..=item.last).contains(&stripe.block)
}

fn version_of(held: &Option<Held>) -> Option<Version> {
    held.as_ref().map(|held| held.info.version)
}

fn refused(refusal: StripRefusal) -> NsdReply {
    NsdReply::Refused(NsdRefusal::Strip(refusal))
}

fn checked(request: &PrepareStrip, payload: &Bytes) -> Refused<()> {
    rules::well_formed(request, payload.len())?;
    assert!(unit_crcs(payload).eq(request.crcs.iter().copied()), "a payload does not match its CRCs");
    Ok(())
}

/// The new version: what came, over its base or zeros.
fn over(base: Option<Held>, request: &PrepareStrip, payload: &Bytes) -> Held {
    let (mut bytes, mut crcs) = base.map(|held| (held.bytes.to_vec(), held.crcs)).unwrap_or_default();
    let len = request.info.len as usize;
    bytes.resize(len, 0);
    crcs.resize(len / UNIT, crc32c(&[0; UNIT]));
    let mut at = 0;
    for range in &request.ranges {
        let (from, size) = (range.offset as usize, range.len as usize);
        bytes[from..from + size].copy_from_slice(&payload[at..at + size]);
        let units = range.units();
        crcs[from / UNIT..from / UNIT + units].copy_from_slice(&request.crcs[at / UNIT..at / UNIT + units]);
        at += size;
    }
    Held { info: request.info.clone(), bytes: bytes.into(), crcs }
}
